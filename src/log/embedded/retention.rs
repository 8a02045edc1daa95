//! The start of a log whose oldest segments were dropped for their age: the anchor that names it, and the drop itself.
//!
//! It decides what is old enough and removes nothing that an anchor does not name. Whether projections are past it, and
//! the event that says so on the log, is the caller's part, before the drop.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError};

use super::frame::{Codec, Item};
use super::segment::{self, Step, Walker, index_name, io_error};
use super::small::{ANCHOR, SegmentIndex, decode_anchor, encode_anchor};
use super::storage::Storage;
use super::{EmbeddedLog, Shared, recovery};
use crate::base::{Timestamp, planted, sha256_hex};
use crate::event::{DroppedSegment, Link, LogCut, PartitionTail, TopicPartition};
use crate::log::{LogId, LogStart, Position, ReadError, StartHead};

/// Bytes of a segment that are read at once for its digest.
const CHUNK_BYTES: usize = 1 << 20;

/// A cut is not made larger beyond this, so that looking at it takes a moment only.
const CUT_BYTES: u64 = 256 << 20;

/// Segments were not dropped. Nothing that the log still names is gone.
#[derive(Debug, thiserror::Error)]
pub enum DropError {
    /// A segment cannot be read, so it is not dropped.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file system failed. What the anchor names already is removed later.
    #[error("cannot drop segments at {file}: {cause}")]
    Io {
        /// The file.
        file: String,
        /// What the system said.
        cause: String,
    },
    /// The log's start is not the one that the cut was planned for.
    #[error("the cut at position {first} does not follow the log's start at {start}: plan it again")]
    Stale {
        /// Where the cut would let the log start.
        first: u64,
        /// Where it starts.
        start: u64,
    },
}

/// Where a log starts.
#[derive(Debug, Clone, Default)]
pub(super) struct Start {
    /// What the anchor says; `None` when nothing was dropped.
    pub(super) cut: Option<LogCut>,
    /// SHA-256 of the anchor file, hexadecimal.
    anchor_sha256: Option<String>,
    /// Records before the start, by [`TopicPartition::index`]; empty when nothing was dropped.
    pub(super) counts: Vec<u64>,
    /// The same for readers.
    pub(super) known: LogStart,
}

/// What a drop remembers between its tries.
#[derive(Debug, Default)]
pub(super) struct Dropping {
    /// What was found in segments that were looked at, by their bases.
    surveys: BTreeMap<u64, Survey>,
    /// Bases of files that the anchor names and that are still to be removed.
    leftovers: Vec<u64>,
}

/// What one segment holds.
#[derive(Debug, Clone)]
struct Survey {
    segment: DroppedSegment,
    tails: BTreeMap<TopicPartition, (Position, Link)>,
}

impl Start {
    pub(super) const fn first(&self) -> u64 {
        self.known.first.0
    }

    /// Records of `target` before the start.
    pub(super) fn count(&self, target: TopicPartition) -> u64 {
        self.counts.get(target.index()).copied().unwrap_or(0)
    }

    /// Whether nothing of `target` stands between `position`, which lies before the start, and the start.
    pub(super) fn takes(&self, target: TopicPartition, position: Position) -> bool {
        self.known.tails.get(&target).is_none_or(|(tail, _)| *tail <= position)
    }

    /// The error for a position before the start.
    pub(super) const fn dropped(&self, position: u64) -> ReadError {
        ReadError::Dropped { position: Position(position), first: self.known.first }
    }

    /// Of the log whose anchor is `anchor`, checked against the segments at `bases`, the ones that the anchor dropped
    /// among them.
    pub(super) fn read(
        storage: &Storage,
        log: LogId,
        bases: &[u64],
        anchor: Option<&[u8]>,
    ) -> Result<Self, ReadError> {
        let Some(bytes) = anchor else {
            return match bases.first() {
                Some(&first) if first != 0 => Err(corrupt(storage, 0, "the first segment is missing")),
                _ => Ok(Self::default()),
            };
        };
        let cut = decode_anchor(log, bytes).map_err(|cause| ReadError::Corrupt {
            file: storage.display(ANCHOR),
            offset: 0,
            position: 0,
            cause: cause.to_owned(),
        })?;
        let is_named = |base| cut.segments.iter().any(|segment| segment.base == base);
        if let Some(&base) = bases.iter().find(|&&base| base < cut.first && !is_named(base)) {
            let cause = "it stands before the log's start, and the anchor does not name it";
            return Err(corrupt(storage, base, cause));
        }
        if !bases.contains(&cut.first) {
            return Err(corrupt(storage, cut.first, "the first segment is missing"));
        }
        let header = FirstHeader::read(storage, log, cut.first)?;
        if header.sha256 != cut.header_sha256 {
            let cause = "its header is not the one that the anchor names";
            return Err(corrupt(storage, cut.first, cause));
        }
        Self::new(header, cut, sha256_hex(bytes)).ok_or_else(|| ReadError::Corrupt {
            file: storage.display(ANCHOR),
            offset: 0,
            position: 0,
            cause: "it names a link that is none".into(),
        })
    }

