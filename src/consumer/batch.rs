//! One batch is one transaction: rows, lane heads, once, parked, findings and the checkpoints move together or not at all.
//!
//! Never commits without having moved the checkpoints under its own lease.

use std::collections::{BTreeMap, HashMap};

use sqlx::{Connection, PgConnection, PgPool};

use super::lane::Head;
use super::lease::{self, Checkpoint, Identity, Move, Owned};
use super::sort::{Finding, LaneKey, Parked, Sorted, lane_of, sort};
use super::state::{self, OnceEntry};
use crate::base::{Timestamp, planted};
use crate::db;
use crate::event::{Decoded, TopicPartition};
use crate::log::{Frame, LogStart, Stored};
use crate::projection::{ApplyError, Item, Projection};

/// Lanes whose heads are kept in memory; beyond that the memory starts afresh.
const HEADS_MAX: usize = 20_000;

/// A batch was not committed, as far as is known.
#[derive(Debug)]
pub(super) enum BatchError {
    /// A lease is not ours any more.
    Fenced,
    /// Postgres failed. A commit may have gone through all the same: read the checkpoints again.
    Database(sqlx::Error),
}

impl From<sqlx::Error> for BatchError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// What a committed batch did.
#[derive(Debug, Default)]
pub(super) struct Committed {
    pub(super) applied: u64,
    pub(super) parked: Vec<Parked>,
    pub(super) findings: Vec<Finding>,
    pub(super) duplicates: u64,
    pub(super) missing: u64,
}

/// Applies batches of one loop. Its memory of lane heads is only as good as the leases: make a new one after any error.
pub(super) struct Applier<'a> {
    pub(super) writer: &'a PgPool,
    pub(super) me: &'a Identity,
    pub(super) projection: &'a dyn Projection,
    heads: HashMap<LaneKey, Option<Head>>,
    /// The heads of lanes whose beginning the log has dropped, for a projection that never saw it.
    before: HashMap<LaneKey, Head>,
}

impl<'a> Applier<'a> {
    pub(super) fn new(
        writer: &'a PgPool,
        me: &'a Identity,
        projection: &'a dyn Projection,
        start: &LogStart,
    ) -> Self {
        let before = start
            .heads
            .iter()
            .map(|head| ((head.target, head.incarnation), Head { seq: head.seq, link: head.link }));
        Self { writer, me, projection, heads: HashMap::new(), before: before.collect() }
    }

    /// Commits `frames`, and renews every lease in `owned` when `renew_all` is set. Moves `owned` after the commit.
    pub(super) async fn commit(
        &mut self,
        owned: &mut BTreeMap<TopicPartition, Owned>,
        frames: Vec<Stored>,
        renew_all: bool,
    ) -> Result<Committed, BatchError> {
        let ends = ends_of(&frames);
        let moves = moves(owned, &ends, renew_all);
        let recorded: Vec<Timestamp> = frames.iter().map(|stored| stored.frame.recorded_at).collect();
        self.projection.prepare(self.writer, &recorded).await?;
        let (committed, heads) = match self.attempt(&moves, frames.clone(), false).await {
            Err(BatchError::Database(error)) if is_about_data(&error) || lost_its_month(&error) => {
                tracing::warn!(error = %error, "Postgres rejects a batch for its data; looking for the event");
                self.projection.forget();
                self.projection.prepare(self.writer, &recorded).await?;
                self.attempt(&moves, frames, true).await?
            }
            done => done?,
        };
        if self.heads.len() > HEADS_MAX {
            self.heads.clear();
        }
        self.heads.extend(heads.into_iter().map(|(key, head)| (key, Some(head))));
        for (target, end) in ends {
            if let Some(owned) = owned.get_mut(&target) {
                owned.checkpoint = Some(end);
            }
        }
        Ok(committed)
    }

