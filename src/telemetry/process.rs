//! The process' own metrics, read from `/proc` when they are scraped.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// `process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`,
/// `process_open_fds`, `process_threads`, `process_start_time_seconds`, as other exporters name them.
#[derive(Debug)]
pub struct ProcessMetrics {
    started_at_seconds: f64,
}

impl ProcessMetrics {
    /// For a process that started at `started_at`.
    #[must_use]
    pub fn new(started_at: crate::base::Timestamp) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit a float to the microsecond")]
        let started_at_seconds = started_at.as_micros() as f64 / 1e6;
        Self { started_at_seconds }
    }
}

#[derive(Debug, Default, PartialEq)]
struct Reading {
    cpu_seconds: f64,
    threads: i64,
    virtual_bytes: i64,
    resident_bytes: i64,
}

/// Kernel ticks per second that `/proc` counts in: 100 on every Linux that Rust's standard library supports.
const TICKS_PER_SECOND: f64 = 100.0;

fn parse(stat: &str, page_bytes: i64) -> Option<Reading> {
    // The command's name stands in parentheses and may hold anything, so the fields are counted behind it.
    let (_, behind) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = behind.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i64>().ok();
    #[expect(clippy::cast_precision_loss, reason = "ticks stay far below 2^52")]
    let ticks = (number(11)? + number(12)?) as f64;
    Some(Reading {
        cpu_seconds: ticks / TICKS_PER_SECOND,
        threads: number(17)?,
        virtual_bytes: number(20)?,
        resident_bytes: number(21)? * page_bytes,
    })
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let page_bytes = i64::try_from(rustix::param::page_size()).unwrap_or(4096);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fds = std::fs::read_dir("/proc/self/fd")
            .map_or(0, |entries| i64::try_from(entries.count()).unwrap_or(0));
        if let Some(reading) = parse(&stat, page_bytes) {
            let cpu = ConstCounter::new(reading.cpu_seconds);
            let unit = Some(&Unit::Seconds);
            cpu.encode(encoder.encode_descriptor(
                "process_cpu",
                "User and system time spent",
                unit,
                cpu.metric_type(),
            )?)?;
            for (name, help, value) in [
                ("process_resident_memory_bytes", "Resident memory", reading.resident_bytes),
                ("process_virtual_memory_bytes", "Virtual memory", reading.virtual_bytes),
                ("process_threads", "Threads", reading.threads),
            ] {
                let gauge = ConstGauge::new(value);
                gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
            }
        }
        let gauge = ConstGauge::new(fds);
        gauge.encode(encoder.encode_descriptor(
            "process_open_fds",
            "Open file descriptors",
            None,
            gauge.metric_type(),
        )?)?;
        let gauge = ConstGauge::new(self.started_at_seconds);
        let help = "Start of the process since the Unix epoch";
        gauge.encode(encoder.encode_descriptor(
            "process_start_time_seconds",
            help,
            None,
            gauge.metric_type(),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 7 0 123 4096000 500 18446744073709551615";
        let reading = parse(stat, 4096).unwrap();
        assert_eq!(
            reading,
            Reading { cpu_seconds: 3.0, threads: 7, virtual_bytes: 4_096_000, resident_bytes: 2_048_000 }
        );
    }
}
