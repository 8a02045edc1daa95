//! Projections: pure functions from events to rows, and the SQL that stores those rows.
//!
//! A projection decides what an event means as rows. It never reads the log, never moves a checkpoint, never commits
//! and never asks for the time: the consumer does the first three, and rebuilding must give the same rows.

pub mod audit;
mod text;

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::{PgConnection, PgPool};

use crate::base::Timestamp;
use crate::event::{Decoded, Topic};
use crate::log::{Frame, LogId, Stored};

pub use audit::Audit as AuditProjection;
pub use text::{clean, json_for_postgres};

/// One event that a projection is to apply: as stored, and read.
#[derive(Debug, Clone)]
pub struct Item {
    /// Position and frame.
    pub stored: Stored,
    /// The frame's body, read.
    pub decoded: Decoded,
}

/// An event that can be read, but has no rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the event has no row: {0}")]
pub struct Unprojectable(pub String);

/// A batch was not applied. Whatever it did must be rolled back.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Postgres refused or went away.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    /// One event of the batch has no rows; nothing was sent to Postgres.
    #[error("item {index}: {cause}")]
    Item {
        /// Which one, from 0.
        index: usize,
        /// Why.
        cause: Unprojectable,
    },
}

/// A read model of the log in Postgres.
///
/// - `apply` MUST do all its writes on the given connection, inside the transaction that is open there, and MUST
///   give the same rows for the same events, however they are cut into batches.
/// - `apply` MUST work the pure half out for the whole batch before it writes.
/// - Partitions are applied at the same time by several workers; only the order within one partition is given.
pub trait Projection: Send + Sync + 'static {
    /// The name in checkpoints; never changes.
    fn name(&self) -> &'static str;

    /// The version in checkpoints; another version has a schema of its own.
    fn version(&self) -> i32;

    /// What it follows.
    fn topics(&self) -> &'static [Topic];

    /// Creates or completes its schema, as `annals_owner`. Idempotent, and safe when several processes do it at once.
    fn install<'a>(&'a self, owner: &'a PgPool) -> BoxFuture<'a, Result<(), sqlx::Error>>;

    /// Makes room for events recorded at these times (partitions), as `annals_writer`, outside the batch's transaction.
    fn prepare<'a>(
        &'a self,
        writer: &'a PgPool,
        recorded: &'a [Timestamp],
    ) -> BoxFuture<'a, Result<(), sqlx::Error>>;

    /// Forgets what it believes to have prepared: the next `prepare` asks Postgres again.
    fn forget(&self);

    /// Writes the rows of `batch`, which is in order per partition, into the open transaction.
    fn apply<'a>(
        &'a self,
        tx: &'a mut PgConnection,
        log: LogId,
        batch: &'a [Item],
    ) -> BoxFuture<'a, Result<(), ApplyError>>;

    /// For each frame, whether a row of the very same frame (lane, number and link) was applied before.
    fn knows<'a>(
        &'a self,
        tx: &'a mut PgConnection,
        log: LogId,
        frames: &'a [Frame],
    ) -> BoxFuture<'a, Result<Vec<bool>, sqlx::Error>>;
}

/// How long one DDL step may wait for others that do the same.
pub(crate) const INSTALL_LOCK_TIMEOUT: Duration = Duration::from_secs(30);
