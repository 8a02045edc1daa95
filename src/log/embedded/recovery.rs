//! Opening: what the directory holds, where its durable end is, and whether that can be believed. Cuts a torn tail,
//! and never anything else.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::frame::{Codec, Header, Item};
use super::retention::Start;
use super::segment::{self, PREPARED, RESCUED, Step, Walker, index_name};
use super::small::{
    ANCHOR, IDENTITY, IdentityError, SegmentIndex, WATERMARK, Watermark, decode_identity, encode_identity,
};
use super::storage::{Lock, LockError, Storage, WriteFile};
use super::tracker::Tracker;
use crate::base::{Timestamp, planted};
use crate::event::{Link, TopicPartition};
use crate::log::{LogId, ReadError};

/// Bytes that are written again at once.
const REWRITTEN_BYTES: u64 = 1 << 20;

/// The log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process owns it.
    #[error("the log is in use by {}: its lock is {}", pid.map_or_else(|| "another process".into(), |pid| format!("process {pid}")), file.display())]
    Locked {
        /// The lock file.
        file: PathBuf,
        /// The owner, as far as the file says.
        pid: Option<u32>,
    },
    /// The bytes are not what was written. Nothing was changed.
    #[error("the log is corrupt: {} at byte {offset}: {cause}", file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// The first bad record starts here in the file.
        offset: u64,
        /// What does not hold.
        cause: String,
    },
    /// The file system failed.
    #[error("cannot open the log at {}: {cause}", file.display())]
    Io {
        /// The file or directory.
        file: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// A newer Annals wrote it.
    #[error("the log at {} has format version {found}; this program knows up to {known}", dir.display())]
    Version {
        /// The log's directory.
        dir: PathBuf,
        /// Its version.
        found: u16,
        /// The newest that we know.
        known: u16,
    },
}

impl From<ReadError> for OpenError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Corrupt { file, offset, cause, .. } => {
                Self::Corrupt { file: file.into(), offset, cause }
            }
            ReadError::Io { file, cause } | ReadError::Write { file, cause } => {
                Self::Io { file: file.into(), cause }
            }
            other @ (ReadError::Dropped { .. } | ReadError::NotFound(_) | ReadError::Closed) => {
                Self::Io { file: PathBuf::new(), cause: other.to_string() }
            }
        }
    }
}

/// A lane that was open when its process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnclosedLane {
    /// The process start that wrote it.
    pub incarnation: Uuid,
    /// Its topic and partition.
    pub target: TopicPartition,
    /// Its last event.
    pub seq: u64,
    /// The link there.
    pub link: Link,
    /// The lane's clock there.
    pub recorded_at: Timestamp,
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Lanes whose incarnation was not marked as closed, ordered by incarnation and target.
    pub unclosed: Vec<UnclosedLane>,
    /// Bytes of a record that was being written at the end and never acknowledged; they were cut.
    pub torn_bytes: u64,
    /// The log is new.
    pub created: bool,
}

/// A log that is ready to be written on.
pub(super) struct Opened {
    pub(super) lock: Lock,
    pub(super) log: LogId,
    pub(super) bases: Vec<u64>,
    pub(super) start: Start,
    pub(super) tracker: Tracker,
    pub(super) end: u64,
    /// The newest segment has its index.
    pub(super) indexed: bool,
    pub(super) recovered: Recovered,
}

/// Takes the lock, finds the end and makes it durable.
pub(super) fn open(storage: &Storage) -> Result<Opened, OpenError> {
    storage.create_dir().map_err(|error| io(storage.dir(), &error))?;
    let lock = lock(storage)?;
    let bases = segment::bases(storage).map_err(|error| io(storage.dir(), &error))?;
    for name in [PREPARED, RESCUED] {
        storage.remove(name).map_err(|error| io(&storage.dir().join(name), &error))?;
    }
    // A process that died may have left names that are not durable. The new watermark will build on them.
    if !planted::armed("opening_without_dir_sync") {
        storage.sync_dir().map_err(|error| io(storage.dir(), &error))?;
    }
    match storage.read(IDENTITY).map_err(|error| io(&storage.dir().join(IDENTITY), &error))? {
        Some(bytes) => existing(storage, lock, &bytes, bases),
        None => create(storage, lock, &bases),
    }
}

/// A reader that asks whether the log is owned holds the lock for an instant, so one refusal is not believed.
fn lock(storage: &Storage) -> Result<Lock, OpenError> {
    let mut tries = 0;
    loop {
        match storage.lock() {
            Ok(lock) => return Ok(lock),
            Err(LockError::Held { .. }) if tries < 10 => {
                tries += 1;
                std::thread::park_timeout(std::time::Duration::from_millis(10));
            }
            Err(LockError::Held { file, pid }) => return Err(OpenError::Locked { file, pid }),
            Err(LockError::Io(error)) => return Err(io(storage.dir(), &error)),
        }
    }
}

