//! What the path of calls counts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// The counters of all calls together. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    pub(super) late: Counter,
}

impl Metrics {
    /// Registers all under `annals_`; counters show as 0 from the start.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "annals_calls_late",
            "Calls whose tool gave something after the call had been cancelled or timed out",
            metrics.late.clone(),
        );
        metrics
    }
}