    async fn attempt(
        &mut self,
        moves: &[Move],
        frames: Vec<Stored>,
        careful: bool,
    ) -> Result<(Committed, HashMap<LaneKey, Head>), BatchError> {
        // A worker that stalls inside a transaction must not keep its rows locked past its lease.
        let begin = format!(
            "BEGIN; SET LOCAL idle_in_transaction_session_timeout = {0}; SET LOCAL statement_timeout = {1}",
            self.me.lease_ms.min(u64::from(STATEMENT_TIMEOUT_MS)),
            STATEMENT_TIMEOUT_MS
        );
        if planted::armed("checkpoint_outside_tx") {
            let mut connection = self.writer.acquire().await?;
            lease::advance(&mut connection, self.me, moves).await?;
        }
        let mut tx = db::begin_with(self.writer, begin).await?;
        // First, so that a worker that lost its lease does nothing else, and nobody takes a lease while it works.
        if !planted::armed("checkpoint_outside_tx") && !lease::advance(&mut tx, self.me, moves).await? {
            return Err(BatchError::Fenced);
        }
        self.load_heads(&mut tx, &frames).await?;
        let mut sorted = sort(frames, |lane| self.heads.get(&lane).copied().flatten());
        self.drop_repeated(&mut tx, &mut sorted).await?;
        self.settle_behind(&mut tx, &mut sorted).await?;
        self.apply(&mut tx, &mut sorted, careful).await?;
        state::save_heads(&mut tx, self.me, &sorted.heads).await?;
        state::save_parked(&mut tx, self.me, &sorted.parked).await?;
        state::save_findings(&mut tx, self.me, &sorted.findings).await?;
        tx.commit().await?;
        let committed = Committed {
            applied: sorted.items.len() as u64,
            parked: sorted.parked,
            findings: sorted.findings,
            duplicates: sorted.duplicates,
            missing: sorted.missing,
        };
        Ok((committed, sorted.heads))
    }

    async fn load_heads(&mut self, tx: &mut PgConnection, frames: &[Stored]) -> Result<(), sqlx::Error> {
        let mut unknown: Vec<LaneKey> = frames
            .iter()
            .map(|stored| lane_of(&stored.frame))
            .filter(|lane| !self.heads.contains_key(lane))
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.is_empty() {
            return Ok(());
        }
        let found = state::load_heads(tx, self.me, &unknown).await?;
        let head = |lane| found.get(&lane).or_else(|| self.before.get(&lane)).copied();
        self.heads.extend(unknown.into_iter().map(|lane| (lane, head(lane))));
        Ok(())
    }

    /// Drops the `once` events whose (source, id) was applied before; the same with other content is a conflict.
    async fn drop_repeated(&self, tx: &mut PgConnection, sorted: &mut Sorted) -> Result<(), sqlx::Error> {
        let is_once = |item: &Item| item.decoded.common.once && !planted::armed("once_ignored");
        let mut entries = Vec::new();
        let mut places = HashMap::new();
        for item in sorted.items.iter().filter(|item| is_once(item)) {
            let entry = OnceEntry::of(item);
            places.entry((entry.source.clone(), entry.id)).or_insert_with(|| {
                entries.push(entry);
                entries.len() - 1
            });
        }
        if entries.is_empty() {
            return Ok(());
        }
        let mut standing = state::claim_once(tx, self.me, &entries).await?;
        for item in std::mem::take(&mut sorted.items) {
            let place = places.get(&(state::once_source(&item), item.decoded.id));
            match place.and_then(|place| standing.get_mut(*place)).filter(|_| is_once(&item)) {
                None => sorted.items.push(item),
                Some(standing) if standing.content != item.stored.frame.content => {
                    sorted.conflict(item.stored, "another event has this source and id");
                }
                Some(standing) if standing.fresh => {
                    standing.fresh = false;
                    sorted.items.push(item);
                }
                Some(_) => sorted.duplicates += 1,
            }
        }
        Ok(())
    }

    /// Decides what lies behind its lane's head: dropped when the very same event was accepted before, else a conflict.
    async fn settle_behind(&self, tx: &mut PgConnection, sorted: &mut Sorted) -> Result<(), sqlx::Error> {
        let behind = std::mem::take(&mut sorted.behind);
        if behind.is_empty() {
            return Ok(());
        }
        let frames: Vec<Frame> = behind.iter().map(|stored| stored.frame.clone()).collect();
        let applied = self.projection.knows(tx, self.me.log, &frames).await?;
        let parked = state::known_parked(tx, self.me, &behind).await?;
        for (stored, known) in behind.into_iter().zip(applied.into_iter().zip(parked)) {
            let same = known.0 || known.1 || self.is_same_once(tx, &stored).await?;
            if same {
                sorted.duplicates += 1;
            } else {
                sorted.conflict(stored, "another event has this number");
            }
        }
        Ok(())
    }

