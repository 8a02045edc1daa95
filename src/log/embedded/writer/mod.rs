//! The writer thread: takes all that waits, writes it at once, syncs once, publishes, then acknowledges.
//!
//! No ack before the sync that covers it returned, and the file still has its name and its length. After an error
//! nothing is synced again: the file is let go, and `rescue` writes what was not acknowledged from memory into a new
//! segment. Until that is done the log refuses, and keeps what it promised room for.

mod batch;
mod rescue;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use uuid::Uuid;

use self::batch::{Batch, Record};
use self::rescue::Trouble;
use super::Shared;
use super::allocate::Job;
use super::frame::{Place, header_bytes};
use super::outage::Fault;
use super::segment::{self, PREPARED, index_name};
use super::small::{SegmentIndex, Watermark};
use super::storage::{Standing, WriteFile};
use super::tracker::Tracker;
use crate::base::{Timestamp, planted};
use crate::event::GapCause;
use crate::log::{AppendError, Frame, Position};

/// Bytes that one write takes at most, but for its last record.
const BATCH_BYTES: u64 = 8 << 20;

/// How far ahead of a small batch zeros are written. A sync that enters blocks which were only allocated has to write where they
/// are, too; with the zeros that is so once in many batches.
const AHEAD_BYTES: usize = 512 << 10;

/// A batch over this size pays for itself, and twice its bytes would cost more than they save.
const SMALL_BATCH_BYTES: usize = 128 << 10;

static ZEROS: [u8; AHEAD_BYTES] = [0; AHEAD_BYTES];

/// How often the files are looked at while nothing fails, and a rescue is tried while something does.
pub(super) const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// Where the result of an append goes.
pub(super) type Done = oneshot::Sender<Result<Position, AppendError>>;

/// Work for the thread.
pub(super) enum Command {
    /// Write an event into room of `bytes` body bytes.
    Append { frame: Frame, bytes: u64, done: Done },
    /// Write that the lanes of an incarnation are closed, into room of `bytes` bytes.
    MarkClosed { incarnation: Uuid, at: Timestamp, bytes: u64, done: Done },
    /// Look at the files: a reader found something that should not be.
    Look,
    /// End cleanly.
    Close { done: oneshot::Sender<Result<(), AppendError>> },
}

/// The thread's state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// What follows from the durable frames.
    tracker: Tracker,
    /// `None` until the first roll after opening: the segment before is sealed already.
    active: Option<Active>,
    watermark: WriteFile,
    /// Everything before this position is durable.
    durable: u64,
    /// Where the next frame goes.
    position: u64,
    /// The newest segment has its index.
    indexed: bool,
    /// What waits for its sync, or, in trouble, for the rescue.
    batch: Batch,
    trouble: Option<Trouble>,
    watched: Instant,
    /// How many were told at once the last time: so many may be about to come back.
    told: u32,
}

/// The segment that is written.
struct Active {
    file: WriteFile,
    /// The file's bytes so far. What was acknowledged outlives the loss of the file.
    image: Vec<u8>,
    /// Bytes that are allocated.
    bytes: u64,
    /// So far there are zeros or records on the disk, and not only room.
    zeroed: u64,
}

