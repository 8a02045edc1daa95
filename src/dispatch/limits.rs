//! Bounds of a call, from the config.

use std::time::Duration;

/// Bounds of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Calls that run at once; one more is refused.
    pub calls_in_flight_max: usize,
    /// From receipt to the end of a call.
    pub call_timeout: Duration,
    /// Arguments over this size are recorded as digest and size only, bytes.
    pub recorded_arguments_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls_in_flight_max: 256,
            call_timeout: Duration::from_secs(30),
            recorded_arguments_bytes_max: 64 * 1024,
        }
    }
}