    /// `None` when `cut` names a link that is none.
    fn new(header: FirstHeader, cut: LogCut, anchor_sha256: String) -> Option<Self> {
        let mut tails = BTreeMap::new();
        for tail in &cut.tails {
            let mut link = [0; 32];
            hex::decode_to_slice(&tail.link, &mut link).ok()?;
            let target = TopicPartition { topic: tail.topic, partition: tail.partition };
            tails.insert(target, (Position(tail.position), link));
        }
        let known = LogStart {
            first: Position(cut.first),
            recorded_through: Some(cut.recorded_through),
            tails,
            heads: header.heads,
        };
        Some(Self { cut: Some(cut), anchor_sha256: Some(anchor_sha256), counts: header.counts, known })
    }

    /// Removes what a drop that was interrupted left behind, and takes it out of `bases`.
    pub(super) fn settle(&self, storage: &Storage, bases: &mut Vec<u64>) -> io::Result<()> {
        if self.cut.is_none() {
            return Ok(());
        }
        let first = self.first();
        let mut old: Vec<String> =
            bases.iter().filter(|&&base| base < first).map(|&base| segment::name(base)).collect();
        // An index may be written while its segment is dropped.
        let is_old = |name: &String| name.ends_with(".idx") && *name < index_name(first);
        old.extend(storage.list()?.into_iter().filter(is_old));
        bases.retain(|&base| base >= first);
        for name in &old {
            storage.remove(name)?;
        }
        if old.is_empty() { Ok(()) } else { storage.sync_dir() }
    }
}

/// The header of the first segment that is kept.
struct FirstHeader {
    sha256: String,
    counts: Vec<u64>,
    heads: Vec<StartHead>,
}

impl FirstHeader {
    fn read(storage: &Storage, log: LogId, base: u64) -> Result<Self, ReadError> {
        let mut walker = Walker::open(storage, Codec::new(log), base, base, u64::MAX)?;
        let (tracker, _, _) = recovery::start(&mut walker, log)?;
        let length = usize::try_from(walker.position() - base).expect("a header fits the memory");
        let mut bytes = vec![0; length];
        let name = segment::name(base);
        let file = storage.open_read(&name).and_then(|file| file.read_at(&mut bytes, 0));
        file.map_err(|error| io_error(storage.display(&name), &error))?;
        let heads = tracker.lanes().iter().map(|(key, head)| StartHead {
            incarnation: key.incarnation,
            target: key.target,
            seq: head.seq,
            link: head.link,
            recorded_at: head.recorded_at,
        });
        Ok(Self { sha256: sha256_hex(&bytes), counts: tracker.counts().to_vec(), heads: heads.collect() })
    }
}

fn corrupt(storage: &Storage, base: u64, cause: &str) -> ReadError {
    let file = storage.display(&segment::name(base));
    ReadError::Corrupt { file, offset: 0, position: base, cause: cause.to_owned() }
}

