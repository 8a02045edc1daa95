//! The pure half of the audit projection: one event gives one row of facts and one row of personal data.
//!
//! Total over what can be decoded, and a function of the stored frame alone: `verify` and a rebuild run this same code.

use serde_json::value::RawValue;
use time::OffsetDateTime;
use uuid::Uuid;

use super::columns::table;
use crate::base::{Clock, SystemClock, Timestamp, planted};
use crate::event::{AuthMethod, Call, Decoded, Facts, Kind, Personal, RequestRefused, Requested, Terminal};
use crate::log::LogId;
use crate::projection::{Item, Unprojectable, clean, json_for_postgres};

/// 9999-12-01T00:00:00Z: partitions are made up to here.
const RECORDED_MICROS_MAX: i64 = 253_399_622_400_000_000;

table! {
    /// A row of `audit_events`: immutable, one per event.
    EventRow, EventArrays, "audit_events" {
        log_id: "uuid" = Uuid,
        topic: "text" = String,
        partition: "int4" = i32,
        position: "int8" = i64,
        recorded_at: "timestamptz" = OffsetDateTime,
        tenant: "text" = String,
        event_id: "uuid" = Uuid,
        event_kind: "text" = String,
        event_type: "text" = String,
        source: "text" = String,
        occurred_at: "timestamptz" = OffsetDateTime,
        incarnation: "uuid" = Uuid,
        seq: "int8" = i64,
        link: "bytea" = Vec<u8>,
        content: "bytea" = Vec<u8>,
        ack: "text" = String,
        ack_check: "text" = String,
        once: "bool" = bool,
        body_head: "text" = String,
        body_tail: "text" = String,
        call_id: "uuid" = Option<Uuid>,
        subject_id: "text" = Option<String>,
        key_id: "uuid" = Option<Uuid>,
        auth_method: "text" = Option<String>,
        persona: "text" = Option<String>,
        request_id: "text" = Option<String>,
        session_id: "text" = Option<String>,
        transport: "text" = Option<String>,
        protocol_version: "text" = Option<String>,
        source_kind: "text" = Option<String>,
        tool_name: "text" = Option<String>,
        toolkit_kind: "text" = Option<String>,
        connection: "text" = Option<String>,
        definition_sha256: "text" = Option<String>,
        arguments_hmac: "text" = Option<String>,
        arguments_bytes: "int8" = Option<i64>,
        authorized: "bool" = Option<bool>,
        success: "bool" = Option<bool>,
        error_category: "text" = Option<String>,
        error_code: "text" = Option<String>,
        received_at: "timestamptz" = Option<OffsetDateTime>,
        deadline: "timestamptz" = Option<OffsetDateTime>,
        duration_ms: "int8" = Option<i64>,
        response_bytes: "int8" = Option<i64>,
        response_chars: "int8" = Option<i64>,
        content_blocks: "int8" = Option<i64>,
        result_hmac: "text" = Option<String>,
        effect: "text" = Option<String>,
        trace_id: "text" = Option<String>,
        occurrences: "int8" = Option<i64>,
        end_reason: "text" = Option<String>,
        digest_key_id: "text" = Option<String>,
        redactions: "int8" = Option<i64>,
    }
}

table! {
    /// A row of `audit_personal`: what erasure may blank; the same key as the event's row.
    PersonalRow, PersonalArrays, "audit_personal" {
        log_id: "uuid" = Uuid,
        topic: "text" = String,
        partition: "int4" = i32,
        position: "int8" = i64,
        recorded_at: "timestamptz" = OffsetDateTime,
        tenant: "text" = String,
        subject_id: "text" = Option<String>,
        user_id: "text" = Option<String>,
        personal_token: "text" = Option<String>,
        user_name: "text" = Option<String>,
        client_ip: "text" = Option<String>,
        user_agent: "text" = Option<String>,
        purpose: "text" = Option<String>,
        parameters: "jsonb" = Option<String>,
        request_chars: "int8" = Option<i64>,
        error_message: "text" = Option<String>,
        asserted: "jsonb" = Option<String>,
        object_name: "text" = Option<String>,
        query: "jsonb" = Option<String>,
        result: "jsonb" = Option<String>,
    }
}

