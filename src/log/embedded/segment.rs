//! Segment files: their names, and a walk over the frames of one. Never writes.

use std::io;

use super::frame::{self, Codec, Decoded, Item};
use super::storage::{ReadFile, Storage};
use crate::log::ReadError;

/// Bytes that one read asks for.
const CHUNK_BYTES: u64 = 1 << 20;

/// Where the next segment is prepared.
pub(super) const PREPARED: &str = "next.prepared";
/// Where a segment is prepared that takes over from one that failed.
pub(super) const RESCUED: &str = "rescue.prepared";

/// The name of the segment at `base`.
pub(super) fn name(base: u64) -> String {
    format!("{base:020}.seg")
}

/// The name of its index.
pub(super) fn index_name(base: u64) -> String {
    format!("{base:020}.idx")
}

/// The bases of all segments, ascending.
pub(super) fn bases(storage: &Storage) -> io::Result<Vec<u64>> {
    let mut bases: Vec<u64> = storage.list()?.iter().filter_map(|name| base_of(name)).collect();
    bases.sort_unstable();
    Ok(bases)
}

fn base_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg")?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// A frame with its place.
#[derive(Debug)]
pub(super) struct Framed<'a> {
    pub(super) position: u64,
    pub(super) bytes: u64,
    pub(super) crc: u32,
    pub(super) item: Item<'a>,
}

/// What stands next.
#[derive(Debug)]
pub(super) enum Step<'a> {
    Frame(Framed<'a>),
    /// The limit is reached, exactly behind a frame.
    End,
    /// No whole frame starts here.
    Bad {
        position: u64,
        cause: &'static str,
    },
}

/// Walks over the frames of one segment, in large reads.
#[derive(Debug)]
pub(super) struct Walker {
    file: ReadFile,
    name: String,
    path: String,
    codec: Codec,
    base: u64,
    position: u64,
    limit: u64,
    buffer: Vec<u8>,
    /// Where the buffer's first byte stands.
    buffer_position: u64,
    /// The bytes in the buffer that were read.
    filled: usize,
}

