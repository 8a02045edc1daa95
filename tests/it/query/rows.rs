//! Rows of the audit as the projection writes them, put there by hand.
//!
//! The views here are stand-ins over one plain table with the projection's column names and types; a test of the whole
//! path belongs where the projection is.

use annals::base::Timestamp;
use annals::db::{Postgres, Role};
use sqlx::{ConnectOptions, Connection, Executor};
use uuid::Uuid;

/// One row, as far as the tests tell rows apart.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) tenant: &'static str,
    pub(super) topic: &'static str,
    pub(super) partition: i32,
    pub(super) position: i64,
    pub(super) recorded_at: Timestamp,
    pub(super) event_id: Uuid,
    pub(super) call_id: Option<Uuid>,
    pub(super) event_kind: &'static str,
    pub(super) timestamp: Timestamp,
    pub(super) user_id: Option<&'static str>,
    pub(super) persona: Option<&'static str>,
    pub(super) tool_name: Option<&'static str>,
    pub(super) toolkit_kind: Option<&'static str>,
    pub(super) connection: Option<&'static str>,
    pub(super) session_id: Option<&'static str>,
    pub(super) success: Option<bool>,
    pub(super) personal_token: Option<&'static str>,
}

impl Row {
    /// The terminal event of call `n`.
    pub(super) fn call(n: u32) -> Self {
        Self {
            call_id: Some(Uuid::from_u128(u128::from(n))),
            user_id: Some("ann"),
            persona: Some("analyst"),
            tool_name: Some("sql_query"),
            toolkit_kind: Some("sql"),
            connection: Some("sample"),
            session_id: Some("session"),
            success: Some(true),
            ..Self::other(n, "tool_call.completed")
        }
    }

    /// An event that is no call.
    pub(super) fn other(n: u32, event_kind: &'static str) -> Self {
        Self {
            tenant: "default",
            topic: "annals.tool-calls",
            partition: 3,
            position: i64::from(n),
            recorded_at: super::START,
            event_id: Uuid::from_u128(u128::from(n)),
            call_id: None,
            event_kind,
            timestamp: super::START,
            user_id: None,
            persona: None,
            tool_name: None,
            toolkit_kind: None,
            connection: None,
            session_id: None,
            success: None,
            personal_token: Some("\"\\u00e9 and \\\"quotes\\\"\""),
        }
    }
}

pub(super) async fn create_views(postgres: &Postgres) {
    let mut owner = postgres.connect_options(Role::Owner).connect().await.expect("a connection");
    owner.execute(sqlx::raw_sql(VIEWS)).await.expect("the views");
    owner.close().await.expect("a closed connection");
}

pub(super) async fn clear(postgres: &Postgres) {
    let mut owner = postgres.connect_options(Role::Owner).connect().await.expect("a connection");
    owner.execute("TRUNCATE public.test_events").await.expect("an empty table");
    owner.close().await.expect("a closed connection");
}

pub(super) async fn insert(postgres: &Postgres, rows: &[Row]) {
    let mut owner = postgres.connect_options(Role::Owner).connect().await.expect("a connection");
    for row in rows {
        sqlx::query(INSERT)
            .bind(row.tenant)
            .bind(row.topic)
            .bind(row.partition)
            .bind(row.position)
            .bind(row.recorded_at.to_offset())
            .bind(row.event_id)
            .bind(row.call_id)
            .bind(row.event_kind)
            .bind(row.timestamp.to_offset())
            .bind(row.user_id)
            .bind(row.persona)
            .bind(row.tool_name)
            .bind(row.toolkit_kind)
            .bind(row.connection)
            .bind(row.session_id)
            .bind(row.success)
            .bind(row.personal_token)
            .execute(&mut owner)
            .await
            .expect("a row");
    }
    owner.close().await.expect("a closed connection");
}

const VIEWS: &str = "
CREATE TABLE public.test_events (
    log_id uuid NOT NULL, topic text NOT NULL, partition integer NOT NULL, position bigint NOT NULL,
    recorded_at timestamptz NOT NULL, tenant text NOT NULL, event_id uuid NOT NULL, event_kind text NOT NULL,
    event_type text NOT NULL, occurred_at timestamptz NOT NULL, incarnation uuid NOT NULL, seq bigint NOT NULL,
    link bytea NOT NULL, content bytea NOT NULL, ack text NOT NULL, ack_check text NOT NULL,
    body_head text NOT NULL, body_tail text NOT NULL, personal_token text,
    id text NOT NULL, \"timestamp\" timestamptz NOT NULL, duration_ms bigint, request_id text, user_id text,
    user_email text, persona text, tool_name text, toolkit_kind text, toolkit_name text, connection text,
    parameters jsonb, success boolean, error_message text, error_category text, error_code text, created_date date,
    response_chars bigint, request_chars bigint, content_blocks integer, session_id text, transport text, source text,
    enrichment_applied boolean, authorized boolean, enrichment_tokens_full integer, enrichment_tokens_dedup integer,
    enrichment_mode text, enrichment_match_kind text, purpose text, client_ip text, user_agent text, call_id uuid,
    subject_id text);
CREATE VIEW public.audit_events AS SELECT * FROM public.test_events;
CREATE VIEW public.audit_logs AS
    SELECT * FROM public.test_events WHERE event_kind LIKE 'tool_call.%' AND event_kind <> 'tool_call.requested';
REVOKE ALL ON public.test_events FROM annals_auditor;
";

const INSERT: &str = r#"
INSERT INTO public.test_events
SELECT '00000000-0000-0000-0000-000000000001', $2, $3, $4, $5, $1, $6, $8, 'annals.' || $8 || '.v1', $9,
       '00000000-0000-0000-0000-000000000002', $4, decode(repeat('22', 32), 'hex'), decode(repeat('11', 32), 'hex'),
       'fsync', 'verified', '{"z": 1,  "personal":', '}', $17, COALESCE($7, $6)::text, $9,
       CASE WHEN c THEN 12 END, CASE WHEN c THEN '1' END, $10, NULL, $11, $12, $13, NULL, $14,
       CASE WHEN c THEN '{"sql": "SELECT 1"}'::jsonb END, $16, NULL, NULL, NULL, ($9 AT TIME ZONE 'UTC')::date,
       CASE WHEN c THEN 2 END, CASE WHEN c THEN 3 END, CASE WHEN c THEN 1 END, $15, CASE WHEN c THEN 'http' END,
       CASE WHEN c THEN 'mcp' END, CASE WHEN c THEN false END, CASE WHEN c THEN true END,
       CASE WHEN c THEN 0 END, CASE WHEN c THEN 0 END, NULL, NULL, CASE WHEN c THEN 'why' END,
       CASE WHEN c THEN '127.0.0.1' END, CASE WHEN c THEN 'test' END, $7, CASE WHEN c THEN 'subject' END
FROM (SELECT $7::uuid IS NOT NULL AS c) AS is_call
"#;
