//! `sql_tables`: the tables of a connection, without their columns.

use std::sync::Arc;

use futures::future::BoxFuture;
use globset::{GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::catalog::{Catalog, Kind, Table};
use super::connections::{Choice, Connections};
use super::{CallContext, Definition, DefinitionSource, Prepared, Tool, ToolError, ToolResult, arguments};
use crate::auth::Persona;
use crate::base::{nearest, planted, whole};
use crate::refusal::Reason;

/// Tables of one answer, when none is said.
const LIMIT_DEFAULT: usize = 100;
/// Tables of one answer at most.
const LIMIT_MAX: usize = 500;
/// The longest pattern, bytes.
const PATTERN_BYTES_MAX: usize = 256;

/// The tool.
pub struct SqlTables {
    definition: Definition,
    connections: Arc<Connections>,
}

#[derive(Debug, Deserialize)]
struct Arguments {
    connection: Option<String>,
    schema: Option<String>,
    pattern: Option<String>,
    limit: Option<usize>,
}

impl SqlTables {
    /// Lists the tables of `connections`.
    #[must_use]
    pub fn new(connections: Arc<Connections>) -> Self {
        Self { definition: definition(), connections }
    }
}

impl Tool for SqlTables {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        let accepted = ["connection", "schema", "pattern", "limit"];
        let asked: Arguments = arguments::read("sql_tables", &accepted, arguments)?;
        let pattern = asked.pattern.as_deref().map(glob).transpose()?;
        Ok(Box::new(Call {
            connection: Choice::new(&self.connections, asked.connection),
            connections: Arc::clone(&self.connections),
            schema: asked.schema,
            pattern,
            limit: arguments::limit(asked.limit, LIMIT_DEFAULT, LIMIT_MAX)?,
        }))
    }
}

fn glob(pattern: &str) -> Result<GlobMatcher, ToolError> {
    let built = (pattern.len() <= PATTERN_BYTES_MAX)
        .then(|| GlobBuilder::new(pattern).case_insensitive(true).literal_separator(false).build().ok());
    built.flatten().map(|glob| glob.compile_matcher()).ok_or_else(|| {
        let message = format!("sql_tables: pattern {:?} is not a glob.", whole(pattern, 128));
        ToolError::new(
            Reason::ArgumentInvalid,
            message,
            "Write * for any run of characters, ? for one, [ab] for a choice.",
        )
    })
}

struct Call {
    connection: Choice,
    connections: Arc<Connections>,
    schema: Option<String>,
    pattern: Option<GlobMatcher>,
    limit: usize,
}

#[derive(Serialize)]
struct Answer<'a> {
    connection: &'a str,
    tables: Vec<Listed<'a>>,
    total: usize,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize)]
struct Listed<'a> {
    schema: &'a str,
    name: &'a str,
    kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
    columns: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows_estimated: Option<u64>,
}

impl Prepared for Call {
    fn resolve(&mut self, persona: &Persona) -> Result<(), ToolError> {
        self.connection.resolve(persona)
    }

    fn connection(&self) -> Option<&str> {
        self.connection.name()
    }

    fn run(self: Box<Self>, context: CallContext) -> BoxFuture<'static, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let name = self.connection.settle(&context.persona)?;
            let catalog = self.connections.catalog(&name, &context.cancel).await?;
            ToolResult::from_serialize(&self.answer(&name, &catalog)?)
        })
    }
}

