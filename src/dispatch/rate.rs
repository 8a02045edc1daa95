//! How fast and how many at once: what one API key may ask of the tools, and all of them together.
//!
//! Decides by who calls, never by what is called. Keys that are idle take no memory.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::Limits;
use crate::auth::Principal;
use crate::base::{Clock, planted};
use crate::event::AuthMethod;
use crate::refusal::Reason;
use crate::tools::ToolError;

/// How often idle keys are forgotten.
const SWEEP: Duration = Duration::from_secs(60);
/// When a caller may ask again for whom only a running call has to end, seconds.
const RETRY_RUNNING_S: u32 = 1;

/// Whose calls are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    subject_id: String,
    key_id: Option<Uuid>,
}

impl Key {
    fn of(principal: &Principal) -> Self {
        Self { subject_id: principal.subject_id.clone(), key_id: principal.key_id }
    }
}

struct Monotonic(Arc<dyn Clock>);

impl governor::clock::Clock for Monotonic {
    type Instant = Instant;

    fn now(&self) -> Instant {
        self.0.monotonic()
    }
}

/// See the module.
pub(super) struct Limiter {
    limits: Limits,
    rate: RateLimiter<Key, HashMapStateStore<Key>, Monotonic>,
    clock: Arc<dyn Clock>,
    swept_at: Mutex<Instant>,
    running: Arc<Semaphore>,
    running_of: Arc<Mutex<HashMap<Key, usize>>>,
    limited: Counter,
}

/// The place of a running call, free again when this is dropped.
pub(super) struct Place {
    _of_all: OwnedSemaphorePermit,
    key: Key,
    running_of: Arc<Mutex<HashMap<Key, usize>>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running_of = lock(&self.running_of);
        if let Some(running) = running_of.get_mut(&self.key) {
            *running -= 1;
            if *running == 0 {
                running_of.remove(&self.key);
            }
        }
    }
}

