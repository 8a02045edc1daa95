//! As whom the private Postgres runs. It refuses to be root, so root runs it in a user namespace where its own id has
//! another number, or, where namespaces are forbidden, as an existing unprivileged user.

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

use super::Error;

const PROBE_WAIT_MAX: Duration = Duration::from_secs(10);

/// As whom programs of Postgres run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RunAs {
    /// As the user we are.
    Ourselves,
    /// As root outside, as this user id inside a namespace; files stay root's. `initdb` looks its user up by id,
    /// so the id must be one that the system knows.
    Namespace { uid: u32 },
    /// As this user.
    User(User),
}

/// A line of the system's user list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl RunAs {
    /// Decides by trying.
    pub(super) async fn choose() -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Ourselves);
        }
        let users = users();
        let named = |name: &str| users.iter().find(|user| user.name == name && user.uid != 0);
        let candidate = named("postgres").or_else(|| named("nobody"));
        let inside = candidate.or_else(|| users.iter().find(|user| user.uid != 0)).map(|user| user.uid);
        let reason = match inside {
            None => "no user but root exists".to_owned(),
            Some(uid) => match namespace_works(uid).await {
                Ok(()) => return Ok(Self::Namespace { uid }),
                Err(reason) => reason,
            },
        };
        match candidate {
            Some(user) => Ok(Self::User(user.clone())),
            None => Err(Error::NoUser { namespace: reason }),
        }
    }

    /// A command that runs `program` so. Of the environment only the search path and the temp dir go along: no
    /// setting of a Postgres client may reach the server, and no secret of ours.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = match self {
            Self::Ourselves | Self::User(_) => Command::new(program),
            Self::Namespace { uid } => {
                let mut command = Command::new("unshare");
                command.arg("-U").arg(map_user(*uid)).arg("--").arg(program);
                command
            }
        };
        command.env_clear().env("LC_ALL", "C").env("PATH", std::env::var_os("PATH").unwrap_or_default());
        if let Self::User(user) = self {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }

    /// Gives `path` to whom Postgres runs as.
    pub(super) fn give(&self, path: &Path) -> Result<(), Error> {
        match self {
            Self::Ourselves | Self::Namespace { .. } => Ok(()),
            Self::User(user) => std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid))
                .map_err(Error::io("change the owner of", path)),
        }
    }

    /// The user id, as seen from here, that owns the server's files.
    pub(super) fn owner_uid(&self) -> u32 {
        match self {
            Self::Ourselves | Self::Namespace { .. } => rustix::process::geteuid().as_raw(),
            Self::User(user) => user.uid,
        }
    }

    /// Lets whom Postgres runs as pass through `data_dir`, which is ours, and checks that the directories above
    /// let it pass.
    pub(super) fn open_way(&self, data_dir: &Path) -> Result<(), Error> {
        let Self::User(user) = self else { return Ok(()) };
        std::fs::set_permissions(data_dir, PermissionsExt::from_mode(0o711))
            .map_err(Error::io("change the mode of", data_dir))?;
        for directory in data_dir.ancestors() {
            let metadata = std::fs::metadata(directory).map_err(Error::io("look at", directory))?;
            let bit = if metadata.uid() == user.uid {
                0o100
            } else if metadata.gid() == user.gid {
                0o010
            } else {
                0o001
            };
            if metadata.mode() & bit == 0 {
                return Err(Error::Unreachable { user: user.name.clone(), directory: directory.to_owned() });
            }
        }
        Ok(())
    }
}

fn map_user(uid: u32) -> OsString {
    format!("--map-user={uid}").into()
}

/// Whether a program can run under `uid` in a new user namespace; if not, why.
async fn namespace_works(uid: u32) -> Result<(), String> {
    let run = Command::new("unshare")
        .arg("-U")
        .arg(map_user(uid))
        .args(["--", "id", "-u"])
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PROBE_WAIT_MAX, run)
        .await
        .map_err(|_| "unshare does not answer".to_owned())?
        .map_err(|error| format!("unshare: {error}"))?;
    let shown = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && shown.trim() == uid.to_string() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

fn users() -> Vec<User> {
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    text.lines().filter_map(user_of).collect()
}

/// `name:password:uid:gid:…`
fn user_of(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some(User { name, uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_user_list_are_read() {
        assert_eq!(
            user_of("postgres:x:101:104:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash"),
            Some(User { name: "postgres".into(), uid: 101, gid: 104 })
        );
        assert_eq!(user_of("+::::::"), None);
    }

    #[test]
    fn a_closed_directory_above_is_named() {
        let top = tempfile::tempdir().unwrap();
        std::fs::set_permissions(top.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let data_dir = top.path().join("data");
        std::fs::create_dir(&data_dir).unwrap();
        let stranger = RunAs::User(User { name: "stranger".into(), uid: 4_000_001, gid: 4_000_001 });
        match stranger.open_way(&data_dir).unwrap_err() {
            Error::Unreachable { user, directory } => {
                assert_eq!((user.as_str(), directory.as_path()), ("stranger", top.path()));
            }
            other => panic!("{other}"),
        }
    }
}
