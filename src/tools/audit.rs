//! `audit_overview`, `audit_search` and `audit_event`: the audit for an agent that may read it. Its readings are in the audit as well.
//!
//! Knows neither events nor rows: what there is to read is behind [`AuditBook`].

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::arguments;
use super::{CallContext, Definition, DefinitionSource, Prepared, Tool, ToolError, ToolResult};
use crate::refusal::Reason;

/// Events on a page when the caller does not say.
pub const PAGE_DEFAULT: u32 = 50;
/// Events on a page at most.
pub const PAGE_MAX: u32 = 200;
/// Events that are counted at most; more read as "10,000+".
pub const COUNT_MAX: u64 = 10_000;

/// A reading that was understood and not done yet.
pub type Read = Box<dyn FnOnce(CallContext) -> BoxFuture<'static, Result<ToolResult, ToolError>> + Send>;

/// The audit as the tools read it. Each reading is durable in the log before anything is read, and refused to whoever's
/// persona does not read the audit.
pub trait AuditBook: Send + Sync + 'static {
    /// One page of events, a line each, newest first.
    ///
    /// # Errors
    /// `argument_invalid` names the condition that is not understood.
    fn search(&self, conditions: Conditions) -> Result<Read, ToolError>;

    /// How many events there are by tool, persona, type and reason.
    ///
    /// # Errors
    /// As [`AuditBook::search`].
    fn overview(&self, conditions: Conditions) -> Result<Read, ToolError>;

    /// One event, or the end of one call, with everything that is known and what proves its place in the log.
    fn event(&self, id: Uuid) -> Read;
}

/// What is searched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Name and value of each condition, in the names that REST has for them.
    pub pairs: Vec<(String, String)>,
    /// Events on the page at most.
    pub limit: Option<u32>,
}

/// Each argument of `audit_search` but `limit`, the condition that it is, and what it is told of.
const CONDITIONS: [(&str, &str, &str); 13] = [
    ("user", "user_id", "Who."),
    ("tool", "tool_name", "The tool as it was asked for."),
    ("connection", "connection", "The connection reached."),
    ("persona", "persona", "The persona that decided."),
    ("event", "event_kind", "The event's type: tool_call.completed, tool_call.denied, auth.failed, …"),
    ("category", "error_category", "What a refusal or failure is counted under: authz, validation, …"),
    ("reason", "error_code", "The reason of a refusal or failure: tool_not_allowed, …"),
    ("session_id", "session_id", "The session."),
    ("trace_id", "trace_id", "The trace: 32 lower-case hexadecimal digits."),
    ("toolkit", "toolkit_kind", "The tool's family."),
    (
        "start_time",
        "start_time",
        "Not before this: RFC 3339, `now`, or a span before now like -24h (s, m, h, d).",
    ),
    ("end_time", "end_time", "Before this, in the same forms."),
    (
        "cursor",
        "cursor",
        "next_cursor of the page before; pass the same conditions, and its start_time and end_time.",
    ),
];

/// `audit_search`
pub struct Search {
    definition: Definition,
    book: Arc<dyn AuditBook>,
}

impl Search {
    /// Searches `book`.
    #[must_use]
    pub fn new(book: Arc<dyn AuditBook>) -> Self {
        Self { definition: search_definition(), book }
    }
}

impl Tool for Search {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        let names: Vec<&str> =
            CONDITIONS.iter().map(|(name, ..)| *name).chain(["success", "limit"]).collect();
        let given: serde_json::Map<String, Value> = arguments::read("audit_search", &names, arguments)?;
        let mut conditions = Conditions::default();
        for (name, value) in given {
            let condition = CONDITIONS.iter().find(|(known, ..)| *known == name);
            match (condition, value) {
                (Some((_, condition, _)), Value::String(text)) => {
                    conditions.pairs.push(((*condition).to_owned(), text));
                }
                (None, Value::Bool(success)) if name == "success" => {
                    conditions.pairs.push((name, success.to_string()));
                }
                (None, Value::Number(limit)) if name == "limit" => {
                    let limit = limit.as_u64().and_then(|limit| u32::try_from(limit).ok());
                    conditions.limit = Some(limit.ok_or_else(|| wrong_type(&name))?);
                }
                _ => return Err(wrong_type(&name)),
            }
        }
        Ok(Box::new(Reading { read: self.book.search(conditions)? }))
    }
}

