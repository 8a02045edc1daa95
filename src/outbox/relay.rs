//! Moves the outbox's rows into the log, in their order, one relay at a time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Outbox;
use crate::base::planted;
use crate::db;
use crate::event::{Event, Topic, TopicPartition, UnknownTopic, partition_of};
use crate::log::{Lanes, RecordError};

/// How often the relay looks without being woken: what a dead process left is found then.
const POLL: Duration = Duration::from_secs(1);
/// How long a pass may go on once the relay was asked to stop.
const STOP_WAIT: Duration = Duration::from_millis(500);
const ROWS_MAX: i64 = 100;
/// The advisory lock that makes one relay of many the active one: `annals.o`.
const LOCK: i64 = 0x616e_6e61_6c73_2e6f;

/// What the relay needs.
pub struct Relay {
    /// Role writer.
    pub pool: PgPool,
    /// Where the events go.
    pub lanes: Arc<Lanes>,
    /// Whom to tell.
    pub outbox: Outbox,
}

#[derive(Debug, thiserror::Error)]
enum RelayError {
    #[error("the store failed: {0}")]
    Store(#[from] sqlx::Error),
    #[error("the log refused: {0}")]
    Log(#[from] RecordError),
    #[error("a row of the outbox cannot be read: {0}")]
    Topic(#[from] UnknownTopic),
}

/// Relays until `stop` fires. Failures are logged and tried again: a row stays until it is in the log.
pub async fn relay(relay: Relay, stop: CancellationToken) {
    loop {
        let ended = tokio::select! {
            ended = pass(&relay) => ended,
            // A Postgres that hangs would hold the process for ever. What was appended is appended again by the next.
            () = async { stop.cancelled().await; tokio::time::sleep(STOP_WAIT).await } => return,
        };
        match ended {
            Ok(0) => {}
            Ok(_) => continue,
            Err(error) => tracing::warn!(error = %error, "the outbox waits; it is tried again"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = relay.outbox.shared.wake.notified() => {}
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

/// One transaction: the rows are locked, appended, deleted. Returns how many.
async fn pass(relay: &Relay) -> Result<usize, RelayError> {
    let mut tx = db::begin(&relay.pool).await?;
    let active: bool =
        sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)").bind(LOCK).fetch_one(&mut *tx).await?;
    if !active {
        return Ok(0);
    }
    let rows = sqlx::query("SELECT id, event_id, topic, key, body FROM annals.outbox ORDER BY id LIMIT $1")
        .bind(ROWS_MAX)
        .fetch_all(&mut *tx)
        .await?;
    let mut done: Vec<(i64, Uuid)> = Vec::with_capacity(rows.len());
    let mut failed = None;
    for row in &rows {
        match append(relay, row).await {
            Ok(appended) => done.push(appended),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if planted::armed("relay_dies_after_append") && !done.is_empty() {
        return Err(RelayError::Store(sqlx::Error::WorkerCrashed));
    }
    let ids: Vec<i64> = done.iter().map(|(id, _)| *id).collect();
    sqlx::query("DELETE FROM annals.outbox WHERE id = ANY($1)").bind(&ids).execute(&mut *tx).await?;
    tx.commit().await?;
    for (_, event_id) in &done {
        relay.outbox.published(*event_id);
    }
    // Only now, so that what did get into the log is not appended again with every try.
    failed.map_or(Ok(done.len()), Err)
}

/// The row's event is durable; gives the row's and the event's id.
async fn append(relay: &Relay, row: &PgRow) -> Result<(i64, Uuid), RelayError> {
    let topic: Topic = row.try_get::<String, _>("topic")?.parse()?;
    let key: String = row.try_get("key")?;
    let id: Uuid = row.try_get("event_id")?;
    let body: Vec<u8> = row.try_get("body")?;
    let target = TopicPartition { topic, partition: partition_of(&key) };
    relay.lanes.record(Event { target, id, body: Bytes::from(body) }).await?;
    Ok((row.try_get("id")?, id))
}
