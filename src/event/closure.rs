//! The event that closes a call of which nobody can say any more how it ended.
//!
//! A function of the intent alone: whoever closes the call writes the same bytes, and nothing of the closer is in them.

use uuid::Uuid;

use super::body::{self, BuildError, DecodeError, Decoded, Draft, Event};
use super::{Effect, Facts, Failure, Kind, Outcome, Personal, TopicPartition};
use crate::base::Category;
use crate::event::Terminal;
use crate::redact::Redactor;

/// The error code of every closure.
pub const INTERRUPTED: &str = "interrupted";

/// What a closure says to people.
const MESSAGE: &str = "How the call ended was not recorded; it may have had an effect.";

/// A call cannot be closed.
#[derive(Debug, thiserror::Error)]
pub enum ClosureError {
    /// The intent cannot be read.
    #[error("the intent cannot be read: {0}")]
    Intent(#[from] DecodeError),
    /// It is no intent.
    #[error("{0} is no intent")]
    NotAnIntent(Kind),
    /// The closure has no form.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// The id of the event that closes `call_id`.
#[must_use]
pub fn closure_id(call_id: Uuid) -> Uuid {
    Uuid::new_v5(&call_id, Kind::ToolCallInterrupted.name().as_bytes())
}

/// The closure of the call that the intent in `body` on `target` began. Where the personal part was erased (its token is
/// `null`), that of the closure is empty.
///
/// # Errors
/// [`ClosureError`] when `body` is not an intent.
pub fn closure(target: TopicPartition, body: &[u8]) -> Result<Event, ClosureError> {
    let Decoded { source, common, occurred_at: _, facts, personal, kind, .. } =
        Decoded::read_erasable(target.topic, body)?;
    let Facts::Requested(intent) = facts else { return Err(ClosureError::NotAnIntent(kind)) };
    let outcome = Outcome {
        duration_ms: intent.deadline.millis_since(intent.call.received_at),
        response_bytes: 0,
        response_chars: 0,
        content_blocks: 0,
        result_hmac: None,
        error: Some(Failure { category: Category::Internal, code: INTERRUPTED.into() }),
        effect: Some(Effect::Unknown),
    };
    let personal = personal.map_or_else(Personal::default, |personal| Personal {
        error_message: Some(MESSAGE.into()),
        ..personal
    });
    let draft = Draft {
        source,
        incarnation: common.incarnation,
        ack: common.ack,
        ack_check: common.ack_check,
        redactor: Redactor::shared(),
    };
    let id = closure_id(intent.call.call_id);
    let deadline = intent.deadline;
    let facts =
        Facts::Terminal(Kind::ToolCallInterrupted, Terminal { call: intent.call, authorized: true, outcome });
    Ok(body::build_at(&draft, id, deadline, target, &facts, &personal)?)
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::base::Timestamp;
    use crate::event::{
        AckCheck, AckClass, ArgumentsLevel, AuthMethod, Call, Requested, TOKEN_ABSENT, Topic, Transport,
        partition_of,
    };

    fn at() -> Timestamp {
        Timestamp::from_micros(1_764_521_228_000_042)
    }

    fn intent() -> (Event, Requested) {
        let draft = Draft {
            source: "urn:annals:acme".into(),
            incarnation: Uuid::from_u128(7),
            ack: AckClass::Fsync,
            ack_check: AckCheck::Verified,
            redactor: Redactor::shared(),
        };
        let call = Call {
            call_id: Uuid::from_u128(77),
            received_at: at(),
            subject_id: "sub".into(),
            auth_method: AuthMethod::ApiKey,
            key_id: None,
            persona: "admin".into(),
            request_id: "1".into(),
            session_id: Some("s".into()),
            transport: Transport::Http,
            protocol_version: "2025-11-25".into(),
            source: "mcp".into(),
            tool_name: "sql_query".into(),
            toolkit_kind: None,
            connection: None,
            definition_sha256: None,
            trace_id: None,
            arguments_level: ArgumentsLevel::Arguments,
            arguments_hmac: Some("00".into()),
            digest_key_id: "k".into(),
            redactions: 0,
            arguments_bytes: 9,
        };
        let requested = Requested { call, deadline: at().plus_micros(30_000_000) };
        let personal = Personal {
            user_name: Some("ann".into()),
            purpose: Some("to see".into()),
            arguments: Some(RawValue::from_string(r#"{"a":1.50}"#.into()).unwrap()),
            ..Personal::default()
        };
        let event = draft.build(at(), "s", &Facts::Requested(requested.clone()), &personal).unwrap();
        (event, requested)
    }

    #[test]
    fn a_closure_is_made_of_the_intent_alone() {
        let (event, requested) = intent();
        let closed = closure(event.target, &event.body).unwrap();
        assert_eq!(closure(event.target, &event.body).unwrap().body, closed.body);
        assert_eq!(
            closed.target,
            TopicPartition { topic: Topic::ToolCalls, partition: partition_of("s") },
            "where the intent stands"
        );
        let read = Decoded::read(Topic::ToolCalls, &closed.body).unwrap();
        assert_eq!((read.id, closed.id), (closure_id(Uuid::from_u128(77)), read.id));
        assert_eq!(read.id.get_version_num(), 5);
        assert_eq!((read.occurred_at, read.common.incarnation), (requested.deadline, Uuid::from_u128(7)));
        assert!(read.common.once);
        let Facts::Terminal(Kind::ToolCallInterrupted, terminal) = read.facts else {
            panic!("{:?}", read.facts)
        };
        assert_eq!(terminal.call, requested.call);
        assert_eq!(terminal.outcome.effect, Some(Effect::Unknown));
        let failure = Failure { category: Category::Internal, code: "interrupted".into() };
        assert_eq!((terminal.outcome.error, terminal.outcome.duration_ms), (Some(failure), 30_000));
        let personal = read.personal.unwrap();
        assert_eq!(
            (personal.user_name.as_deref(), personal.purpose.as_deref()),
            (Some("ann"), Some("to see"))
        );
        assert_eq!(personal.arguments.unwrap().get(), r#"{"a":1.50}"#);
    }

    #[test]
    fn what_was_erased_stays_erased_in_the_closure() {
        let (event, requested) = intent();
        let token = Decoded::read(Topic::ToolCalls, &event.body).unwrap().token;
        let body = [&event.body[..token.start], TOKEN_ABSENT.as_bytes(), &event.body[token.end..]].concat();
        let closed = closure(event.target, &body).unwrap();
        let text = String::from_utf8(closed.body.to_vec()).unwrap();
        assert!(!text.contains("ann\\") && !text.contains("to see"), "{text}");
        let read = Decoded::read(Topic::ToolCalls, &closed.body).unwrap();
        let Facts::Terminal(_, terminal) = read.facts else { panic!("{:?}", read.facts) };
        assert_eq!(terminal.call, requested.call);
        assert!(matches!(Decoded::read(Topic::ToolCalls, &body), Err(DecodeError::Json(_))));
    }

    #[test]
    fn only_an_intent_is_closed() {
        let (event, _) = intent();
        let closed = closure(event.target, &event.body).unwrap();
        let refused = closure(event.target, &closed.body).unwrap_err();
        assert_eq!(refused.to_string(), "tool_call.interrupted is no intent");
    }
}
