//! Reads a whole log from outside, without owning it, and checks everything that the files alone can tell.
//!
//! It does not check chains, and never writes. While a process writes, it reads up to the durable end that the writer
//! published when the scan started.

use std::path::Path;

use uuid::Uuid;

use super::frame::{Codec, Item};
use super::recovery::start;
use super::retention::Start;
use super::segment::{self, Step, Walker, io_error};
use super::small::{ANCHOR, IDENTITY, IdentityError, SegmentIndex, WATERMARK, Watermark, decode_identity};
use super::storage::Storage;
use super::tracker::Tracker;
use crate::base::{Timestamp, planted, sha256};
use crate::event::{LogCut, TopicPartition};
use crate::log::{LogId, LogStart, Position, ReadError, Stored};

/// Times that a watermark or an anchor is read again while its writer may be changing it.
const WATERMARK_TRIES: u32 = 100;

/// See the module.
pub struct Scanner {
    storage: Storage,
    codec: Codec,
    log: LogId,
    bases: Vec<u64>,
    start: Start,
    /// The durable end that the writer published.
    watermark: Position,
    end: Position,
    clean: bool,
    /// The next segment to open, as an index of `bases`.
    next: usize,
    walker: Option<Walker>,
    tracker: Tracker,
    /// Where the segments that were opened so far end.
    reached: u64,
    /// The open segment's file goes on behind this position, where it should end.
    overlong: Option<u64>,
    /// Where the open segment ends, when nothing will be written into it any more.
    sealed: Option<u64>,
    wrong_indexes: Vec<ReadError>,
    failed: Option<ReadError>,
}

/// One frame, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    /// The segment file's name.
    pub file: String,
    /// Where the frame starts in the file.
    pub offset: u64,
    /// The same as a position.
    pub position: Position,
    /// What it holds.
    pub item: ScannedItem,
}

/// What a frame holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScannedItem {
    /// An event.
    Event(Stored),
    /// The engine was told that no lane of `incarnation` is open any more.
    Closed {
        /// The incarnation.
        incarnation: Uuid,
        /// When.
        at: Timestamp,
    },
}

/// One segment file, as far as a scan goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedSegment {
    /// The file's name.
    pub file: String,
    /// The position of its first byte.
    pub base: u64,
    /// Behind its last durable record.
    pub end: u64,
    /// The file's length, which may be more; 0 when the file is missing.
    pub file_bytes: u64,
}

impl Scanner {
    /// Starts at the first record of the log in `dir`.
    ///
    /// # Errors
    /// [`ReadError`] when there is no log, or its small files are damaged.
    pub fn open(dir: &Path) -> Result<Self, ReadError> {
        Self::open_in(Storage::new(dir))
    }

    pub(super) fn open_in(storage: Storage) -> Result<Self, ReadError> {
        let log = identify(&storage)?;
        let watermark = read_watermark(&storage, log)?;
        let (bases, start) = find_start(&storage, log)?;
        let reached = start.first();
        let mut scanner = Self {
            codec: Codec::new(log),
            storage,
            log,
            bases,
            start,
            watermark: Position(watermark.end),
            end: Position(watermark.end),
            clean: watermark.clean,
            next: 0,
            walker: None,
            tracker: Tracker::new(),
            reached,
            overlong: None,
            sealed: None,
            wrong_indexes: Vec::new(),
            failed: None,
        };
        scanner.extend_unowned()?;
        Ok(scanner)
    }

    /// The log's identity.
    #[must_use]
    pub const fn log_id(&self) -> LogId {
        self.log
    }

    /// Where the log starts, as its anchor and its first segment's header say.
    #[must_use]
    pub const fn start(&self) -> &LogStart {
        &self.start.known
    }

    /// The cut that the anchor names; `None` when nothing was dropped.
    #[must_use]
    pub const fn cut(&self) -> Option<&LogCut> {
        self.start.cut.as_ref()
    }

    /// Records of `target` before the log's start, as the first segment's header says.
    #[must_use]
    pub fn dropped_records(&self, target: TopicPartition) -> u64 {
        self.start.count(target)
    }

    /// Where the scan ends: behind the last durable record.
    #[must_use]
    pub const fn end(&self) -> Position {
        self.end
    }

    /// The durable end that the log's writer published last, which may lie before [`Scanner::end`] after a power cut.
    #[must_use]
    pub const fn watermark(&self) -> Position {
        self.watermark
    }

