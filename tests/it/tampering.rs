//! `annals verify` against somebody who may change every row: each change is found, named, and the exit code is 1.

use std::time::Duration;

use annals::config::Database;
use annals::db::{Options, Postgres, Role};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool, Row};

use crate::harness::{Caller, Home, PATIENCE};

/// Runs `annals verify --json`: the exit code and the report.
fn verify(home: &Home) -> (Option<i32>, Value) {
    let verified = home.annals(&["verify", "--json"]);
    let report = serde_json::from_str(&verified.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", verified.stdout, verified.stderr));
    (verified.code, report)
}

async fn execute(pool: &PgPool, sql: &str) {
    let done = sqlx::query(AssertSqlSafe(sql)).execute(pool).await.unwrap();
    assert_eq!(done.rows_affected(), 1, "{sql}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_a_deleted_and_an_added_row_are_found_with_their_position() {
    let home = Home::new();
    let server = home.serve(&[]);
    let caller = Caller::new(&server);
    for n in 0..3 {
        assert_eq!(
            caller.call("platform_info", json!({ "purpose": format!("call {n}") })).await.unwrap().0,
            200
        );
    }
    let three = |body: &Value| (body["data"].as_array().unwrap().len() == 3).then_some(());
    caller.get_until("/api/v1/admin/audit/events?tool_name=platform_info", three).await;
    let options =
        Options { data_dir: home.data_dir(), url: None, pg_bin: None, database: Database::default() };
    let postgres = Postgres::attach(options).await.unwrap().expect("the server's Postgres");
    let owner = postgres.pool(Role::Owner);
    let row = sqlx::query(
        "SELECT topic, partition, position FROM audit_v1.audit_events
         WHERE event_kind = 'tool_call.completed' ORDER BY position LIMIT 1",
    )
    .fetch_one(&owner)
    .await
    .unwrap();
    let (topic, partition, position): (String, i32, i64) = (row.get(0), row.get(1), row.get(2));
    let here = format!("topic = '{topic}' AND partition = {partition} AND position = {position}");

    let settled = async {
        loop {
            let (code, report) = verify(&home);
            assert_eq!(code, Some(0), "{report}");
            if report["rows"]["pending"] == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("rows that have caught up");

    let copy = |table: &str| {
        format!("CREATE TABLE public.saved_{table} AS SELECT * FROM audit_v1.{table} WHERE {here}")
    };
    for table in ["audit_events", "audit_personal"] {
        sqlx::query(AssertSqlSafe(copy(table))).execute(&owner).await.unwrap();
    }
    let restore = |table: &str| format!("INSERT INTO audit_v1.{table} SELECT * FROM public.saved_{table}");
    let delete = |table: &str| format!("DELETE FROM audit_v1.{table} WHERE {here}");
    let changes = [
        (
            "an edited outcome",
            format!("UPDATE audit_v1.audit_events SET success = NOT success WHERE {here}"),
            vec![delete("audit_events"), restore("audit_events")],
        ),
        (
            "an edited purpose",
            format!("UPDATE audit_v1.audit_personal SET purpose = 'harmless' WHERE {here}"),
            vec![delete("audit_personal"), restore("audit_personal")],
        ),
        ("a deleted row", delete("audit_events"), vec![restore("audit_events")]),
        (
            "an added row",
            format!(
                "INSERT INTO audit_v1.audit_events SELECT (jsonb_populate_record(e, jsonb_build_object('position',
                 e.position + 1))).* FROM audit_v1.audit_events e WHERE {here}"
            ),
            vec![format!("DELETE FROM audit_v1.audit_events WHERE position = {}", position + 1)],
        ),
    ];
    for (what, change, repairs) in changes {
        execute(&owner, &change).await;
        let (code, report) = verify(&home);
        assert_eq!(code, Some(1), "{what}: {report}");
        let first = &report["findings"][0];
        let expected = if what == "an added row" { position + 1 } else { position };
        assert_eq!(
            (&first["topic"], &first["partition"], &first["position"]),
            (&json!(topic), &json!(partition), &json!(expected)),
            "{what}: {report}"
        );
        for repair in repairs {
            execute(&owner, &repair).await;
        }
        let (code, report) = verify(&home);
        assert_eq!(code, Some(0), "{what}, repaired: {report}");
    }
    assert!(server.terminate().success());
    assert_eq!(verify(&home).0, Some(0), "without a server it starts Postgres itself");
}
