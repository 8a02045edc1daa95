//! Rows that were touched behind the projection's back, and the state beside them.

use annals::base::sha256_hex;
use annals::event::{AuthMethod, Facts, KeyCreated, KeyRevoked, Kind, Personal};
use annals::log::Receipt;
use sqlx::PgPool;
use uuid::Uuid;

use super::{first, verify};
use crate::projection::stand::{Run, Stand};

/// A stand with a few calls applied, and the receipt of the end of each.
async fn applied() -> (Stand, Run, Vec<Receipt>) {
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |_| {});
    let mut receipts = Vec::new();
    for session in ["s1", "s2", "s3", "s4"] {
        receipts.push(stand.call(session, Some(Kind::ToolCallCompleted)).await.1);
    }
    stand.call("s5", None).await;
    stand.caught_up().await;
    (stand, run, receipts)
}

async fn execute(pool: &PgPool, sql: &str) -> u64 {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(pool).await.unwrap().rows_affected()
}

#[tokio::test(flavor = "multi_thread")]
async fn untouched_rows_are_clean_and_what_is_not_applied_yet_is_pending() {
    let (stand, run, _) = applied().await;
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    let rows = report.rows.unwrap();
    assert_eq!((report.events, rows.compared, rows.pending, rows.parked, report.open), (9, 9, 0, 0, 1));
    run.stop().await;
    stand.call("s6", Some(Kind::ToolCallFailed)).await;
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    let rows = report.rows.unwrap();
    assert_eq!((report.events, rows.compared, rows.pending, report.open), (11, 9, 2, 1));
    assert!(report.to_string().contains("pending    2\nopen       1\n"), "{report}");
    stand.stop().await;
}

/// An event of an older version is applied, compared and given back as it was stored.
#[cfg(feature = "planted-bugs")]
#[tokio::test(flavor = "multi_thread")]
async fn an_older_version_has_its_row_and_verifies() {
    use annals::event::{Event, Topic, TopicPartition, partition_of};
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |_| {});
    let golden = include_str!("../../golden/event/tool_call.denied.v0.json");
    // Recorded by the process start that it names.
    let body = golden
        .replace("0193a7c0-5f00-4abc-8def-000000000001", &stand.lanes.incarnation().to_string())
        .into_bytes();
    let target = TopicPartition { topic: Topic::ToolCalls, partition: partition_of("f00dcafe") };
    let id = Uuid::parse_str("019ad5a9-36e0-7870-b58e-d0d08423e564").unwrap();
    stand.lanes.record(Event { target, id, body: body.clone().into() }).await.unwrap();
    stand.call("s1", Some(Kind::ToolCallCompleted)).await;
    stand.caught_up().await;
    let row: (String, String, String, bool, String, String) = sqlx::query_as(
        "SELECT event_type, event_kind, tool_name, authorized, purpose, body_head || personal_token || body_tail
         FROM public.audit_events WHERE event_id = $1",
    )
    .bind(id)
    .fetch_one(&stand.owner)
    .await
    .unwrap();
    let (event_type, event_kind, tool_name, authorized, purpose, stored) = row;
    assert_eq!(
        (event_type.as_str(), event_kind.as_str()),
        ("annals.tool_call.denied.v0", "tool_call.denied")
    );
    assert_eq!(
        (tool_name.as_str(), authorized, purpose.as_str()),
        ("sql_query", false, "a \"quoted\" reason")
    );
    assert_eq!(stored.into_bytes(), body);
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    let rows = report.rows.unwrap();
    assert_eq!((report.events, rows.compared, rows.parked), (3, 3, 0));
    run.stop().await;
    stand.stop().await;
}

/// What a forger does, and what is found where.
type Forgery = (String, &'static str, u64, &'static str);

/// The row at `at` is edited or deleted.
fn edits(at: u64) -> Vec<Forgery> {
    let edit = |table: &str, change: &str, detail| {
        (format!("UPDATE audit_v1.{table} SET {change} WHERE position = {at}"), "row_changed", at, detail)
    };
    let delete = |table: &str, detail| {
        (format!("DELETE FROM audit_v1.{table} WHERE position = {at}"), "row_missing", at, detail)
    };
    vec![
        edit(
            "audit_events",
            "tool_name = 'x'",
            "its row of audit_events is not what the event gives: tool_name",
        ),
        edit(
            "audit_events",
            "success = NULL",
            "its row of audit_events is not what the event gives: success",
        ),
        edit("audit_events", "link = '\\x00'", "its row of audit_events is not what the event gives: link"),
        edit(
            "audit_events",
            "recorded_at = recorded_at + interval '1 microsecond'",
            "its row of audit_events is not what the event gives: recorded_at",
        ),
        edit(
            "audit_personal",
            "parameters = '{\"sql\": \"SELECT 2\"}'",
            "its row of audit_personal is not what the event gives: parameters",
        ),
        edit(
            "audit_personal",
            "user_name = 'bob', user_id = 'bob'",
            "its row of audit_personal is not what the event gives: user_id, user_name",
        ),
        delete("audit_events", "its row of audit_events is missing"),
        delete("audit_personal", "its row of audit_personal is missing"),
    ]
}

