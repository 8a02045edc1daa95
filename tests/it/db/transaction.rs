//! What a cancelled beginning leaves behind.

use std::time::Duration;

use annals::base::Tasks;
use annals::db::Role;
use sqlx::Connection;
use sqlx::postgres::{PgConnection, PgPoolOptions};

use super::server::TestServer;

/// Whatever a request was doing when its client went away, the next user of the connection writes for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_that_is_cancelled_leaves_no_transaction_in_the_pool() {
    let server = TestServer::start().await;
    let options = server.postgres.connect_options(Role::Owner);
    let one = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await.unwrap();
    let mut other = PgConnection::connect_with(&options).await.unwrap();
    sqlx::raw_sql("CREATE TABLE annals.written (id bigint PRIMARY KEY); SELECT pg_advisory_lock(7)")
        .execute(&mut other)
        .await
        .unwrap();
    // A BEGIN that takes as long as the lock is held.
    let slow = "SELECT pg_advisory_xact_lock(7); BEGIN";
    let beginning = Tasks::new().spawn("begin", {
        let one = one.clone();
        async move { annals::db::begin_with(&one, slow.to_owned()).await.map(drop) }
    });
    loop {
        let waits: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)",
        )
        .fetch_one(&mut other)
        .await
        .unwrap();
        if waits {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    beginning.abort();
    assert!(beginning.await.unwrap_err().is_cancelled());
    sqlx::query("SELECT pg_advisory_unlock(7)").execute(&mut other).await.unwrap();
    sqlx::query("INSERT INTO annals.written VALUES (1)").execute(&one).await.unwrap();
    let seen: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM annals.written WHERE id = 1)")
        .fetch_one(&mut other)
        .await
        .unwrap();
    assert!(seen, "a cancelled begin took the next statement of its connection into its transaction");
    other.close().await.unwrap();
    one.close().await;
    server.stop().await;
}
