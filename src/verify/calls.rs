//! Checks that each call has exactly one intent and one end, or one denial.
//!
//! Pure. Keeps the open calls, and the last ended ones so that a second end or intent is noticed.

use std::collections::{HashMap, HashSet, VecDeque};

use uuid::Uuid;

use super::report::{Finding, FindingKind};
use crate::event::{Decoded, Kind, TopicPartition};
use crate::log::Stored;
use crate::projection::audit::{CallStep, call_step};

/// Ended calls that are remembered.
const ENDED_MAX: usize = 500_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CallBook {
    open: HashMap<Uuid, TopicPartition>,
    ended: HashSet<Uuid>,
    order: VecDeque<Uuid>,
}

impl CallBook {
    /// Takes one event.
    pub(super) fn add(&mut self, stored: &Stored, decoded: &Decoded, found: &mut Vec<Finding>) {
        let target = stored.frame.target;
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
                    if decoded.kind != Kind::ToolCallDenied {
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

    /// Calls without an end.
    pub(super) fn open(&self) -> u64 {
        self.open.len() as u64
    }
}
