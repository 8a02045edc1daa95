//! Directories and small files of a backup: private, whole, durable.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::Error;

const CHUNK_BYTES: usize = 1 << 20;

/// Makes `dir` (mode 0700) with what is missing above it, or takes it when it is empty. `true`: it was made.
pub(super) fn claim(dir: &Path) -> Result<bool, Error> {
    match std::fs::read_dir(dir).map(|mut entries| entries.next().is_some()) {
        Ok(true) => Err(Error::NotEmpty { dir: dir.to_owned() }),
        Ok(false) => Ok(false),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(Error::io("create", dir))?;
            Ok(true)
        }
        Err(error) => Err(Error::io("read", dir)(error)),
    }
}

/// Makes one directory, mode 0700.
pub(super) fn make(dir: &Path) -> Result<(), Error> {
    DirBuilder::new().mode(0o700).create(dir).map_err(Error::io("create", dir))
}

/// Makes the names in `dir` durable.
pub(super) fn sync(dir: &Path) -> Result<(), Error> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::io("sync", dir))
}

/// Makes the name of `dir` durable.
pub(super) fn sync_above(dir: &Path) -> Result<(), Error> {
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
        _ => sync(Path::new(".")),
    }
}

/// Sets a file that another program wrote to mode 0600 and makes it durable.
pub(super) fn protect(file: &Path) -> Result<(), Error> {
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).map_err(Error::io("protect", file))?;
    File::open(file).and_then(|file| file.sync_all()).map_err(Error::io("sync", file))
}

/// Writes `bytes` as `name` in `dir`, mode 0600, whole and durable or not at all.
pub(super) fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let (beside, path) = (dir.join(format!("{name}.new")), dir.join(name));
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .map_err(Error::io("write", &beside))?;
    std::fs::rename(&beside, &path).map_err(Error::io("rename into place", &path))?;
    sync(dir)
}

/// Length and SHA-256 (hexadecimal) of a file.
pub(super) fn digest(path: &Path) -> std::io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((bytes, hex::encode(digest.finalize()))),
            Ok(read) => {
                digest.update(buffer.get(..read).unwrap_or_default());
                bytes += read as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
