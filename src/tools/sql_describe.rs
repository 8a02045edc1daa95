//! `sql_describe`: one table with its columns, keys and indexes.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::catalog::{Column, ForeignKey, Kind, Table, TableIndex};
use super::connections::{Choice, Connections};
use super::{CallContext, Definition, DefinitionSource, Prepared, Tool, ToolError, ToolResult, arguments};
use crate::auth::Persona;

/// The longest name, characters.
const TABLE_CHARS_MAX: usize = 256;

/// The tool.
pub struct SqlDescribe {
    definition: Definition,
    connections: Arc<Connections>,
}

#[derive(Debug, Deserialize)]
struct Arguments {
    table: String,
    connection: Option<String>,
}

impl SqlDescribe {
    /// Describes the tables of `connections`.
    #[must_use]
    pub fn new(connections: Arc<Connections>) -> Self {
        Self { definition: definition(), connections }
    }
}

impl Tool for SqlDescribe {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        let asked: Arguments = arguments::read("sql_describe", &["table", "connection"], arguments)?;
        let connection = Choice::new(&self.connections, asked.connection);
        Ok(Box::new(Call { table: asked.table, connection, connections: Arc::clone(&self.connections) }))
    }
}

struct Call {
    table: String,
    connection: Choice,
    connections: Arc<Connections>,
}

/// All that is told of a table.
#[derive(Serialize)]
pub(super) struct Described<'a> {
    connection: &'a str,
    schema: &'a str,
    name: &'a str,
    kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows_estimated: Option<u64>,
    columns: &'a [Column],
    total: usize,
    truncated: bool,
    primary_key: &'a [String],
    foreign_keys: &'a [ForeignKey],
    indexes: &'a [TableIndex],
}

impl<'a> Described<'a> {
    /// Of `table` on `connection`.
    pub(super) fn of(connection: &'a str, table: &'a Table) -> Self {
        Self {
            connection,
            schema: &table.schema,
            name: &table.name,
            kind: table.kind,
            comment: table.comment.as_deref(),
            rows_estimated: table.rows_estimated,
            columns: &table.columns,
            total: table.columns_total,
            truncated: table.is_cut(),
            primary_key: &table.primary_key,
            foreign_keys: &table.foreign_keys,
            indexes: &table.indexes,
        }
    }
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
            ToolResult::from_serialize(&Described::of(&name, catalog.table(&self.table)?))
        })
    }
}

fn definition() -> Definition {
    let names = || json!({"type": "array", "items": {"type": "string"}});
    let object = |properties: serde_json::Value, required: &[&str]| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let column = object(
        json!({"name": {"type": "string"}, "type": {"type": "string"}, "nullable": {"type": "boolean"}, "comment": {"type": "string"}}),
        &["name", "type", "nullable"],
    );
    let references = object(
        json!({"schema": {"type": "string"}, "table": {"type": "string"}, "columns": names()}),
        &["schema", "table", "columns"],
    );
    let foreign_key =
        object(json!({"columns": names(), "references": references}), &["columns", "references"]);
    let index = object(json!({"columns": names(), "unique": {"type": "boolean"}}), &["columns", "unique"]);
    DefinitionSource {
        name: "sql_describe",
        title: "Describe a table",
        description: "Gives one table's columns with types and comments, its primary key, its foreign keys (what to join \
                      with) and its indexes (what is cheap to filter on). Cheap: nothing of the table's rows is read. Shows \
                      only columns that can be queried here; a change of the table may take a minute to show."
            .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "table": {"type": "string", "minLength": 1, "maxLength": TABLE_CHARS_MAX, "description": "Its name, with its schema when several have it: sales.orders."},
                "connection": {"type": "string", "description": "A name from list_connections. May be left out when you reach exactly one."}
            },
            "required": ["table"],
            "additionalProperties": false
        }),
        output_schema: object(
            json!({
                "connection": {"type": "string"},
                "schema": {"type": "string"},
                "name": {"type": "string"},
                "kind": {"enum": ["table", "view", "materialized_view", "foreign_table"]},
                "comment": {"type": "string", "description": "Absent when there is none."},
                "rows_estimated": {"type": "integer", "description": "What the server believes; absent when it does not know."},
                "columns": {"type": "array", "items": column, "description": "In their order."},
                "total": {"type": "integer", "description": "Columns that it has, listed or not."},
                "truncated": {"type": "boolean", "description": "Whether columns are missing, since the connection has more than are kept."},
                "primary_key": names(),
                "foreign_keys": {"type": "array", "items": foreign_key},
                "indexes": {"type": "array", "items": index, "description": "Those over plain columns and all rows."}
            }),
            &["connection", "schema", "name", "kind", "columns", "total", "truncated", "primary_key", "foreign_keys", "indexes"],
        ),
        annotations: json!({"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false}),
    }
    .prepare("sql", true)
}
