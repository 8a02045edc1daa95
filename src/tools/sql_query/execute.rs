//! Runs one checked statement: describe it alone, then read it through a cursor in a read-only transaction.
//!
//! Memory is bounded on both sides: the server hands out few rows at a time and no row over the byte limit. Never
//! commits, and never sends a caller's text in any other way than as one prepared statement.

use futures::TryStreamExt;
use sqlx::postgres::{PgConnection, PgTypeInfo};
use sqlx::{AssertSqlSafe, Column as _, Executor, Row, SqlSafeStr, Statement};
use tokio_util::sync::CancellationToken;

use super::answer::{Column, Truncated, row_array};
use super::check::Checked;
use super::{functions, lexer};
use crate::refusal::Reason;
use crate::tools::ToolError;
use crate::tools::connections::ConnectionLimits;
use crate::tools::postgres::{Lease, tool_error};

/// Rows of one FETCH at most.
const FETCH_ROWS_MAX: u64 = 200;
/// Rows of the first FETCH, when their size is not known yet.
const FETCH_ROWS_FIRST: u64 = 4;

/// What is to be run.
pub(super) struct Job {
    pub(super) sql: String,
    /// `None` only in tests that switch the statement check off.
    pub(super) checked: Option<Checked>,
    pub(super) limits: ConnectionLimits,
    pub(super) rows_max: u64,
    pub(super) cancel: CancellationToken,
}

/// What came back.
pub(super) struct Rows {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Box<serde_json::value::RawValue>>,
    pub(super) truncated: Truncated,
    pub(super) note: Option<String>,
}

/// Runs `job` on `lease`, which is left inside its transaction.
///
/// # Errors
/// What the caller is told.
pub(super) async fn execute(lease: &mut Lease, job: &Job) -> Result<Rows, ToolError> {
    let name = lease.name().to_owned();
    let upstream = |error: sqlx::Error| tool_error(&name, &error, &job.limits);
    let connection = lease.connection();
    if let Some(checked) = &job.checked {
        functions::check(connection, checked).await.map_err(upstream)??;
    }
    stop_if_cancelled(job)?;
    let columns = describe(connection, &job.sql).await.map_err(upstream)??;
    stop_if_cancelled(job)?;
    let declare = declare(&job.sql, columns.len(), job.limits.bytes_max);
    sqlx::query(AssertSqlSafe(declare))
        .persistent(false)
        .execute(&mut *connection)
        .await
        .map_err(upstream)?;
    let mut reader = Reader { job, rows: Vec::new(), bytes: 0, largest: 0, note: None };
    let truncated = reader.read(connection, &name).await?;
    Ok(Rows { columns, rows: reader.rows, truncated, note: reader.note })
}

fn stop_if_cancelled(job: &Job) -> Result<(), ToolError> {
    if job.cancel.is_cancelled() { Err(super::cancelled()) } else { Ok(()) }
}

/// The statement alone: proves that it is one complete statement with a result, and gives the columns.
async fn describe(
    connection: &mut PgConnection,
    sql: &str,
) -> Result<Result<Vec<Column>, ToolError>, sqlx::Error> {
    let statement = match connection.prepare(AssertSqlSafe(sql.to_owned()).into_sql_str()).await {
        // The driver asks the catalog about types it does not know, and knows no multiranges.
        Err(sqlx::Error::ColumnDecode { index, .. }) if index.contains("typtype") => {
            return Ok(Err(ToolError::new(
                Reason::SqlUnsupportedType,
                "A column is of a type that cannot be described here, such as a multirange.",
                "Cast it: column::text.",
            )));
        }
        prepared => prepared?,
    };
    let parameters = statement.parameters().map_or(0, |either| either.left().map_or(0, <[PgTypeInfo]>::len));
    if parameters > 0 {
        return Ok(Err(ToolError::new(
            Reason::SqlUnsupportedSyntax,
            "There are no parameters to bind.",
            "Write the values in place of $n.",
        )));
    }
    let columns = statement.columns();
    let types: Vec<_> = columns.iter().map(|column| column.type_info().oid().unwrap_or_default()).collect();
    let rows = sqlx::query(
        "SELECT pg_catalog.format_type(t, NULL) AS name FROM pg_catalog.unnest($1::oid[]) WITH ORDINALITY AS u(t, n) ORDER BY n",
    )
    .bind(types)
    .persistent(false)
    .fetch_all(&mut *connection)
    .await?;
    let described = columns
        .iter()
        .zip(&rows)
        .map(|(column, row)| Ok(Column { name: column.name().to_owned(), kind: row.try_get("name")? }));
    Ok(Ok(described.collect::<Result<_, sqlx::Error>>()?))
}

