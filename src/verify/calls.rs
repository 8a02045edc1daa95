//! Checks that each call has exactly one intent and one end, or one denial; that what came late came after an end; and that
//! who closed a call added nothing of their own.
//!
//! Pure. Keeps the open calls, and the last ended ones so that a second end or intent is noticed. The first end counts:
//! a closure behind it lost a race and changes nothing, which is a note; any other second end is a finding.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use uuid::Uuid;

use super::lanes::LaneKey;
use super::report::{Finding, FindingKind};
use crate::base::Timestamp;
use crate::event::{Decoded, Effect, Facts, INTERRUPTED, Kind, Requested, TopicPartition, closure_id};
use crate::log::{LogStart, Stored};

/// Ended calls that are remembered.
const ENDED_MAX: usize = 500_000;

/// What is known of a call without an end.
#[derive(Debug)]
struct Begun {
    target: TopicPartition,
    incarnation: Uuid,
    deadline: Timestamp,
}

/// What is known of a call with one.
#[derive(Debug)]
struct Ended {
    target: TopicPartition,
    kind: Kind,
    /// The closure's digest, when it was closed.
    closure: Option<Box<[u8; 32]>>,
    late: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CallBook {
    open: HashMap<Uuid, Begun>,
    ended: HashMap<Uuid, Ended>,
    order: VecDeque<Uuid>,
    /// The clocks of lanes whose beginning the log has dropped, where it starts.
    before: HashMap<LaneKey, Timestamp>,
    /// Ended calls that began before the log's start.
    begun_before: u64,
    /// Closures that stand behind the end of their call, or behind the same closure.
    closed_again: u64,
}

impl CallBook {
    /// Before the first event of a log that starts there.
    pub(super) fn begin(&mut self, start: &LogStart) {
        let lanes = start.heads.iter().map(|head| ((head.incarnation, head.target), head.recorded_at));
        self.before = lanes.collect();
    }

    /// Whether the call's intent may stand before the log's start: its lane goes back there, and so does the call.
    fn may_begin_before(&self, stored: &Stored, decoded: &Decoded) -> bool {
        let lane = (stored.frame.incarnation, stored.frame.target);
        match &decoded.facts {
            Facts::Terminal(_, ended) => {
                self.before.get(&lane).is_some_and(|head| ended.call.received_at <= *head)
            }
            _ => false,
        }
    }

    /// Takes one event.
    pub(super) fn add(&mut self, stored: &Stored, decoded: &Decoded, found: &mut Vec<Finding>) {
        let details = match &decoded.facts {
            Facts::Requested(intent) => self.begun(stored, intent),
            Facts::Terminal(Kind::ToolCallLate, late) => self.late(stored, decoded, late.call.call_id),
            Facts::Terminal(_, end) => self.ends(stored, decoded, end.call.call_id),
            _ => Vec::new(),
        };
        let target = stored.frame.target;
        found.extend(
            details
                .into_iter()
                .map(|detail| Finding::at(FindingKind::Call, target, stored.position.0, detail)),
        );
    }

    fn begun(&mut self, stored: &Stored, intent: &Requested) -> Vec<String> {
        let call_id = intent.call.call_id;
        if self.ended.contains_key(&call_id) {
            return vec![format!("call {call_id} has an intent after its end")];
        }
        let (target, incarnation) = (stored.frame.target, stored.frame.incarnation);
        let begun = Begun { target, incarnation, deadline: intent.deadline };
        match self.open.insert(call_id, begun) {
            Some(_) => vec![format!("call {call_id} has a second intent")],
            None => Vec::new(),
        }
    }

