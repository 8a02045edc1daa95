//! Room: who may append how much. A reservation is given only when the disk space for it, and for every other one that
//! is out, is allocated already. Knows no frames and writes no files.
//!
//! The invariant: what is out fits the rest of the active segment, or else the segment prepared ahead. A frame that does
//! not fit the rest therefore always finds a prepared segment with room for it and for all others that are out.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::allocate::{Job, Prepared};
use super::frame::{EVENT_OVERHEAD_BYTES, LANE_BYTES};
use super::metrics::Stats;
use super::outage::{Fault, GAP_BYTES};
use crate::base::{Clock, Timestamp, planted};
use crate::event::Gap;
use crate::log::{AppendError, Refusal, RoomKeeper};

/// A record costs its frame, and may add one lane to the next header.
const RECORD_COST_BYTES: u64 = (EVENT_OVERHEAD_BYTES + LANE_BYTES) as u64;
/// A failed preparation is not tried again within this time.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The log says that it refuses when it cannot allocate and less than this is left.
const HEALTHY_REST_BYTES: u64 = 512 * 1024;

/// What may be out at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) records_max: u32,
    pub(super) bytes_max: u64,
    pub(super) wait: Duration,
}

/// See the module.
pub(super) struct Room {
    limits: Limits,
    clock: Arc<dyn Clock>,
    stats: Stats,
    jobs: Sender<Job>,
    state: Mutex<State>,
    /// Held by the one who waits for room; the others queue behind, first come first served.
    turn: tokio::sync::Mutex<()>,
    changed: Notify,
}

struct State {
    records: u32,
    bytes: u64,
    /// What the active segment still holds.
    rest: u64,
    /// The header of the next segment, were it written now.
    header: u64,
    next: Next,
    /// Why the last preparation failed; kept while another try runs.
    failing: Option<Fault>,
    /// Refusals since then, if there were any.
    shortage: Option<Shortage>,
    /// Nothing new is taken for now; what was promised still is. With the refusals since.
    suspended: Option<(Refusal, u64)>,
    /// The outage is over and is being told: what is asked for now waits until it is.
    resuming: bool,
    stopped: Option<Refusal>,
}

enum Next {
    /// Neither there nor asked for.
    Absent,
    Preparing,
    Ready(Prepared),
    Failed {
        cause: Fault,
        at: Instant,
    },
}

/// Something was refused because the next segment could not be prepared.
struct Shortage {
    cause: Fault,
    began_at: Timestamp,
    refused: u64,
}

enum Verdict {
    Fits,
    Wait,
    Refuse(Refusal),
}

impl Room {
    /// Nothing is out, the active segment is full, and `next` is the next one, or why there is none.
    pub(super) fn new(
        limits: Limits,
        clock: Arc<dyn Clock>,
        stats: Stats,
        jobs: Sender<Job>,
        header: u64,
        next: Result<Prepared, Fault>,
    ) -> Self {
        let state = State {
            records: 0,
            bytes: 0,
            rest: 0,
            header,
            next: Next::Preparing,
            failing: None,
            shortage: None,
            suspended: None,
            resuming: false,
            stopped: None,
        };
        let room = Self {
            limits,
            clock,
            stats,
            jobs,
            state: Mutex::new(state),
            turn: tokio::sync::Mutex::new(()),
            changed: Notify::new(),
        };
        // Nothing was refused yet.
        drop(room.prepared(next));
        room
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the next segment to be prepared.
    fn ask(&self, header: u64) {
        if self.jobs.send(Job::Prepare { header }).is_err() {
            tracing::error!("the thread that allocates log segments is gone");
        }
    }

    /// Gives a job to the allocating thread.
    pub(super) fn hand(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            tracing::error!("the thread that allocates log segments is gone");
        }
    }

    /// Waits until the room is there, at most [`Limits::wait`].
    pub(super) async fn reserve(&self, records: u32, bytes: u64) -> Result<(), AppendError> {
        let waited = tokio::time::timeout(self.limits.wait, async {
            let _turn = self.turn.lock().await;
            loop {
                match self.try_reserve(records, bytes) {
                    Verdict::Fits => return Ok(()),
                    Verdict::Refuse(refusal) => return Err(refusal),
                    Verdict::Wait => self.changed.notified().await,
                }
            }
        })
        .await;
        let result = waited.unwrap_or_else(|_| {
            let mut state = self.lock();
            let failing = state.failing.clone();
            Err(failing.map_or(Refusal::Busy, |cause| self.short(&mut state, cause)))
        });
        result.map_err(|refusal| {
            self.stats.refused.inc();
            AppendError::Refused(refusal)
        })
    }