/// The schema says the same with the place; this is for what it lets through.
fn wrong_type(name: &str) -> ToolError {
    let message = format!("audit_search: argument {name:?} has another type.");
    ToolError::new(Reason::ArgumentInvalid, message, "See the tool's input schema.")
}

/// `audit_overview`
pub struct Overview {
    definition: Definition,
    book: Arc<dyn AuditBook>,
}

impl Overview {
    /// Counts in `book`.
    #[must_use]
    pub fn new(book: Arc<dyn AuditBook>) -> Self {
        Self { definition: overview_definition(), book }
    }
}

#[derive(Debug, Deserialize)]
struct Span {
    start_time: Option<String>,
    end_time: Option<String>,
    user: Option<String>,
}

impl Tool for Overview {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        let Span { start_time, end_time, user } =
            arguments::read("audit_overview", &["start_time", "end_time", "user"], arguments)?;
        let given = [("start_time", start_time), ("end_time", end_time), ("user_id", user)];
        let pairs = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        Ok(Box::new(Reading { read: self.book.overview(Conditions { pairs, limit: None })? }))
    }
}

/// `audit_event`
pub struct One {
    definition: Definition,
    book: Arc<dyn AuditBook>,
}

impl One {
    /// Reads from `book`.
    #[must_use]
    pub fn new(book: Arc<dyn AuditBook>) -> Self {
        Self { definition: event_definition(), book }
    }
}

#[derive(Debug, Deserialize)]
struct Id {
    id: Uuid,
}

impl Tool for One {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        let Id { id } = arguments::read("audit_event", &["id"], arguments)?;
        Ok(Box::new(Reading { read: self.book.event(id) }))
    }
}

struct Reading {
    read: Read,
}

impl Prepared for Reading {
    fn connection(&self) -> Option<&str> {
        None
    }

    fn run(self: Box<Self>, context: CallContext) -> BoxFuture<'static, Result<ToolResult, ToolError>> {
        let cancel = context.cancel.clone();
        let read = (self.read)(context);
        Box::pin(async move {
            tokio::select! {
                result = read => result,
                () = cancel.cancelled() => {
                    let message = "The reading was stopped.";
                    Err(ToolError::new(Reason::Cancelled, message, "Ask for less at once."))
                }
            }
        })
    }
}

