//! Opening: after a kill, which reads the newest segment, and after a clean end, which reads none. Then a scan of
//! everything, as `annals verify` begins with. Before each, the files' pages are dropped from the cache.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use annals::base::{Clock, SystemClock, Timestamp, sha256};
use annals::config;
use annals::event::{PARTITIONS, Topic, TopicPartition};
use annals::log::embedded::{EmbeddedLog, Options as LogOptions, ScannedItem, Scanner};
use annals::log::{Ack, Frame, Log};
use anyhow::{Context, ensure};
use bytes::Bytes;
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::machine::{Machine, scratch};
use super::rate;

/// Frame and body of a record, and its share of the segment's header.
const RECORD_OVERHEAD_BYTES: u64 = 128;
/// Records in one reservation while a log is filled.
const CHUNK_RECORDS: u32 = 512;

/// What to measure.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) dir: PathBuf,
    pub(crate) records: Vec<u64>,
    pub(crate) body_bytes: usize,
    /// Also a log of the largest size in one segment.
    pub(crate) one_segment: bool,
    /// This program, to run `fill` as a process that is killed. Without it the log is left open and dropped.
    pub(crate) program: Option<PathBuf>,
}

/// A log to be made.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) dir: PathBuf,
    pub(crate) records: u64,
    pub(crate) body_bytes: usize,
    pub(crate) segment_bytes: u64,
}

/// What came out.
pub(crate) struct Report {
    machine: Machine,
    body_bytes: usize,
    pub(crate) rows: Vec<Row>,
}

/// One log.
pub(crate) struct Row {
    pub(crate) records: u64,
    pub(crate) segments: usize,
    bytes: u64,
    /// From the call of `open` to room for a first record.
    pub(crate) after_kill: Duration,
    pub(crate) after_close: Duration,
    pub(crate) scan: Duration,
}

/// Measures.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<Report> {
    let largest = options.records.iter().copied().max().unwrap_or(0);
    let bytes = largest.saturating_mul(options.body_bytes as u64 + RECORD_OVERHEAD_BYTES);
    let scratch = scratch(&options.dir, bytes)?;
    let machine = Machine::of(scratch.path())?;
    let segment_bytes = config::Log::default().segment_bytes;
    let one_segment = options.one_segment.then_some((largest, bytes));
    let sizes = options.records.iter().map(|&records| (records, segment_bytes)).chain(one_segment);
    let mut rows = Vec::new();
    for (records, segment_bytes) in sizes {
        let dir = scratch.path().join("log");
        let log = Filled { dir: dir.clone(), records, body_bytes: options.body_bytes, segment_bytes };
        match &options.program {
            Some(program) => fill_and_kill(program, &log)?,
            None => drop(fill(runtime, &log)?),
        }
        rows.push(measure(runtime, &log)?);
        fs::remove_dir_all(&dir)?;
    }
    Ok(Report { machine, body_bytes: options.body_bytes, rows })
}

fn measure(runtime: &Runtime, log: &Filled) -> anyhow::Result<Row> {
    let after_kill = open_and_close(runtime, log)?;
    let after_close = open_and_close(runtime, log)?;
    forget_pages(&log.dir)?;
    let started = SystemClock.monotonic();
    let mut scanner = Scanner::open(&log.dir)?;
    let segments = scanner.segments()?;
    let mut found = 0;
    while let Some(scanned) = scanner.next()? {
        found += u64::from(matches!(scanned.item, ScannedItem::Event(_)));
    }
    let scan = SystemClock.monotonic().saturating_duration_since(started);
    ensure!(found == log.records, "{} records were acknowledged, but {found} are there", log.records);
    let bytes = scanner.bytes_total();
    Ok(Row { records: found, segments: segments.len(), bytes, after_kill, after_close, scan })
}