    fn try_reserve(&self, records: u32, bytes: u64) -> Verdict {
        let mut state = self.lock();
        if let Some(refusal) = &state.stopped {
            return Verdict::Refuse(refusal.clone());
        }
        if let Some((refusal, refused)) = &mut state.suspended {
            *refused += 1;
            return Verdict::Refuse(refusal.clone());
        }
        if state.resuming {
            return Verdict::Wait;
        }
        if records > self.limits.records_max || bytes > self.limits.bytes_max {
            let cause = format!("{records} records of {bytes} bytes are over what may ever be in flight");
            return Verdict::Refuse(Refusal::Full(cause));
        }
        let (all_records, all_bytes) = (state.records + records, state.bytes.saturating_add(bytes));
        if all_records > self.limits.records_max || all_bytes > self.limits.bytes_max {
            return Verdict::Wait;
        }
        let out = if planted::armed("outcome_room_not_kept") {
            cost(records, bytes)
        } else {
            cost(all_records, all_bytes)
        };
        if out > state.rest {
            match &state.next {
                Next::Ready(prepared) if out <= prepared.bytes.saturating_sub(state.header) => {}
                Next::Ready(_) if state.records == 0 => {
                    let cause = format!("{records} records of {bytes} bytes are over what a segment holds");
                    return Verdict::Refuse(Refusal::Full(cause));
                }
                // The writer took it and has not asked for another yet.
                Next::Ready(_) | Next::Preparing | Next::Absent => return Verdict::Wait,
                Next::Failed { cause, at } => {
                    if self.clock.monotonic().saturating_duration_since(*at) < RETRY_INTERVAL {
                        let cause = cause.clone();
                        return Verdict::Refuse(self.short(&mut state, cause));
                    }
                    state.next = Next::Preparing;
                    self.ask(state.header);
                    return Verdict::Wait;
                }
            }
        }
        state.records = all_records;
        state.bytes = all_bytes;
        self.publish(&state);
        Verdict::Fits
    }

    /// One more is refused, because of `cause`. The first is an outage.
    fn short(&self, state: &mut State, cause: Fault) -> Refusal {
        let refusal = cause.refusal();
        self.stats.failed.set(1);
        let shortage = state.shortage.get_or_insert_with(|| {
            self.stats.outage(cause.cause);
            Shortage { cause, began_at: self.clock.now(), refused: 0 }
        });
        shortage.refused += 1;
        refusal
    }

    fn publish(&self, state: &State) {
        self.stats.reserved_records.set(i64::from(state.records));
        self.stats.reserved_bytes.set(i64::try_from(state.bytes).unwrap_or(i64::MAX));
    }

    fn give_back(&self, state: &mut State, records: u32, bytes: u64) {
        state.records = state.records.saturating_sub(records);
        state.bytes = state.bytes.saturating_sub(bytes);
        self.publish(state);
    }

    /// A batch is durable: its room is free, the segment holds `rest` more, the next header has `header` bytes.
    pub(super) fn written(&self, records: u32, bytes: u64, rest: u64, header: u64) {
        let mut state = self.lock();
        self.give_back(&mut state, records, bytes);
        state.rest = rest;
        state.header = header;
        drop(state);
        self.changed.notify_one();
    }

    /// The allocating thread is done. When something was refused before, gives what is to be told of that, and room for one
    /// record of [`GAP_BYTES`] is set aside for who calls.
    pub(super) fn prepared(&self, result: Result<Prepared, Fault>) -> Option<Gap> {
        let at = self.clock.monotonic();
        let mut state = self.lock();
        let mut over = None;
        match result {
            Ok(prepared) => {
                let room = cost(state.records + 1, state.bytes + GAP_BYTES);
                let fits = room <= prepared.bytes.saturating_sub(state.header);
                state.next = Next::Ready(prepared);
                if state.failing.take().is_some() {
                    tracing::info!("the next log segment is prepared after all");
                }
                if state.shortage.is_some() {
                    self.stats.failed.set(i64::from(state.suspended.is_some()));
                }
                // Without room for it, it is told when the one after this is prepared.
                if fits || planted::armed("shortage_forgotten") {
                    over = state.shortage.take().filter(|_| fits);
                }
                if over.is_some() {
                    state.records += 1;
                    state.bytes += GAP_BYTES;
                    self.publish(&state);
                }
            }
            Err(cause) => {
                if state.failing.as_ref() != Some(&cause) {
                    tracing::error!(cause = %cause, "the next log segment cannot be prepared");
                }
                state.failing = Some(cause.clone());
                state.next = Next::Failed { cause, at };
            }
        }
        drop(state);
        self.changed.notify_one();
        over.map(|Shortage { cause: Fault { cause, detail }, began_at, refused }| Gap {
            cause,
            detail,
            began_at,
            ended_at: self.clock.now(),
            refused,
            rewritten: 0,
        })
    }

    /// The allocating thread is at work, or about to be.
    pub(super) fn is_preparing(&self) -> bool {
        matches!(self.lock().next, Next::Preparing)
    }

