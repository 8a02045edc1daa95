//! The log: the ground state. A port that engines implement, and the lanes above it.
//!
//! # The contract
//!
//! ```text
//!   reserve ──► append(frame) ──► ack            per (topic, partition): positions increase in the order of append
//!      │            │              │
//!   may refuse   infallible     Ok(position): durable as `ack()` says, every reader will see it
//!   (certainly   (order is      Err(Refused): certainly not written, and nothing of the partition will be
//!    not written) fixed here)   Err(Uncertain): may be written, now or later, before all that follows it
//! ```
//!
//! - `reserve` MUST make every check that can refuse, and MUST wait (bounded) rather than shed when the log is busy.
//! - `append` MUST keep the order of its calls per partition, and MUST NOT block.
//! - An engine that answers `Uncertain` MUST keep the frame and write the same bytes in their order once it can, or never
//!   write anything of that partition again; so a lane has no holes. Room that was reserved stays good meanwhile.
//! - A frame that a reader has seen MUST be durable. Readers MUST give each partition's frames in order, without
//!   gap or repetition, the same when replayed as when followed live.
//! - An engine MUST NOT look into bodies, and MUST give back exactly the bytes that it got.

pub mod embedded;
mod lane;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use uuid::Uuid;

use crate::base::Timestamp;
use crate::event::{AckCheck, AckClass, Link, LinkInput, TopicPartition, link};

pub use lane::{Lanes, Receipt, RecordError};

/// Identity of one log, minted when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogId(pub Uuid);

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a frame stands in its partition: ordered, not dense. The embedded log uses the byte offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub u64);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One event with what its lane gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Where it belongs.
    pub target: TopicPartition,
    /// The process start whose lane it is in.
    pub incarnation: Uuid,
    /// Its number in the lane, from 0.
    pub seq: u64,
    /// The lane's clock, never going back within the lane.
    pub recorded_at: Timestamp,
    /// SHA-256 of the body.
    pub content: [u8; 32],
    /// The lane's link at this event.
    pub link: Link,
    /// The event.
    pub body: Bytes,
}

impl Frame {
    /// The link that it must have when `prev` is that of the frame before it in its lane.
    #[must_use]
    pub fn link_behind(&self, prev: &Link) -> Link {
        link(&LinkInput {
            prev,
            incarnation: self.incarnation,
            topic: self.target.topic,
            partition: self.target.partition,
            seq: self.seq,
            recorded_at: self.recorded_at,
            content: &self.content,
        })
    }
}

/// A frame as a reader gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Where it stands.
    pub position: Position,
    /// The frame.
    pub frame: Frame,
}

/// An append did not end in an ack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Certainly not written. Nothing was sequenced.
    #[error("the log refuses to write: {0}")]
    Refused(Refusal),
    /// It may or may not be written, and may still be written later.
    #[error("the log failed while writing: {0}")]
    Uncertain(String),
}

/// Why a reservation is refused. Each is retryable after a while, except `Failed` and `Closed`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too much is in flight, and waiting did not help.
    #[error("too many records are waiting to be written")]
    Busy,
    /// No room left on the disk for the record and the outcomes of running calls.
    #[error("no room is left: {0}")]
    Full(String),
    /// The log cannot write for now, and why. It accepts again by itself once it can.
    #[error("the log cannot write: {0}")]
    Suspended(String),
    /// The log failed and does not accept until it is opened again.
    #[error("the log failed: {0}")]
    Failed(String),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

/// Something could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The file system failed.
    #[error("cannot read {file}: {cause}")]
    Io {
        /// The file.
        file: String,
        /// What the system said.
        cause: String,
    },
    /// A copy could not be written.
    #[error("cannot write {file}: {cause}")]
    Write {
        /// The file.
        file: String,
        /// What the system said.
        cause: String,
    },
    /// The bytes are not what was written.
    #[error("{file} is corrupt at byte {offset} (position {position}): {cause}")]
    Corrupt {
        /// The file.
        file: String,
        /// The first bad byte's record starts here in the file.
        offset: u64,
        /// The same as a position.
        position: u64,
        /// What does not hold.
        cause: String,
    },
    /// The position lies before the log's start: records there were dropped for their age.
    #[error("position {position} was dropped for its age: the log starts at position {first}")]
    Dropped {
        /// What was asked for.
        position: Position,
        /// Where the log starts.
        first: Position,
    },
    /// The position is not the start of a record of this partition.
    #[error("position {0} is not in the log")]
    NotFound(Position),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

/// Where a log starts, and what is known of the records before that. A log that nothing was dropped from has the default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogStart {
    /// The first position that is kept; 0 when nothing was dropped.
    pub first: Position,
    /// The newest clock of a record that was dropped.
    pub recorded_through: Option<Timestamp>,
    /// The last record before the start of each partition that has one: its position and link.
    pub tails: BTreeMap<TopicPartition, (Position, Link)>,
    /// The last record before the start of each lane that may go on behind it.
    pub heads: Vec<StartHead>,
}

/// A lane as a log's start found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartHead {
    /// The lane's process start.
    pub incarnation: Uuid,
    /// Its topic and partition.
    pub target: TopicPartition,
    /// The number of its last record before the start.
    pub seq: u64,
    /// The link there.
    pub link: Link,
    /// The lane's clock there.
    pub recorded_at: Timestamp,
}

