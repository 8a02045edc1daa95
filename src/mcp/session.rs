//! Sessions, in memory: those of MCP 2025-11-25 over HTTP and one for each stdio process. Bound to who opened them, bounded
//! in number and, over HTTP, in idle time.
//!
//! Holds no channels and no results. Never says whether a session of somebody else exists. Records nothing: a session whose
//! start is not recorded yet is opened but not used, and one that ended waits here until its end is recorded.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::auth::Principal;
use crate::base::{Clock, Timestamp, random_bytes};
use crate::event::{AuthMethod, SessionEnd, SessionEnded, Transport};

/// Bounds of the sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// In all.
    pub sessions_max: usize,
    /// Of one API key.
    pub sessions_per_key_max: usize,
    /// Idle life.
    pub idle: Duration,
}

/// No session can be opened: the limit is reached and each has a request in flight.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AllBusy;

/// A request cannot begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BeginError {
    /// No session of this id that belongs to the caller.
    NotFound,
    /// A request of this id is in flight in the session.
    Duplicate,
}

/// Whom a session belongs to: the principal under the very key that opened it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Owner {
    subject_id: Box<str>,
    key_id: Option<Uuid>,
    user_name: Box<str>,
}

impl Owner {
    fn of(principal: &Principal) -> Self {
        Self {
            subject_id: principal.subject_id.as_str().into(),
            key_id: principal.key_id,
            user_name: principal.user_name.as_str().into(),
        }
    }

    fn is(&self, principal: &Principal) -> bool {
        *self.subject_id == *principal.subject_id && self.key_id == principal.key_id
    }
}

/// What a session is opened with.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    /// How it comes in. A session of a stdio process ends with it and is never idle.
    pub(super) transport: Transport,
    /// What the client says of itself.
    pub(super) client_info: Option<Arc<RawValue>>,
}

/// A session that is over, as its event says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) facts: SessionEnded,
    /// Whose it was.
    pub(super) user_name: String,
}

struct Session {
    owner: Arc<Owner>,
    auth_method: AuthMethod,
    transport: Transport,
    client_info: Option<Arc<RawValue>>,
    started_at: Timestamp,
    calls: u64,
    /// Its start is not recorded yet.
    opening: bool,
    used_at: Instant,
    /// Its place in the idle order; no place while a request is in flight.
    idle_since: Option<u64>,
    in_flight: Vec<(Box<str>, CancellationToken)>,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<Arc<str>, Session>,
    /// Idle sessions, the longest idle first.
    idle: BTreeMap<u64, Arc<str>>,
    by_owner: HashMap<Arc<Owner>, OwnerSessions>,
    next_stamp: u64,
    /// Ended, and not recorded yet. While the log refuses no session starts, so these are no more than there were.
    ended: VecDeque<Ended>,
    /// The server stops.
    closed: bool,
}

#[derive(Default)]
struct OwnerSessions {
    count: usize,
    idle: BTreeMap<u64, Arc<str>>,
}

/// All sessions of this process.
pub(super) struct Sessions {
    clock: Arc<dyn Clock>,
    limits: SessionLimits,
    table: Mutex<Table>,
    has_ended: Notify,
}

/// A request in flight; the session takes its id again when this is dropped.
pub(super) struct InFlight {
    sessions: Arc<Sessions>,
    session_id: Arc<str>,
    request_id: Box<str>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let now = self.sessions.clock.monotonic();
        let mut table = self.sessions.lock();
        if let Some(session) = table.by_id.get_mut(&self.session_id) {
            session.in_flight.retain(|(id, _)| *id != self.request_id);
        }
        table.touch(&self.session_id, now);
    }
}

impl Sessions {
    /// No sessions yet.
    #[must_use]
    pub(super) fn new(clock: Arc<dyn Clock>, limits: SessionLimits) -> Self {
        Self { clock, limits, table: Mutex::default(), has_ended: Notify::new() }
    }