/// The UTC month (year, 1 to 12) whose partition a row recorded then stands in; `None` when no row can be.
#[must_use]
pub(super) fn month_of(recorded_at: Timestamp) -> Option<(i32, u8)> {
    let at = recorded_at.to_offset();
    (0..RECORDED_MICROS_MAX).contains(&recorded_at.as_micros()).then(|| (at.year(), u8::from(at.month())))
}

/// Both rows of `item`.
///
/// # Errors
/// [`Unprojectable`] when the frame's numbers or the body's bytes have no place in Postgres, or the source names no tenant.
pub fn rows(log: LogId, item: &Item) -> Result<(EventRow, PersonalRow), Unprojectable> {
    let event = event_row(log, item)?;
    let personal = personal_row(&event, item)?;
    Ok((event, personal))
}

/// `body[..token]`, `body[token]` and the rest, as text.
fn body_parts(item: &Item) -> Result<(&str, &str, &str), Unprojectable> {
    let body = std::str::from_utf8(&item.stored.frame.body)
        .map_err(|_| Unprojectable("the body is not UTF-8".into()))?;
    let token = &item.decoded.token;
    match (body.get(..token.start), body.get(token.clone()), body.get(token.end..)) {
        (Some(head), Some(token), Some(tail)) => Ok((head, token, tail)),
        _ => Err(Unprojectable("the personal part has no place in the body".into())),
    }
}

fn event_row(log: LogId, item: &Item) -> Result<EventRow, Unprojectable> {
    let Item { stored, decoded } = item;
    let frame = &stored.frame;
    let (head, _, tail) = body_parts(item)?;
    if !(0..RECORDED_MICROS_MAX).contains(&frame.recorded_at.as_micros()) {
        return Err(Unprojectable(format!("recorded at {} is out of range", frame.recorded_at)));
    }
    let tenant = decoded
        .source
        .strip_prefix("urn:annals:")
        .filter(|tenant| !tenant.is_empty() && !tenant.contains('\0'))
        .ok_or_else(|| Unprojectable(format!("the source {:?} names no tenant", decoded.source)))?;
    let occurred_at =
        if planted::armed("row_from_the_clock") { SystemClock.now() } else { decoded.occurred_at };
    let row = EventRow {
        log_id: log.0,
        topic: frame.target.topic.name().to_owned(),
        partition: i32::try_from(frame.target.partition).map_err(|_| too_large("partition"))?,
        position: i64::try_from(stored.position.0).map_err(|_| too_large("position"))?,
        recorded_at: frame.recorded_at.to_offset(),
        tenant: tenant.to_owned(),
        event_id: decoded.id,
        event_kind: decoded.kind.name().to_owned(),
        event_type: decoded.type_name(),
        source: decoded.source.clone(),
        occurred_at: occurred_at.to_offset(),
        incarnation: frame.incarnation,
        seq: i64::try_from(frame.seq).map_err(|_| too_large("seq"))?,
        link: frame.link.to_vec(),
        content: frame.content.to_vec(),
        ack: decoded.common.ack.as_str().to_owned(),
        ack_check: decoded.common.ack_check.as_str().to_owned(),
        once: decoded.common.once,
        body_head: head.to_owned(),
        body_tail: tail.to_owned(),
        ..EventRow::blank()
    };
    Ok(with_facts(row, &decoded.facts))
}

fn too_large(what: &str) -> Unprojectable {
    Unprojectable(format!("{what} is out of range"))
}

