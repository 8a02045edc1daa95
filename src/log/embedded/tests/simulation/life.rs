//! One seeded life of a log: what is done with it, and where it crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Receiver;

use futures::FutureExt;

use super::model::Model;
use crate::log::AppendError;
use crate::log::embedded::allocate::{self, Job};
use crate::log::embedded::frame::EVENT_OVERHEAD_BYTES;
use crate::log::embedded::retention::{carry_out, plan};
use crate::log::embedded::storage::Lock;
use crate::log::embedded::storage::simulated::{Disk, Moment, Random, Stop};
use crate::log::embedded::tests::*;
use crate::log::embedded::tracker::LaneKey;
use crate::log::embedded::writer::{Command, Writer};
use crate::log::embedded::{DropError, OpenError, Parts, Scanned, Shared, WriterEnd, let_go};

const DIR: &str = "/simulated/log";
/// Actions after the last crash.
const LAST_ACTIONS: usize = 12;

/// A log whose threads are played by the caller.
struct Engine {
    log: EmbeddedLog,
    lock: Lock,
    writer: Writer,
    commands: Receiver<Command>,
    helper: Helper,
    end: WriterEnd,
}

/// The thread that allocates, played.
#[derive(Clone)]
struct Helper {
    jobs: Arc<Mutex<Receiver<Job>>>,
    segment_bytes: u64,
    shared: Arc<Shared>,
}

impl Helper {
    /// One job, if there is one.
    fn help(&self) -> bool {
        let job = self.jobs.lock().unwrap().try_recv();
        job.is_ok_and(|job| allocate::perform(&self.shared, self.segment_bytes, job))
    }
}

/// See the module.
pub(super) struct Life {
    disk: Disk,
    random: Random,
    options: Options,
    model: Model,
    runtime: tokio::runtime::Runtime,
    incarnation: Uuid,
    starts: u128,
    acks: Vec<(LaneKey, usize, Ack)>,
    /// What stood in segments that were dropped, or were to be.
    gone: Vec<Scanned>,
    /// Where the log may start.
    starts_at: BTreeSet<u64>,
    tally: Tally,
}

/// What happened, to see that the lives are worth something.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) crashes: u64,
    /// By operation, kind of file and moment.
    pub(super) stops: BTreeMap<(&'static str, &'static str, Moment), u64>,
    pub(super) in_opening: u64,
    /// Openings that errors of the disk ended.
    pub(super) failed_openings: u64,
    pub(super) killed: u64,
    pub(super) torn: u64,
    pub(super) drops: u64,
    /// Records without ack at a crash that were found and that were not.
    pub(super) unanswered_kept: u64,
    pub(super) unanswered_lost: u64,
    /// Times that the disk failed and was healed, and records that were late by that.
    pub(super) healed: u64,
    pub(super) late: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.crashes += other.crashes;
        for (place, count) in &other.stops {
            *self.stops.entry(*place).or_default() += count;
        }
        self.in_opening += other.in_opening;
        self.failed_openings += other.failed_openings;
        self.killed += other.killed;
        self.torn += other.torn;
        self.drops += other.drops;
        self.unanswered_kept += other.unanswered_kept;
        self.unanswered_lost += other.unanswered_lost;
        self.healed += other.healed;
        self.late += other.late;
    }
}

/// What a file is, by its name.
fn kind(file: &str) -> &'static str {
    let kinds = [
        ".seg.tmp",
        ".seg",
        ".idx.tmp",
        ".idx",
        "anchor.json.tmp",
        "watermark.tmp",
        "watermark",
        "log.json.tmp",
        "next.prepared",
    ];
    kinds.into_iter().find(|kind| file.ends_with(kind)).unwrap_or("the directory")
}

/// How a run of the process ended.
enum End {
    Crashed,
    Left,
}

impl Life {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let disk = Disk::new(random.next());
        let options = Options {
            dir: DIR.into(),
            segment_bytes: [2 * 1024, 4 * 1024, 12 * 1024][random.below(3)],
            in_flight_records_max: 12,
            in_flight_bytes_max: 8 * 1024,
            reserve_wait: Duration::from_secs(60),
            append_wait: Duration::from_secs(60),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        Self {
            disk,
            random,
            options,
            model: Model::default(),
            runtime,
            incarnation: Uuid::nil(),
            starts: 0,
            acks: Vec::new(),
            gone: Vec::new(),
            starts_at: BTreeSet::from([0]),
            tally: Tally::default(),
        }
    }

    pub(super) fn trace(&self) {
        self.disk.trace();
    }

    pub(super) fn traced(&self) -> Vec<String> {
        self.disk.traced()
    }

