//! Finding the Postgres programs on this machine. Nothing here downloads or installs anything.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use super::{Error, VERSION_MIN};

/// A program that only prints its version answers at once.
const VERSION_WAIT_MAX: Duration = Duration::from_secs(10);
const NEEDED: [&str; 3] = ["initdb", "postgres", "pg_controldata"];

/// A directory with the programs of one Postgres.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binaries {
    pub(super) bin: PathBuf,
    pub(super) major: u32,
}

impl Binaries {
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// The binaries to use: `given` alone when there is one, else the newest of the system's directories, else
    /// those on the search path. Among the usable ones those of major version `wanted` go first.
    pub(super) async fn find(given: Option<&Path>, wanted: Option<&str>) -> Result<Self, Error> {
        let places = match given {
            Some(bin) => vec![("ANNALS_PG_BIN", bin.to_owned())],
            None => places(),
        };
        let mut problems = Vec::new();
        let mut usable: Vec<Self> = Vec::new();
        for (source, bin) in places {
            match inspect(&bin).await {
                Ok(major) if major >= VERSION_MIN => usable.push(Self { bin, major }),
                Ok(major) => problems.push(format!("{source} {}: version {major}", bin.display())),
                Err(problem) => problems.push(format!("{source} {}: {problem}", bin.display())),
            }
        }
        let wanted = usable.iter().position(|found| wanted == Some(found.major.to_string().as_str()));
        if usable.is_empty() {
            let searched = if problems.is_empty() {
                "searched /usr/lib/postgresql/*/bin and PATH".to_owned()
            } else {
                problems.join("; ")
            };
            return Err(Error::NoBinaries { searched });
        }
        Ok(usable.swap_remove(wanted.unwrap_or(0)))
    }
}

/// Where the system keeps them, best first.
fn places() -> Vec<(&'static str, PathBuf)> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versioned: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let major = entry.file_name().to_str()?.parse().ok()?;
            Some((major, entry.path().join("bin")))
        })
        .filter(|(_, bin)| bin.join("postgres").exists())
        .collect();
    versioned.sort_by_key(|(major, _)| std::cmp::Reverse(*major));
    // The search path is no setting of ours: it is how the system finds a program.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = directories_on(&path).map(|bin| ("PATH", bin));
    versioned.into_iter().map(|(_, bin)| ("installed", bin)).chain(on_path).collect()
}

/// Where programs of a Postgres client are looked for, best first: the servers' directories, newest first, then the
/// search path.
pub(super) fn client_places() -> Vec<PathBuf> {
    let mut versioned: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versioned.sort_by_key(|(major, _)| std::cmp::Reverse(*major));
    let path = std::env::var_os("PATH").unwrap_or_default();
    versioned.into_iter().map(|(_, bin)| bin).chain(std::env::split_paths(&path)).collect()
}

/// The real directories of the `postgres` programs on a search path: a link's neighbours may be missing.
fn directories_on(path: &OsStr) -> impl Iterator<Item = PathBuf> {
    std::env::split_paths(path).filter_map(|directory| {
        let program = std::fs::canonicalize(directory.join("postgres")).ok()?;
        program.parent().map(Path::to_owned)
    })
}

/// The major version of the programs in `bin`, or what is wrong with them.
async fn inspect(bin: &Path) -> Result<u32, String> {
    if let Some(missing) = NEEDED.iter().find(|name| !bin.join(name).exists()) {
        return Err(format!("no {missing} there"));
    }
    let run = Command::new(bin.join("postgres")).arg("--version").kill_on_drop(true).output();
    let output = tokio::time::timeout(VERSION_WAIT_MAX, run)
        .await
        .map_err(|_| "postgres --version does not answer".to_owned())?
        .map_err(|error| format!("postgres --version: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    major_of(&text).ok_or_else(|| format!("postgres --version says {:?}", text.trim()))
}

/// `postgres (PostgreSQL) 15.18 (Debian …)`, `postgres (PostgreSQL) 18beta1`.
pub(super) fn major_of(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("(PostgreSQL) ")?;
    let digits = version.find(|c: char| !c.is_ascii_digit()).map_or(version, |end| version.split_at(end).0);
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_postgres_prints() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(major_of("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(major_of("postgres (PostgreSQL) 16"), Some(16));
        assert_eq!(major_of("nothing"), None);
    }

    #[tokio::test]
    async fn a_given_directory_without_programs_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let error = Binaries::find(Some(empty.path()), None).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "no Postgres 15 or later was found (ANNALS_PG_BIN {}: no initdb there); install it with \
                 `apt-get install postgresql`, name its bin directory in ANNALS_PG_BIN, or name a server of your own \
                 in DATABASE_URL",
                empty.path().display()
            )
        );
        assert_eq!(error.kind(), super::super::ErrorKind::Missing);
    }
}