/// What the facts of each type say; exhaustive, so that a new type must be considered here.
fn with_facts(row: EventRow, facts: &Facts) -> EventRow {
    match facts {
        Facts::Requested(Requested { call, deadline }) => {
            EventRow { deadline: Some(deadline.to_offset()), ..with_call(row, call) }
        }
        Facts::Terminal(kind, terminal) => with_terminal(row, *kind, terminal),
        Facts::AuthFailed(facts) => EventRow {
            key_id: facts.key_id,
            source_kind: text(&facts.source),
            authorized: Some(false),
            success: Some(false),
            error_category: text("auth"),
            error_code: text(&facts.reason),
            occurrences: Some(count(facts.count)),
            ..row
        },
        Facts::RequestRefused(facts) => with_refusal(row, facts),
        Facts::SessionStarted(facts) => EventRow {
            subject_id: text(&facts.subject_id),
            key_id: facts.key_id,
            auth_method: text(auth_method(facts.auth_method)),
            persona: text(&facts.persona),
            session_id: text(&facts.session_id),
            transport: text(facts.transport.as_str()),
            protocol_version: text(&facts.protocol_version),
            ..row
        },
        Facts::SessionEnded(facts) => EventRow {
            subject_id: text(&facts.subject_id),
            key_id: facts.key_id,
            auth_method: text(auth_method(facts.auth_method)),
            session_id: text(&facts.session_id),
            transport: text(facts.transport.as_str()),
            end_reason: text(facts.reason.as_str()),
            ..row
        },
        Facts::KeyCreated(facts) => EventRow {
            subject_id: text(&facts.actor_subject_id),
            auth_method: text(auth_method(facts.actor_auth_method)),
            key_id: Some(facts.key_id),
            ..row
        },
        Facts::KeyRevoked(facts) => EventRow {
            subject_id: text(&facts.actor_subject_id),
            auth_method: text(auth_method(facts.actor_auth_method)),
            key_id: Some(facts.key_id),
            ..row
        },
        Facts::AuditQueried(facts) => EventRow {
            subject_id: text(&facts.subject_id),
            auth_method: text(auth_method(facts.auth_method)),
            key_id: facts.key_id,
            persona: text(&facts.persona),
            authorized: Some(facts.authorized),
            ..row
        },
        Facts::BackupTaken(facts) => EventRow {
            subject_id: text(&facts.actor_subject_id),
            auth_method: text(auth_method(facts.actor_auth_method)),
            ..row
        },
        Facts::LogAdopted(facts) => EventRow {
            subject_id: text(&facts.actor_subject_id),
            auth_method: text(auth_method(facts.actor_auth_method)),
            ..row
        },
        Facts::Gap(facts) => EventRow { error_code: text(facts.cause.as_str()), ..row },
        // What these say is in the body; no column asks for it.
        Facts::Started(_)
        | Facts::Stopping(_)
        | Facts::LaneClosed(_)
        | Facts::Checkpoint(_)
        | Facts::Retention(_) => row,
    }
}

fn with_call(row: EventRow, call: &Call) -> EventRow {
    EventRow {
        call_id: Some(call.call_id),
        subject_id: text(&call.subject_id),
        key_id: call.key_id,
        auth_method: text(auth_method(call.auth_method)),
        persona: text(&call.persona),
        request_id: text(&call.request_id),
        session_id: optional(call.session_id.as_ref()),
        transport: text(call.transport.as_str()),
        protocol_version: text(&call.protocol_version),
        source_kind: text(&call.source),
        tool_name: text(&call.tool_name),
        toolkit_kind: optional(call.toolkit_kind.as_ref()),
        connection: optional(call.connection.as_ref()),
        definition_sha256: optional(call.definition_sha256.as_ref()),
        arguments_hmac: optional(call.arguments_hmac.as_ref()),
        arguments_bytes: Some(count(call.arguments_bytes)),
        received_at: Some(call.received_at.to_offset()),
        trace_id: optional(call.trace_id.as_ref()),
        digest_key_id: text(&call.digest_key_id),
        redactions: Some(i64::from(call.redactions)),
        ..row
    }
}

fn with_refusal(row: EventRow, refused: &RequestRefused) -> EventRow {
    EventRow {
        subject_id: optional(refused.subject_id.as_ref()),
        key_id: refused.key_id,
        auth_method: refused.auth_method.and_then(|method| text(auth_method(method))),
        persona: optional(refused.persona.as_ref()),
        session_id: optional(refused.session_id.as_ref()),
        request_id: optional(refused.request_id.as_ref()),
        transport: text(refused.transport.as_str()),
        source_kind: text(&refused.source),
        authorized: Some(false),
        success: Some(false),
        error_category: text(refused.category.as_str()),
        error_code: text(&refused.reason),
        occurrences: Some(count(refused.count)),
        ..row
    }
}

