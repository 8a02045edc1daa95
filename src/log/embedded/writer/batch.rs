//! The records that wait: for the sync that covers them, or in trouble for the rescue. Knows no files.

use uuid::Uuid;

use super::Done;
use crate::base::Timestamp;
use crate::log::embedded::frame::{Codec, EVENT_OVERHEAD_BYTES, Place};
use crate::log::embedded::tracker::{Head, LaneKey, Tracker};
use crate::log::{AppendError, Frame, Position};

/// A record with its waiter.
pub(super) struct Record {
    entry: Entry,
    /// Body bytes of the room that it was promised.
    room: u64,
    /// `None` once the waiter was told something.
    done: Option<Done>,
    position: u64,
    crc: u32,
}

enum Entry {
    Event(Frame),
    Closed { incarnation: Uuid, at: Timestamp },
}

impl Record {
    pub(super) const fn event(frame: Frame, room: u64, done: Done) -> Self {
        Self { entry: Entry::Event(frame), room, done: Some(done), position: 0, crc: 0 }
    }

    pub(super) const fn closed(incarnation: Uuid, at: Timestamp, room: u64, done: Done) -> Self {
        Self { entry: Entry::Closed { incarnation, at }, room, done: Some(done), position: 0, crc: 0 }
    }

    /// Bytes that its frame takes at most.
    pub(super) fn frame_bytes(&self) -> u64 {
        let body = match &self.entry {
            Entry::Event(frame) => frame.body.len(),
            Entry::Closed { .. } => 0,
        };
        (EVENT_OVERHEAD_BYTES + body) as u64
    }

    /// Writes its frame behind `out`, to stand at `place`.
    pub(super) fn encoded(mut self, codec: Codec, place: Place, out: &mut Vec<u8>) -> Self {
        self.encode(codec, place, out);
        self
    }

    fn encode(&mut self, codec: Codec, place: Place, out: &mut Vec<u8>) {
        self.position = place.position;
        self.crc = match &self.entry {
            Entry::Event(frame) => codec.encode_event(place, frame, out),
            Entry::Closed { incarnation, at } => codec.encode_closed(place, *incarnation, *at, out),
        };
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Batch {
    records: Vec<Record>,
}

impl Batch {
    pub(super) fn push(&mut self, record: Record) {
        self.records.push(record);
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.records.len()).unwrap_or(u32::MAX)
    }

    /// Body bytes of the room that was promised.
    pub(super) fn room(&self) -> u64 {
        self.records.iter().map(|record| record.room).sum()
    }

    /// Writes all frames anew behind the header in `image`, of the segment at `base`, as one write.
    pub(super) fn encode_again(&mut self, codec: Codec, base: u64, image: &mut Vec<u8>) {
        let write_start = base + image.len() as u64;
        for record in &mut self.records {
            let place = Place { position: base + image.len() as u64, write_start };
            record.encode(codec, place, image);
        }
    }

    /// Takes the records into `tracker`.
    pub(super) fn apply(&self, tracker: &mut Tracker) {
        for Record { entry, position, crc, .. } in &self.records {
            match entry {
                Entry::Event(frame) => {
                    let key = LaneKey { incarnation: frame.incarnation, target: frame.target };
                    let head = Head { seq: frame.seq, link: frame.link, recorded_at: frame.recorded_at };
                    tracker.event(*position, *crc, key, head);
                }
                Entry::Closed { incarnation, .. } => tracker.closed(*position, *crc, *incarnation),
            }
        }
    }

    /// Tells who still waits where his record stands.
    pub(super) fn acknowledge(&mut self) {
        for record in &mut self.records {
            if let Some(done) = record.done.take() {
                // Nobody waits for it any more: that is the caller's choice, the record is durable all the same.
                drop(done.send(Ok(Position(record.position))));
            }
        }
    }

    /// Tells who still waits that his record may be written. It stays in here.
    pub(super) fn leave_uncertain(&mut self, cause: &str) {
        for record in &mut self.records {
            if let Some(done) = record.done.take() {
                drop(done.send(Err(AppendError::Uncertain(cause.to_owned()))));
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.records.clear();
    }
}
