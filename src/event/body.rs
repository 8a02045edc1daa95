//! Building an event's body once, and reading it back without losing a byte.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::facts::{AckCheck, AckClass, Gap, Retention, Started, Stopping, SystemCheckpoint, Terminal};
use super::facts::{AuditQueried, AuthFailed, Common, Facts, KeyCreated, KeyRevoked, LaneClosed, Requested};
use super::facts::{BackupTaken, LogAdopted, RequestRefused, SessionEnded, SessionStarted};
use super::upcast::{self, Older};
use super::{Kind, Personal, PersonalAlg, StoredType, Topic, TopicPartition, UnknownKind, partition_of};
use crate::base::{Timestamp, sha256_hex};
use crate::redact::{Redactor, Scope, Secrets, Unreadable};

/// The most bytes a body may have, so that no log engine refuses it by size.
pub const BODY_BYTES_MAX: usize = 256 * 1024;

/// Stands in a stored body head for the token of `personal.bytes`, once that was erased.
pub const TOKEN_ABSENT: &str = "null";

/// What is the same in all events of one process.
#[derive(Debug, Clone)]
pub struct Draft {
    /// CloudEvents `source`: `urn:annals:<tenant>`.
    pub source: String,
    /// The process start.
    pub incarnation: Uuid,
    /// What an ack of the log means.
    pub ack: AckClass,
    /// How far that is known.
    pub ack_check: AckCheck,
    /// Takes secrets out of every event that is built: nothing is recorded past it.
    pub redactor: Arc<Redactor>,
}

/// An event ready to be recorded: its body is final.
#[derive(Debug, Clone)]
pub struct Event {
    /// Topic and partition of its key.
    pub target: TopicPartition,
    /// CloudEvents `id`.
    pub id: Uuid,
    /// The JSON bytes.
    pub body: Bytes,
}

/// An event as a row of the outbox carries it.
#[derive(Debug, Clone)]
pub struct Sealed {
    /// The event.
    pub event: Event,
    /// The key its partition came from.
    pub key: String,
}

/// An event cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Over [`BODY_BYTES_MAX`].
    #[error("the event body has {bytes} bytes, the limit is {BODY_BYTES_MAX}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// A value has no JSON form.
    #[error("the event has no JSON form")]
    Json(#[from] serde_json::Error),
    /// Its facts cannot be looked at for secrets.
    #[error("the event's facts cannot be looked at for secrets")]
    Unreadable(#[from] Unreadable),
}

#[derive(Serialize)]
struct Envelope<'a> {
    specversion: &'a str,
    id: Uuid,
    source: &'a str,
    r#type: &'a str,
    time: Timestamp,
    datacontenttype: &'a str,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    facts: &'a RawValue,
    personal: PersonalEnvelope<'a>,
}

#[derive(Serialize)]
struct WithCommon<'a, F> {
    #[serde(flatten)]
    common: &'a Common,
    #[serde(flatten)]
    facts: &'a F,
}

#[derive(Serialize)]
struct PersonalEnvelope<'a> {
    alg: PersonalAlg,
    key_id: Option<&'a str>,
    bytes: &'a str,
}

impl Draft {
    /// Builds the event: `occurred_at` becomes CloudEvents `time`, `key` decides the partition.
    ///
    /// # Errors
    /// [`BuildError::TooLarge`] when the caller did not keep its fields small enough.
    pub fn build(
        &self,
        occurred_at: Timestamp,
        key: &str,
        facts: &Facts,
        personal: &Personal,
    ) -> Result<Event, BuildError> {
        self.build_as(crate::base::uuid_v7(occurred_at), occurred_at, key, facts, personal, false)
    }