fn with_terminal(row: EventRow, kind: Kind, terminal: &Terminal) -> EventRow {
    let Terminal { call, authorized, outcome } = terminal;
    EventRow {
        authorized: Some(*authorized),
        success: Some(match kind {
            // Not the call's end, but what its tool gave after it.
            Kind::ToolCallLate => outcome.error.is_none(),
            kind => kind == Kind::ToolCallCompleted,
        }),
        error_category: outcome.error.as_ref().map(|error| error.category.as_str().to_owned()),
        error_code: outcome.error.as_ref().map(|error| clean(&error.code).into_owned()),
        duration_ms: Some(count(outcome.duration_ms)),
        response_bytes: Some(count(outcome.response_bytes)),
        response_chars: Some(count(outcome.response_chars)),
        content_blocks: Some(i64::from(outcome.content_blocks)),
        result_hmac: optional(outcome.result_hmac.as_ref()),
        effect: outcome.effect.and_then(|effect| text(effect.as_str())),
        ..with_call(row, call)
    }
}

fn personal_row(event: &EventRow, item: &Item) -> Result<PersonalRow, Unprojectable> {
    let (_, token, _) = body_parts(item)?;
    let nobody = Personal::default();
    let personal = item.decoded.personal.as_ref().unwrap_or(&nobody);
    let user_name = optional(personal.user_name.as_ref());
    let arguments = personal.arguments.as_deref();
    Ok(PersonalRow {
        log_id: event.log_id,
        topic: event.topic.clone(),
        partition: event.partition,
        position: event.position,
        recorded_at: event.recorded_at,
        tenant: event.tenant.clone(),
        subject_id: event.subject_id.clone(),
        user_id: user_name.clone().or_else(|| event.subject_id.clone()),
        personal_token: Some(token.to_owned()),
        user_name,
        client_ip: optional(personal.client_ip.as_ref()),
        user_agent: optional(personal.user_agent.as_ref()),
        purpose: optional(personal.purpose.as_ref()),
        parameters: json(arguments),
        request_chars: arguments.map(|raw| count(raw.get().chars().count() as u64)),
        error_message: optional(personal.error_message.as_ref()),
        asserted: json(personal.asserted.as_deref()),
        object_name: optional(personal.object_name.as_ref()),
        query: json(personal.query.as_deref()),
        result: json(personal.result.as_deref()),
    })
}

fn text(value: &str) -> Option<String> {
    Some(clean(value).into_owned())
}

fn optional(value: Option<&String>) -> Option<String> {
    value.and_then(|value| text(value))
}

fn json(raw: Option<&RawValue>) -> Option<String> {
    raw.and_then(|raw| json_for_postgres(raw.get()))
}

/// A count as `bigint`; what no real event holds becomes the largest one.
fn count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

const fn auth_method(method: AuthMethod) -> &'static str {
    match method {
        AuthMethod::ApiKey => "api_key",
        AuthMethod::EnvKey => "env_key",
        AuthMethod::Local => "local",
    }
}

impl EventRow {
    /// A row of nothing, to be filled.
    fn blank() -> Self {
        Self {
            log_id: Uuid::nil(),
            topic: String::new(),
            partition: 0,
            position: 0,
            recorded_at: OffsetDateTime::UNIX_EPOCH,
            tenant: String::new(),
            event_id: Uuid::nil(),
            event_kind: String::new(),
            event_type: String::new(),
            source: String::new(),
            occurred_at: OffsetDateTime::UNIX_EPOCH,
            incarnation: Uuid::nil(),
            seq: 0,
            link: Vec::new(),
            content: Vec::new(),
            ack: String::new(),
            ack_check: String::new(),
            once: false,
            body_head: String::new(),
            body_tail: String::new(),
            call_id: None,
            subject_id: None,
            key_id: None,
            auth_method: None,
            persona: None,
            request_id: None,
            session_id: None,
            transport: None,
            protocol_version: None,
            source_kind: None,
            tool_name: None,
            toolkit_kind: None,
            connection: None,
            definition_sha256: None,
            arguments_hmac: None,
            arguments_bytes: None,
            authorized: None,
            success: None,
            error_category: None,
            error_code: None,
            received_at: None,
            deadline: None,
            duration_ms: None,
            response_bytes: None,
            response_chars: None,
            content_blocks: None,
            result_hmac: None,
            effect: None,
            trace_id: None,
            occurrences: None,
            end_reason: None,
            digest_key_id: None,
            redactions: None,
        }
    }
}

