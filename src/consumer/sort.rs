//! Sorts the frames of a batch by the lane rule and by whether they can be read.
//!
//! Pure: what only Postgres can tell (was this seen long ago?) is left open for the caller.

use std::collections::HashMap;

use uuid::Uuid;

use super::lane::{Head, Verdict, judge};
use crate::base::planted;
use crate::event::{Decoded, Link, TopicPartition};
use crate::log::{Frame, Stored};
use crate::projection::Item;

/// A lane.
pub(super) type LaneKey = (TopicPartition, Uuid);

/// Why an event is set aside, with the event.
#[derive(Debug, Clone)]
pub(super) struct Parked {
    pub(super) stored: Stored,
    pub(super) cause: String,
}

/// What is wrong with a lane at one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) kind: FindingKind,
    pub(super) target: TopicPartition,
    pub(super) incarnation: Uuid,
    pub(super) from_seq: u64,
    pub(super) to_seq: u64,
    pub(super) position: u64,
    pub(super) detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FindingKind {
    Gap,
    Conflict,
}

impl FindingKind {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Conflict => "conflict",
        }
    }
}

impl Finding {
    pub(super) fn conflict(stored: &Stored, detail: String) -> Self {
        Self {
            kind: FindingKind::Conflict,
            target: stored.frame.target,
            incarnation: stored.frame.incarnation,
            from_seq: stored.frame.seq,
            to_seq: stored.frame.seq,
            position: stored.position.0,
            detail,
        }
    }
}

/// A batch, sorted.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// To be applied, in order per partition.
    pub(super) items: Vec<Item>,
    /// Set aside.
    pub(super) parked: Vec<Parked>,
    /// To be recorded.
    pub(super) findings: Vec<Finding>,
    /// Numbered below their lane's head and not of this batch: duplicates or conflicts.
    pub(super) behind: Vec<Stored>,
    /// Dropped.
    pub(super) duplicates: u64,
    /// Events that lanes skipped.
    pub(super) missing: u64,
    /// The lanes' heads after the batch.
    pub(super) heads: HashMap<LaneKey, Head>,
}

/// The lane of `frame`.
pub(super) fn lane_of(frame: &Frame) -> LaneKey {
    (frame.target, frame.incarnation)
}

/// Whether the lane's number can be kept in Postgres; no real lane gets there.
fn is_storable(frame: &Frame) -> bool {
    i64::try_from(frame.seq).is_ok()
}

/// Sorts `frames` against the heads that `known` gives.
pub(super) fn sort(frames: Vec<Stored>, known: impl Fn(LaneKey) -> Option<Head>) -> Sorted {
    let mut sorted = Sorted::default();
    let mut seen: HashMap<(LaneKey, u64), Link> = HashMap::new();
    for stored in frames {
        let frame = &stored.frame;
        let lane = lane_of(frame);
        if !is_storable(frame) {
            sorted.parked.push(Parked { stored, cause: "the sequence number is out of range".into() });
            continue;
        }
        let head = sorted.heads.get(&lane).copied().or_else(|| known(lane));
        match judge(head, frame.seq, &frame.link) {
            Verdict::Next => {}
            Verdict::Gap { from, to } => sorted.gap(&stored, from, to),
            Verdict::Duplicate => {
                sorted.duplicates += 1;
                continue;
            }
            Verdict::Conflict => {
                sorted.conflict(stored, "another event has this number");
                continue;
            }
            Verdict::Behind => {
                match seen.get(&(lane, frame.seq)) {
                    Some(link) if *link == frame.link => sorted.duplicates += 1,
                    Some(_) => sorted.conflict(stored, "another event has this number"),
                    None => sorted.behind.push(stored),
                }
                continue;
            }
        }
        sorted.heads.insert(lane, Head { seq: frame.seq, link: frame.link });
        seen.insert((lane, frame.seq), frame.link);
        match Decoded::read(frame.target.topic, &frame.body) {
            Ok(decoded) => sorted.items.push(Item { stored, decoded }),
            Err(error) => sorted.parked.push(Parked { stored, cause: error.to_string() }),
        }
    }
    sorted
}

impl Sorted {
    fn gap(&mut self, stored: &Stored, from: u64, to: u64) {
        if planted::armed("lane_gap_ignored") {
            return;
        }
        let missing = (to - from).saturating_add(1);
        self.missing = self.missing.saturating_add(missing);
        self.findings.push(Finding {
            kind: FindingKind::Gap,
            target: stored.frame.target,
            incarnation: stored.frame.incarnation,
            from_seq: from,
            to_seq: to,
            position: stored.position.0,
            detail: format!("{missing} events are missing before this one"),
        });
    }

