//! What follows from the frames so far: record counts, open lanes, the rolling checksum and the sparse index of the
//! current segment. Writer, recovery and scanner feed it the same frames, so they cannot differ. No files in here.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::frame::{EventFrame, Item, State, TARGETS};
use crate::base::Timestamp;
use crate::event::{Link, TopicPartition};

/// Bytes between two marks of the sparse index.
pub(super) const MARK_INTERVAL_BYTES: u64 = 256 * 1024;

/// One lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneKey {
    pub(super) incarnation: Uuid,
    pub(super) target: TopicPartition,
}

/// The last event of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) seq: u64,
    pub(super) link: Link,
    pub(super) recorded_at: Timestamp,
}

/// The records of each partition before a frame of the segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    /// The frame's offset in the file.
    pub(super) offset: u64,
    /// Records before it within the segment, by [`TopicPartition::index`].
    pub(super) counts: Vec<u32>,
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Tracker {
    rolling: u32,
    counts: Vec<u64>,
    lanes: BTreeMap<LaneKey, Head>,
    base: u64,
    base_counts: Vec<u64>,
    marks: Vec<Mark>,
    next_mark: u64,
}

impl Tracker {
    /// Before the first frame of a log.
    pub(super) fn new() -> Self {
        Self::at(0, 0, State { counts: vec![0; TARGETS], lanes: Vec::new() })
    }

    /// Before the header of the segment at `base`, with what that header says of the frames before it.
    pub(super) fn at(base: u64, rolling: u32, state: State) -> Self {
        let mut counts = state.counts;
        // A log of a version with fewer topics counts fewer partitions.
        counts.resize(TARGETS, 0);
        Self {
            rolling,
            base,
            base_counts: counts.clone(),
            counts,
            lanes: state.lanes.into_iter().collect(),
            marks: Vec::new(),
            next_mark: 0,
        }
    }

    /// In the segment at `base`, behind its last frame, as an index file remembers it.
    pub(super) fn resumed(
        base: u64,
        base_counts: Vec<u64>,
        marks: Vec<Mark>,
        rolling: u32,
        state: State,
    ) -> Self {
        let mut tracker = Self::at(base, rolling, state);
        tracker.base_counts = base_counts;
        tracker.marks = marks;
        tracker
    }

    /// Takes the frame at `position` in.
    pub(super) fn apply(&mut self, position: u64, crc: u32, item: &Item<'_>) {
        match item {
            Item::Header(_) => self.header(position, crc),
            Item::Event(EventFrame { target, incarnation, seq, recorded_at, link, .. }) => {
                let key = LaneKey { incarnation: *incarnation, target: *target };
                self.event(position, crc, key, Head { seq: *seq, link: *link, recorded_at: *recorded_at });
            }
            Item::Closed { incarnation, .. } => self.closed(position, crc, *incarnation),
        }
    }

    /// A segment starts.
    pub(super) fn header(&mut self, position: u64, crc: u32) {
        self.base = position;
        self.base_counts.clone_from(&self.counts);
        self.marks.clear();
        self.next_mark = 0;
        self.roll(crc);
    }

    /// An event.
    pub(super) fn event(&mut self, position: u64, crc: u32, key: LaneKey, head: Head) {
        self.mark(position);
        self.roll(crc);
        // What a header says may be forged: it is refused where it is held against the records, not here.
        let count = &mut self.counts[key.target.index()];
        *count = count.saturating_add(1);
        self.lanes.insert(key, head);
    }

    /// The lanes of an incarnation are closed.
    pub(super) fn closed(&mut self, position: u64, crc: u32, incarnation: Uuid) {
        self.mark(position);
        self.roll(crc);
        self.lanes.retain(|key, _| key.incarnation != incarnation);
    }

    fn roll(&mut self, crc: u32) {
        self.rolling = crc32c::crc32c_append(self.rolling, &crc.to_be_bytes());
    }

    fn mark(&mut self, position: u64) {
        let offset = position - self.base;
        if offset < self.next_mark {
            return;
        }
        let within = self.counts.iter().zip(&self.base_counts).map(|(all, before)| {
            u32::try_from(all - before).expect("a segment holds fewer than 4 billion records")
        });
        self.marks.push(Mark { offset, counts: within.collect() });
        self.next_mark = offset + MARK_INTERVAL_BYTES;
    }

    /// Of all frames so far.
    pub(super) const fn rolling(&self) -> u32 {
        self.rolling
    }

    /// Records so far, by [`TopicPartition::index`].
    pub(super) fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The open lanes.
    pub(super) const fn lanes(&self) -> &BTreeMap<LaneKey, Head> {
        &self.lanes
    }

    /// Where the current segment starts.
    pub(super) const fn base(&self) -> u64 {
        self.base
    }

    /// Records before the current segment.
    pub(super) fn base_counts(&self) -> &[u64] {
        &self.base_counts
    }

    /// The sparse index of the current segment.
    pub(super) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The same as a header says it.
    pub(super) fn state(&self) -> State {
        State {
            counts: self.counts.clone(),
            lanes: self.lanes.iter().map(|(&key, &head)| (key, head)).collect(),
        }
    }
}