impl Limiter {
    pub(super) fn new(limits: Limits, clock: Arc<dyn Clock>) -> Self {
        let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_minute(at_least_one(limits.calls_per_minute))
            .allow_burst(at_least_one(limits.calls_burst));
        Self {
            limits,
            rate: RateLimiter::hashmap_with_clock(quota, Monotonic(Arc::clone(&clock))),
            swept_at: Mutex::new(clock.monotonic()),
            clock,
            running: Arc::new(Semaphore::new(limits.calls_in_flight_max)),
            running_of: Arc::default(),
            limited: Counter::default(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "annals_calls_rate_limited",
            "Tool calls that were refused because of their rate or because too many run",
            self.limited.clone(),
        );
    }

    /// Takes one call of `principal` into account.
    ///
    /// # Errors
    /// `rate_limited`, with the time after which it may call again.
    pub(super) fn take_one(&self, principal: &Principal) -> Result<(), ToolError> {
        if is_exempt(principal) || planted::armed("rate_limit_ignored") {
            return Ok(());
        }
        let checked = self.rate.check_key(&Key::of(principal));
        let now = self.clock.monotonic();
        self.sweep(now);
        let Err(not_until) = checked else { return Ok(()) };
        let wait = not_until.wait_time_from(now);
        // A client that came back a fraction too early would be refused again.
        let seconds = u32::try_from(wait.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX).max(1);
        let Limits { calls_per_minute, calls_burst, .. } = self.limits;
        Err(self.refused(
            Reason::RateLimited,
            format!("This API key may make {calls_per_minute} calls a minute, {calls_burst} at once."),
            format!(
                "Retry in {seconds} s. The operator can raise limits.calls_per_minute and limits.calls_burst."
            ),
            seconds,
        ))
    }

    /// A place among the running calls.
    ///
    /// # Errors
    /// `too_many_calls`.
    pub(super) fn enter(&self, principal: &Principal) -> Result<Place, ToolError> {
        let key = Key::of(principal);
        let of_key_max = self.limits.calls_in_flight_per_key_max;
        let mut running_of = lock(&self.running_of);
        let running = running_of.get(&key).copied().unwrap_or(0);
        if running >= of_key_max {
            return Err(self.too_many(of_key_max, "calls of this API key", "calls_in_flight_per_key_max"));
        }
        let of_all = Arc::clone(&self.running)
            .try_acquire_owned()
            .map_err(|_| self.too_many(self.limits.calls_in_flight_max, "calls", "calls_in_flight_max"))?;
        running_of.insert(key.clone(), running + 1);
        Ok(Place { _of_all: of_all, key, running_of: Arc::clone(&self.running_of) })
    }

    fn too_many(&self, max: usize, what: &str, setting: &str) -> ToolError {
        self.refused(
            Reason::TooManyCalls,
            format!("{max} {what} run already."),
            format!("Retry in a second; the operator can raise limits.{setting}."),
            RETRY_RUNNING_S,
        )
    }

    fn refused(&self, reason: Reason, message: String, hint: String, retry_after_s: u32) -> ToolError {
        self.limited.inc();
        ToolError::new(reason, message, hint).retry_after(retry_after_s)
    }

    fn sweep(&self, now: Instant) {
        let mut swept_at = lock(&self.swept_at);
        if now.saturating_duration_since(*swept_at) >= SWEEP {
            *swept_at = now;
            self.rate.retain_recent();
            self.rate.shrink_to_fit();
        }
    }
}

/// Keys that were made so, and who needs no key of the store.
fn is_exempt(principal: &Principal) -> bool {
    let no_limit = principal.no_limit && !planted::armed("exempt_key_limited");
    no_limit || matches!(principal.auth_method, AuthMethod::EnvKey | AuthMethod::Local)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{SystemClock, Timestamp};

    /// A clock that stands until it is moved.
    struct Hand(Instant, Mutex<Duration>);

    impl Hand {
        fn wait(&self, millis: u64) {
            *self.1.lock().unwrap() += Duration::from_millis(millis);
        }
    }

    impl Clock for Hand {
        fn now(&self) -> Timestamp {
            SystemClock.now()
        }

        fn monotonic(&self) -> Instant {
            self.0 + *self.1.lock().unwrap()
        }
    }

    fn limiter(limits: Limits) -> (Limiter, Arc<Hand>) {
        let hand = Arc::new(Hand(SystemClock.monotonic(), Mutex::default()));
        (Limiter::new(limits, Arc::clone(&hand) as Arc<dyn Clock>), hand)
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

    fn refused(result: Result<(), ToolError>) -> Option<(&'static str, Option<u32>)> {
        result.err().map(|error| (error.code(), error.retry_after_s))
    }

    #[test]
    fn a_key_has_its_burst_and_then_its_rate() {
        let (limiter, hand) = limiter(Limits::default());
        let ann = principal("ann", 1);
        let now = || refused(limiter.take_one(&ann));
        assert_eq!([(); 60].map(|()| now()), [None; 60]);
        assert_eq!(now(), Some(("rate_limited", Some(1))), "240 a minute is one each 250 ms");
        hand.wait(249);
        assert_eq!(now(), Some(("rate_limited", Some(1))));
        hand.wait(1);
        assert_eq!((now(), now()), (None, Some(("rate_limited", Some(1)))), "a refused call costs nothing");
        for other in [principal("ann", 2), principal("bob", 1)] {
            assert_eq!(refused(limiter.take_one(&other)), None, "another key has its own");
        }
        assert_eq!(limiter.limited.get(), 3);
        hand.wait(15_000);
        assert_eq!([(); 60].map(|()| now()), [None; 60], "the burst is whole again");
        assert_eq!(now(), Some(("rate_limited", Some(1))));
    }

    #[test]
    fn the_wait_is_told_in_seconds_rounded_up() {
        let limits = Limits { calls_per_minute: 7, calls_burst: 1, ..Limits::default() };
        let (limiter, hand) = limiter(limits);
        let ann = principal("ann", 1);
        assert_eq!(refused(limiter.take_one(&ann)), None);
        assert_eq!(refused(limiter.take_one(&ann)), Some(("rate_limited", Some(9))), "8.57 s");
        hand.wait(9_000);
        assert_eq!(refused(limiter.take_one(&ann)), None, "who waits as told is let in");
    }

    #[test]
    fn who_is_exempt_has_no_rate() {
        let (limiter, _) = limiter(Limits::default());
        let free = Principal { no_limit: true, ..principal("ann", 1) };
        let of = |auth_method| Principal { auth_method, key_id: None, ..principal("env", 0) };
        for exempt in [free, of(AuthMethod::EnvKey), of(AuthMethod::Local)] {
            assert_eq!((0..1_000).find_map(|_| refused(limiter.take_one(&exempt))), None, "{exempt:?}");
        }
        assert_eq!(limiter.rate.len(), 0);
    }

    #[test]
    fn idle_keys_are_forgotten_and_busy_ones_are_not() {
        let (limiter, hand) = limiter(Limits::default());
        for key in 0..5_000 {
            assert_eq!(refused(limiter.take_one(&principal("ann", key))), None);
        }
        assert_eq!(limiter.rate.len(), 5_000);
        let bob = principal("bob", 1);
        hand.wait(59_990);
        assert_eq!((0..61).filter(|_| limiter.take_one(&bob).is_ok()).count(), 60);
        hand.wait(10);
        assert_eq!(refused(limiter.take_one(&bob)), Some(("rate_limited", Some(1))), "still in its debt");
        assert_eq!(limiter.rate.len(), 1);
    }

    #[test]
    fn a_key_fills_its_places_and_not_those_of_others() {
        let limits = Limits { calls_in_flight_per_key_max: 2, calls_in_flight_max: 3, ..Limits::default() };
        let (limiter, _) = limiter(limits);
        // Whoever has no rate has a number of places all the same.
        let ann = Principal { no_limit: true, ..principal("ann", 1) };
        let bob = principal("bob", 1);
        let message = |entered: Result<Place, ToolError>| entered.err().map(|error| error.message);
        let (first, _second) = (limiter.enter(&ann).unwrap(), limiter.enter(&ann).unwrap());
        let error = limiter.enter(&ann).err().unwrap();
        assert_eq!((error.code(), error.retry_after_s), ("too_many_calls", Some(1)));
        assert_eq!(error.message, "2 calls of this API key run already.");
        let bobs = limiter.enter(&bob).unwrap();
        assert_eq!(message(limiter.enter(&bob)), Some("3 calls run already.".into()));
        drop(first);
        let again = limiter.enter(&ann).unwrap();
        assert_eq!(message(limiter.enter(&bob)), Some("3 calls run already.".into()));
        drop((bobs, again));
        assert_eq!(lock(&limiter.running_of).len(), 1);
        assert_eq!(limiter.limited.get(), 3);
    }
}
