//! Why there is no backup, or none that is brought back, and what to do about it.

use std::path::PathBuf;

use crate::log::ReadError;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory holds something.
    #[error("{} is not empty; name a directory that is empty or does not exist yet", .dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
    },
    /// A restore into the directory was begun and did not end well.
    #[error(
        "a restore into {} was interrupted, or what it restored does not hold together: remove the directory and run \
         `annals restore` again",
        .dir.display()
    )]
    HalfRestored {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory is no whole backup.
    #[error(
        "{} has no manifest.json: it is no backup, or one that was interrupted before it was whole; take another",
        .dir.display()
    )]
    NoManifest {
        /// The directory.
        dir: PathBuf,
    },
    /// A file of the backup is not what was written.
    #[error("{} is damaged: {cause}; nothing was restored, use another backup", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What does not hold.
        cause: String,
    },
    /// A newer Annals made the backup, or a newer Postgres.
    #[error("the backup has {what} {found}, and here is only {known}; {remedy}")]
    Newer {
        /// What is newer.
        what: &'static str,
        /// In the backup.
        found: i64,
        /// Here.
        known: i64,
        /// What to do.
        remedy: &'static str,
    },
    /// Old segments are being dropped.
    #[error(
        "old segments of the log in {} are being dropped, for longer than database.backup_lock_wait_ms; try again",
        .dir.display()
    )]
    Dropping {
        /// The log's directory.
        dir: PathBuf,
    },
    /// `DATABASE_URL` leads to a store that is in use.
    #[error(
        "the database of DATABASE_URL already has schemas of Annals; name an empty database, or drop the schemas \
         annals and audit_v1 in it"
    )]
    DatabaseTaken,
    /// The log is damaged or cannot be read.
    #[error("the log cannot be copied: {0}")]
    Log(#[from] ReadError),
    /// Postgres, or a program of it.
    #[error(transparent)]
    Database(#[from] crate::db::Error),
    /// A statement failed.
    #[error("Postgres, while trying to {action}: {cause}")]
    Sql {
        /// What was tried.
        action: &'static str,
        /// The driver's error.
        cause: sqlx::Error,
    },
    /// The restored data could not be verified. What a verification finds is no error.
    #[error(transparent)]
    Verify(#[from] crate::verify::Error),
    /// A file could not be read or written.
    #[error("cannot {action} {}: {cause}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's answer.
        cause: std::io::Error,
    },
}

impl Error {
    /// 1: damage was found; 2: something else has to be named; 3: something is missing or failed.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Damaged { .. } | Self::Log(ReadError::Corrupt { .. }) => 1,
            Self::NotEmpty { .. }
            | Self::HalfRestored { .. }
            | Self::NoManifest { .. }
            | Self::DatabaseTaken => 2,
            Self::Newer { .. }
            | Self::Dropping { .. }
            | Self::Log(_)
            | Self::Database(_)
            | Self::Sql { .. }
            | Self::Verify(_)
            | Self::Io { .. } => 3,
        }
    }

    pub(super) fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::Io { action, path, cause }
    }

    pub(super) fn sql(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |cause| Self::Sql { action, cause }
    }
}
