//! The sample data: loaded once, related, commented, and with the stories that its page tells.

use annals::db::{Postgres, Role};
use annals::sample;
use annals::tools::{ConnectionLimits, SqlQuery};
use serde_json::{Value, json};

use super::caller::{call, sample_connections};
use crate::db::server::TestServer;

const PAGE: &str = include_str!("../../../docs/sample-data.md");

/// Loads the sample data.
pub(crate) async fn load(postgres: &Postgres) -> sample::Loaded {
    let owner = postgres.pool(Role::SampleOwner);
    let loaded = sample::ensure(&owner).await.unwrap();
    owner.close().await;
    loaded
}

/// The page's fenced blocks of one language, in order.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    PAGE.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_questions_have_the_documented_answers() {
    let server = TestServer::start().await;
    let loaded = load(&server.postgres).await;
    assert!(loaded.fresh && loaded.rows.len() >= 8 && loaded.rows.values().sum::<u64>() >= 100_000);
    let again = load(&server.postgres).await;
    assert_eq!((again.fresh, &again.rows), (false, &loaded.rows));

    let connections = sample_connections(&server.postgres, ConnectionLimits::default());
    let tool = SqlQuery::new(connections.clone());
    let (questions, answers) = (blocks("sql"), blocks("json"));
    assert_eq!((questions.len(), answers.len()), (5, 5));
    let mut wrong = Vec::new();
    for (sql, expected) in questions.iter().zip(answers) {
        let answer = call(&tool, json!({"sql": sql})).await.unwrap();
        if answer["rows"] != serde_json::from_str::<Value>(expected).unwrap() {
            wrong.push(answer["rows"].to_string());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    for (table, rows) in &loaded.rows {
        let counted = call(&tool, json!({"sql": format!("SELECT count(*) FROM {table}")})).await.unwrap();
        assert_eq!(counted["rows"][0][0], json!(rows), "{table}");
    }
    let bare = call(
        &tool,
        json!({"sql": "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND obj_description(oid, 'pg_class') IS NULL"}),
    );
    assert_eq!(bare.await.unwrap()["rows"], json!([]));
    let bare = call(
        &tool,
        json!({"sql": "SELECT attrelid::regclass, attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND attnum > 0 AND col_description(attrelid, attnum) IS NULL"}),
    );
    assert_eq!(bare.await.unwrap()["rows"], json!([]));
    let keys =
        call(&tool, json!({"sql": "SELECT count(*) FROM pg_constraint WHERE contype = 'f'"})).await.unwrap();
    assert_eq!(keys["rows"][0][0], json!(15));
    connections.close().await;
    server.stop().await;
}
