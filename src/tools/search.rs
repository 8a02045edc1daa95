//! `search`: which tools, connections, tables and columns are about something, by the words of their names and comments.
//!
//! Only what the caller's persona reaches is looked at; a connection that cannot be read is named, so that an answer never looks
//! complete that is not.

use std::cmp::Reverse;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::catalog::{Catalog, Column, Table};
use super::connections::{Connections, Listed};
use super::lexical::{self, Hit, Index, Source};
use super::{
    CallContext, Definition, DefinitionSource, Prepared, Tool, ToolError, ToolResult, arguments, ids,
};
use crate::auth::{Globs, Persona};
use crate::base::{clip_words, planted};
use crate::refusal::Reason;

/// Hits of one answer, when none is said.
const LIMIT_DEFAULT: usize = 10;
/// Hits of one answer at most.
const LIMIT_MAX: usize = 50;
/// The longest intent, characters.
const INTENT_CHARS_MAX: usize = 400;
/// Bytes of a snippet.
const SNIPPET_BYTES_MAX: usize = 200;
/// Connections that are read at once.
const READS_MAX: usize = 8;

/// What is known of each tool, by name.
pub(super) struct ToolTexts {
    entries: Vec<ToolText>,
}

/// What is known of a tool.
pub(super) struct ToolText {
    pub(super) name: &'static str,
    pub(super) title: String,
    pub(super) description: String,
    pub(super) definition: Box<RawValue>,
}

impl ToolTexts {
    /// Of all tools.
    pub(super) fn new<'d>(definitions: impl Iterator<Item = &'d Definition>) -> Self {
        #[derive(Deserialize)]
        struct Said {
            title: String,
            description: String,
        }
        let mut entries: Vec<ToolText> = definitions
            .map(|definition| {
                let said: Said = serde_json::from_str(definition.json.get())
                    .expect("a definition has title and description");
                let Said { title, description } = said;
                ToolText { name: definition.name, title, description, definition: definition.json.clone() }
            })
            .collect();
        entries.sort_by_key(|entry| entry.name);
        Self { entries }
    }

    /// Those that `persona` may call.
    pub(super) fn reached(&self, persona: &Persona) -> Vec<&ToolText> {
        self.entries.iter().filter(|tool| persona.tools.allows(tool.name)).collect()
    }
}

/// The tool.
pub struct Search {
    definition: Definition,
    connections: Arc<Connections>,
    tools: Arc<ToolTexts>,
}

impl Search {
    pub(super) fn new(definition: Definition, connections: Arc<Connections>, tools: Arc<ToolTexts>) -> Self {
        Self { definition, connections, tools }
    }
}

#[derive(Debug, Deserialize)]
struct Arguments {
    intent: String,
    limit: Option<usize>,
    sources: Option<Vec<Source>>,
}

impl Tool for Search {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        let asked: Arguments = arguments::read("search", &["intent", "limit", "sources"], arguments)?;
        if lexical::words(&asked.intent).next().is_none() {
            return Err(ToolError::new(
                Reason::ArgumentInvalid,
                "search: intent has no word of at least two letters or digits.",
                "Say in a few words what you look for.",
            ));
        }
        Ok(Box::new(Call {
            intent: asked.intent,
            limit: arguments::limit(asked.limit, LIMIT_DEFAULT, LIMIT_MAX)?,
            sources: asked.sources.unwrap_or_else(|| Source::ALL.to_vec()),
            connections: Arc::clone(&self.connections),
            tools: Arc::clone(&self.tools),
        }))
    }
}

struct Call {
    intent: String,
    limit: usize,
    sources: Vec<Source>,
    connections: Arc<Connections>,
    tools: Arc<ToolTexts>,
}

#[derive(Serialize)]
struct Answer {
    results: Vec<Found>,
    total: usize,
    truncated: bool,
    unavailable: Vec<Unavailable>,
    partial: Vec<String>,
    withheld: Withheld,
}

#[derive(Serialize)]
struct Found {
    id: String,
    title: String,
    url: String,
    source: Source,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
    snippet: String,
    score: f64,
}

/// A connection whose tables could not be looked at, and why.
#[derive(Serialize)]
struct Unavailable {
    connection: String,
    #[serde(flatten)]
    error: ToolError,
}

#[derive(Serialize)]
struct Withheld {
    tools: usize,
    connections: usize,
}

