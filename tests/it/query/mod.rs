//! Reading the audit: order, pages, filters, single events, and what happens when the store is away.

mod rows;

use std::time::Duration;

use annals::base::Timestamp;
use annals::db::{Postgres, Role};
use annals::query::{Count, Error, Filter, Query};
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Connection, Executor};
use uuid::Uuid;

use crate::db::server::{DataDir, TestServer, options};
use rows::{Row, clear, insert, install};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const START: Timestamp = Timestamp::from_micros(1_764_521_228_000_042);

fn filter(parameters: &[(&str, &str)]) -> Filter {
    let owned: Vec<_> = parameters.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    Filter::parse(&owned).expect("accepted parameters")
}

async fn with_rows(rows: &[Row]) -> (TestServer, Query) {
    let server = TestServer::start().await;
    install(&server.postgres).await;
    insert(&server.postgres, rows).await;
    let query = Query::new(server.postgres.pool(Role::Auditor));
    (server, query)
}

fn completed(n: u32) -> Row {
    Row { event_id: Uuid::from_u128(u128::from(n)), position: i64::from(n), ..Row::call(n) }
}

/// The ids of all pages of `filter`, in order, with `limit` on each.
async fn all_pages(query: &Query, filter: &Filter) -> Vec<Uuid> {
    let mut filter = filter.clone();
    let mut ids = Vec::new();
    loop {
        let page = query.events(&filter).await.expect("a page");
        assert!(page.data.len() <= filter.limit as usize);
        ids.extend(page.data.iter().map(|row| row.event_id));
        match page.next_cursor {
            Some(cursor) => filter.cursor = Some(cursor),
            None => return ids,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_newest_first_and_lose_or_repeat_nothing() {
    // Groups of five share a time, so that the tie-breakers decide; every seventh is an intent and not listed.
    let rows: Vec<Row> = (0..60)
        .map(|n| Row {
            recorded_at: START.plus_micros(i64::from(n / 5)),
            topic: if n % 2 == 0 { "annals.tool-calls" } else { "annals.admin" },
            partition: i32::try_from(n % 3).unwrap(),
            event_kind: if n % 7 == 0 { "tool_call.requested" } else { "tool_call.completed" },
            ..completed(n)
        })
        .collect();
    let (server, query) = with_rows(&rows).await;
    let mut expected: Vec<&Row> = rows.iter().filter(|row| row.event_kind != "tool_call.requested").collect();
    expected.sort_by_key(|row| std::cmp::Reverse((row.recorded_at, row.topic, row.partition, row.position)));
    let expected: Vec<Uuid> = expected.into_iter().map(|row| row.event_id).collect();
    for limit in ["1", "4", "51", "52", "1000"] {
        assert_eq!(all_pages(&query, &filter(&[("limit", limit)])).await, expected, "limit {limit}");
    }
    // What is recorded after the first page was read comes before it, and does not move the pages behind it.
    let first = query.events(&filter(&[("limit", "10")])).await.unwrap();
    insert(&server.postgres, &[Row { recorded_at: START.plus_micros(999), ..completed(999) }]).await;
    let cursor = first.next_cursor.unwrap();
    let rest = all_pages(&query, &filter(&[("limit", "10"), ("cursor", &cursor)])).await;
    assert_eq!(rest, expected[10..]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_filter_selects_by_its_column() {
    let odd = |change: fn(&mut Row)| {
        let mut row = completed(1);
        change(&mut row);
        row
    };
    let at = |seconds: i64| START.plus_micros(seconds * 1_000_000);
    let (server, query) = with_rows(&[]).await;
    for (row, parameters) in [
        (odd(|row| row.user_id = Some("zoë")), &[("user_id", "zoë")][..]),
        (odd(|row| row.tool_name = Some("other")), &[("tool_name", "other")]),
        (odd(|row| row.toolkit_kind = Some("other")), &[("toolkit_kind", "other")]),
        (odd(|row| row.connection = Some("other")), &[("connection", "other")]),
        (odd(|row| row.persona = Some("other")), &[("persona", "other")]),
        (odd(|row| row.event_kind = "auth.failed"), &[("event_kind", "auth.failed")]),
        (odd(|row| row.session_id = Some("other")), &[("session_id", "other")]),
        (odd(|row| row.trace_id = Some(TRACE)), &[("trace_id", TRACE)]),
        (odd(|row| row.success = Some(false)), &[("success", "false")]),
        (odd(|row| row.error_category = Some("authz")), &[("error_category", "authz")]),
        (odd(|row| row.error_code = Some("tool_not_allowed")), &[("error_code", "tool_not_allowed")]),
        (odd(|row| row.persona = Some("' OR true --")), &[("persona", "' OR true --")]),
        (Row { timestamp: at(10), ..completed(1) }, &[("start_time", &at(10).to_string())]),
        (Row { timestamp: at(-10), ..completed(1) }, &[("end_time", &at(0).to_string())]),
    ] {
        // The others differ from it in that column; the one at START also tells that an end is exclusive.
        let others: Vec<Row> = (2..5).map(completed).collect();
        let id = row.event_id;
        clear(&server.postgres).await;
        insert(&server.postgres, &[vec![row], others].concat()).await;
        assert_eq!(all_pages(&query, &filter(parameters)).await, [id], "{parameters:?}");
        let one = Count { total: 1, capped: false };
        assert_eq!(query.count(&filter(parameters), None).await.unwrap(), one, "{parameters:?}");
        assert_eq!(all_pages(&query, &filter(&[])).await.len(), 4);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_is_exact_or_stops_at_its_cap() {
    let mut rows: Vec<Row> = (0..7).map(completed).collect();
    rows[0].event_kind = "tool_call.requested";
    rows[1].tenant = "other";
    let (server, query) = with_rows(&rows).await;
    let query = query.of_tenant("default".into());
    let count = async |parameters, cap| query.count(&filter(parameters), cap).await.unwrap();
    for (cap, total, capped) in
        [(None, 5, false), (Some(5), 5, false), (Some(4), 4, true), (Some(0), 0, true)]
    {
        assert_eq!(count(&[], cap).await, Count { total, capped }, "{cap:?}");
    }
    assert_eq!(count(&[("limit", "1")], None).await.total, 5, "of all pages");
    assert_eq!(count(&[("persona", "nobody")], Some(0)).await, Count { total: 0, capped: false });
    assert!(matches!(Query::closed().count(&filter(&[]), None).await, Err(Error::Starting)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_event_has_the_columns_of_audit_logs() {
    let call = Row { event_id: Uuid::from_u128(8), trace_id: Some(TRACE), ..completed(3) };
    let admin = Row { recorded_at: START.plus_micros(-5), ..Row::other(4, "admin.key_created") };
    let (server, query) = with_rows(&[call, admin]).await;
    let page = query.events(&filter(&[])).await.unwrap();
    let page = serde_json::to_value(&page).unwrap();
    let time = START.to_string();
    let nulls = |names: &[&str]| names.iter().map(|&name| (name.to_owned(), Value::Null)).collect::<Vec<_>>();
    let mut expected = json!({
        "id": "00000000-0000-0000-0000-000000000003", "event_id": "00000000-0000-0000-0000-000000000008",
        "event_kind": "tool_call.completed", "timestamp": time, "recorded_at": time, "duration_ms": 12,
        "request_id": "1", "user_id": "ann", "subject_id": "subject", "persona": "analyst",
        "tool_name": "sql_query", "toolkit_kind": "sql", "connection": "sample", "parameters": {"sql": "SELECT 1"},
        "success": true, "created_date": "2025-11-30", "response_chars": 2, "request_chars": 3,
        "content_blocks": 1, "session_id": "session", "transport": "http", "source": "mcp", "authorized": true,
        "enrichment_applied": false, "enrichment_tokens_full": 0, "enrichment_tokens_dedup": 0,
        "enrichment_mode": "", "enrichment_match_kind": "", "purpose": "why",
        "client_ip": "127.0.0.1", "user_agent": "test", "trace_id": TRACE,
    });
    let absent =
        nulls(&["user_email", "toolkit_name", "error_message", "error_category", "error_code", "effect"]);
    expected.as_object_mut().unwrap().extend(absent);
    assert_eq!(page["data"][0], expected);
    assert_eq!(page["next_cursor"], Value::Null);
    let admin = &page["data"][1];
    assert_eq!(admin["id"], admin["event_id"]);
    assert_eq!(admin["event_kind"], "admin.key_created");
    for column in ["tool_name", "success", "duration_ms", "parameters", "connection"] {
        assert_eq!(admin[column], Value::Null, "{column}");
    }
    assert_eq!(
        admin.as_object().unwrap().keys().collect::<Vec<_>>(),
        expected.as_object().unwrap().keys().collect::<Vec<_>>()
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_event_comes_whole_with_its_proof() {
    let intent = Row { event_kind: "tool_call.requested", event_id: Uuid::from_u128(70), ..completed(7) };
    let terminal = Row { event_id: Uuid::from_u128(71), position: 8, ..completed(7) };
    let erased = Row { personal_token: None, ..completed(9) };
    let (server, query) = with_rows(&[intent, terminal, erased]).await;
    let whole = "{\"z\": 1,  \"personal\":\"\\u00e9 and \\\"quotes\\\"\"}";
    let detail = query.event(Uuid::from_u128(71)).await.unwrap().unwrap();
    let detail = serde_json::to_value(&detail).unwrap();
    assert_eq!(detail["body"], whole);
    assert_eq!(detail["body_json"], serde_json::from_str::<Value>(whole).unwrap());
    assert_eq!(detail["personal_erased"], false);
    assert_eq!(detail["event_type"], "annals.tool_call.completed.v1");
    assert_eq!(detail["call_id"], "00000000-0000-0000-0000-000000000007");
    assert_eq!(
        detail["proof"],
        json!({
            "log_id": Uuid::from_u128(1), "topic": "annals.tool-calls", "partition": 3, "position": 8,
            "incarnation": Uuid::from_u128(2), "seq": 8, "recorded_at": START.to_string(),
            "content": "11".repeat(32), "link": "22".repeat(32), "ack": "fsync", "ack_check": "verified",
        })
    );
    // An intent has no place in lists, but can be read by its own id; a call's id leads to its end.
    let kind = |id: u128| {
        let query = &query;
        async move {
            let detail = query.event(Uuid::from_u128(id)).await.unwrap();
            detail.map(|detail| (detail.event.event_id.as_u128(), detail.event.event_kind))
        }
    };
    assert_eq!(kind(70).await, Some((70, "tool_call.requested".into())));
    assert_eq!(kind(7).await, Some((71, "tool_call.completed".into())));
    assert_eq!(kind(5_000).await, None);
    let erased = query.event(Uuid::from_u128(9)).await.unwrap().unwrap();
    assert_eq!((erased.body.as_str(), erased.personal_erased), ("{\"z\": 1,  \"personal\":null}", true));
    server.stop().await;
}

/// The way that the server reads: one tenant's events of one trace, newest first.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_found_by_its_index() {
    let (server, _) = with_rows(&[Row { trace_id: Some(TRACE), ..completed(1) }]).await;
    let mut owner = server.postgres.connect_options(Role::Owner).connect().await.unwrap();
    let more = "INSERT INTO audit_v1.audit_events (log_id, topic, partition, position, recorded_at, tenant, event_id,
             event_kind, event_type, source, occurred_at, incarnation, seq, link, content, ack, ack_check, once,
             body_head, body_tail, trace_id)
         SELECT log_id, topic, partition, position + n, recorded_at, tenant, gen_random_uuid(), event_kind, event_type,
             source, occurred_at, incarnation, seq + n, link, content, ack, ack_check, once, body_head, body_tail,
             md5(n::text)
         FROM audit_v1.audit_events, generate_series(1, 20000) AS n";
    owner.execute(more).await.unwrap();
    owner.execute("ANALYZE audit_v1.audit_events").await.unwrap();
    let plan: Vec<String> = sqlx::query_scalar(
        "EXPLAIN SELECT * FROM public.audit_events
         WHERE event_kind <> 'tool_call.requested' AND tenant = 'default' AND trace_id = $1
         ORDER BY recorded_at DESC, topic DESC, partition DESC, position DESC, log_id DESC LIMIT 51",
    )
    .bind(TRACE)
    .fetch_all(&mut owner)
    .await
    .unwrap();
    let plan = plan.join("\n");
    assert!(
        plan.contains("trace_id") && plan.contains("Index Cond: ((tenant = 'default'::text) AND (trace_id ="),
        "{plan}"
    );
    assert!(!plan.contains("Seq Scan on audit_events"), "{plan}");
    owner.close().await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_of_other_filters_is_refused() {
    let (server, query) = with_rows(&(0..3).map(completed).collect::<Vec<_>>()).await;
    let first = query.events(&filter(&[("limit", "1"), ("persona", "analyst")])).await.unwrap();
    let cursor = first.next_cursor.unwrap();
    let next = query.events(&filter(&[("limit", "2"), ("persona", "analyst"), ("cursor", &cursor)])).await;
    assert_eq!(next.unwrap().data.len(), 2);
    for (parameters, text) in [
        (
            &[("persona", "admin"), ("cursor", cursor.as_str())][..],
            "cursor: this cursor belongs to other filters; pass the same filters with it as on the first page",
        ),
        (
            &[("cursor", "nonsense")],
            "cursor: this is not a cursor; pass next_cursor of the page before as it is",
        ),
    ] {
        let error = query.events(&filter(parameters)).await.unwrap_err();
        assert!(matches!(error, Error::Cursor(_)));
        assert_eq!(error.to_string(), text);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_sees_its_own_events_only() {
    let other = Row { tenant: "other", ..completed(2) };
    let (server, query) = with_rows(&[completed(1), other]).await;
    let query = query.of_tenant("default".into());
    assert_eq!(all_pages(&query, &filter(&[])).await, [Uuid::from_u128(1)]);
    assert!(query.event(Uuid::from_u128(2)).await.unwrap().is_none());
    assert!(query.event(Uuid::from_u128(1)).await.unwrap().is_some());
    server.stop().await;
}

fn assert_unavailable<T>(result: Result<T, Error>, when: &str) {
    match result {
        Err(error @ Error::Unavailable { .. }) => assert!(error.is_retryable()),
        Err(other) => panic!("{when}: {other:?}"),
        Ok(_) => panic!("{when}: an answer"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_or_slow_is_unavailable_and_never_empty() {
    let data_dir = DataDir::new();
    let mut settings = options(data_dir.path());
    settings.database.query_timeout_ms = 200;
    settings.database.acquire_timeout_ms = 500;
    let postgres = Postgres::start(settings).await.unwrap();
    let pool = postgres.pool(Role::Auditor);
    let query = Query::new(pool.clone());
    let event = Uuid::from_u128(1);
    assert_unavailable(query.events(&filter(&[])).await, "no views yet");
    assert_unavailable(query.event(event).await, "no views yet");

    install(&postgres).await;
    assert_eq!(query.events(&filter(&[])).await.unwrap().data.len(), 0);
    let mut owner = postgres.connect_options(Role::Owner).connect().await.unwrap();
    owner.execute("BEGIN; LOCK TABLE audit_v1.audit_events").await.unwrap();
    assert_unavailable(query.events(&filter(&[])).await, "slower than the timeout");
    owner.close().await.unwrap();

    let held = futures::future::join_all((0..8).map(|_| pool.acquire())).await;
    assert_unavailable(query.events(&filter(&[])).await, "no connection free");
    drop(held);
    assert_eq!(query.events(&filter(&[])).await.unwrap().data.len(), 0);

    postgres.stop().await.unwrap();
    assert_unavailable(query.events(&filter(&[])).await, "stopped");
    assert_unavailable(query.event(event).await, "stopped");
    assert_unavailable(query.count(&filter(&[]), None).await, "stopped");

    // The same pool goes on when the store is back.
    let postgres = Postgres::start(options(data_dir.path())).await.unwrap();
    let back = tokio::time::timeout(Duration::from_secs(10), async {
        while query.events(&filter(&[])).await.is_err() {
            tokio::task::yield_now().await;
        }
    });
    back.await.expect("the audit can be read again");
    postgres.stop().await.unwrap();
}
