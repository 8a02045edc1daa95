//! Copies a log as far as it is durable, beside its owner or without one, and checks the copy. Never writes to the log
//! that it copies.
//!
//! A copy holds the log's identity, its segments up to the end, and a watermark that says so: the log opens it as one
//! whose owner was killed there. Indexes are derived, so they stay behind.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::recovery::OpenError;
use super::scanner::{ScannedItem, Scanner};
use super::segment::{self, io_error};
use super::small::{IDENTITY, WATERMARK, Watermark};
use super::storage::{self, Lock, LockError, Storage};
use crate::event::{LaneHead, TopicPartition};
use crate::log::{LogId, Position, ReadError, StartHead};

/// Small files that a log may have beside its identity and watermark, and that say where it starts.
const OPTIONAL: [&str; 1] = ["anchor.json"];

/// Bytes that one read asks for.
const CHUNK_BYTES: usize = 1 << 20;

/// A file of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedFile {
    /// Its name in the log's directory.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of what was written, hexadecimal.
    pub sha256: String,
}

/// The open lanes of one process start, by topic and partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenLanes {
    /// The process start.
    pub incarnation: Uuid,
    /// The last event of each lane.
    pub heads: Vec<LaneHead>,
}

/// Whether old segments may go: a copy keeps them, and who drops them must be alone. Freed when it is dropped, or by the
/// system when its process dies.
#[derive(Debug)]
pub struct Keep {
    _keep: storage::Keep,
}

impl Keep {
    /// No segment of the log in `dir` is dropped while this lives. `None` while some are being dropped.
    ///
    /// # Errors
    /// What the system says.
    pub fn segments(dir: &Path) -> io::Result<Option<Self>> {
        Ok(Storage::new(dir).keep(false)?.map(|keep| Self { _keep: keep }))
    }

    /// Nobody copies the log in `dir` while this lives, so segments may be dropped. `None` while somebody does.
    ///
    /// # Errors
    /// What the system says.
    pub fn nobody(dir: &Path) -> io::Result<Option<Self>> {
        Ok(Storage::new(dir).keep(true)?.map(|keep| Self { _keep: keep }))
    }
}

/// Nobody else owns the log while this lives. Its files are left as they are.
#[derive(Debug)]
pub struct Held {
    _lock: Lock,
}

impl Held {
    /// Takes the log in `dir`.
    ///
    /// # Errors
    /// [`OpenError::Locked`], [`OpenError::Io`].
    pub fn take(dir: &Path) -> Result<Self, OpenError> {
        match Storage::new(dir).lock() {
            Ok(lock) => Ok(Self { _lock: lock }),
            Err(LockError::Held { file, pid }) => Err(OpenError::Locked { file, pid }),
            Err(LockError::Io(error)) => {
                Err(OpenError::Io { file: dir.to_owned(), cause: error.to_string() })
            }
        }
    }
}

/// The log in `dir`, and the end that is durable now: everything before it was synced, and no reader saw more.
///
/// # Errors
/// [`ReadError`] when there is no log, or its small files are damaged.
pub fn durable_end(dir: &Path) -> Result<(LogId, Position), ReadError> {
    let scanner = Scanner::open(dir)?;
    Ok((scanner.log_id(), scanner.watermark()))
}

/// Copies the log in `from` into `to`, which is made: everything before `end`, durably. What was read is not judged;
/// see [`check_copy`]. While the log is in use, [`Keep::segments`] must be held since before `end` was read.
///
/// # Errors
/// [`ReadError::Corrupt`] when a segment is shorter than the log says; [`ReadError::Io`]; [`ReadError::Write`].
pub fn copy(from: &Path, to: &Path, log: LogId, end: Position) -> Result<Vec<CopiedFile>, ReadError> {
    let (source, target) = (Storage::new(from), Storage::new(to));
    let at = |storage: &Storage, name: &str| storage.display(name);
    target.create_dir().map_err(|error| write_error(to.display().to_string(), &error))?;
    let identity = source.read(IDENTITY).map_err(|error| io_error(at(&source, IDENTITY), &error))?;
    let identity = identity.unwrap_or_default();
    let bases = segment::bases(&source).map_err(|error| io_error(from.display().to_string(), &error))?;
    let mut files = Vec::new();
    for (index, &base) in bases.iter().enumerate().take_while(|&(_, &base)| base < end.0) {
        let limit = bases.get(index + 1).map_or(end.0, |&next| next.min(end.0));
        files.push(copy_segment(&source, &target, base, limit - base)?);
    }
    let watermark = Watermark { end: end.0, clean: false }.encode(log);
    let mut small = vec![(WATERMARK, watermark), (IDENTITY, identity)];
    for name in OPTIONAL {
        let found = source.read(name).map_err(|error| io_error(at(&source, name), &error))?;
        small.extend(found.map(|bytes| (name, bytes)));
    }
    for (name, bytes) in small {
        target.replace(name, &bytes).map_err(|error| write_error(at(&target, name), &error))?;
        let sha256 = crate::base::sha256_hex(&bytes);
        files.push(CopiedFile { file: name.to_owned(), bytes: bytes.len() as u64, sha256 });
    }
    Ok(files)
}

