//! Waiting between tries: longer each time up to a bound, never all workers at once.

use std::time::Duration;

use crate::base::random_bytes;

/// Doubles from `FIRST` to `MAX`; each wait is between half of that and all of it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Backoff {
    tries: u32,
}

const FIRST: Duration = Duration::from_millis(100);
const MAX: Duration = Duration::from_secs(5);

impl Backoff {
    /// The next wait.
    pub(super) fn next(&mut self) -> Duration {
        let full = FIRST.saturating_mul(1 << self.tries.min(10)).min(MAX);
        self.tries = self.tries.saturating_add(1);
        let [random] = random_bytes::<1>();
        full / 2 + full * u32::from(random) / 512
    }

    /// Nothing failed since it last worked.
    pub(super) fn is_fresh(&self) -> bool {
        self.tries == 0
    }

    /// It worked: start afresh.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_bound_and_start_afresh() {
        let mut backoff = Backoff::default();
        let first = backoff.next();
        assert!((FIRST / 2..=FIRST).contains(&first), "{first:?}");
        let waits: Vec<Duration> = (0..2_000).map(|_| backoff.next()).collect();
        assert!(waits.iter().all(|wait| *wait <= MAX));
        assert!(waits.iter().skip(10).all(|wait| *wait >= MAX / 2));
        assert!(!backoff.is_fresh());
        backoff.reset();
        assert!(backoff.is_fresh());
        assert!(backoff.next() <= FIRST);
    }
}