    /// Opens a session of `principal` and gives its id: 128 random bits. Over a limit the longest idle one ends. It is not
    /// used, and does not end, before [`Sessions::settle`] or [`Sessions::abandon`] says what became of its start.
    pub(super) fn open(&self, principal: &Principal, opening: Opening) -> Result<Arc<str>, AllBusy> {
        let now = self.clock.monotonic();
        let id: Arc<str> = hex::encode(random_bytes::<16>()).into();
        let owner = Arc::new(Owner::of(principal));
        let mut table = self.lock();
        self.end_idle(&mut table, now);
        if table.closed || table.ended.len() >= self.limits.sessions_max {
            return Err(AllBusy);
        }
        if let Some(of_owner) = table.by_owner.get(&owner)
            && of_owner.count >= self.limits.sessions_per_key_max
        {
            let oldest = of_owner.idle.values().next().cloned().ok_or(AllBusy)?;
            self.queue(&mut table, &oldest, SessionEnd::Evicted);
        }
        if table.by_id.len() >= self.limits.sessions_max {
            let oldest = table.idle.values().next().cloned().ok_or(AllBusy)?;
            self.queue(&mut table, &oldest, SessionEnd::Evicted);
        }
        let owner = table.by_owner.get_key_value(&owner).map_or(owner, |(known, _)| Arc::clone(known));
        table.by_owner.entry(Arc::clone(&owner)).or_default().count += 1;
        let session = Session {
            owner,
            auth_method: principal.auth_method,
            transport: opening.transport,
            client_info: opening.client_info,
            started_at: self.clock.now(),
            calls: 0,
            opening: true,
            used_at: now,
            idle_since: None,
            in_flight: Vec::new(),
        };
        table.by_id.insert(Arc::clone(&id), session);
        Ok(id)
    }

    /// The start of session `id` is recorded: it may be used.
    pub(super) fn settle(&self, id: &Arc<str>) {
        let now = self.clock.monotonic();
        let mut table = self.lock();
        if let Some(session) = table.by_id.get_mut(id) {
            session.opening = false;
        }
        table.touch(id, now);
        if table.closed {
            self.queue(&mut table, id, SessionEnd::Shutdown);
        }
    }

    /// The start of session `id` is not recorded, so there is none. Where it may still be written, its end follows it.
    pub(super) fn abandon(&self, id: &str, may_be_written: bool) {
        let mut table = self.lock();
        if may_be_written {
            self.queue(&mut table, id, SessionEnd::Evicted);
        } else {
            drop(table.end(id, SessionEnd::Evicted));
        }
    }

    /// Notes that `principal` used its session `id`; gives what the client said of itself. `None`: it has none.
    pub(super) fn enter(&self, id: &str, principal: &Principal) -> Option<Option<Arc<RawValue>>> {
        let now = self.clock.monotonic();
        let mut table = self.lock();
        self.end_idle(&mut table, now);
        let (id, session) = table
            .by_id
            .get_key_value(id)
            .filter(|(_, session)| session.owner.is(principal) && !session.opening)?;
        let (id, client_info) = (Arc::clone(id), session.client_info.clone());
        table.touch(&id, now);
        Some(client_info)
    }

    /// Notes a request in flight, which `cancel` stops.
    pub(super) fn begin(
        self: &Arc<Self>,
        id: &str,
        principal: &Principal,
        request_id: &str,
        cancel: CancellationToken,
    ) -> Result<InFlight, BeginError> {
        let mut table = self.lock();
        let (session_id, session) = table
            .by_id
            .get_key_value(id)
            .filter(|(_, session)| session.owner.is(principal))
            .ok_or(BeginError::NotFound)?;
        let session_id = Arc::clone(session_id);
        if session.in_flight.iter().any(|(in_flight, _)| **in_flight == *request_id) {
            return Err(BeginError::Duplicate);
        }
        let request_id: Box<str> = request_id.into();
        table.unplace(&session_id);
        if let Some(session) = table.by_id.get_mut(&session_id) {
            session.in_flight.push((request_id.clone(), cancel));
        }
        drop(table);
        Ok(InFlight { sessions: Arc::clone(self), session_id, request_id })
    }

    /// Counts a call that is made in session `id`.
    pub(super) fn count_call(&self, id: &str) {
        if let Some(session) = self.lock().by_id.get_mut(id) {
            session.calls += 1;
        }
    }

    /// Whether a request of this id is in flight in session `id`.
    pub(super) fn is_in_flight(&self, id: &str, request_id: &str) -> bool {
        let table = self.lock();
        table
            .by_id
            .get(id)
            .is_some_and(|session| session.in_flight.iter().any(|(known, _)| **known == *request_id))
    }

