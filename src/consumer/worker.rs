//! The worker: loops that own a share of the partitions each and apply them batch by batch.
//!
//! A loop never goes on after an error with what it remembers: it claims, checks and opens again. It gives up only when
//! the checkpoints do not belong to this log, because going on would mix two histories.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, join_all, select};
use sqlx::PgPool;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::adopt::REMEDY;
use super::backoff::Backoff;
use super::batch::{Applier, BatchError, Committed};
use super::lease::{self, Claimed, Identity, Owned};
use super::metrics::Metrics;
use super::status::{Board, StoreState, StoreStatus};
use crate::base::{Clock, Tasks};
use crate::config;
use crate::event::TopicPartition;
use crate::log::{Log, Position, ReadError, Reader, Stored};
use crate::projection::Projection;

/// How often the lag is counted.
const LAG_INTERVAL: Duration = Duration::from_secs(3);

/// How often partitions are tried that only a dead process can still hold.
const CLAIM_INTERVAL: Duration = Duration::from_millis(250);

/// Body bytes of one transaction; one event may go beyond.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long a batch that is under way may go on after the worker is asked to stop.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// How the worker runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Loops, batch size, lease times.
    pub projection: config::Projection,
    /// Who owns the leases: this process start's incarnation.
    pub owner: String,
    /// Every other owner is known to be dead (the embedded log's lock proves it): take over without waiting.
    pub sole_owner: bool,
}

/// The roles that the worker needs.
#[derive(Debug, Clone)]
pub struct Pools {
    /// `annals_owner`, for the projection's schema at start.
    pub owner: PgPool,
    /// `annals_writer`, for everything else.
    pub writer: PgPool,
}

/// Applies one projection until the log is closed or the tasks are asked to stop.
pub struct Worker {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    me: Identity,
    log: Arc<dyn Log>,
    pools: Pools,
    projection: Arc<dyn Projection>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    board: Board,
}

/// Why a session of a loop ended.
enum Stop {
    /// Asked to, or the log was closed and everything in it is applied.
    Done,
    /// Never go on.
    Diverged(String),
    /// Never go on: the log's bytes are damaged.
    Corrupt(String),
    /// Somebody else owns a partition now: claim again.
    Fenced,
    /// Try again later.
    Database(sqlx::Error),
    /// Try again later.
    Log(ReadError),
}

impl From<sqlx::Error> for Stop {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<BatchError> for Stop {
    fn from(error: BatchError) -> Self {
        match error {
            BatchError::Fenced => Self::Fenced,
            BatchError::Database(error) => Self::Database(error),
        }
    }
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Closed => Self::Done,
            ReadError::Corrupt { .. } => Self::Corrupt(error.to_string()),
            ReadError::NotFound(_) => Self::Diverged(format!("{error}, although its checkpoint says so")),
            // The checkpoints may be past it all the same, and the reader alone was late: claiming again tells.
            ReadError::Dropped { .. } | ReadError::Io { .. } | ReadError::Write { .. } => Self::Log(error),
        }
    }
}

impl Worker {
    /// A worker that applies `log` to `projection`. Nothing happens before [`Worker::run`].
    #[must_use]
    pub fn new(
        options: Options,
        log: Arc<dyn Log>,
        pools: Pools,
        projection: Arc<dyn Projection>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
    ) -> Self {
        let me = Identity {
            projection: projection.name(),
            version: projection.version(),
            log: log.id(),
            owner: options.owner.clone(),
            lease_ms: options.projection.lease_ms,
            sole_owner: options.sole_owner,
        };
        let board = Board::new(loops(&options));
        Self { shared: Arc::new(Shared { options, me, log, pools, projection, clock, metrics, board }) }
    }