/// The call that an event opens or ends, for `open_calls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStep {
    /// The intent, with its deadline.
    Opened {
        /// The call.
        call_id: Uuid,
        /// When it ends at the latest.
        deadline: Timestamp,
    },
    /// A terminal event.
    Ended {
        /// The call.
        call_id: Uuid,
    },
}

/// What `decoded` does to the set of open calls.
#[must_use]
pub fn call_step(decoded: &Decoded) -> Option<CallStep> {
    match &decoded.facts {
        Facts::Requested(facts) => {
            Some(CallStep::Opened { call_id: facts.call.call_id, deadline: facts.deadline })
        }
        Facts::Terminal(kind, facts) => {
            kind.is_terminal().then_some(CallStep::Ended { call_id: facts.call.call_id })
        }
        Facts::RequestRefused(_)
        | Facts::SessionStarted(_)
        | Facts::SessionEnded(_)
        | Facts::AuthFailed(_)
        | Facts::KeyCreated(_)
        | Facts::KeyRevoked(_)
        | Facts::AuditQueried(_)
        | Facts::BackupTaken(_)
        | Facts::LogAdopted(_)
        | Facts::Started(_)
        | Facts::Stopping(_)
        | Facts::LaneClosed(_)
        | Facts::Checkpoint(_)
        | Facts::Retention(_)
        | Facts::Gap(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Category, sha256};
    use crate::event::{AckCheck, AckClass, ArgumentsLevel, Draft, Failure, Outcome, Transport};
    use crate::log::{Frame, Position, Stored};

    fn at() -> Timestamp {
        Timestamp::from_micros(1_764_521_228_000_042)
    }

    fn item(facts: &Facts, personal: &Personal) -> Item {
        let draft = Draft {
            source: "urn:annals:acme".into(),
            incarnation: Uuid::from_u128(7),
            ack: AckClass::Fsync,
            ack_check: AckCheck::Verified,
            redactor: crate::redact::Redactor::shared(),
        };
        let event = draft.build(at(), "k", facts, personal).unwrap();
        let frame = Frame {
            target: event.target,
            incarnation: Uuid::from_u128(7),
            seq: 3,
            recorded_at: at().plus_micros(5),
            content: sha256(&event.body),
            link: [9; 32],
            body: event.body.clone(),
        };
        let decoded = Decoded::read(event.target.topic, &event.body).unwrap();
        Item { stored: Stored { position: Position(100), frame }, decoded }
    }

    fn call() -> Call {
        Call {
            call_id: Uuid::from_u128(1),
            received_at: at().plus_micros(-9),
            subject_id: "sub".into(),
            auth_method: AuthMethod::EnvKey,
            key_id: None,
            persona: "admin".into(),
            request_id: "\"a\u{0}\"".into(),
            session_id: None,
            transport: Transport::Stdio,
            protocol_version: "2025-11-25".into(),
            source: "mcp".into(),
            tool_name: "sql_query".into(),
            toolkit_kind: None,
            connection: None,
            definition_sha256: None,
            trace_id: None,
            arguments_level: ArgumentsLevel::Metadata,
            arguments_hmac: Some("00".into()),
            digest_key_id: "01".into(),
            redactions: 2,
            arguments_bytes: u64::MAX,
        }
    }

    fn outcome(error: Option<Failure>) -> Outcome {
        Outcome {
            duration_ms: 1,
            response_bytes: 2,
            response_chars: 3,
            content_blocks: 4,
            result_hmac: None,
            error,
            effect: None,
        }
    }

    /// The one that is kept in the repository.
    fn golden(kind: Kind) -> Facts {
        let file =
            format!("{}/tests/golden/{}", env!("CARGO_MANIFEST_DIR"), crate::event::schema::path_of(kind));
        Decoded::read(kind.topic(), &std::fs::read(file).unwrap()).unwrap().facts
    }

    /// One of each type.
    fn one_of(kind: Kind) -> Facts {
        let terminal = |error| {
            Facts::Terminal(kind, Terminal { call: call(), authorized: true, outcome: outcome(error) })
        };
        let failure = Some(Failure { category: Category::Timeout, code: "deadline".into() });
        match kind {
            Kind::ToolCallRequested => Facts::Requested(Requested { call: call(), deadline: at() }),
            Kind::ToolCallCompleted => terminal(None),
            Kind::ToolCallFailed
            | Kind::ToolCallDenied
            | Kind::ToolCallTimedOut
            | Kind::ToolCallCancelled
            | Kind::ToolCallInterrupted => terminal(failure),
            other => golden(other),
        }
    }

    #[test]
    fn every_type_has_a_row_that_gives_its_body_back() {
        for &kind in Kind::ALL {
            let personal = Personal { user_name: Some("zo\u{e9} \u{0}".into()), ..Personal::default() };
            let item = item(&one_of(kind), &personal);
            let (event, person) = rows(LogId(Uuid::from_u128(6)), &item).unwrap();
            let body = [&event.body_head, person.personal_token.as_ref().unwrap(), &event.body_tail];
            assert_eq!(body.map(String::as_str).concat().as_bytes(), &item.stored.frame.body[..], "{kind}");
            assert_eq!((event.event_kind.as_str(), event.tenant.as_str()), (kind.name(), "acme"));
            assert_eq!(event.event_type, kind.type_name());
            let key = (person.log_id, &person.topic, person.partition, person.position, person.recorded_at);
            assert_eq!(key, (event.log_id, &event.topic, event.partition, event.position, event.recorded_at));
            assert_eq!(person.user_id.as_deref(), Some("zo\u{e9} \u{fffd}"));
            let is_call = matches!(kind, Kind::ToolCallRequested | Kind::ToolCallLate) || kind.is_terminal();
            assert_eq!(event.call_id.is_some(), is_call, "{kind}");
            let success = match kind {
                Kind::ToolCallCompleted => Some(true),
                Kind::AuthFailed | Kind::RequestRefused => Some(false),
                // What came late is told of, and whether it would have been a success.
                Kind::ToolCallLate => Some(event.error_code.is_none()),
                kind if kind.is_terminal() => Some(false),
                _ => None,
            };
            assert_eq!(event.success, success, "{kind}");
        }
    }

    #[test]
    fn counts_and_text_out_of_range_are_bounded() {
        let (event, person) =
            rows(LogId(Uuid::nil()), &item(&one_of(Kind::ToolCallFailed), &Personal::default())).unwrap();
        assert_eq!(event.arguments_bytes, Some(i64::MAX));
        assert_eq!(event.request_id.as_deref(), Some("\"a\u{fffd}\""));
        assert_eq!(
            (event.error_category.as_deref(), event.error_code.as_deref()),
            (Some("timeout"), Some("deadline"))
        );
        assert_eq!(person.user_id.as_deref(), Some("sub"));
    }

    #[test]
    fn what_has_no_place_in_postgres_has_no_row() {
        let log = LogId(Uuid::nil());
        let mut early = item(&one_of(Kind::SystemStopping), &Personal::default());
        early.stored.frame.recorded_at = Timestamp::from_micros(-1);
        let refused = rows(log, &early).unwrap_err();
        assert_eq!(refused.0, "recorded at 1969-12-31T23:59:59.999999Z is out of range");
        assert_eq!(month_of(Timestamp::from_micros(-1)), None);
        let mut foreign = item(&one_of(Kind::SystemStopping), &Personal::default());
        foreign.decoded.source = "urn:annals:".into();
        assert_eq!(rows(log, &foreign).unwrap_err().0, "the source \"urn:annals:\" names no tenant");
        let mut far = item(&one_of(Kind::SystemStopping), &Personal::default());
        far.stored.position = Position(u64::MAX);
        assert_eq!(rows(log, &far).unwrap_err().0, "position is out of range");
    }

    #[test]
    fn months_are_those_of_utc() {
        assert_eq!(month_of("2025-12-31T23:59:59.999999Z".parse().unwrap()), Some((2025, 12)));
        assert_eq!(month_of("2025-12-31T23:30:00-01:00".parse().unwrap()), Some((2026, 1)));
    }
}