fn create(storage: &Storage, lock: Lock, bases: &[u64]) -> Result<Opened, OpenError> {
    // The identity is written last, so all that an interrupted creation leaves is a first segment without events.
    let first = segment::name(0);
    let anchor = storage.length(ANCHOR).map_err(|error| io(&storage.dir().join(ANCHOR), &error))?;
    let known = match bases {
        _ if anchor.is_some() => false,
        [] => true,
        [0] => {
            storage.length(&first).map_err(|error| io(&storage.dir().join(&first), &error))?
                <= Some(super::frame::header_bytes(0) as u64)
        }
        _ => false,
    };
    if !known {
        return Err(OpenError::Corrupt {
            file: storage.dir().join(IDENTITY),
            offset: 0,
            cause: "it is missing beside segments that hold events".into(),
        });
    }
    let log = LogId(Uuid::new_v4());
    let mut tracker = Tracker::new();
    let (header, crc) = Codec::new(log).encode_header(log, 0, 0, &tracker);
    let end = header.len() as u64;
    tracker.header(0, crc);
    let write = || {
        storage.replace(&first, &header)?;
        storage.replace(WATERMARK, &Watermark { end, clean: false }.encode(log))?;
        storage.replace(IDENTITY, &encode_identity(log))
    };
    write().map_err(|error| io(storage.dir(), &error))?;
    let recovered = Recovered { created: true, ..Recovered::default() };
    let (bases, start) = (vec![0], Start::default());
    Ok(Opened { lock, log, bases, start, tracker, end, indexed: false, recovered })
}

fn existing(
    storage: &Storage,
    lock: Lock,
    identity: &[u8],
    mut bases: Vec<u64>,
) -> Result<Opened, OpenError> {
    let log = identify(storage, identity)?;
    let codec = Codec::new(log);
    let anchor = storage.read(ANCHOR).map_err(|error| io(&storage.dir().join(ANCHOR), &error))?;
    let start = Start::read(storage, log, &bases, anchor.as_deref())?;
    start.settle(storage, &mut bases).map_err(|error| io(storage.dir(), &error))?;
    check_layout(storage, &bases)?;
    let Some(&newest) = bases.last() else {
        return Err(corrupt(storage, &segment::name(0), 0, "the log's segments are missing"));
    };
    let watermark = read_watermark(storage, log)?;
    let mut torn_bytes = 0;
    let (tracker, end, indexed) = match resume_clean(storage, log, newest, watermark)? {
        Some((tracker, end)) => (tracker, end, true),
        None => {
            let (tracker, end, torn) = scan_newest(storage, codec, log, newest, watermark)?;
            torn_bytes = torn;
            (tracker, end, false)
        }
    };
    if !(indexed && planted::armed("clean_mark_kept")) {
        storage
            .replace(WATERMARK, &Watermark { end, clean: false }.encode(log))
            .map_err(|error| io(&storage.dir().join(WATERMARK), &error))?;
    }
    let unclosed = tracker.lanes().iter().map(|(key, head)| UnclosedLane {
        incarnation: key.incarnation,
        target: key.target,
        seq: head.seq,
        link: head.link,
        recorded_at: head.recorded_at,
    });
    let recovered = Recovered { unclosed: unclosed.collect(), torn_bytes, created: false };
    Ok(Opened { lock, log, bases, start, tracker, end, indexed, recovered })
}

fn identify(storage: &Storage, identity: &[u8]) -> Result<LogId, OpenError> {
    decode_identity(identity).map_err(|error| match error {
        IdentityError::Damaged(cause) => corrupt(storage, IDENTITY, 0, cause),
        IdentityError::Version(found) => {
            OpenError::Version { dir: storage.dir().to_owned(), found, known: super::frame::VERSION }
        }
    })
}

/// Sealed segments follow each other without a hole.
fn check_layout(storage: &Storage, bases: &[u64]) -> Result<(), OpenError> {
    for pair in bases.windows(2) {
        let &[base, next] = pair else { continue };
        let name = segment::name(base);
        let length = storage.length(&name).map_err(|error| io(&storage.dir().join(&name), &error))?;
        let end = base.saturating_add(length.unwrap_or(0));
        if end < next {
            let cause = format!("it ends at position {end}, but the next segment starts at {next}");
            return Err(corrupt(storage, &name, end - base, &cause));
        }
        if end > next {
            let cause = format!("it goes on behind position {next}, where the next segment starts");
            return Err(corrupt(storage, &name, next - base, &cause));
        }
    }
    Ok(())
}

/// A watermark that a power cut tore says nothing; what is durable then follows from the segments alone.
fn read_watermark(storage: &Storage, log: LogId) -> Result<Option<Watermark>, OpenError> {
    let bytes = storage.read(WATERMARK).map_err(|error| io(&storage.dir().join(WATERMARK), &error))?;
    let watermark = bytes.and_then(|bytes| Watermark::decode(log, &bytes));
    if watermark.is_none() {
        tracing::warn!(file = storage.display(WATERMARK), "the log's watermark is unreadable and is ignored");
    }
    Ok(watermark)
}