    /// As [`Draft::build`], for an event that may land twice: it carries `once`.
    ///
    /// # Errors
    /// As [`Draft::build`].
    pub fn build_once(
        &self,
        occurred_at: Timestamp,
        key: &str,
        facts: &Facts,
        personal: &Personal,
    ) -> Result<Sealed, BuildError> {
        let event =
            self.build_as(crate::base::uuid_v7(occurred_at), occurred_at, key, facts, personal, true)?;
        Ok(Sealed { event, key: key.to_owned() })
    }

    fn build_as(
        &self,
        id: Uuid,
        occurred_at: Timestamp,
        key: &str,
        facts: &Facts,
        personal: &Personal,
        once: bool,
    ) -> Result<Event, BuildError> {
        let target = TopicPartition { topic: facts.kind().topic(), partition: partition_of(key) };
        let personal = serde_json::to_string(&self.redacted(personal))?;
        self.build_on((id, occurred_at, once), target, facts, &personal, Some(&self.redactor))
    }

    /// `redactor` looks at the facts; `personal` is what it is to be already.
    fn build_on(
        &self,
        (id, occurred_at, once): (Uuid, Timestamp, bool),
        target: TopicPartition,
        facts: &Facts,
        personal: &str,
        redactor: Option<&Redactor>,
    ) -> Result<Event, BuildError> {
        let common = Common {
            incarnation: self.incarnation,
            ack: self.ack,
            ack_check: self.ack_check,
            personal_sha256: sha256_hex(personal.as_bytes()),
            once,
        };
        let kind = facts.kind();
        let write = Write { draft: self, id, time: occurred_at, kind, common: &common, personal, redactor };
        let body = match facts {
            Facts::Requested(facts) => write.with(facts),
            Facts::Terminal(_, facts) => write.with(facts),
            Facts::RequestRefused(facts) => write.with(facts),
            Facts::SessionStarted(facts) => write.with(facts),
            Facts::SessionEnded(facts) => write.with(facts),
            Facts::AuthFailed(facts) => write.with(facts),
            Facts::KeyCreated(facts) => write.with(facts),
            Facts::KeyRevoked(facts) => write.with(facts),
            Facts::AuditQueried(facts) => write.with(facts),
            Facts::BackupTaken(facts) => write.with(facts),
            Facts::LogAdopted(facts) => write.with(facts),
            Facts::Started(facts) => write.with(facts),
            Facts::Stopping(facts) => write.with(facts),
            Facts::LaneClosed(facts) => write.with(facts),
            Facts::Checkpoint(facts) => write.with(facts),
            Facts::Retention(facts) => write.with(facts),
            Facts::Gap(facts) => write.with(facts),
        }?;
        if body.len() > BODY_BYTES_MAX {
            return Err(BuildError::TooLarge { bytes: body.len() });
        }
        Ok(Event { target, id, body: body.into() })
    }
}

/// An event with an id that follows from what it says, on a partition that is known; it may land twice. It is made of what
/// is recorded already, so there is nothing left to redact, and its bytes depend on no key.
pub(super) fn build_at(
    draft: &Draft,
    id: Uuid,
    occurred_at: Timestamp,
    target: TopicPartition,
    facts: &Facts,
    personal: &Personal,
) -> Result<Event, BuildError> {
    let personal = serde_json::to_string(personal)?;
    draft.build_on((id, occurred_at, true), target, facts, &personal, None)
}

impl Draft {
    /// `personal` without secrets, whoever put it together: every field, and a new one must be named here.
    fn redacted(&self, personal: &Personal) -> Personal {
        let text = |text: &Option<String>| {
            text.as_deref().map(|text| self.redactor.text(text, &mut Secrets::default()))
        };
        let json = |raw: &Option<Box<RawValue>>| {
            raw.as_deref().map(|raw| self.redactor.json(raw, &Scope::default(), &mut Secrets::default()))
        };
        let Personal {
            user_name,
            client_ip,
            user_agent,
            purpose,
            arguments,
            error_message,
            asserted,
            object_name,
            query,
            result,
        } = personal;
        Personal {
            user_name: text(user_name),
            client_ip: text(client_ip),
            user_agent: text(user_agent),
            purpose: text(purpose),
            arguments: json(arguments),
            error_message: text(error_message),
            asserted: json(asserted),
            object_name: text(object_name),
            query: json(query),
            result: json(result),
        }
    }
}

