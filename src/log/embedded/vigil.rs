//! What the writer's thread lets others know of its work: whether it is in trouble, whether it looked at the files lately, and
//! whether the disk keeps it waiting.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a reader waits for the writer to look at the files.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    suspended: bool,
    /// How often it was suspended or went on: while this stays the same, so do the files behind open handles.
    changes: u64,
    /// How often the files were looked at.
    inspections: u64,
    ended: bool,
    /// Since when it waits for the disk.
    busy_since: Option<Instant>,
}

impl Vigil {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer can write no more, or again.
    pub(super) fn suspended(&self, suspended: bool) {
        let mut state = self.lock();
        state.suspended = suspended;
        state.changes += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// The writer looked at the files.
    pub(super) fn inspected(&self) {
        self.lock().inspections += 1;
        self.changed.notify_all();
    }

    /// The writer is gone.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// The writer turns to the disk.
    pub(super) fn begins(&self, at: Instant) {
        self.lock().busy_since = Some(at);
    }

    /// The disk answered.
    pub(super) fn ends(&self) {
        self.lock().busy_since = None;
    }

    /// How long the disk has kept the writer waiting.
    pub(super) fn busy_for(&self, now: Instant) -> Duration {
        self.lock().busy_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// How often trouble began or ended. Files may have been exchanged for others in between.
    pub(super) fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Whether trouble of the writer, since there were `changes`, explains that something cannot be read. Waits until the
    /// writer has looked at the files, which `ask` asks it to.
    pub(super) fn explains(&self, changes: u64, ask: impl Fn()) -> bool {
        let state = self.lock();
        // The one after the one that may be under way.
        let enough = state.inspections + 2;
        ask();
        ask();
        let unclear = |state: &mut State| {
            !state.suspended && !state.ended && state.changes == changes && state.inspections < enough
        };
        let (state, _) =
            self.changed.wait_timeout_while(state, PATIENCE, unclear).unwrap_or_else(PoisonError::into_inner);
        state.suspended || state.changes != changes
    }
}