impl Shared {
    pub(super) fn start(&self) -> Arc<Start> {
        self.start.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses a position before the log's start.
    pub(super) fn kept(&self, position: u64) -> Result<(), ReadError> {
        let start = self.start();
        if position < start.first() { Err(start.dropped(position)) } else { Ok(()) }
    }

    /// Opens a segment, which may be dropped at any time; who has it open reads on.
    pub(super) fn walk(&self, base: u64, position: u64, limit: u64) -> Result<Walker, ReadError> {
        let walker = Walker::open(&self.storage, self.codec, base, position, limit);
        walker.map_err(|error| self.kept(position).err().unwrap_or(error))
    }
}

/// What of the log is older than `older_than` and can be dropped: whole sealed segments, oldest first, at most
/// `segments_max` of them. Nothing is changed but for the rest of an earlier drop.
pub(super) fn plan(
    shared: &Shared,
    older_than: Timestamp,
    segments_max: usize,
) -> Result<Option<LogCut>, DropError> {
    let mut dropping = shared.dropping.lock().unwrap_or_else(PoisonError::into_inner);
    remove_leftovers(shared, &mut dropping)?;
    let start = shared.start();
    let bases = shared.bases.read().unwrap_or_else(PoisonError::into_inner).clone();
    let mut tails = start.known.tails.clone();
    let mut through = start.known.recorded_through;
    let mut segments = Vec::new();
    let mut first = None;
    for pair in bases.windows(2).take(segments_max) {
        let &[base, next] = pair else { continue };
        if first_recorded_at(shared, base, next)?.is_some_and(|at| at >= older_than) {
            break;
        }
        let survey = match dropping.surveys.get(&base) {
            Some(survey) => survey.clone(),
            None => survey(shared, base, next)?,
        };
        dropping.surveys.insert(base, survey.clone());
        if survey.segment.last_recorded_at.is_some_and(|at| at >= older_than) {
            break;
        }
        through = through.max(survey.segment.last_recorded_at);
        tails.extend(survey.tails);
        segments.push(survey.segment);
        first = Some(next);
        if next - start.first() >= CUT_BYTES {
            break;
        }
    }
    let (Some(first), Some(recorded_through)) = (first, through) else { return Ok(None) };
    let header = FirstHeader::read(&shared.storage, shared.id, first)?;
    let tails = tails.into_iter().map(|(target, (position, link))| PartitionTail {
        topic: target.topic,
        partition: target.partition,
        position: position.0,
        link: hex::encode(link),
    });
    Ok(Some(LogCut {
        first,
        header_sha256: header.sha256,
        recorded_through,
        segments,
        tails: tails.collect(),
        previous_anchor_sha256: start.anchor_sha256.clone(),
    }))
}

/// The clock of the first event of the segment at `base`.
fn first_recorded_at(shared: &Shared, base: u64, limit: u64) -> Result<Option<Timestamp>, ReadError> {
    let mut walker = shared.walk(base, base, limit)?;
    loop {
        match walker.next()? {
            Step::Frame(framed) => {
                if let Item::Event(event) = framed.item {
                    return Ok(Some(event.recorded_at));
                }
            }
            Step::End => return Ok(None),
            Step::Bad { position, cause } => return Err(walker.corrupt(position, cause)),
        }
    }
}

/// Reads the whole segment from `base` to `end`.
fn survey(shared: &Shared, base: u64, end: u64) -> Result<Survey, ReadError> {
    let mut walker = shared.walk(base, base, end)?;
    let (mut records, mut oldest, mut newest) = (0, None, None);
    let mut tails = BTreeMap::new();
    loop {
        match walker.next()? {
            Step::Frame(framed) => match framed.item {
                Item::Event(event) => {
                    records += 1;
                    oldest =
                        Some(oldest.map_or(event.recorded_at, |at: Timestamp| at.min(event.recorded_at)));
                    newest = newest.max(Some(event.recorded_at));
                    tails.insert(event.target, (Position(framed.position), event.link));
                }
                Item::Closed { .. } | Item::Header(_) => {}
            },
            Step::End => break,
            Step::Bad { position, cause } => return Err(walker.corrupt(position, cause)),
        }
    }
    let sha256 = digest(&shared.storage, &segment::name(base), end - base)?;
    let segment =
        DroppedSegment { base, end, sha256, records, first_recorded_at: oldest, last_recorded_at: newest };
    Ok(Survey { segment, tails })
}

/// SHA-256 of the first `length` bytes of a file, hexadecimal.
fn digest(storage: &Storage, name: &str, length: u64) -> Result<String, ReadError> {
    use sha2::Digest;
    let mut hash = sha2::Sha256::new();
    let mut read = || {
        let file = storage.open_read(name)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < length {
            let wanted = usize::try_from(length - at).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
            let count = file.read_at(&mut chunk[..wanted], at)?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            hash.update(&chunk[..count]);
            at += count as u64;
        }
        Ok(())
    };
    read().map_err(|error| io_error(storage.display(name), &error))?;
    Ok(hex::encode(hash.finalize()))
}

/// Drops what `cut` names: the anchor first, durably, then the files, oldest first. Interrupted anywhere, the log is
/// whole without the cut, or starts at it and the next opening removes the rest.
pub(super) fn carry_out(shared: &Shared, cut: LogCut) -> Result<(), DropError> {
    let mut dropping = shared.dropping.lock().unwrap_or_else(PoisonError::into_inner);
    remove_leftovers(shared, &mut dropping)?;
    let start = shared.start();
    let bases = shared.bases.read().unwrap_or_else(PoisonError::into_inner).clone();
    let named = cut.segments.iter().map(|segment| segment.base);
    let follows = bases.iter().copied().take_while(|&base| base < cut.first).eq(named)
        && !cut.segments.is_empty()
        && bases.contains(&cut.first)
        && cut.previous_anchor_sha256 == start.anchor_sha256;
    let header = FirstHeader::read(&shared.storage, shared.id, cut.first);
    let bytes = encode_anchor(shared.id, &cut);
    let stale = DropError::Stale { first: cut.first, start: start.first() };
    let next = match header {
        Ok(header) if follows && header.sha256 == cut.header_sha256 => {
            Start::new(header, cut, sha256_hex(&bytes))
        }
        Ok(_) | Err(_) => None,
    };
    let Some(next) = next else { return Err(stale) };
    check_lock(shared)?;
    let write = || shared.storage.replace(ANCHOR, &bytes).map_err(|error| failed(shared, ANCHOR, &error));
    let early = planted::armed("dropped_before_anchor");
    if !early {
        write()?;
    }
    let first = next.first();
    let dropped: Vec<u64> = bases.iter().copied().filter(|&base| base < first).collect();
    *shared.start.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    shared.forget_segments(first);
    for base in &dropped {
        dropping.surveys.remove(base);
    }
    shared.stats.dropped_segments.inc_by(dropped.len() as u64);
    dropping.leftovers = dropped;
    remove_leftovers(shared, &mut dropping)?;
    if early {
        write()?;
    }
    Ok(())
}

fn remove_leftovers(shared: &Shared, dropping: &mut Dropping) -> Result<(), DropError> {
    if dropping.leftovers.is_empty() {
        return Ok(());
    }
    check_lock(shared)?;
    for &base in &dropping.leftovers {
        for name in [segment::name(base), index_name(base)] {
            shared.storage.remove(&name).map_err(|error| failed(shared, &name, &error))?;
        }
    }
    shared.storage.sync_dir().map_err(|error| failed(shared, "", &error))?;
    dropping.leftovers.clear();
    Ok(())
}

/// Nothing is removed from the directory of another log.
fn check_lock(shared: &Shared) -> Result<(), DropError> {
    if planted::armed("drops_from_any_directory") {
        return Ok(());
    }
    shared.check_lock().map_err(|fault| failed(shared, "", &io::Error::other(fault.to_string())))
}

fn failed(shared: &Shared, name: &str, error: &io::Error) -> DropError {
    DropError::Io { file: shared.storage.display(name), cause: error.to_string() }
}

impl Shared {
    /// Readers and counts go on without the segments before `first`.
    fn forget_segments(&self, first: u64) {
        let mut bases = self.bases.write().unwrap_or_else(PoisonError::into_inner);
        bases.retain(|&base| base >= first);
        self.stats.segments.set(i64::try_from(bases.len()).unwrap_or(i64::MAX));
        drop(bases);
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.retain(|&base, _: &mut Arc<SegmentIndex>| base >= first);
    }
}

impl EmbeddedLog {
    /// What may be dropped because all its records are older than `older_than`: whole sealed segments, oldest first, at
    /// most `segments_max`. `None` when there is nothing. Reads each such segment once.
    ///
    /// # Errors
    /// [`DropError`]: a damaged segment is not dropped.
    pub async fn plan_drop(
        &self,
        older_than: Timestamp,
        segments_max: usize,
    ) -> Result<Option<LogCut>, DropError> {
        let shared = self.shared.clone();
        blocking(move || plan(&shared, older_than, segments_max)).await
    }