/// What the log says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It accepts.
    Accepting,
    /// It does not, and why.
    Refusing(String),
}

/// Gives room back when a reservation is dropped with some left. Implemented by engines.
pub trait RoomKeeper: Send + Sync {
    /// `records` and `bytes` are free again.
    fn release(&self, records: u32, bytes: u64);
}

/// Room in the log for records that are certain to be accepted. What is unused is given back on drop.
pub struct Reservation {
    keeper: Option<Arc<dyn RoomKeeper>>,
    records: u32,
    bytes: u64,
}

impl Reservation {
    /// For engines: `records` frames of together `bytes` body bytes were set aside in `keeper`.
    #[must_use]
    pub fn new(keeper: Arc<dyn RoomKeeper>, records: u32, bytes: u64) -> Self {
        Self { keeper: Some(keeper), records, bytes }
    }

    /// Takes one record of at most `bytes` body bytes out. `None` when that much is not left.
    #[must_use]
    pub fn take(&mut self, bytes: u64) -> Option<Self> {
        self.records = self.records.checked_sub(1)?;
        let Some(left) = self.bytes.checked_sub(bytes) else {
            self.records += 1;
            return None;
        };
        self.bytes = left;
        Some(Self { keeper: self.keeper.clone(), records: 1, bytes })
    }

    /// Body bytes left.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// For engines: the room is used now, and no longer given back on drop.
    /// Returns (records, bytes).
    pub fn consume(&mut self) -> (u32, u64) {
        (std::mem::take(&mut self.records), std::mem::take(&mut self.bytes))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(keeper) = &self.keeper
            && (self.records > 0 || self.bytes > 0)
        {
            keeper.release(self.records, self.bytes);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("records", &self.records)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// The ack of one append.
pub type Ack = BoxFuture<'static, Result<Position, AppendError>>;

/// The port. See the module's contract.
pub trait Log: Send + Sync + 'static {
    /// The log's identity.
    fn id(&self) -> LogId;

    /// What an ack means, and how far that is known.
    fn ack_class(&self) -> (AckClass, AckCheck);

    /// Sets room aside for `records` frames of together at most `bytes` body bytes; waits while the log is busy.
    ///
    /// # Errors
    /// [`AppendError::Refused`] only: nothing is written.
    fn reserve(&self, records: u32, bytes: u64) -> BoxFuture<'_, Result<Reservation, AppendError>>;

    /// Hands `frame` over, into the room of `reservation` (made for one record of at least this size).
    /// The order of calls is the order in the partition. The ack must be awaited or deliberately left.
    fn append(&self, reservation: Reservation, frame: Frame) -> Ack;

    /// Where it starts. Engines that drop nothing keep this.
    fn start(&self) -> LogStart {
        LogStart::default()
    }

    /// A reader of the given partitions, each from behind the given position (`None`: from the start). A position before
    /// the start is taken when it is that of the partition's last record there, so that nothing is passed over.
    ///
    /// # Errors
    /// [`ReadError::NotFound`] when a position is past the end, [`ReadError::Dropped`] when records behind it were dropped.
    fn reader(&self, from: &[(TopicPartition, Option<Position>)]) -> Result<Box<dyn Reader>, ReadError>;

    /// A reader of what becomes durable in the given partitions from now on.
    ///
    /// # Errors
    /// [`ReadError`].
    fn reader_from_end(&self, targets: &[TopicPartition]) -> Result<Box<dyn Reader>, ReadError>;

    /// The frame that stands exactly at `position`, to compare its link with a checkpoint's.
    ///
    /// # Errors
    /// [`ReadError::NotFound`] when none starts there.
    fn frame_at(
        &self,
        target: TopicPartition,
        position: Position,
    ) -> BoxFuture<'_, Result<Stored, ReadError>>;

    /// How many durable frames `target` has behind `after` (`None`: all).
    ///
    /// # Errors
    /// [`ReadError`] when the index cannot be read.
    fn count_after(
        &self,
        target: TopicPartition,
        after: Option<Position>,
    ) -> BoxFuture<'_, Result<u64, ReadError>>;

    /// Whether it accepts appends now.
    fn health(&self) -> Health;

    /// Writes what is in flight, marks the end as clean and lets go. Later appends are refused as closed.
    ///
    /// # Errors
    /// [`AppendError::Uncertain`] when the last write or sync failed.
    fn close(&self) -> BoxFuture<'_, Result<(), AppendError>>;
}

/// Follows partitions of the log.
pub trait Reader: Send {
    /// Waits until at least one frame is there and gives at most `records_max`, in order per partition.
    /// Cancel-safe: a dropped future loses nothing.
    ///
    /// # Errors
    /// [`ReadError::Closed`] once the log was closed and everything was given. After [`ReadError::Io`] it can be asked
    /// again and has lost nothing; other errors stay.
    fn next(&mut self, records_max: usize) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>>;

    /// As [`Reader::next`], without waiting: empty when the reader is caught up.
    ///
    /// # Errors
    /// [`ReadError`].
    fn next_ready(&mut self, records_max: usize) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>>;
}
