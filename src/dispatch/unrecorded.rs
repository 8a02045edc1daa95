//! Calls that this process ended without being able to record it: the closer settles them. Bounded.

use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

use crate::event::TopicPartition;

/// Calls that are kept. What does not fit is settled at the next start, as the calls of a dead process.
const CALLS_MAX: usize = 4_096;

/// A call that was answered with `outcome_unrecorded`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnrecordedCall {
    /// The call.
    pub call_id: Uuid,
    /// Where its intent stands.
    pub target: TopicPartition,
    /// This process's lane there went up to this number: if its end comes after all, it has one up to this.
    pub through_seq: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Unrecorded {
    calls: Mutex<Vec<UnrecordedCall>>,
}

impl Unrecorded {
    /// Keeps `call`; `false` when there is no room.
    pub fn add(&self, call: UnrecordedCall) -> bool {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = calls.len() < CALLS_MAX;
        if fits {
            calls.push(call);
        }
        fits
    }

    /// All that are kept.
    #[must_use]
    pub fn all(&self) -> Vec<UnrecordedCall> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets the calls of which `settled` says so.
    pub fn forget(&self, settled: impl Fn(Uuid) -> bool) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.retain(|call| !settled(call.call_id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Topic;

    #[test]
    fn it_is_bounded_and_forgets_what_is_settled() {
        let unrecorded = Unrecorded::default();
        let target = TopicPartition { topic: Topic::ToolCalls, partition: 1 };
        let call = |number: usize| UnrecordedCall {
            call_id: Uuid::from_u128(number as u128),
            target,
            through_seq: Some(3),
        };
        for number in 0..CALLS_MAX {
            assert!(unrecorded.add(call(number)), "{number}");
        }
        assert!(!unrecorded.add(call(CALLS_MAX)));
        unrecorded.forget(|id| id != Uuid::from_u128(5));
        assert_eq!(unrecorded.all(), [call(5)]);
    }
}