    /// Drops what [`EmbeddedLog::plan_drop`] found. The caller made sure that every projection is past it, and that an
    /// event with this cut is durable on the log.
    ///
    /// # Errors
    /// [`DropError`]. After [`DropError::Io`] the cut may hold already; it is finished by the next plan or opening.
    pub async fn drop_segments(&self, cut: LogCut) -> Result<(), DropError> {
        let shared = self.shared.clone();
        blocking(move || carry_out(&shared, cut)).await
    }

    /// The clock of the first event that is kept, also as a metric; `None` in an empty log.
    ///
    /// # Errors
    /// [`DropError::Read`].
    pub async fn oldest_recorded_at(&self) -> Result<Option<Timestamp>, DropError> {
        let shared = self.shared.clone();
        let look = move || {
            let end = shared.published.borrow().end;
            let (base, limit) = shared.segment_of(shared.start().first(), end);
            let oldest = first_recorded_at(&shared, base, limit)?;
            if let Some(at) = oldest {
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "seconds since 1970 fit a float to the microsecond"
                )]
                shared.stats.oldest_record_seconds.set(at.as_micros() as f64 / 1e6);
            }
            Ok(oldest)
        };
        blocking(look).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DropError> + Send + 'static,
) -> Result<T, DropError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(DropError::Read(ReadError::Closed)))
}
