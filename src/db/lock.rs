//! Advisory file locks: one process at a time starts or stops the private Postgres, and the last user stops it.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Error;

/// How long to wait for another process that starts or stops the server.
const WAIT_MAX: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(20);

/// Held while the server is being started or stopped. Freed by the system when its process dies.
#[derive(Debug)]
pub(super) struct Transition {
    _file: File,
}

/// Held, shared, as long as this process uses the server.
#[derive(Debug)]
pub(super) struct User {
    file: File,
    path: PathBuf,
}

fn open(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(Error::io("open the lock file", path))
}

impl Transition {
    /// Waits until no other process starts or stops the server of `data_dir`.
    pub(super) async fn begin(data_dir: &Path) -> Result<Self, Error> {
        let path = data_dir.join("pg.lock");
        let file = open(&path)?;
        let taken = tokio::time::timeout(WAIT_MAX, async {
            loop {
                match file.try_lock() {
                    Ok(()) => return Ok(()),
                    Err(TryLockError::WouldBlock) => tokio::time::sleep(POLL).await,
                    Err(TryLockError::Error(cause)) => return Err(Error::io("lock", &path)(cause)),
                }
            }
        });
        match taken.await {
            Ok(result) => result.map(|()| Self { _file: file }),
            Err(_) => Err(Error::Busy { path }),
        }
    }
}

impl User {
    /// Enters the users of the server of `data_dir`. Call it only while [`Transition`] is held.
    pub(super) fn enter(data_dir: &Path) -> Result<Self, Error> {
        let path = data_dir.join("pg.users.lock");
        let file = open(&path)?;
        file.try_lock_shared().map_err(|error| match error {
            TryLockError::WouldBlock => Error::Busy { path: path.clone() },
            TryLockError::Error(cause) => Error::io("lock", &path)(cause),
        })?;
        Ok(Self { file, path })
    }

    /// Leaves the users; true when this was the last one. Call it only while [`Transition`] is held.
    pub(super) fn leave(&self) -> Result<bool, Error> {
        self.file.unlock().map_err(Error::io("unlock", &self.path))?;
        match self.file.try_lock() {
            Ok(()) => {
                self.file.unlock().map_err(Error::io("unlock", &self.path))?;
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(cause)) => Err(Error::io("lock", &self.path)(cause)),
        }
    }
}

/// Whether any process uses the server of `data_dir`.
pub(super) fn is_used(data_dir: &Path) -> Result<bool, Error> {
    let path = data_dir.join("pg.users.lock");
    match open(&path)?.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(cause)) => Err(Error::io("lock", &path)(cause)),
    }
}
