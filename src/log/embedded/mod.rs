//! The embedded log: a directory of segment files with one writer, durable by `fdatasync`.
//!
//! ```text
//!   reserve ─► append ─► queue ─► writer thread: write, fdatasync, publish the end, acknowledge
//!      │                              │ seals a full segment, goes on in the prepared one
//!    room                             ▼
//!      └── helper thread: allocates the next segment, writes indexes          readers, scanner: files up to the end
//! ```
//!
//! A position is a byte: the base of the segment (its file name) plus the offset in the file. `docs/log-format.md`
//! describes the files; `storage` holds every file operation. The engine never looks into bodies, never repairs what
//! it cannot vouch for, and deletes a segment only for its age, when it is told to (`retention`).

mod allocate;
mod copy;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod metrics;
mod outage;
mod reader;
mod recovery;
mod retention;
mod room;
mod scanner;
mod segment;
mod small;
mod storage;
mod tracker;
mod vigil;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use self::allocate::Job;
use self::frame::{Codec, header_bytes};
use self::outage::Fault;
use self::recovery::Opened;
use self::retention::{Dropping, Start};
use self::room::{Limits, Room};
use self::small::{SegmentIndex, WATERMARK};
use self::storage::{FileId, Storage};
use self::tracker::Tracker;
use self::vigil::Vigil;
use self::writer::{Command, Done, Writer};
use super::{
    Ack, AppendError, Frame, Health, Log, LogId, LogStart, Position, ReadError, Reader, Refusal, Reservation,
    Stored,
};
use crate::base::Clock;
use crate::config;
use crate::event::{AckCheck, AckClass, Gap, GapCause, TopicPartition};

pub use copy::{CopiedFile, Held, Keep, OpenLanes, check_copy, copy, durable_end, open_lanes};
pub use metrics::{OutageLabels, Stats};
pub use outage::{GAP_BYTES, OnRecovery};
pub use recovery::{OpenError, Recovered, UnclosedLane};
pub use retention::DropError;
pub use scanner::{Scanned, ScannedItem, ScannedSegment, Scanner};

/// The version of the files that this program writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = frame::VERSION;

/// Indexes of sealed segments that are kept in memory.
const INDEXES_MAX: usize = 32;

/// Where the log is and what it may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The log's own directory; made when it is not there.
    pub dir: PathBuf,
    /// Bytes allocated for one segment. A record over that (its body and 183 bytes) is refused as full.
    pub segment_bytes: u64,
    /// Records in flight or set aside at most.
    pub in_flight_records_max: u32,
    /// Body bytes in flight or set aside at most.
    pub in_flight_bytes_max: u64,
    /// How long [`Log::reserve`] waits for room.
    pub reserve_wait: Duration,
    /// How long an append waits for its sync before its fate is called uncertain, and the disk may keep the writer waiting
    /// before the log says that it refuses.
    pub append_wait: Duration,
}

impl Options {
    /// As configured, in `dir`.
    #[must_use]
    pub const fn new(dir: PathBuf, log: &config::Log) -> Self {
        Self {
            dir,
            segment_bytes: log.segment_bytes,
            in_flight_records_max: log.in_flight_records_max,
            in_flight_bytes_max: log.in_flight_bytes_max,
            reserve_wait: Duration::from_millis(log.reserve_wait_ms),
            append_wait: Duration::from_millis(log.append_wait_ms),
        }
    }
}

/// How far readers may go.
#[derive(Debug, Clone, Copy)]
struct Published {
    end: u64,
    closed: bool,
}

/// What the handle, the threads and the readers share.
struct Shared {
    id: LogId,
    codec: Codec,
    storage: Storage,
    clock: Arc<dyn Clock>,
    stats: Stats,
    room: Arc<Room>,
    vigil: Vigil,
    /// To the writer, for readers; gone with the handle.
    looks: Mutex<Option<Sender<Command>>>,
    /// The lock that was taken: were it another file, another process could own the log.
    lock_id: FileId,
    segment_bytes: u64,
    append_wait: Duration,
    on_recovery: OnceLock<OnRecovery>,
    published: watch::Sender<Published>,
    /// Ascending.
    bases: RwLock<Vec<u64>>,
    /// The newest segment's index so far.
    newest: Mutex<SegmentIndex>,
    indexes: Mutex<BTreeMap<u64, Arc<SegmentIndex>>>,
    /// Where the log starts.
    start: RwLock<Arc<Start>>,
    dropping: Mutex<Dropping>,
    /// How the writer ended, once it did on request.
    ended: Mutex<Option<Result<(), AppendError>>>,
}

