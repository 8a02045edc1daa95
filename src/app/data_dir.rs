//! Where things lie in the data directory: `log/ pg/ keys/ run.json`.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A data directory that exists.
#[derive(Debug, Clone)]
pub struct DataDir {
    root: PathBuf,
}

impl DataDir {
    /// Makes it (mode 0700) where it is missing.
    ///
    /// # Errors
    /// What the system says, with the path.
    pub fn create(root: &Path) -> std::io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        Self::open(root)
    }

    /// An existing one.
    ///
    /// # Errors
    /// `NotFound` when it is missing.
    pub fn open(root: &Path) -> std::io::Result<Self> {
        Ok(Self { root: fs::canonicalize(root)? })
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The user id that Annals runs as here, when that is another than root and we are root: what we wrote or started
    /// would be closed to it afterwards.
    #[must_use]
    pub fn of_another_user(&self) -> Option<u32> {
        let keys = fs::metadata(self.root.join("keys")).ok()?;
        (rustix::process::geteuid().is_root() && keys.uid() != 0).then(|| keys.uid())
    }

    /// The embedded log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    /// Says how to reach the running server.
    #[must_use]
    pub fn run_file(&self) -> PathBuf {
        self.root.join("run.json")
    }
}
