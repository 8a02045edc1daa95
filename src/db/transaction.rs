//! How a transaction begins, so that nobody who is cancelled leaves one open.
//!
//! A future that is dropped while the pool sends `BEGIN` gives its connection back with a transaction open that the pool
//! knows nothing of. Whoever gets the connection next then writes rows that nobody ever commits, and keeps their locks.

use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};

use crate::base::{Tasks, planted};

/// Begins a transaction. Safe to cancel: what began and is not wanted any more is rolled back.
///
/// # Errors
/// When no connection is to be had, or Postgres fails.
pub async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    begin_with(pool, "BEGIN".to_owned()).await
}

/// Begins a transaction with a statement of one's own, which must leave one open. Else as [`begin`].
///
/// # Errors
/// When no connection is to be had, Postgres fails, or the statement did not begin a transaction.
#[expect(clippy::disallowed_methods, reason = "this is the one place that begins transactions on a pool")]
pub async fn begin_with(
    pool: &PgPool,
    statement: String,
) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    if planted::armed("begin_dropped_midway") {
        return pool.begin_with(AssertSqlSafe(statement)).await;
    }
    let pool = pool.clone();
    // The task comes to its end whoever stops waiting; its transaction is then dropped as a whole one.
    let beginning =
        Tasks::new().spawn("begin", async move { pool.begin_with(AssertSqlSafe(statement)).await });
    match beginning.await {
        Ok(begun) => begun,
        Err(stopped) if stopped.is_panic() => std::panic::resume_unwind(stopped.into_panic()),
        // The runtime ends.
        Err(_) => Err(sqlx::Error::WorkerCrashed),
    }
}
