//! What was done with the log, and so what must be found in it.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::{LinkInput, ZERO_LINK, link};
use crate::log::embedded::reader::{count_through, frame_at};
use crate::log::embedded::storage::simulated::Random;
use crate::log::embedded::tests::*;
use crate::log::embedded::tracker::LaneKey;
use crate::log::embedded::{Scanned, Shared, UnclosedLane};

/// See the module.
#[derive(Default)]
pub(super) struct Model {
    lanes: BTreeMap<LaneKey, Vec<Sent>>,
    /// Incarnations that were marked, and whether that was acknowledged.
    closed: BTreeMap<Uuid, bool>,
}

/// A record that was handed over.
struct Sent {
    frame: Frame,
    /// Where it must be found: it was acknowledged, or an opened log gave it.
    position: Option<Position>,
}

impl Model {
    /// The next record of a lane, with its link.
    pub(super) fn send(
        &mut self,
        incarnation: Uuid,
        target: TopicPartition,
        body: Vec<u8>,
    ) -> (LaneKey, usize, Frame) {
        let key = LaneKey { incarnation, target };
        let lane = self.lanes.entry(key).or_default();
        let seq = lane.len() as u64;
        let recorded_at = Timestamp::from_micros(1_000_000 + i64::try_from(seq).unwrap());
        let content = sha256(&body);
        let link = link(&LinkInput {
            prev: lane.last().map_or(&ZERO_LINK, |last| &last.frame.link),
            incarnation,
            topic: target.topic,
            partition: target.partition,
            seq,
            recorded_at,
            content: &content,
        });
        let frame = Frame { target, incarnation, seq, recorded_at, content, link, body: body.into() };
        lane.push(Sent { frame: frame.clone(), position: None });
        (key, lane.len() - 1, frame)
    }

    pub(super) fn acknowledged(&mut self, lane: LaneKey, index: usize, position: Position) {
        if let Some(sent) = self.lanes.get_mut(&lane).and_then(|lane| lane.get_mut(index)) {
            sent.position = Some(position);
        }
    }

    pub(super) fn closing(&mut self, incarnation: Uuid) {
        self.closed.entry(incarnation).or_insert(false);
    }

    pub(super) fn closed(&mut self, incarnation: Uuid) {
        self.closed.insert(incarnation, true);
    }

    /// What was found is all that was acknowledged, and else only whole beginnings of what was sent.
    pub(super) fn check(&self, found: &[Scanned], recovered: &Recovered) -> Result<(), String> {
        let mut heads: BTreeMap<LaneKey, Vec<&Stored>> = BTreeMap::new();
        let mut marked = BTreeSet::new();
        let mut open: BTreeMap<LaneKey, &Frame> = BTreeMap::new();
        if !found.is_sorted_by(|one, next| one.position < next.position) {
            return Err("positions do not increase".into());
        }
        for scanned in found {
            match &scanned.item {
                ScannedItem::Event(stored) => {
                    let Frame { incarnation, target, .. } = stored.frame;
                    let lane = heads.entry(LaneKey { incarnation, target }).or_default();
                    lane.push(stored);
                    open.insert(LaneKey { incarnation, target }, &stored.frame);
                }
                ScannedItem::Closed { incarnation, .. } => {
                    if !self.closed.contains_key(incarnation) {
                        return Err(format!("nobody closed incarnation {incarnation}"));
                    }
                    marked.insert(*incarnation);
                    open.retain(|key, _| key.incarnation != *incarnation);
                }
            }
        }
        for (key, stored) in &heads {
            self.check_lane(key, stored)?;
        }
        for (key, lane) in &self.lanes {
            let there = heads.get(key).map_or(0, Vec::len);
            if let Some(lost) = lane.iter().skip(there).find(|sent| sent.position.is_some()) {
                let Frame { incarnation, target, seq, .. } = &lost.frame;
                let position = lost.position;
                return Err(format!(
                    "lost: {incarnation} {target:?} number {seq} at {position:?}; {there} are there"
                ));
            }
        }
        if let Some((lost, _)) = self.closed.iter().find(|(key, acked)| **acked && !marked.contains(*key)) {
            return Err(format!("lost: that incarnation {lost} is closed"));
        }
        let expected: Vec<UnclosedLane> = open
            .values()
            .map(|frame| UnclosedLane {
                incarnation: frame.incarnation,
                target: frame.target,
                seq: frame.seq,
                link: frame.link,
                recorded_at: frame.recorded_at,
            })
            .collect();
        if recovered.unclosed == expected {
            Ok(())
        } else {
            Err(format!("unclosed lanes: {:?}, not {expected:?}", recovered.unclosed))
        }
    }