struct Write<'a> {
    draft: &'a Draft,
    id: Uuid,
    time: Timestamp,
    kind: Kind,
    common: &'a Common,
    personal: &'a str,
    redactor: Option<&'a Redactor>,
}

impl Write<'_> {
    fn with<F: Serialize>(&self, facts: &F) -> Result<Vec<u8>, BuildError> {
        let facts = serde_json::to_string(&WithCommon { common: self.common, facts })?;
        let facts = match self.redactor {
            Some(redactor) => redactor.strings(&facts)?,
            None => facts,
        };
        let facts = RawValue::from_string(facts)?;
        let body = serde_json::to_vec(&Envelope {
            specversion: "1.0",
            id: self.id,
            source: &self.draft.source,
            r#type: self.kind.type_name(),
            time: self.time,
            datacontenttype: "application/json",
            data: Data {
                facts: &facts,
                personal: PersonalEnvelope { alg: PersonalAlg::None, key_id: None, bytes: self.personal },
            },
        })?;
        Ok(body)
    }
}

/// A body cannot be read. Such events are parked with this text; nothing else is lost.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not the JSON of an event.
    #[error("not an event: {0}")]
    Json(#[from] serde_json::Error),
    /// A type that this version does not know.
    #[error(transparent)]
    Kind(#[from] UnknownKind),
    /// A newer version of a type: what it says is not guessed.
    #[error("{stored} is newer than v{newest}, the newest that this version of Annals reads", newest = stored.kind.version())]
    Newer {
        /// The type and version.
        stored: StoredType,
    },
    /// An older version of a type that never was, or that nothing here reads any more.
    #[error("{stored} is older than what this version of Annals reads")]
    Older {
        /// The type and version.
        stored: StoredType,
    },
    /// The type belongs to another topic.
    #[error("{kind} does not belong on {topic}")]
    Topic {
        /// The event's type.
        kind: Kind,
        /// Where it was found.
        topic: Topic,
    },
    /// `personal.bytes` is not what the facts commit to.
    #[error("the personal part does not match its digest")]
    Personal,
}

/// A body that was read.
#[derive(Debug, Clone)]
pub struct Decoded {
    /// CloudEvents `id`.
    pub id: Uuid,
    /// CloudEvents `source`.
    pub source: String,
    /// The type.
    pub kind: Kind,
    /// The version it is stored in. Facts and personal part are those of the current one.
    pub version: u32,
    /// CloudEvents `time`.
    pub occurred_at: Timestamp,
    /// What every event says.
    pub common: Common,
    /// What this type says.
    pub facts: Facts,
    /// The personal part; `None` when its JSON text cannot be read (the raw token below still has it).
    pub personal: Option<Personal>,
    /// Where the JSON string token of `personal.bytes` stands in the body: `body[token]` is exact.
    pub token: std::ops::Range<usize>,
}

#[derive(Deserialize)]
struct ReadEnvelope<'a> {
    id: Uuid,
    source: String,
    r#type: String,
    time: Timestamp,
    #[serde(borrow)]
    data: ReadData<'a>,
}

#[derive(Deserialize)]
struct ReadData<'a> {
    #[serde(borrow)]
    facts: &'a RawValue,
    #[serde(borrow)]
    personal: ReadPersonal<'a>,
}

#[derive(Deserialize)]
struct ReadPersonal<'a> {
    #[serde(borrow)]
    bytes: &'a RawValue,
}

impl Decoded {
    /// The CloudEvents `type` as stored.
    #[must_use]
    pub fn type_name(&self) -> String {
        StoredType { kind: self.kind, version: self.version }.to_string()
    }

