//! Whether a session's role is harmless: a role that could write would leave only our own care between an agent and
//! the data.
//!
//! Asked once per session, before a caller's text is sent over it.

use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::refusal::Reason;
use crate::tools::ToolError;

/// Memberships that read or write around table rights. `pg_has_role` says yes to everything for a superuser, so the
/// session's own role is named first.
const MEMBERSHIPS: &str = "
    SELECT CASE
        WHEN r.rolsuper THEN 'is a superuser'
        WHEN r.rolcreaterole THEN 'may create roles'
        WHEN r.rolreplication THEN 'may replicate'
        WHEN r.rolbypassrls THEN 'bypasses row security'
        ELSE 'belongs to ' || r.rolname END AS why
    FROM pg_catalog.pg_roles r
    WHERE pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')
      AND (r.rolsuper OR r.rolcreaterole OR r.rolreplication OR r.rolbypassrls OR r.rolname = ANY($1))
    ORDER BY r.rolname <> session_user, r.rolname LIMIT 1";

const DANGEROUS_ROLES: &[&str] = &[
    "pg_write_all_data",
    "pg_execute_server_program",
    "pg_read_server_files",
    "pg_write_server_files",
    "pg_signal_backend",
    "pg_create_subscription",
    "pg_maintain",
    "pg_database_owner",
];

const WRITES: &str = "
    SELECT 'may write to ' || c.oid::pg_catalog.regclass AS why
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
      AND CASE WHEN c.relkind IN ('r', 'p', 'v', 'f', 'm') THEN
            pg_catalog.has_table_privilege(session_user, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
            OR pg_catalog.has_any_column_privilege(session_user, c.oid, 'INSERT, UPDATE')
          WHEN c.relkind = 'S' THEN pg_catalog.has_sequence_privilege(session_user, c.oid, 'USAGE, UPDATE')
          ELSE false END
    UNION ALL
    SELECT 'may create objects in schema ' || n.nspname FROM pg_catalog.pg_namespace n
    WHERE n.nspname NOT LIKE 'pg\\_%' AND pg_catalog.has_schema_privilege(session_user, n.oid, 'CREATE')
    UNION ALL
    SELECT 'may create schemas in the database'
    WHERE pg_catalog.has_database_privilege(session_user, pg_catalog.current_database(), 'CREATE')
    LIMIT 1";

/// Refuses a role that may do more than read.
///
/// # Errors
/// The outer error is the connection's, the inner one the refusal.
pub(super) async fn check(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Result<(), ToolError>, sqlx::Error> {
    let mut found = sqlx::query(MEMBERSHIPS)
        .bind(DANGEROUS_ROLES)
        .persistent(false)
        .fetch_optional(&mut *connection)
        .await?;
    if found.is_none() {
        found = sqlx::query(WRITES).persistent(false).fetch_optional(connection).await?;
    }
    let Some(row) = found else { return Ok(Ok(())) };
    let why: String = row.try_get("why")?;
    Ok(Err(ToolError::new(
        Reason::ConnectionRoleRefused,
        format!("The connection {name:?} is not used: its role {why}."),
        "The operator must give the connection a role of its own that may only SELECT.",
    )))
}