/// Says that nothing will be written any more, however the writer thread ends.
struct WriterEnd(Arc<Shared>);

impl Drop for WriterEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stats.failed.set(1);
        }
        self.0.room.abandon();
        self.0.vigil.end();
        self.0.published.send_modify(|published| published.closed = true);
    }
}

/// The embedded log. See the module.
pub struct EmbeddedLog {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    threads: Mutex<Option<Threads>>,
    closed: tokio::sync::Mutex<Option<Result<(), AppendError>>>,
}

struct Threads {
    writer: JoinHandle<()>,
    helper: JoinHandle<()>,
    lock: storage::Lock,
}

/// What the threads work with.
struct Parts {
    lock: storage::Lock,
    writer: Writer,
    commands: Receiver<Command>,
    jobs: Receiver<Job>,
}

impl Parts {
    fn start(self, shared: &Arc<Shared>, segment_bytes: u64) -> io::Result<Threads> {
        let Self { lock, writer, commands, jobs } = self;
        let helper = std::thread::Builder::new().name("annals-log-allocate".into()).spawn({
            let shared = shared.clone();
            move || allocate::run(&shared, segment_bytes, &jobs)
        });
        let writer = std::thread::Builder::new().name("annals-log-writer".into()).spawn({
            let end = WriterEnd(shared.clone());
            move || {
                writer.run(&commands);
                drop(end);
            }
        });
        Ok(Threads { writer: writer?, helper: helper?, lock })
    }
}

impl EmbeddedLog {
    /// Opens the log, or creates it, and owns it until it is closed or dropped.
    /// Must run where blocking is fine; reads at most the newest segment.
    ///
    /// # Errors
    /// [`OpenError`]; nothing that was durable is changed.
    pub fn open(options: Options, clock: Arc<dyn Clock>) -> Result<(Arc<Self>, Recovered), OpenError> {
        let storage = Storage::new(&options.dir);
        Self::open_in(&options, clock, storage)
    }

    fn open_in(
        options: &Options,
        clock: Arc<dyn Clock>,
        storage: Storage,
    ) -> Result<(Arc<Self>, Recovered), OpenError> {
        let (mut log, parts, recovered) = Self::assemble(options, clock, storage)?;
        let threads = parts
            .start(&log.shared, options.segment_bytes)
            .map_err(|error| OpenError::Io { file: options.dir.clone(), cause: error.to_string() })?;
        log.threads = Mutex::new(Some(threads));
        Ok((Arc::new(log), recovered))
    }

    /// Opens the log without starting its threads, which are given as parts.
    fn assemble(
        options: &Options,
        clock: Arc<dyn Clock>,
        storage: Storage,
    ) -> Result<(Self, Parts, Recovered), OpenError> {
        let Opened { lock, log, bases, start, tracker, end, indexed, recovered } = recovery::open(&storage)?;
        let failure =
            |error: std::io::Error| OpenError::Io { file: options.dir.clone(), cause: error.to_string() };
        let lock_id = storage.lock_id().map_err(failure)?;
        let lock_id = lock_id.ok_or_else(|| failure(io::Error::other("the lock is not there any more")))?;
        let watermark = storage.open_write(WATERMARK).map_err(failure)?;
        let (jobs, job_queue) = mpsc::channel();
        let (commands, command_queue) = mpsc::channel();
        let stats = Stats::default();
        let limits = Limits {
            records_max: options.in_flight_records_max,
            bytes_max: options.in_flight_bytes_max,
            wait: options.reserve_wait,
        };
        let header = header_bytes(tracker.lanes().len()) as u64;
        // Here and not on the helper thread, so that an opened log accepts at once, however slow the disk is.
        let next = allocate::prepare_as(&storage, segment::PREPARED, options.segment_bytes + header);
        let room = Arc::new(Room::new(limits, clock.clone(), stats.clone(), jobs, header, next));
        stats.watermark_bytes.set(end);
        stats.segments.set(i64::try_from(bases.len()).unwrap_or(i64::MAX));
        let shared = Arc::new(Shared {
            id: log,
            codec: Codec::new(log),
            storage,
            clock,
            stats,
            room,
            vigil: Vigil::default(),
            looks: Mutex::new(Some(commands.clone())),
            lock_id,
            segment_bytes: options.segment_bytes,
            append_wait: options.append_wait,
            on_recovery: OnceLock::new(),
            published: watch::Sender::new(Published { end, closed: false }),
            bases: RwLock::new(bases),
            newest: Mutex::new(SegmentIndex::of(&tracker, end)),
            indexes: Mutex::default(),
            start: RwLock::new(Arc::new(start)),
            dropping: Mutex::default(),
            ended: Mutex::default(),
        });
        let writer = Writer::new(shared.clone(), tracker, end, indexed, watermark);
        let parts = Parts { lock, writer, commands: command_queue, jobs: job_queue };
        let log = Self { shared, commands, threads: Mutex::default(), closed: tokio::sync::Mutex::new(None) };
        Ok((log, parts, recovered))
    }

