//! From a call to its events: what the intent and the terminal event say.

use serde_json::value::RawValue;

use uuid::Uuid;

use super::late::After;
use super::{CallRequest, Limits};
use crate::base::{Timestamp, clip, sha256_hex};
use crate::event::{
    ArgumentsLevel, Call, Draft, Effect, Event, Facts, Failure, Kind, Outcome, Personal, Requested, Terminal,
    TopicPartition, partition_of,
};
use crate::tools::{Definition, ToolError, ToolResult};

/// Clips, in bytes, so that a body always fits its limit.
const TOOL_NAME_BYTES_MAX: usize = 128;
const REQUEST_ID_BYTES_MAX: usize = 128;
const VERSION_BYTES_MAX: usize = 64;
const USER_AGENT_BYTES_MAX: usize = 256;
const ASSERTED_BYTES_MAX: usize = 4 * 1024;
const ERROR_BYTES_MAX: usize = 2 * 1024;

/// What a terminal event may be longer than its intent: the facts of the outcome, and an error text whose every
/// byte could take seven once it stands in JSON inside JSON.
pub(super) const OUTCOME_EXTRA_BYTES: u64 = 16 * 1024;

/// What is recorded of one call, fixed before it runs.
pub(super) struct CallRecord {
    call: Call,
    personal: Personal,
    key: String,
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
        limits: &Limits,
    ) -> Self {
        let text = arguments.get();
        let kept = text.len() <= limits.recorded_arguments_bytes_max;
        let call = Call {
            call_id: request.call_id,
            received_at: request.received_at,
            subject_id: request.principal.subject_id.clone(),
            auth_method: request.principal.auth_method,
            key_id: request.principal.key_id,
            persona: request.persona.name.clone(),
            request_id: clip(&request.request_id, REQUEST_ID_BYTES_MAX).to_owned(),
            session_id: request.session_id.clone(),
            transport: request.transport,
            protocol_version: clip(&request.protocol_version, VERSION_BYTES_MAX).to_owned(),
            source: "mcp".into(),
            tool_name: clip(&request.tool, TOOL_NAME_BYTES_MAX).to_owned(),
            toolkit_kind: definition.map(|definition| definition.toolkit_kind.to_owned()),
            connection: connection.map(|name| clip(name, TOOL_NAME_BYTES_MAX).to_owned()),
            definition_sha256: definition.map(|definition| definition.sha256.clone()),
            trace_id: request.client.trace.map(|trace| trace.trace_id()),
            arguments_level: if kept { ArgumentsLevel::Arguments } else { ArgumentsLevel::Metadata },
            arguments_sha256: sha256_hex(text.as_bytes()),
            arguments_bytes: text.len() as u64,
        };
        let personal = Personal {
            user_name: Some(request.principal.user_name.clone()),
            client_ip: request.client.ip.clone(),
            user_agent: request
                .client
                .user_agent
                .as_deref()
                .map(|text| clip(text, USER_AGENT_BYTES_MAX).to_owned()),
            purpose,
            arguments: kept.then(|| arguments.to_owned()),
            asserted: request.client.asserted.as_deref().map(bounded),
            ..Personal::default()
        };
        let key = request.session_id.clone().unwrap_or_else(|| request.call_id.to_string());
        Self { call, personal, key }
    }

    pub(super) fn intent(&self, draft: &Draft, now: Timestamp, deadline: Timestamp) -> Option<Event> {
        let facts = Facts::Requested(Requested { call: self.call.clone(), deadline });
        built(draft.build(now, &self.key, &facts, &self.personal))
    }

    /// The terminal event, at most `room` bytes: an error text that does not fit is left out, never the event.
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
        let outcome = Outcome {
            duration_ms: now.millis_since(self.call.received_at),
            response_bytes: result.map_or(0, |result| result.structured.len() as u64),
            response_chars: result.map_or(0, |result| characters(&result.structured)),
            content_blocks: u32::from(result.is_some()),
            result_sha256: result.map(|result| sha256_hex(&result.structured)),
            error: error.map(|error| Failure { category: error.category(), code: error.code().to_owned() }),
            effect,
        };
        let facts = Facts::Terminal(kind, Terminal { call: self.call.clone(), authorized, outcome });
        let mut personal = self.personal.clone();
        personal.error_message = error.map(|error| clip(&error.message, ERROR_BYTES_MAX).to_owned());
        let event = built(draft.build(now, &self.key, &facts, &personal))?;
        if event.body.len() as u64 <= room {
            return Some(event);
        }
        built(draft.build(now, &self.key, &facts, &self.personal))
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
