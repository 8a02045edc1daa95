//! Sessions of MCP 2025-11-25, in memory: bound to who opened them, bounded in number and in idle time.
//!
//! Holds no channels and no results. Never says whether a session of somebody else exists.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::auth::Principal;
use crate::base::{Clock, random_bytes};

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
}

impl Owner {
    fn of(principal: &Principal) -> Self {
        Self { subject_id: principal.subject_id.as_str().into(), key_id: principal.key_id }
    }

    fn is(&self, principal: &Principal) -> bool {
        *self.subject_id == *principal.subject_id && self.key_id == principal.key_id
    }
}

struct Session {
    owner: Arc<Owner>,
    client_info: Option<Arc<RawValue>>,
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
        Self { clock, limits, table: Mutex::default() }
    }

    /// Opens a session of `principal` and gives its id: 128 random bits. Over a limit the longest idle one ends.
    pub(super) fn open(
        &self,
        principal: &Principal,
        client_info: Option<Arc<RawValue>>,
    ) -> Result<Arc<str>, AllBusy> {
        let now = self.clock.monotonic();
        let id: Arc<str> = hex::encode(random_bytes::<16>()).into();
        let owner = Arc::new(Owner::of(principal));
        let mut table = self.lock();
        table.end_expired(now, self.limits.idle);
        if let Some(of_owner) = table.by_owner.get(&owner)
            && of_owner.count >= self.limits.sessions_per_key_max
        {
            let oldest = of_owner.idle.values().next().cloned().ok_or(AllBusy)?;
            table.end(&oldest);
        }
        if table.by_id.len() >= self.limits.sessions_max {
            let oldest = table.idle.values().next().cloned().ok_or(AllBusy)?;
            table.end(&oldest);
        }
        let owner = table.by_owner.get_key_value(&owner).map_or(owner, |(known, _)| Arc::clone(known));
        table.by_owner.entry(Arc::clone(&owner)).or_default().count += 1;
        let session = Session { owner, client_info, used_at: now, idle_since: None, in_flight: Vec::new() };
        table.by_id.insert(Arc::clone(&id), session);
        table.touch(&id, now);
        Ok(id)
    }

    /// Notes that `principal` used its session `id`; gives what the client said of itself. `None`: it has none.
    pub(super) fn enter(&self, id: &str, principal: &Principal) -> Option<Option<Arc<RawValue>>> {
        let now = self.clock.monotonic();
        let mut table = self.lock();
        table.end_expired(now, self.limits.idle);
        let (id, session) =
            table.by_id.get_key_value(id).filter(|(_, session)| session.owner.is(principal))?;
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

    /// Cancels a request in flight; nothing happens when there is none (it may have ended meanwhile).
    pub(super) fn cancel(&self, id: &str, principal: &Principal, request_id: &str) {
        let table = self.lock();
        if let Some(session) = table.by_id.get(id).filter(|session| session.owner.is(principal))
            && let Some((_, cancel)) = session.in_flight.iter().find(|(known, _)| **known == *request_id)
        {
            cancel.cancel();
        }
    }

    /// Ends `principal`'s session `id`; requests in flight go on. False when it has none of this id.
    pub(super) fn close(&self, id: &str, principal: &Principal) -> bool {
        let now = self.clock.monotonic();
        let mut table = self.lock();
        table.end_expired(now, self.limits.idle);
        let owned = table.by_id.get(id).is_some_and(|session| session.owner.is(principal));
        if owned {
            table.end(id);
        }
        owned
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.lock().by_id.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Used just now: last in the idle order, unless a request is in flight.
    fn touch(&mut self, id: &Arc<str>, now: Instant) {
        self.unplace(id);
        let Some(session) = self.by_id.get_mut(id) else { return };
        session.used_at = now;
        if !session.in_flight.is_empty() {
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

    fn end(&mut self, id: &str) {
        self.unplace(id);
        let Some(session) = self.by_id.remove(id) else { return };
        if let Some(of_owner) = self.by_owner.get_mut(&session.owner) {
            of_owner.count -= 1;
            if of_owner.count == 0 {
                self.by_owner.remove(&session.owner);
            }
        }
    }

    fn end_expired(&mut self, now: Instant, idle: Duration) {
        while let Some(id) = self.idle.values().next().cloned() {
            let expired = self
                .by_id
                .get(&id)
                .is_none_or(|session| now.saturating_duration_since(session.used_at) >= idle);
            if !expired {
                return;
            }
            self.end(&id);
        }
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
        let id = sessions.open(&ann, None).unwrap();
        assert_eq!(id.len(), 32);
        assert!(known(&sessions, &id, &ann));
        for other in
            [principal("bob", 1), principal("ann", 2), Principal { key_id: None, ..principal("ann", 1) }]
        {
            assert!(!known(&sessions, &id, &other));
            assert!(!sessions.close(&id, &other));
            let begun = sessions.begin(&id, &other, "1", CancellationToken::new());
            assert_eq!(begun.err(), Some(BeginError::NotFound));
        }
        assert!(sessions.close(&id, &ann));
        assert!(!known(&sessions, &id, &ann));
        assert!(!sessions.close(&id, &ann));
        is_consistent(&sessions);
        assert_eq!(sessions.count(), 0);
    }

    #[test]
    fn idle_sessions_expire_and_use_prolongs() {
        let (sessions, clock) = sessions(10, 10);
        let ann = principal("ann", 1);
        let (used, unused) = (sessions.open(&ann, None).unwrap(), sessions.open(&ann, None).unwrap());
        clock.forward(IDLE / 2);
        assert!(known(&sessions, &used, &ann));
        clock.forward(IDLE / 2);
        assert!(known(&sessions, &used, &ann));
        assert!(!known(&sessions, &unused, &ann));
        clock.forward(IDLE);
        assert!(!sessions.close(&used, &ann));
        is_consistent(&sessions);
    }

    #[test]
    fn a_session_with_a_request_in_flight_neither_expires_nor_is_evicted() {
        let (sessions, clock) = sessions(1, 1);
        let ann = principal("ann", 1);
        let id = sessions.open(&ann, None).unwrap();
        let in_flight = sessions.begin(&id, &ann, "1", CancellationToken::new()).unwrap();
        clock.forward(IDLE * 2);
        assert_eq!(sessions.open(&ann, None), Err(AllBusy));
        assert_eq!(sessions.open(&principal("bob", 2), None), Err(AllBusy));
        drop(in_flight);
        clock.forward(IDLE / 2);
        assert!(known(&sessions, &id, &ann));
        is_consistent(&sessions);
        assert!(sessions.open(&principal("bob", 2), None).is_ok());
        assert!(!known(&sessions, &id, &ann));
    }

    #[test]
    fn over_a_limit_the_longest_idle_ends() {
        let (sessions, _) = sessions(3, 2);
        let (ann, bob) = (principal("ann", 1), principal("bob", 2));
        let first = sessions.open(&ann, None).unwrap();
        let second = sessions.open(&ann, None).unwrap();
        assert!(known(&sessions, &first, &ann));
        let third = sessions.open(&ann, None).unwrap();
        assert!(!known(&sessions, &second, &ann), "the key's limit ends the key's longest idle session");
        assert!(known(&sessions, &first, &ann) && known(&sessions, &third, &ann));
        let of_bob = sessions.open(&bob, None).unwrap();
        assert_eq!(sessions.count(), 3);
        let again = sessions.open(&bob, None).unwrap();
        assert!(!known(&sessions, &first, &ann), "the total limit ends the longest idle session of all");
        assert!(known(&sessions, &of_bob, &bob) && known(&sessions, &again, &bob));
        assert!(known(&sessions, &third, &ann));
        is_consistent(&sessions);
    }

    #[test]
    fn one_request_id_is_in_flight_once_per_session() {
        let (sessions, _) = sessions(10, 10);
        let ann = principal("ann", 1);
        let (one, two) = (sessions.open(&ann, None).unwrap(), sessions.open(&ann, None).unwrap());
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
        let id = sessions.open(&ann, None).unwrap();
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
        assert!(sessions.close(&id, &ann));
        assert!(!two.is_cancelled());
        drop(in_flight);
        is_consistent(&sessions);
    }

    #[test]
    fn a_session_takes_less_than_two_kilobytes() {
        let per_session =
            size_of::<Session>() + 2 * (size_of::<(u64, Arc<str>)>()) + size_of::<(Arc<str>, Session)>() + 64;
        assert!(per_session + crate::mcp::legacy::CLIENT_INFO_BYTES_MAX < 2_048, "{per_session}");
    }
}