impl Prepared for Call {
    fn connection(&self) -> Option<&str> {
        None
    }

    fn run(self: Box<Self>, context: CallContext) -> BoxFuture<'static, Result<ToolResult, ToolError>> {
        Box::pin(async move { ToolResult::from_serialize(&self.answer(&context).await?) })
    }
}

impl Call {
    async fn answer(&self, context: &CallContext) -> Result<Answer, ToolError> {
        let everything = planted::armed("search_asks_no_persona").then(everything);
        let persona = everything.as_ref().unwrap_or(&context.persona);
        let tools = self.tools.reached(persona);
        let (connections, connections_withheld) = self.connections.listed(persona);
        let mut unavailable = Vec::new();
        let mut read: Vec<(&str, Arc<Catalog>)> = Vec::new();
        if self.sources.contains(&Source::Tables) || self.sources.contains(&Source::Columns) {
            let reads = connections.iter().map(|connection| async {
                (connection.name.as_str(), self.connections.catalog(&connection.name, &context.cancel).await)
            });
            // In the order of the names, whichever is read first.
            let mut reads = futures::stream::iter(reads.collect::<Vec<_>>()).buffered(READS_MAX);
            while let Some((name, catalog)) = reads.next().await {
                match catalog {
                    Ok(catalog) => read.push((name, catalog)),
                    Err(error) if error.reason == Reason::Cancelled => return Err(error),
                    Err(error) => unavailable.push(Unavailable { connection: name.to_owned(), error }),
                }
            }
        }
        let fixed = fixed(&tools, &connections);
        let indexes: Vec<&Index> =
            std::iter::once(&fixed).chain(read.iter().map(|(_, catalog)| &catalog.index)).collect();
        let hits = lexical::search(&indexes, &self.intent, &self.sources);
        let total = hits.len();
        let found = |hit: &Hit| found(hit, &tools, &connections, &read);
        let mut results: Vec<Found> = best(hits, self.limit).iter().filter_map(found).collect();
        if !planted::armed("search_in_no_order") {
            results.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.id.cmp(&b.id)));
        }
        results.truncate(self.limit);
        let partial = read.iter().filter(|(_, catalog)| catalog.is_cut()).map(|(name, _)| (*name).to_owned());
        Ok(Answer {
            truncated: total > results.len(),
            results,
            total,
            unavailable,
            partial: partial.collect(),
            withheld: Withheld {
                tools: self.tools.entries.len() - tools.len(),
                connections: connections_withheld,
            },
        })
    }
}

/// A persona that reaches all, for a test of the tests.
fn everything() -> Arc<Persona> {
    let all = || Globs::new("", &["*".to_owned()], &[]).unwrap_or_default();
    Arc::new(Persona { name: String::new(), tools: all(), connections: all(), reads_audit: false })
}

/// What needs no reading.
fn fixed(tools: &[&ToolText], connections: &[Listed]) -> Index {
    let mut index = Index::default();
    for (at, tool) in tools.iter().enumerate() {
        index.add(Source::Tools, (at, 0), &[(tool.name, 3.0), (&tool.title, 2.0), (&tool.description, 0.5)]);
    }
    for (at, connection) in connections.iter().enumerate() {
        let fields = [(connection.name.as_str(), 3.0), (connection.description.as_str(), 1.0)];
        index.add(Source::Connections, (at, 0), &fields);
    }
    index
}

/// The best `limit`, and all that are as good as the last of them.
fn best(mut hits: Vec<Hit>, limit: usize) -> Vec<Hit> {
    hits.sort_unstable_by_key(|hit| Reverse(hit.score));
    let least = hits.get(limit.saturating_sub(1)).map_or(0, |hit| hit.score);
    hits.retain(|hit| hit.score >= least);
    hits
}