/// Postgres writes each row as JSON; names of our own keep columns apart that are named alike. `OFFSET 0` keeps the
/// planner from writing the JSON twice.
fn declare(sql: &str, columns: usize, bytes_max: u64) -> String {
    let names: Vec<String> = (1..=columns).map(|index| format!("c{index}")).collect();
    let names = if names.is_empty() { String::new() } else { format!("({})", names.join(",")) };
    // The keys that the server counts and the answer does not have.
    let server_bytes_max =
        bytes_max.saturating_add(u64::try_from(columns).unwrap_or(u64::MAX).saturating_mul(8));
    format!(
        "DECLARE annals_rows NO SCROLL CURSOR FOR SELECT \
         CASE WHEN pg_catalog.octet_length(j) <= {server_bytes_max} THEN j END AS j, \
         pg_catalog.octet_length(j)::pg_catalog.int8 AS bytes \
         FROM (SELECT pg_catalog.to_json(t)::pg_catalog.text AS j FROM ({sql}\n) AS t{names} OFFSET 0) AS s"
    )
}

struct Reader<'a> {
    job: &'a Job,
    rows: Vec<Box<serde_json::value::RawValue>>,
    bytes: u64,
    largest: u64,
    note: Option<String>,
}

impl Reader<'_> {
    async fn read(&mut self, connection: &mut PgConnection, name: &str) -> Result<Truncated, ToolError> {
        let upstream = |error: sqlx::Error| tool_error(name, &error, &self.job.limits);
        loop {
            stop_if_cancelled(self.job)?;
            let asked = self.next_fetch();
            let fetch = AssertSqlSafe(format!("FETCH FORWARD {asked} FROM annals_rows"));
            let mut stream = sqlx::query(fetch).persistent(false).fetch(&mut *connection);
            let mut got = 0;
            while let Some(row) = stream.try_next().await.map_err(upstream)? {
                got += 1;
                let json: Option<String> = row.try_get("j").map_err(upstream)?;
                let bytes: i64 = row.try_get("bytes").map_err(upstream)?;
                if let Some(truncated) = self.take(json.as_deref(), bytes.unsigned_abs())? {
                    return Ok(truncated);
                }
            }
            if got < asked {
                return Ok(Truncated::No);
            }
        }
    }

    /// Few rows when rows are large, so that what a FETCH buffers stays near the byte limit.
    fn next_fetch(&self) -> u64 {
        let missing = self.job.rows_max + 1 - self.count();
        let left = self.job.limits.bytes_max.saturating_sub(self.bytes);
        let fitting = left.checked_div(self.largest).map_or(FETCH_ROWS_FIRST, |rows| rows.max(1));
        missing.min(fitting).clamp(1, FETCH_ROWS_MAX)
    }

    fn count(&self) -> u64 {
        u64::try_from(self.rows.len()).unwrap_or(u64::MAX)
    }

    fn take(&mut self, json: Option<&str>, bytes: u64) -> Result<Option<Truncated>, ToolError> {
        let limit = self.job.limits.bytes_max;
        if self.count() == self.job.rows_max {
            self.note = Some(format!(
                "There are more than {} rows; how many is not known. Aggregate, filter, or page with ORDER BY and OFFSET.",
                self.job.rows_max
            ));
            return Ok(Some(Truncated::Rows));
        }
        let row = json.map(row_array).transpose().map_err(|_| ToolError::internal(Reason::RowNotJson))?;
        let row = row.filter(|row| self.bytes + u64::try_from(row.get().len()).unwrap_or(u64::MAX) <= limit);
        let Some(row) = row else {
            self.note = Some(format!(
                "Row {} of {bytes} bytes does not fit: all rows of an answer may have {limit} bytes. How many rows follow is not known. Select fewer columns or shorten them.",
                self.rows.len() + 1
            ));
            return Ok(Some(Truncated::Bytes));
        };
        self.bytes += u64::try_from(row.get().len()).unwrap_or(u64::MAX);
        self.largest = self.largest.max(bytes);
        self.rows.push(row);
        Ok(None)
    }
}

/// The text to run when the statement check is off: as it came, so that tests meet the barriers behind it.
pub(super) fn unchecked(sql: &str) -> String {
    lexer::read(sql)
        .map_or_else(|_| sql.to_owned(), |tokens| sql.get(..tokens.statement_end).unwrap_or(sql).to_owned())
}
