//! Readers: follow the segment files up to the durable end that the writer published. Files are read, checked and
//! copied on the runtime's blocking threads, so that a long replay holds nobody up.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::frame::{Item, TARGETS};
use super::segment::{self, Step, Walker};
use super::{Published, Shared};
use crate::base::planted;
use crate::event::TopicPartition;
use crate::log::{Position, ReadError, Reader, Stored};

/// Bytes that one turn on a blocking thread reads at most.
const TURN_BYTES: u64 = 8 << 20;

/// See [`crate::log::Reader`].
pub(super) struct SegmentReader {
    state: Turn,
    ready: VecDeque<Stored>,
    published: watch::Receiver<Published>,
    failed: Option<ReadError>,
}

/// Either here, or at work on a blocking thread. A dropped `next` leaves the work running, and the following one finds it.
enum Turn {
    Idle(Box<Cursor>),
    Working(JoinHandle<(Box<Cursor>, Found)>),
    Lost,
}

type Found = Result<Vec<Stored>, Hindrance>;

/// Why there is nothing more for now.
enum Hindrance {
    Error(ReadError),
    /// The writer is in trouble, and puts what cannot be read in order.
    Outage,
}

/// Where the reader stands.
struct Cursor {
    shared: Arc<Shared>,
    /// By [`TopicPartition::index`]: from which position on frames are wanted.
    wanted: Vec<Option<u64>>,
    start: u64,
    position: u64,
    walker: Option<Walker>,
    /// Changes of the writer's state when `walker` was opened.
    changes: u64,
}

impl SegmentReader {
    pub(super) fn new(
        shared: Arc<Shared>,
        from: &[(TopicPartition, Option<Position>)],
    ) -> Result<Self, ReadError> {
        let published = shared.published.subscribe();
        let end = published.borrow().end;
        let log_start = shared.start();
        let mut wanted = vec![None; TARGETS];
        let mut start = end;
        for (target, after) in from {
            // The frame at `after` is read again, because only it tells where the next one starts.
            let (first, from) = match after {
                None => (log_start.first(), log_start.first()),
                Some(after) if after.0 >= end => return Err(ReadError::NotFound(*after)),
                Some(after) if after.0 >= log_start.first() => (after.0 + 1, after.0),
                Some(after) if log_start.takes(*target, *after) => (log_start.first(), log_start.first()),
                Some(after) => return Err(log_start.dropped(after.0)),
            };
            wanted[target.index()] = Some(first);
            start = start.min(from);
        }
        Ok(Self::at(shared, published, wanted, start))
    }

    pub(super) fn from_end(shared: Arc<Shared>, targets: &[TopicPartition]) -> Self {
        let published = shared.published.subscribe();
        let end = published.borrow().end;
        let mut wanted = vec![None; TARGETS];
        for target in targets {
            wanted[target.index()] = Some(end);
        }
        Self::at(shared, published, wanted, end)
    }

    fn at(
        shared: Arc<Shared>,
        published: watch::Receiver<Published>,
        wanted: Vec<Option<u64>>,
        start: u64,
    ) -> Self {
        let cursor = Cursor { shared, wanted, start, position: start, walker: None, changes: 0 };
        Self { state: Turn::Idle(Box::new(cursor)), ready: VecDeque::new(), published, failed: None }
    }

    /// Up to `records_max` frames; empty when there are none.
    async fn take(&mut self, records_max: usize) -> Result<Vec<Stored>, ReadError> {
        let records_max = records_max.max(1);
        loop {
            if !self.ready.is_empty() {
                let count = self.ready.len().min(records_max);
                return Ok(self.ready.drain(..count).collect());
            }
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            if let Turn::Idle(cursor) = &self.state {
                if cursor.position >= self.published.borrow_and_update().end {
                    return Ok(Vec::new());
                }
                let Turn::Idle(mut cursor) = std::mem::replace(&mut self.state, Turn::Lost) else { continue };
                self.state = Turn::Working(tokio::task::spawn_blocking(move || {
                    let result = cursor.turn(records_max);
                    (cursor, result)
                }));
            }
            let result = match &mut self.state {
                Turn::Working(work) => work.await,
                Turn::Idle(_) | Turn::Lost => return Err(ReadError::Closed),
            };
            match result {
                Ok((cursor, result)) => {
                    self.state = Turn::Idle(cursor);
                    match result {
                        Ok(found) => self.ready.extend(found),
                        // The system failed, and may not the next time.
                        Err(Hindrance::Error(error @ ReadError::Io { .. })) => return Err(error),
                        Err(Hindrance::Error(error)) => self.failed = Some(error),
                        // The writer ended in it: nobody puts anything in order any more.
                        Err(Hindrance::Outage)
                            if self.published.borrow().closed
                                && !planted::armed("reader_waits_for_the_dead") =>
                        {
                            self.failed = Some(ReadError::Closed);
                        }
                        // Its end is published.
                        Err(Hindrance::Outage) => return Ok(Vec::new()),
                    }
                }
                Err(_) => {
                    self.state = Turn::Lost;
                    self.failed = Some(ReadError::Closed);
                }
            }
        }
    }