    /// Writes durably that no lane of `incarnation` is open any more, so that later openings do not list them.
    ///
    /// # Errors
    /// As [`Log::reserve`] and the ack of [`Log::append`].
    pub async fn mark_closed(&self, incarnation: Uuid) -> Result<(), AppendError> {
        let reservation = self.reserve(1, 0).await?;
        let at = self.shared.clock.now();
        let ack =
            self.send(reservation, 0, |bytes, done| Command::MarkClosed { incarnation, at, bytes, done });
        ack.await.map(|_| ())
    }

    /// Nobody copies the log while the result lives, so segments may be dropped. `None` while somebody does.
    ///
    /// # Errors
    /// What the system says.
    pub fn nobody_copies(&self) -> io::Result<Option<Keep>> {
        Keep::nobody(self.shared.storage.dir())
    }

    /// Has `call` called after each outage, before anything new is accepted: see [`OnRecovery`]. Once only.
    pub fn on_recovery(&self, call: OnRecovery) {
        if self.shared.on_recovery.set(call).is_err() {
            tracing::error!("a second recipient of the log's outages is ignored");
        }
    }

    /// The log's live figures.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Registers the figures as `annals_log_…`.
    pub fn register(&self, registry: &mut Registry) {
        self.shared.stats.register(registry);
    }

    /// Hands a command over, into the room of `reservation`, which must be one record of at least `needed` bytes.
    fn send(
        &self,
        mut reservation: Reservation,
        needed: u64,
        command: impl FnOnce(u64, Done) -> Command,
    ) -> Ack {
        let (records, bytes) = reservation.consume();
        let Some(spare) = records.checked_sub(1).filter(|_| bytes >= needed) else {
            // A bug of the caller. The room of others is not touched, so the log stays what it promised to be.
            super::RoomKeeper::release(&*self.shared.room, records, bytes);
            let cause = format!("a record of {needed} bytes was given room for {records} records of {bytes}");
            tracing::error!(cause, "a record does not fit its reservation");
            return Box::pin(async { Err(AppendError::Refused(Refusal::Full(cause))) });
        };
        if spare > 0 {
            super::RoomKeeper::release(&*self.shared.room, spare, 0);
        }
        let (done, acknowledged) = oneshot::channel();
        let handed = self.shared.room.unless_stopped(|| {
            self.shared.stats.in_flight_records.inc();
            // Were the writer gone, the other end of `done` would be dropped with the command.
            drop(self.commands.send(command(bytes, done)));
        });
        if let Err(refusal) = handed {
            super::RoomKeeper::release(&*self.shared.room, 1, bytes);
            return Box::pin(async { Err(AppendError::Refused(refusal)) });
        }
        let wait = self.shared.append_wait;
        Box::pin(async move {
            match tokio::time::timeout(wait, acknowledged).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(AppendError::Uncertain("the log's writer is gone".into())),
                Err(_) => {
                    let cause = format!("the disk has not answered for {} ms", wait.as_millis());
                    Err(AppendError::Uncertain(cause))
                }
            }
        })
    }

    /// Why nothing new may be promised, because the disk keeps the writer waiting.
    fn hangs(&self) -> Option<String> {
        let busy = self.shared.vigil.busy_for(self.shared.clock.monotonic());
        let hangs = busy >= self.shared.append_wait;
        hangs.then(|| format!("the disk has not answered for {} ms", busy.as_millis()))
    }
}

/// The room that was set aside by [`Room::recovered`].
fn room_for_gap(shared: &Shared) -> Reservation {
    Reservation::new(shared.room.clone(), 1, GAP_BYTES)
}

