//! Verification: does the log hold together, and do the rows in Postgres follow from it, both ways?
//!
//! It reads only. It owns neither the log nor the database, and runs beside a server or without one.

mod calls;
mod keys;
mod lanes;
mod report;
mod retention;
mod rows;
mod state;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::base::planted;
use crate::db::{Postgres, Role};
use crate::event::{DecodeError, Decoded, Facts, Retention};
use crate::log::embedded::{Scanned, ScannedItem, Scanner};
use crate::log::{LogId, ReadError, Stored};

use calls::CallBook;
use keys::KeyBook;
use lanes::{LaneBook, Stated};
use report::Findings;
use retention::StartCheck;
use rows::{Judged, RowCheck};

pub use report::{Finding, FindingKind, Range, Report, Rows};

/// Events in one comparison at most.
const BATCH_EVENTS_MAX: usize = 1_000;

/// Body bytes in one comparison at most, but for the last event's.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What follows from damage in a segment.
const UNREAD: &str = "what lies behind cannot be checked";

/// Times that it begins anew when the log's start moves on while it reads.
const TRIES: usize = 3;

/// Told the bytes read and the bytes there are.
pub type Progress = Box<dyn Fn(u64, u64) + Send + Sync>;

/// What to verify.
pub struct Options<'a> {
    /// The directory of the log.
    pub log_dir: PathBuf,
    /// Leave Postgres alone.
    pub log_only: bool,
    /// Where the rows are; without it only the log is checked.
    pub postgres: Option<&'a Postgres>,
    /// Called now and then.
    pub progress: Progress,
}

/// The verification could not be done. What it finds wrong is no error: see [`Report`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log cannot be read.
    #[error("the log cannot be read: {0}")]
    Log(ReadError),
    /// Postgres cannot be read.
    #[error("the rows cannot be read: {0}")]
    Database(#[from] sqlx::Error),
    /// The reading thread ended by a fault of ours.
    #[error("the verification itself failed: {0}")]
    Internal(String),
}

/// Checks the log, and the rows against it.
///
/// # Errors
/// [`Error`] when there is no log, or Postgres fails.
pub async fn run(options: Options<'_>) -> Result<Report, Error> {
    let pool = options.postgres.filter(|_| !options.log_only).map(|postgres| postgres.pool(Role::Reader));
    let mut tries = 1;
    let report = loop {
        let mut verifier = Verifier { log_dir: options.log_dir.clone(), ..Verifier::default() };
        if let Some(pool) = &pool {
            verifier.rows = Some(RowCheck::begin(pool).await?);
        }
        match verifier.run(&options.progress).await {
            Err(Error::Log(ReadError::Dropped { .. })) if tries < TRIES => tries += 1,
            report => break report,
        }
    };
    if let Some(pool) = pool {
        pool.close().await;
    }
    report
}

#[derive(Default)]
struct Verifier {
    log_dir: PathBuf,
    log_id: Option<LogId>,
    range: Range,
    events: u64,
    unreadable: u64,
    lanes: LaneBook,
    calls: CallBook,
    keys: KeyBook,
    /// Logs that an event on this one says to be followed no more.
    adopted: BTreeSet<Uuid>,
    start: StartCheck,
    rows: Option<RowCheck>,
    found: Vec<Finding>,
    findings: Findings,
    notes: Vec<String>,
}

/// What one reading step gave.
struct Step {
    scanner: Scanner,
    items: Vec<Scanned>,
    end: Option<Result<(), ReadError>>,
}

impl Verifier {
    async fn run(mut self, progress: &Progress) -> Result<Report, Error> {
        let Some(mut scanner) = self.open().await? else {
            return self.finish(false).await;
        };
        let total = scanner.bytes_total();
        self.log_id = Some(scanner.log_id());
        self.start = StartCheck::of(&scanner);
        let start = scanner.start();
        self.lanes.begin(start);
        self.calls.begin(start);
        if let Some(rows) = &mut self.rows {
            rows.begin_at(&scanner);
            rows.load(scanner.log_id(), &mut self.found).await?;
            rows.count_older(&mut self.found).await?;
        }
        let first = start.first.0;
        loop {
            let step = blocking(move || read(scanner)).await?;
            scanner = step.scanner;
            if let Some(last) = step.items.last() {
                progress(last.position.0 - first, total);
            }
            self.take(step.items).await?;
            for error in scanner.take_wrong_indexes() {
                self.corrupt(error, "the index or the segment was changed")?;
            }
            match step.end {
                None => {}
                Some(Ok(())) => break,
                Some(Err(error)) => {
                    self.corrupt(error, UNREAD)?;
                    return self.finish(false).await;
                }
            }
        }
        progress(total, total);
        self.finish(true).await
    }