    /// Follows the worker's state.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<StoreStatus> {
        self.shared.board.subscribe()
    }

    /// Runs until the log is closed and applied, or `tasks` are asked to stop. The loops are tasks of `tasks`; they end
    /// at once when this future is dropped.
    pub async fn run(self, tasks: &Tasks) {
        let shared = &self.shared;
        let cancel = tasks.cancel_token().clone();
        if !shared.install(&cancel).await {
            return;
        }
        let topics = shared.projection.topics();
        let targets: Vec<TopicPartition> =
            TopicPartition::all().filter(|target| topics.contains(&target.topic)).collect();
        let count = loops(&shared.options);
        let running = (0..count).map(|index| {
            let share: Vec<TopicPartition> = targets.iter().copied().skip(index).step_by(count).collect();
            let one = Loop { shared: Arc::clone(shared), index, targets: share, cancel: cancel.clone() };
            one.supervise(tasks)
        });
        join_all(running).await;
    }
}

fn loops(options: &Options) -> usize {
    usize::try_from(options.projection.loops).unwrap_or(1).clamp(1, 80)
}

/// A task that ends with its owner.
struct Guard(JoinHandle<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shared {
    /// Creates the schema, trying for ever. `false`: asked to stop before.
    async fn install(&self, cancel: &CancellationToken) -> bool {
        let mut backoff = Backoff::default();
        loop {
            let done = cancel.run_until_cancelled(self.projection.install(&self.pools.owner)).await;
            let error = match done {
                None => return false,
                Some(Ok(())) => return true,
                Some(Err(error)) => error,
            };
            tracing::warn!(error = %error, projection.name = self.me.projection, "the projection's schema is not there yet");
            self.board.set_all(StoreState::Degraded, &error.to_string());
            if cancel.run_until_cancelled(tokio::time::sleep(backoff.next())).await.is_none() {
                return false;
            }
        }
    }

    fn count(&self, committed: &Committed) {
        self.metrics.applied.inc_by(committed.applied);
        self.metrics.duplicates.inc_by(committed.duplicates);
        self.metrics.missing.inc_by(committed.missing);
        self.metrics.parked.inc_by(committed.parked.len() as u64);
        for finding in &committed.findings {
            let lane = finding.incarnation;
            let (kind, detail) = (finding.kind.as_str(), &finding.detail);
            if kind == "conflict" {
                self.metrics.conflicts.inc();
            }
            tracing::error!(
                finding.kind = kind,
                topic = finding.target.topic.name(),
                partition = finding.target.partition,
                position = finding.position,
                lane.incarnation = %lane,
                lane.seq_from = finding.from_seq,
                lane.seq_to = finding.to_seq,
                "the log's lanes do not hold together: {detail}"
            );
        }
        for parked in &committed.parked {
            let frame = &parked.stored.frame;
            tracing::error!(
                topic = frame.target.topic.name(),
                partition = frame.target.partition,
                position = parked.stored.position.0,
                cause = parked.cause,
                "an event was parked: it has no row"
            );
        }
    }
}

/// One loop with its share of the partitions.
#[derive(Clone)]
struct Loop {
    shared: Arc<Shared>,
    index: usize,
    targets: Vec<TopicPartition>,
    cancel: CancellationToken,
}

impl Loop {
    /// Runs the loop as a task, again when it panics: rows must not stay behind because of one bug.
    async fn supervise(self, tasks: &Tasks) {
        let mut backoff = Backoff::default();
        loop {
            let mut task = Guard(tasks.spawn("projection", self.clone().run()));
            match (&mut task.0).await {
                Err(error) if error.is_panic() => {
                    self.set(StoreState::Degraded, "the projection loop panicked and starts again");
                }
                Ok(()) | Err(_) => return,
            }
            if self.cancel.run_until_cancelled(tokio::time::sleep(backoff.next())).await.is_none() {
                return;
            }
        }
    }

    async fn run(self) {
        let mut backoff = Backoff::default();
        loop {
            let mut owned = BTreeMap::new();
            let stop = self.session(&mut owned, &mut backoff).await;
            let wait = backoff.next();
            match stop {
                Stop::Done => {
                    self.release(&owned).await;
                    self.set(StoreState::Ok, "stopped");
                    break;
                }
                Stop::Diverged(detail) => {
                    tracing::error!(
                        detail,
                        "the projection stops: its checkpoints do not belong to this log; {REMEDY}"
                    );
                    self.shared.metrics.stopped.inc();
                    self.set(StoreState::Diverged, &detail);
                    self.release(&owned).await;
                    break;
                }
                Stop::Corrupt(detail) => {
                    tracing::error!(detail, "the projection stops: the log is damaged");
                    self.shared.metrics.stopped.inc();
                    self.set(StoreState::Corrupt, &detail);
                    self.release(&owned).await;
                    break;
                }
                Stop::Fenced => {
                    tracing::warn!("another worker took over partitions of this one; claiming again");
                }
                Stop::Database(error) => {
                    tracing::warn!(error = %error, retry_ms = wait.as_millis(), "Postgres fails the projection");
                    self.set(StoreState::Degraded, &error.to_string());
                }
                Stop::Log(error) => {
                    tracing::error!(error = %error, retry_ms = wait.as_millis(), "the projection cannot read the log");
                    self.set(StoreState::Degraded, &error.to_string());
                }
            }
            if self.cancel.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                break;
            }
        }
    }

    fn set(&self, state: StoreState, detail: &str) {
        self.shared.board.set(self.index, state, detail);
    }

    async fn release(&self, owned: &BTreeMap<TopicPartition, Owned>) {
        let released = lease::release(&self.shared.pools.writer, &self.shared.me, owned);
        match tokio::time::timeout(STOP_GRACE, released).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error = %error, "leases were left to expire"),
            Err(_) => tracing::debug!("leases were left to expire"),
        }
    }

    /// Claims, checks, opens, and applies until something stops it.
    async fn session(&self, owned: &mut BTreeMap<TopicPartition, Owned>, backoff: &mut Backoff) -> Stop {
        let shared = &*self.shared;
        let start = shared.log.start();
        let mut applier = Applier::new(&shared.pools.writer, &shared.me, &*shared.projection, &start);
        match self.follow(owned, &mut applier, backoff).await {
            Ok(()) => Stop::Done,
            Err(stop) => stop,
        }
    }

    async fn follow(
        &self,
        owned: &mut BTreeMap<TopicPartition, Owned>,
        applier: &mut Applier<'_>,
        backoff: &mut Backoff,
    ) -> Result<(), Stop> {
        let shared = &*self.shared;
        let renew = Duration::from_millis(shared.options.projection.lease_renew_ms.max(10));
        let clock = &shared.clock;
        self.claim(owned).await?;
        let lost = self.lost(owned);
        let lost = lost.as_deref();
        let mut reader = self.open(owned)?;
        let (mut renewed, mut claimed) = (clock.monotonic(), clock.monotonic());
        let mut counted = None;
        // After a failure only a commit shows that it is over.
        if backoff.is_fresh() {
            self.ready(owned, lost);
        }
        loop {
            let missing = owned.len() < self.targets.len();
            let left = |every: Duration, last| every.saturating_sub(clock.monotonic().duration_since(last));
            let due = left(renew, renewed);
            let due = if missing { due.min(left(self.claim_interval(renew), claimed)) } else { due };
            let frames = match self.next(&mut *reader, due).await? {
                Next::Stop => return Ok(()),
                Next::Frames(frames) => frames,
                Next::Renew => Vec::new(),
            };
            let renew_all = clock.monotonic().duration_since(renewed) >= renew;
            let mut chunks = chunks(frames);
            if chunks.is_empty() && renew_all && !owned.is_empty() {
                chunks.push(Vec::new());
            }
            for chunk in chunks {
                self.commit(owned, applier, chunk, renew_all).await?;
                backoff.reset();
            }
            if missing && clock.monotonic().duration_since(claimed) >= self.claim_interval(renew) {
                if self.claim(owned).await? {
                    reader = self.open(owned)?;
                }
                claimed = clock.monotonic();
            }
            if renew_all {
                renewed = clock.monotonic();
                self.ready(owned, lost);
            }
            if counted.is_none_or(|at| clock.monotonic().duration_since(at) >= LAG_INTERVAL) {
                self.count_lag(owned).await?;
                counted = Some(clock.monotonic());
            }
        }
    }

    /// How often partitions that are not ours are tried. Where everybody else is dead, only the end of a dead
    /// process's last transaction is waited for.
    fn claim_interval(&self, renew: Duration) -> Duration {
        if self.shared.me.sole_owner { renew.min(CLAIM_INTERVAL) } else { renew }
    }

    /// Waits for frames, for the next renewal or for the end.
    async fn next(&self, reader: &mut dyn Reader, due: Duration) -> Result<Next, Stop> {
        let records_max = self.shared.options.projection.batch_records_max.max(1);
        let waiting = tokio::time::timeout(due, reader.next(records_max));
        match self.cancel.run_until_cancelled(waiting).await {
            None => Ok(Next::Stop),
            Some(Err(_)) => Ok(Next::Renew),
            Some(Ok(frames)) => Ok(Next::Frames(frames?)),
        }
    }

    /// Commits one batch; once asked to stop it gets a moment more, then it is dropped and so rolled back.
    async fn commit(
        &self,
        owned: &mut BTreeMap<TopicPartition, Owned>,
        applier: &mut Applier<'_>,
        frames: Vec<Stored>,
        renew_all: bool,
    ) -> Result<(), Stop> {
        let began = self.shared.clock.monotonic();
        let work = std::pin::pin!(applier.commit(owned, frames, renew_all));
        let stop = std::pin::pin!(async {
            self.cancel.cancelled().await;
            tokio::time::sleep(STOP_GRACE).await;
        });
        let committed = match select(work, stop).await {
            Either::Left((committed, _)) => committed?,
            Either::Right(_) => return Err(Stop::Done),
        };
        if committed.applied > 0 {
            let took = self.shared.clock.monotonic().duration_since(began);
            self.shared.metrics.batch_seconds.observe(took.as_secs_f64());
        }
        self.shared.count(&committed);
        Ok(())
    }

    /// Takes what is free of the partitions that are not ours yet, and checks each against the log. `true`: got some.
    async fn claim(&self, owned: &mut BTreeMap<TopicPartition, Owned>) -> Result<bool, Stop> {
        let missing: Vec<TopicPartition> =
            self.targets.iter().copied().filter(|target| !owned.contains_key(target)).collect();
        let got = match lease::claim(&self.shared.pools.writer, &self.shared.me, &missing).await? {
            Claimed::Owned(got) => got,
            Claimed::OtherLog { target, log } => {
                let ours = self.shared.log.id();
                return Err(Stop::Diverged(format!(
                    "the checkpoint of {target} belongs to log {log}, this is log {ours}"
                )));
            }
        };
        for (target, owned) in &got {
            self.check(*target, owned).await?;
        }
        let any = !got.is_empty();
        owned.extend(got);
        Ok(any)
    }

    /// Reads the frame at the checkpoint again and compares its link.
    async fn check(&self, target: TopicPartition, owned: &Owned) -> Result<(), Stop> {
        let Some(checkpoint) = owned.checkpoint else {
            return Ok(());
        };
        match self.shared.log.frame_at(target, checkpoint.position).await {
            Err(ReadError::Dropped { position, first }) => {
                let tail = self.shared.log.start().tails.get(&target).copied();
                if tail == Some((checkpoint.position, checkpoint.link)) {
                    return Ok(());
                }
                Err(Stop::Diverged(format!(
                    "{target} was applied up to position {position}, but the log starts at position {first} and the \
                     last record before it is another one: rows are missing that only an older copy of the log can give"
                )))
            }
            Ok(stored) if stored.frame.link == checkpoint.link => Ok(()),
            Ok(_) => Err(Stop::Diverged(format!(
                "the event of {target} at position {} is not the one that was applied",
                checkpoint.position
            ))),
            Err(ReadError::NotFound(position)) => Err(Stop::Diverged(format!(
                "{target} was applied up to position {position}, which is not in the log"
            ))),
            Err(error) => Err(error.into()),
        }
    }

    fn open(&self, owned: &BTreeMap<TopicPartition, Owned>) -> Result<Box<dyn Reader>, Stop> {
        let from: Vec<(TopicPartition, Option<Position>)> =
            owned.iter().map(|(target, owned)| (*target, owned.checkpoint.map(|at| at.position))).collect();
        Ok(self.shared.log.reader(&from)?)
    }

    /// What a projection that begins afresh cannot have, because the log dropped it.
    fn lost(&self, owned: &BTreeMap<TopicPartition, Owned>) -> Option<String> {
        let start = self.shared.log.start();
        let is_lost = |(target, owned): &(&TopicPartition, &Owned)| {
            owned.checkpoint.is_none() && start.tails.contains_key(target)
        };
        let partitions = owned.iter().filter(is_lost).count();
        let through = start.recorded_through.filter(|_| partitions > 0)?;
        let first = start.first;
        let detail = format!(
            "rows of events recorded up to {through} cannot be built in {partitions} partitions: the log starts at \
             position {first}, what was before was dropped for its age"
        );
        tracing::warn!(
            detail,
            projection.name = self.shared.me.projection,
            "a projection begins behind a log's start"
        );
        Some(detail)
    }

    fn ready(&self, owned: &BTreeMap<TopicPartition, Owned>, lost: Option<&str>) {
        let standing_by = self.targets.len() - owned.len();
        if standing_by == 0 {
            self.set(StoreState::Ok, lost.unwrap_or_default());
        } else {
            self.set(StoreState::Ok, &format!("{standing_by} partitions are owned by another worker"));
        }
    }

    async fn count_lag(&self, owned: &BTreeMap<TopicPartition, Owned>) -> Result<(), Stop> {
        let mut lag = 0;
        for (target, owned) in owned {
            let after = owned.checkpoint.map(|at| at.position);
            lag += self.shared.log.count_after(*target, after).await?;
        }
        let whole = self.shared.board.set_lag(self.index, lag);
        self.shared.metrics.lag.set(i64::try_from(whole).unwrap_or(i64::MAX));
        Ok(())
    }
}