/// A row is added that no event gives, made from the one at `at`; or that one goes elsewhere.
fn additions(at: u64) -> Vec<Forgery> {
    let past = "a row of audit_events stands here, past everything that was applied";
    let next = format!("position = {}", at + 1);
    let elsewhere = format!("UPDATE audit_v1.audit_events SET position = 9999999 WHERE position = {at}");
    vec![
        (copy(at, &next), "row_added", at + 1, "a row of audit_events stands here, "),
        (copy(at, "position = 9999999"), "row_added", 9_999_999, past),
        (copy(at, "log_id = gen_random_uuid()"), "row_added", at, "a row of audit_events names log "),
        (copy(at, "topic = 'annals.sessions'"), "row_added", at, past),
        (copy(at, "partition = -3"), "row_added", at, past),
        (elsewhere, "row_missing", at, "its row of audit_events is missing"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_touched_row_is_found_at_its_position() {
    let (stand, run, receipts) = applied().await;
    run.stop().await;
    let forger = stand.superuser().await;
    let second = receipts[1].position.0;
    let forgeries = [edits(second), additions(second)].concat();
    for (sql, kind, position, detail) in &forgeries {
        let mut tx = annals::db::begin(&forger).await.unwrap();
        let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.as_str())).execute(&mut *tx).await.unwrap();
        assert_ne!(done.rows_affected(), 0, "{sql}");
        tx.commit().await.unwrap();
        let report = verify(&stand).await;
        assert!(!report.is_clean(), "{sql}");
        let found = first(&report);
        assert_eq!((found.0, found.1), (*kind, *position), "{sql}\n{report}");
        assert!(found.2.starts_with(detail), "{sql}\n{report}");
        // Rebuilt from the log, so that the next forgery stands alone.
        rebuild(&stand, &forger).await;
    }
    forger.close().await;
    stand.stop().await;
}

/// Inserts a copy of the row at `position` with one column changed.
fn copy(position: u64, change: &str) -> String {
    format!(
        "CREATE TEMP TABLE forged ON COMMIT DROP AS SELECT * FROM audit_v1.audit_events WHERE position = {position};
         UPDATE forged SET {change};
         INSERT INTO audit_v1.audit_events SELECT * FROM forged"
    )
}

/// Throws all that was derived away and lets a worker make it again.
async fn rebuild(stand: &Stand, superuser: &PgPool) {
    execute(
        superuser,
        "DROP SCHEMA audit_v1 CASCADE; DELETE FROM annals.checkpoints; DELETE FROM annals.lane_heads;
         DELETE FROM annals.once; DELETE FROM annals.parked; DELETE FROM annals.findings",
    )
    .await;
    let run = stand.worker("rebuild", true, |_| {});
    stand.caught_up().await;
    run.stop().await;
    let report = verify(stand).await;
    assert!(report.is_clean(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn touched_state_is_found() {
    let (stand, run, receipts) = applied().await;
    run.stop().await;
    let forger = stand.superuser().await;
    let end = receipts[3].position.0;
    let hide = |at: u64| {
        format!(
            "INSERT INTO annals.parked
             SELECT 'audit', 1, log_id, topic, partition, position, recorded_at, incarnation, seq, content, link,
                 convert_to(body_head || personal_token || body_tail, 'UTF8'), 'Postgres rejects it: so they say', now()
             FROM audit_v1.audit_events JOIN audit_v1.audit_personal USING (log_id, topic, partition, position, recorded_at)
             WHERE position = {at};
             DELETE FROM audit_v1.audit_events WHERE position = {at};
             DELETE FROM audit_v1.audit_personal WHERE position = {at}"
        )
    };
    let forgeries = [
        (hide(receipts[1].position.0), "state", "it was set aside, although it gives a row"),
        ("UPDATE annals.lane_heads SET seq = seq + 7".to_owned(), "state", "lane_heads has event "),
        ("DELETE FROM annals.lane_heads".to_owned(), "state", "lane_heads misses lane "),
        ("DELETE FROM audit_v1.open_calls".to_owned(), "state", "open_calls misses call "),
        ("UPDATE audit_v1.open_calls SET deadline = deadline + interval '1 day'".to_owned(), "state", "open_calls has the intent at "),
        ("UPDATE annals.checkpoints SET log_id = gen_random_uuid()".to_owned(), "checkpoint", "the checkpoint belongs to log "),
        (format!("UPDATE annals.checkpoints SET position = 99999999 WHERE position = {end}"), "checkpoint", "the checkpoint names an event that is not on the log"),
        (format!("UPDATE annals.checkpoints SET link = sha256('x') WHERE position = {end}"), "checkpoint", "the checkpoint here has another link"),
        ("INSERT INTO annals.once VALUES ('audit', 1, 'urn:annals:default', gen_random_uuid(), sha256('x'))".to_owned(), "state", "once has event "),
        ("DROP SCHEMA audit_v1 CASCADE".to_owned(), "checkpoint", "there is a checkpoint, but the projection's tables are gone"),
    ];
    for (sql, kind, detail) in &forgeries {
        execute(&forger, sql).await;
        let report = verify(&stand).await;
        let found = report
            .findings
            .iter()
            .find(|found| found.kind.as_str() == *kind && found.detail.starts_with(detail));
        assert!(found.is_some(), "{sql}\n{report}");
        rebuild_if_there(&stand, &forger).await;
    }
    forger.close().await;
    stand.stop().await;
}

async fn rebuild_if_there(stand: &Stand, superuser: &PgPool) {
    execute(superuser, "CREATE SCHEMA IF NOT EXISTS audit_v1").await;
    rebuild(stand, superuser).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_no_event_made_and_a_revocation_undone_are_found() {
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |_| {});
    let (ann, ben) = (Uuid::from_u128(1), Uuid::from_u128(2));
    for key_id in [ann, ben] {
        let made = Facts::KeyCreated(KeyCreated {
            actor_subject_id: "local-operator".into(),
            actor_auth_method: AuthMethod::Local,
            key_id,
            subject_id: "sub".into(),
            key_sha256: sha256_hex(key_id.as_bytes()),
            roles: vec!["analyst".into()],
            expires_at: None,
            no_limit: false,
        });
        let personal = Personal { object_name: Some("ann".into()), ..Personal::default() };
        stand.record(&made, &key_id.to_string(), &personal).await;
    }
    let revoked = Facts::KeyRevoked(KeyRevoked {
        actor_subject_id: "local-operator".into(),
        actor_auth_method: AuthMethod::Local,
        key_id: ben,
    });
    stand.record(&revoked, &ben.to_string(), &Personal::default()).await;
    stand.caught_up().await;
    run.stop().await;
    let forger = stand.superuser().await;
    let insert = |id: &str, revoked: &str| {
        format!(
            "INSERT INTO annals.api_keys SELECT id, 'sub', 'ann', sha256(uuid_send(id)), '{{analyst}}', now(), NULL, {revoked}
             FROM (SELECT '{id}'::uuid AS id) AS made"
        )
    };
    execute(&forger, &insert(&ann.to_string(), "NULL")).await;
    execute(&forger, &insert(&ben.to_string(), "now()")).await;
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    let eve = Uuid::from_u128(3);
    let forgeries = [
        (insert(&eve.to_string(), "NULL"), format!("api_keys has key {eve}, which no event made")),
        (
            "UPDATE annals.api_keys SET revoked_at = NULL WHERE key_id = '00000000-0000-0000-0000-000000000002'".into(),
            format!("key {ben} was revoked here, and api_keys has it in force"),
        ),
        (
            "UPDATE annals.api_keys SET roles = '{admin}' WHERE key_id = '00000000-0000-0000-0000-000000000001'".into(),
            format!("api_keys has another key {ann} than this event made"),
        ),
        (
            "UPDATE annals.api_keys SET no_limit = true WHERE key_id = '00000000-0000-0000-0000-000000000002'".into(),
            format!("api_keys has another key {ben} than this event made"),
        ),
    ];
    for (sql, detail) in &forgeries {
        execute(&forger, sql).await;
        let report = verify(&stand).await;
        assert!(report.findings.iter().any(|found| found.detail == *detail), "{sql}\n{report}");
    }
    forger.close().await;
    stand.stop().await;
}