    async fn open(&mut self) -> Result<Option<Scanner>, Error> {
        let dir = self.log_dir.clone();
        match blocking(move || Scanner::open(&dir)).await? {
            Ok(scanner) => Ok(Some(scanner)),
            Err(error) => self.corrupt(error, UNREAD).map(|()| None),
        }
    }

    /// Damage is a finding, which tells what follows from it; a log that is not there is an error.
    fn corrupt(&mut self, error: ReadError, consequence: &str) -> Result<(), Error> {
        let ReadError::Corrupt { file, offset, position, cause } = error else {
            return Err(Error::Log(error));
        };
        self.found.push(Finding {
            kind: FindingKind::LogCorrupt,
            topic: None,
            partition: None,
            position,
            file: Some(file),
            offset: Some(offset),
            detail: format!("{cause}; {consequence}"),
        });
        Ok(())
    }

    async fn take(&mut self, items: Vec<Scanned>) -> Result<(), Error> {
        let mut judged = Vec::new();
        for Scanned { file, offset, position, item } in items {
            let before = self.found.len();
            match item {
                ScannedItem::Closed { incarnation, .. } => {
                    self.lanes.mark_closed(incarnation, position, &mut self.found);
                }
                ScannedItem::Event(stored) => judged.push(self.event(stored)),
            }
            for finding in self.found.iter_mut().skip(before) {
                finding.file = Some(self.log_dir.join(&file).display().to_string());
                finding.offset = Some(offset);
            }
        }
        if let Some(rows) = &mut self.rows {
            rows.add(judged, &mut self.found).await?;
        }
        self.drain();
        Ok(())
    }

    fn drain(&mut self) {
        // Within a batch the log side and the row side come one after the other.
        self.found.sort_by_key(|finding| finding.position);
        for finding in self.found.drain(..) {
            self.findings.add(finding);
        }
    }

    fn event(&mut self, stored: Stored) -> Judged {
        let frame = &stored.frame;
        self.events += 1;
        self.range.first_position.get_or_insert(stored.position.0);
        self.range.first_recorded_at.get_or_insert(frame.recorded_at);
        self.range.last_position = Some(stored.position.0);
        self.range.last_recorded_at = self.range.last_recorded_at.max(Some(frame.recorded_at));
        let verdict = self.lanes.add(&stored, &mut self.found);
        let decoded = match Decoded::read(frame.target.topic, &frame.body) {
            Ok(decoded) => {
                self.lanes.add_facts(&stored, &decoded.facts, &mut self.found);
                self.calls.add(&stored, &decoded, &mut self.found);
                self.keys.add(&stored, &decoded);
                self.check_started(&stored, &decoded.facts);
                self.check_origin(&stored, &decoded);
                if let Facts::LogAdopted(adopted) = &decoded.facts
                    && self.log_id.is_some_and(|log| log.0 == adopted.new_log_id)
                {
                    self.adopted.extend(adopted.old_log_ids.iter().filter(|log| **log != adopted.new_log_id));
                }
                self.retention(&stored, &decoded.facts);
                Some(decoded)
            }
            Err(error) => {
                self.unreadable += 1;
                if matches!(error, DecodeError::Personal) {
                    let kind = FindingKind::Personal;
                    self.found.push(Finding::at(kind, frame.target, stored.position.0, error.to_string()));
                }
                None
            }
        };
        Judged { stored, verdict, decoded }
    }

    fn check_started(&mut self, stored: &Stored, facts: &Facts) {
        if let Facts::Started(started) = facts
            && self.log_id.is_some_and(|log| log.0 != started.log_id)
        {
            let detail = format!("it was written for log {}", started.log_id);
            let finding = Finding::at(FindingKind::LogId, stored.frame.target, stored.position.0, detail);
            self.found.push(finding);
        }
    }

