//! `fetch`: all that is known of what an id of `search` names.

use std::fmt::Write;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::catalog::{Catalog, Column, Table};
use super::connections::{Connections, Listed, allowed};
use super::ids::{self, Id};
use super::search::{ToolTexts, column_text};
use super::sql_describe::Described;
use super::{CallContext, Definition, DefinitionSource, Prepared, Tool, ToolError, ToolResult, arguments};
use crate::auth::Persona;
use crate::base::{nearest, whole};
use crate::refusal::Reason;

/// The longest id, characters.
const ID_CHARS_MAX: usize = 512;

/// The tool.
pub struct Fetch {
    definition: Definition,
    connections: Arc<Connections>,
    tools: Arc<ToolTexts>,
}

impl Fetch {
    pub(super) fn new(definition: Definition, connections: Arc<Connections>, tools: Arc<ToolTexts>) -> Self {
        Self { definition, connections, tools }
    }
}

#[derive(Debug, Deserialize)]
struct Arguments {
    id: String,
}

impl Tool for Fetch {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        let Arguments { id } = arguments::read("fetch", &["id"], arguments)?;
        let parsed = Id::parse(&id);
        let (connections, tools) = (Arc::clone(&self.connections), Arc::clone(&self.tools));
        Ok(Box::new(Call { id, parsed, connections, tools }))
    }
}

struct Call {
    id: String,
    parsed: Option<Id>,
    connections: Arc<Connections>,
    tools: Arc<ToolTexts>,
}

#[derive(Serialize)]
struct Answer<'a, T> {
    id: &'a str,
    title: &'a str,
    text: &'a str,
    url: String,
    metadata: T,
}

#[derive(Serialize)]
struct DescribedColumn<'a> {
    connection: &'a str,
    schema: &'a str,
    table: &'a str,
    #[serde(flatten)]
    column: &'a Column,
}

impl Prepared for Call {
    fn resolve(&mut self, persona: &Persona) -> Result<(), ToolError> {
        if let Some(name) = self.connection() {
            self.connections.resolve(Some(name), persona)?;
        }
        Ok(())
    }

    fn connection(&self) -> Option<&str> {
        self.parsed.as_ref().and_then(Id::connection)
    }

    fn run(mut self: Box<Self>, context: CallContext) -> BoxFuture<'static, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            self.resolve(&context.persona)?;
            if let Some(name) = self.connection() {
                allowed(&context.persona, name)?;
            }
            self.answer(&context).await
        })
    }
}

impl Call {
    async fn answer(&self, context: &CallContext) -> Result<ToolResult, ToolError> {
        let persona = &context.persona;
        let read = async |name: &str| self.connections.catalog(name, &context.cancel).await;
        match &self.parsed {
            None => Err(self.unknown(&self.id, &self.always(persona))),
            Some(Id::Tool(name)) => match self.tools.reached(persona).iter().find(|tool| tool.name == name) {
                Some(tool) => self.with(&tool.title, &tool.description, &tool.definition),
                None => Err(self.unknown(&self.id, &self.always(persona))),
            },
            Some(Id::Connection(name)) => {
                let (listed, _) = self.connections.listed(persona);
                match listed.iter().find(|connection| connection.name == *name) {
                    Some(connection) => self.with(name, &connection.description, connection),
                    None => Err(self.unknown(&self.id, &self.always(persona))),
                }
            }
            Some(Id::Table { connection, id }) => {
                let catalog = read(connection).await?;
                let found = catalog.tables.iter().find(|table| ids::table(connection, table) == *id);
                let table = found.ok_or_else(|| self.unknown(id, &tables(connection, &catalog)))?;
                let text = table_text(connection, table);
                self.with(&table.full_name(), &text, Described::of(connection, table))
            }
            Some(Id::Column { connection, id }) => {
                let catalog = read(connection).await?;
                let Some((table, column)) = column(connection, &catalog, id) else {
                    return Err(self.unknown_column(connection, &catalog, id));
                };
                let title = format!("{}.{}", table.full_name(), column.name);
                let (schema, table) = (table.schema.as_str(), table.name.as_str());
                self.with(&title, &column_text(column), DescribedColumn { connection, schema, table, column })
            }
        }
    }

    fn with<T: Serialize>(&self, title: &str, text: &str, metadata: T) -> Result<ToolResult, ToolError> {
        ToolResult::from_serialize(&Answer { id: &self.id, title, text, url: ids::url(&self.id), metadata })
    }