impl Walker {
    /// From `position` of the segment at `base`, up to `limit` (both as positions).
    pub(super) fn open(
        storage: &Storage,
        codec: Codec,
        base: u64,
        position: u64,
        limit: u64,
    ) -> Result<Self, ReadError> {
        let name = name(base);
        let path = storage.display(&name);
        let file = match storage.open_read(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let cause = "the segment is missing".into();
                return Err(ReadError::Corrupt { file: path, offset: position - base, position, cause });
            }
            Err(error) => return Err(io_error(path, &error)),
        };
        Ok(Self {
            file,
            name,
            path,
            codec,
            base,
            position,
            limit,
            buffer: Vec::new(),
            buffer_position: 0,
            filled: 0,
        })
    }

    pub(super) const fn base(&self) -> u64 {
        self.base
    }

    pub(super) const fn position(&self) -> u64 {
        self.position
    }

    /// The file's bytes, which may be more or less than the limit says.
    pub(super) fn file_bytes(&self) -> Result<u64, ReadError> {
        self.file.length().map_err(|error| io_error(self.path.clone(), &error))
    }

    /// Whether it has not come to its limit.
    pub(super) const fn has_left(&self) -> bool {
        self.position < self.limit
    }

    /// More is there now.
    pub(super) fn extend(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// The file turned out to end there.
    pub(super) const fn limit_to(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// The next frame. After [`Step::Bad`] it stays where it is.
    pub(super) fn next(&mut self) -> Result<Step<'_>, ReadError> {
        if self.position >= self.limit {
            return Ok(Step::End);
        }
        let mut wanted = 1;
        loop {
            if self.buffered().len() < wanted {
                self.fill(wanted)?;
            }
            let buffer = self.buffered();
            if buffer.is_empty() {
                return Ok(self.bad("the file ends here, but the log goes on"));
            }
            if buffer.len() < wanted {
                return Ok(self.bad("the record is cut off"));
            }
            let needed = match frame::length(buffer) {
                Ok(bytes) => bytes,
                Err(None) => frame::PREFIX_BYTES,
                Err(Some(cause)) => return Ok(self.bad(cause)),
            };
            if needed as u64 > self.limit - self.position {
                return Ok(self.bad("the record runs past the end"));
            }
            if needed <= buffer.len() {
                break;
            }
            wanted = needed;
        }
        let position = self.position;
        let start = usize::try_from(position - self.buffer_position).expect("within the buffer");
        let buffer = self.buffer.get(start..self.filled).unwrap_or_default();
        Ok(match self.codec.decode(position, buffer) {
            Decoded::Whole { bytes, crc, item, .. } => {
                let bytes = bytes as u64;
                self.position += bytes;
                Step::Frame(Framed { position, bytes, crc, item })
            }
            Decoded::Short { .. } => Step::Bad { position, cause: "the record is cut off" },
            Decoded::Bad(cause) => Step::Bad { position, cause },
        })
    }

    const fn bad(&self, cause: &'static str) -> Step<'static> {
        Step::Bad { position: self.position, cause }
    }

    /// What was read already from the current position on.
    fn buffered(&self) -> &[u8] {
        let start =
            self.position.checked_sub(self.buffer_position).and_then(|start| usize::try_from(start).ok());
        start.and_then(|start| self.buffer.get(start..self.filled)).unwrap_or_default()
    }

    fn fill(&mut self, wanted: usize) -> Result<(), ReadError> {
        let bytes = CHUNK_BYTES.max(wanted as u64).min(self.limit - self.position);
        let bytes = usize::try_from(bytes).expect("a chunk or a frame fits the memory");
        if self.buffer.len() < bytes {
            self.buffer = vec![0; bytes];
        }
        let read = self.file.read_at(&mut self.buffer[..bytes], self.position - self.base);
        self.filled = read.map_err(|error| io_error(self.path.clone(), &error))?;
        self.buffer_position = self.position;
        Ok(())
    }

    /// The error for a bad frame at `position`.
    pub(super) fn corrupt(&self, position: u64, cause: impl Into<String>) -> ReadError {
        ReadError::Corrupt {
            file: self.path.clone(),
            offset: position - self.base,
            position,
            cause: cause.into(),
        }
    }

    /// Judges what stands from the current position, where no whole frame starts, to the end of the file: the bytes of
    /// a torn write, up to the last one that is not zero (0: the room was never written).
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] when a whole frame of a later write stands behind: what is here was durable before that
    /// write began, so it is damage. Frames of the same write prove nothing, for a power cut keeps pages in any order.
    pub(super) fn torn_bytes(&self, cause: &str) -> Result<u64, ReadError> {
        let origin = self.position;
        let end = self.base + self.file_bytes()?;
        let mut last_written = None;
        let mut at = origin;
        let mut chunk = Vec::new();
        while at < end {
            let bytes = usize::try_from((end - at).min(CHUNK_BYTES)).expect("a chunk fits the memory");
            chunk.resize(bytes, 0);
            let read = self.file.read_at(&mut chunk, at - self.base);
            let read = read.map_err(|error| io_error(self.path.clone(), &error))?;
            chunk.truncate(read);
            if let Some(index) = chunk.iter().rposition(|&byte| byte != 0) {
                last_written = Some(at + index as u64);
                if let Some(position) = self.later_write_in(&chunk, at, origin, end)? {
                    let cause = format!("{cause}, and a whole later record stands at position {position}");
                    return Err(self.corrupt(origin, cause));
                }
            }
            if read < frame::MAGIC.len() || at + read as u64 >= end {
                break;
            }
            // Chunks overlap, so that a magic number across two of them is seen.
            at += (read - (frame::MAGIC.len() - 1)) as u64;
        }
        Ok(last_written.map_or(0, |last| last + 1 - origin))
    }

    /// The first whole frame whose magic number lies in `chunk` and whose write began behind `origin`.
    fn later_write_in(&self, chunk: &[u8], at: u64, origin: u64, end: u64) -> Result<Option<u64>, ReadError> {
        let mut candidate = Vec::new();
        for (index, window) in chunk.windows(frame::MAGIC.len()).enumerate() {
            if window != frame::MAGIC {
                continue;
            }
            let position = at + index as u64;
            let mut wanted = frame::PREFIX_BYTES;
            while wanted as u64 <= end - position {
                candidate.resize(wanted, 0);
                let read = self.file.read_at(&mut candidate, position - self.base);
                if read.map_err(|error| io_error(self.path.clone(), &error))? < wanted {
                    break;
                }
                match self.codec.decode(position, &candidate) {
                    Decoded::Whole { write_start, .. } if write_start > origin => return Ok(Some(position)),
                    Decoded::Short { bytes } if bytes > wanted => wanted = bytes,
                    Decoded::Whole { .. } | Decoded::Short { .. } | Decoded::Bad(_) => break,
                }
            }
        }
        Ok(None)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

pub(super) fn io_error(file: String, error: &io::Error) -> ReadError {
    ReadError::Io { file, cause: error.to_string() }
}
