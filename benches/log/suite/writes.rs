//! Which writes the engine made, as its segment files tell: each frame says how far back its write began.
//! `docs/log-format.md` describes the bytes.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

/// Magic, length, checksum, distance to the write's start, kind.
const HEAD_BYTES: usize = 17;
const KIND_HEADER: u8 = 3;

/// The writes into one segment.
pub(crate) struct Segment {
    /// What was allocated for it, or what it took if that is more.
    pub(crate) allocated_bytes: u64,
    pub(crate) writes: Vec<Write>,
}

/// One write, which was followed by one sync.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write {
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    pub(crate) records: u64,
}

/// The writes of the closed log in `dir`, whose segments have `segment_bytes` bytes, without those of headers.
pub(crate) fn of_log(dir: &Path, segment_bytes: u64) -> anyhow::Result<Vec<Segment>> {
    let mut names: Vec<_> = fs::read_dir(dir)?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
        .collect();
    names.sort();
    let mut segments = Vec::new();
    for path in names {
        let bytes = fs::read(&path)?;
        let writes = of_segment(&bytes).with_context(|| path.display().to_string())?;
        if !writes.is_empty() {
            segments.push(Segment { allocated_bytes: segment_bytes.max(bytes.len() as u64), writes });
        }
    }
    Ok(segments)
}

fn of_segment(bytes: &[u8]) -> anyhow::Result<Vec<Write>> {
    let mut writes: Vec<Write> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let head = bytes.get(at..at + HEAD_BYTES).context("a frame is cut off")?;
        ensure!(head.starts_with(b"ANF1"), "no frame starts at byte {at}");
        let number =
            |from: usize| u32::from_be_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]]);
        let (length, back) = (usize::try_from(number(4))?, number(12));
        ensure!(length >= HEAD_BYTES, "the frame at byte {at} has an impossible length");
        if head[HEAD_BYTES - 1] != KIND_HEADER {
            match writes.last_mut().filter(|_| back > 0) {
                Some(write) => {
                    write.bytes += length;
                    write.records += 1;
                }
                None => writes.push(Write { offset: at as u64, bytes: length, records: 1 }),
            }
        }
        at += length;
    }
    Ok(writes)
}
