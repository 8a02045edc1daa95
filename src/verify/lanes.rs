//! Checks the lanes of a log as its events come by: numbers, links, clocks, ends, and the heads that events state.
//!
//! Pure: it sees every event once, in log order, and keeps only what it needs of each lane.

use std::collections::{BTreeMap, HashMap, VecDeque};

use uuid::Uuid;

use super::report::{Finding, FindingKind};
use crate::base::{Timestamp, planted};
use crate::consumer::lane::{Head, Verdict, judge};
use crate::event::{Facts, LaneClosed, LaneHead, Link, TopicPartition, ZERO_LINK};
use crate::log::{Frame, LogStart, Position, Stored};

/// Links kept of each lane, to compare with heads that are stated a little later.
const LINKS_KEPT: usize = 1_024;

/// A lane: of which process start, on which partition.
pub(super) type LaneKey = (Uuid, TopicPartition);

/// Head and clock of a lane, and where its end was stated.
#[derive(Debug, Default)]
struct Lane {
    head: Option<Head>,
    recorded_at: Timestamp,
    /// The last links, oldest first.
    links: VecDeque<Link>,
    last_position: u64,
    closed: Option<u64>,
    /// The log has an event of it; else it is only known from the log's start.
    seen: bool,
}

/// What is known of a process start.
#[derive(Debug, Default)]
struct Incarnation {
    /// In the order of their first events.
    number: usize,
    /// It did more than to start and to close the dead.
    works: bool,
    /// The log says that none of its lanes is open any more.
    marked_closed: bool,
    lanes: BTreeMap<TopicPartition, Lane>,
}

/// A stated head that lies too far back to be compared at once.
#[derive(Debug, Clone)]
pub(super) struct Stated {
    pub(super) lane: LaneKey,
    pub(super) seq: u64,
    pub(super) link: Link,
    /// Where it is stated.
    pub(super) by: TopicPartition,
    pub(super) position: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LaneBook {
    incarnations: HashMap<Uuid, Incarnation>,
    lanes: u64,
    late: Vec<Stated>,
}

impl LaneBook {
    /// Before the first event of a log that starts there: the lanes that may go on.
    pub(super) fn begin(&mut self, start: &LogStart) {
        for head in &start.heads {
            let number = self.incarnations.len();
            let known = self
                .incarnations
                .entry(head.incarnation)
                .or_insert_with(|| Incarnation { number, ..Incarnation::default() });
            let lane = Lane {
                head: Some(Head { seq: head.seq, link: head.link }),
                recorded_at: head.recorded_at,
                links: VecDeque::from([head.link]),
                last_position: start.first.0,
                ..Lane::default()
            };
            known.lanes.insert(head.target, lane);
        }
    }

    /// Takes one event. What is wrong with it goes to `found`; the verdict says what a reader does with it.
    pub(super) fn add(&mut self, stored: &Stored, found: &mut Vec<Finding>) -> Verdict {
        let frame = &stored.frame;
        let position = stored.position.0;
        let number = self.incarnations.len();
        let incarnation = self
            .incarnations
            .entry(frame.incarnation)
            .or_insert_with(|| Incarnation { number, ..Incarnation::default() });
        let mut finding = |kind, detail: String| {
            found.push(Finding::at(kind, frame.target, position, detail));
        };
        if incarnation.marked_closed {
            finding(FindingKind::LaneEnd, "its process start was declared ended before it".into());
        }
        let lanes = &mut self.lanes;
        let lane = incarnation.lanes.entry(frame.target).or_default();
        if !std::mem::replace(&mut lane.seen, true) {
            *lanes += 1;
        }
        if let Some(closed) = lane.closed {
            finding(FindingKind::LaneEnd, format!("its lane was closed by the event at {closed}"));
        }
        let verdict = judge(lane.head, frame.seq, &frame.link);
        match verdict {
            Verdict::Next => {
                let prev = lane.head.map_or(ZERO_LINK, |head| head.link);
                if expected_link(&prev, frame) != frame.link {
                    let detail =
                        format!("event {} does not follow from the one before it in its lane", frame.seq);
                    finding(FindingKind::Link, detail);
                }
            }
            Verdict::Gap { from, to } => {
                finding(FindingKind::Gap, format!("events {from} to {to} of its lane are missing before it"));
            }
            Verdict::Duplicate => {
                finding(FindingKind::Duplicate, format!("event {} of its lane is there again", frame.seq));
                return verdict;
            }
            Verdict::Conflict => {
                finding(FindingKind::Conflict, format!("another event has number {} in its lane", frame.seq));
                return verdict;
            }
            Verdict::Behind => {
                let seq = frame.seq;
                let head = lane.head.map_or(0, |head| head.seq);
                let detail =
                    format!("event {seq} of its lane comes after event {head}: repeated or reordered");
                finding(FindingKind::Duplicate, detail);
                return verdict;
            }
        }
        if frame.recorded_at < lane.recorded_at {
            let detail = format!(
                "recorded at {}, before {} of the event before it",
                frame.recorded_at, lane.recorded_at
            );
            finding(FindingKind::Clock, detail);
        }
        lane.accept(frame, position);
        verdict
    }

