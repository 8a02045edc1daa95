//! Which refusals of callers nobody knows are told one by one, and the counts of the rest.
//!
//! Knows no log and waits for nothing. What it holds is bounded, however many networks the refusals come from.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::base::{Clock, Timestamp, planted, sha256};
use crate::event::Window;

const MINUTE: Duration = Duration::from_secs(60);

/// How much of a flood is told one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloodLimits {
    /// Refusals of one network and minute that are told one by one.
    pub per_source_per_minute: u32,
    /// The same over all networks.
    pub per_minute: u32,
    /// Networks that are told apart; all further ones are as one.
    pub sources_max: usize,
    /// The longest time that one counted event stands for.
    pub window: Duration,
}

impl Default for FloodLimits {
    fn default() -> Self {
        Self {
            per_source_per_minute: 20,
            per_minute: 300,
            sources_max: 4_096,
            window: Duration::from_secs(10),
        }
    }
}

/// Where a refused request came from: the digest of its network, which is a /24 of IPv4 or a /48 of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Source([u8; 32]);

impl Source {
    /// Of the address, or the one source of all whose address is not known.
    pub(super) fn of(ip: Option<&str>) -> Self {
        let prefix = match ip.and_then(|ip| ip.parse::<IpAddr>().ok()) {
            Some(IpAddr::V4(ip)) => ip.octets().get(..3).map(hex::encode),
            Some(IpAddr::V6(ip)) => ip.octets().get(..6).map(hex::encode),
            None => None,
        };
        Self(sha256(prefix.unwrap_or_default().as_bytes()))
    }

    /// The partition key of its events.
    pub(super) fn key(self) -> String {
        hex::encode(self.0)
    }
}

/// What becomes of one refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has an event of its own.
    Told,
    /// It is in the count of the open window.
    Counted {
        /// It is the first of its window, which somebody has to close in time.
        opens: bool,
    },
    /// It would be counted, but nothing can be now.
    Neither,
}

/// What one counted event stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) count: u64,
    began_at: Timestamp,
    ended_at: Timestamp,
    sources: HashSet<Source>,
}

impl Tally {
    fn new(at: Timestamp) -> Self {
        Self { count: 0, began_at: at, ended_at: at, sources: HashSet::new() }
    }

    fn add(&mut self, source: Source, at: Timestamp, sources_max: usize) {
        if planted::armed("flood_uncounted") && self.count % 100 == 99 {
            return;
        }
        self.count += 1;
        self.ended_at = self.ended_at.max(at);
        if self.sources.len() < sources_max {
            self.sources.insert(source);
        }
    }

    fn merge(&mut self, other: Self, sources_max: usize) {
        self.count += other.count;
        self.began_at = self.began_at.min(other.began_at);
        self.ended_at = self.ended_at.max(other.ended_at);
        let room = sources_max.saturating_sub(self.sources.len());
        self.sources.extend(other.sources.into_iter().take(room));
    }

    pub(super) fn window(&self) -> Window {
        Window { began_at: self.began_at, ended_at: self.ended_at, sources: self.sources.len() as u64 }
    }
}

/// The refusals of the last minute. `W` is what is counted together: its values must come from a closed set, and never
/// from what a caller sent.
#[derive(Debug)]
pub(super) struct Flood<W> {
    limits: FloodLimits,
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    minute: Option<Instant>,
    /// Told in this minute, in all and of each network.
    told: u32,
    told_of: HashMap<Source, u32>,
    /// The same of all networks that are not told apart.
    told_of_others: u32,
    open: HashMap<W, Tally>,
    closed: bool,
}

impl<W: Eq + Hash> Flood<W> {
    pub(super) fn new(limits: FloodLimits) -> Self {
        let state = State {
            minute: None,
            told: 0,
            told_of: HashMap::new(),
            told_of_others: 0,
            open: HashMap::new(),
            closed: false,
        };
        Self { limits, state: Mutex::new(state) }
    }

    pub(super) const fn limits(&self) -> &FloodLimits {
        &self.limits
    }

