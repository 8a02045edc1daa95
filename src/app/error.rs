//! Why a process cannot start or end in good order, with what to do about it.

use std::net::SocketAddr;

use super::NodeError;
use crate::auth::{KeyError, PersonaError};
use crate::log::ReadError;
use crate::tools::ConnectionError;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port is taken or not ours to take.
    #[error("cannot listen on {address}: {cause}; choose another with {flag} or `{key}` in the config")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// The config key.
        key: &'static str,
        /// The flag.
        flag: &'static str,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The data directory or the log.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The store.
    #[error(transparent)]
    Database(#[from] crate::db::Error),
    /// The keys.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The sample data.
    #[error(transparent)]
    Sample(#[from] crate::sample::Error),
    /// A bad glob.
    #[error(transparent)]
    Persona(#[from] PersonaError),
    /// A bad glob over tools.
    #[error(transparent)]
    Recording(#[from] crate::dispatch::GlobError),
    /// A bad connection.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// `--sample` needs the name that the config uses.
    #[error(
        "connections.sample is configured, and --sample makes one of that name; rename yours or leave --sample out"
    )]
    SampleName,
    /// The log cannot be followed.
    #[error(transparent)]
    Follow(#[from] ReadError),
    /// The log's bytes are damaged: the projection met them. Names the file and the place.
    #[error("the log is corrupt: {0}; `annals verify --log-only` says what else is")]
    Corrupt(String),
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl StartError {
    /// Whether the store went away, so that the same may work when it is back.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Keys(KeyError::Store(cause)) => crate::db::is_transient(cause),
            Self::Sample(error) => error.is_transient(),
            _ => false,
        }
    }

    /// 2: the config is wrong; 3: something is missing, unreachable or corrupt.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Persona(_)
            | Self::Recording(_)
            | Self::Connection(_)
            | Self::SampleName
            | Self::Database(crate::db::Error::Url { .. }) => 2,
            Self::Bind { .. }
            | Self::Node(_)
            | Self::Database(_)
            | Self::Keys(_)
            | Self::Sample(_)
            | Self::Follow(_)
            | Self::Corrupt(_)
            | Self::Io(_) => 3,
        }
    }
}