/// The end of a log that was closed cleanly, without reading its segments.
fn resume_clean(
    storage: &Storage,
    log: LogId,
    newest: u64,
    watermark: Option<Watermark>,
) -> Result<Option<(Tracker, u64)>, OpenError> {
    let Some(Watermark { end, clean: true }) = watermark else { return Ok(None) };
    let name = segment::name(newest);
    let length = storage.length(&name).map_err(|error| io(&storage.dir().join(&name), &error))?.unwrap_or(0);
    let found = newest.saturating_add(length);
    if found < end {
        let cause = format!("it ends at position {found}, but the log was closed at {end}");
        return Err(corrupt(storage, &name, length, &cause));
    }
    if found > end {
        let cause = format!("there are bytes behind position {end}, where the log was closed");
        return Err(corrupt(storage, &name, end.saturating_sub(newest), &cause));
    }
    let index = storage.read(&index_name(newest)).map_err(|error| io(storage.dir(), &error))?;
    let index = index
        .and_then(|bytes| SegmentIndex::decode(log, &bytes))
        .filter(|index| index.base == newest && index.end == end);
    Ok(index.map(|index| (index.into_tracker(), end)))
}

/// Reads the newest segment to its end, cuts a torn tail and makes the rest durable.
fn scan_newest(
    storage: &Storage,
    codec: Codec,
    log: LogId,
    newest: u64,
    watermark: Option<Watermark>,
) -> Result<(Tracker, u64, u64), OpenError> {
    let name = segment::name(newest);
    let durable = watermark.map_or(0, |watermark| watermark.end);
    let mut walker = Walker::open(storage, codec, newest, newest, u64::MAX)?;
    let file_bytes = walker.file_bytes()?;
    walker.limit_to(newest + file_bytes);
    let (mut tracker, _, _) = start(&mut walker, log)?;
    let bad = loop {
        match walker.next()? {
            Step::Frame(framed) if matches!(framed.item, Item::Header(_)) => {
                let position = framed.position;
                return Err(walker.corrupt(position, "a header stands inside the segment").into());
            }
            Step::Frame(framed) => tracker.apply(framed.position, framed.crc, &framed.item),
            Step::End => break None,
            Step::Bad { cause, .. } => break Some(cause),
        }
    };
    let end = walker.position();
    let torn_bytes = bad.map_or(Ok(0), |cause| walker.torn_bytes(cause))?;
    if end < durable && !planted::armed("cut_below_watermark") {
        let found = bad.unwrap_or("the file ends here");
        let cause = format!("{found}, but the log is durable up to position {durable}");
        return Err(walker.corrupt(end, cause).into());
    }
    let cut = || {
        let file = storage.open_write(&name)?;
        if !planted::armed("torn_tail_kept") {
            file.truncate(end - newest)?;
        }
        if !planted::armed("opening_trusts_the_cache") {
            write_again(&file, durable.max(newest) - newest, end - newest)?;
        }
        file.sync_all()
    };
    cut().map_err(|error| io(&storage.dir().join(&name), &error))?;
    Ok((tracker, end, torn_bytes))
}

/// Writes what stands in `file` between two offsets once more. The process before may have ended over a failed sync: then the
/// system shows what it wrote, takes it for clean, and would never bring it to the disk.
fn write_again(file: &WriteFile, from: u64, to: u64) -> std::io::Result<()> {
    let mut chunk = Vec::new();
    let mut at = from;
    while at < to {
        let bytes = usize::try_from((to - at).min(REWRITTEN_BYTES)).unwrap_or(1);
        chunk.resize(bytes, 0);
        if file.read_at(&mut chunk, at)? < bytes {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        file.write_at(&chunk, at)?;
        at += bytes as u64;
    }
    Ok(())
}

/// Reads the header of the walker's segment. Gives what stands behind it, the base of the segment before, and the
/// header's checksum.
pub(super) fn start(walker: &mut Walker, log: LogId) -> Result<(Tracker, u64, u32), ReadError> {
    let base = walker.base();
    let (header, crc) = match walker.next()? {
        Step::Frame(framed) => match framed.item {
            Item::Header(header) => (header, framed.crc),
            Item::Event(_) | Item::Closed { .. } => {
                return Err(walker.corrupt(base, "the segment does not start with its header"));
            }
        },
        Step::End => return Err(walker.corrupt(base, "the segment's header is missing")),
        Step::Bad { cause, .. } => return Err(walker.corrupt(base, format!("the segment's header: {cause}"))),
    };
    if header.base != base || header.log != log {
        return Err(walker.corrupt(base, "the header belongs to another segment"));
    }
    let Header { rolling, state, previous, .. } = header;
    let mut tracker = Tracker::at(base, rolling, state);
    tracker.header(base, crc);
    Ok((tracker, previous, crc))
}

fn io(file: &Path, error: &std::io::Error) -> OpenError {
    OpenError::Io { file: file.to_owned(), cause: error.to_string() }
}

fn corrupt(storage: &Storage, name: &str, offset: u64, cause: &str) -> OpenError {
    OpenError::Corrupt { file: storage.dir().join(name), offset, cause: cause.to_owned() }
}
