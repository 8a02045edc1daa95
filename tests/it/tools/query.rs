//! `sql_query`: what it answers, where it stops, and what it says of errors.

use annals::db::{Postgres, Role};
use annals::tools::{ConnectionLimits, SqlQuery};
use serde_json::{Value, json};

use super::caller::{call, call_text, sample_connections};
use crate::db::server::TestServer;

async fn as_owner(postgres: &Postgres, sql: &'static str) {
    let pool = postgres.pool(Role::SampleOwner);
    sqlx::raw_sql(sql).execute(&pool).await.unwrap();
    pool.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_arrive_without_loss_and_within_limits() {
    let server = TestServer::start().await;
    as_owner(&server.postgres, "CREATE TABLE big (id int, body text); INSERT INTO big SELECT i, repeat('x', 400) FROM generate_series(1, 50) i; CREATE TYPE mood AS ENUM ('sad', 'ok')").await;
    let limits = ConnectionLimits { rows_max: 20, bytes_max: 10_000, ..ConnectionLimits::default() };
    let connections = sample_connections(&server.postgres, limits);
    let tool = SqlQuery::new(connections.clone());
    let text = call_text(&tool, json!({"sql": "SELECT 9007199254740993 AS a, 1.10000000000000000000000000000000000001 AS a, 'x;--'::text, NULL::int, 'ok'::mood, '{\"b\":\n1}'::json, ARRAY[1,2], 'NaN'::float8, '\\x01'::bytea ; -- done"})).await.unwrap();
    assert!(
        text.contains(r#""rows":[[9007199254740993,1.10000000000000000000000000000000000001,"x;--",null,"ok",{"b": 1},[1,2],"NaN","\\x01"]],"row_count":1,"truncated":false,"limit":20,"#),
        "{text}"
    );
    let answer: Value = serde_json::from_str(&text).unwrap();
    let columns: Vec<_> = answer["columns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["name"].as_str().unwrap(), c["type"].as_str().unwrap()))
        .collect();
    assert_eq!(
        columns,
        [
            ("a", "bigint"),
            ("a", "numeric"),
            ("text", "text"),
            ("int4", "integer"),
            ("mood", "mood"),
            ("json", "json"),
            ("array", "integer[]"),
            ("float8", "double precision"),
            ("bytea", "bytea")
        ]
    );
    let none = call(&tool, json!({"sql": "SELECT FROM big", "limit": 3})).await.unwrap();
    assert_eq!(
        (&none["rows"], &none["truncated"], &none["limit"]),
        (&json!([[], [], []]), &json!("rows"), &json!(3))
    );
    let exact = call(&tool, json!({"sql": "SELECT id FROM big ORDER BY id LIMIT 20"})).await.unwrap();
    assert_eq!((&exact["row_count"], &exact["truncated"]), (&json!(20), &json!(false)));
    let bytes = call(&tool, json!({"sql": "SELECT body FROM big", "connection": "sample"})).await.unwrap();
    assert_eq!((&bytes["row_count"], &bytes["truncated"]), (&json!(20), &json!("rows")));
    let bytes = call(&tool, json!({"sql": "SELECT body, body FROM big"})).await.unwrap();
    assert_eq!((&bytes["row_count"], &bytes["truncated"]), (&json!(12), &json!("bytes")));
    assert!(bytes["note"].as_str().unwrap().starts_with("Row 13 of "), "{}", bytes["note"]);
    let huge = call(&tool, json!({"sql": "SELECT repeat('x', 3000000)"})).await.unwrap();
    assert_eq!((&huge["row_count"], &huge["truncated"]), (&json!(0), &json!("bytes")));
    for (sql, code) in [
        ("SELECT 1 FROM nowhere", "sql_undefined_table"),
        ("SELECT nothing FROM big", "sql_undefined_column"),
        ("SELECT 'x'::int", "sql_bad_value"),
        ("SELECT 1/0", "sql_bad_value"),
        ("SELECT nosuch(1)", "sql_undefined_function"),
        ("SELECT 1 +", "sql_syntax"),
        ("SELECT pg_sleep(1)", "sql_function_refused"),
        ("SELECT 'a\0b'", "sql_syntax"),
        ("SELECT \"a\0b\" FROM big", "sql_syntax"),
        ("SELECT '{[1,2]}'::int4multirange", "sql_unsupported_type"),
        ("SELECT ARRAY['{[1,2]}'::int4multirange]", "sql_unsupported_type"),
    ] {
        assert_eq!(call(&tool, json!({"sql": sql})).await.unwrap_err().code(), code, "{sql}");
    }
    let large = call(&tool, json!({"sql": "SELECT length(repeat('x', 1000000000))"})).await.unwrap_err();
    assert_eq!(large.code(), "sql_resources_exhausted", "a query may not take the machine's memory");
    assert!(large.message.contains("out of memory"), "{}", large.message);
    let spilled = "SELECT count(*) FROM (SELECT repeat(md5(g::text), 100) FROM generate_series(1, 400000) g ORDER BY 1) s";
    let error = call(&tool, json!({"sql": spilled})).await.unwrap_err();
    assert_eq!(error.code(), "sql_resources_exhausted", "a query may not fill the disk that the log is on");
    assert!(error.message.contains("temp_file_limit"), "{}", error.message);
    connections.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_every_type_have_a_form_in_json() {
    let server = TestServer::start().await;
    as_owner(&server.postgres, "CREATE TABLE t (a int, b text); INSERT INTO t VALUES (1, 'x'), (2, 'y'); ANALYZE t; CREATE DOMAIN small AS int CHECK (VALUE < 9)").await;
    let connections = sample_connections(&server.postgres, ConnectionLimits::default());
    let tool = SqlQuery::new(connections.clone());
    for (expression, expected) in [
        ("true", json!(true)),
        ("'-Infinity'::numeric", json!("-Infinity")),
        ("1e300::float8", json!(1e300)),
        ("date '2025-11-30'", json!("2025-11-30")),
        ("timestamptz '2025-11-30 12:00:00.5+00'", json!("2025-11-30T12:00:00.5+00:00")),
        ("interval '1 day 2 hours'", json!("1 day 02:00:00")),
        ("'infinity'::timestamp", json!("infinity")),
        ("ROW(1, 'a', NULL)", json!({"f1": 1, "f2": "a", "f3": null})),
        ("(SELECT t FROM t WHERE a = 1)", json!({"a": 1, "b": "x"})),
        ("ARRAY[[1, 2], [3, 4]]", json!([[1, 2], [3, 4]])),
        ("'[1,5)'::int4range", json!("[1,5)")),
        ("'{[1,5)}'::int4multirange::text", json!("{[1,5)}")),
        ("'<a/>'::xml", json!("<a/>")),
        ("'{\"b\": [1, null]}'::jsonb", json!({"b": [1, null]})),
        ("'a:1'::tsvector", json!("'a':1")),
        ("'10.0.0.1/8'::inet", json!("10.0.0.1/8")),
        ("B'101'", json!("101")),
        ("3::small", json!(3)),
        ("'pg_class'::regclass", json!("pg_class")),
        ("'00000000-0000-0000-0000-000000000001'::uuid", json!("00000000-0000-0000-0000-000000000001")),
        ("E'quote \" back \\\\ line\\n tab\\t \u{e9}'", json!("quote \" back \\ line\n tab\t \u{e9}")),
        ("(SELECT most_common_vals FROM pg_stats WHERE tablename = 't' AND attname = 'a')", json!(null)),
        ("point '(1,2)'", json!("(1,2)")),
        ("'x'", json!("x")),
        ("NULL", json!(null)),
    ] {
        let answer = call(&tool, json!({"sql": format!("SELECT {expression}")})).await.unwrap();
        assert_eq!(answer["rows"], json!([[expected]]), "{expression}");
    }
    let wide: Vec<String> = (0..1_000).map(|n| format!("{n} AS same")).collect();
    let answer = call(&tool, json!({"sql": format!("SELECT {}", wide.join(", "))})).await.unwrap();
    assert_eq!(answer["rows"][0].as_array().unwrap().len(), 1_000);
    assert_eq!(answer["rows"][0][999], json!(999));
    connections.close().await;
    server.stop().await;
}
