//! What the benchmarks measure, through the log's public interface only. A test runs it small (`tests/it/benchmarks.rs`),
//! so that it is known to measure what it says.

pub(crate) mod append;
mod drive;
mod machine;
mod probe;
pub(crate) mod recovery;
mod writes;

use std::time::Duration;

use hdrhistogram::Histogram;

/// Times in nanoseconds, to three digits.
type Times = Histogram<u64>;

fn times() -> anyhow::Result<Times> {
    Ok(Histogram::new(3)?)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A quantile in milliseconds.
fn millis(times: &Times, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e6
}

/// p50 / p99 / p99.9 in milliseconds.
fn percentiles(times: &Times) -> String {
    format!("{:.2} / {:.2} / {:.2}", millis(times, 0.5), millis(times, 0.99), millis(times, 0.999))
}

/// How many a second.
fn rate(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}
