//! From a call to its events: what the intent and the terminal event say.

use std::sync::Arc;

use serde_json::value::RawValue;

use uuid::Uuid;

use super::late::After;
use super::{CallRequest, Limits, Recording};
use crate::base::{Timestamp, clip};
use crate::event::{
    ArgumentsLevel, Call, Draft, Effect, Event, Facts, Failure, Kind, Outcome, Personal, Requested, Terminal,
    TopicPartition, partition_of,
};
use crate::redact::{Redactor, Scope, Secrets, Shape};
use crate::tools::{Definition, ToolError, ToolResult};

/// Clips, in bytes, so that a body always fits its limit.
const TOOL_NAME_BYTES_MAX: usize = 128;
const REQUEST_ID_BYTES_MAX: usize = 128;
const PURPOSE_BYTES_MAX: usize = 8 * 1024;
const VERSION_BYTES_MAX: usize = 64;
const USER_AGENT_BYTES_MAX: usize = 256;
const ASSERTED_BYTES_MAX: usize = 4 * 1024;
const ERROR_BYTES_MAX: usize = 2 * 1024;

/// What a terminal event may be longer than its intent: the facts of the outcome, and an error text whose every
/// byte could take seven once it stands in JSON inside JSON.
const OUTCOME_EXTRA_BYTES: u64 = 16 * 1024;

/// What decides how much of a call is kept.
#[derive(Clone, Copy)]
pub(super) struct Keep<'a> {
    pub(super) redactor: &'a Redactor,
    pub(super) recording: &'a Recording,
    pub(super) limits: &'a Limits,
}

/// What is recorded of one call, fixed before it runs.
pub(super) struct CallRecord {
    call: Call,
    personal: Personal,
    key: String,
    /// What was found in the call, so that its error or result cannot repeat it.
    secrets: Secrets,
    /// How large a result may be to be kept, bytes; 0 below the level `full`.
    result_bytes_max: usize,
    sensitive_result: Option<Arc<Shape>>,
    sql_literals: bool,
}

