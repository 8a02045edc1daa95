//! Closes the calls of which nobody can say any more how they ended, as `tool_call.interrupted`.
//!
//! It never closes a call that may still end by itself: only those of process starts that are dead, and those that this
//! process gave up (see [`Unrecorded`]); and never before everything that could hold their end is applied. It
//! writes through the lanes like everybody else, so the rows come from the log.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgPool, Row};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::lease::{arrays, position_of, target_of};
use super::metrics::Metrics;
use crate::base::planted;
use crate::dispatch::Unrecorded;
use crate::event::{TOKEN_ABSENT, Topic, TopicPartition, closure};
use crate::log::{Lanes, Position, ReadError, RecordError};
use crate::projection::audit::Audit;

/// Calls that one pass closes; each intent has at most a body's bytes.
const PASS_CALLS_MAX: i64 = 64;

/// Closures on the log whose rows are not there yet. Beyond that the rows are waited for.
const WRITTEN_MAX: usize = 4_096;

/// How soon it looks again while there is more to do, or the rows are not far enough.
const SOON: Duration = Duration::from_millis(200);

/// A statement of it may take this long.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// A pass was not finished; the next one goes on where it stopped.
#[derive(Debug, thiserror::Error)]
pub enum CloserError {
    /// Postgres failed.
    #[error("Postgres fails: {0}")]
    Database(#[from] sqlx::Error),
    /// It did not answer.
    #[error("Postgres does not answer")]
    Timeout,
    /// The log could not be read.
    #[error("the log cannot be read: {0}")]
    Read(#[from] ReadError),
    /// The log did not take a closure.
    #[error("the log does not take it: {0}")]
    Record(#[from] RecordError),
}

/// What a pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pass {
    /// Closures that are on the log now.
    pub closed: usize,
    /// There is more to do soon: rows that must come first, or calls that did not fit this pass.
    pub more: bool,
}

/// How much of a partition stood on the log at a moment of this process's life, in a form that can be compared later.
#[derive(Debug, Clone, Copy)]
struct Fence {
    /// Where the log started then.
    first: Position,
    /// How far the partition was applied then.
    after: Option<Position>,
    /// Records behind that.
    pending: u64,
}

/// See the module. One per process is enough; two write the same events, of which one becomes a row.
pub struct Closer {
    lanes: Arc<Lanes>,
    writer: PgPool,
    unrecorded: Arc<Unrecorded>,
    metrics: Metrics,
    fences: BTreeMap<TopicPartition, Fence>,
    /// Partitions in which all that dead processes wrote is applied.
    settled: BTreeSet<TopicPartition>,
    /// Closures on the log whose rows may not be there yet, and calls that cannot be closed.
    written: BTreeSet<Uuid>,
}

impl Closer {
    /// A closer for a log of which this process is the sole owner, so that every other process start is dead.
    #[must_use]
    pub fn new(lanes: Arc<Lanes>, writer: PgPool, unrecorded: Arc<Unrecorded>, metrics: Metrics) -> Self {
        let (fences, settled, written) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { lanes, writer, unrecorded, metrics, fences, settled, written }
    }

    /// Makes a pass every `interval`, sooner while there is more to do, until `stop` fires.
    pub async fn run(mut self, interval: Duration, stop: CancellationToken) {
        let mut failing = false;
        loop {
            let passed = stop.run_until_cancelled(tokio::time::timeout(STATEMENT_TIMEOUT, self.pass())).await;
            let Some(passed) = passed else { return };
            let wait = match passed.unwrap_or(Err(CloserError::Timeout)) {
                Ok(pass) => {
                    failing = false;
                    if pass.more { SOON.min(interval) } else { interval }
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(error = %error, "open calls are not closed now; it is tried again");
                    }
                    interval
                }
            };
            if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Closes what can be closed now.
    ///
    /// # Errors
    /// [`CloserError`]; what was closed before it stays so.
    pub async fn pass(&mut self) -> Result<Pass, CloserError> {
        if planted::armed("open_call_left_open") {
            return Ok(Pass::default());
        }
        self.settle().await?;
        let given_up = self.given_up().await?;
        if self.settled.is_empty() && given_up.is_empty() {
            return Ok(Pass { closed: 0, more: true });
        }
        self.forget_applied().await?;
        if self.written.len() >= WRITTEN_MAX {
            return Ok(Pass { closed: 0, more: true });
        }
        let open = self.open(&given_up).await?;
        let full = i64::try_from(open.len()).unwrap_or(i64::MAX) >= PASS_CALLS_MAX;
        let mut closed = 0;
        for call in &open {
            closed += usize::from(self.close(call).await?);
        }
        let unsettled = self.settled.len() < targets().len();
        Ok(Pass { closed, more: full || unsettled || !given_up.is_empty() })
    }

    /// Finds the partitions that are applied up to what stood on the log when this process first looked. A pass begins with
    /// it.
    ///
    /// # Errors
    /// [`CloserError`].
    pub async fn settle(&mut self) -> Result<(), CloserError> {
        let unsettled: Vec<TopicPartition> =
            targets().into_iter().filter(|target| !self.settled.contains(target)).collect();
        if unsettled.is_empty() {
            return Ok(());
        }
        let applied = self.applied(&unsettled).await?;
        for target in unsettled {
            let Some(&position) = applied.get(&target) else { continue };
            if planted::armed("closure_before_caught_up") || self.is_past_fence(target, position).await? {
                self.settled.insert(target);
                self.fences.remove(&target);
            }
        }
        Ok(())
    }

    async fn is_past_fence(
        &mut self,
        target: TopicPartition,
        position: Option<Position>,
    ) -> Result<bool, CloserError> {
        let log = Arc::clone(self.lanes.log());
        let first = log.start().first;
        let fence = self.fences.get(&target).copied().filter(|fence| fence.first == first);
        let Some(fence) = fence else {
            let pending = log.count_after(target, position).await?;
            self.fences.insert(target, Fence { first, after: position, pending });
            return Ok(pending == 0);
        };
        // The larger one first: what is appended in between makes the difference smaller, never larger.
        let since = log.count_after(target, fence.after).await?;
        let left = log.count_after(target, position).await?;
        Ok(since.saturating_sub(left) >= fence.pending)
    }

    /// How far `targets` are applied; without those that the projection has not claimed for this log.
    async fn applied(
        &self,
        targets: &[TopicPartition],
    ) -> Result<HashMap<TopicPartition, Option<Position>>, CloserError> {
        let (topics, partitions) = arrays(targets);
        let rows = sqlx::query(
            "SELECT topic, partition, c.position FROM annals.checkpoints c
             JOIN UNNEST($4::text[], $5::int4[]) AS t(topic, partition) USING (topic, partition)
             WHERE c.projection = $1 AND c.version = $2 AND c.log_id = $3",
        )
        .bind(Audit::NAME)
        .bind(Audit::VERSION)
        .bind(self.lanes.log().id().0)
        .bind(topics)
        .bind(partitions)
        .fetch_all(&self.writer)
        .await?;
        let mut applied = HashMap::new();
        for row in &rows {
            applied.insert(target_of(row)?, position_of(row)?);
        }
        Ok(applied)
    }

    /// The calls that this process gave up and whose end would be applied by now if there were one.
    async fn given_up(&self) -> Result<Vec<Uuid>, CloserError> {
        let calls = self.unrecorded.all();
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let targets: BTreeSet<TopicPartition> = calls.iter().map(|call| call.target).collect();
        let (topics, partitions) = arrays(&targets.into_iter().collect::<Vec<_>>());
        let rows = sqlx::query(
            "SELECT topic, partition, h.seq FROM annals.lane_heads h
             JOIN UNNEST($5::text[], $6::int4[]) AS t(topic, partition) USING (topic, partition)
             WHERE h.projection = $1 AND h.version = $2 AND h.log_id = $3 AND h.incarnation = $4",
        )
        .bind(Audit::NAME)
        .bind(Audit::VERSION)
        .bind(self.lanes.log().id().0)
        .bind(self.lanes.incarnation())
        .bind(topics)
        .bind(partitions)
        .fetch_all(&self.writer)
        .await?;
        let mut heads: HashMap<TopicPartition, u64> = HashMap::new();
        for row in &rows {
            let seq = u64::try_from(row.try_get::<i64, _>("seq")?).unwrap_or(0);
            heads.insert(target_of(row)?, seq);
        }
        let is_applied = |target, through: Option<u64>| {
            through.is_none_or(|through| heads.get(&target).is_some_and(|head| *head >= through))
        };
        let applied = calls.iter().filter(|call| is_applied(call.target, call.through_seq));
        let applied: Vec<Uuid> = applied.map(|call| call.call_id).collect();
        let still_open = self.open_among(&applied).await?;
        self.unrecorded.forget(|id| applied.contains(&id) && !still_open.contains(&id));
        Ok(applied.into_iter().filter(|id| still_open.contains(id)).collect())
    }

    async fn open_among(&self, calls: &[Uuid]) -> Result<BTreeSet<Uuid>, CloserError> {
        let sql = format!(
            "SELECT call_id FROM {}.open_calls WHERE log_id = $1 AND call_id = ANY($2)",
            Audit::SCHEMA
        );
        let rows: Vec<Uuid> = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(self.lanes.log().id().0)
            .bind(calls)
            .fetch_all(&self.writer)
            .await?;
        Ok(rows.into_iter().collect())
    }

    async fn forget_applied(&mut self) -> Result<(), CloserError> {
        if !self.written.is_empty() {
            let written: Vec<Uuid> = self.written.iter().copied().collect();
            self.written = self.open_among(&written).await?;
        }
        Ok(())
    }

    /// Open calls that are to be closed, the oldest first, with their intents.
    async fn open(&self, given_up: &[Uuid]) -> Result<Vec<OpenIntent>, CloserError> {
        let settled: Vec<TopicPartition> = self.settled.iter().copied().collect();
        let (topics, partitions) = arrays(&settled);
        let dead =
            if planted::armed("closes_the_living") { "($2 IS NOT NULL)" } else { "o.incarnation <> $2" };
        let sql = format!(
            "SELECT o.call_id, o.incarnation, o.topic, o.partition, e.body_head, p.personal_token, e.body_tail
             FROM {schema}.open_calls o
             JOIN {schema}.audit_events e USING (log_id, topic, partition, position, recorded_at)
             LEFT JOIN {schema}.audit_personal p USING (log_id, topic, partition, position, recorded_at)
             WHERE o.log_id = $1 AND o.call_id <> ALL($3)
               AND (o.call_id = ANY($4) OR ({dead} AND EXISTS (
                   SELECT FROM UNNEST($5::text[], $6::int4[]) AS s(topic, partition)
                   WHERE s.topic = o.topic AND s.partition = o.partition)))
             ORDER BY o.recorded_at, o.call_id LIMIT $7",
            schema = Audit::SCHEMA
        );
        let written: Vec<Uuid> = self.written.iter().copied().collect();
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(self.lanes.log().id().0)
            .bind(self.lanes.incarnation())
            .bind(written)
            .bind(given_up)
            .bind(topics)
            .bind(partitions)
            .bind(PASS_CALLS_MAX)
            .fetch_all(&self.writer)
            .await?;
        rows.iter().map(OpenIntent::of).collect()
    }

    /// Records one closure. `false`: the call cannot be closed, which is said once.
    async fn close(&mut self, call: &OpenIntent) -> Result<bool, CloserError> {
        let event = match closure(call.target, &call.body) {
            Ok(event) => event,
            Err(error) => {
                tracing::error!(error = %error, call.id = %call.call_id, "an open call cannot be closed");
                self.written.insert(call.call_id);
                return Ok(false);
            }
        };
        match self.lanes.record(event).await {
            // An uncertain one is written later, in its place.
            Ok(_) | Err(RecordError::Uncertain(_)) => {}
            Err(error @ RecordError::Refused(_)) => return Err(error.into()),
        }
        self.written.insert(call.call_id);
        self.metrics.interrupted.inc();
        tracing::warn!(
            call.id = %call.call_id,
            lane.incarnation = %call.incarnation,
            "a call was closed as interrupted: nobody can say how it ended"
        );
        Ok(true)
    }
}

/// The partitions that calls are on.
fn targets() -> Vec<TopicPartition> {
    TopicPartition::all().filter(|target| target.topic == Topic::ToolCalls).collect()
}

/// A call to be closed.
struct OpenIntent {
    call_id: Uuid,
    incarnation: Uuid,
    target: TopicPartition,
    /// The intent's body, or what erasure left of it.
    body: Vec<u8>,
}

impl OpenIntent {
    fn of(row: &PgRow) -> Result<Self, CloserError> {
        let (head, tail): (String, String) = (row.try_get("body_head")?, row.try_get("body_tail")?);
        let token: Option<String> = row.try_get("personal_token")?;
        let token = token.as_deref().unwrap_or(TOKEN_ABSENT);
        let body = [head.as_bytes(), token.as_bytes(), tail.as_bytes()].concat();
        let (call_id, incarnation) = (row.try_get("call_id")?, row.try_get("incarnation")?);
        Ok(Self { call_id, incarnation, target: target_of(row)?, body })
    }
}
