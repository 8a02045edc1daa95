//! Seeded draws in whole numbers: the same seed gives the same values on every machine, whatever its floating point.
//!
//! Knows nothing of what is drawn.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A stream of draws.
pub(super) struct Draw(ChaCha8Rng);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// From 0 to `bound - 1`, evenly; 0 when `bound` is 0.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        // The upper half of the product: even to one part in four billion, which is enough for samples.
        let product = u64::from(self.0.next_u32()) * u64::from(bound);
        u32::try_from(product >> 32).expect("a product of two u32 has an upper half that fits u32")
    }

    /// From `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    /// The least of `times` draws below `bound`: the larger `times`, the more often a small one.
    pub(super) fn skewed(&mut self, bound: u32, times: u32) -> u32 {
        (0..times.max(1)).map(|_| self.below(bound)).min().unwrap_or_default()
    }

    /// True in `per_mille` of 1000 cases.
    pub(super) fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of `items`, which are not empty.
    pub(super) fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        let count = u32::try_from(items.len()).expect("few items");
        items[self.below(count) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_their_bounds_and_repeat() {
        let mut draw = Draw::new(7);
        let first: Vec<u32> = (0..1_000).map(|_| draw.between(3, 9)).collect();
        assert!(
            (3..=9).all(|value| first.contains(&value)) && first.iter().all(|value| (3..=9).contains(value))
        );
        let mut again = Draw::new(7);
        assert_eq!(first, (0..1_000).map(|_| again.between(3, 9)).collect::<Vec<_>>());
        assert_eq!(draw.below(0), 0);
    }
}