/// Cuts `frames` so that no transaction carries more than [`BATCH_BYTES_MAX`] and one body.
fn chunks(frames: Vec<Stored>) -> Vec<Vec<Stored>> {
    let mut chunks: Vec<Vec<Stored>> = Vec::new();
    let mut bytes = BATCH_BYTES_MAX;
    for stored in frames {
        if bytes >= BATCH_BYTES_MAX {
            chunks.push(Vec::new());
            bytes = 0;
        }
        bytes += stored.frame.body.len();
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(stored);
        }
    }
    chunks
}

enum Next {
    Frames(Vec<Stored>),
    Renew,
    Stop,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::base::Timestamp;
    use crate::event::Topic;
    use crate::log::Frame;

    #[test]
    fn big_events_are_cut_into_several_transactions_in_order() {
        let body = Bytes::from(vec![b' '; BATCH_BYTES_MAX / 4]);
        let stored = |position| Stored {
            position: Position(position),
            frame: Frame {
                target: TopicPartition { topic: Topic::Admin, partition: 0 },
                incarnation: uuid::Uuid::nil(),
                seq: position,
                recorded_at: Timestamp::from_micros(0),
                content: [0; 32],
                link: [0; 32],
                body: body.clone(),
            },
        };
        let cut: Vec<Vec<u64>> = chunks((0..10).map(stored).collect())
            .iter()
            .map(|chunk| chunk.iter().map(|stored| stored.position.0).collect())
            .collect();
        assert_eq!(cut, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
        assert!(chunks(Vec::new()).is_empty());
    }
}
