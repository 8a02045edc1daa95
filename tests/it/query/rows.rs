//! Rows in the audit projection's own tables, put there by hand: a test here is about reading them.

use annals::base::Timestamp;
use annals::db::{Postgres, Role};
use annals::projection::Projection;
use annals::projection::audit::Audit;
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
    pub(super) trace_id: Option<&'static str>,
    pub(super) success: Option<bool>,
    pub(super) error_category: Option<&'static str>,
    pub(super) error_code: Option<&'static str>,
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
            trace_id: None,
            success: None,
            error_category: None,
            error_code: None,
            personal_token: Some("\"\\u00e9 and \\\"quotes\\\"\""),
        }
    }
}

/// The projection's schema and views.
pub(super) async fn install(postgres: &Postgres) {
    let owner = postgres.pool(Role::Owner);
    Audit::new().install(&owner).await.expect("the projection's schema");
    owner.close().await;
}

pub(super) async fn clear(postgres: &Postgres) {
    let mut owner = postgres.connect_options(Role::Owner).connect().await.expect("a connection");
    owner.execute("TRUNCATE audit_v1.audit_events, audit_v1.audit_personal").await.expect("an empty table");
    owner.close().await.expect("a closed connection");
}

pub(super) async fn insert(postgres: &Postgres, rows: &[Row]) {
    let mut writer = postgres.connect_options(Role::Writer).connect().await.expect("a connection");
    for row in rows {
        sqlx::query("SELECT audit_v1.ensure_month($1)")
            .bind(row.recorded_at.to_offset())
            .execute(&mut writer)
            .await
            .expect("a partition");
        sqlx::query(INSERT_EVENT)
            .bind(row.tenant)
            .bind(row.topic)
            .bind(row.partition)
            .bind(row.position)
            .bind(row.recorded_at.to_offset())
            .bind(row.event_id)
            .bind(row.event_kind)
            .bind(row.timestamp.to_offset())
            .bind(row.call_id)
            .bind(row.persona)
            .bind(row.tool_name)
            .bind(row.toolkit_kind)
            .bind(row.connection)
            .bind(row.session_id)
            .bind(row.success)
            .bind(row.trace_id)
            .bind(row.error_category)
            .bind(row.error_code)
            .execute(&mut writer)
            .await
            .expect("a row");
        sqlx::query(INSERT_PERSONAL)
            .bind(row.tenant)
            .bind(row.topic)
            .bind(row.partition)
            .bind(row.position)
            .bind(row.recorded_at.to_offset())
            .bind(row.user_id)
            .bind(row.personal_token)
            .bind(row.call_id.is_some())
            .execute(&mut writer)
            .await
            .expect("its personal part");
    }
    writer.close().await.expect("a closed connection");
}

const INSERT_EVENT: &str = r#"
INSERT INTO audit_v1.audit_events (
    log_id, tenant, topic, partition, position, recorded_at, event_id, event_kind, event_type, source, occurred_at,
    incarnation, seq, link, content, ack, ack_check, once, body_head, body_tail, received_at, call_id, persona,
    tool_name, toolkit_kind, connection, session_id, success, trace_id, error_category, error_code, subject_id, request_id, transport, source_kind,
    authorized, duration_ms, response_chars, content_blocks)
SELECT '00000000-0000-0000-0000-000000000001', $1, $2, $3, $4, $5, $6, $7, 'annals.' || $7 || '.v1',
       'urn:annals:' || $1, $8, '00000000-0000-0000-0000-000000000002', $4, decode(repeat('22', 32), 'hex'),
       decode(repeat('11', 32), 'hex'), 'fsync', 'verified', false, '{"z": 1,  "personal":', '}', $8, $9, $10, $11,
       $12, $13, $14, $15, $16, $17, $18, of_call.subject_id, of_call.request_id, of_call.transport, of_call.source_kind,
       of_call.authorized, of_call.duration_ms, of_call.response_chars, of_call.content_blocks
FROM (SELECT 1) AS one LEFT JOIN (VALUES ('subject', '1', 'http', 'mcp', true, 12, 2, 1)) AS of_call (
    subject_id, request_id, transport, source_kind, authorized, duration_ms, response_chars, content_blocks)
    ON $9::uuid IS NOT NULL
"#;

const INSERT_PERSONAL: &str = r#"
INSERT INTO audit_v1.audit_personal (
    log_id, tenant, topic, partition, position, recorded_at, user_id, personal_token, client_ip, user_agent, purpose,
    parameters, request_chars)
SELECT '00000000-0000-0000-0000-000000000001', $1, $2, $3, $4, $5, $6, $7, of_call.client_ip, of_call.user_agent,
       of_call.purpose, of_call.parameters, of_call.request_chars
FROM (SELECT 1) AS one LEFT JOIN (VALUES ('127.0.0.1', 'test', 'why', '{"sql": "SELECT 1"}'::jsonb, 3)) AS of_call (
    client_ip, user_agent, purpose, parameters, request_chars)
    ON $8
"#;