    /// Whether the log was closed in good order; if not, it is in use, or its owner died.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.clean
    }

    /// The segments that the scan reads, in log order.
    ///
    /// # Errors
    /// [`ReadError::Io`].
    pub fn segments(&self) -> Result<Vec<ScannedSegment>, ReadError> {
        let within =
            self.bases.iter().enumerate().take_while(|&(index, &base)| index == 0 || base < self.end.0);
        within
            .map(|(index, &base)| {
                let end = self.bases.get(index + 1).map_or(self.end.0, |&next| next.min(self.end.0));
                let file = segment::name(base);
                let file_bytes = self.storage.length(&file);
                let file_bytes = file_bytes.map_err(|error| io_error(self.storage.display(&file), &error))?;
                Ok(ScannedSegment { file, base, end: end.max(base), file_bytes: file_bytes.unwrap_or(0) })
            })
            .collect()
    }

    /// Bytes that the scan reads in all, for progress.
    #[must_use]
    pub const fn bytes_total(&self) -> u64 {
        self.end.0.saturating_sub(self.start.first())
    }

    /// The next record, in log order; `None` at the end. After an error it gives the same error again.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] names the first bad record; [`ReadError::Dropped`] when the log's start moved on meanwhile;
    /// [`ReadError::Io`].
    #[expect(clippy::should_implement_trait, reason = "it is fallible in a way that an iterator is not")]
    pub fn next(&mut self) -> Result<Option<Scanned>, ReadError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.advance();
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    fn advance(&mut self) -> Result<Option<Scanned>, ReadError> {
        loop {
            let Some(walker) = &mut self.walker else {
                if !self.open_next()? {
                    return Ok(None);
                }
                continue;
            };
            let base = walker.base();
            let (file, path) = (walker.name().to_owned(), walker.path().to_owned());
            let corrupt = |position: u64, cause: &str| ReadError::Corrupt {
                file: path.clone(),
                offset: position - base,
                position,
                cause: cause.to_owned(),
            };
            match walker.next()? {
                Step::Frame(framed) => {
                    let position = framed.position;
                    let item = match &framed.item {
                        Item::Header(_) => {
                            return Err(corrupt(position, "a header stands inside the segment"));
                        }
                        Item::Closed { incarnation, at } => {
                            ScannedItem::Closed { incarnation: *incarnation, at: *at }
                        }
                        Item::Event(event)
                            if sha256(event.body) != event.content
                                && !planted::armed("content_not_checked") =>
                        {
                            return Err(corrupt(position, "the content digest is not that of the body"));
                        }
                        Item::Event(event) => ScannedItem::Event(Stored {
                            position: Position(position),
                            frame: event.to_frame(),
                        }),
                    };
                    self.tracker.apply(position, framed.crc, &framed.item);
                    let offset = position - base;
                    return Ok(Some(Scanned { file, offset, position: Position(position), item }));
                }
                Step::Bad { position, cause } => return Err(corrupt(position, cause)),
                Step::End => {
                    if let Some(position) = self.overlong.take() {
                        return Err(corrupt(position, "there are bytes behind the segment's end"));
                    }
                    self.walker = None;
                    if let Some(end) = self.sealed.take() {
                        self.check_index(base, end)?;
                    }
                }
            }
        }
    }

    /// Opens the next segment and checks that it follows what was read so far. `false` at the end.
    fn open_next(&mut self) -> Result<bool, ReadError> {
        if self.reached >= self.end.0 && self.next > 0 {
            return match self.bases.get(self.next) {
                Some(&base) if self.clean => {
                    Err(self.corrupt(base, 0, "the log was closed before this segment"))
                }
                _ => Ok(false),
            };
        }
        let base = self.bases.get(self.next).copied().unwrap_or(u64::MAX);
        if base != self.reached {
            return Err(self.corrupt(self.reached, 0, "the segment is missing"));
        }
        self.next += 1;
        let following = self.bases.get(self.next).copied();
        let limit = following.map_or(self.end.0, |next| next.min(self.end.0));
        let walker = Walker::open(&self.storage, self.codec, base, base, limit);
        let mut walker = walker.map_err(|error| self.unless_dropped(base, error))?;
        let (found, previous, crc) = start(&mut walker, self.log)?;
        if self.next == 1 && base > 0 {
            // What was before is known from this header alone, which the anchor names.
            self.tracker = found;
            return self.enter(walker, limit, following);
        }
        if self.next > 1 && previous != self.tracker.base() {
            return Err(self.corrupt(base, 0, "the header names another segment as the one before"));
        }
        self.tracker.header(base, crc);
        if found.rolling() != self.tracker.rolling() && !planted::armed("scanner_trusts_headers") {
            return Err(self.corrupt(
                base,
                0,
                "the records before this segment are not those its header vouches for",
            ));
        }
        if found.counts() != self.tracker.counts() || found.lanes() != self.tracker.lanes() {
            return Err(self.corrupt(
                base,
                0,
                "the header's counts and lanes are not those of the records before",
            ));
        }
        self.enter(walker, limit, following)
    }

    /// Goes on in `walker`'s segment, which ends at `limit`.
    fn enter(&mut self, walker: Walker, limit: u64, following: Option<u64>) -> Result<bool, ReadError> {
        if self.clean || following == Some(limit) {
            self.sealed = Some(limit);
            if walker.file_bytes()? > limit - walker.base() {
                self.overlong = Some(limit);
            }
        }
        self.reached = limit;
        self.walker = Some(walker);
        Ok(true)
    }

    /// Holds the index of the sealed segment at `base`, which was just read to its end, against its frames. One that is
    /// not there is no fault: it is made again.
    fn check_index(&mut self, base: u64, end: u64) -> Result<(), ReadError> {
        let name = segment::index_name(base);
        let file = self.storage.display(&name);
        let bytes = self.storage.read(&name).map_err(|error| io_error(file.clone(), &error))?;
        let Some(bytes) = bytes.filter(|_| !planted::armed("scanner_trusts_indexes")) else { return Ok(()) };
        let cause = match SegmentIndex::decode(self.log, &bytes) {
            Some(index) if index == SegmentIndex::of(&self.tracker, end) => return Ok(()),
            Some(_) => "the index does not follow from its segment",
            None => "the index is damaged",
        };
        let cause = format!("{cause}; once it is removed, it is made again from the segment");
        self.wrong_indexes.push(ReadError::Corrupt { file, offset: 0, position: end, cause });
        Ok(())
    }

    /// Indexes that the scan so far found not to follow from their segments: [`ReadError::Corrupt`] at offset 0, with the
    /// position where the segment ends. Its frames are whole. Each index is given once.
    #[must_use]
    pub fn take_wrong_indexes(&mut self) -> Vec<ReadError> {
        std::mem::take(&mut self.wrong_indexes)
    }

    /// `error`, unless the segment at `base` was dropped since the scan began.
    fn unless_dropped(&self, base: u64, error: ReadError) -> ReadError {
        match find_start(&self.storage, self.log) {
            Ok((_, start)) if base < start.first() => start.dropped(base),
            Ok(_) | Err(_) => error,
        }
    }

    fn corrupt(&self, base: u64, offset: u64, cause: &str) -> ReadError {
        ReadError::Corrupt {
            file: self.storage.display(&segment::name(base)),
            offset,
            position: base + offset,
            cause: cause.to_owned(),
        }
    }

    /// While nobody writes, whole records behind the published end count too: after a power cut the published end may
    /// be older than the records. The lock is held only for as long as it takes to look.
    fn extend_unowned(&mut self) -> Result<(), ReadError> {
        if self.clean {
            return Ok(());
        }
        let held = self.storage.lock_shared();
        let held = held.map_err(|error| io_error(self.storage.dir().display().to_string(), &error))?;
        let Some(_held) = held else { return Ok(()) };
        loop {
            let before = self.end.0;
            let behind = self.bases.partition_point(|&base| base <= before);
            let Some(&base) = behind.checked_sub(1).and_then(|index| self.bases.get(index)) else {
                return Ok(());
            };
            let mut walker = Walker::open(&self.storage, self.codec, base, before, u64::MAX)?;
            walker.limit_to(base + walker.file_bytes()?);
            let bad = loop {
                match walker.next()? {
                    Step::Frame(_) => {}
                    Step::End => break None,
                    Step::Bad { cause, .. } => break Some(cause),
                }
            };
            if let Some(cause) = bad {
                // A torn write is not part of the log; damage is.
                walker.torn_bytes(cause)?;
            }
            self.end = Position(walker.position().max(before));
            if self.end.0 == before {
                return Ok(());
            }
        }
    }
}

