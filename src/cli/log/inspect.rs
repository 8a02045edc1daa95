//! `annals log inspect`: what a log holds, and how it ends.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use uuid::Uuid;

use super::super::print;
use super::{Common, Failure, open, unreadable};
use crate::base::Timestamp;
use crate::event::{Decoded, Facts, Topic, TopicPartition};
use crate::log::embedded::{FORMAT_VERSION, Scanned, ScannedItem, Scanner};
use crate::log::{ReadError, Stored};
use crate::verify::Range;

#[derive(Debug, Args)]
pub(in crate::cli) struct InspectArgs {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Inspection {
    log_id: Uuid,
    format_version: u16,
    /// The first position that is kept; 0 when nothing was dropped.
    start: u64,
    /// Records that were dropped for their age.
    dropped_records: u64,
    /// The durable end that the log's writer published last.
    watermark: u64,
    /// Where the records end: the watermark, or behind it when a power cut kept it back.
    end: u64,
    /// Whether the log was closed there in good order. If not, it is in use, or its owner was killed.
    clean_end: bool,
    range: Range,
    events: u64,
    /// Of all bodies together.
    bytes: u64,
    topics: Vec<OfTopic>,
    segments: Vec<OfSegment>,
    lanes: LaneCounts,
    /// In the order of their first events.
    incarnations: Vec<OfIncarnation>,
    /// The first place where the log is corrupt; what lies behind it is not counted.
    damage: Option<Damage>,
}

#[derive(Debug, Serialize)]
struct OfTopic {
    topic: Topic,
    events: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct OfSegment {
    file: String,
    /// The position of its first byte.
    base: u64,
    /// Up to the end of its records.
    bytes: u64,
    /// Of the file: more, while there is room set aside in it.
    file_bytes: u64,
    /// Events, and notes of the engine that an incarnation ended.
    records: u64,
}

#[derive(Debug, Default, Clone, Copy, Serialize)]
struct LaneCounts {
    open: u64,
    closed: u64,
}

#[derive(Debug, Serialize)]
struct OfIncarnation {
    incarnation: Uuid,
    /// The time of its first event, which is its `system.started` when it wrote one.
    started_at: Timestamp,
    /// The time of its last one.
    last_event_at: Timestamp,
    events: u64,
    lanes: LaneCounts,
    /// Whether each is closed.
    #[serde(skip)]
    closed: BTreeMap<TopicPartition, bool>,
}

#[derive(Debug, Serialize)]
struct Damage {
    file: String,
    offset: u64,
    position: u64,
    cause: String,
}

pub(super) fn run(common: &Common, args: &InspectArgs) -> Result<ExitCode, Failure> {
    let scanner = open(common)?;
    let (inspection, failed) = Inspection::of(scanner).map_err(unreadable)?;
    if args.json {
        print(&format!("{}\n", serde_json::to_string_pretty(&inspection).map_err(Failure::missing)?))?;
    } else {
        print(&inspection.to_string())?;
    }
    failed.map_or(Ok(ExitCode::SUCCESS), |error| Err(unreadable(error)))
}

impl Inspection {
    /// Reads all of it; beside what was found, what kept it from reading on.
    fn of(mut scanner: Scanner) -> Result<(Self, Option<ReadError>), ReadError> {
        let mut found = Self {
            log_id: scanner.log_id().0,
            format_version: FORMAT_VERSION,
            start: scanner.start().first.0,
            dropped_records: TopicPartition::all().map(|target| scanner.dropped_records(target)).sum(),
            watermark: scanner.watermark().0,
            end: scanner.end().0,
            clean_end: scanner.is_clean(),
            range: Range::default(),
            events: 0,
            bytes: 0,
            topics: Topic::ALL.map(|topic| OfTopic { topic, events: 0, bytes: 0 }).into(),
            segments: Vec::new(),
            lanes: LaneCounts::default(),
            incarnations: Vec::new(),
            damage: None,
        };
        for segment in scanner.segments()? {
            found.segments.push(OfSegment {
                bytes: segment.end - segment.base,
                file: segment.file,
                base: segment.base,
                file_bytes: segment.file_bytes,
                records: 0,
            });
        }
        let mut known = HashMap::new();
        let failed = loop {
            match scanner.next() {
                Ok(Some(scanned)) => found.add(scanned, &mut known),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        if let Some(ReadError::Corrupt { file, offset, position, cause }) = &failed {
            let (file, cause) = (file.clone(), cause.clone());
            found.damage = Some(Damage { file, offset: *offset, position: *position, cause });
        }
        for incarnation in &mut found.incarnations {
            for closed in incarnation.closed.values() {
                for counts in [&mut incarnation.lanes, &mut found.lanes] {
                    *(if *closed { &mut counts.closed } else { &mut counts.open }) += 1;
                }
            }
        }
        Ok((found, failed))
    }

    /// `known` has the place of each incarnation in the list.
    fn add(&mut self, scanned: Scanned, known: &mut HashMap<Uuid, usize>) {
        let behind = self.segments.partition_point(|segment| segment.base <= scanned.position.0);
        if let Some(segment) = behind.checked_sub(1).and_then(|index| self.segments.get_mut(index)) {
            segment.records += 1;
        }
        match scanned.item {
            ScannedItem::Event(stored) => self.event(&stored, known),
            ScannedItem::Closed { incarnation, .. } => {
                if let Some(ended) = known.get(&incarnation).and_then(|&at| self.incarnations.get_mut(at)) {
                    ended.closed.values_mut().for_each(|closed| *closed = true);
                }
            }
        }
    }

    fn event(&mut self, stored: &Stored, known: &mut HashMap<Uuid, usize>) {
        let frame = &stored.frame;
        let bytes = frame.body.len() as u64;
        self.events += 1;
        self.bytes += bytes;
        if let Some(topic) = self.topics.get_mut(usize::from(frame.target.topic.code())) {
            topic.events += 1;
            topic.bytes += bytes;
        }
        self.range.first_position.get_or_insert(stored.position.0);
        self.range.first_recorded_at.get_or_insert(frame.recorded_at);
        self.range.last_position = Some(stored.position.0);
        self.range.last_recorded_at = self.range.last_recorded_at.max(Some(frame.recorded_at));
        let at = *known.entry(frame.incarnation).or_insert_with(|| {
            self.incarnations.push(OfIncarnation {
                incarnation: frame.incarnation,
                started_at: frame.recorded_at,
                last_event_at: frame.recorded_at,
                events: 0,
                lanes: LaneCounts::default(),
                closed: BTreeMap::new(),
            });
            self.incarnations.len() - 1
        });
        if let Some(incarnation) = self.incarnations.get_mut(at) {
            incarnation.events += 1;
            incarnation.last_event_at = incarnation.last_event_at.max(frame.recorded_at);
            incarnation.closed.entry(frame.target).or_insert(false);
        }
        if frame.target.topic == Topic::System
            && let Ok(Decoded { facts: Facts::LaneClosed(ended), .. }) =
                Decoded::read(Topic::System, &frame.body)
            && let Some(of) = known.get(&ended.lane_incarnation).and_then(|&at| self.incarnations.get_mut(at))
        {
            let target = TopicPartition { topic: ended.head.topic, partition: ended.head.partition };
            of.closed.entry(target).and_modify(|closed| *closed = true);
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "log        {}, format {}", self.log_id, self.format_version)?;
        if self.start > 0 {
            let (start, records) = (self.start, self.dropped_records);
            writeln!(f, "start      {start}, {records} records before it were dropped for their age")?;
        }
        writeln!(f, "watermark  {}", self.watermark)?;
        let end = if self.clean_end {
            "closed in good order"
        } else {
            "not closed: in use, or its owner was killed"
        };
        writeln!(f, "end        {}, {end}", self.end)?;
        match (self.range.first_position, self.range.last_position) {
            (Some(first), Some(last)) => writeln!(f, "positions  {first} to {last}")?,
            _ => writeln!(f, "positions  none")?,
        }
        if let (Some(first), Some(last)) = (self.range.first_recorded_at, self.range.last_recorded_at) {
            writeln!(f, "recorded   {first} to {last}")?;
        }
        writeln!(f, "lanes      {} open, {} closed", self.lanes.open, self.lanes.closed)?;
        writeln!(f, "events     {} of {} bytes\n", self.events, self.bytes)?;
        writeln!(f, "{:<20}  {:>12}  {:>16}", "TOPIC", "EVENTS", "BYTES")?;
        for OfTopic { topic, events, bytes } in &self.topics {
            writeln!(f, "{:<20}  {events:>12}  {bytes:>16}", topic.name())?;
        }
        writeln!(f, "\n{:<24}  {:>20}  {:>12}  {:>12}", "SEGMENT", "BASE", "BYTES", "RECORDS")?;
        for OfSegment { file, base, bytes, records, .. } in &self.segments {
            writeln!(f, "{file:<24}  {base:>20}  {bytes:>12}  {records:>12}")?;
        }
        writeln!(
            f,
            "\n{:<36}  {:<27}  {:<27}  {:>8}  LANES",
            "PROCESS START", "STARTED", "LAST EVENT", "EVENTS"
        )?;
        for start in &self.incarnations {
            let OfIncarnation { incarnation, started_at, last_event_at, events, lanes, .. } = start;
            let LaneCounts { open, closed } = lanes;
            writeln!(
                f,
                "{incarnation:<36}  {started_at:<27}  {last_event_at:<27}  {events:>8}  {open} open, {closed} closed"
            )?;
        }
        Ok(())
    }
}