impl Threads {
    /// Waits for the threads, then lets the lock go.
    fn join(self, shared: &Shared) {
        let Self { writer, helper, lock } = self;
        if writer.join().is_err() {
            tracing::error!("the log's writer panicked");
        }
        shared.room.hand(Job::Stop);
        if helper.join().is_err() {
            tracing::error!("the thread that allocates log segments panicked");
        }
        let_go(shared, lock);
    }
}

/// What is left to do once nobody works on the files any more.
fn let_go(shared: &Shared, lock: storage::Lock) {
    let is_ours = shared.check_lock().is_ok();
    for name in [segment::PREPARED, segment::RESCUED] {
        if is_ours && let Err(error) = shared.storage.remove(name) {
            tracing::warn!(%error, "a prepared log segment stays behind");
        }
    }
    drop(lock);
}

impl Log for EmbeddedLog {
    fn id(&self) -> LogId {
        self.shared.id
    }

    fn ack_class(&self) -> (AckClass, AckCheck) {
        (AckClass::Fsync, AckCheck::Verified)
    }

    fn reserve(&self, records: u32, bytes: u64) -> BoxFuture<'_, Result<Reservation, AppendError>> {
        Box::pin(async move {
            if let Some(cause) = self.hangs() {
                self.shared.stats.refused.inc();
                return Err(AppendError::Refused(Refusal::Suspended(cause)));
            }
            self.shared.room.reserve(records, bytes).await?;
            Ok(Reservation::new(self.shared.room.clone(), records, bytes))
        })
    }

    fn append(&self, reservation: Reservation, frame: Frame) -> Ack {
        let needed = frame.body.len() as u64;
        self.send(reservation, needed, |bytes, done| Command::Append { frame, bytes, done })
    }

    fn start(&self) -> LogStart {
        self.shared.start().known.clone()
    }

    fn reader(&self, from: &[(TopicPartition, Option<Position>)]) -> Result<Box<dyn Reader>, ReadError> {
        Ok(Box::new(reader::SegmentReader::new(self.shared.clone(), from)?))
    }

    fn reader_from_end(&self, targets: &[TopicPartition]) -> Result<Box<dyn Reader>, ReadError> {
        Ok(Box::new(reader::SegmentReader::from_end(self.shared.clone(), targets)))
    }

    fn frame_at(
        &self,
        target: TopicPartition,
        position: Position,
    ) -> BoxFuture<'_, Result<Stored, ReadError>> {
        let shared = self.shared.clone();
        Box::pin(blocking(shared, move |shared| reader::frame_at(shared, target, position)))
    }

    fn count_after(
        &self,
        target: TopicPartition,
        after: Option<Position>,
    ) -> BoxFuture<'_, Result<u64, ReadError>> {
        let shared = self.shared.clone();
        Box::pin(blocking(shared, move |shared| {
            // The part first: it can only be smaller than the whole that is asked for later.
            let before = || Ok(shared.start().count(target));
            let through = after.map_or_else(before, |after| reader::count_through(shared, target, after))?;
            Ok(shared.count(target).saturating_sub(through))
        }))
    }

    fn health(&self) -> Health {
        self.shared.room.refusing().or_else(|| self.hangs()).map_or(Health::Accepting, Health::Refusing)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), AppendError>> {
        Box::pin(async move {
            let mut closed = self.closed.lock().await;
            if let Some(result) = &*closed {
                return result.clone();
            }
            let (done, finished) = oneshot::channel();
            self.shared.room.stop(Refusal::Closed, || drop(self.commands.send(Command::Close { done })));
            // An earlier close that was not awaited to its end may have been the one that the writer obeyed.
            let result = finished.await.unwrap_or_else(|_| {
                let ended = self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
                ended.unwrap_or_else(|| Err(AppendError::Uncertain("the log's writer is gone".into())))
            });
            let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(threads) = threads {
                let shared = self.shared.clone();
                if tokio::task::spawn_blocking(move || threads.join(&shared)).await.is_err() {
                    tracing::error!("the log's threads could not be joined");
                }
            }
            *closed = Some(result.clone());
            result
        })
    }
}

