//! Which rows events become.

use annals::consumer::StoreState;
use annals::event::{Kind, Personal};
use serde_json::value::RawValue;
use sqlx::Row;

use super::stand::Stand;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_becomes_two_events_one_audit_log_row_and_leaves_nothing_open() {
    let stand = Stand::start().await;
    let mut run = stand.worker("w1", true, |_| {});
    let (call, receipt) = stand.call("session-1", Some(Kind::ToolCallCompleted)).await;
    let (open, _) = stand.call("session-2", None).await;
    stand.caught_up().await;
    assert_eq!(run.reached(StoreState::Ok).await, "");

    let auditor = stand.server.postgres.pool(annals::db::Role::Auditor);
    let rows = sqlx::query("SELECT * FROM public.audit_logs").fetch_all(&auditor).await.unwrap();
    let [row] = rows.as_slice() else { panic!("one row, got {}", rows.len()) };
    assert_eq!(row.get::<String, _>("id"), call.call_id.to_string());
    assert_eq!(row.get::<String, _>("user_id"), "ann");
    assert_eq!(row.get::<Option<bool>, _>("success"), Some(true));
    assert_eq!(row.get::<Option<i64>, _>("request_chars"), Some(31));
    let events: i64 =
        sqlx::query_scalar("SELECT count(*) FROM public.audit_events").fetch_one(&auditor).await.unwrap();
    assert_eq!(events, 3);
    let (body, link): (String, Vec<u8>) = sqlx::query_as(
        "SELECT body_head || personal_token || body_tail, link FROM public.audit_events WHERE event_kind = 'tool_call.completed'",
    )
    .fetch_one(&auditor)
    .await
    .unwrap();
    let target = super::stand::target_of(Kind::ToolCallCompleted, "session-1");
    let stored = annals::log::Log::frame_at(&*stand.log, target, receipt.position).await.unwrap();
    assert_eq!(body.as_bytes(), &stored.frame.body[..]);
    assert_eq!(link, receipt.link);
    let still: Vec<uuid::Uuid> =
        sqlx::query_scalar("SELECT call_id FROM audit_v1.open_calls").fetch_all(&stand.owner).await.unwrap();
    assert_eq!(still, [open.call_id]);
    auditor.close().await;
    run.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_json_can_say_and_postgres_cannot_blocks_nothing() {
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |_| {});
    let deep = format!("{{\"d\":{}1{}}}", "[".repeat(20_000), "]".repeat(20_000));
    let cases = [
        (r#"{"nul":"a\u0000b"}"#, Some(r#"{"nul": "a�b"}"#)),
        (r#"{"\u0000":1}"#, Some(r#"{"�": 1}"#)),
        (r#"{"lone":"\ud83d"}"#, Some(r#"{"lone": "�"}"#)),
        (r#"{"pair":"\ud83d\ude00"}"#, Some(r#"{"pair": "😀"}"#)),
        (r#"{"n":1e999999}"#, Some(r#"{"n": "1e999999"}"#)),
        (r#"{"n":-2.5e-3}"#, Some(r#"{"n": -0.0025}"#)),
        (r#"{"a":1,"a":2}"#, Some(r#"{"a": 2}"#)),
        (deep.as_str(), Some(r#""[redacted:unreadable]""#)),
    ];
    for (index, (raw, _)) in cases.iter().enumerate() {
        let mut call = super::stand::call("s");
        call.request_id = format!("{index}\u{0}");
        let personal = Personal {
            user_name: Some("nul\u{0}name".into()),
            arguments: Some(RawValue::from_string((*raw).to_owned()).unwrap()),
            ..Personal::default()
        };
        let facts = super::stand::terminal(&call, Kind::ToolCallDenied);
        stand.record(&facts, "s", &personal).await;
    }
    stand.caught_up().await;
    let rows: Vec<(String, Option<String>, String)> = sqlx::query_as(
        "SELECT request_id, parameters::text, user_id FROM public.audit_logs ORDER BY recorded_at, length(request_id), request_id",
    )
    .fetch_all(&stand.owner)
    .await
    .unwrap();
    let want: Vec<(String, Option<String>, String)> = cases
        .iter()
        .enumerate()
        .map(|(index, (_, parameters))| {
            (format!("{index}\u{fffd}"), parameters.map(ToOwned::to_owned), "nul\u{fffd}name".to_owned())
        })
        .collect();
    assert_eq!(rows, want);
    // The exact bytes are there all the same.
    let tokens: Vec<String> =
        sqlx::query_scalar("SELECT personal_token FROM public.audit_events ORDER BY position")
            .fetch_all(&stand.owner)
            .await
            .unwrap();
    let text: String = serde_json::from_str(&tokens[2]).unwrap();
    assert!(text.contains(r#"{"lone":"\ud83d"}"#), "{text}");
    assert_eq!(run.metric("annals_projection_parked_events_total"), 0);
    run.stop().await;
    let report = crate::verify::verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    stand.stop().await;
}

/// A digest over every column of every row.
async fn checksum(stand: &Stand) -> String {
    sqlx::query_scalar(
        "SELECT md5((SELECT string_agg(e::text, '|' ORDER BY topic, partition, position) FROM audit_v1.audit_events e)
             || (SELECT string_agg(p::text, '|' ORDER BY topic, partition, position) FROM audit_v1.audit_personal p)
             || (SELECT string_agg(o::text, '|' ORDER BY topic, partition, position) FROM audit_v1.open_calls o))",
    )
    .fetch_one(&stand.owner)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_gives_the_same_rows() {
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |options| options.projection.batch_records_max = 3);
    for session in 0..20 {
        let kind = (session % 4 != 0).then_some(Kind::ToolCallTimedOut);
        stand.call(&format!("s{session}"), kind).await;
    }
    stand.caught_up().await;
    run.stop().await;
    let before = checksum(&stand).await;
    sqlx::raw_sql("DROP SCHEMA audit_v1 CASCADE; TRUNCATE annals.checkpoints, annals.lane_heads, annals.once, annals.parked")
        .execute(&stand.owner)
        .await
        .unwrap();
    let run = stand.worker("w2", true, |options| options.projection.loops = 5);
    stand.caught_up().await;
    run.stop().await;
    assert_eq!(stand.count("SELECT count(*) FROM audit_v1.open_calls").await, 5);
    assert_eq!(checksum(&stand).await, before);
    stand.stop().await;
}

/// The SQLSTATE of what Postgres said.
fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_can_do_what_they_are_for_and_no_more() {
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |_| {});
    stand.call("s1", Some(Kind::ToolCallCompleted)).await;
    stand.caught_up().await;
    run.stop().await;
    let auditor = stand.server.postgres.pool(annals::db::Role::Auditor);
    let reader = stand.server.postgres.pool(annals::db::Role::Reader);
    let refused = [
        (&stand.writer, "UPDATE audit_v1.audit_events SET persona = 'x'"),
        (&stand.writer, "DELETE FROM audit_v1.audit_events"),
        (&stand.writer, "UPDATE audit_v1.audit_personal SET user_name = 'x'"),
        (&stand.writer, "DELETE FROM audit_v1.audit_personal"),
        (&stand.writer, "TRUNCATE audit_v1.audit_events"),
        (&stand.writer, "DROP TABLE audit_v1.audit_events"),
        (&stand.writer, "UPDATE audit_v1.open_calls SET deadline = now()"),
        (&auditor, "SELECT * FROM audit_v1.audit_events"),
        (&auditor, "SELECT * FROM annals.checkpoints"),
        (&auditor, "SELECT audit_v1.ensure_month(now())"),
        (&reader, "INSERT INTO audit_v1.audit_events SELECT * FROM audit_v1.audit_events"),
        (&reader, "SELECT audit_v1.ensure_month(now())"),
    ];
    for (pool, sql) in refused {
        let error = sqlx::raw_sql(sql).execute(pool).await.unwrap_err();
        let code = code(&error);
        // Insufficient privilege, or a session that reads only.
        assert!(matches!(code.as_deref(), Some("42501" | "25006")), "{sql}: {error}");
    }
    let odd =
        sqlx::raw_sql("SELECT audit_v1.ensure_month('infinity')").execute(&stand.writer).await.unwrap_err();
    assert_eq!(code(&odd).as_deref(), Some("22008"), "{odd}");
    for (pool, sql) in
        [(&auditor, "SELECT * FROM public.audit_logs"), (&reader, "SELECT * FROM audit_v1.audit_personal")]
    {
        assert!(!sqlx::query(sql).fetch_all(pool).await.unwrap().is_empty(), "{sql}");
    }
    auditor.close().await;
    reader.close().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_month_gets_its_partitions_while_somebody_reads() {
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |_| {});
    stand.call("s1", Some(Kind::ToolCallCompleted)).await;
    stand.caught_up().await;
    let reader = stand.server.postgres.pool(annals::db::Role::Reader);
    let mut reading = annals::db::begin(&reader).await.unwrap();
    sqlx::query("SELECT FROM audit_v1.audit_events, audit_v1.audit_personal")
        .fetch_all(&mut *reading)
        .await
        .unwrap();
    let facts = annals::event::Facts::Stopping(annals::event::Stopping { reason: "signal".into() });
    let event = stand.event(&facts, "k", &Personal::default());
    let mut lane = super::stand::Forged::new(event.target);
    lane.incarnation = stand.lanes.incarnation();
    let frame = lane.next_at("2031-02-28T23:59:59.999999Z".parse().unwrap(), event.body.clone());
    super::stand::append(&*stand.log, frame).await;
    stand.caught_up().await;
    let homes: Vec<String> = sqlx::query_scalar(
        "SELECT tableoid::regclass::text FROM audit_v1.audit_events WHERE event_kind = 'system.stopping'
         UNION ALL SELECT tableoid::regclass::text FROM audit_v1.audit_personal WHERE recorded_at > '2031-01-01'",
    )
    .fetch_all(&stand.owner)
    .await
    .unwrap();
    assert_eq!(homes, ["audit_v1.audit_events_2031_02", "audit_v1.audit_personal_2031_02"]);
    let indexed = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'audit_v1' AND tablename = 'audit_events_2031_02'";
    assert_eq!(stand.count(indexed).await, 8);
    reading.rollback().await.unwrap();
    reader.close().await;
    run.stop().await;
    let report = crate::verify::verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    stand.stop().await;
}
