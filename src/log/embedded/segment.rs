//! Segment files: their names, and a walk over the frames of one. Never writes.

use std::io;

use super::frame::{Codec, Decoded, Item};
use super::storage::{ReadFile, Storage};
use crate::log::ReadError;

/// Bytes that one read asks for.
const CHUNK_BYTES: u64 = 1 << 20;

/// Where the next segment is prepared.
pub(super) const PREPARED: &str = "next.prepared";

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
    buffered: usize,
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
            buffered: 0,
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
        let mut wanted = 1;
        loop {
            if self.position >= self.limit {
                return Ok(Step::End);
            }
            let start = self.start();
            if start.is_none_or(|start| self.buffered - start < wanted) {
                self.fill(wanted)?;
            }
            let start = self.start().unwrap_or(0);
            let buffer = self.buffer.get(start..self.buffered).unwrap_or_default();
            if buffer.len() < wanted {
                let cause = if buffer.is_empty() {
                    "the file ends here, but the log goes on"
                } else {
                    "the record is cut off"
                };
                return Ok(self.bad(cause));
            }
            match self.codec.decode(self.position, buffer) {
                Decoded::Short { bytes } if bytes as u64 > self.limit - self.position => {
                    return Ok(self.bad("the record runs past the end"));
                }
                Decoded::Short { bytes } => wanted = bytes,
                Decoded::Bad(cause) => return Ok(self.bad(cause)),
                Decoded::Whole { .. } => break,
            }
        }
        self.take()
    }

    /// Decodes once more what [`Self::next`] found whole, to lend it out.
    fn take(&mut self) -> Result<Step<'_>, ReadError> {
        let position = self.position;
        let start = self.start().unwrap_or(0);
        let buffer = self.buffer.get(start..self.buffered).unwrap_or_default();
        match self.codec.decode(position, buffer) {
            Decoded::Whole { bytes, crc, item } => {
                let bytes = bytes as u64;
                self.position += bytes;
                Ok(Step::Frame(Framed { position, bytes, crc, item }))
            }
            Decoded::Short { .. } | Decoded::Bad(_) => Ok(Step::Bad { position, cause: "no frame" }),
        }
    }

    const fn bad(&self, cause: &'static str) -> Step<'static> {
        Step::Bad { position: self.position, cause }
    }

    fn start(&self) -> Option<usize> {
        let start = usize::try_from(self.position.checked_sub(self.buffer_position)?).ok()?;
        (start < self.buffered).then_some(start)
    }

    fn fill(&mut self, wanted: usize) -> Result<(), ReadError> {
        let bytes = CHUNK_BYTES.max(wanted as u64).min(self.limit - self.position);
        let bytes = usize::try_from(bytes).expect("a chunk or a frame fits the memory");
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes, 0);
        }
        let read = self.file.read_at(&mut self.buffer[..bytes], self.position - self.base);
        self.buffered = read.map_err(|error| io_error(self.path.clone(), &error))?;
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

    /// What stands from the current position to the end of the file.
    pub(super) fn rest(&mut self, file_bytes: u64) -> Result<Rest, ReadError> {
        let origin = self.position;
        let end = self.base + file_bytes;
        let mut last_written = None;
        let mut at = origin;
        // Chunks overlap by three bytes, so that a magic number across two is seen.
        while at < end {
            let bytes = usize::try_from((end - at).min(CHUNK_BYTES)).expect("a chunk fits the memory");
            let mut chunk = vec![0; bytes];
            let read = self.file.read_at(&mut chunk, at - self.base);
            let read = read.map_err(|error| io_error(self.path.clone(), &error))?;
            chunk.truncate(read);
            if let Some(index) = chunk.iter().rposition(|&byte| byte != 0) {
                last_written = Some(at + index as u64);
                if let Some(position) = self.frame_in(&chunk, at, origin, end)? {
                    return Ok(Rest::Frame(position));
                }
            }
            let step = read.saturating_sub(super::frame::MAGIC.len() - 1).max(1) as u64;
            if read < super::frame::MAGIC.len() || at + read as u64 >= end {
                break;
            }
            at += step;
        }
        Ok(last_written.map_or(Rest::Zeros, |last| Rest::Torn { bytes: last + 1 - origin }))
    }

    /// The first whole frame whose magic number lies in `chunk`, behind `origin`.
    fn frame_in(&self, chunk: &[u8], at: u64, origin: u64, end: u64) -> Result<Option<u64>, ReadError> {
        for (index, window) in chunk.windows(super::frame::MAGIC.len()).enumerate() {
            let position = at + index as u64;
            if window != super::frame::MAGIC || position == origin {
                continue;
            }
            let mut candidate = Vec::new();
            let mut wanted = super::frame::PREFIX_BYTES;
            loop {
                if wanted as u64 > end - position {
                    break;
                }
                candidate.resize(wanted, 0);
                let read = self.file.read_at(&mut candidate, position - self.base);
                if read.map_err(|error| io_error(self.path.clone(), &error))? < wanted {
                    break;
                }
                match self.codec.decode(position, &candidate) {
                    Decoded::Whole { .. } => return Ok(Some(position)),
                    Decoded::Short { bytes } if bytes > wanted => wanted = bytes,
                    Decoded::Short { .. } | Decoded::Bad(_) => break,
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

/// What stands behind the last good frame of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing, or room that was never written.
    Zeros,
    /// Bytes that are no frame, up to the last one that is not zero.
    Torn { bytes: u64 },
    /// A whole frame stands at this position, so what is before it is damage.
    Frame(u64),
}

pub(super) fn io_error(file: String, error: &io::Error) -> ReadError {
    ReadError::Io { file, cause: error.to_string() }
}
