//! What the engine counts of itself. Batches are measured, never single records; no labels.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::event::GapCause;

/// Live figures of one log.
#[derive(Debug, Clone)]
pub struct Stats {
    /// Records that became durable since the log was opened.
    pub appended_records: Counter,
    /// Bytes that became durable since the log was opened, with their frames.
    pub appended_bytes: Counter,
    /// Seconds of each data sync.
    pub sync_seconds: Histogram,
    /// Records that shared one sync.
    pub batch_records: Histogram,
    /// Records handed over whose sync has not returned.
    pub in_flight_records: Gauge,
    /// Records that are in flight or set aside.
    pub reserved_records: Gauge,
    /// Body bytes that are in flight or set aside.
    pub reserved_bytes: Gauge,
    /// Refused reservations.
    pub refused: Counter,
    /// The durable end, as a position.
    pub watermark_bytes: Gauge<u64, AtomicU64>,
    /// Segment files.
    pub segments: Gauge,
    /// Segments that were dropped for their age since the log was opened.
    pub dropped_segments: Counter,
    /// The clock of the oldest record that is kept, seconds since 1970, as last looked at; 0 before that.
    pub oldest_record_seconds: Gauge<f64, AtomicU64>,
    /// 1 while the log cannot write.
    pub failed: Gauge,
    /// Times that it could not write, by cause.
    pub outages: Family<OutageLabels, Counter>,
}

/// Of an outage.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutageLabels {
    /// The cause that was seen first, as in `system.gap`.
    pub cause: &'static str,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            appended_records: Counter::default(),
            appended_bytes: Counter::default(),
            sync_seconds: Histogram::new(exponential_buckets(0.000_05, 2.0, 18)),
            batch_records: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
            in_flight_records: Gauge::default(),
            reserved_records: Gauge::default(),
            reserved_bytes: Gauge::default(),
            refused: Counter::default(),
            watermark_bytes: Gauge::default(),
            segments: Gauge::default(),
            dropped_segments: Counter::default(),
            oldest_record_seconds: Gauge::default(),
            failed: Gauge::default(),
            outages: Family::default(),
        }
    }
}

impl Stats {
    /// It cannot write, because of `cause`.
    pub(super) fn outage(&self, cause: GapCause) {
        self.outages.get_or_create(&OutageLabels { cause: cause.as_str() }).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let log = registry.sub_registry_with_prefix("annals_log");
        log.register("appended_records", "Records that became durable", self.appended_records.clone());
        log.register("appended_bytes", "Bytes that became durable", self.appended_bytes.clone());
        log.register("fsync_duration_seconds", "Duration of a data sync", self.sync_seconds.clone());
        log.register("batch_records", "Records that shared one sync", self.batch_records.clone());
        log.register("in_flight_records", "Records waiting for their sync", self.in_flight_records.clone());
        log.register("reserved_records", "Records in flight or set aside", self.reserved_records.clone());
        log.register("reserved_bytes", "Body bytes in flight or set aside", self.reserved_bytes.clone());
        log.register("refused_reservations", "Reservations refused", self.refused.clone());
        log.register("watermark_bytes", "The durable end of the log", self.watermark_bytes.clone());
        log.register("segments", "Segment files", self.segments.clone());
        log.register("dropped_segments", "Segments dropped for their age", self.dropped_segments.clone());
        let oldest = self.oldest_record_seconds.clone();
        log.register(
            "oldest_record_timestamp_seconds",
            "The clock of the oldest record that is kept",
            oldest,
        );
        log.register("failed", "1 while the log cannot write and refuses", self.failed.clone());
        log.register("outages", "Times that the log could not write", self.outages.clone());
    }
}