fn found(
    hit: &Hit,
    tools: &[&ToolText],
    connections: &[Listed],
    read: &[(&str, Arc<Catalog>)],
) -> Option<Found> {
    let (first, second) = hit.place;
    let of_catalog = || read.get(hit.index.checked_sub(1)?);
    let (id, title, connection, text) = match hit.source {
        Source::Tools => {
            let tool = tools.get(first)?;
            (ids::tool(tool.name), tool.title.clone(), None, tool.description.clone())
        }
        Source::Connections => {
            let Listed { name, description, .. } = connections.get(first)?;
            (ids::connection(name), name.clone(), Some(name.clone()), description.clone())
        }
        Source::Tables => {
            let (name, catalog) = of_catalog()?;
            let table = catalog.tables.get(first)?;
            (ids::table(name, table), table.full_name(), Some((*name).to_owned()), table_text(table))
        }
        Source::Columns => {
            let (name, catalog) = of_catalog()?;
            let table = catalog.tables.get(first)?;
            let column = table.columns.get(second)?;
            let title = format!("{}.{}", table.full_name(), column.name);
            (ids::column(name, table, column), title, Some((*name).to_owned()), column_text(column))
        }
    };
    let snippet = clip_words(&text, SNIPPET_BYTES_MAX).to_owned();
    let score = f64::from(hit.score) / 1_000.0;
    Some(Found { url: ids::url(&id), id, title, source: hit.source, connection, snippet, score })
}

/// The comment, else the columns' names.
fn table_text(table: &Table) -> String {
    table.comment.clone().unwrap_or_else(|| {
        table.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
    })
}

/// `numeric(12,2): EUR.`
pub(super) fn column_text(column: &Column) -> String {
    column
        .comment
        .as_ref()
        .map_or_else(|| column.kind.clone(), |comment| format!("{}: {comment}", column.kind))
}

pub(super) fn definition() -> Definition {
    let found = json!({
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "For fetch. Stays the same."},
            "title": {"type": "string"},
            "url": {"type": "string", "description": "The id as a URI, to cite by; it leads nowhere."},
            "source": {"enum": Source::ALL},
            "connection": {"type": "string"},
            "snippet": {"type": "string"},
            "score": {"type": "number", "description": "From 0 to 1: how much of the intent it carries, rare words counting most."}
        },
        "required": ["id", "title", "url", "source", "snippet", "score"],
        "additionalProperties": false
    });
    let unavailable = json!({
        "type": "object",
        "properties": {
            "connection": {"type": "string"},
            "code": {"type": "string"},
            "category": {"type": "string"},
            "message": {"type": "string"},
            "hint": {"type": "string"},
            "retry_after_s": {"type": "integer"}
        },
        "required": ["connection", "code", "category", "message", "hint"],
        "additionalProperties": false
    });
    let withheld = json!({
        "type": "object",
        "properties": {"tools": {"type": "integer"}, "connections": {"type": "integer"}},
        "required": ["tools", "connections"],
        "additionalProperties": false,
        "description": "How many exist that you may not use; they were not looked at."
    });
    DefinitionSource {
        name: "search",
        title: "Search",
        description: format!(
            "Finds the tools, connections, tables and columns that you reach and whose names or comments have words of the \
             intent, best first. It matches words and their beginnings, not meanings, and looks into no rows: ask with the \
             nouns that a schema would use. At most {LIMIT_MAX} results, {LIMIT_DEFAULT} when no limit is given; `total` counts \
             all that fit. Cheap: columns and comments are kept for a short time. `unavailable` names connections that could \
             not be looked at."
        ),
        input_schema: json!({
            "type": "object",
            "properties": {
                "intent": {"type": "string", "minLength": 1, "maxLength": INTENT_CHARS_MAX, "description": "What you look for, in a few words: refunds by region."},
                "limit": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "description": format!("Results at most; {LIMIT_DEFAULT} when it is left out.")},
                "sources": {"type": "array", "items": {"enum": Source::ALL}, "minItems": 1, "uniqueItems": true, "description": "Where to look; everywhere when it is left out."}
            },
            "required": ["intent"],
            "additionalProperties": false
        }),
        output_schema: json!({
            "type": "object",
            "properties": {
                "results": {"type": "array", "items": found},
                "total": {"type": "integer", "description": "How many fit, listed or not."},
                "truncated": {"type": "boolean", "description": "Whether some that fit are missing."},
                "unavailable": {"type": "array", "items": unavailable, "description": "Connections whose tables could not be looked at, and why."},
                "partial": {"type": "array", "items": {"type": "string"}, "description": "Connections with more tables or columns than are looked at."},
                "withheld": withheld
            },
            "required": ["results", "total", "truncated", "unavailable", "partial", "withheld"],
            "additionalProperties": false
        }),
        annotations: json!({"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false}),
    }
    .prepare("platform", true)
}
