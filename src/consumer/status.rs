//! What the workers say of themselves, for readiness and people.
//!
//! A status is shown, never acted on: nothing in the call path waits for a worker.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// How the store stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreState {
    /// The worker follows the log (or stands by for another that does).
    Ok,
    /// Not yet there.
    Starting,
    /// Postgres is away or refuses; the worker retries for ever.
    Degraded,
    /// The checkpoints do not belong to this log; the worker stopped and needs a person.
    Diverged,
    /// The log's bytes are damaged; the worker stopped and needs a person.
    Corrupt,
}

impl StoreState {
    /// As readiness shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Diverged => "log_diverged",
            Self::Corrupt => "log_corrupt",
        }
    }
}

/// The state of the store as its worker sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreStatus {
    /// The state.
    pub state: StoreState,
    /// Why, in one line; empty when all is well.
    pub detail: String,
    /// Events on the log that are not applied yet, as last counted (every few seconds).
    pub lag_events: u64,
}

impl StoreStatus {
    /// Before the worker has looked at anything.
    #[must_use]
    pub const fn starting() -> Self {
        Self { state: StoreState::Starting, detail: String::new(), lag_events: 0 }
    }
}

/// Collects the loops' states into one.
#[derive(Debug)]
pub(super) struct Board {
    loops: Mutex<Vec<StoreStatus>>,
    whole: watch::Sender<StoreStatus>,
}

impl Board {
    pub(super) fn new(loops: usize) -> Self {
        Self {
            loops: Mutex::new(vec![StoreStatus::starting(); loops]),
            whole: watch::Sender::new(StoreStatus::starting()),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<StoreStatus> {
        self.whole.subscribe()
    }

    /// The state of all loops at once.
    pub(super) fn set_all(&self, state: StoreState, detail: &str) {
        self.change(|loops| {
            for status in loops {
                status.state = state;
                detail.clone_into(&mut status.detail);
            }
        });
    }

    pub(super) fn set(&self, index: usize, state: StoreState, detail: &str) {
        self.change(|loops| {
            if let Some(status) = loops.get_mut(index) {
                status.state = state;
                detail.clone_into(&mut status.detail);
            }
        });
    }

    pub(super) fn set_lag(&self, index: usize, lag_events: u64) -> u64 {
        self.change(|loops| {
            if let Some(status) = loops.get_mut(index) {
                status.lag_events = lag_events;
            }
        })
    }

    /// Publishes the worst of the loops; returns the whole lag.
    fn change(&self, change: impl FnOnce(&mut [StoreStatus])) -> u64 {
        let mut loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut loops);
        let lag_events = loops.iter().map(|status| status.lag_events).sum();
        let worst = loops.iter().max_by_key(|status| status.state).cloned();
        let whole = StoreStatus { lag_events, ..worst.unwrap_or_else(StoreStatus::starting) };
        self.whole.send_if_modified(|current| {
            let changed = *current != whole;
            *current = whole;
            changed
        });
        lag_events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_loop_speaks_for_all_and_lags_add_up() {
        let board = Board::new(2);
        let status = board.subscribe();
        assert_eq!(status.borrow().state, StoreState::Starting);
        board.set_all(StoreState::Ok, "");
        board.set(1, StoreState::Degraded, "away");
        board.set_lag(0, 3);
        assert_eq!(board.set_lag(1, 4), 7);
        let want = StoreStatus { state: StoreState::Degraded, detail: "away".into(), lag_events: 7 };
        assert_eq!(*status.borrow(), want);
        board.set(0, StoreState::Diverged, "other log");
        assert_eq!(status.borrow().state.as_str(), "log_diverged");
    }
}