    /// Takes what an event that could be read says of lanes.
    pub(super) fn add_facts(&mut self, stored: &Stored, facts: &Facts, found: &mut Vec<Finding>) {
        match facts {
            Facts::LaneClosed(closed) => self.close(stored, closed, found),
            Facts::Checkpoint(checkpoint) => {
                self.works(stored);
                for head in &checkpoint.heads {
                    self.compare_head(stored, head, found);
                }
            }
            Facts::Started(_) => {}
            Facts::Requested(_)
            | Facts::Terminal(..)
            | Facts::RequestRefused(_)
            | Facts::SessionStarted(_)
            | Facts::SessionEnded(_)
            | Facts::AuthFailed(_)
            | Facts::KeyCreated(_)
            | Facts::KeyRevoked(_)
            | Facts::AuditQueried(_)
            | Facts::Stopping(_)
            | Facts::Gap(_)
            | Facts::Retention(_)
            | Facts::BackupTaken(_)
            | Facts::LogAdopted(_) => self.works(stored),
        }
    }

    fn works(&mut self, stored: &Stored) {
        if let Some(incarnation) = self.incarnations.get_mut(&stored.frame.incarnation) {
            incarnation.works = true;
        }
    }

    /// The log's own mark that all lanes of `incarnation` are closed, at `position`.
    pub(super) fn mark_closed(&mut self, incarnation: Uuid, position: Position, found: &mut Vec<Finding>) {
        let Some(known) = self.incarnations.get_mut(&incarnation) else { return };
        known.marked_closed = true;
        for (target, lane) in &mut known.lanes {
            if !lane.seen {
                // The event that closed it may stand before the log's start.
                lane.closed.get_or_insert(position.0);
            } else if lane.closed.is_none() {
                found.push(Finding::at(
                    FindingKind::LaneOpen,
                    *target,
                    position.0,
                    format!("{incarnation} is declared ended here, and no event closed this lane of it"),
                ));
            }
        }
    }

    /// Checks a closing event against the lane and ends the lane.
    fn close(&mut self, stored: &Stored, closed: &LaneClosed, found: &mut Vec<Finding>) {
        let frame = &stored.frame;
        let target = TopicPartition { topic: closed.head.topic, partition: closed.head.partition };
        let own = closed.lane_incarnation == frame.incarnation && target == frame.target;
        let problem =
            |detail: String| Finding::at(FindingKind::LaneEnd, frame.target, stored.position.0, detail);
        let lane = self
            .incarnations
            .get_mut(&closed.lane_incarnation)
            .and_then(|known| known.lanes.get_mut(&target));
        let Some(lane) = lane else {
            let of = closed.lane_incarnation;
            found.push(problem(format!("it closes lane {target} of {of}, of which there is no event")));
            return;
        };
        // The lane that carries its own closing event ends with that event, which names the one before itself.
        let seen = if own { lane.before_head() } else { lane.head };
        let stated = stated_head(&closed.head);
        if seen != stated || stated.is_none() {
            let seen =
                seen.map_or("before its first event".into(), |head| format!("with event {}", head.seq));
            found.push(problem(format!(
                "it says that lane {target} of {} ends with event {}, but the log has it end {seen}, or with another link",
                closed.lane_incarnation, closed.head.seq
            )));
        }
        lane.closed.get_or_insert(stored.position.0);
        // Ended lanes are compared no more.
        lane.links = VecDeque::new();
    }