    fn ends(&mut self, stored: &Stored, decoded: &Decoded, call_id: Uuid) -> Vec<String> {
        if let Some(first) = self.ended.get(&call_id) {
            let same = first.closure.as_deref().is_none_or(|content| *content == stored.frame.content);
            let detail = match (decoded.kind == Kind::ToolCallInterrupted, first.closure.is_some()) {
                (true, _) if same => {
                    self.closed_again += 1;
                    return Vec::new();
                }
                (true, _) => format!("call {call_id} was closed twice, with different content"),
                (false, true) => format!("call {call_id} ends although it was closed as interrupted before"),
                (false, false) => format!("call {call_id} has a second end"),
            };
            return vec![detail];
        }
        let mut details = Vec::new();
        let begun = self.open.remove(&call_id);
        match &begun {
            Some(begun) if begun.target != stored.frame.target => {
                details.push(format!("call {call_id} began on {} and ends elsewhere", begun.target));
            }
            Some(_) => {}
            None if decoded.kind == Kind::ToolCallDenied => {}
            None if self.may_begin_before(stored, decoded) => self.begun_before += 1,
            None => details.push(format!("call {call_id} ends without an intent")),
        }
        if decoded.kind == Kind::ToolCallInterrupted {
            details.extend(wrong_in_closure(decoded, begun.as_ref(), call_id));
        }
        self.end(call_id, stored, decoded.kind);
        details
    }

    /// What came after the end.
    fn late(&mut self, stored: &Stored, decoded: &Decoded, call_id: Uuid) -> Vec<String> {
        let forgets = self.order.len() == ENDED_MAX;
        let may_end_before = self.may_begin_before(stored, decoded);
        let detail = match self.ended.entry(call_id) {
            Entry::Vacant(_) if forgets || (may_end_before && !self.open.contains_key(&call_id)) => {
                return Vec::new();
            }
            Entry::Vacant(_) => format!("call {call_id} has something late, but no end before it"),
            Entry::Occupied(mut entry) => {
                let end = entry.get_mut();
                let kind = end.kind;
                if end.target != stored.frame.target {
                    format!("call {call_id} ended on {} and has something late elsewhere", end.target)
                } else if !matches!(kind, Kind::ToolCallCancelled | Kind::ToolCallTimedOut) {
                    format!("call {call_id} has something late after {kind}")
                } else if std::mem::replace(&mut end.late, true) {
                    format!("call {call_id} has something late twice")
                } else {
                    return Vec::new();
                }
            }
        };
        vec![detail]
    }

    fn end(&mut self, call_id: Uuid, stored: &Stored, kind: Kind) {
        if self.order.len() == ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ended.remove(&oldest);
        }
        let closure = (kind == Kind::ToolCallInterrupted).then(|| Box::new(stored.frame.content));
        self.ended.insert(call_id, Ended { target: stored.frame.target, kind, closure, late: false });
        self.order.push_back(call_id);
    }

    /// What is worth knowing at the end.
    pub(super) fn note(&self, notes: &mut Vec<String>) {
        if self.begun_before > 0 {
            notes.push(format!("{} calls began before the log's start and end behind it", self.begun_before));
        }
        if self.closed_again > 0 {
            let count = self.closed_again;
            notes.push(format!("{count} closures stand behind the end of their call: the end before counts"));
        }
    }

    /// Calls without an end.
    pub(super) fn open(&self) -> u64 {
        self.open.len() as u64
    }
}

/// A closure follows from the intent alone.
fn wrong_in_closure(decoded: &Decoded, begun: Option<&Begun>, call_id: Uuid) -> Option<String> {
    let Facts::Terminal(_, end) = &decoded.facts else { return None };
    let error = end.outcome.error.as_ref().map(|error| error.code.as_str());
    let is_one = decoded.id == closure_id(call_id)
        && decoded.common.once
        && end.outcome.effect == Some(Effect::Unknown)
        && error == Some(INTERRUPTED);
    let is_of_the_intent = begun.is_none_or(|begun| {
        begun.deadline == decoded.occurred_at && begun.incarnation == decoded.common.incarnation
    });
    (!is_one || !is_of_the_intent)
        .then(|| format!("call {call_id} was closed by an event that does not follow from its intent"))
}