/// How a call ended, before it is an event.
pub(super) enum Ending<'a> {
    Completed(&'a ToolResult),
    Failed(&'a ToolError),
    Denied(&'a ToolError),
    TimedOut(&'a ToolError),
    Cancelled(&'a ToolError),
    /// Not an end: what came after one.
    Late(&'a After),
}

/// What the caller wrote, redacted and then clipped: a secret that is cut in two is found by no rule.
struct Texts {
    request_id: String,
    protocol_version: String,
    tool_name: String,
    connection: Option<String>,
    arguments: Box<RawValue>,
    purpose: Option<String>,
    user_name: String,
    user_agent: Option<String>,
    asserted: Option<Box<RawValue>>,
}

impl Texts {
    fn of(
        request: &CallRequest,
        (arguments, scope): (&RawValue, Scope<'_>),
        purpose: Option<&str>,
        connection: Option<&str>,
        redactor: &Redactor,
        secrets: &mut Secrets,
    ) -> Self {
        let arguments = redactor.json(arguments, &scope, secrets);
        let asserted = request.client.asserted.as_deref();
        let asserted = asserted.map(|raw| bounded(&redactor.json(raw, &Scope::default(), secrets)));
        let mut text = |text: &str, bytes_max| clip(&redactor.text(text, secrets), bytes_max).to_owned();
        Self {
            purpose: purpose.map(|purpose| text(purpose, PURPOSE_BYTES_MAX)),
            request_id: text(&request.request_id, REQUEST_ID_BYTES_MAX),
            protocol_version: text(&request.protocol_version, VERSION_BYTES_MAX),
            tool_name: text(&request.tool, TOOL_NAME_BYTES_MAX),
            connection: connection.map(|name| text(name, TOOL_NAME_BYTES_MAX)),
            user_name: text(&request.principal.user_name, TOOL_NAME_BYTES_MAX),
            user_agent: request.client.user_agent.as_deref().map(|agent| text(agent, USER_AGENT_BYTES_MAX)),
            arguments,
            asserted,
        }
    }
}

impl CallRecord {
    pub(super) fn call_id(&self) -> Uuid {
        self.call.call_id
    }

    /// Where its events stand.
    pub(super) fn target(&self) -> TopicPartition {
        TopicPartition { topic: Kind::ToolCallRequested.topic(), partition: partition_of(&self.key) }
    }

    /// `arguments` and `purpose` are what was split; `definition` is absent for an unknown tool.
    pub(super) fn new(
        request: &CallRequest,
        arguments: &RawValue,
        purpose: Option<String>,
        definition: Option<&Definition>,
        connection: Option<&str>,
        keep: &Keep<'_>,
    ) -> Self {
        let sql_literals = keep.recording.sql_literals(&request.tool);
        let shape = definition.map(|definition| &*definition.sensitive_arguments);
        let scope = Scope { shape, sql_literals };
        let mut secrets = Secrets::default();
        let read = |secrets: &mut Secrets| {
            Texts::of(request, (arguments, scope), purpose.as_deref(), connection, keep.redactor, secrets)
        };
        let mut texts = read(&mut secrets);
        if !secrets.is_empty() {
            // Once more: what one text gave away may stand in those before it.
            secrets = secrets.again();
            texts = read(&mut secrets);
        }
        let text = arguments.get();
        let bytes_max = keep.limits.recorded_arguments_bytes_max;
        let fits = text.len() <= bytes_max && texts.arguments.get().len() <= bytes_max;
        let asked = keep.recording.level(&request.tool);
        let level = if fits { asked } else { asked.min(ArgumentsLevel::Metadata) };
        let minimal = level == ArgumentsLevel::Minimal;
        let call = Call {
            call_id: request.call_id,
            received_at: request.received_at,
            subject_id: request.principal.subject_id.clone(),
            auth_method: request.principal.auth_method,
            key_id: request.principal.key_id,
            persona: request.persona.name.clone(),
            request_id: texts.request_id,
            session_id: request.session_id.clone(),
            transport: request.transport,
            protocol_version: texts.protocol_version,
            source: "mcp".into(),
            tool_name: texts.tool_name,
            toolkit_kind: definition.map(|definition| definition.toolkit_kind.to_owned()),
            connection: texts.connection,
            definition_sha256: definition.map(|definition| definition.sha256.clone()),
            trace_id: request.client.trace.map(|trace| trace.trace_id()),
            arguments_level: level,
            arguments_hmac: (!minimal).then(|| keep.redactor.digest(text.as_bytes())),
            arguments_bytes: if minimal { 0 } else { text.len() as u64 },
            digest_key_id: keep.redactor.digest_key_id().to_owned(),
            redactions: secrets.replaced(),
        };
        let personal = Personal {
            user_name: Some(texts.user_name),
            client_ip: request.client.ip.clone(),
            user_agent: texts.user_agent,
            purpose: texts.purpose,
            arguments: (level >= ArgumentsLevel::Arguments).then_some(texts.arguments),
            asserted: texts.asserted,
            ..Personal::default()
        };
        let key = request.session_id.clone().unwrap_or_else(|| request.call_id.to_string());
        let result_bytes_max =
            if asked == ArgumentsLevel::Full { keep.recording.result_bytes_max } else { 0 };
        let sensitive_result = definition.map(|definition| Arc::clone(&definition.sensitive_result));
        Self { call, personal, key, secrets, result_bytes_max, sensitive_result, sql_literals }
    }

    pub(super) fn intent(&self, draft: &Draft, now: Timestamp, deadline: Timestamp) -> Option<Event> {
        let facts = Facts::Requested(Requested { call: self.call.clone(), deadline });
        built(draft.build(now, &self.key, &facts, &self.personal))
    }

    /// What the terminal event may need beyond what the intent takes, bytes. A kept result is escaped once more.
    pub(super) fn outcome_extra_bytes(&self) -> u64 {
        OUTCOME_EXTRA_BYTES + 2 * self.result_bytes_max as u64
    }

    /// The terminal event, at most `room` bytes: a result or an error text that does not fit is left out, never the event.
    pub(super) fn terminal(
        &self,
        draft: &Draft,
        now: Timestamp,
        ending: &Ending<'_>,
        room: u64,
    ) -> Option<Event> {
        let (kind, authorized, error, result) = match ending {
            Ending::Completed(result) => (Kind::ToolCallCompleted, true, None, Some(*result)),
            Ending::Failed(error) => (Kind::ToolCallFailed, true, Some(*error), None),
            Ending::Denied(error) => (Kind::ToolCallDenied, false, Some(*error), None),
            Ending::TimedOut(error) => (Kind::ToolCallTimedOut, true, Some(*error), None),
            Ending::Cancelled(error) => (Kind::ToolCallCancelled, true, Some(*error), None),
            Ending::Late(After::Completed(result)) => (Kind::ToolCallLate, true, None, Some(result)),
            Ending::Late(After::Failed(error) | After::Dropped(error)) => {
                (Kind::ToolCallLate, true, Some(error), None)
            }
        };
        let effect = matches!(ending, Ending::Late(After::Dropped(_))).then_some(Effect::Unknown);
        let minimal = self.call.arguments_level == ArgumentsLevel::Minimal;
        let mut secrets = self.secrets.clone().again();
        let mut personal = self.personal.clone();
        personal.result = result.and_then(|result| self.kept(result, &draft.redactor, &mut secrets));
        if !minimal {
            let text = error.map(|error| draft.redactor.text(&error.message, &mut secrets));
            personal.error_message = text.map(|text| clip(&text, ERROR_BYTES_MAX).to_owned());
        }
        let outcome = Outcome {
            duration_ms: now.millis_since(self.call.received_at),
            response_bytes: result.map_or(0, |result| result.structured.len() as u64),
            response_chars: result.map_or(0, |result| characters(&result.structured)),
            content_blocks: u32::from(result.is_some()),
            result_hmac: result.filter(|_| !minimal).map(|result| draft.redactor.digest(&result.structured)),
            error: error.map(|error| Failure { category: error.category(), code: error.code().to_owned() }),
            effect,
        };
        let mut call = self.call.clone();
        call.redactions = call.redactions.saturating_add(secrets.replaced());
        let facts = Facts::Terminal(kind, Terminal { call, authorized, outcome });
        let without_result = Personal { result: None, ..personal.clone() };
        let fitting = [&personal, &without_result].into_iter().find_map(|personal| {
            let event = draft.build(now, &self.key, &facts, personal).ok()?;
            (event.body.len() as u64 <= room).then_some(event)
        });
        fitting.or_else(|| built(draft.build(now, &self.key, &facts, &self.personal)))
    }

    /// The result as the record keeps it.
    fn kept(&self, result: &ToolResult, redactor: &Redactor, secrets: &mut Secrets) -> Option<Box<RawValue>> {
        if self.result_bytes_max == 0 || result.structured.len() > self.result_bytes_max {
            return None;
        }
        let text = String::from_utf8(result.structured.to_vec()).ok()?;
        let raw = RawValue::from_string(text).ok()?;
        let scope = Scope { shape: self.sensitive_result.as_deref(), sql_literals: self.sql_literals };
        Some(redactor.json(&raw, &scope, secrets))
    }
}

/// The fields are clipped so that this holds; were it ever not so, the call is refused rather than unrecorded.
fn built(result: Result<Event, crate::event::BuildError>) -> Option<Event> {
    result.inspect_err(|error| tracing::error!(error = %error, "an event of a call could not be built")).ok()
}

/// UTF-8 text length in characters: bytes that do not continue a character.
fn characters(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte & 0b1100_0000 != 0b1000_0000).count() as u64
}

fn bounded(asserted: &RawValue) -> Box<RawValue> {
    if asserted.get().len() <= ASSERTED_BYTES_MAX {
        return asserted.to_owned();
    }
    RawValue::from_string(format!("{{\"omitted_bytes\":{}}}", asserted.get().len()))
        .expect("a number in an object")
}