fn write_error(file: String, error: &io::Error) -> ReadError {
    ReadError::Write { file, cause: error.to_string() }
}

fn copy_segment(source: &Storage, target: &Storage, base: u64, bytes: u64) -> Result<CopiedFile, ReadError> {
    let name = segment::name(base);
    let read_failed = |error: io::Error| io_error(source.display(&name), &error);
    let write_failed = |error: io::Error| write_error(target.display(&name), &error);
    let short = |offset: u64, cause: &str| ReadError::Corrupt {
        file: source.display(&name),
        offset,
        position: base + offset,
        cause: cause.to_owned(),
    };
    let from = source.open_read(&name).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => short(0, "the segment is missing"),
        _ => read_failed(error),
    })?;
    let to = target.open_write(&name).map_err(write_failed)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let wanted = usize::try_from(bytes - offset).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let chunk = buffer.get_mut(..wanted).unwrap_or_default();
        let read = from.read_at(chunk, offset).map_err(read_failed)?;
        let chunk = chunk.get(..read).unwrap_or_default();
        if chunk.is_empty() {
            return Err(short(offset, "the file ends here, but the log goes on"));
        }
        digest.update(chunk);
        to.write_at(chunk, offset).map_err(write_failed)?;
        offset += chunk.len() as u64;
    }
    to.sync_all().map_err(write_failed)?;
    Ok(CopiedFile { file: name, bytes, sha256: hex::encode(digest.finalize()) })
}

/// Reads the copy in `to` of the log in `from` and checks every checksum; gives the lanes that are open at its end.
///
/// # Errors
/// [`ReadError::Corrupt`] names the log's own file when the damage is there, the copy's when only that is bad.
pub fn check_copy(from: &Path, to: &Path, end: Position) -> Result<Vec<OpenLanes>, ReadError> {
    let lanes = open_lanes(to, end);
    lanes.map_err(|error| match error {
        ReadError::Corrupt { file, offset, position, cause } => {
            let name = Path::new(&file).file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.unwrap_or_default();
            let is_damaged_there = name == IDENTITY || begin_alike(&from.join(&name), Path::new(&file));
            let file = if is_damaged_there { from.join(&name).display().to_string() } else { file };
            ReadError::Corrupt { file, offset, position, cause }
        }
        other => other,
    })
}

/// Reads the whole log in `dir`, which nobody writes and which must end at `end`: every checksum, and the lanes that are
/// open there.
///
/// # Errors
/// [`ReadError`].
pub fn open_lanes(dir: &Path, end: Position) -> Result<Vec<OpenLanes>, ReadError> {
    let mut scanner = Scanner::open(dir)?;
    let mut lanes: BTreeMap<Uuid, BTreeMap<TopicPartition, LaneHead>> = BTreeMap::new();
    for StartHead { incarnation, target, seq, link, .. } in &scanner.start().heads {
        let TopicPartition { topic, partition } = *target;
        let head = LaneHead { topic, partition, seq: *seq, link: hex::encode(link) };
        lanes.entry(*incarnation).or_default().insert(*target, head);
    }
    while let Some(scanned) = scanner.next()? {
        match scanned.item {
            ScannedItem::Closed { incarnation, .. } => {
                lanes.remove(&incarnation);
            }
            ScannedItem::Event(stored) => {
                let frame = stored.frame;
                let head = LaneHead {
                    topic: frame.target.topic,
                    partition: frame.target.partition,
                    seq: frame.seq,
                    link: hex::encode(frame.link),
                };
                lanes.entry(frame.incarnation).or_default().insert(frame.target, head);
            }
        }
    }
    if scanner.end() != end {
        let found = scanner.end();
        return Err(ReadError::Corrupt {
            file: dir.join(WATERMARK).display().to_string(),
            offset: 0,
            position: found.0,
            cause: format!("the log ends at position {found}, not at {end}"),
        });
    }
    let open = lanes.into_iter();
    Ok(open
        .map(|(incarnation, heads)| OpenLanes { incarnation, heads: heads.into_values().collect() })
        .collect())
}

/// Whether the file at `longer` begins with all of the bytes of the one at `shorter`.
fn begin_alike(longer: &Path, shorter: &Path) -> bool {
    let parent = |path: &Path| path.parent().map(Storage::new);
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let open = |path: &Path| {
        let storage = parent(path)?;
        storage.open_read(&name(path)?).ok()
    };
    let (Some(longer), Some(shorter)) = (open(longer), open(shorter)) else { return false };
    let (mut one, mut other) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let mut offset = 0;
    loop {
        let Ok(read) = shorter.read_at(&mut other, offset) else { return false };
        if read == 0 {
            return true;
        }
        let Ok(found) = longer.read_at(one.get_mut(..read).unwrap_or_default(), offset) else { return false };
        if found != read || one.get(..read) != other.get(..read) {
            return false;
        }
        offset += read as u64;
    }
}