fn annotations() -> Value {
    json!({"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false})
}

fn search_definition() -> Definition {
    let mut properties: serde_json::Map<String, Value> = CONDITIONS
        .iter()
        .map(|(name, _, about)| {
            (
                (*name).to_owned(),
                json!({"type": "string", "minLength": 1, "maxLength": 1024, "description": about}),
            )
        })
        .collect();
    let success =
        json!({"type": "boolean", "description": "How the call ended. What is no call matches neither."});
    properties.insert("success".into(), success);
    let limit = json!({
        "type": "integer", "minimum": 1, "maximum": PAGE_MAX,
        "description": format!("Events on the page at most; {PAGE_DEFAULT} when left out.")
    });
    properties.insert("limit".into(), limit);
    let text = json!({"type": ["string", "null"]});
    let line = json!({
        "type": "object",
        "properties": {
            "event_id": {"type": "string"},
            "recorded_at": {"type": "string"},
            "event": {"type": "string", "description": "The event's type."},
            "call_id": {"type": ["string", "null"], "description": "The call, where it is one."},
            "user": text, "persona": text, "tool": text, "connection": text,
            "success": {"type": ["boolean", "null"]},
            "category": text, "reason": text,
            "duration_ms": {"type": ["integer", "null"]},
            "session_id": text
        },
        "required": ["event_id", "recorded_at", "event", "call_id", "user", "persona", "tool", "connection", "success",
                     "category", "reason", "duration_ms", "session_id"],
        "additionalProperties": false
    });
    DefinitionSource {
        name: "audit_search",
        title: "Search the audit",
        description: format!(
            "Finds events of the audit, one line each, newest first: calls by their end, refusals, sessions, changes of \
             keys, and readings of the audit. Conditions are joined by and; each matches exactly. A page has at most \
             {PAGE_MAX} events; next_cursor leads to the next one. total counts all pages, up to 10,000: beyond that \
             total_text is \"10,000+\". audit_event has the whole of one. This reading is recorded before it is done."
        ),
        input_schema: json!({"type": "object", "properties": properties, "additionalProperties": false}),
        output_schema: json!({
            "type": "object",
            "properties": {
                "events": {"type": "array", "items": line},
                "total": {"type": "integer", "description": "Events of all pages; 10000 where there are more."},
                "total_text": {"type": "string", "description": "The same for people, as \"10,000+\" where there are more."},
                "total_capped": {"type": "boolean"},
                "next_cursor": text,
                "start_time": {"type": ["string", "null"], "description": "As it was understood: pass it with next_cursor."},
                "end_time": text
            },
            "required": ["events", "total", "total_text", "total_capped", "next_cursor", "start_time", "end_time"],
            "additionalProperties": false
        }),
        annotations: annotations(),
    }
    .prepare("audit", true)
}

fn overview_definition() -> Definition {
    let argument =
        |about: &str| json!({"type": "string", "minLength": 1, "maxLength": 1024, "description": about});
    let properties: serde_json::Map<String, Value> = CONDITIONS
        .iter()
        .filter(|(name, ..)| ["user", "start_time", "end_time"].contains(name))
        .map(|(name, _, about)| ((*name).to_owned(), argument(about)))
        .collect();
    let group = json!({
        "type": "object",
        "properties": {
            "shares": {"type": "array", "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["name", "count"],
                "additionalProperties": false
            }},
            "total": {"type": "integer", "description": "Names in all, those that are not listed too."}
        },
        "required": ["shares", "total"],
        "additionalProperties": false
    });
    DefinitionSource {
        name: "audit_overview",
        title: "Overview of the audit",
        description: "Counts the events of the audit by tool, persona, type (how a call ended) and reason of refusals and \
                      failures, the most frequent first. Each list has at most 100 names, with the number of all beside \
                      it; the counts are exact. audit_search shows the events. This reading is recorded before it is done."
            .to_owned(),
        input_schema: json!({"type": "object", "properties": properties, "additionalProperties": false}),
        output_schema: json!({
            "type": "object",
            "properties": {
                "total": {"type": "integer", "description": "Events in all."},
                "by_tool": group, "by_persona": group, "by_event": group, "by_reason": group,
                "start_time": {"type": ["string", "null"], "description": "As it was understood."},
                "end_time": {"type": ["string", "null"]}
            },
            "required": ["total", "by_tool", "by_persona", "by_event", "by_reason", "start_time", "end_time"],
            "additionalProperties": false
        }),
        annotations: annotations(),
    }
    .prepare("audit", true)
}

fn event_definition() -> Definition {
    DefinitionSource {
        name: "audit_event",
        title: "One event of the audit",
        description: "Gives all that is recorded of one event, by its event_id, or of the end of one call, by its call \
                      id: arguments, outcome, the body byte for byte, and the proof of its place in the log. This \
                      reading is recorded before it is done."
            .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {"id": {"type": "string", "format": "uuid", "description": "An event_id or a call_id of audit_search."}},
            "required": ["id"],
            "additionalProperties": false
        }),
        output_schema: json!({
            "type": "object",
            "properties": {
                "event_id": {"type": "string"},
                "event_kind": {"type": "string"},
                "body": {"type": "string", "description": "The event's body, byte for byte."},
                "body_json": {"description": "The same as JSON."},
                "proof": {"type": "object", "description": "Log, topic, partition, position, lane and link."}
            },
            "required": ["event_id", "event_kind", "body", "body_json", "proof"]
        }),
        annotations: annotations(),
    }
    .prepare("audit", true)
}
