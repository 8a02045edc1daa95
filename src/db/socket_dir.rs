//! Where the private server's socket is: in the data directory, or, when its path would be too long for the system,
//! in a directory of its own under the temp dir, whose name is kept in `pg/annals-socket-dir`.

use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Error;
use super::keys::write_secret;
use super::private::protect;
use super::run_as::RunAs;
use crate::base::random_bytes;

/// Only a part of the socket's name: the server listens on no network.
pub(super) const PORT: u16 = 5432;
const SOCKET: &str = ".s.PGSQL.5432";
const SOCKET_LOCK: &str = ".s.PGSQL.5432.lock";
/// The system's limit is 107 bytes on Linux and 103 on others.
const SOCKET_PATH_BYTES_MAX: usize = 100;
const NOTE: &str = "annals-socket-dir";

/// The directory for the socket, made when it is missing, mode 0700.
pub(super) fn prepare(data_dir: &Path, pg: &Path, run_as: &RunAs) -> Result<PathBuf, Error> {
    let inside = data_dir.join("pg-socket");
    if fits(&inside) {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&inside)
            .map_err(Error::io("create", &inside))?;
        protect(&inside, run_as)?;
        return Ok(inside);
    }
    if let Some(noted) = noted(pg).filter(|noted| is_ours(noted, run_as.owner_uid())) {
        return Ok(noted);
    }
    let name = format!("annals-{}", hex::encode(random_bytes::<8>()));
    let temporary = std::env::temp_dir();
    let outside = if fits(&temporary.join(&name)) { temporary } else { PathBuf::from("/tmp") }.join(&name);
    // Fails when the name exists: nobody can have put a directory of theirs there.
    DirBuilder::new().mode(0o700).create(&outside).map_err(Error::io("create", &outside))?;
    protect(&outside, run_as)?;
    let note = pg.join(NOTE);
    write_secret(&note, &outside.to_string_lossy())?;
    run_as.give(&note)?;
    Ok(outside)
}

/// The directory outside the data directory that was made for `pg`.
pub(super) fn noted(pg: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(pg.join(NOTE)).ok()?;
    let noted = PathBuf::from(text.trim_end());
    noted.is_absolute().then_some(noted)
}

/// The files that a server keeps in it.
pub(super) fn files(socket_dir: &Path) -> [PathBuf; 2] {
    [socket_dir.join(SOCKET), socket_dir.join(SOCKET_LOCK)]
}

/// The server's setting. Its value is a list, so the path stands in double quotes.
pub(super) fn setting(socket_dir: &Path) -> OsString {
    let quoted = socket_dir.to_string_lossy().replace('"', "\"\"");
    format!("unix_socket_directories=\"{quoted}\"").into()
}

/// Removes the directory of a stopped server when it lies outside the data directory.
pub(super) fn clean(pg: &Path, socket_dir: &Path) {
    if noted(pg).is_some_and(|noted| noted == socket_dir) {
        for (what, result) in
            [("directory", std::fs::remove_dir(socket_dir)), ("note", std::fs::remove_file(pg.join(NOTE)))]
        {
            if let Err(error) = result {
                tracing::warn!(%error, what, "the socket directory was not removed");
            }
        }
    }
}

fn fits(directory: &Path) -> bool {
    // The name is also a line of postmaster.pid and an element of a setting.
    let is_plain = directory.to_str().is_some_and(|text| !text.contains(char::is_control));
    is_plain && directory.as_os_str().len() + 1 + OsStr::new(SOCKET).len() <= SOCKET_PATH_BYTES_MAX
}

fn is_ours(directory: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(directory).is_ok_and(|metadata| {
        metadata.is_dir() && metadata.uid() == uid && metadata.permissions().mode() & 0o077 == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_or_odd_path_does_not_fit() {
        let of_length = |length: usize| PathBuf::from(format!("/{}", "d".repeat(length - 1)));
        assert!(fits(&of_length(86)));
        assert!(!fits(&of_length(87)));
        assert!(!fits(Path::new("/a\nb")));
    }

    #[test]
    fn a_foreign_directory_is_not_reused() {
        let top = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let directory = top.path().join("d");
        DirBuilder::new().mode(0o700).create(&directory).unwrap();
        assert!(is_ours(&directory, uid));
        assert!(!is_ours(&directory, uid + 1));
        let link = top.path().join("l");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert!(!is_ours(&link, uid));
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(!is_ours(&directory, uid));
    }

    #[test]
    fn the_setting_quotes_what_a_list_would_split() {
        assert_eq!(setting(Path::new("/a,b \"c")), OsString::from("unix_socket_directories=\"/a,b \"\"c\""));
    }
}