    /// Numbers from 0 without a hole, each record as it was sent and where it was acknowledged.
    fn check_lane(&self, key: &LaneKey, found: &[&Stored]) -> Result<(), String> {
        let sent = self.lanes.get(key).map(Vec::as_slice).unwrap_or_default();
        for (index, stored) in found.iter().enumerate() {
            let Some(sent) = sent.get(index) else {
                return Err(format!("record {index} of {key:?} was never sent"));
            };
            if stored.frame != sent.frame {
                return Err(format!("record {index} of {key:?} is not the one that was sent"));
            }
            if sent.position.is_some_and(|position| position != stored.position) {
                let position = stored.position;
                return Err(format!(
                    "record {index} of {key:?} was at {:?}, now {position:?}",
                    sent.position
                ));
            }
        }
        Ok(())
    }

    /// Everything that `incarnation` ever sent was found.
    pub(super) fn all_there(&self, incarnation: Uuid, found: &[Scanned]) -> Result<(), String> {
        for (key, lane) in self.lanes.iter().filter(|(key, _)| key.incarnation == incarnation) {
            let ours = |scanned: &&Scanned| {
                matches!(&scanned.item, ScannedItem::Event(Stored { frame, .. })
                    if frame.incarnation == incarnation && frame.target == key.target)
            };
            let there: Vec<&Stored> = found
                .iter()
                .filter(ours)
                .filter_map(|scanned| match &scanned.item {
                    ScannedItem::Event(stored) => Some(stored),
                    ScannedItem::Closed { .. } => None,
                })
                .collect();
            self.check_lane(key, &there)?;
            if there.len() != lane.len() {
                return Err(format!("of {} records of {key:?}, {} are there", lane.len(), there.len()));
            }
        }
        Ok(())
    }

    /// How many records without ack were found, and how many not.
    pub(super) fn unanswered(&self, found: &[Scanned]) -> (u64, u64) {
        let events =
            found.iter().filter(|scanned| matches!(scanned.item, ScannedItem::Event(_))).count() as u64;
        let sent = self.lanes.values().map(Vec::len).sum::<usize>() as u64;
        let sure = self.lanes.values().flatten().filter(|sent| sent.position.is_some()).count() as u64;
        (events.saturating_sub(sure), sent.saturating_sub(events))
    }

    /// An opened log gave `found`: that is durable now, and what was not found will never be.
    pub(super) fn settle(&mut self, found: &[Scanned]) {
        let mut marked = BTreeSet::new();
        let mut there: BTreeMap<LaneKey, Vec<Position>> = BTreeMap::new();
        for scanned in found {
            match &scanned.item {
                ScannedItem::Event(Stored { position, frame: Frame { incarnation, target, .. } }) => {
                    let key = LaneKey { incarnation: *incarnation, target: *target };
                    there.entry(key).or_default().push(*position);
                }
                ScannedItem::Closed { incarnation, .. } => {
                    marked.insert(*incarnation);
                }
            }
        }
        self.lanes.retain(|key, lane| {
            let there = there.get(key).map(Vec::as_slice).unwrap_or_default();
            lane.truncate(there.len());
            for (sent, position) in lane.iter_mut().zip(there) {
                sent.position = Some(*position);
            }
            !lane.is_empty()
        });
        self.closed = marked.into_iter().map(|incarnation| (incarnation, true)).collect();
    }

    /// The log's own ways to a record, by its position and by counting, lead to what was found.
    pub(super) fn look_up(
        &self,
        shared: &Shared,
        found: &[Scanned],
        random: &mut Random,
    ) -> Result<(), String> {
        let events: Vec<&Stored> = found
            .iter()
            .filter_map(|scanned| match &scanned.item {
                ScannedItem::Event(stored) => Some(stored),
                ScannedItem::Closed { .. } => None,
            })
            .collect();
        if events.is_empty() {
            return Ok(());
        }
        for _ in 0..2 {
            let index = random.below(events.len());
            let Stored { position, frame } = events[index];
            let got = frame_at(shared, frame.target, *position);
            let first = shared.start().known.first;
            if *position < first {
                if got != Err(ReadError::Dropped { position: *position, first }) {
                    return Err(format!("at {position}, which was dropped, there is {got:?}"));
                }
                continue;
            }
            if got.as_ref() != Ok(events[index]) {
                return Err(format!("at {position} there is {got:?}"));
            }
            let until = events[..=index].iter().filter(|stored| stored.frame.target == frame.target);
            let counted = count_through(shared, frame.target, *position);
            if counted != Ok(until.count() as u64) {
                return Err(format!("up to {position} it counts {counted:?}"));
            }
            let all = events.iter().filter(|stored| stored.frame.target == frame.target).count() as u64;
            if shared.count(frame.target) != all {
                return Err(format!("of {all} records it counts {}", shared.count(frame.target)));
            }
        }
        Ok(())
    }
}