/// Opens the log until it gives room, then closes it. Gives what the opening took.
fn open_and_close(runtime: &Runtime, log: &Filled) -> anyhow::Result<Duration> {
    forget_pages(&log.dir)?;
    let options = log.options();
    let started = SystemClock.monotonic();
    let (opened, _) = EmbeddedLog::open(options, Arc::new(SystemClock))?;
    let room = runtime.block_on(opened.reserve(1, 64))?;
    let took = SystemClock.monotonic().saturating_duration_since(started);
    drop(room);
    runtime.block_on(opened.close())?;
    Ok(took)
}

/// Drops what is cached of the files, as after a restart of the machine.
fn forget_pages(dir: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir)? {
        let file = File::open(entry?.path())?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

impl Filled {
    fn options(&self) -> LogOptions {
        LogOptions {
            segment_bytes: self.segment_bytes,
            ..LogOptions::new(self.dir.clone(), &config::Log::default())
        }
    }
}

/// Makes the log in a process of its own, and kills that.
fn fill_and_kill(program: &Path, log: &Filled) -> anyhow::Result<()> {
    let mut child = Command::new(program)
        .args(["fill", "--dir"])
        .arg(&log.dir)
        .args(["--records", &log.records.to_string(), "--body-bytes", &log.body_bytes.to_string()])
        .args(["--segment-bytes", &log.segment_bytes.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    let read = child.stdout.take().map(|output| BufReader::new(output).read_line(&mut said));
    child.kill()?;
    child.wait()?;
    read.transpose()?;
    ensure!(said == "filled\n", "the process that fills the log ended before it was done");
    Ok(())
}

/// Makes the log; all its records are acknowledged. It is left open.
pub(crate) fn fill(runtime: &Runtime, log: &Filled) -> anyhow::Result<Arc<EmbeddedLog>> {
    let (opened, _) = EmbeddedLog::open(log.options(), Arc::new(SystemClock))?;
    runtime.block_on(async {
        let mut left = log.records;
        let mut waiting: Vec<Ack> = Vec::new();
        let incarnation = Uuid::new_v4();
        while left > 0 {
            let records = u32::try_from(left).unwrap_or(u32::MAX).min(CHUNK_RECORDS);
            let bytes = log.body_bytes as u64;
            let mut room = opened.reserve(records, u64::from(records) * bytes).await?;
            let earlier = std::mem::take(&mut waiting);
            for _ in 0..records {
                let room = room.take(bytes).context("the reservation is too small")?;
                waiting.push(opened.append(room, frame(incarnation, log.records - left, log.body_bytes)));
                left -= 1;
            }
            for ack in earlier {
                ack.await?;
            }
        }
        for ack in waiting {
            ack.await?;
        }
        anyhow::Ok(())
    })?;
    Ok(opened)
}

fn frame(incarnation: Uuid, number: u64, bytes: usize) -> Frame {
    let body: Vec<u8> = number.to_be_bytes().into_iter().cycle().take(bytes).collect();
    let partition = u32::try_from(number % u64::from(PARTITIONS)).unwrap_or(0);
    Frame {
        target: TopicPartition { topic: Topic::ToolCalls, partition },
        incarnation,
        seq: number / u64::from(PARTITIONS),
        recorded_at: Timestamp::from_micros(1),
        content: sha256(&body),
        link: [0; 32],
        body: Bytes::from(body),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, body_bytes, rows } = self;
        writeln!(
            f,
            "{machine}\n\nBodies of {body_bytes} bytes; no page of the log is cached before each measurement.\n"
        )?;
        writeln!(
            f,
            "| records | bytes | segments | open after a kill, ms | open after a clean end, ms | scan, s | scan, records/s |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        for Row { records, segments, bytes, after_kill, after_close, scan } in rows {
            let millis = |time: &Duration| time.as_secs_f64() * 1e3;
            writeln!(
                f,
                "| {records} | {bytes} | {segments} | {:.1} | {:.1} | {:.2} | {:.0} |",
                millis(after_kill),
                millis(after_close),
                scan.as_secs_f64(),
                rate(*records, *scan)
            )?;
        }
        Ok(())
    }
}