    /// Lives. Gives what happened.
    pub(super) fn run(&mut self) -> Result<Tally, String> {
        let mut killed = false;
        for crash in 0..2 + self.random.below(4) {
            // Often soon after the last one: during recovery, and before anything else was synced.
            let (spans, with_names) = match (crash, killed) {
                (0, _) => ([160, 160, 20, 2], 4),
                (_, false) => ([24, 160, 160, 160], 6),
                // What the killed process did not sync is still to be lost.
                (_, true) => ([10, 20, 20, 160], 2),
            };
            let span = spans[self.random.below(spans.len())];
            let operations = 1 + self.random.below(span) as u64;
            self.disk.stop_after(operations, self.random.below(with_names) == 0);
            while let End::Left = self.start(usize::MAX)? {}
            killed = self.crash();
            self.examine()?;
        }
        while let End::Left = self.start(LAST_ACTIONS)? {
            if self.random.below(2) == 0 {
                break;
            }
        }
        self.examine()?;
        Ok(std::mem::take(&mut self.tally))
    }

    /// After a stop: whether only the process was killed.
    fn crash(&mut self) -> bool {
        self.tally.crashes += 1;
        let Some(Stop { verb, file, moment }) = self.disk.stop() else { return false };
        *self.tally.stops.entry((verb, kind(&file), moment)).or_default() += 1;
        // Names that a killed process did not sync are what the next one may trust too much.
        let killed = self.random.below(if verb.contains("name") { 2 } else { 6 }) == 0;
        if killed {
            self.disk.note(|| "-- the process was killed".into());
            self.disk.restart();
            self.tally.killed += 1;
        } else {
            self.disk.note(|| "-- the power failed".into());
            self.disk.power_cut();
        }
        killed
    }

    fn storage(&self, disk: &Disk) -> Storage {
        Storage::simulated(&self.options.dir, disk.clone())
    }

    /// Opens what a crash left, on a copy, and checks everything; nothing else happens to the log by that.
    fn examine(&mut self) -> Result<(), String> {
        let copy = self.disk.fork();
        let storage = self.storage(&copy);
        let outside = if storage.read("log.json").map_err(|error| error.to_string())?.is_some() {
            self.scan(&storage).map_err(|error| format!("from outside, after a crash: {error}"))?
        } else {
            Vec::new()
        };
        let (engine, recovered) = self.open(&copy).map_err(|error| format!("it does not open: {error}"))?;
        let found = self.scan(&storage).map_err(|error| format!("from outside, after opening: {error}"))?;
        let first = engine.log.shared.start().first();
        let bases = super::super::super::segment::bases(&storage).map_err(|error| error.to_string())?;
        if bases.first() != Some(&first) {
            return Err(format!("it starts at {first}, but has segments at {bases:?}"));
        }
        if found != outside {
            return Err(format!(
                "outside saw {} records before opening, then {}",
                outside.len(),
                found.len()
            ));
        }
        self.model.check(&found, &recovered)?;
        self.tally.torn += u64::from(recovered.torn_bytes > 0);
        let (kept, lost) = self.model.unanswered(&found);
        self.tally.unanswered_kept += kept;
        self.tally.unanswered_lost += lost;
        self.model.look_up(&engine.log.shared, &found, &mut self.random)
    }

    fn open(&self, disk: &Disk) -> Result<(Engine, Recovered), OpenError> {
        let (log, parts, recovered) =
            EmbeddedLog::assemble(&self.options, Arc::new(SystemClock), self.storage(disk))?;
        let Parts { lock, writer, commands, jobs } = parts;
        let end = WriterEnd(log.shared.clone());
        let segment_bytes = self.options.segment_bytes;
        let helper = Helper { jobs: Arc::new(Mutex::new(jobs)), segment_bytes, shared: log.shared.clone() };
        Ok((Engine { log, lock, writer, commands, helper, end }, recovered))
    }

