//! Drops what is too old: segments of the log that every projection is past, and whole months of audit rows.
//!
//! What is dropped is said first, in a `system.retention` event that is durable before anything is gone. Whenever it is not
//! certain that nobody needs something any more, it stays.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::system;
use crate::base::{Timestamp, planted};
use crate::config::Config;
use crate::consumer;
use crate::db::{Postgres, Role};
use crate::event::{LogCut, Retention as Fact, RowsCut, TopicPartition};
use crate::log::embedded::{DropError, EmbeddedLog};
use crate::log::{Lanes, Log, Position, RecordError};
use crate::projection::AuditProjection;

/// Segments of one cut: its event stays far below the limit of a body.
const SEGMENTS_MAX: usize = 64;

/// How soon it looks again while the store is not there.
const STORE_INTERVAL: Duration = Duration::from_secs(5);

/// How soon it looks again while old segments are kept for a projection.
const BLOCKED_INTERVAL: Duration = Duration::from_secs(60);

const DAY_MICROS: i64 = 86_400_000_000;

/// What is counted.
#[derive(Debug, Clone, Default)]
pub(super) struct Metrics {
    refused: Counter,
    blocked: Gauge,
    dropped_months: Counter,
}

impl Metrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let retention = registry.sub_registry_with_prefix("annals_retention");
        retention.register(
            "refused",
            "Old segments that were kept because a projection is not past them, or that is not known",
            metrics.refused.clone(),
        );
        retention.register("blocked", "1 while old segments are kept for that", metrics.blocked.clone());
        retention.register("dropped_months", "Months of audit rows dropped", metrics.dropped_months.clone());
        metrics
    }
}

/// Why nothing was dropped, though it is old.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the store is not there yet, so nobody knows how far its projections are")]
    NoStore,
    #[error("Postgres does not say how far its projections are: {0}")]
    Unknown(sqlx::Error),
    #[error("{first}{more}", more = if *.more == 0 { String::new() } else { format!(", and {} more", .more) })]
    Behind { first: String, more: usize },
    #[error("what is to be dropped could not be recorded: {0}")]
    Unrecorded(#[from] RecordError),
    #[error(transparent)]
    Log(#[from] DropError),
    #[error("a backup is being taken, and may need them")]
    Backup,
    #[error("it cannot be told whether a backup is being taken: {0}")]
    Keep(std::io::Error),
    #[error("the rows cannot be dropped: {0}")]
    Rows(sqlx::Error),
}

/// See the module.
pub(super) struct Retention {
    pub(super) log: Arc<EmbeddedLog>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) postgres: Arc<OnceLock<Postgres>>,
    pub(super) metrics: Metrics,
    log_days: Option<u32>,
    rows_days: Option<u32>,
    interval: Duration,
    /// The clocks when it began.
    began: (Timestamp, Instant),
    /// What stands in the way now, in words.
    blocked: Mutex<Option<String>>,
}

/// Drops the segments of `cut` once it is durable on the log that they are dropped.
async fn say_and_drop(log: &EmbeddedLog, lanes: &Lanes, cut: LogCut) -> Result<(), Refused> {
    let (first, segments) = (cut.first, cut.segments.len());
    // Held until they are gone: a copy that begins now begins behind them.
    let _nobody_copies = log.nobody_copies().map_err(Refused::Keep)?.ok_or(Refused::Backup)?;
    let said = system::retention(lanes, Fact::Log(cut.clone())).await;
    if !planted::armed("dropped_before_event") {
        said?;
    }
    log.drop_segments(cut).await?;
    tracing::info!(log.first = first, segments, "old segments of the log were dropped");
    Ok(())
}

impl Retention {
    pub(super) fn new(
        config: &Config,
        log: Arc<EmbeddedLog>,
        lanes: Arc<Lanes>,
        postgres: Arc<OnceLock<Postgres>>,
        metrics: Metrics,
    ) -> Self {
        let began = (lanes.clock().now(), lanes.clock().monotonic());
        Self {
            log,
            lanes,
            postgres,
            metrics,
            log_days: config.log.retention_days,
            rows_days: config.projection.retention_days,
            interval: Duration::from_millis(config.log.retention_interval_ms),
            began,
            blocked: Mutex::default(),
        }
    }

    /// Looks at once and then at the configured interval, until `stop` fires. A drop that has begun is finished.
    pub(super) async fn run(self, stop: CancellationToken) {
        loop {
            self.round(&stop).await;
            if stop.run_until_cancelled(tokio::time::sleep(self.wait())).await.is_none() {
                return;
            }
        }
    }