    /// Reads `body`, found on `topic`. An older version of its type is read as the current one.
    ///
    /// # Errors
    /// [`DecodeError`] says what is wrong with it.
    pub fn read(topic: Topic, body: &[u8]) -> Result<Self, DecodeError> {
        Self::read_with(topic, body, false)
    }

    /// As [`Decoded::read`], also of a body whose personal part was erased: then it has none.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn read_erasable(topic: Topic, body: &[u8]) -> Result<Self, DecodeError> {
        Self::read_with(topic, body, true)
    }

    fn read_with(topic: Topic, body: &[u8], erasable: bool) -> Result<Self, DecodeError> {
        let envelope: ReadEnvelope<'_> = serde_json::from_slice(body)?;
        let stored: StoredType = envelope.r#type.parse()?;
        let StoredType { kind, version } = stored;
        if kind.topic() != topic {
            return Err(DecodeError::Topic { kind, topic });
        }
        if version > kind.version() {
            return Err(DecodeError::Newer { stored });
        }
        let token = envelope.data.personal.bytes.get();
        let text: Option<String> = match token {
            TOKEN_ABSENT if erasable => None,
            token => Some(serde_json::from_str(token)?),
        };
        let Current { facts: raw_facts, personal } =
            current(stored, envelope.data.facts.get(), text.as_deref().unwrap_or("{}"))?;
        let common: Common = serde_json::from_str(&raw_facts)?;
        let facts = read_facts(kind, &raw_facts)?;
        if text.as_ref().is_some_and(|text| sha256_hex(text.as_bytes()) != common.personal_sha256) {
            return Err(DecodeError::Personal);
        }
        let start = token.as_ptr().addr() - body.as_ptr().addr();
        Ok(Self {
            id: envelope.id,
            source: envelope.source,
            kind,
            version,
            occurred_at: envelope.time,
            common,
            facts,
            personal: text.as_ref().and_then(|_| serde_json::from_str(&personal).ok()),
            token: start..start + token.len(),
        })
    }
}

/// Facts and personal part in the current version, as JSON texts.
struct Current<'a> {
    facts: Cow<'a, str>,
    personal: Cow<'a, str>,
}

fn current<'a>(stored: StoredType, facts: &'a str, personal: &'a str) -> Result<Current<'a>, DecodeError> {
    let StoredType { kind, version } = stored;
    if version == kind.version() {
        return Ok(Current { facts: facts.into(), personal: personal.into() });
    }
    if !upcast::reaches(kind, version) {
        return Err(DecodeError::Older { stored });
    }
    let mut older =
        Older { facts: serde_json::from_str(facts)?, personal: serde_json::from_str(personal).ok() };
    upcast::upcast(kind, version, &mut older);
    let facts = serde_json::to_string(&older.facts)?.into();
    let personal = match &older.personal {
        Some(members) => serde_json::to_string(members)?.into(),
        None => personal.into(),
    };
    Ok(Current { facts, personal })
}