    /// One start of the process, with at most that many actions.
    fn start(&mut self, actions: usize) -> Result<End, String> {
        self.starts += 1;
        self.incarnation = Uuid::from_u128(self.starts);
        self.disk.note(|| format!("-- start {}", self.starts));
        self.disk.heal();
        if self.random.below(8) == 0 {
            // Errors end an opening, or are met later.
            self.disk.fail_after(self.random.below(12) as u64, 1 + self.random.below(2) as u64);
        }
        let (engine, recovered) = match self.open(&self.disk) {
            Ok(opened) => opened,
            Err(_) if self.disk.stopped() => {
                self.tally.in_opening += 1;
                return Ok(End::Crashed);
            }
            Err(_) if self.disk.failed() => {
                self.tally.failed_openings += 1;
                return Ok(End::Left);
            }
            Err(error) => return Err(format!("it does not open: {error}")),
        };
        if self.disk.stopped() {
            // Only the preparation of the next segment may fail without failing the opening.
            return Ok(End::Crashed);
        }
        let found = self.scan(&self.storage(&self.disk)).map_err(|error| format!("from outside: {error}"))?;
        self.model.check(&found, &recovered)?;
        self.model.settle(&found);
        let mut unclosed: Vec<Uuid> = recovered.unclosed.iter().map(|lane| lane.incarnation).collect();
        unclosed.dedup();
        let (helper, mut random) = (engine.helper.clone(), Random::new(self.random.next()));
        self.disk.interrupted_by(Some(Box::new(move || {
            if random.below(8) == 0 {
                helper.help();
            }
        })));
        let result = self.act_and_leave(engine, &mut unclosed, actions);
        self.disk.interrupted_by(None);
        result
    }

    fn act_and_leave(
        &mut self,
        mut engine: Engine,
        unclosed: &mut Vec<Uuid>,
        actions: usize,
    ) -> Result<End, String> {
        for _ in 0..actions {
            let leaving = self.act(&mut engine, unclosed)?;
            if self.disk.stopped() {
                self.answers()?;
                return Ok(End::Crashed);
            }
            if leaving {
                break;
            }
        }
        self.leave(engine)
    }

    /// Does something. `true` to leave.
    fn act(&mut self, engine: &mut Engine, unclosed: &mut Vec<Uuid>) -> Result<bool, String> {
        match self.random.below(100) {
            0..=5 => return Ok(true),
            6..=14 => {
                if let Some(incarnation) = unclosed.pop() {
                    self.mark_closed(engine, incarnation)?;
                }
            }
            15..=19 => self.drop_some(engine)?,
            20..=39 => {
                engine.helper.help();
            }
            40..=43 => {
                let count = [1, 1, 2, 12][self.random.below(4)];
                self.disk.fail_after(self.random.below(8) as u64, count);
            }
            44..=51 => self.heal(engine)?,
            _ => {
                let records = 1 + self.random.below(6);
                for _ in 0..records {
                    if !self.append(engine)? {
                        break;
                    }
                }
                engine.write();
                self.answers()?;
            }
        }
        Ok(false)
    }