    async fn is_same_once(&self, tx: &mut PgConnection, stored: &Stored) -> Result<bool, sqlx::Error> {
        let Ok(decoded) = Decoded::read(stored.frame.target.topic, &stored.frame.body) else {
            return Ok(false);
        };
        if !decoded.common.once {
            return Ok(false);
        }
        state::known_once(tx, self.me, &Item { stored: stored.clone(), decoded }).await
    }

    /// Applies the items, parking those that have no rows; with `careful` also those that Postgres rejects.
    async fn apply(
        &self,
        tx: &mut PgConnection,
        sorted: &mut Sorted,
        careful: bool,
    ) -> Result<(), sqlx::Error> {
        if careful {
            return self.apply_bisecting(tx, sorted).await;
        }
        loop {
            match self.projection.apply(tx, self.me.log, &sorted.items).await {
                Ok(()) => return Ok(()),
                Err(ApplyError::Database(error)) => return Err(error),
                // Nothing was sent yet: leave that one out and try again.
                Err(ApplyError::Item { index, cause }) => {
                    let item = sorted.items.remove(index);
                    sorted.leave_out(item, cause.to_string());
                }
            }
        }
    }

    /// Halves the batch until each part is taken or is one event, which is parked.
    async fn apply_bisecting(&self, tx: &mut PgConnection, sorted: &mut Sorted) -> Result<(), sqlx::Error> {
        let mut todo = vec![std::mem::take(&mut sorted.items)];
        while let Some(mut part) = todo.pop() {
            if part.is_empty() {
                continue;
            }
            let mut savepoint = tx.begin().await?;
            let error = match self.projection.apply(&mut savepoint, self.me.log, &part).await {
                Ok(()) => {
                    savepoint.commit().await?;
                    sorted.items.append(&mut part);
                    continue;
                }
                Err(ApplyError::Item { index, cause }) => {
                    savepoint.rollback().await?;
                    sorted.leave_out(part.remove(index), cause.to_string());
                    todo.push(part);
                    continue;
                }
                Err(ApplyError::Database(error)) if !is_about_data(&error) => return Err(error),
                Err(ApplyError::Database(error)) => error,
            };
            savepoint.rollback().await?;
            // In order: a call's intent must be applied before its end.
            let right = part.split_off(part.len() / 2);
            if part.is_empty() {
                for item in right {
                    sorted.leave_out(item, format!("{REJECTED}: {error}"));
                }
            } else {
                todo.push(right);
                todo.push(part);
            }
        }
        Ok(())
    }
}

/// How the cause of an event begins that Postgres does not take.
pub(crate) const REJECTED: &str = "Postgres rejects it";

/// The longest one statement of a batch may run, milliseconds.
const STATEMENT_TIMEOUT_MS: u32 = 30_000;

/// The last frame of each partition in the batch.
fn ends_of(frames: &[Stored]) -> BTreeMap<TopicPartition, Checkpoint> {
    frames
        .iter()
        .map(|stored| {
            (stored.frame.target, Checkpoint { position: stored.position, link: stored.frame.link })
        })
        .collect()
}

fn moves(
    owned: &BTreeMap<TopicPartition, Owned>,
    ends: &BTreeMap<TopicPartition, Checkpoint>,
    renew_all: bool,
) -> Vec<Move> {
    owned
        .iter()
        .map(|(target, owned)| Move {
            target: *target,
            epoch: owned.epoch,
            from: owned.checkpoint.map(|at| at.position),
            to: ends.get(target).copied(),
        })
        .filter(|step| renew_all || step.to.is_some())
        .collect()
}

/// Whether the month of a row is gone again, dropped for its age since it was prepared: the row is not to blame, and
/// trying again helps. A check that a row violates has a name; a missing partition has none.
fn lost_its_month(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    error.code().is_some_and(|code| code == "23514") && error.constraint().is_none()
}

/// Whether Postgres blames the rows, so that trying again is of no use: cardinality (21), data (22), constraint (23)
/// and program limits (54).
fn is_about_data(error: &sqlx::Error) -> bool {
    match error {
        error if lost_its_month(error) && !planted::armed("dropped_month_blames_the_row") => false,
        sqlx::Error::Database(error) => error
            .code()
            .is_some_and(|code| ["21", "22", "23", "54"].iter().any(|class| code.starts_with(class))),
        sqlx::Error::Encode(_) => true,
        _ => false,
    }
}