    /// Takes one more refusal. It is counted only while the log `accepts`.
    pub(super) fn one_more(&self, source: Source, what: W, accepts: bool, clock: &dyn Clock) -> Verdict {
        let mut state = self.lock();
        state.turn(clock.monotonic());
        if state.closed || state.tell(source, &self.limits) || planted::armed("flood_unbounded") {
            return Verdict::Told;
        }
        if !accepts {
            return Verdict::Neither;
        }
        let now = clock.now();
        let opens = state.open.is_empty();
        state.open.entry(what).or_insert_with(|| Tally::new(now)).add(source, now, self.limits.sources_max);
        Verdict::Counted { opens }
    }

    /// Closes the window: gives what it counted. The next refusal opens another.
    pub(super) fn take(&self) -> Vec<(W, Tally)> {
        self.lock().open.drain().collect()
    }

    /// What could not be recorded is counted on. Gives false when nobody will take it any more.
    pub(super) fn put_back(&self, what: W, tally: Tally) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        let at = tally.began_at;
        state.open.entry(what).or_insert_with(|| Tally::new(at)).merge(tally, self.limits.sources_max);
        true
    }

    /// As [`Flood::take`], for the last time: from here on each refusal has an event of its own.
    pub(super) fn close(&self) -> Vec<(W, Tally)> {
        let mut state = self.lock();
        state.closed = true;
        state.open.drain().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W> State<W> {
    /// Begins another minute when the last one is over.
    fn turn(&mut self, now: Instant) {
        let is_over = self.minute.is_none_or(|began| now.saturating_duration_since(began) >= MINUTE);
        if is_over {
            self.minute = Some(now);
            (self.told, self.told_of_others) = (0, 0);
            self.told_of.clear();
        }
    }

    /// Whether one more of `source` is told; it is then one of its minute.
    fn tell(&mut self, source: Source, limits: &FloodLimits) -> bool {
        if self.told >= limits.per_minute {
            return false;
        }
        let is_full = self.told_of.len() >= limits.sources_max;
        let told_of = match self.told_of.get_mut(&source) {
            Some(told_of) => told_of,
            None if is_full => &mut self.told_of_others,
            None => self.told_of.entry(source).or_default(),
        };
        if *told_of >= limits.per_source_per_minute {
            return false;
        }
        *told_of += 1;
        self.told += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::SystemClock;

    /// A clock that stands until it is moved.
    struct Hand {
        start: Instant,
        moved: Mutex<Duration>,
    }

    impl Hand {
        fn new() -> Self {
            Self { start: SystemClock.monotonic(), moved: Mutex::default() }
        }

        fn wait(&self, time: Duration) {
            *self.moved.lock().unwrap() += time;
        }
    }

    impl Clock for Hand {
        fn now(&self) -> Timestamp {
            let micros = self.moved.lock().unwrap().as_micros();
            Timestamp::from_micros(1_764_521_228_000_000 + i64::try_from(micros).unwrap())
        }

        fn monotonic(&self) -> Instant {
            self.start + *self.moved.lock().unwrap()
        }
    }

    fn source(n: u32) -> Source {
        Source::of(Some(&std::net::Ipv4Addr::from(n << 8).to_string()))
    }

    fn flood(per_source_per_minute: u32, per_minute: u32, sources_max: usize) -> Flood<&'static str> {
        let window = Duration::from_secs(10);
        Flood::new(FloodLimits { per_source_per_minute, per_minute, sources_max, window })
    }

    const TOLD: Verdict = Verdict::Told;
    const COUNTED: Verdict = Verdict::Counted { opens: false };
    const OPENS: Verdict = Verdict::Counted { opens: true };

    #[test]
    fn a_source_is_the_network() {
        assert_eq!(Source::of(Some("10.1.2.3")), Source::of(Some("10.1.2.200")));
        assert_ne!(Source::of(Some("10.1.2.3")), Source::of(Some("10.1.3.3")));
        assert_eq!(Source::of(Some("2001:db8:1::1")), Source::of(Some("2001:db8:1:ffff::1")));
        assert_ne!(Source::of(Some("2001:db8:1::1")), Source::of(Some("2001:db8:2::1")));
    }

    #[test]
    fn the_first_of_a_minute_and_source_are_told_and_the_rest_counted() {
        let (flood, clock) = (flood(3, 100, 10), Hand::new());
        let more = |n, what| flood.one_more(source(n), what, true, &clock);
        assert_eq!([1; 5].map(|n| more(n, "unknown")), [TOLD, TOLD, TOLD, OPENS, COUNTED]);
        assert_eq!(more(2, "unknown"), TOLD, "another network has its own");
        clock.wait(Duration::from_secs(7));
        assert_eq!([1; 2].map(|n| more(n, "missing")), [COUNTED; 2]);
        assert_eq!([2; 4].map(|n| more(n, "unknown")), [TOLD, TOLD, COUNTED, COUNTED]);
        let mut taken = flood.take();
        taken.sort_by_key(|(what, _)| *what);
        let seen: Vec<_> = taken.iter().map(|(what, tally)| (*what, tally.count, tally.window())).collect();
        let (start, later) = (Hand::new().now(), clock.now());
        let window = |began_at, sources| Window { began_at, ended_at: later, sources };
        assert_eq!(seen, [("missing", 2, window(later, 1)), ("unknown", 4, window(start, 2))]);
        assert_eq!(flood.take().len(), 0);
        assert_eq!(more(1, "unknown"), OPENS, "another window, the same minute");
        clock.wait(Duration::from_secs(53));
        assert_eq!([1; 4].map(|n| more(n, "unknown")), [TOLD, TOLD, TOLD, COUNTED]);
    }

    #[test]
    fn every_refusal_is_either_told_or_in_exactly_one_count() {
        let (flood, clock) = (flood(5, 40, 16), Hand::new());
        let (mut told, mut counted) = (0, 0);
        for n in 0..20_000_u32 {
            clock.wait(Duration::from_millis(17));
            match flood.one_more(
                source(n % 50),
                ["unknown", "missing", "revoked"][n as usize % 3],
                true,
                &clock,
            ) {
                Verdict::Told => told += 1,
                Verdict::Counted { .. } | Verdict::Neither => {}
            }
            if n % 600 == 0 {
                for (what, tally) in flood.take() {
                    // Each third time the log does not take it.
                    if n % 1_800 == 0 {
                        assert!(flood.put_back(what, tally));
                    } else {
                        counted += tally.count;
                    }
                }
            }
        }
        counted += flood.close().into_iter().map(|(_, tally)| tally.count).sum::<u64>();
        assert_eq!(told + counted, 20_000);
        assert_eq!(told, 240, "40 in each of the six minutes");
    }

    #[test]
    fn many_sources_do_not_add_up_and_are_not_all_remembered() {
        let (flood, clock) = (flood(20, 100, 30), Hand::new());
        let verdicts: Vec<_> =
            (0..100_000).map(|n| flood.one_more(source(n), "unknown", true, &clock)).collect();
        // 30 networks are told apart and told of, and all others have together what one has.
        assert_eq!(verdicts.iter().filter(|verdict| **verdict == TOLD).count(), 50);
        assert_eq!(flood.lock().told_of.len(), 30);
        let taken = flood.take();
        assert_eq!((taken[0].1.count, taken[0].1.window().sources), (99_950, 30), "at least that many");
        for n in 0..30 {
            for _ in 0..20 {
                flood.one_more(source(n), "unknown", true, &clock);
            }
        }
        assert_eq!(flood.lock().told, 100, "all together have a limit of their own");
    }

    #[test]
    fn what_is_put_back_is_counted_on_until_the_end() {
        let (flood, clock) = (flood(0, 0, 10), Hand::new());
        flood.one_more(source(1), "unknown", true, &clock);
        let (what, tally) = flood.take().remove(0);
        clock.wait(Duration::from_secs(1));
        assert_eq!(flood.one_more(source(2), "unknown", true, &clock), OPENS);
        assert!(flood.put_back(what, tally));
        let taken = flood.close();
        let window = Window { began_at: Hand::new().now(), ended_at: clock.now(), sources: 2 };
        assert_eq!((taken[0].1.count, taken[0].1.window()), (2, window));
        assert_eq!(
            flood.one_more(source(1), "unknown", true, &clock),
            TOLD,
            "nobody would close that window"
        );
        assert!(!flood.put_back("unknown", taken[0].1.clone()));
    }

    #[test]
    fn nothing_is_counted_while_the_log_does_not_accept() {
        let (flood, clock) = (flood(1, 10, 10), Hand::new());
        let more = |accepts| flood.one_more(source(1), "unknown", accepts, &clock);
        assert_eq!([more(false), more(false), more(true)], [TOLD, Verdict::Neither, OPENS]);
        assert_eq!(flood.take()[0].1.count, 1);
    }
}
