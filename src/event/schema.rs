//! JSON Schema (2020-12) of each event type, generated from the Rust types into `schemas/event/`.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    AuditQueried, AuthFailed, BackupTaken, Common, Gap, KeyCreated, KeyRevoked, Kind, LaneClosed, Link,
    LinkInput, LogAdopted, Personal, RequestRefused, Requested, Retention, SessionEnded, SessionStarted,
    Started, Stopping, SystemCheckpoint, Terminal, Topic, ZERO_LINK, link,
};
use crate::base::{Timestamp, sha256};
use uuid::Uuid;

#[derive(Serialize, JsonSchema)]
struct FactsOf<F> {
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    facts: F,
}

/// One generated file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFile {
    /// Path under `schemas/`.
    pub path: String,
    /// Its whole text.
    pub text: String,
}

/// Every file under `schemas/` that comes from the code.
#[must_use]
pub fn files() -> Vec<SchemaFile> {
    let mut files: Vec<SchemaFile> =
        Kind::ALL.iter().map(|&kind| SchemaFile { path: path_of(kind), text: text_of(kind) }).collect();
    files.push(SchemaFile { path: "asyncapi.yaml".into(), text: super::asyncapi::text() });
    files.push(SchemaFile { path: "link-vectors.json".into(), text: pretty(&vectors()) });
    files
}

/// Where the schema of the current version of `kind` is, under `schemas/`.
#[must_use]
pub fn path_of(kind: Kind) -> String {
    format!("event/{}.v{}.json", kind.name(), kind.version())
}

/// The schema of one event type, as the text of its file.
#[must_use]
pub fn text_of(kind: Kind) -> String {
    pretty(&of(kind))
}

/// The schema of one event type.
#[must_use]
pub fn of(kind: Kind) -> Value {
    let facts = match kind {
        Kind::ToolCallRequested => facts_schema::<Requested>(),
        Kind::ToolCallCompleted
        | Kind::ToolCallFailed
        | Kind::ToolCallDenied
        | Kind::ToolCallTimedOut
        | Kind::ToolCallCancelled
        | Kind::ToolCallInterrupted
        | Kind::ToolCallLate => facts_schema::<Terminal>(),
        Kind::RequestRefused => facts_schema::<RequestRefused>(),
        Kind::SessionStarted => facts_schema::<SessionStarted>(),
        Kind::SessionEnded => facts_schema::<SessionEnded>(),
        Kind::AuthFailed => facts_schema::<AuthFailed>(),
        Kind::AdminKeyCreated => facts_schema::<KeyCreated>(),
        Kind::AdminKeyRevoked => facts_schema::<KeyRevoked>(),
        Kind::AdminAuditQueried => facts_schema::<AuditQueried>(),
        Kind::AdminBackupTaken => facts_schema::<BackupTaken>(),
        Kind::AdminLogAdopted => facts_schema::<LogAdopted>(),
        Kind::SystemStarted => facts_schema::<Started>(),
        Kind::SystemStopping => facts_schema::<Stopping>(),
        Kind::SystemLaneClosed => facts_schema::<LaneClosed>(),
        Kind::SystemCheckpoint => facts_schema::<SystemCheckpoint>(),
        Kind::SystemRetention => facts_schema::<Retention>(),
        Kind::SystemGap => facts_schema::<Gap>(),
    };
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": format!("urn:annals:schema:{}", kind.type_name()),
        "title": kind.type_name(),
        "type": "object",
        "required": ["specversion", "id", "source", "type", "time", "datacontenttype", "data"],
        "properties": {
            "specversion": { "const": "1.0" },
            "id": { "type": "string", "format": "uuid" },
            "source": { "type": "string", "pattern": "^urn:annals:[A-Za-z0-9-]+$" },
            "type": { "const": kind.type_name() },
            "time": { "type": "string", "format": "date-time" },
            "datacontenttype": { "const": "application/json" },
            "data": {
                "type": "object",
                "required": ["facts", "personal"],
                "properties": { "facts": facts, "personal": personal_schema() }
            }
        }
    })
}

fn generator() -> SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    settings.into_generator()
}

fn facts_schema<F: JsonSchema>() -> Value {
    let mut schema = generator().into_root_schema_for::<FactsOf<F>>().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("title");
    }
    schema
}

fn personal_schema() -> Value {
    json!({
        "type": "object",
        "required": ["alg", "key_id", "bytes"],
        "properties": {
            "alg": { "const": "none" },
            "key_id": { "type": ["string", "null"] },
            "bytes": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": generator().into_root_schema_for::<Personal>().to_value()
            }
        }
    })
}

fn pretty(value: &Value) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("a JSON value has a text");
    text.push('\n');
    text
}

/// Test vectors of the link hash, so that others can check their own code against ours.
fn vectors() -> Value {
    let incarnation = Uuid::from_u128(0x0123_4567_89ab_4def_8123_4567_89ab_cdef);
    let mut vectors = Vec::new();
    for topic in Topic::ALL {
        let mut prev: Link = ZERO_LINK;
        for seq in 0..3_u64 {
            let body = format!("{{\"n\":{seq}}}");
            let content = sha256(body.as_bytes());
            let recorded_at = Timestamp::from_micros(1_764_521_228_000_042 + i64::try_from(seq).unwrap_or(0));
            let partition = u32::from(topic.code()) * 3;
            let input =
                LinkInput { prev: &prev, incarnation, topic, partition, seq, recorded_at, content: &content };
            let next = link(&input);
            vectors.push(json!({
                "prev": hex::encode(prev),
                "incarnation": incarnation,
                "topic": topic.name(),
                "partition": partition,
                "seq": seq,
                "recorded_at_micros": recorded_at.as_micros(),
                "body": body,
                "content": hex::encode(content),
                "link": hex::encode(next),
            }));
            prev = next;
        }
    }
    json!({
        "formula": "SHA256(\"annals.link.v1\\0\" || prev[32] || incarnation[16] || u16 len(topic) || topic || u32 partition || u64 seq || i64 recorded_at_micros || content[32]), big-endian",
        "vectors": vectors,
    })
}