    /// What stands in the way now may soon be gone: the store starts, a projection catches up.
    fn wait(&self) -> Duration {
        let blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let soon = if self.postgres.get().is_none() {
            STORE_INTERVAL
        } else if blocked {
            BLOCKED_INTERVAL
        } else {
            self.interval
        };
        soon.min(self.interval)
    }

    async fn round(&self, stop: &CancellationToken) {
        if let Err(error) = self.drop_rows().await {
            tracing::warn!(error = %error, "old audit rows stay");
        }
        let result = self.drop_segments(stop).await;
        self.say(result.err());
        if let Err(error) = self.log.oldest_recorded_at().await {
            tracing::warn!(error = %error, "the oldest record of the log cannot be read");
        }
    }

    fn say(&self, refused: Option<Refused>) {
        let text = refused.map(|refused| refused.to_string());
        self.metrics.blocked.set(i64::from(text.is_some()));
        let mut blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cause) = &text {
            self.metrics.refused.inc();
            if *blocked != text {
                tracing::warn!(cause, "segments that are old enough to be dropped stay");
            }
        } else if blocked.is_some() {
            tracing::info!("nothing keeps old segments any more");
        }
        *blocked = text;
    }

    /// A wall clock that jumps ahead makes nothing older: what counts is the time that passed since the start.
    fn older_than(&self, days: u32) -> Timestamp {
        let (clock, (began, mark)) = (self.lanes.clock(), self.began);
        let passed = clock.monotonic().saturating_duration_since(mark).as_micros();
        let now = clock.now().min(began.plus_micros(i64::try_from(passed).unwrap_or(i64::MAX)));
        now.plus_micros(-i64::from(days) * DAY_MICROS)
    }

    async fn drop_segments(&self, stop: &CancellationToken) -> Result<(), Refused> {
        let Some(days) = self.log_days else { return Ok(()) };
        let (mut segments_max, mut refused) = (SEGMENTS_MAX, Ok(()));
        while !stop.is_cancelled() {
            let Some(cut) = self.log.plan_drop(self.older_than(days), segments_max).await? else { break };
            refused = self.passed(&cut).await;
            if refused.is_ok() {
                say_and_drop(&self.log, &self.lanes, cut).await?;
            } else if cut.segments.len() > 1 {
                // Perhaps the oldest ones are passed.
                segments_max = cut.segments.len() / 2;
            } else {
                break;
            }
        }
        refused
    }

    /// Whether every projection has applied all that the cut drops.
    async fn passed(&self, cut: &LogCut) -> Result<(), Refused> {
        let postgres = self.postgres.get().ok_or(Refused::NoStore)?;
        let from = cut.segments.first().map_or(cut.first, |segment| segment.base);
        // What lies before was checked when it was dropped.
        let tails = cut.tails.iter().filter(|tail| tail.position >= from);
        let ends: Vec<(TopicPartition, Position)> = tails
            .map(|tail| {
                let target = TopicPartition { topic: tail.topic, partition: tail.partition };
                (target, Position(tail.position))
            })
            .collect();
        let pool = postgres.pool(Role::Writer);
        let behind = consumer::behind(&pool, self.log.id(), &ends).await;
        pool.close().await;
        let mut behind = behind.map_err(Refused::Unknown)?.into_iter();
        match behind.next() {
            None => Ok(()),
            Some(first) => Err(Refused::Behind { first, more: behind.len() }),
        }
    }

    async fn drop_rows(&self) -> Result<(), Refused> {
        let (Some(days), Some(postgres)) = (self.rows_days, self.postgres.get()) else { return Ok(()) };
        let pool = postgres.pool(Role::Owner);
        let dropped = self.drop_months(&pool, self.older_than(days)).await;
        pool.close().await;
        dropped
    }

    async fn drop_months(&self, owner: &sqlx::PgPool, older_than: Timestamp) -> Result<(), Refused> {
        let old = AuditProjection::months_before(owner, older_than).await.map_err(Refused::Rows)?;
        let Some(before) = old.iter().map(|month| month.ends).max() else { return Ok(()) };
        // The dump of a backup must find every month that its snapshot has.
        let _nobody_copies = self.log.nobody_copies().map_err(Refused::Keep)?.ok_or(Refused::Backup)?;
        let months: Vec<String> = old.into_iter().map(|month| month.name).collect();
        let cut = RowsCut {
            projection: AuditProjection::NAME.into(),
            version: AuditProjection::VERSION.unsigned_abs(),
            months: months.clone(),
            before,
        };
        system::retention(&self.lanes, Fact::Rows(cut)).await?;
        AuditProjection::drop_months(owner, before).await.map_err(Refused::Rows)?;
        self.metrics.dropped_months.inc_by(months.len() as u64);
        tracing::info!(months = months.join(", "), "old months of audit rows were dropped");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::base::{Clock, SystemClock};
    use crate::event::{Decoded, Facts, Topic};
    use crate::log::embedded::{Keep, Options, ScannedItem, Scanner};

    /// A year ago.
    struct LastYear;

    impl Clock for LastYear {
        fn now(&self) -> Timestamp {
            SystemClock.now().plus_micros(-365 * DAY_MICROS)
        }

        fn monotonic(&self) -> Instant {
            SystemClock.monotonic()
        }
    }

    /// A wall clock that somebody moves.
    #[derive(Default)]
    struct Moved(AtomicI64);

    impl Clock for Moved {
        fn now(&self) -> Timestamp {
            SystemClock.now().plus_micros(self.0.load(Ordering::Relaxed) * DAY_MICROS)
        }

        fn monotonic(&self) -> Instant {
            SystemClock.monotonic()
        }
    }

    #[tokio::test]
    async fn a_clock_that_jumps_ahead_makes_nothing_old() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::default();
        let options = Options::new(dir.path().join("log"), &config.log);
        let (log, _) = EmbeddedLog::open(options, Arc::new(SystemClock)).unwrap();
        let clock = Arc::new(Moved::default());
        let lanes =
            Lanes::new(Arc::clone(&log) as Arc<dyn Log>, Arc::clone(&clock) as Arc<dyn Clock>, "default");
        let retention = Retention::new(&config, log, Arc::new(lanes), Arc::default(), Metrics::default());
        let limit = |days: i64| SystemClock.now().plus_micros(-days * DAY_MICROS);
        assert!(retention.older_than(30) > limit(31));
        clock.0.store(400, Ordering::Relaxed);
        assert!(retention.older_than(30) <= limit(30));
        clock.0.store(-400, Ordering::Relaxed);
        assert!(retention.older_than(30) <= limit(430));
    }

    #[tokio::test]
    async fn what_is_dropped_is_said_first() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            dir: dir.path().join("log"),
            segment_bytes: 16 * 1024,
            in_flight_records_max: 16,
            in_flight_bytes_max: 8 * 1024,
            reserve_wait: Duration::from_secs(30),
            append_wait: Duration::from_secs(30),
        };
        let (log, _) = EmbeddedLog::open(options.clone(), Arc::new(SystemClock)).unwrap();
        let lanes = |clock: Arc<dyn Clock>| Lanes::new(Arc::clone(&log) as Arc<dyn Log>, clock, "default");
        let old = lanes(Arc::new(LastYear));
        for _ in 0..60 {
            system::checkpoint(&old).await.unwrap();
        }
        let cut = log.plan_drop(SystemClock.now(), 64).await.unwrap().unwrap();
        // What somebody copies is kept, and nothing is said of it.
        let copying = Keep::segments(&options.dir).unwrap().unwrap();
        let refused = say_and_drop(&log, &old, cut.clone()).await.unwrap_err();
        assert!(matches!(refused, Refused::Backup), "{refused}");
        drop(copying);
        // What cannot be said is not done.
        old.end(|_| true);
        let refused = say_and_drop(&log, &old, cut.clone()).await.unwrap_err();
        assert!(matches!(refused, Refused::Unrecorded(_)), "{refused}");
        assert_eq!(log.start().first, Position(0), "nothing is dropped");
        let now = lanes(Arc::new(SystemClock));
        say_and_drop(&log, &now, cut.clone()).await.unwrap();
        assert_eq!(log.start().first, Position(cut.first));
        let mut scanner = Scanner::open(&options.dir).unwrap();
        let mut said = Vec::new();
        while let Some(scanned) = scanner.next().unwrap() {
            if let ScannedItem::Event(stored) = scanned.item
                && let Facts::Retention(fact) =
                    Decoded::read(Topic::System, &stored.frame.body).unwrap().facts
            {
                said.push(fact);
            }
        }
        assert_eq!(said, [Fact::Log(cut)]);
    }
}
