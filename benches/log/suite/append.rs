//! Appends at several numbers of waiters. In each round and for each number come, one behind the other: single records
//! with their fdatasync, bare; the engine; the engine's writes, bare; the engine below lanes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use annals::base::SystemClock;
use annals::config;
use annals::log::Log;
use annals::log::embedded::{self, EmbeddedLog};
use anyhow::ensure;
use bytes::Bytes;
use tokio::runtime::Runtime;

use super::drive::{self, Driven, Load};
use super::machine::{Machine, scratch};
use super::probe::{self, Bare};
use super::writes;
use super::{Times, millis, percentiles, rate, times};

/// What to measure.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) dir: PathBuf,
    pub(crate) waiters: Vec<usize>,
    pub(crate) rounds: u32,
    /// How long one measurement of one round runs.
    pub(crate) slice: Duration,
    pub(crate) slice_bytes_max: u64,
    pub(crate) body_bytes: usize,
}

/// What came out.
pub(crate) struct Report {
    machine: Machine,
    rounds: u32,
    slice: Duration,
    body_bytes: usize,
    /// Single records, each with its fdatasync.
    pub(crate) singles: Series,
    pub(crate) rows: Vec<Row>,
}

/// At one number of waiters.
pub(crate) struct Row {
    pub(crate) waiters: usize,
    /// `reserve` and `append`; times are those of acks.
    pub(crate) engine: Series,
    /// The engine's writes, bare; times are those of syncs.
    pub(crate) bare: Series,
    /// The same with lanes above it.
    pub(crate) lanes: Series,
    /// Writes that the engine made for its records.
    pub(crate) writes: u64,
    /// The engine's rate by the bare loop's, round by round.
    ratios: Vec<f64>,
}

/// One kind of measurement over all rounds.
pub(crate) struct Series {
    pub(crate) records: u64,
    pub(crate) took: Duration,
    pub(crate) times: Times,
}

impl Series {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { records: 0, took: Duration::ZERO, times: times()? })
    }

    fn add(&mut self, records: u64, took: Duration, times: &Times) -> anyhow::Result<()> {
        self.records += records;
        self.took += took;
        Ok(self.times.add(times)?)
    }

    fn rate(&self) -> f64 {
        rate(self.records, self.took)
    }
}

impl Row {
    fn new(waiters: usize) -> anyhow::Result<Self> {
        Ok(Self {
            waiters,
            engine: Series::new()?,
            bare: Series::new()?,
            lanes: Series::new()?,
            writes: 0,
            ratios: Vec::new(),
        })
    }
}

/// Measures.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<Report> {
    let scratch = scratch(&options.dir, 2 * options.slice_bytes_max)?;
    let dir = scratch.path();
    let machine = Machine::of(dir)?;
    let mut singles = Series::new()?;
    let mut rows =
        options.waiters.iter().map(|&waiters| Row::new(waiters)).collect::<anyhow::Result<Vec<_>>>()?;
    for _ in 0..options.rounds {
        for row in &mut rows {
            let Bare { syncs, took } = probe::singles(dir, options.body_bytes, options.slice / 2)?;
            singles.add(syncs.len(), took, &syncs)?;
            measure(runtime, dir, options, row)?;
        }
    }
    let Options { rounds, slice, body_bytes, .. } = *options;
    Ok(Report { machine, rounds, slice, body_bytes, singles, rows })
}

/// One round at one number of waiters.
fn measure(runtime: &Runtime, dir: &Path, options: &Options, row: &mut Row) -> anyhow::Result<()> {
    let record_bytes = options.body_bytes as u64 + 128;
    let load = Load {
        waiters: row.waiters,
        body: Bytes::from(vec![b'a'; options.body_bytes]),
        slice: options.slice,
        records_each_max: (options.slice_bytes_max / record_bytes / row.waiters as u64).max(1),
    };
    let log_dir = dir.join("log");
    let settings = config::Log::default();
    let Driven { acks, took } =
        runtime.block_on(with_log(&log_dir, &settings, async |log| drive::appends(log, &load).await))?;
    row.engine.add(acks.len(), took, &acks)?;

    let segments = writes::of_log(&log_dir, settings.segment_bytes)?;
    forget(&log_dir)?;
    let written: u64 = segments.iter().flat_map(|segment| &segment.writes).map(|write| write.records).sum();
    ensure!(written == acks.len(), "{} acks were seen, but the log holds {written} records", acks.len());
    row.writes += segments.iter().map(|segment| segment.writes.len() as u64).sum::<u64>();
    let bare = probe::replay(dir, &segments)?;
    row.bare.add(written, bare.took, &bare.syncs)?;
    if written > 0 {
        row.ratios.push(rate(written, took) / rate(written, bare.took));
    }

    let Driven { acks, took } =
        runtime.block_on(with_log(&log_dir, &settings, async |log| drive::records(log, &load).await))?;
    row.lanes.add(acks.len(), took, &acks)?;
    forget(&log_dir)
}

/// A new log in `dir`, closed behind `work`.
async fn with_log(
    dir: &Path,
    settings: &config::Log,
    work: impl AsyncFnOnce(&Arc<EmbeddedLog>) -> anyhow::Result<Driven>,
) -> anyhow::Result<Driven> {
    let options = embedded::Options::new(dir.to_owned(), settings);
    let (log, _) = EmbeddedLog::open(options, Arc::new(SystemClock))?;
    let driven = work(&log).await;
    log.close().await?;
    driven
}

/// Removes a log, durably, so that the next measurement does not pay for it.
fn forget(dir: &Path) -> anyhow::Result<()> {
    std::fs::remove_dir_all(dir)?;
    if let Some(above) = dir.parent() {
        std::fs::File::open(above)?.sync_all()?;
    }
    Ok(())
}

/// Least, median and most.
fn spread(ratios: &[f64]) -> (f64, f64, f64) {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    (at(0), at(sorted.len() / 2), at(sorted.len().saturating_sub(1)))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, rounds, slice, body_bytes, singles, rows } = self;
        writeln!(f, "{machine}\n")?;
        writeln!(
            f,
            "Bodies of {body_bytes} bytes; {rounds} rounds of {} ms each. Times in ms, p50 / p99 / p99.9.\n",
            slice.as_millis()
        )?;
        writeln!(
            f,
            "One write and one fdatasync for each record, bare: {:.0} records/s, fdatasync {}\n",
            singles.rate(),
            percentiles(&singles.times)
        )?;
        writeln!(
            f,
            "| waiters | records/s | records a sync | ack | same writes bare: records/s | fdatasync | engine / bare, median (least to most) of the rounds | ack p50 / single fdatasync p50 | with lanes: records/s | ack |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|---|")?;
        for row in rows {
            let (least, median, most) = spread(&row.ratios);
            writeln!(
                f,
                "| {} | {:.0} | {:.1} | {} | {:.0} | {} | **{:.2}** ({least:.2} to {most:.2}) | **{:.2}** | {:.0} | {} |",
                row.waiters,
                row.engine.rate(),
                row.engine.records as f64 / row.writes as f64,
                percentiles(&row.engine.times),
                row.bare.rate(),
                percentiles(&row.bare.times),
                median,
                millis(&row.engine.times, 0.5) / millis(&singles.times, 0.5),
                row.lanes.rate(),
                percentiles(&row.lanes.times),
            )?;
        }
        Ok(())
    }
}
