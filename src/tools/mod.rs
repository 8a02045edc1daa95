//! The tools that agents call, and the port they implement.
//!
//! A tool sees its arguments and the caller's persona; it never sees events, the log or HTTP.

mod about;
mod arguments;
pub mod audit;
mod catalog;
mod connections;
mod fetch;
mod ids;
mod lexical;
mod postgres;
pub mod schema;
mod search;
mod sql_describe;
mod sql_query;
mod sql_tables;

pub use about::{About, PlatformInfo};
pub use catalog::CatalogLimits;
pub use connections::{ConnectionError, ConnectionLimits, Connections, ListConnections};
pub use fetch::Fetch;
pub use search::Search;
pub use sql_describe::SqlDescribe;
pub use sql_query::SqlQuery;
pub use sql_tables::SqlTables;

/// Why a tool refuses or fails; `{code, category, message, hint}` is what the agent sees.
pub use crate::refusal::Refusal as ToolError;

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::auth::{Persona, Principal};
use crate::base::sha256_hex;
use crate::dispatch::Client;
use crate::redact::Shape;
use crate::refusal::Reason;

/// What `tools/list` says of a tool, prepared once.
#[derive(Debug, Clone)]
pub struct Definition {
    /// The name that callers use.
    pub name: &'static str,
    /// The tool's family: `platform`, `sql`.
    pub toolkit_kind: &'static str,
    /// The listing's JSON object, the same bytes for every caller.
    pub json: Box<RawValue>,
    /// SHA-256 of that JSON, hexadecimal.
    pub sha256: String,
    /// What arguments are checked against.
    pub input: schema::InputSchema,
    /// What the input schema marks with `x-annals-sensitive`.
    pub sensitive_arguments: Arc<Shape>,
    /// What the output schema marks with it.
    pub sensitive_result: Arc<Shape>,
}

/// The parts of a [`Definition`], as code writes them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DefinitionSource {
    /// The name that callers use.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// For the model: what it does, with its limits at the point of decision.
    pub description: String,
    /// JSON Schema 2020-12 of the arguments, without `purpose`.
    pub input_schema: serde_json::Value,
    /// JSON Schema 2020-12 of the structured result.
    pub output_schema: serde_json::Value,
    /// `readOnlyHint` and its kin.
    pub annotations: serde_json::Value,
}

impl DefinitionSource {
    /// Prepares the listing. `data_tool` advertises the optional `purpose` argument, which every tool accepts.
    ///
    /// # Panics
    /// When the input schema is no JSON Schema: it is a constant of the code.
    #[must_use]
    pub fn prepare(mut self, toolkit_kind: &'static str, data_tool: bool) -> Definition {
        if data_tool
            && let Some(properties) = self.input_schema.get_mut("properties").and_then(|p| p.as_object_mut())
        {
            properties.insert(
                "purpose".into(),
                serde_json::json!({
                    "type": "string",
                    "maxLength": 1000,
                    "description": "One sentence: why this call is made. Kept in the audit record, never used to decide."
                }),
            );
        }
        let name = self.name;
        let json = serde_json::value::to_raw_value(&self).expect("a definition is plain JSON");
        let sha256 = sha256_hex(json.get().as_bytes());
        let input = schema::InputSchema::compile(&self.input_schema);
        let sensitive_arguments = Arc::new(Shape::of(&self.input_schema));
        let sensitive_result = Arc::new(Shape::of(&self.output_schema));
        Definition { name, toolkit_kind, json, sha256, input, sensitive_arguments, sensitive_result }
    }
}

/// A tool. Kept for the life of the process; one value serves all calls.
pub trait Tool: Send + Sync + 'static {
    /// What is listed.
    fn definition(&self) -> &Definition;

    /// Reads the arguments (a JSON object, `purpose` already taken out; `{}` when the caller sent none).
    /// Only their shape is checked here, without I/O: an error refuses the call before its intent.
    ///
    /// # Errors
    /// [`ToolError`] of category `validation`.
    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError>;
}

