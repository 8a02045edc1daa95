//! `sql_query`: one read-only statement on a Postgres connection.
//!
//! Four barriers, each enough alone against a write: the statement check, a role that may only SELECT (checked when
//! a connection is opened), a READ ONLY transaction that is always rolled back around one prepared statement, and
//! bounds on rows, bytes and time. Never writes, never keeps a caller's text, never shows a connection's URL.

mod answer;
mod check;
mod denied;
mod execute;
mod functions;
mod lexer;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::arguments;
use super::connections::{Choice, Connections};
use super::{CallContext, Definition, DefinitionSource, Prepared, Tool, ToolError, ToolResult};
use crate::auth::Persona;
use crate::refusal::Reason;

/// The longest statement, bytes.
const SQL_BYTES_MAX: usize = 64 * 1024;

/// The tool.
pub struct SqlQuery {
    definition: Definition,
    connections: Arc<Connections>,
    statement_check: bool,
}

#[derive(Debug, Deserialize)]
struct Arguments {
    sql: String,
    connection: Option<String>,
    limit: Option<u64>,
}

impl SqlQuery {
    /// Queries `connections`.
    #[must_use]
    pub fn new(connections: Arc<Connections>) -> Self {
        Self { definition: definition(), connections, statement_check: true }
    }

    /// Without the statement check, so that tests can show that the barriers behind it hold alone. No setting leads here.
    #[must_use]
    pub fn without_statement_check(connections: Arc<Connections>) -> Self {
        Self { statement_check: false, ..Self::new(connections) }
    }
}

impl Tool for SqlQuery {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        let arguments: Arguments = arguments::read("sql_query", &["sql", "connection", "limit"], arguments)?;
        if arguments.sql.len() > SQL_BYTES_MAX {
            return Err(ToolError::new(
                Reason::SqlTooLong,
                format!("The statement has {} bytes; {SQL_BYTES_MAX} are accepted.", arguments.sql.len()),
                "Shorten it.",
            ));
        }
        if arguments.limit == Some(0) {
            return Err(ToolError::new(
                Reason::ArgumentInvalid,
                "limit is 0; it must be at least 1.",
                "Leave it out for the connection's own limit.",
            ));
        }
        Ok(Box::new(Call {
            sql: arguments.sql,
            connection: Choice::new(&self.connections, arguments.connection),
            limit: arguments.limit,
            connections: Arc::clone(&self.connections),
            statement_check: self.statement_check,
        }))
    }
}

struct Call {
    sql: String,
    connection: Choice,
    limit: Option<u64>,
    connections: Arc<Connections>,
    statement_check: bool,
}

impl Prepared for Call {
    fn resolve(&mut self, persona: &Persona) -> Result<(), ToolError> {
        self.connection.resolve(persona)
    }

    fn connection(&self) -> Option<&str> {
        self.connection.name()
    }

    fn run(self: Box<Self>, context: CallContext) -> BoxFuture<'static, Result<ToolResult, ToolError>> {
        Box::pin(self.answer(context))
    }
}

impl Call {
    async fn answer(self: Box<Self>, context: CallContext) -> Result<ToolResult, ToolError> {
        let name = self.connection.settle(&context.persona)?;
        let checked = if self.statement_check { Some(check::check(&self.sql)?) } else { None };
        let (pool, limits) = self.connections.pool(&name)?;
        let sql =
            checked.as_ref().map_or_else(|| execute::unchecked(&self.sql), |checked| checked.sql.clone());
        let rows_max = self.limit.unwrap_or(u64::MAX).min(u64::from(limits.rows_max));
        let clock = Arc::clone(self.connections.clock());
        let started = clock.monotonic();
        let job = execute::Job { sql, checked, limits, rows_max, cancel: context.cancel.clone() };
        let lease = pool.lease(&limits, &context.cancel).await?;
        let run = lease.run(&limits, &context.cancel, move |lease| {
            async move { execute::execute(lease, &job).await }.boxed()
        });
        let rows = run.await?;
        let answer = answer::Answer {
            connection: name,
            columns: rows.columns,
            row_count: rows.rows.len(),
            rows: rows.rows,
            truncated: rows.truncated,
            limit: usize::try_from(rows_max).unwrap_or(usize::MAX),
            note: rows.note,
            duration_ms: u64::try_from((clock.monotonic() - started).as_millis()).unwrap_or(u64::MAX),
        };
        ToolResult::from_serialize(&answer)
    }
}

/// A refusal of a readable statement.
fn refused(reason: Reason, message: String) -> ToolError {
    ToolError::new(reason, message, "sql_query only reads: send one SELECT without side effects.")
}

pub(super) fn cancelled() -> ToolError {
    ToolError::new(
        Reason::Cancelled,
        "The call was cancelled and its statement stopped.",
        "Send it again when it is still wanted.",
    )
}

fn definition() -> Definition {
    let column = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "type": {"type": "string"}},
        "required": ["name", "type"],
        "additionalProperties": false
    });
    DefinitionSource {
        name: "sql_query",
        title: "Query a database",
        description: "Runs one read-only SQL statement (SELECT, WITH ... SELECT, VALUES or TABLE; Postgres dialect) and \
                      returns its rows. Rows, bytes and time are limited per connection (see list_connections): \
                      `truncated` says when rows are missing, and then how many is not known. Functions that change, \
                      wait or reach outside the database are refused, and so is EXPLAIN. Tables and their comments: \
                      information_schema.columns, pg_catalog.obj_description, pg_catalog.col_description."
            .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "sql": {"type": "string", "minLength": 1, "maxLength": SQL_BYTES_MAX, "description": "One statement, without parameters."},
                "connection": {"type": "string", "description": "A name from list_connections. May be left out when you reach exactly one."},
                "limit": {"type": "integer", "minimum": 1, "description": "Rows at most; the connection's own limit holds when it is lower."}
            },
            "required": ["sql"],
            "additionalProperties": false
        }),
        output_schema: json!({
            "type": "object",
            "properties": {
                "connection": {"type": "string"},
                "columns": {"type": "array", "items": column, "description": "In the order of each row's values; names may repeat."},
                "rows": {"type": "array", "items": {"type": "array"}, "description": "Each row is an array of values. Numbers keep all their digits; dates, times and bytes are strings."},
                "row_count": {"type": "integer", "minimum": 0, "description": "Rows in this answer."},
                "truncated": {"enum": [false, "rows", "bytes"], "description": "Why rows are missing, or false."},
                "limit": {"type": "integer", "minimum": 1, "description": "The row limit in force."},
                "note": {"type": "string", "description": "Present when rows are missing: what to do."},
                "duration_ms": {"type": "integer", "minimum": 0}
            },
            "required": ["connection", "columns", "rows", "row_count", "truncated", "limit", "duration_ms"],
            "additionalProperties": false
        }),
        annotations: json!({"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false}),
    }
    .prepare("sql", true)
}
