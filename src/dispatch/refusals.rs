//! One line for many refusals: a log that refuses for an hour must not fill the disk with lines that say so.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// At most one line in this time.
const INTERVAL: Duration = Duration::from_secs(10);

/// Counts refusals between two lines.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    said_at: Option<Instant>,
    unsaid: u64,
}

impl Refusals {
    /// Counts one more. When it is time for a line, gives how many that line stands for.
    pub(crate) fn one_more(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.unsaid += 1;
        if state.said_at.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL) {
            return None;
        }
        state.said_at = Some(now);
        Some(std::mem::take(&mut state.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Clock as _, SystemClock};

    #[test]
    fn many_refusals_have_one_line_in_ten_seconds() {
        let (refusals, start) = (Refusals::default(), SystemClock.monotonic());
        let said: Vec<_> =
            (0..1_000).filter_map(|n| refusals.one_more(start + Duration::from_millis(n * 25))).collect();
        assert_eq!(said, [1, 400, 400]);
    }
}
