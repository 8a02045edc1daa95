//! The writer thread: takes all that waits, writes it at once, syncs once, publishes, then acknowledges.
//!
//! No ack before the sync that covers it returned. After an error of a write or a sync nothing is retried: the page
//! cache is not to be trusted then, so the log refuses everything until it is opened again.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::Shared;
use super::allocate::Job;
use super::frame::{EVENT_OVERHEAD_BYTES, Place, header_bytes};
use super::segment::{self, PREPARED, index_name};
use super::small::{SegmentIndex, Watermark};
use super::storage::WriteFile;
use super::tracker::{Head, LaneKey, Tracker};
use crate::base::{Timestamp, planted};
use crate::log::{AppendError, Frame, Position, Refusal};

/// Bytes that one write takes at most, but for its last record.
const BATCH_BYTES: usize = 8 << 20;

/// Where the result of an append goes.
pub(super) type Done = oneshot::Sender<Result<Position, AppendError>>;

/// Work for the thread.
pub(super) enum Command {
    /// Write an event into room of `bytes` body bytes.
    Append { frame: Frame, bytes: u64, done: Done },
    /// Write that the lanes of an incarnation are closed, into room of `bytes` bytes.
    MarkClosed { incarnation: Uuid, at: Timestamp, bytes: u64, done: Done },
    /// End cleanly.
    Close { done: oneshot::Sender<Result<(), AppendError>> },
}

/// The thread's state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    tracker: Tracker,
    /// `None` until the first roll after opening: the segment before is sealed already.
    active: Option<WriteFile>,
    watermark: WriteFile,
    /// Where the next frame goes.
    position: u64,
    /// The active segment's room ends here.
    limit: u64,
    /// The newest segment has its index.
    indexed: bool,
    batch: Batch,
    failed: Option<String>,
}

