//! What an event looks like to those who read the audit: the column names of `audit_logs`, and for a single event its
//! whole body with what proves its place in the log.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use sqlx::FromRow;
use sqlx::types::Json;
use time::{Date, OffsetDateTime};
use uuid::Uuid;

use super::cursor::Cursor;
use crate::base::Timestamp;
use crate::event::TOKEN_ABSENT;

macro_rules! listed {
    () => {
        "event_id, event_kind::text, recorded_at, id::text, \"timestamp\", duration_ms::int8, request_id::text, \
         user_id::text, user_email::text, subject_id::text, persona::text, tool_name::text, toolkit_kind::text, \
         toolkit_name::text, connection::text, parameters, success, error_message::text, error_category::text, \
         error_code::text, created_date, response_chars::int8, request_chars::int8, content_blocks::int8, \
         session_id::text, transport::text, source::text, enrichment_applied, authorized, \
         enrichment_tokens_full::int8, enrichment_tokens_dedup::int8, enrichment_mode::text, \
         enrichment_match_kind::text, purpose::text, client_ip::text, user_agent::text, \
         effect::text, trace_id::text, log_id, topic::text, partition, position"
    };
}

/// The columns of a [`ListedRow`].
pub(super) const LISTED_COLUMNS: &str = listed!();
/// The columns of a [`DetailRow`].
pub(super) const DETAIL_COLUMNS: &str = concat!(
    listed!(),
    ", tenant::text, event_type::text, occurred_at, call_id, incarnation, seq, link, content, ack::text, \
     ack_check::text, body_head, body_tail, personal_token"
);

/// One event. Fields that do not apply to its type are null. `id` is the call's id for a call and the event's id
/// otherwise; `timestamp` is when a call was received, and when anything else occurred.
#[derive(Debug, Serialize, FromRow)]
#[expect(
    missing_docs,
    reason = "the names are those of the columns of audit_logs, which docs and clients know"
)]
pub struct EventRow {
    pub id: String,
    pub event_id: Uuid,
    pub event_kind: String,
    #[serde(serialize_with = "time")]
    pub timestamp: OffsetDateTime,
    #[serde(serialize_with = "time")]
    pub recorded_at: OffsetDateTime,
    pub duration_ms: Option<i64>,
    pub request_id: Option<String>,
    pub user_id: Option<String>,
    pub user_email: Option<String>,
    pub subject_id: Option<String>,
    pub persona: Option<String>,
    pub tool_name: Option<String>,
    pub toolkit_kind: Option<String>,
    pub toolkit_name: Option<String>,
    pub connection: Option<String>,
    pub parameters: Option<Json<Box<RawValue>>>,
    pub success: Option<bool>,
    pub error_message: Option<String>,
    pub error_category: Option<String>,
    pub error_code: Option<String>,
    #[serde(serialize_with = "date")]
    pub created_date: Option<Date>,
    pub response_chars: Option<i64>,
    pub request_chars: Option<i64>,
    pub content_blocks: Option<i64>,
    pub session_id: Option<String>,
    pub transport: Option<String>,
    pub source: Option<String>,
    pub enrichment_applied: Option<bool>,
    pub authorized: Option<bool>,
    pub enrichment_tokens_full: Option<i64>,
    pub enrichment_tokens_dedup: Option<i64>,
    pub enrichment_mode: Option<String>,
    pub enrichment_match_kind: Option<String>,
    pub purpose: Option<String>,
    pub client_ip: Option<String>,
    pub user_agent: Option<String>,
    pub effect: Option<String>,
    pub trace_id: Option<String>,
}

impl EventRow {
    /// About how much it holds, bytes.
    pub(super) fn bytes(&self) -> usize {
        let texts = [&self.error_message, &self.purpose, &self.user_agent, &self.tool_name, &self.request_id];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        1_024 + texts + self.parameters.as_ref().map_or(0, |parameters| parameters.0.get().len())
    }
}

/// An event in a listing, with its place there.
pub(super) struct ListedRow {
    pub(super) event: EventRow,
    pub(super) place: Cursor,
}

