//! Bounds of a call, from the config.

use std::time::Duration;

/// Bounds of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Calls that run at once; one more is refused.
    pub calls_in_flight_max: usize,
    /// Calls of one API key that run at once.
    pub calls_in_flight_per_key_max: usize,
    /// Calls of one API key in a minute, after its burst.
    pub calls_per_minute: u32,
    /// Calls that an API key may make at once before its rate counts.
    pub calls_burst: u32,
    /// From receipt to the end of a call.
    pub call_timeout: Duration,
    /// Arguments over this size are recorded as digest and size only, bytes.
    pub recorded_arguments_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls_in_flight_max: 256,
            calls_in_flight_per_key_max: 128,
            calls_per_minute: 240,
            calls_burst: 60,
            call_timeout: Duration::from_secs(30),
            recorded_arguments_bytes_max: 64 * 1024,
        }
    }
}
