//! What can go wrong between Annals and Postgres, and whether trying again can help.

use std::path::{Path, PathBuf};

/// An error of this module. Its text says what to do; it never holds a password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No usable Postgres binaries on this machine.
    #[error(
        "no Postgres {minimum} or later was found ({searched}); install it with `apt-get install postgresql`, \
         name its bin directory in ANNALS_PG_BIN, or name a server of your own in DATABASE_URL",
        minimum = super::VERSION_MIN
    )]
    NoBinaries {
        /// Where it was looked for, and what was wrong with what was there.
        searched: String,
    },
    /// The data directory belongs to another major version than the binaries.
    #[error(
        "the private Postgres in {} has version {data}, the binaries found are version {binaries} ({}); install \
         version {data} or name its bin directory in ANNALS_PG_BIN, or move the data over with \
         `pg_upgrade -b <bin of {data}> -B <bin of {binaries}> -d {} -D <new directory>`",
        .directory.display(), .bin.display(), .directory.display()
    )]
    MajorVersion {
        /// The data's major version.
        data: String,
        /// The binaries' major version.
        binaries: u32,
        /// The data directory of the server.
        directory: PathBuf,
        /// Where the binaries are.
        bin: PathBuf,
    },
    /// The configured server is too old.
    #[error("the server at DATABASE_URL is Postgres {version}; Annals needs {} or later", super::VERSION_MIN)]
    ServerVersion {
        /// As the server says it.
        version: String,
    },
    /// Running as root without a way to run Postgres as somebody else.
    #[error(
        "Postgres does not run as root, user namespaces are not available ({namespace}) and there is no user \
         `postgres` or `nobody` to run it as; run Annals as an ordinary user or set DATABASE_URL"
    )]
    NoUser {
        /// Why no namespace.
        namespace: String,
    },
    /// The unprivileged user cannot reach the data directory.
    #[error(
        "user {user:?}, as whom Postgres must run, cannot pass through {}; put the data directory elsewhere \
         (--data-dir) or run Annals as an ordinary user",
        .directory.display()
    )]
    Unreachable {
        /// The user.
        user: String,
        /// The directory it cannot pass through.
        directory: PathBuf,
    },
    /// There is something in the server's directory that is not a server's data.
    #[error("{} is not empty and is no Postgres data directory; move it away", .directory.display())]
    Foreign {
        /// The directory.
        directory: PathBuf,
    },
    /// `initdb` failed.
    #[error("initdb failed: {output}")]
    Init {
        /// The end of what it wrote.
        output: String,
    },
    /// The server ended, or did not answer in time, while starting.
    #[error("the private Postgres did not start: {cause}; the end of {}:\n{tail}", .log.display())]
    Start {
        /// What happened.
        cause: String,
        /// Its log.
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
    /// The server outlived an immediate shutdown.
    #[error("the private Postgres (pid {pid}) does not stop")]
    Stop {
        /// The postmaster.
        pid: u32,
    },
    /// A server runs on the directory and does not let us in.
    #[error(
        "the private Postgres refuses the password in {}; if that file was changed or lost, restore it from a backup",
        .path.display()
    )]
    Password {
        /// The password's file.
        path: PathBuf,
    },
    /// Another process starts or stops the same private Postgres.
    #[error("another process holds {} for too long", .path.display())]
    Busy {
        /// The lock's file.
        path: PathBuf,
    },
    /// `database.url` is no Postgres URL.
    #[error("DATABASE_URL is not a Postgres URL: {cause}")]
    Url {
        /// What is wrong with it.
        cause: String,
    },
    /// The role of `database.url` lacks a right.
    #[error("the role {role:?} of DATABASE_URL {lacks}")]
    Privilege {
        /// The role.
        role: String,
        /// What it lacks and how to give it.
        lacks: String,
    },
    /// A file could not be read, written or changed.
    #[error("cannot {action} {}: {cause}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// A program could not be run.
    #[error("cannot run {}: {cause}", .program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// No program that works with the server.
    #[error(
        "no {program} of version {server} or later was found ({seen}); install it with `apt-get install \
         postgresql-client`, or name its directory in ANNALS_PG_BIN"
    )]
    NoProgram {
        /// `pg_dump` or `pg_restore`.
        program: String,
        /// The server's major version.
        server: u32,
        /// What was found instead.
        seen: String,
    },
    /// A program of the Postgres client failed.
    #[error("{} failed: {output}", .program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// How it ended, and the end of what it wrote.
        output: String,
    },
    /// The server cannot be reached, or a statement failed.
    #[error("Postgres, while trying to {action}: {cause}")]
    Sql {
        /// What was tried.
        action: &'static str,
        /// The driver's error.
        cause: sqlx::Error,
    },
    /// A migration failed, or one that was applied is unknown here.
    #[error("the migrations of the state tables failed: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
}

/// What kind of trouble an [`Error`] is. Every kind ends a process with exit code 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Something has to be installed.
    Missing,
    /// It may work later without anybody doing anything.
    Unreachable,
    /// Somebody has to change a setting, a right or a file.
    Refused,
}

impl Error {
    /// What kind of trouble it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoBinaries { .. } | Self::NoProgram { .. } => ErrorKind::Missing,
            Self::Start { .. } | Self::Stop { .. } | Self::Busy { .. } => ErrorKind::Unreachable,
            Self::Sql { cause, .. } if is_transient(cause) => ErrorKind::Unreachable,
            Self::MajorVersion { .. }
            | Self::ServerVersion { .. }
            | Self::NoUser { .. }
            | Self::Unreachable { .. }
            | Self::Foreign { .. }
            | Self::Init { .. }
            | Self::Password { .. }
            | Self::Url { .. }
            | Self::Privilege { .. }
            | Self::Io { .. }
            | Self::Run { .. }
            | Self::Program { .. }
            | Self::Sql { .. }
            | Self::Migrate(_) => ErrorKind::Refused,
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind() == ErrorKind::Unreachable
    }

    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::Io { action, path, cause }
    }

    pub(super) fn sql(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |cause| Self::Sql { action, cause }
    }
}

/// Whether `error` says that the server is away, busy or starting, rather than that the statement is wrong.
#[must_use]
pub fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Protocol(_) => true,
        // Connection exceptions, insufficient resources, operator intervention (shutdown, timeout), system
        // errors, and what a lost race reports.
        sqlx::Error::Database(database) => database.code().is_some_and(|code| {
            ["08", "53", "57", "58"].iter().any(|class| code.starts_with(class))
                || code == "40001"
                || code == "40P01"
                || code == "55P03"
        }),
        _ => false,
    }
}