    /// Cancels a request in flight; nothing happens when there is none (it may have ended meanwhile).
    pub(super) fn cancel(&self, id: &str, principal: &Principal, request_id: &str) {
        let table = self.lock();
        if let Some(session) = table.by_id.get(id).filter(|session| session.owner.is(principal))
            && let Some((_, cancel)) = session.in_flight.iter().find(|(known, _)| **known == *request_id)
        {
            cancel.cancel();
        }
    }

    /// Ends `principal`'s session `id` for its client; requests in flight go on. `None` when it has none of this id. The
    /// caller records the end, or gives it to [`Sessions::put_back`].
    pub(super) fn close(&self, id: &str, principal: &Principal) -> Option<Ended> {
        let now = self.clock.monotonic();
        let mut table = self.lock();
        self.end_idle(&mut table, now);
        let session = table.by_id.get(id)?;
        if !session.owner.is(principal) || session.opening {
            return None;
        }
        table.end(id, SessionEnd::ClientDelete)
    }

    /// Ends `principal`'s session `id` for `reason`, if it has not ended yet.
    pub(super) fn end_for(&self, id: &str, principal: &Principal, reason: SessionEnd) {
        let mut table = self.lock();
        if table.by_id.get(id).is_some_and(|session| session.owner.is(principal)) {
            self.queue(&mut table, id, reason);
        }
    }

    /// Ends what was idle for too long, and all sessions of each key that `end_of` says is over.
    pub(super) fn sweep(&self, end_of: impl Fn(Uuid) -> Option<SessionEnd>) {
        let now = self.clock.monotonic();
        let mut table = self.lock();
        self.end_idle(&mut table, now);
        let over: HashMap<Uuid, SessionEnd> = table
            .by_owner
            .keys()
            .filter_map(|owner| owner.key_id)
            .filter_map(|key_id| Some((key_id, end_of(key_id)?)))
            .collect();
        if over.is_empty() {
            return;
        }
        let ending: Vec<_> = table
            .by_id
            .iter()
            .filter(|(_, session)| !session.opening)
            .filter_map(|(id, session)| Some((Arc::clone(id), *over.get(&session.owner.key_id?)?)))
            .collect();
        for (id, reason) in ending {
            self.queue(&mut table, &id, reason);
        }
    }

    /// Ends all there are; no other starts any more. Those whose start is being recorded end once it is.
    pub(super) fn shut(&self) {
        let mut table = self.lock();
        table.closed = true;
        let ids: Vec<_> = table
            .by_id
            .iter()
            .filter(|(_, session)| !session.opening)
            .map(|(id, _)| Arc::clone(id))
            .collect();
        for id in ids {
            self.queue(&mut table, &id, SessionEnd::Shutdown);
        }
    }

    /// At most `count` ends that are not recorded yet, the oldest first. They are the caller's to record.
    pub(super) fn take_ended(&self, count: usize) -> Vec<Ended> {
        let mut table = self.lock();
        let count = count.min(table.ended.len());
        table.ended.drain(..count).collect()
    }

    /// Ends that could not be recorded wait for another try.
    pub(super) fn put_back(&self, ended: impl IntoIterator<Item = Ended>) {
        self.lock().ended.extend(ended);
        self.has_ended.notify_one();
    }

    /// Resolves when a session ended since this was last awaited.
    pub(super) async fn wait_for_end(&self) {
        self.has_ended.notified().await;
    }

    /// How many ends are not recorded yet.
    pub(super) fn unrecorded(&self) -> usize {
        self.lock().ended.len()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.lock().by_id.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends session `id`; its end waits to be recorded.
    fn queue(&self, table: &mut Table, id: &str, reason: SessionEnd) {
        if let Some(ended) = table.end(id, reason) {
            table.ended.push_back(ended);
            self.has_ended.notify_one();
        }
    }

    fn end_idle(&self, table: &mut Table, now: Instant) {
        while let Some(id) = table.longest_idle(now, self.limits.idle) {
            self.queue(table, &id, SessionEnd::Idle);
        }
    }
}

impl Table {
    /// Used just now: last in the idle order, unless a request is in flight.
    fn touch(&mut self, id: &Arc<str>, now: Instant) {
        self.unplace(id);
        let Some(session) = self.by_id.get_mut(id) else { return };
        session.used_at = now;
        if !session.in_flight.is_empty() || session.opening || session.transport == Transport::Stdio {
            return;
        }
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        session.idle_since = Some(stamp);
        self.idle.insert(stamp, Arc::clone(id));
        if let Some(of_owner) = self.by_owner.get_mut(&session.owner) {
            of_owner.idle.insert(stamp, Arc::clone(id));
        }
    }

