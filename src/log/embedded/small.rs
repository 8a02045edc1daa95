//! The small files beside the segments: the log's identity, the watermark and the index of a segment. Pure bytes.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::frame::{Fields, State, TARGETS, VERSION, decode_state, encode_state};
use super::tracker::{Mark, Tracker};
use crate::event::LogCut;
use crate::log::LogId;

/// The identity's file.
pub(super) const IDENTITY: &str = "log.json";
/// The watermark's file.
pub(super) const WATERMARK: &str = "watermark";

/// The anchor's file: where the log starts, once segments were dropped.
pub(super) const ANCHOR: &str = "anchor.json";

const FORMAT: &str = "annals-log";
const ANCHOR_FORMAT: &str = "annals-log-anchor";
const WATERMARK_MAGIC: [u8; 4] = *b"ANW1";
const INDEX_MAGIC: [u8; 4] = *b"ANI1";

#[derive(Serialize, Deserialize)]
struct IdentityFile {
    format: String,
    version: u16,
    log_id: Uuid,
    crc32c: String,
}

/// Why an identity file is no good.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IdentityError {
    Damaged(&'static str),
    Version(u16),
}

/// The identity file of `log`.
pub(super) fn encode_identity(log: LogId) -> Vec<u8> {
    let crc32c = format!("{:08x}", crc32c::crc32c(log.0.as_bytes()));
    let file = IdentityFile { format: FORMAT.into(), version: VERSION, log_id: log.0, crc32c };
    let mut bytes = serde_json::to_vec(&file).expect("strings and numbers always serialise");
    bytes.push(b'\n');
    bytes
}

/// Reads what [`encode_identity`] wrote, byte for byte.
pub(super) fn decode_identity(bytes: &[u8]) -> Result<LogId, IdentityError> {
    let file: IdentityFile = serde_json::from_slice(bytes)
        .map_err(|_| IdentityError::Damaged("it is not the identity of a log"))?;
    if file.format == FORMAT && file.version > VERSION {
        return Err(IdentityError::Version(file.version));
    }
    let log = LogId(file.log_id);
    if encode_identity(log) == bytes { Ok(log) } else { Err(IdentityError::Damaged("it was changed")) }
}

#[derive(Serialize, Deserialize)]
struct AnchorFile {
    format: String,
    version: u16,
    log_id: Uuid,
    cut: LogCut,
    crc32c: String,
}

/// The anchor file of `log`, which starts at `cut`.
pub(super) fn encode_anchor(log: LogId, cut: &LogCut) -> Vec<u8> {
    let covered = serde_json::to_vec(&(log.0, cut)).expect("strings and numbers always serialise");
    let crc32c = format!("{:08x}", crc32c::crc32c(&covered));
    let (format, cut) = (ANCHOR_FORMAT.into(), cut.clone());
    let file = AnchorFile { format, version: VERSION, log_id: log.0, cut, crc32c };
    let mut bytes = serde_json::to_vec(&file).expect("strings and numbers always serialise");
    bytes.push(b'\n');
    bytes
}

/// Reads what [`encode_anchor`] wrote for `log`, byte for byte; else what is wrong with it.
pub(super) fn decode_anchor(log: LogId, bytes: &[u8]) -> Result<LogCut, &'static str> {
    let file: AnchorFile = serde_json::from_slice(bytes).map_err(|_| "it is not the anchor of a log")?;
    if file.format == ANCHOR_FORMAT && file.version > VERSION {
        return Err("its version is newer than this program knows");
    }
    if file.log_id != log.0 {
        return Err("it is the anchor of another log");
    }
    let follow = file.cut.segments.windows(2).all(|pair| matches!(pair, [one, next] if one.end == next.base));
    if file.cut.segments.last().is_none_or(|last| last.end != file.cut.first) || !follow {
        return Err("the segments that it drops do not end where the log starts");
    }
    if encode_anchor(log, &file.cut) == bytes { Ok(file.cut) } else { Err("it was changed") }
}