/// The bases of the segments that are kept, and where they start; the process that owns the log may be dropping some.
fn find_start(storage: &Storage, log: LogId) -> Result<(Vec<u64>, Start), ReadError> {
    let anchor = || storage.read(ANCHOR).map_err(|error| io_error(storage.display(ANCHOR), &error));
    let mut before = anchor()?;
    let mut tries = 0;
    loop {
        let bases = segment::bases(storage);
        let mut bases = bases.map_err(|error| io_error(storage.dir().display().to_string(), &error))?;
        let start = Start::read(storage, log, &bases, before.as_deref());
        let after = anchor()?;
        tries += 1;
        if after == before || tries == WATERMARK_TRIES {
            let start = start?;
            bases.retain(|&base| base >= start.first());
            return Ok((bases, start));
        }
        before = after;
    }
}

fn identify(storage: &Storage) -> Result<LogId, ReadError> {
    let file = storage.display(IDENTITY);
    let bytes = storage.read(IDENTITY).map_err(|error| io_error(file.clone(), &error))?;
    let Some(bytes) = bytes else {
        return Err(ReadError::Io { file, cause: "there is no log in this directory".into() });
    };
    decode_identity(&bytes).map_err(|error| match error {
        IdentityError::Damaged(cause) => {
            ReadError::Corrupt { file, offset: 0, position: 0, cause: cause.to_owned() }
        }
        IdentityError::Version(found) => {
            ReadError::Io { file, cause: format!("format version {found} is newer than this program knows") }
        }
    })
}

fn read_watermark(storage: &Storage, log: LogId) -> Result<Watermark, ReadError> {
    let file = storage.display(WATERMARK);
    for _ in 0..WATERMARK_TRIES {
        let bytes = storage.read(WATERMARK).map_err(|error| io_error(file.clone(), &error))?;
        if let Some(watermark) = bytes.and_then(|bytes| Watermark::decode(log, &bytes)) {
            return Ok(watermark);
        }
    }
    Err(ReadError::Corrupt {
        file,
        offset: 0,
        position: 0,
        cause: "the watermark is missing or damaged".into(),
    })
}