    fn closed(&self) -> bool {
        match &self.state {
            Turn::Idle(cursor) => {
                let published = self.published.borrow();
                published.closed && cursor.position >= published.end
            }
            Turn::Working(_) | Turn::Lost => false,
        }
    }
}

impl Reader for SegmentReader {
    fn next(&mut self, records_max: usize) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move {
            loop {
                let found = self.take(records_max).await?;
                if !found.is_empty() {
                    return Ok(found);
                }
                if self.closed() || self.published.changed().await.is_err() {
                    return Err(ReadError::Closed);
                }
            }
        })
    }

    fn next_ready(&mut self, records_max: usize) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
        Box::pin(async move {
            let found = self.take(records_max).await?;
            if found.is_empty() && self.closed() { Err(ReadError::Closed) } else { Ok(found) }
        })
    }
}

impl Cursor {
    /// Reads on. What cannot be read while the writer is in trouble is no damage.
    fn turn(&mut self, records_max: usize) -> Found {
        let changes = self.shared.vigil.changes();
        if changes != self.changes && !planted::armed("lost_file_read_on") {
            // The name may stand for another file by now.
            self.walker = None;
            self.changes = changes;
        }
        let mut found = Vec::new();
        match self.read(records_max, &mut found) {
            Ok(()) => Ok(found),
            Err(_) if !found.is_empty() && !planted::armed("frames_before_damage_lost") => {
                // What was found first; the error is met again.
                self.walker = None;
                Ok(found)
            }
            Err(error) if matches!(error, ReadError::Corrupt { .. } | ReadError::Io { .. }) => {
                self.walker = None;
                if self.shared.trouble_explains(changes) {
                    Err(Hindrance::Outage)
                } else {
                    Err(Hindrance::Error(error))
                }
            }
            Err(error) => Err(Hindrance::Error(error)),
        }
    }

    /// Reads on until `records_max` frames are found, a turn's bytes are read or the durable end is reached.
    fn read(&mut self, records_max: usize, found: &mut Vec<Stored>) -> Result<(), ReadError> {
        let end = self.shared.published.borrow().end;
        let turn_end = end.min(self.position.saturating_add(TURN_BYTES));
        while self.position < turn_end && found.len() < records_max {
            let (base, limit) = self.shared.segment_of(self.position, end);
            let kept = self.shared.kept(self.position);
            let mut walker = match (self.walker.take(), kept) {
                // It was dropped while it was read; who has it open reads it to its end.
                (Some(walker), Err(_)) if walker.has_left() => walker,
                (_, Err(dropped)) => return Err(dropped),
                (Some(mut walker), Ok(())) if walker.base() == base => {
                    walker.extend(limit);
                    walker
                }
                (_, Ok(())) => self.shared.walk(base, self.position, limit)?,
            };
            self.step(&mut walker, turn_end, records_max, found)?;
            self.walker = Some(walker);
        }
        Ok(())
    }

    /// Reads on in one segment.
    fn step(
        &mut self,
        walker: &mut Walker,
        turn_end: u64,
        records_max: usize,
        found: &mut Vec<Stored>,
    ) -> Result<(), ReadError> {
        let base = walker.base();
        while self.position < turn_end && found.len() < records_max {
            match walker.next()? {
                Step::Frame(framed) => {
                    self.position = framed.position + framed.bytes;
                    if let Item::Event(event) = framed.item
                        && self.wanted[event.target.index()].is_some_and(|first| framed.position >= first)
                    {
                        let position = Position(framed.position);
                        found.push(Stored { position, frame: event.to_frame() });
                    }
                }
                Step::End => return Ok(()),
                // Nobody but the caller says that a frame starts at the first position.
                Step::Bad { position, .. } if position == self.start && position != base => {
                    return Err(absent(&self.shared, base, Position(position)));
                }
                Step::Bad { position, cause } => return Err(walker.corrupt(position, cause)),
            }
        }
        Ok(())
    }
}

