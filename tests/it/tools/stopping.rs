//! A statement that is cancelled, takes too long or loses its caller ends on the server, too.

use std::time::Duration;

use annals::base::{Category, Tasks};
use annals::db::Postgres;
use annals::tools::{ConnectionLimits, Connections, SqlQuery, Tool, ToolError, ToolResult};
use serde_json::json;
use sqlx::postgres::PgConnection;
use sqlx::{ConnectOptions, Connection};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::caller::{await_statements, call, context, persona, prepare, sample_connections, superuser};
use crate::db::server::TestServer;

/// In the select list, where the series is not written to a temporary file first: that is bounded.
const SLOW: &str = "SELECT count(*) FROM (SELECT generate_series(1, 100000000000)) AS slow";

/// A slow call that runs, and a superuser who watches it.
struct Running {
    connections: std::sync::Arc<Connections>,
    watcher: PgConnection,
    call: JoinHandle<Result<ToolResult, ToolError>>,
    cancel: CancellationToken,
}

impl Running {
    async fn start(postgres: &Postgres, data_dir: &std::path::Path, limits: ConnectionLimits) -> Self {
        let connections = sample_connections(postgres, limits);
        let watcher = superuser(postgres, data_dir).connect().await.unwrap();
        let cancel = CancellationToken::new();
        let tool = SqlQuery::new(connections.clone());
        let prepared = prepare(&tool, &json!({"sql": SLOW}), &persona(&["*"])).unwrap();
        let call = Tasks::new().spawn("slow call", prepared.run(context(persona(&["*"]), cancel.clone())));
        let mut running = Self { connections, watcher, call, cancel };
        running.await_statements(1).await;
        running
    }

    /// Waits until `expected` statements of ours run on the server.
    async fn await_statements(&mut self, expected: i64) {
        await_statements(&mut self.watcher, "FETCH", expected).await;
    }

    async fn sessions(&mut self) -> Vec<i32> {
        sqlx::query_scalar(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'annals sql_query' ORDER BY pid",
        )
        .fetch_all(&mut self.watcher)
        .await
        .unwrap()
    }

    async fn end(self) {
        self.connections.close().await;
        self.watcher.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_statement_ends_on_the_server_and_its_session_is_used_again() {
    let server = TestServer::start().await;
    let mut admin = superuser(&server.postgres, server.data_dir.path()).connect().await.unwrap();
    sqlx::raw_sql("GRANT EXECUTE ON FUNCTION pg_cancel_backend TO annals_sample_reader")
        .execute(&mut admin)
        .await
        .unwrap();
    admin.close().await.unwrap();
    let mut running =
        Running::start(&server.postgres, server.data_dir.path(), ConnectionLimits::default()).await;
    let before = running.sessions().await;
    running.cancel.cancel();
    let error = (&mut running.call).await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.category()), ("cancelled", Category::Cancelled));
    running.await_statements(0).await;
    let tool = SqlQuery::new(running.connections.clone());
    let answer = call(&tool, json!({"sql": "SELECT 1"})).await.unwrap();
    assert_eq!(answer["rows"], json!([[1]]));
    assert!(running.sessions().await.contains(&before[0]), "the session was closed");
    running.end().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_ask_loses_its_session_and_the_statement_ends_all_the_same() {
    let server = TestServer::start().await;
    let mut running =
        Running::start(&server.postgres, server.data_dir.path(), ConnectionLimits::default()).await;
    let before = running.sessions().await;
    running.cancel.cancel();
    assert_eq!((&mut running.call).await.unwrap().unwrap_err().code(), "cancelled");
    running.await_statements(0).await;
    let tool = SqlQuery::new(running.connections.clone());
    assert_eq!(call(&tool, json!({"sql": "SELECT 1"})).await.unwrap()["rows"], json!([[1]]));
    assert!(!running.sessions().await.contains(&before[0]), "the session is still there");
    running.end().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_ends_on_the_server() {
    let server = TestServer::start().await;
    let mut running =
        Running::start(&server.postgres, server.data_dir.path(), ConnectionLimits::default()).await;
    running.call.abort();
    assert!((&mut running.call).await.unwrap_err().is_cancelled());
    running.await_statements(0).await;
    running.end().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_takes_too_long_ends_on_the_server() {
    let server = TestServer::start().await;
    let limits = ConnectionLimits { timeout: Duration::from_millis(900), ..ConnectionLimits::default() };
    let mut running = Running::start(&server.postgres, server.data_dir.path(), limits).await;
    let error = (&mut running.call).await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.category()), ("sql_timeout", Category::Timeout));
    running.await_statements(0).await;
    running.end().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_too_many_is_refused_and_the_next_finds_room_again() {
    let server = TestServer::start().await;
    let limits = ConnectionLimits { connections_max: 1, ..ConnectionLimits::default() };
    let mut running = Running::start(&server.postgres, server.data_dir.path(), limits).await;
    let tool = SqlQuery::new(running.connections.clone());
    let error = call(&tool, json!({"sql": "SELECT 1"})).await.unwrap_err();
    assert_eq!((error.code(), error.category()), ("connection_busy", Category::RateLimit));
    running.cancel.cancel();
    assert_eq!((&mut running.call).await.unwrap().unwrap_err().code(), "cancelled");
    assert_eq!(call(&tool, json!({"sql": "SELECT 2"})).await.unwrap()["rows"], json!([[2]]));
    assert_eq!(tool.definition().toolkit_kind, "sql");
    running.end().await;
    server.stop().await;
}