impl Active {
    /// Writes the image from `offset` on, and zeros behind it now and then.
    fn write_from(&mut self, offset: u64) -> io::Result<()> {
        let batch =
            usize::try_from(offset).ok().and_then(|offset| self.image.get(offset..)).unwrap_or_default();
        self.file.write_at(batch, offset)?;
        let end = self.image.len() as u64;
        if end > self.zeroed && batch.len() <= SMALL_BATCH_BYTES {
            let rest = usize::try_from(self.bytes.saturating_sub(end)).unwrap_or(usize::MAX);
            let zeros = ZEROS.get(..rest).unwrap_or(&ZEROS);
            if !zeros.is_empty() {
                self.file.write_at(zeros, end)?;
            }
            self.zeroed = end + zeros.len() as u64;
        }
        Ok(())
    }
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        tracker: Tracker,
        end: u64,
        indexed: bool,
        watermark: WriteFile,
    ) -> Self {
        let watched = shared.clock.monotonic();
        Self {
            shared,
            tracker,
            active: None,
            watermark,
            durable: end,
            position: end,
            indexed,
            batch: Batch::default(),
            trouble: None,
            watched,
            told: 0,
        }
    }

    /// Works until the log is closed or dropped.
    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        loop {
            match commands.recv_timeout(WATCH_INTERVAL) {
                Ok(first) => {
                    if !self.turn(first, commands) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = self.shared.clock.monotonic();
            if now.saturating_duration_since(self.watched) >= WATCH_INTERVAL {
                self.watch();
            }
        }
    }

    /// Takes `first` and all that waits behind it, and makes it durable. `false` when that closed the log.
    pub(super) fn turn(&mut self, first: Command, commands: &Receiver<Command>) -> bool {
        let mut next = Some(first);
        while let Some(command) = next {
            match command {
                Command::Append { frame, bytes, done } => self.take(Record::event(frame, bytes, done)),
                Command::MarkClosed { incarnation, at, bytes, done } => {
                    self.take(Record::closed(incarnation, at, bytes, done));
                }
                Command::Look => {
                    self.flush();
                    self.watch();
                }
                Command::Close { done } => {
                    self.flush();
                    let result = self.close();
                    self.shared.end(result.clone());
                    drop(done.send(result));
                    return false;
                }
            }
            if self.position - self.durable >= BATCH_BYTES {
                self.flush();
            }
            next = commands.try_recv().ok().or_else(|| self.gather(commands));
        }
        self.flush();
        true
    }

    /// The callers that were told at once come back at once, but not before this thread lets them: without that the first
    /// one starts the next sync and the others wait for the one behind it. Nobody is waited for who does not come.
    fn gather(&self, commands: &Receiver<Command>) -> Option<Command> {
        if self.batch.len() >= self.told {
            return None;
        }
        std::thread::yield_now();
        commands.try_recv().ok()
    }

    /// Looks whether the files are as they should be, or tries to mend what is not.
    pub(super) fn watch(&mut self) {
        self.watched = self.shared.clock.monotonic();
        if self.trouble.is_some() {
            self.mend();
        } else if let Err(fault) = self.at_the_disk(|writer| writer.inspect()) {
            self.fail(fault);
        }
        self.shared.vigil.inspected();
    }

    fn take(&mut self, record: Record) {
        if self.trouble.is_none() && !self.fits(&record) {
            self.flush();
            // A rescue in between went on in another segment, which has room for it.
            if self.trouble.is_none()
                && !self.fits(&record)
                && let Err(fault) = self.at_the_disk(Self::roll)
            {
                self.fail(fault);
            }
        }
        match &mut self.active {
            Some(active) if self.trouble.is_none() => {
                let place = Place { position: self.position, write_start: self.durable };
                let record = record.encoded(self.shared.codec, place, &mut active.image);
                self.position = self.tracker.base() + active.image.len() as u64;
                self.batch.push(record);
            }
            _ => self.batch.push(record),
        }
    }

    fn fits(&self, record: &Record) -> bool {
        record.frame_bytes() <= self.rest()
    }

    /// Makes the batch durable and acknowledges it.
    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if self.trouble.is_some() {
            self.leave_uncertain();
            return;
        }
        if planted::armed("ack_before_sync") {
            self.batch.acknowledge();
        }
        match self.at_the_disk(Self::write_batch) {
            Ok(()) => self.settle(),
            Err(fault) => self.fail(fault),
        }
    }

    /// Does something that the disk may keep waiting.
    fn at_the_disk<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        self.shared.vigil.begins(self.shared.clock.monotonic());
        let result = work(self);
        self.shared.vigil.ends();
        result
    }

    fn write_batch(&mut self) -> Result<(), Fault> {
        let offset = self.durable - self.tracker.base();
        let Some(active) = &mut self.active else {
            return Err(Fault::new(GapCause::Io, "no segment is active"));
        };
        let written = active.write_from(offset);
        written.map_err(|error| Fault::io(&format!("write {}", active.file.name()), &error))?;
        if planted::armed("watermark_before_data") {
            self.write_watermark(self.position, false).map_err(|error| watermark_fault(&error))?;
        }
        let Some(active) = &self.active else { return Ok(()) };
        let started = self.shared.clock.monotonic();
        let mut synced = active.file.sync_data();
        if synced.is_err() && planted::armed("failed_sync_retried") {
            synced = active.file.sync_data();
        }
        synced.map_err(|error| Fault::io(&format!("sync {}", active.file.name()), &error))?;
        let took = self.shared.clock.monotonic().saturating_duration_since(started);
        self.shared.stats.sync_seconds.observe(took.as_secs_f64());
        if !planted::armed("lost_file_unseen") {
            check_standing(&active.file, active.bytes)?;
        }
        if !planted::armed("lost_lock_unseen") {
            self.shared.check_lock()?;
        }
        self.write_watermark(self.position, false).map_err(|error| watermark_fault(&error))
    }

    /// The batch is durable: whoever waits is told.
    fn settle(&mut self) {
        self.take_in();
        let (records, bytes) = (self.batch.len(), self.batch.room());
        let rest = self.rest();
        self.shared.room.written(records, bytes, rest, self.next_header());
        self.shared.publish(self.durable);
        self.acknowledge();
    }

    /// What follows from the batch, now that it is durable.
    fn take_in(&mut self) {
        self.batch.apply(&mut self.tracker);
        let stats = &self.shared.stats;
        stats.appended_records.inc_by(u64::from(self.batch.len()));
        stats.appended_bytes.inc_by(self.position - self.durable);
        stats.batch_records.observe(f64::from(self.batch.len()));
        self.durable = self.position;
        self.shared.follow(&self.tracker);
    }

    fn acknowledge(&mut self) {
        self.told = self.batch.len();
        self.shared.stats.in_flight_records.dec_by(i64::from(self.batch.len()));
        self.batch.acknowledge();
        self.batch.clear();
    }

    /// What the active segment still holds.
    fn rest(&self) -> u64 {
        let limit = self.active.as_ref().map_or(0, |active| self.tracker.base() + active.bytes);
        limit.saturating_sub(self.position)
    }

    /// Only others read it, and after a crash the next opening: so it is not synced with each batch.
    fn write_watermark(&self, end: u64, clean: bool) -> io::Result<()> {
        self.watermark.write_at(&Watermark { end, clean }.encode(self.shared.id), 0)
    }

    fn next_header(&self) -> u64 {
        header_bytes(self.tracker.lanes().len()) as u64
    }

    /// Seals the active segment and goes on in the prepared one. On an error nothing is changed in here.
    fn roll(&mut self) -> Result<(), Fault> {
        // What is renamed must not be somebody else's.
        if !planted::armed("roll_without_look") {
            self.inspect()?;
        }
        let prepared =
            self.shared.room.take_prepared().ok_or_else(|| {
                Fault::new(GapCause::Io, "no segment is prepared, although room was promised")
            })?;
        self.seal()?;
        let base = self.position;
        let name = segment::name(base);
        let (header, crc) =
            self.shared.codec.encode_header(self.shared.id, base, self.tracker.base(), &self.tracker);
        let mut file = prepared.file;
        let end = base + header.len() as u64;
        let mut start = || {
            file.write_at(&header, 0)?;
            if !planted::armed("roll_without_header_sync") {
                file.sync_data()?;
            }
            self.shared.storage.rename(PREPARED, &name)?;
            file.renamed(&name);
            if !planted::armed("rename_without_dir_sync") {
                self.shared.storage.sync_dir()?;
            }
            Ok(())
        };
        start().map_err(|error| Fault::io(&format!("start the next segment, {name}"), &error))?;
        check_standing(&file, prepared.bytes)?;
        let synced = self.write_watermark(end, false).and_then(|()| self.watermark.sync_data());
        synced.map_err(|error| watermark_fault(&error))?;
        let header_bytes = header.len() as u64;
        let mut image = self.active.take().map(|active| active.image).unwrap_or_default();
        image.clear();
        image.extend_from_slice(&header);
        self.start_segment(base, crc, Active { file, image, bytes: prepared.bytes, zeroed: 0 }, header_bytes);
        self.shared.follow(&self.tracker);
        self.shared.publish(self.durable);
        self.shared.room.rolled(self.rest(), self.next_header());
        Ok(())
    }

    /// From here on `active`, which holds a durable header and perhaps durable records, is the active segment.
    fn start_segment(&mut self, base: u64, crc: u32, mut active: Active, header_bytes: u64) {
        if !self.indexed {
            let index = SegmentIndex::of(&self.tracker, base);
            self.shared.room.hand(Job::Index(Box::new(index)));
        }
        self.indexed = false;
        self.tracker.header(base, crc);
        // Address space only: the pages come as they are written.
        let more = usize::try_from(active.bytes).unwrap_or(0).saturating_sub(active.image.len());
        active.image.reserve_exact(more);
        self.position = base + active.image.len() as u64;
        self.durable = base + header_bytes;
        self.active = Some(active);
        self.shared.add_segment(base);
    }

    /// Gives the active segment its exact length, durably.
    fn seal(&mut self) -> Result<(), Fault> {
        let length = self.position - self.tracker.base();
        if let Some(active) = &mut self.active {
            let seal = || {
                active.file.truncate(length)?;
                if planted::armed("seal_without_sync") { Ok(()) } else { active.file.sync_all() }
            };
            seal().map_err(|error| Fault::io(&format!("seal {}", active.file.name()), &error))?;
            active.bytes = length;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), AppendError> {
        if self.trouble.is_some() {
            self.try_rescue();
        }
        if self.trouble.is_none()
            && let Err(fault) = self.finish()
        {
            self.fail(fault);
            // Mended, it may end well after all.
            if self.trouble.is_none()
                && let Err(fault) = self.finish()
            {
                return Err(AppendError::Uncertain(fault.to_string()));
            }
        }
        match &self.trouble {
            Some(trouble) => Err(AppendError::Uncertain(trouble.fault.to_string())),
            None => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), Fault> {
        // What was lost since the last look is still in memory.
        if !planted::armed("close_without_look") {
            self.inspect()?;
        }
        self.seal()?;
        if !self.indexed {
            let index = SegmentIndex::of(&self.tracker, self.position);
            match self.shared.storage.replace(&index_name(index.base), &index.encode(self.shared.id)) {
                Ok(()) => self.indexed = true,
                // It is made again from the segment when the log is opened.
                Err(error) => tracing::warn!(%error, "the index of the last log segment was not written"),
            }
        }
        let closed = self.write_watermark(self.durable, true).and_then(|()| self.watermark.sync_all());
        closed.map_err(|error| watermark_fault(&error))
    }
}

fn watermark_fault(error: &io::Error) -> Fault {
    Fault::io("write the log's watermark", error)
}

/// The file has its name and its length still; else what was synced into it would not be found again.
fn check_standing(file: &WriteFile, bytes: u64) -> Result<(), Fault> {
    let name = file.name();
    let standing = file.standing().map_err(|error| Fault::io(&format!("look at {name}"), &error))?;
    match standing {
        Standing::Same { bytes: found } if found == bytes => Ok(()),
        Standing::Same { bytes: found } => Err(Fault::new(
            GapCause::Resized,
            format!("somebody gave {name} {found} bytes, where the log has {bytes}"),
        )),
        Standing::Missing => Err(Fault::new(GapCause::Missing, format!("{name} is not there any more"))),
        Standing::Replaced => {
            Err(Fault::new(GapCause::Replaced, format!("another file stands in the place of {name}")))
        }
    }
}