impl Call {
    fn answer<'a>(&self, name: &'a str, catalog: &'a Catalog) -> Result<Answer<'a>, ToolError> {
        if let Some(schema) = &self.schema
            && !catalog.tables.iter().any(|table| table.schema == *schema)
        {
            return Err(unknown_schema(schema, catalog));
        }
        let mut fitting: Vec<&Table> = catalog.tables.iter().filter(|table| self.fits(table)).collect();
        if planted::armed("tables_in_no_order") {
            fitting.sort_by_key(|table| std::cmp::Reverse(table.columns_total));
        }
        let total = fitting.len();
        let is_cut = catalog.tables.len() < catalog.tables_total;
        let note = if is_cut {
            Some(format!(
                "The connection has {} tables, of which the first {} by name are looked at.",
                catalog.tables_total,
                catalog.tables.len()
            ))
        } else {
            (total > self.limit).then(|| "Name a schema or a pattern, or raise the limit.".to_owned())
        };
        Ok(Answer {
            connection: name,
            tables: fitting.into_iter().take(self.limit).map(Listed::of).collect(),
            total,
            truncated: total > self.limit || is_cut,
            note,
        })
    }

    fn fits(&self, table: &Table) -> bool {
        self.schema.as_ref().is_none_or(|schema| table.schema == *schema)
            && self
                .pattern
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(&table.name) || pattern.is_match(table.full_name()))
    }
}

impl<'a> Listed<'a> {
    fn of(table: &'a Table) -> Self {
        Self {
            schema: &table.schema,
            name: &table.name,
            kind: table.kind,
            comment: table.comment.as_deref(),
            columns: table.columns_total,
            rows_estimated: table.rows_estimated,
        }
    }
}

fn unknown_schema(asked: &str, catalog: &Catalog) -> ToolError {
    let schemas = catalog.tables.iter().map(|table| table.schema.as_str());
    let hint = nearest(asked, schemas).map_or_else(
        || "Leave schema out to list the tables of all.".to_owned(),
        |near| format!("Did you mean {near:?}?"),
    );
    let message =
        format!("There is no schema {:?} with tables that this connection may read.", whole(asked, 128));
    ToolError::new(Reason::SqlUndefinedTable, message, hint)
}

fn definition() -> Definition {
    let table = json!({
        "type": "object",
        "properties": {
            "schema": {"type": "string"},
            "name": {"type": "string"},
            "kind": {"enum": ["table", "view", "materialized_view", "foreign_table"]},
            "comment": {"type": "string", "description": "Absent when there is none."},
            "columns": {"type": "integer", "description": "How many it has."},
            "rows_estimated": {"type": "integer", "description": "What the server believes; absent when it does not know."}
        },
        "required": ["schema", "name", "kind", "columns"],
        "additionalProperties": false
    });
    DefinitionSource {
        name: "sql_tables",
        title: "List tables",
        description: format!(
            "Lists the tables and views of one connection by name, with comment, number of columns and estimated rows; no \
             columns (sql_describe has them). At most {LIMIT_MAX} in one answer, {LIMIT_DEFAULT} when no limit is given; \
             `total` counts all that fit. Cheap: kept for a short time, so a new table may take a minute to show. To find a \
             table by what it is about, search is shorter."
        ),
        input_schema: json!({
            "type": "object",
            "properties": {
                "connection": {"type": "string", "description": "A name from list_connections. May be left out when you reach exactly one."},
                "schema": {"type": "string", "description": "Only this schema; its exact name."},
                "pattern": {"type": "string", "maxLength": PATTERN_BYTES_MAX, "description": "A glob over the name or schema.name, without case: *order*."},
                "limit": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "description": format!("Tables at most; {LIMIT_DEFAULT} when it is left out.")}
            },
            "additionalProperties": false
        }),
        output_schema: json!({
            "type": "object",
            "properties": {
                "connection": {"type": "string"},
                "tables": {"type": "array", "items": table},
                "total": {"type": "integer", "description": "Tables that fit, listed or not."},
                "truncated": {"type": "boolean", "description": "Whether tables are missing."},
                "note": {"type": "string", "description": "Present when tables are missing: why, or what to do."}
            },
            "required": ["connection", "tables", "total", "truncated"],
            "additionalProperties": false
        }),
        annotations: json!({"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false}),
    }
    .prepare("sql", true)
}