    /// Compares one head of a `system.checkpoint`: the lane was there already, with that link.
    fn compare_head(&mut self, stored: &Stored, stated: &LaneHead, found: &mut Vec<Finding>) {
        let frame = &stored.frame;
        let target = TopicPartition { topic: stated.topic, partition: stated.partition };
        let problem =
            |detail: String| Finding::at(FindingKind::Heads, frame.target, stored.position.0, detail);
        let lane = self.incarnations.get(&frame.incarnation).and_then(|known| known.lanes.get(&target));
        let Some((lane, head)) = lane.and_then(|lane| Some((lane, lane.head?))) else {
            found.push(problem(format!("it states event {} of {target}, where none was seen", stated.seq)));
            return;
        };
        let Some(stated) = stated_head(stated) else {
            found.push(problem(format!("it states a link of {target} that is none")));
            return;
        };
        if stated.seq > head.seq {
            let (stated, head) = (stated.seq, head.seq);
            found.push(problem(format!(
                "it states event {stated} of {target}, but the log has it end with {head}"
            )));
            return;
        }
        match lane.link_at(stated.seq) {
            Some(link) if link == stated.link || planted::armed("verify_trusts_heads") => {}
            Some(_) => {
                found.push(problem(format!("it states another link for event {} of {target}", stated.seq)));
            }
            None => self.late.push(Stated {
                lane: (frame.incarnation, target),
                seq: stated.seq,
                link: stated.link,
                by: frame.target,
                position: stored.position.0,
            }),
        }
    }

    /// Lanes seen.
    pub(super) const fn lanes(&self) -> u64 {
        self.lanes
    }

    /// Process starts seen.
    pub(super) fn incarnations(&self) -> u64 {
        self.incarnations.values().filter(|known| known.lanes.values().any(|lane| lane.seen)).count() as u64
    }

    /// Stated heads that must be looked for in a second reading.
    pub(super) fn take_late(&mut self) -> Vec<Stated> {
        std::mem::take(&mut self.late)
    }

    /// At the end of the log: lanes that were never closed. Those of the last process start are a note, because it
    /// may run still or have been killed; so are those of earlier ones as long as no later one went to work.
    pub(super) fn finish(&self, found: &mut Vec<Finding>, notes: &mut Vec<String>) {
        let busy = self.incarnations.values().filter(|known| known.works).map(|known| known.number).max();
        let mut ordered: Vec<_> = self.incarnations.iter().collect();
        ordered.sort_by_key(|(_, known)| known.number);
        for (incarnation, known) in ordered {
            let open: Vec<_> = known.lanes.iter().filter(|(_, lane)| lane.closed.is_none()).collect();
            if open.is_empty() {
                continue;
            }
            if busy.is_none_or(|busy| busy <= known.number) {
                notes.push(format!(
                    "{} lanes of process start {incarnation} are not closed: it runs, or was killed and nothing started since",
                    open.len()
                ));
                continue;
            }
            for (target, lane) in open {
                found.push(Finding::at(
                    FindingKind::LaneOpen,
                    *target,
                    lane.last_position,
                    format!("no event closes this lane of {incarnation}, though a later process start went to work"),
                ));
            }
        }
    }
}

impl Lane {
    fn accept(&mut self, frame: &Frame, position: u64) {
        // Behind a gap the older links say nothing about numbers any more.
        if self.head.is_some_and(|head| head.seq.checked_add(1) != Some(frame.seq)) {
            self.links.clear();
        }
        if self.links.len() == LINKS_KEPT {
            self.links.pop_front();
        }
        self.links.push_back(frame.link);
        self.head = Some(Head { seq: frame.seq, link: frame.link });
        self.recorded_at = self.recorded_at.max(frame.recorded_at);
        self.last_position = position;
    }

    /// The event before the last one.
    fn before_head(&self) -> Option<Head> {
        let seq = self.head?.seq.checked_sub(1)?;
        Some(Head { seq, link: self.link_at(seq)? })
    }

    fn link_at(&self, seq: u64) -> Option<Link> {
        let head = self.head?;
        let back = usize::try_from(head.seq.checked_sub(seq)?).ok()?;
        let index = self.links.len().checked_sub(1)?.checked_sub(back)?;
        self.links.get(index).copied()
    }
}

fn stated_head(stated: &LaneHead) -> Option<Head> {
    let mut link = [0; 32];
    hex::decode_to_slice(&stated.link, &mut link).ok()?;
    Some(Head { seq: stated.seq, link })
}

/// The link that `frame` must have behind `prev`.
fn expected_link(prev: &Link, frame: &Frame) -> Link {
    if planted::armed("verify_trusts_links") {
        return frame.link;
    }
    frame.link_behind(prev)
}
