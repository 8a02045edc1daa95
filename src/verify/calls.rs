//! Checks that each call has exactly one intent and one end, or one denial.
//!
//! Pure. Keeps the open calls, and the last ended ones so that a second end or intent is noticed.

use std::collections::{HashMap, HashSet, VecDeque};

use uuid::Uuid;

use super::lanes::LaneKey;
use super::report::{Finding, FindingKind};
use crate::base::Timestamp;
use crate::event::{Decoded, Facts, Kind, TopicPartition};
use crate::log::{LogStart, Stored};
use crate::projection::audit::{CallStep, call_step};

/// Ended calls that are remembered.
const ENDED_MAX: usize = 500_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CallBook {
    open: HashMap<Uuid, TopicPartition>,
    ended: HashSet<Uuid>,
    order: VecDeque<Uuid>,
    /// The clocks of lanes whose beginning the log has dropped, where it starts.
    before: HashMap<LaneKey, Timestamp>,
    /// Ended calls that began before the log's start.
    begun_before: u64,
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
        let target = stored.frame.target;
        let begun_before = self.may_begin_before(stored, decoded);
        let mut finding = |detail: String| {
            found.push(Finding::at(FindingKind::Call, target, stored.position.0, detail));
        };
        match call_step(decoded) {
            None => {}
            Some(CallStep::Opened { call_id, .. }) => {
                if self.ended.contains(&call_id) {
                    finding(format!("call {call_id} has an intent after its end"));
                } else if self.open.insert(call_id, target).is_some() {
                    finding(format!("call {call_id} has a second intent"));
                }
            }
            Some(CallStep::Ended { call_id }) => match self.open.remove(&call_id) {
                Some(begun) => {
                    if begun != target {
                        finding(format!("call {call_id} began on {begun} and ends elsewhere"));
                    }
                    self.end(call_id);
                }
                None if self.ended.contains(&call_id) => finding(format!("call {call_id} has a second end")),
                None => {
                    if decoded.kind != Kind::ToolCallDenied && begun_before {
                        self.begun_before += 1;
                    } else if decoded.kind != Kind::ToolCallDenied {
                        finding(format!("call {call_id} ends without an intent"));
                    }
                    self.end(call_id);
                }
            },
        }
    }

    fn end(&mut self, call_id: Uuid) {
        if self.order.len() == ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ended.remove(&oldest);
        }
        self.ended.insert(call_id);
        self.order.push_back(call_id);
    }

    /// What is worth knowing at the end.
    pub(super) fn note(&self, notes: &mut Vec<String>) {
        if self.begun_before > 0 {
            notes.push(format!("{} calls began before the log's start and end behind it", self.begun_before));
        }
    }

    /// Calls without an end.
    pub(super) fn open(&self) -> u64 {
        self.open.len() as u64
    }
}