    /// The ids that need no reading.
    fn always(&self, persona: &Persona) -> Vec<String> {
        let (connections, _) = self.connections.listed(persona);
        let tools = self.tools.reached(persona).into_iter().map(|tool| ids::tool(tool.name));
        tools.chain(connections.iter().map(|Listed { name, .. }| ids::connection(name))).collect()
    }

    /// Of the table whose name the id has, the column with the nearest name; without such a table, the nearest table.
    fn unknown_column(&self, connection: &str, catalog: &Catalog, id: &str) -> ToolError {
        let (of_table, name) = id.rsplit_once('.').unwrap_or((id, ""));
        let of_table = of_table.replacen("column:", "table:", 1);
        let Some(table) = catalog.tables.iter().find(|table| ids::table(connection, table) == of_table)
        else {
            return self.unknown(&of_table, &tables(connection, catalog));
        };
        let near = nearest(name, table.columns.iter().map(|column| column.name.as_str()));
        let columns = table.columns.iter().filter(|column| near.is_none_or(|near| column.name == near));
        let columns: Vec<_> = columns.map(|column| ids::column(connection, table, column)).collect();
        self.unknown(id, &columns)
    }

    /// Names the one of `known` that is most like `like`.
    fn unknown(&self, like: &str, known: &[String]) -> ToolError {
        let hint = nearest(like, known.iter().map(String::as_str)).map_or_else(
            || "search gives the ids that there are.".to_owned(),
            |near| format!("Did you mean {near:?}?"),
        );
        let message = format!("Nothing that you reach has the id {:?}.", whole(&self.id, 256));
        ToolError::new(Reason::IdUnknown, message, hint)
    }
}

fn tables(connection: &str, catalog: &Catalog) -> Vec<String> {
    catalog.tables.iter().map(|table| ids::table(connection, table)).collect()
}

fn column<'c>(connection: &str, catalog: &'c Catalog, id: &str) -> Option<(&'c Table, &'c Column)> {
    let begins = |table: &Table| {
        let table = ids::table(connection, table);
        id.strip_prefix("column:").zip(table.strip_prefix("table:")).is_some_and(|(id, t)| id.starts_with(t))
    };
    catalog.tables.iter().filter(|table| begins(table)).find_map(|table| {
        let column = table.columns.iter().find(|column| ids::column(connection, table, column) == id)?;
        Some((table, column))
    })
}

/// For reading: what `metadata` has, in lines.
fn table_text(connection: &str, table: &Table) -> String {
    let mut text = format!("{} on the connection {connection}.", table.full_name());
    let mut line = |line: &str| {
        text.push('\n');
        text.push_str(line);
    };
    if let Some(comment) = &table.comment {
        line(comment);
    }
    line("Columns:");
    for column in &table.columns {
        let null = if column.nullable { "" } else { " not null" };
        let mut said = format!("- {} {}{null}", column.name, column.kind);
        if let Some(comment) = &column.comment {
            write!(said, ": {comment}").ok();
        }
        line(&said);
    }
    if table.is_cut() {
        line(&format!("- and {} more", table.columns_total - table.columns.len()));
    }
    if !table.primary_key.is_empty() {
        line(&format!("Primary key: {}", table.primary_key.join(", ")));
    }
    for key in &table.foreign_keys {
        let to = &key.references;
        let (from, columns) = (key.columns.join(", "), to.columns.join(", "));
        line(&format!("Foreign key: {from} to {}.{} ({columns})", to.schema, to.table));
    }
    for index in &table.indexes {
        line(&format!("Index: {}{}", index.columns.join(", "), if index.unique { ", unique" } else { "" }));
    }
    text
}

pub(super) fn definition() -> Definition {
    DefinitionSource {
        name: "fetch",
        title: "Fetch",
        description: "Gives all that is known of one result of search, by its id: a tool's definition, a connection with its \
                      limits, a table with its columns, keys and indexes, or a column. `text` is for reading, `metadata` has \
                      the same as data. Cheap; reads no rows (sql_query does)."
            .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "id": {"type": "string", "minLength": 1, "maxLength": ID_CHARS_MAX, "description": "As search gives it: table:sales/public.orders."}
            },
            "required": ["id"],
            "additionalProperties": false
        }),
        output_schema: json!({
            "type": "object",
            "properties": {
                "id": {"type": "string"},
                "title": {"type": "string"},
                "text": {"type": "string"},
                "url": {"type": "string", "description": "The id as a URI, to cite by; it leads nowhere."},
                "metadata": {"type": "object", "description": "As tools/list, list_connections or sql_describe say it; of a column also its table."}
            },
            "required": ["id", "title", "text", "url", "metadata"],
            "additionalProperties": false
        }),
        annotations: json!({"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false}),
    }
    .prepare("platform", true)
}