    fn unplace(&mut self, id: &str) {
        let Some(session) = self.by_id.get_mut(id) else { return };
        if let Some(stamp) = session.idle_since.take() {
            self.idle.remove(&stamp);
            if let Some(of_owner) = self.by_owner.get_mut(&session.owner) {
                of_owner.idle.remove(&stamp);
            }
        }
    }

    fn end(&mut self, id: &str, reason: SessionEnd) -> Option<Ended> {
        self.unplace(id);
        let (id, session) = self.by_id.remove_entry(id)?;
        if let Some(of_owner) = self.by_owner.get_mut(&session.owner) {
            of_owner.count -= 1;
            if of_owner.count == 0 {
                self.by_owner.remove(&session.owner);
            }
        }
        let facts = SessionEnded {
            session_id: (*id).to_owned(),
            subject_id: session.owner.subject_id.to_string(),
            auth_method: session.auth_method,
            key_id: session.owner.key_id,
            transport: session.transport,
            reason,
            started_at: session.started_at,
            calls: session.calls,
        };
        Some(Ended { facts, user_name: session.owner.user_name.to_string() })
    }

    /// The session that was idle longest, if that is `idle` at least.
    fn longest_idle(&self, now: Instant, idle: Duration) -> Option<Arc<str>> {
        let id = self.idle.values().next()?;
        let used_at = self.by_id.get(id)?.used_at;
        (now.saturating_duration_since(used_at) >= idle).then(|| Arc::clone(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{SystemClock, Timestamp};
    use crate::event::AuthMethod;

    struct Hand {
        start: Instant,
        moved: Mutex<Duration>,
    }

    impl Clock for Hand {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(0)
        }

        fn monotonic(&self) -> Instant {
            self.start + *self.moved.lock().unwrap()
        }
    }

    impl Hand {
        fn forward(&self, by: Duration) {
            *self.moved.lock().unwrap() += by;
        }
    }

    const IDLE: Duration = Duration::from_secs(60);

    fn sessions(sessions_max: usize, sessions_per_key_max: usize) -> (Arc<Sessions>, Arc<Hand>) {
        let clock = Arc::new(Hand { start: SystemClock.monotonic(), moved: Mutex::default() });
        let limits = SessionLimits { sessions_max, sessions_per_key_max, idle: IDLE };
        (Arc::new(Sessions::new(Arc::clone(&clock) as Arc<dyn Clock>, limits)), clock)
    }

    fn principal(name: &str, key: u128) -> Principal {
        Principal {
            subject_id: name.into(),
            user_name: name.into(),
            auth_method: AuthMethod::ApiKey,
            key_id: Some(Uuid::from_u128(key)),
            roles: vec![],
            no_limit: false,
        }
    }

    fn open(sessions: &Sessions, principal: &Principal) -> Result<Arc<str>, AllBusy> {
        let id = sessions.open(principal, Opening { transport: Transport::Http, client_info: None })?;
        sessions.settle(&id);
        Ok(id)
    }

    fn known(sessions: &Sessions, id: &str, principal: &Principal) -> bool {
        sessions.enter(id, principal).is_some()
    }

    fn is_consistent(sessions: &Sessions) {
        let table = sessions.lock();
        let counted: usize = table.by_owner.values().map(|of_owner| of_owner.count).sum();
        let idle_of_owners: usize = table.by_owner.values().map(|of_owner| of_owner.idle.len()).sum();
        let idle = table.by_id.values().filter(|session| session.in_flight.is_empty()).count();
        assert_eq!((counted, idle_of_owners, table.idle.len()), (table.by_id.len(), idle, idle));
    }

    #[test]
    fn a_session_belongs_to_the_principal_and_the_key() {
        let (sessions, _) = sessions(10, 10);
        let ann = principal("ann", 1);
        let id = open(&sessions, &ann).unwrap();
        assert_eq!(id.len(), 32);
        assert!(known(&sessions, &id, &ann));
        for other in
            [principal("bob", 1), principal("ann", 2), Principal { key_id: None, ..principal("ann", 1) }]
        {
            assert!(!known(&sessions, &id, &other));
            assert_eq!(sessions.close(&id, &other), None);
            let begun = sessions.begin(&id, &other, "1", CancellationToken::new());
            assert_eq!(begun.err(), Some(BeginError::NotFound));
        }
        assert!(sessions.close(&id, &ann).is_some());
        assert!(!known(&sessions, &id, &ann));
        assert_eq!(sessions.close(&id, &ann), None);
        is_consistent(&sessions);
        assert_eq!(sessions.count(), 0);
    }

    #[test]
    fn idle_sessions_expire_and_use_prolongs() {
        let (sessions, clock) = sessions(10, 10);
        let ann = principal("ann", 1);
        let (used, unused) = (open(&sessions, &ann).unwrap(), open(&sessions, &ann).unwrap());
        clock.forward(IDLE / 2);
        assert!(known(&sessions, &used, &ann));
        clock.forward(IDLE / 2);
        assert!(known(&sessions, &used, &ann));
        assert!(!known(&sessions, &unused, &ann));
        clock.forward(IDLE);
        assert_eq!(sessions.close(&used, &ann), None);
        is_consistent(&sessions);
    }

    #[test]
    fn a_session_with_a_request_in_flight_neither_expires_nor_is_evicted() {
        let (sessions, clock) = sessions(1, 1);
        let ann = principal("ann", 1);
        let id = open(&sessions, &ann).unwrap();
        let in_flight = sessions.begin(&id, &ann, "1", CancellationToken::new()).unwrap();
        clock.forward(IDLE * 2);
        assert_eq!(open(&sessions, &ann), Err(AllBusy));
        assert_eq!(open(&sessions, &principal("bob", 2)), Err(AllBusy));
        drop(in_flight);
        clock.forward(IDLE / 2);
        assert!(known(&sessions, &id, &ann));
        is_consistent(&sessions);
        assert!(open(&sessions, &principal("bob", 2)).is_ok());
        assert!(!known(&sessions, &id, &ann));
    }

    #[test]
    fn over_a_limit_the_longest_idle_ends() {
        let (sessions, _) = sessions(3, 2);
        let (ann, bob) = (principal("ann", 1), principal("bob", 2));
        let first = open(&sessions, &ann).unwrap();
        let second = open(&sessions, &ann).unwrap();
        assert!(known(&sessions, &first, &ann));
        let third = open(&sessions, &ann).unwrap();
        assert!(!known(&sessions, &second, &ann), "the key's limit ends the key's longest idle session");
        assert!(known(&sessions, &first, &ann) && known(&sessions, &third, &ann));
        let of_bob = open(&sessions, &bob).unwrap();
        assert_eq!(sessions.count(), 3);
        let again = open(&sessions, &bob).unwrap();
        assert!(!known(&sessions, &first, &ann), "the total limit ends the longest idle session of all");
        assert!(known(&sessions, &of_bob, &bob) && known(&sessions, &again, &bob));
        assert!(known(&sessions, &third, &ann));
        is_consistent(&sessions);
    }

    #[test]
    fn one_request_id_is_in_flight_once_per_session() {
        let (sessions, _) = sessions(10, 10);
        let ann = principal("ann", 1);
        let (one, two) = (open(&sessions, &ann).unwrap(), open(&sessions, &ann).unwrap());
        let begin = |session: &str, id: &str| sessions.begin(session, &ann, id, CancellationToken::new());
        let first = begin(&one, "1").unwrap();
        assert_eq!(begin(&one, "1").err(), Some(BeginError::Duplicate));
        let others = (begin(&one, "\"1\"").unwrap(), begin(&two, "1").unwrap());
        drop(first);
        let again = begin(&one, "1").unwrap();
        drop((others, again));
        is_consistent(&sessions);
    }

    #[test]
    fn cancel_reaches_its_request_only_and_close_cancels_nothing() {
        let (sessions, _) = sessions(10, 10);
        let (ann, bob) = (principal("ann", 1), principal("bob", 2));
        let id = open(&sessions, &ann).unwrap();
        let (one, two) = (CancellationToken::new(), CancellationToken::new());
        let in_flight = (
            sessions.begin(&id, &ann, "1", one.clone()).unwrap(),
            sessions.begin(&id, &ann, "2", two.clone()).unwrap(),
        );
        sessions.cancel(&id, &bob, "1");
        sessions.cancel(&id, &ann, "3");
        assert!(!one.is_cancelled() && !two.is_cancelled());
        sessions.cancel(&id, &ann, "1");
        assert!(one.is_cancelled() && !two.is_cancelled());
        assert!(sessions.close(&id, &ann).is_some());
        assert!(!two.is_cancelled());
        drop(in_flight);
        is_consistent(&sessions);
    }

    fn reasons(sessions: &Sessions) -> Vec<(String, SessionEnd)> {
        let ended = sessions.take_ended(usize::MAX);
        ended.into_iter().map(|ended| (ended.facts.session_id, ended.facts.reason)).collect()
    }

    #[test]
    fn a_session_whose_start_is_not_recorded_is_neither_used_nor_ended() {
        let (sessions, clock) = sessions(2, 2);
        let ann = principal("ann", 1);
        let opening = || Opening { transport: Transport::Http, client_info: None };
        let (one, two) = (sessions.open(&ann, opening()).unwrap(), sessions.open(&ann, opening()).unwrap());
        clock.forward(IDLE * 2);
        sessions.sweep(|_| Some(SessionEnd::Revoked));
        assert!(!known(&sessions, &one, &ann) && sessions.close(&one, &ann).is_none());
        assert_eq!(sessions.open(&ann, opening()), Err(AllBusy), "it is not evicted either");
        assert_eq!(reasons(&sessions), []);
        sessions.settle(&one);
        assert!(known(&sessions, &one, &ann));
        sessions.abandon(&two, false);
        assert_eq!(reasons(&sessions), [], "what never started does not end");
        let three = sessions.open(&ann, opening()).unwrap();
        sessions.abandon(&three, true);
        assert_eq!(reasons(&sessions), [(three.to_string(), SessionEnd::Evicted)]);
        let four = sessions.open(&ann, opening()).unwrap();
        sessions.shut();
        assert_eq!(reasons(&sessions), [(one.to_string(), SessionEnd::Shutdown)]);
        sessions.settle(&four);
        assert_eq!(reasons(&sessions), [(four.to_string(), SessionEnd::Shutdown)]);
        assert_eq!((sessions.open(&ann, opening()), sessions.count()), (Err(AllBusy), 0));
        is_consistent(&sessions);
    }

    #[test]
    fn a_session_of_a_process_is_neither_idle_nor_evicted() {
        let (sessions, clock) = sessions(1, 1);
        let ann = principal("ann", 1);
        let id = sessions.open(&ann, Opening { transport: Transport::Stdio, client_info: None }).unwrap();
        sessions.settle(&id);
        clock.forward(IDLE * 100);
        assert_eq!(open(&sessions, &ann), Err(AllBusy));
        let in_flight = sessions.begin(&id, &ann, "1", CancellationToken::new()).unwrap();
        assert!(sessions.is_in_flight(&id, "1") && !sessions.is_in_flight(&id, "2"));
        drop(in_flight);
        sessions.count_call(&id);
        clock.forward(IDLE * 100);
        sessions.sweep(|_| None);
        assert_eq!(sessions.count(), 1);
        let ended = sessions.close(&id, &ann).unwrap();
        assert_eq!((ended.facts.reason, ended.facts.calls), (SessionEnd::ClientDelete, 1));
        assert_eq!(reasons(&sessions), []);
    }

    #[test]
    fn ends_that_nobody_recorded_are_bounded() {
        let (sessions, clock) = sessions(2, 2);
        let ann = principal("ann", 1);
        for _ in 0..2 {
            open(&sessions, &ann).unwrap();
        }
        clock.forward(IDLE);
        assert_eq!(open(&sessions, &ann), Err(AllBusy));
        assert_eq!(sessions.unrecorded(), 2);
        let ended = sessions.take_ended(1);
        assert!(open(&sessions, &ann).is_ok());
        sessions.put_back(ended);
        assert_eq!(sessions.unrecorded(), 2);
    }

    #[test]
    fn a_session_takes_less_than_two_kilobytes() {
        let per_session =
            size_of::<Session>() + 2 * (size_of::<(u64, Arc<str>)>()) + size_of::<(Arc<str>, Session)>() + 64;
        assert!(per_session + crate::mcp::legacy::CLIENT_INFO_BYTES_MAX < 2_048, "{per_session}");
    }
}