/// Reads on a blocking thread. While the writer is in trouble, what cannot be read is no damage.
async fn blocking<T: Send + 'static>(
    shared: Arc<Shared>,
    work: impl FnOnce(&Shared) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, ReadError> {
    let read = move || {
        let changes = shared.vigil.changes();
        match work(&shared) {
            Err(ReadError::Corrupt { file, cause, .. }) if shared.trouble_explains(changes) => {
                Err(ReadError::Io { file, cause })
            }
            result => result,
        }
    };
    tokio::task::spawn_blocking(read).await.unwrap_or(Err(ReadError::Closed))
}

impl Shared {
    /// The lock is still the file that this process locked. Else another process may own the directory: its files are not
    /// touched, and it may have found our end already, so that what is written behind it would be cut.
    fn check_lock(&self) -> Result<(), Fault> {
        match self.storage.lock_id() {
            Ok(found) if found == Some(self.lock_id) => Ok(()),
            Ok(Some(_)) => Err(Fault::replaced()),
            Ok(None) if self.storage.is_there() => {
                Err(Fault::new(GapCause::Missing, "the log's lock is not there any more"))
            }
            Ok(None) => Err(Fault::directory_missing()),
            Err(error) => Err(Fault::io("look at the log's directory", &error)),
        }
    }

    /// Whether trouble of the writer explains that something cannot be read: see [`Vigil::explains`].
    fn trouble_explains(&self, changes: u64) -> bool {
        self.vigil.explains(changes, || {
            if let Some(writer) = &*self.looks.lock().unwrap_or_else(PoisonError::into_inner) {
                // A writer that is gone has said so.
                drop(writer.send(Command::Look));
            }
        })
    }

    /// Room for one record is set aside for who is told.
    fn tell(&self, outage: Gap) {
        let room = Reservation::new(self.room.clone(), 1, GAP_BYTES);
        match self.on_recovery.get() {
            Some(on_recovery) => on_recovery(outage, room),
            None => drop(room),
        }
    }

    /// The durable end moved.
    fn publish(&self, end: u64) {
        self.stats.watermark_bytes.set(end);
        self.published.send_modify(|published| published.end = end);
    }

    /// The writer ended: as `result` says, or by itself.
    fn end(&self, result: Result<(), AppendError>) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }

    fn add_segment(&self, base: u64) {
        let mut bases = self.bases.write().unwrap_or_else(PoisonError::into_inner);
        bases.push(base);
        self.stats.segments.set(i64::try_from(bases.len()).unwrap_or(i64::MAX));
    }

    /// The writer's index, as far as it is durable.
    fn follow(&self, tracker: &Tracker) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.base != tracker.base() {
            newest.base = tracker.base();
            newest.base_counts = tracker.base_counts().to_vec();
            newest.marks.clear();
        }
        let known = newest.marks.len();
        newest.marks.extend_from_slice(tracker.marks().get(known..).unwrap_or_default());
        newest.state.counts.copy_from_slice(tracker.counts());
    }

    fn count(&self, target: TopicPartition) -> u64 {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).state.counts[target.index()]
    }

    /// The base of the segment that holds `position`, and where it ends as far as it is readable.
    fn segment_of(&self, position: u64, end: u64) -> (u64, u64) {
        let bases = self.bases.read().unwrap_or_else(PoisonError::into_inner);
        let behind = bases.partition_point(|&base| base <= position);
        let base = behind.checked_sub(1).and_then(|index| bases.get(index)).copied().unwrap_or(0);
        (base, bases.get(behind).copied().unwrap_or(end).min(end))
    }

    fn index_of(&self, base: u64, end: u64) -> Result<Arc<SegmentIndex>, ReadError> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.base == base {
            return Ok(Arc::new(newest.clone()));
        }
        drop(newest);
        let cached = self.indexes.lock().unwrap_or_else(PoisonError::into_inner).get(&base).cloned();
        if let Some(index) = cached {
            return Ok(index);
        }
        let index = Arc::new(reader::load_index(self, base, end)?);
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        if indexes.len() >= INDEXES_MAX {
            indexes.pop_first();
        }
        indexes.insert(base, index.clone());
        Ok(index)
    }
}

impl Drop for EmbeddedLog {
    fn drop(&mut self) {
        // Without its sender the writer ends after what is in the queue; the end is not marked as clean.
        self.commands = mpsc::channel().0;
        drop(self.shared.looks.lock().unwrap_or_else(PoisonError::into_inner).take());
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(threads) = threads {
            threads.join(&self.shared);
        }
    }
}