    /// Only what may land twice is ever recorded by another process start than the one that it names: a closure of a call,
    /// and an event of the outbox.
    fn check_origin(&mut self, stored: &Stored, decoded: &Decoded) {
        let frame = &stored.frame;
        if decoded.common.incarnation != frame.incarnation && !decoded.common.once {
            let detail = format!("it names process start {}, not its lane's", decoded.common.incarnation);
            let finding = Finding::at(FindingKind::Origin, frame.target, stored.position.0, detail);
            self.found.push(finding);
        }
    }

    fn retention(&mut self, stored: &Stored, facts: &Facts) {
        match facts {
            Facts::Retention(Retention::Log(cut)) => self.start.add(stored, cut),
            Facts::Retention(Retention::Rows(cut)) => {
                if let Some(rows) = &mut self.rows {
                    rows.vouch(cut);
                }
            }
            _ => {}
        }
    }

    /// `whole` when the log could be read to its end.
    async fn finish(mut self, whole: bool) -> Result<Report, Error> {
        if whole {
            self.lanes.finish(&mut self.found, &mut self.notes);
            self.start.finish(&mut self.found, &mut self.notes);
            self.calls.note(&mut self.notes);
            let late = self.lanes.take_late();
            if !late.is_empty() {
                let dir = self.log_dir.clone();
                let found = blocking(move || compare_late(&dir, late)).await?.map_err(Error::Log)?;
                self.found.extend(found);
            }
        }
        if self.unreadable > 0 {
            self.notes.push(format!("{} events cannot be read by this version", self.unreadable));
        }
        let mut counts = None;
        if let Some(mut rows) = self.rows.take() {
            if !planted::armed("adopted_log_unvouched") {
                rows.history = std::mem::take(&mut self.adopted);
            }
            if self.log_id.is_some() {
                rows.finish(whole, &mut self.found).await?;
            }
            if whole {
                state::compare(&mut rows, &mut self.found).await?;
                self.keys.compare(&mut rows, &mut self.found).await?;
            }
            for (log, count) in rows.count_history().await? {
                self.notes.push(format!("{count} rows of log {log}, which is not here: not compared"));
            }
            self.findings.count(rows.unlisted);
            rows.note(&mut self.notes);
            counts = Some(rows.counts);
            rows.tx.rollback().await?;
        }
        self.drain();
        let (findings, findings_total) = self.findings.finish();
        Ok(Report {
            clean: findings_total == 0,
            log_id: self.log_id.map(|log| log.0),
            range: self.range,
            events: self.events,
            lanes: self.lanes.lanes(),
            incarnations: self.lanes.incarnations(),
            open: self.calls.open(),
            unreadable: self.unreadable,
            rows: counts,
            findings,
            findings_total,
            notes: self.notes,
        })
    }
}

/// Reads the next batch.
fn read(mut scanner: Scanner) -> Step {
    let mut items = Vec::new();
    let mut bytes = 0;
    while items.len() < BATCH_EVENTS_MAX && bytes < BATCH_BYTES_MAX {
        match scanner.next() {
            Ok(Some(scanned)) => {
                if let ScannedItem::Event(stored) = &scanned.item {
                    bytes += stored.frame.body.len();
                }
                items.push(scanned);
            }
            Ok(None) => return Step { scanner, items, end: Some(Ok(())) },
            Err(error) => return Step { scanner, items, end: Some(Err(error)) },
        }
    }
    Step { scanner, items, end: None }
}

/// Reads the log again for stated heads that lay too far back.
fn compare_late(log_dir: &Path, late: Vec<Stated>) -> Result<Vec<Finding>, ReadError> {
    let mut wanted: HashMap<_, Vec<Stated>> = HashMap::new();
    for stated in late {
        wanted.entry((stated.lane, stated.seq)).or_default().push(stated);
    }
    let mut found = Vec::new();
    let mut scanner = Scanner::open(log_dir)?;
    while let Some(scanned) = scanner.next()? {
        let ScannedItem::Event(stored) = scanned.item else { continue };
        let frame = &stored.frame;
        for stated in wanted.remove(&((frame.incarnation, frame.target), frame.seq)).unwrap_or_default() {
            if stated.link != frame.link {
                let detail = format!("it states another link for event {} of {}", frame.seq, frame.target);
                found.push(Finding::at(FindingKind::Heads, stated.by, stated.position, detail));
            }
        }
    }
    Ok(found)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::Internal(error.to_string()))
}