/// The frame at `position`, if it is one of `target`.
pub(super) fn frame_at(
    shared: &Shared,
    target: TopicPartition,
    position: Position,
) -> Result<Stored, ReadError> {
    let end = shared.published.borrow().end;
    if position.0 >= end {
        return Err(ReadError::NotFound(position));
    }
    shared.kept(position.0)?;
    let (base, limit) = shared.segment_of(position.0, end);
    let mut walker = shared.walk(base, position.0, limit)?;
    match walker.next()? {
        Step::Frame(framed) => match framed.item {
            Item::Event(event) if event.target == target => Ok(Stored { position, frame: event.to_frame() }),
            Item::Event(_) | Item::Closed { .. } | Item::Header(_) => Err(ReadError::NotFound(position)),
        },
        Step::End | Step::Bad { .. } => Err(absent(shared, base, position)),
    }
}

/// Why no whole frame of the segment at `base` starts at `position`: it is damaged, or none was ever written there. Only
/// the frames before it tell, so they are read from the segment's start on.
fn absent(shared: &Shared, base: u64, position: Position) -> ReadError {
    let look = || {
        if planted::armed("damage_is_not_found") {
            return Ok(());
        }
        let (_, limit) = shared.segment_of(base, shared.published.borrow().end);
        let mut walker = shared.walk(base, base, limit)?;
        while walker.position() <= position.0 {
            match walker.next()? {
                Step::Frame(_) => {}
                Step::End => break,
                Step::Bad { position, cause } => return Err(walker.corrupt(position, cause)),
            }
        }
        Ok(())
    };
    look().err().unwrap_or(ReadError::NotFound(position))
}

/// How many frames of `target` stand up to and with the one at `position`.
pub(super) fn count_through(
    shared: &Shared,
    target: TopicPartition,
    position: Position,
) -> Result<u64, ReadError> {
    let end = shared.published.borrow().end;
    if position.0 >= end {
        return Err(ReadError::NotFound(position));
    }
    let start = shared.start();
    if position.0 < start.first() && start.takes(target, position) {
        return Ok(start.count(target));
    }
    shared.kept(position.0)?;
    let (base, limit) = shared.segment_of(position.0, end);
    let index = shared.index_of(base, limit)?;
    let target_index = target.index();
    let mark = index.marks.iter().rev().find(|mark| mark.offset <= position.0 - base);
    let (from, within) = mark.map_or((base, 0), |mark| (base + mark.offset, mark.counts[target_index]));
    let mut count = index.base_counts[target_index].saturating_add(u64::from(within));
    let mut walker = shared.walk(base, from, limit)?;
    loop {
        match walker.next()? {
            Step::Frame(framed) => {
                let ours = matches!(&framed.item, Item::Event(event) if event.target == target);
                if ours {
                    count = count.saturating_add(1);
                }
                if framed.position == position.0 && ours {
                    return Ok(count);
                }
                if framed.position >= position.0 {
                    return Err(ReadError::NotFound(position));
                }
            }
            Step::End => return Err(ReadError::NotFound(position)),
            Step::Bad { position, cause } => return Err(walker.corrupt(position, cause)),
        }
    }
}

/// Makes the index of a sealed segment from its frames.
pub(super) fn index_from_frames(
    shared: &Shared,
    base: u64,
    end: u64,
) -> Result<super::small::SegmentIndex, ReadError> {
    let mut walker = shared.walk(base, base, end)?;
    let (mut tracker, _, _) = super::recovery::start(&mut walker, shared.id)?;
    loop {
        match walker.next()? {
            Step::Frame(framed) => tracker.apply(framed.position, framed.crc, &framed.item),
            Step::End => return Ok(super::small::SegmentIndex::of(&tracker, end)),
            Step::Bad { position, cause } => return Err(walker.corrupt(position, cause)),
        }
    }
}

/// Reads the index of a sealed segment, or makes it.
pub(super) fn load_index(
    shared: &Shared,
    base: u64,
    end: u64,
) -> Result<super::small::SegmentIndex, ReadError> {
    let name = segment::index_name(base);
    let bytes = shared.storage.read(&name);
    let bytes = bytes.map_err(|error| segment::io_error(shared.storage.display(&name), &error))?;
    let index = bytes
        .and_then(|bytes| super::small::SegmentIndex::decode(shared.id, &bytes))
        .filter(|index| index.base == base && index.end == end);
    index.map_or_else(|| index_from_frames(shared, base, end), Ok)
}
