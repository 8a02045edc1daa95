//! Why the audit could not be read.

use super::cursor::CursorError;

/// Why the audit could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store is still being brought up: ask again.
    #[error("the audit store is still starting")]
    Starting,
    /// The store is away, not ready yet, or too slow: ask again.
    #[error("the audit store is not available")]
    Unavailable {
        /// The driver's error, for the log.
        #[source]
        cause: sqlx::Error,
    },
    /// The cursor is not one of ours, or was given for other filters.
    #[error("cursor: {0}")]
    Cursor(#[from] CursorError),
    /// The store answered in a way that this version does not understand.
    #[error("the audit store gave an unexpected answer")]
    Internal {
        /// The driver's error, for the log.
        #[source]
        cause: sqlx::Error,
    },
}

impl Error {
    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Starting | Self::Unavailable { .. })
    }
}

impl From<sqlx::Error> for Error {
    fn from(cause: sqlx::Error) -> Self {
        if crate::db::is_transient(&cause) || is_not_ready(&cause) {
            Self::Unavailable { cause }
        } else {
            Self::Internal { cause }
        }
    }
}

/// What a store says in which the projection has not made its views yet, or in which our roles are not in order:
/// no such table, schema or database, no right, no such role or another password.
fn is_not_ready(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("42P01" | "3F000" | "3D000" | "42501" | "28000" | "28P01"))
}