impl<'r> FromRow<'r, sqlx::postgres::PgRow> for ListedRow {
    fn from_row(row: &'r sqlx::postgres::PgRow) -> Result<Self, sqlx::Error> {
        let event = EventRow::from_row(row)?;
        let raw = Place::from_row(row)?;
        let place = Cursor {
            recorded_at: Timestamp::from_offset(event.recorded_at),
            partition: raw.partition,
            position: raw.position,
            log_id: raw.log_id,
            topic: raw.topic,
        };
        Ok(Self { event, place })
    }
}

#[derive(FromRow)]
struct Place {
    log_id: Uuid,
    topic: String,
    partition: i32,
    position: i64,
}

/// One event, whole.
#[derive(Debug, Serialize)]
pub struct Detail {
    /// As in a listing.
    #[serde(flatten)]
    pub event: EventRow,
    /// The event type with its version.
    pub event_type: String,
    /// The tenant.
    pub tenant: String,
    /// The call it belongs to.
    pub call_id: Option<Uuid>,
    /// The edge's clock.
    #[serde(serialize_with = "time")]
    pub occurred_at: OffsetDateTime,
    /// The event's body, byte for byte as recorded; where `personal_erased`, with `null` in place of what was erased.
    pub body: String,
    /// The same, as JSON.
    pub body_json: Option<Box<RawValue>>,
    /// Whether the personal part was erased; then `body` no longer has the digest `proof.content`.
    pub personal_erased: bool,
    /// What proves its place in the log.
    pub proof: Proof,
}

/// Where an event is in the log, and what its lane says of it. Digests are hexadecimal.
#[derive(Debug, Serialize)]
#[expect(
    missing_docs,
    reason = "the names are those of the log: `crate::log` and `crate::event::link` define each"
)]
pub struct Proof {
    pub log_id: Uuid,
    pub topic: String,
    pub partition: i32,
    pub position: i64,
    pub incarnation: Uuid,
    pub seq: i64,
    #[serde(serialize_with = "time")]
    pub recorded_at: OffsetDateTime,
    pub content: String,
    pub link: String,
    pub ack: String,
    pub ack_check: String,
}

/// An event as `audit_events` has it.
#[derive(FromRow)]
pub(super) struct DetailRow {
    #[sqlx(flatten)]
    event: EventRow,
    #[sqlx(flatten)]
    place: Place,
    tenant: String,
    event_type: String,
    occurred_at: OffsetDateTime,
    call_id: Option<Uuid>,
    incarnation: Uuid,
    seq: i64,
    link: Vec<u8>,
    content: Vec<u8>,
    ack: String,
    ack_check: String,
    body_head: String,
    body_tail: String,
    personal_token: Option<String>,
}

impl From<DetailRow> for Detail {
    fn from(row: DetailRow) -> Self {
        let token = row.personal_token.as_deref().unwrap_or(TOKEN_ABSENT);
        let body = [row.body_head.as_str(), token, row.body_tail.as_str()].concat();
        Self {
            event_type: row.event_type,
            tenant: row.tenant,
            call_id: row.call_id,
            occurred_at: row.occurred_at,
            body_json: RawValue::from_string(body.clone()).ok(),
            body,
            personal_erased: row.personal_token.is_none(),
            proof: Proof {
                log_id: row.place.log_id,
                topic: row.place.topic,
                partition: row.place.partition,
                position: row.place.position,
                incarnation: row.incarnation,
                seq: row.seq,
                recorded_at: row.event.recorded_at,
                content: hex::encode(row.content),
                link: hex::encode(row.link),
                ack: row.ack,
                ack_check: row.ack_check,
            },
            event: row.event,
        }
    }
}

fn time<S: Serializer>(at: &OffsetDateTime, serializer: S) -> Result<S::Ok, S::Error> {
    Timestamp::from_offset(*at).serialize(serializer)
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
fn date<S: Serializer>(date: &Option<Date>, serializer: S) -> Result<S::Ok, S::Error> {
    match date {
        // ISO 8601: a `Date` is written as year-month-day.
        Some(date) => serializer.collect_str(date),
        None => serializer.serialize_none(),
    }
}