    /// Drops the oldest segments.
    fn drop_some(&mut self, engine: &Engine) -> Result<(), String> {
        let failed = |what: &str, error: DropError| format!("nothing failed, but {what}: {error}");
        if engine.writer.in_trouble() {
            return Ok(());
        }
        let found = self.scan(&self.storage(&self.disk))?;
        let oldest = Timestamp::from_micros(i64::MAX);
        let cut = match plan(&engine.log.shared, oldest, 1 + self.random.below(3)) {
            Ok(Some(cut)) => cut,
            Ok(None) => return Ok(()),
            Err(_) if self.disk.stopped() || self.disk.failed() => return Ok(()),
            Err(error) => return Err(failed("a drop cannot be planned", error)),
        };
        let gone: Vec<Scanned> = found.into_iter().filter(|scanned| scanned.position.0 < cut.first).collect();
        // A larger cut whose anchor failed may hold all the same.
        if gone.len() > self.gone.len() {
            self.gone = gone;
        }
        self.starts_at.insert(cut.first);
        self.tally.drops += 1;
        match carry_out(&engine.log.shared, cut) {
            Err(error) if !self.disk.stopped() && !self.disk.failed() => {
                Err(failed("segments are not dropped", error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Everything that the scanner sees, behind what was dropped before the log's start.
    fn scan(&self, storage: &Storage) -> Result<Vec<Scanned>, String> {
        let mut scanner = Scanner::open_in(storage.clone()).map_err(|error| error.to_string())?;
        let first = scanner.start().first;
        if !self.starts_at.contains(&first.0) {
            return Err(format!("it starts at {first}, where it was never cut"));
        }
        let mut found: Vec<Scanned> =
            self.gone.iter().filter(|scanned| scanned.position < first).cloned().collect();
        while let Some(scanned) = scanner.next().map_err(|error| error.to_string())? {
            found.push(scanned);
        }
        Ok(found)
    }

    /// The disk works again. Everything that was sent is there then, in its order.
    fn heal(&mut self, engine: &mut Engine) -> Result<(), String> {
        let failed = self.disk.failed();
        self.disk.heal();
        if !failed {
            return Ok(());
        }
        self.disk.note(|| "-- the disk works again".into());
        engine.write();
        engine.writer.try_rescue();
        self.answers()?;
        if self.disk.stopped() {
            return Ok(());
        }
        if engine.writer.in_trouble() {
            return Err("the disk works again, but the log does not".into());
        }
        let found =
            self.scan(&self.storage(&self.disk)).map_err(|error| format!("after healing: {error}"))?;
        self.model.all_there(self.incarnation, &found)?;
        self.tally.healed += 1;
        Ok(())
    }

    /// Ends the run: closed, or without that.
    fn leave(&mut self, mut engine: Engine) -> Result<End, String> {
        let closes = self.random.below(4) > 0;
        if closes {
            if self.random.below(4) > 0 {
                self.mark_closed(&mut engine, self.incarnation)?;
            }
            let mut closing = engine.log.close();
            let mut closed = (&mut closing).now_or_never();
            if closed.is_none()
                && let Ok(command) = engine.commands.try_recv()
            {
                engine.writer.turn(command, &engine.commands);
                closed = (&mut closing).now_or_never();
            }
            drop(closing);
            if !self.disk.stopped() && !self.disk.failed() && !matches!(closed, Some(Ok(()))) {
                return Err(format!("it was not closed: {closed:?}"));
            }
        }
        // A thread that is told to stop does what was asked for before; a killed process does not.
        if closes || self.random.below(2) == 0 {
            while engine.helper.help() {}
            let Engine { log, lock, end, .. } = engine;
            drop(end);
            let_go(&log.shared, lock);
        }
        self.answers()?;
        Ok(if self.disk.stopped() { End::Crashed } else { End::Left })
    }

    /// Hands one record over. `false` when there is no room before the next write.
    fn append(&mut self, engine: &mut Engine) -> Result<bool, String> {
        let largest = usize::try_from(self.options.segment_bytes).unwrap() / 2 - EVENT_OVERHEAD_BYTES;
        let limit = [60, 60, 200, 200, 700, largest][self.random.below(6)];
        let bytes = self.random.below(limit);
        let body: Vec<u8> =
            (0..=bytes / 8).flat_map(|_| self.random.next().to_be_bytes()).take(bytes).collect();
        let topic = [Topic::ToolCalls, Topic::System][self.random.below(2)];
        let target = TopicPartition { topic, partition: u32::try_from(self.random.below(3)).unwrap() };
        let _runtime = self.runtime.enter();
        let mut reserved = engine.log.reserve(1, body.len() as u64).now_or_never();
        if reserved.is_none() && engine.helper.help() {
            reserved = engine.log.reserve(1, body.len() as u64).now_or_never();
        }
        let reservation = match reserved {
            Some(Ok(reservation)) => reservation,
            None => return Ok(false),
            Some(Err(_)) if self.disk.stopped() || self.disk.failed() => return Ok(false),
            Some(Err(error)) => return Err(format!("nothing failed, but the log refuses: {error}")),
        };
        let (lane, index, frame) = self.model.send(self.incarnation, target, body);
        self.acks.push((lane, index, engine.log.append(reservation, frame)));
        Ok(true)
    }

    fn mark_closed(&mut self, engine: &mut Engine, incarnation: Uuid) -> Result<(), String> {
        let result = {
            let _runtime = self.runtime.enter();
            let Engine { log, writer, commands, helper, .. } = engine;
            let mut marking = Box::pin(log.mark_closed(incarnation));
            let mut result = marking.as_mut().now_or_never();
            while result.is_none() {
                if let Ok(command) = commands.try_recv() {
                    self.model.closing(incarnation);
                    writer.turn(command, commands);
                } else if !helper.help() {
                    break;
                }
                result = marking.as_mut().now_or_never();
            }
            result
        };
        match result {
            Some(Ok(())) => self.model.closed(incarnation),
            _ if self.disk.stopped() || self.disk.failed() => {}
            other => {
                return Err(format!("nothing failed, but an incarnation is not marked closed: {other:?}"));
            }
        }
        Ok(())
    }

    /// Takes the answers to all that was sent.
    fn answers(&mut self) -> Result<(), String> {
        let _runtime = self.runtime.enter();
        for (lane, index, ack) in self.acks.drain(..) {
            match ack.now_or_never() {
                Some(Ok(position)) => self.model.acknowledged(lane, index, position),
                None | Some(Err(AppendError::Uncertain(_) | AppendError::Refused(_)))
                    if self.disk.stopped() => {}
                // What the disk failed is kept in memory and written later.
                Some(Err(AppendError::Uncertain(_))) if self.disk.failed() => self.tally.late += 1,
                other => return Err(format!("nothing failed, but an append ended with {other:?}")),
            }
        }
        Ok(())
    }
}

impl Engine {
    /// One turn of the writer, if anything waits.
    fn write(&mut self) {
        if let Ok(command) = self.commands.try_recv() {
            self.writer.turn(command, &self.commands);
        }
    }
}