/// A call whose arguments were read.
pub trait Prepared: Send {
    /// Settles what the arguments left open and only the persona can decide: the connection, when none was named.
    /// Asked between [`Tool::parse`] and [`Prepared::connection`]; [`Prepared::run`] asks again where it was not.
    ///
    /// # Errors
    /// [`ToolError`] of category `validation`.
    fn resolve(&mut self, _persona: &Persona) -> Result<(), ToolError> {
        Ok(())
    }

    /// The connection that it will reach, so that the persona can be asked.
    fn connection(&self) -> Option<&str>;

    /// Runs it. Errors after this point are outcomes of a call that took place.
    fn run(self: Box<Self>, context: CallContext) -> BoxFuture<'static, Result<ToolResult, ToolError>>;
}

/// What a running call may know.
#[derive(Clone)]
pub struct CallContext {
    /// The call.
    pub call_id: Uuid,
    /// Who calls.
    pub principal: Arc<Principal>,
    /// What the caller may reach.
    pub persona: Arc<Persona>,
    /// What is known of the peer.
    pub client: Arc<Client>,
    /// Fires when the call is cancelled or its deadline passed; downstream work must be stopped then.
    pub cancel: CancellationToken,
}

/// What a tool gives.
#[derive(Debug, Clone)]
pub struct ToolResult {
    /// The structured result, a JSON object; its text content is the same bytes.
    pub structured: Bytes,
}

impl ToolResult {
    /// From anything that is a JSON object.
    ///
    /// # Errors
    /// [`ToolError`] `internal` when it has no JSON form.
    pub fn from_serialize<T: Serialize>(value: &T) -> Result<Self, ToolError> {
        let structured = serde_json::to_vec(value).map_err(|_| ToolError::internal(Reason::ResultNotJson))?;
        Ok(Self { structured: structured.into() })
    }
}

/// All tools, by name.
#[derive(Default)]
pub struct Toolbox {
    tools: std::collections::BTreeMap<&'static str, Arc<dyn Tool>>,
}

impl Toolbox {
    /// Adds a tool; the last of one name stays.
    #[must_use]
    pub fn with(mut self, tool: impl Tool) -> Self {
        let tool: Arc<dyn Tool> = Arc::new(tool);
        self.tools.insert(tool.definition().name, tool);
        self
    }

    /// The tool of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.get(name)
    }

    /// All tools, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Tool>> {
        self.tools.values()
    }
}

/// The built-in tools over `connections`, and those over the audit where there is a `book` of it.
#[must_use]
pub fn toolbox(
    connections: Arc<Connections>,
    about: About,
    book: Option<Arc<dyn audit::AuditBook>>,
) -> Toolbox {
    let mut toolbox = Toolbox::default()
        .with(ListConnections::new(Arc::clone(&connections)))
        .with(SqlTables::new(Arc::clone(&connections)))
        .with(SqlDescribe::new(Arc::clone(&connections)))
        .with(SqlQuery::new(Arc::clone(&connections)));
    if let Some(book) = book {
        toolbox = toolbox
            .with(audit::Search::new(Arc::clone(&book)))
            .with(audit::Overview::new(Arc::clone(&book)))
            .with(audit::One::new(book));
    }
    let (search, fetch) = (search::definition(), fetch::definition());
    let mut names: Vec<_> = toolbox.iter().map(|tool| tool.definition().name).collect();
    names.extend(["platform_info", search.name, fetch.name]);
    let toolbox = toolbox.with(PlatformInfo::new(about, names, Arc::clone(&connections)));
    let definitions = toolbox.iter().map(|tool| tool.definition()).chain([&search, &fetch]);
    let texts = Arc::new(search::ToolTexts::new(definitions));
    let search = Search::new(search, Arc::clone(&connections), Arc::clone(&texts));
    toolbox.with(search).with(Fetch::new(fetch, connections, texts))
}
