//! What the workers count. Counters move after the commit that makes them true.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The counters of all loops together. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(super) applied: Counter,
    pub(super) missing: Counter,
    pub(super) parked: Counter,
    pub(super) duplicates: Counter,
    pub(super) conflicts: Counter,
    pub(super) lag: Gauge,
    pub(super) stopped: Gauge,
    pub(super) interrupted: Counter,
    pub(super) batch_seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            applied: Counter::default(),
            missing: Counter::default(),
            parked: Counter::default(),
            duplicates: Counter::default(),
            conflicts: Counter::default(),
            lag: Gauge::default(),
            stopped: Gauge::default(),
            interrupted: Counter::default(),
            batch_seconds: Histogram::new([
                0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
            ]),
        }
    }
}

impl Metrics {
    /// Registers all under `annals_`; counters show as 0 from the start.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "annals_projection_applied_events",
            "Events whose rows are committed",
            metrics.applied.clone(),
        );
        registry.register(
            "annals_events_missing",
            "Events that lanes skipped, by their sequence numbers; stays 0",
            metrics.missing.clone(),
        );
        registry.register(
            "annals_projection_parked_events",
            "Events set aside because they cannot be read or stored, or conflict with another",
            metrics.parked.clone(),
        );
        registry.register(
            "annals_projection_duplicate_events",
            "Events dropped because the same one was applied before",
            metrics.duplicates.clone(),
        );
        registry.register(
            "annals_projection_conflict_events",
            "Events with the number or id of another event and other content",
            metrics.conflicts.clone(),
        );
        registry.register(
            "annals_projection_lag_events",
            "Events on the log that are not applied yet",
            metrics.lag.clone(),
        );
        registry.register(
            "annals_projection_stopped_loops",
            "Loops that stopped for good because the log is damaged or another one; their lag counts no more",
            metrics.stopped.clone(),
        );
        registry.register(
            "annals_calls_interrupted",
            "Calls that were closed because nobody can say how they ended",
            metrics.interrupted.clone(),
        );
        registry.register(
            "annals_projection_batch_duration_seconds",
            "From a batch's first statement to its commit",
            metrics.batch_seconds.clone(),
        );
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_events_are_shown_as_zero_from_the_start() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("\nannals_events_missing_total 0\n"), "{text}");
        assert_eq!(metrics.missing.get(), 0);
    }
}