#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    start: u64,
    records: u32,
    body_bytes: u64,
    waiting: Vec<(Done, Position)>,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        tracker: Tracker,
        end: u64,
        indexed: bool,
        watermark: WriteFile,
    ) -> Self {
        Self {
            shared,
            tracker,
            active: None,
            watermark,
            position: end,
            limit: end,
            indexed,
            batch: Batch { start: end, ..Batch::default() },
            failed: None,
        }
    }

    /// Works until the log is closed or dropped.
    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        while let Ok(first) = commands.recv() {
            if !self.turn(first, commands) {
                return;
            }
        }
    }

    /// Takes `first` and all that waits behind it, and makes it durable. `false` when that closed the log.
    pub(super) fn turn(&mut self, first: Command, commands: &Receiver<Command>) -> bool {
        let mut next = Some(first);
        while let Some(command) = next {
            if let Command::Close { done } = command {
                self.flush();
                let result = self.close();
                self.shared.end(result.clone());
                drop(done.send(result));
                return false;
            }
            self.take(command);
            if self.batch.bytes.len() >= BATCH_BYTES {
                self.flush();
            }
            next = commands.try_recv().ok();
        }
        self.flush();
        true
    }

    fn take(&mut self, command: Command) {
        let (bytes, body) = match &command {
            Command::Append { frame, bytes, .. } => (*bytes, frame.body.len()),
            Command::MarkClosed { bytes, .. } => (*bytes, 0),
            Command::Close { .. } => return,
        };
        let needed = (EVENT_OVERHEAD_BYTES + body) as u64;
        if self.failed.is_none() && self.position + needed > self.limit {
            self.flush();
            if self.failed.is_none()
                && let Err(error) = self.roll()
            {
                self.fail(&format!("the next segment could not be started: {error}"));
            }
        }
        if let Some(cause) = self.failed.clone() {
            self.shared.room.written(1, bytes, 0, 0);
            self.shared.stats.in_flight_records.dec();
            if let Command::Append { done, .. } | Command::MarkClosed { done, .. } = command {
                drop(done.send(Err(AppendError::Refused(Refusal::Failed(cause)))));
            }
            return;
        }
        let position = self.position;
        let place = Place { position, write_start: self.batch.start };
        let out = &mut self.batch.bytes;
        let done = match command {
            Command::Append { frame, done, .. } => {
                let crc = self.shared.codec.encode_event(place, &frame, out);
                let key = LaneKey { incarnation: frame.incarnation, target: frame.target };
                let head = Head { seq: frame.seq, link: frame.link, recorded_at: frame.recorded_at };
                self.tracker.event(position, crc, key, head);
                done
            }
            Command::MarkClosed { incarnation, at, done, .. } => {
                let crc = self.shared.codec.encode_closed(place, incarnation, at, out);
                self.tracker.closed(position, crc, incarnation);
                done
            }
            Command::Close { .. } => return,
        };
        self.position = self.batch.start + self.batch.bytes.len() as u64;
        self.batch.records += 1;
        self.batch.body_bytes += bytes;
        self.batch.waiting.push((done, Position(position)));
    }

    /// Makes the batch durable and acknowledges it.
    fn flush(&mut self) {
        if self.batch.waiting.is_empty() {
            return;
        }
        if planted::armed("ack_before_sync") {
            self.acknowledge();
        }
        if let Err(error) = self.write_batch() {
            self.fail(&error.to_string());
            return;
        }
        let stats = &self.shared.stats;
        stats.appended_records.inc_by(u64::from(self.batch.records));
        stats.appended_bytes.inc_by(self.batch.bytes.len() as u64);
        stats.batch_records.observe(f64::from(self.batch.records));
        self.shared.follow(&self.tracker);
        let (records, bytes) = (self.batch.records, self.batch.body_bytes);
        self.batch.bytes.clear();
        self.batch.start = self.position;
        self.batch.records = 0;
        self.batch.body_bytes = 0;
        self.shared.room.written(records, bytes, self.limit - self.position, self.next_header());
        self.shared.publish(self.position);
        self.acknowledge();
    }

    fn write_batch(&self) -> io::Result<()> {
        let active = self.active.as_ref().ok_or_else(|| io::Error::other("no segment is active"))?;
        active.write_at(&self.batch.bytes, self.batch.start - self.tracker.base())?;
        if planted::armed("watermark_before_data") {
            self.write_watermark(false)?;
        }
        let started = self.shared.clock.monotonic();
        active.sync_data()?;
        let took = self.shared.clock.monotonic().saturating_duration_since(started);
        self.shared.stats.sync_seconds.observe(took.as_secs_f64());
        self.write_watermark(false)
    }

    /// Only others read it, and after a crash the next opening: so it is not synced with each batch.
    fn write_watermark(&self, clean: bool) -> io::Result<()> {
        let watermark = Watermark { end: self.position, clean };
        self.watermark.write_at(&watermark.encode(self.shared.id), 0)
    }

    fn acknowledge(&mut self) {
        let stats = &self.shared.stats;
        stats.in_flight_records.dec_by(i64::try_from(self.batch.waiting.len()).unwrap_or(0));
        for (done, position) in self.batch.waiting.drain(..) {
            // Nobody waits for it any more: that is the caller's choice, the record is durable all the same.
            drop(done.send(Ok(position)));
        }
    }

    fn next_header(&self) -> u64 {
        header_bytes(self.tracker.lanes().len()) as u64
    }

    /// Seals the active segment and goes on in the prepared one.
    fn roll(&mut self) -> io::Result<()> {
        let prepared = self
            .shared
            .room
            .take_prepared()
            .ok_or_else(|| io::Error::other("no segment is prepared, although room was promised"))?;
        self.seal()?;
        let base = self.position;
        let name = segment::name(base);
        let (header, crc) =
            self.shared.codec.encode_header(self.shared.id, base, self.tracker.base(), &self.tracker);
        let mut file = prepared.file;
        file.write_at(&header, 0)?;
        if !planted::armed("roll_without_header_sync") {
            file.sync_data()?;
        }
        self.shared.storage.rename(PREPARED, &name)?;
        file.renamed(&name);
        if !planted::armed("rename_without_dir_sync") {
            self.shared.storage.sync_dir()?;
        }
        if !self.indexed {
            let index = SegmentIndex::of(&self.tracker, base);
            self.shared.room.hand(Job::Index(Box::new(index)));
        }
        self.indexed = false;
        self.tracker.header(base, crc);
        self.active = Some(file);
        self.position = base + header.len() as u64;
        self.limit = base + prepared.bytes;
        self.batch.start = self.position;
        self.write_watermark(false)?;
        self.watermark.sync_data()?;
        self.shared.add_segment(base);
        self.shared.follow(&self.tracker);
        self.shared.publish(self.position);
        self.shared.room.rolled(self.limit - self.position, self.next_header());
        Ok(())
    }

    /// Gives the active segment its exact length, durably.
    fn seal(&mut self) -> io::Result<()> {
        if let Some(active) = self.active.take() {
            active.truncate(self.position - self.tracker.base())?;
            if !planted::armed("seal_without_sync") {
                active.sync_all()?;
            }
        }
        Ok(())
    }

    /// Nothing is accepted any more. What is in the batch may be written.
    fn fail(&mut self, cause: &str) {
        tracing::error!(cause, "the log failed and refuses until it is opened again");
        self.failed = Some(cause.to_owned());
        self.active = None;
        self.shared.stats.failed.set(1);
        self.shared.room.stop(Refusal::Failed(cause.to_owned()), || ());
        let (records, bytes) = (self.batch.records, self.batch.body_bytes);
        self.shared.room.written(records, bytes, 0, 0);
        self.shared.stats.in_flight_records.dec_by(i64::try_from(self.batch.waiting.len()).unwrap_or(0));
        for (done, _) in self.batch.waiting.drain(..) {
            drop(done.send(Err(AppendError::Uncertain(cause.to_owned()))));
        }
        self.batch = Batch { start: self.position, ..Batch::default() };
    }

    fn close(&mut self) -> Result<(), AppendError> {
        if let Some(cause) = &self.failed {
            return Err(AppendError::Uncertain(cause.clone()));
        }
        self.finish().map_err(|error| {
            let cause = error.to_string();
            self.fail(&cause);
            AppendError::Uncertain(cause)
        })
    }

    fn finish(&mut self) -> io::Result<()> {
        self.seal()?;
        if !self.indexed {
            let index = SegmentIndex::of(&self.tracker, self.position);
            self.shared.storage.replace(&index_name(index.base), &index.encode(self.shared.id))?;
        }
        self.write_watermark(true)?;
        self.watermark.sync_all()
    }
}