fn read_facts(kind: Kind, raw: &str) -> Result<Facts, serde_json::Error> {
    Ok(match kind {
        Kind::ToolCallRequested => Facts::Requested(serde_json::from_str::<Requested>(raw)?),
        Kind::ToolCallCompleted
        | Kind::ToolCallFailed
        | Kind::ToolCallDenied
        | Kind::ToolCallTimedOut
        | Kind::ToolCallCancelled
        | Kind::ToolCallInterrupted
        | Kind::ToolCallLate => Facts::Terminal(kind, serde_json::from_str::<Terminal>(raw)?),
        Kind::RequestRefused => Facts::RequestRefused(serde_json::from_str::<RequestRefused>(raw)?),
        Kind::SessionStarted => Facts::SessionStarted(serde_json::from_str::<SessionStarted>(raw)?),
        Kind::SessionEnded => Facts::SessionEnded(serde_json::from_str::<SessionEnded>(raw)?),
        Kind::AuthFailed => Facts::AuthFailed(serde_json::from_str::<AuthFailed>(raw)?),
        Kind::AdminKeyCreated => Facts::KeyCreated(serde_json::from_str::<KeyCreated>(raw)?),
        Kind::AdminKeyRevoked => Facts::KeyRevoked(serde_json::from_str::<KeyRevoked>(raw)?),
        Kind::AdminAuditQueried => Facts::AuditQueried(serde_json::from_str::<AuditQueried>(raw)?),
        Kind::AdminBackupTaken => Facts::BackupTaken(serde_json::from_str::<BackupTaken>(raw)?),
        Kind::AdminLogAdopted => Facts::LogAdopted(serde_json::from_str::<LogAdopted>(raw)?),
        Kind::SystemStarted => Facts::Started(serde_json::from_str::<Started>(raw)?),
        Kind::SystemStopping => Facts::Stopping(serde_json::from_str::<Stopping>(raw)?),
        Kind::SystemLaneClosed => Facts::LaneClosed(serde_json::from_str::<LaneClosed>(raw)?),
        Kind::SystemCheckpoint => Facts::Checkpoint(serde_json::from_str::<SystemCheckpoint>(raw)?),
        Kind::SystemRetention => Facts::Retention(serde_json::from_str::<Retention>(raw)?),
        Kind::SystemGap => Facts::Gap(serde_json::from_str::<Gap>(raw)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> Draft {
        Draft {
            source: "urn:annals:default".into(),
            incarnation: Uuid::from_u128(7),
            ack: AckClass::Fsync,
            ack_check: AckCheck::Verified,
            redactor: Redactor::shared(),
        }
    }

    fn at() -> Timestamp {
        Timestamp::from_micros(1_764_521_228_000_042)
    }

    #[test]
    fn a_built_event_reads_back_with_its_exact_personal_token() {
        let facts = Facts::Stopping(Stopping { reason: "signal".into() });
        let personal = Personal { user_name: Some("zoë \"q\" \u{0}".into()), ..Personal::default() };
        let event = draft().build(at(), "k", &facts, &personal).unwrap();
        let read = Decoded::read(Topic::System, &event.body).unwrap();
        assert_eq!((read.id, read.kind, read.occurred_at), (event.id, Kind::SystemStopping, at()));
        assert_eq!(read.facts, facts);
        let token = std::str::from_utf8(&event.body[read.token.clone()]).unwrap();
        let text: String = serde_json::from_str(token).unwrap();
        assert_eq!(text, serde_json::to_string(&personal).unwrap());
        assert_eq!(read.personal.unwrap().user_name, personal.user_name);
        assert_eq!(read.common.personal_sha256, sha256_hex(text.as_bytes()));
    }

    #[test]
    fn a_changed_personal_part_is_noticed() {
        let facts = Facts::Stopping(Stopping { reason: "signal".into() });
        let personal = Personal { user_name: Some("ursula".into()), ..Personal::default() };
        let event = draft().build(at(), "k", &facts, &personal).unwrap();
        let body = String::from_utf8(event.body.to_vec()).unwrap().replace("ursula", "ulrike");
        assert!(matches!(Decoded::read(Topic::System, body.as_bytes()), Err(DecodeError::Personal)));
    }

    fn golden(name: &str) -> Vec<u8> {
        std::fs::read(format!("{}/tests/golden/event/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    #[test]
    fn an_older_version_reads_as_the_current_one_and_its_bytes_stay() {
        let body = golden("tool_call.denied.v0.json");
        let read = Decoded::read(Topic::ToolCalls, &body).unwrap();
        assert_eq!((read.kind, read.version), (Kind::ToolCallDenied, 0));
        assert_eq!(read.type_name(), "annals.tool_call.denied.v0");
        // What its digest covers is the text as stored.
        let token: String = serde_json::from_slice(&body[read.token.clone()]).unwrap();
        assert_eq!(sha256_hex(token.as_bytes()), read.common.personal_sha256);
        let Facts::Terminal(_, facts) = &read.facts else { panic!("{:?}", read.facts) };
        let shown = serde_json::json!({ "common": read.common, "facts": facts, "personal": read.personal });
        let expected: serde_json::Value =
            serde_json::from_slice(&golden("tool_call.denied.v0.upcast.json")).unwrap();
        assert_eq!(shown, expected);
        let current = Decoded::read(Topic::ToolCalls, &golden("tool_call.denied.v1.json")).unwrap();
        assert_eq!(read.facts, current.facts);
        let text = |read: &Decoded| serde_json::to_string(&read.personal).unwrap();
        assert_eq!(text(&read), text(&current));
    }

    #[test]
    fn a_version_that_is_not_known_is_named_and_never_guessed() {
        let text = String::from_utf8(golden("system.gap.v1.json")).unwrap();
        for (version, why) in [
            ("v2", "annals.system.gap.v2 is newer than v1, the newest that this version of Annals reads"),
            ("v0", "annals.system.gap.v0 is older than what this version of Annals reads"),
            ("v01", "unknown event type \"annals.system.gap.v01\""),
        ] {
            let other = text.replace("annals.system.gap.v1", &format!("annals.system.gap.{version}"));
            let error = Decoded::read(Topic::System, other.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), why);
        }
    }

    #[test]
    fn an_event_on_the_wrong_topic_is_refused() {
        let facts = Facts::Stopping(Stopping { reason: "signal".into() });
        let event = draft().build(at(), "k", &facts, &Personal::default()).unwrap();
        assert!(matches!(
            Decoded::read(Topic::Admin, &event.body),
            Err(DecodeError::Topic { kind: Kind::SystemStopping, topic: Topic::Admin })
        ));
    }

    #[test]
    fn no_event_is_built_past_the_redactor() {
        let facts = Facts::Stopping(Stopping { reason: "password=hunter22".into() });
        let arguments = RawValue::from_string(r#"{"deep":[{"api_key":"hunter23"}]}"#.into()).unwrap();
        let personal = Personal {
            user_agent: Some("agent Bearer hunter24hunter24".into()),
            arguments: Some(arguments),
            ..Personal::default()
        };
        let event = draft().build(at(), "k", &facts, &personal).unwrap();
        let body = String::from_utf8(event.body.to_vec()).unwrap();
        assert!(!body.contains("hunter2"), "{body}");
        let read = Decoded::read(Topic::System, &event.body).unwrap();
        let Facts::Stopping(stopping) = read.facts else { panic!("{:?}", read.facts) };
        assert!(stopping.reason.starts_with("password=[redacted:password:hmac:"), "{}", stopping.reason);
        assert!(
            read.personal.unwrap().user_agent.unwrap().starts_with("agent Bearer [redacted:bearer:hmac:")
        );
    }

    #[test]
    fn a_field_that_cannot_be_looked_at_is_left_out() {
        let facts = Facts::Stopping(Stopping { reason: "signal".into() });
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        let personal = Personal {
            user_name: Some("ann".into()),
            arguments: Some(RawValue::from_string(deep).unwrap()),
            ..Personal::default()
        };
        let event = draft().build(at(), "k", &facts, &personal).unwrap();
        let read = Decoded::read(Topic::System, &event.body).unwrap().personal.unwrap();
        assert_eq!(read.user_name.as_deref(), Some("ann"));
        assert_eq!(read.arguments.unwrap().get(), "\"[redacted:unreadable]\"");
    }

    #[test]
    fn a_body_over_the_limit_is_refused_before_the_lane() {
        let facts = Facts::Stopping(Stopping { reason: "x".repeat(BODY_BYTES_MAX) });
        let error = draft().build(at(), "k", &facts, &Personal::default()).unwrap_err();
        assert!(matches!(error, BuildError::TooLarge { bytes } if bytes > BODY_BYTES_MAX));
    }
}