    /// Sets aside an event that has no row.
    pub(super) fn leave_out(&mut self, item: Item, cause: String) {
        self.parked.push(Parked { stored: item.stored, cause });
    }

    /// Flags a conflicting event and keeps it.
    pub(super) fn conflict(&mut self, stored: Stored, detail: &str) {
        self.findings.push(Finding::conflict(&stored, detail.to_owned()));
        self.parked.push(Parked { stored, cause: format!("conflict: {detail}") });
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::base::{Timestamp, sha256};
    use crate::event::{AckCheck, AckClass, Draft, Facts, Personal, Stopping};
    use crate::log::Position;

    fn stored(position: u64, seq: u64, link: u8, body: &Bytes) -> Stored {
        let frame = Frame {
            target: TopicPartition { topic: crate::event::Topic::System, partition: 3 },
            incarnation: Uuid::from_u128(1),
            seq,
            recorded_at: Timestamp::from_micros(1_764_521_228_000_000),
            content: sha256(body),
            link: [link; 32],
            body: body.clone(),
        };
        Stored { position: Position(position), frame }
    }

    fn body() -> Bytes {
        let draft = Draft {
            source: "urn:annals:default".into(),
            incarnation: Uuid::from_u128(1),
            ack: AckClass::Fsync,
            ack_check: AckCheck::Verified,
            redactor: crate::redact::Redactor::shared(),
        };
        let facts = Facts::Stopping(Stopping { reason: "signal".into() });
        draft.build(Timestamp::from_micros(1), "k", &facts, &Personal::default()).unwrap().body
    }

    fn positions(items: &[Item]) -> Vec<u64> {
        items.iter().map(|item| item.stored.position.0).collect()
    }

    #[test]
    fn a_gap_is_recorded_with_its_range_and_the_reader_goes_on() {
        let frames = vec![stored(10, 0, 0, &body()), stored(20, 5, 5, &body()), stored(30, 6, 6, &body())];
        let sorted = sort(frames, |_| None);
        assert_eq!(positions(&sorted.items), [10, 20, 30]);
        assert_eq!(sorted.missing, 4);
        let [gap] = sorted.findings.as_slice() else { panic!("one finding, got {:?}", sorted.findings) };
        assert_eq!((gap.kind, gap.from_seq, gap.to_seq, gap.position), (FindingKind::Gap, 1, 4, 20));
        assert_eq!(sorted.heads.values().copied().collect::<Vec<_>>(), [Head { seq: 6, link: [6; 32] }]);
    }

    #[test]
    fn what_comes_again_in_one_batch_is_dropped_and_what_differs_is_kept_aside() {
        let frames = vec![
            stored(10, 0, 0, &body()),
            stored(20, 1, 1, &body()),
            stored(30, 0, 0, &body()),
            stored(40, 1, 1, &body()),
            stored(50, 0, 9, &body()),
            stored(60, 1, 9, &body()),
            stored(70, 2, 2, &body()),
        ];
        let sorted = sort(frames, |_| None);
        assert_eq!(positions(&sorted.items), [10, 20, 70]);
        assert_eq!((sorted.duplicates, sorted.missing), (2, 0));
        let kept: Vec<u64> = sorted.parked.iter().map(|parked| parked.stored.position.0).collect();
        assert_eq!(kept, [50, 60]);
        assert!(sorted.findings.iter().all(|finding| finding.kind == FindingKind::Conflict));
        assert_eq!(sorted.findings.len(), 2);
    }

    #[test]
    fn what_lies_behind_an_old_head_is_left_open() {
        let sorted = sort(vec![stored(10, 3, 3, &body())], |_| Some(Head { seq: 7, link: [7; 32] }));
        assert_eq!(sorted.behind.len(), 1);
        assert!(sorted.heads.is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_parked_and_its_number_counts() {
        let frames = vec![stored(10, 0, 0, &Bytes::from_static(b"{")), stored(20, 1, 1, &body())];
        let sorted = sort(frames, |_| None);
        assert_eq!(positions(&sorted.items), [20]);
        assert_eq!(sorted.parked[0].cause, "not an event: EOF while parsing an object at line 1 column 1");
        assert!(sorted.findings.is_empty());
    }

    #[test]
    fn a_number_out_of_range_blocks_nothing() {
        let sorted = sort(vec![stored(10, u64::MAX, 0, &body()), stored(20, 0, 1, &body())], |_| None);
        assert_eq!(positions(&sorted.items), [20]);
        assert_eq!(sorted.parked[0].cause, "the sequence number is out of range");
    }
}