    /// Takes the prepared segment. `None` would break the invariant.
    pub(super) fn take_prepared(&self) -> Option<Prepared> {
        let mut state = self.lock();
        match std::mem::replace(&mut state.next, Next::Absent) {
            Next::Ready(prepared) => Some(prepared),
            other => {
                state.next = other;
                None
            }
        }
    }

    /// The prepared segment is the active one now and holds `rest` more; another is asked for.
    pub(super) fn rolled(&self, rest: u64, header: u64) {
        let mut state = self.lock();
        state.rest = rest;
        state.header = header;
        self.ask_if_absent(&mut state);
        drop(state);
        self.changed.notify_one();
    }

    /// Never while one is under way: two would work on one file.
    fn ask_if_absent(&self, state: &mut State) {
        if matches!(state.next, Next::Absent) {
            state.next = Next::Preparing;
            self.ask(state.header);
        }
    }

    /// Nothing new is taken until [`Room::recovered`], for the reason `refusal`. What was promised is taken still.
    pub(super) fn suspend(&self, refusal: Refusal) {
        let mut state = self.lock();
        let refused = state.suspended.as_ref().map_or(0, |(_, refused)| *refused);
        state.suspended = Some((refusal, refused));
        drop(state);
        self.changed.notify_one();
    }

    /// What all that is out may need, with the record that tells of an outage; and the next header.
    pub(super) fn promised(&self) -> (u64, u64) {
        let state = self.lock();
        (cost(state.records + 1, state.bytes + GAP_BYTES), state.header)
    }

    /// As [`Room::written`], in a new segment after an outage; nothing new is given until
    /// [`Room::resume`]. Room for one record of [`GAP_BYTES`] is set
    /// aside for who calls. Gives how often something was refused.
    pub(super) fn recovered(&self, records: u32, bytes: u64, rest: u64, header: u64) -> u64 {
        let mut state = self.lock();
        self.give_back(&mut state, records, bytes);
        state.records += 1;
        state.bytes += GAP_BYTES;
        self.publish(&state);
        state.rest = rest;
        state.header = header;
        // One that was prepared before may be no file of the directory any more.
        if matches!(state.next, Next::Ready(_)) {
            state.next = Next::Absent;
        }
        self.ask_if_absent(&mut state);
        state.resuming = true;
        state.suspended.take().map_or(0, |(_, refused)| refused)
    }

    /// New records are taken again.
    pub(super) fn resume(&self) {
        self.lock().resuming = false;
        self.changed.notify_one();
    }

    /// Runs `hand_over` unless the log stopped. Order of calls is order of hand-overs.
    pub(super) fn unless_stopped(&self, hand_over: impl FnOnce()) -> Result<(), Refusal> {
        let state = self.lock();
        match &state.stopped {
            Some(refusal) => Err(refusal.clone()),
            None => {
                hand_over();
                Ok(())
            }
        }
    }

    /// Nothing is given any more, for the reason `refusal`; a failure outlives a close.
    pub(super) fn stop(&self, refusal: Refusal, hand_over: impl FnOnce()) {
        let mut state = self.lock();
        if !matches!(state.stopped, Some(Refusal::Failed(_))) {
            state.stopped = Some(refusal);
        }
        hand_over();
        drop(state);
        self.changed.notify_one();
    }

    /// The writer is gone. Nothing changes when that was asked for.
    pub(super) fn abandon(&self) {
        self.lock().stopped.get_or_insert_with(|| Refusal::Failed("the log's writer is gone".into()));
        self.changed.notify_one();
    }

    /// Why nothing is accepted, if so. Tries a failed preparation again.
    pub(super) fn refusing(&self) -> Option<String> {
        let mut state = self.lock();
        if let Some(refusal) = &state.stopped {
            return Some(refusal.to_string());
        }
        if let Some((refusal, _)) = &state.suspended {
            return Some(refusal.to_string());
        }
        let cause = state.failing.clone()?;
        let left = state.rest.saturating_sub(cost(state.records, state.bytes));
        let refusing = (left < HEALTHY_REST_BYTES).then(|| cause.refusal().to_string());
        if let Next::Failed { at, .. } = &state.next
            && self.clock.monotonic().saturating_duration_since(*at) >= RETRY_INTERVAL
        {
            state.next = Next::Preparing;
            self.ask(state.header);
        }
        refusing
    }
}

impl RoomKeeper for Room {
    fn release(&self, records: u32, bytes: u64) {
        let mut state = self.lock();
        self.give_back(&mut state, records, bytes);
        drop(state);
        self.changed.notify_one();
    }
}

fn cost(records: u32, bytes: u64) -> u64 {
    bytes.saturating_add(u64::from(records) * RECORD_COST_BYTES)
}
