//! What Postgres or the way to it answers, in words for the caller.
//!
//! SQLSTATE and Postgres' own message are shown for a statement's errors; for connection failures neither, since
//! they tell of hosts, roles and passwords: those go to the log output, once, here.

use sqlx::postgres::{PgDatabaseError, PgErrorPosition};

use crate::base::{Category, clip_words};
use crate::refusal::Reason;
use crate::tools::ToolError;
use crate::tools::connections::ConnectionLimits;

/// A public error for `error` on the connection `name`.
pub(in crate::tools) fn tool_error(name: &str, error: &sqlx::Error, limits: &ConnectionLimits) -> ToolError {
    if let sqlx::Error::Database(database) = error
        && let Some(postgres) = database.try_downcast_ref::<PgDatabaseError>()
        && let Some(public) = of_state(postgres, limits)
    {
        return public;
    }
    connection_failed(name, error)
}

/// A session could not be opened or was lost; the cause is for the operator only.
pub(super) fn connection_failed(name: &str, error: &sqlx::Error) -> ToolError {
    tracing::warn!(connection.name = name, error = %error, "a connection failed");
    unreachable(name)
}

/// The server cannot be reached or ended the session.
pub(super) fn unreachable(name: &str) -> ToolError {
    ToolError::new(
        Reason::ConnectionUnreachable,
        format!("The connection {name:?} is not reachable or its server ended the session."),
        "Try again; when it persists, tell the operator: the server's log output names the cause.",
    )
}

/// The statement ran longer than the connection allows.
pub(in crate::tools) fn timed_out(limits: &ConnectionLimits) -> ToolError {
    ToolError::new(
        Reason::SqlTimeout,
        format!("The statement ran longer than {} ms and was stopped.", limits.timeout.as_millis()),
        "Read less: filter on an indexed column, aggregate, or lower the limit.",
    )
}

/// `None` for what concerns the connection and not the statement.
fn of_state(error: &PgDatabaseError, limits: &ConnectionLimits) -> Option<ToolError> {
    let state = error.code();
    let class = state.get(..2).unwrap_or_default();
    let (reason, hint) = match (class, state) {
        (_, "57014") => return Some(timed_out(limits)),
        (_, "42501") => {
            (Reason::SqlPermissionDenied, "This connection's role may not do that; query what it may read.")
        }
        (_, "42601") => (Reason::SqlSyntax, "Correct the SQL."),
        (_, "42P01" | "3F000") => (
            Reason::SqlUndefinedTable,
            "List tables with SELECT table_schema, table_name FROM information_schema.tables.",
        ),
        (_, "42703") => (
            Reason::SqlUndefinedColumn,
            "List columns with SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '...'.",
        ),
        (_, "42883") => (Reason::SqlUndefinedFunction, "Check the name and cast the arguments to its types."),
        (_, "25006") => (Reason::SqlReadOnly, "Only reads are accepted."),
        ("0A", _) => (Reason::SqlNotSupported, "Write it another way."),
        ("21" | "22" | "23" | "P0", _) => (Reason::SqlBadValue, "Correct the value or the cast in question."),
        ("54", _) => (Reason::SqlTooComplex, "Split the statement."),
        ("42" | "44" | "25" | "2F" | "34" | "24" | "26" | "2B" | "38" | "39" | "3B", _) => {
            (Reason::SqlInvalid, "Correct the SQL.")
        }
        ("40" | "55", _) => (Reason::SqlConflict, "Another session was in the way: try again."),
        ("53", _) => {
            (Reason::SqlResourcesExhausted, "The server is short of something: read less or try later.")
        }
        ("XX" | "58" | "F0" | "HV", _) => {
            (Reason::SqlServerFailed, "The server failed inside: tell its operator.")
        }
        _ => return None,
    };
    if state == "53300" {
        return None;
    }
    let place = match error.position() {
        Some(PgErrorPosition::Original(at)) if reason.category() == Category::Validation => {
            format!(" at character {at}")
        }
        Some(PgErrorPosition::Original(_) | PgErrorPosition::Internal { .. }) | None => String::new(),
    };
    let said = clip_words(error.message(), 1_000);
    Some(ToolError::new(reason, format!("Postgres refused the statement ({state}{place}): {said}"), hint))
}