/// How far the log is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Watermark {
    /// Everything before this position is durable.
    pub(super) end: u64,
    /// The log was closed there, and nothing was written since.
    pub(super) clean: bool,
}

impl Watermark {
    /// Bytes of its file.
    pub(super) const BYTES: u64 = 36;

    pub(super) fn encode(self, log: LogId) -> Vec<u8> {
        let mut out = Vec::with_capacity(36);
        out.extend_from_slice(&WATERMARK_MAGIC);
        out.extend_from_slice(log.0.as_bytes());
        out.extend_from_slice(&self.end.to_be_bytes());
        out.extend_from_slice(&[u8::from(self.clean), 0, 0, 0]);
        seal(out)
    }

    /// `None` when the bytes are damaged or of another log.
    pub(super) fn decode(log: LogId, bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(unseal(bytes)?);
        (fields.take()? == WATERMARK_MAGIC && fields.uuid()? == log.0).then_some(())?;
        let end = fields.u64()?;
        match (fields.take::<4>()?, fields.0) {
            ([clean @ (0 | 1), 0, 0, 0], []) => Some(Self { end, clean: clean == 1 }),
            _ => None,
        }
    }
}

/// The index of one segment: derived from its frames, and remade from them when it is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SegmentIndex {
    pub(super) base: u64,
    /// Behind the last frame.
    pub(super) end: u64,
    /// The rolling checksum there.
    pub(super) rolling: u32,
    /// Records before the segment.
    pub(super) base_counts: Vec<u64>,
    pub(super) marks: Vec<Mark>,
    /// Counts and open lanes at the end.
    pub(super) state: State,
}

impl SegmentIndex {
    /// Of the segment that `tracker` stands in, which ends at `end`.
    pub(super) fn of(tracker: &Tracker, end: u64) -> Self {
        Self {
            base: tracker.base(),
            end,
            rolling: tracker.rolling(),
            base_counts: tracker.base_counts().to_vec(),
            marks: tracker.marks().to_vec(),
            state: tracker.state(),
        }
    }

    /// The tracker that this was made of.
    pub(super) fn into_tracker(self) -> Tracker {
        Tracker::resumed(self.base, self.base_counts, self.marks, self.rolling, self.state)
    }

    pub(super) fn encode(&self, log: LogId) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&INDEX_MAGIC);
        out.extend_from_slice(log.0.as_bytes());
        out.extend_from_slice(&self.base.to_be_bytes());
        out.extend_from_slice(&self.end.to_be_bytes());
        out.extend_from_slice(&self.rolling.to_be_bytes());
        encode_state(&Tracker::at(self.base, self.rolling, self.state.clone()), &mut out);
        for count in &self.base_counts {
            out.extend_from_slice(&count.to_be_bytes());
        }
        out.extend_from_slice(&u32::try_from(self.marks.len()).expect("few marks").to_be_bytes());
        for mark in &self.marks {
            out.extend_from_slice(&mark.offset.to_be_bytes());
            for count in &mark.counts {
                out.extend_from_slice(&count.to_be_bytes());
            }
        }
        seal(out)
    }

    /// `None` when the bytes are damaged or of another log.
    pub(super) fn decode(log: LogId, bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(unseal(bytes)?);
        (fields.take()? == INDEX_MAGIC && fields.uuid()? == log.0).then_some(())?;
        let (base, end, rolling) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let state = decode_state(&mut fields)?;
        (state.counts.len() == TARGETS).then_some(())?;
        let base_counts = (0..TARGETS).map(|_| fields.u64()).collect::<Option<Vec<u64>>>()?;
        let mut marks = Vec::new();
        for _ in 0..fields.u32()? {
            let offset = fields.u64()?;
            let counts = (0..TARGETS).map(|_| fields.u32()).collect::<Option<Vec<u32>>>()?;
            marks.push(Mark { offset, counts });
        }
        fields.0.is_empty().then_some(Self { base, end, rolling, base_counts, marks, state })
    }
}

fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes
}

fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (content, crc) = bytes.split_last_chunk::<4>()?;
    (crc32c::crc32c(content) == u32::from_be_bytes(*crc)).then_some(content)
}
