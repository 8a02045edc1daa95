//! What the disk does bare: a loop of one write and one fdatasync, in files allocated like the engine's segments.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use annals::base::{Clock, SystemClock};
use rustix::fs::FallocateFlags;

use super::writes::{Segment, Write};
use super::{Times, nanos, times};

/// What the loop took.
pub(crate) struct Bare {
    /// Each fdatasync alone.
    pub(crate) syncs: Times,
    /// All of it, with the writes.
    pub(crate) took: Duration,
}

/// As many single records of `bytes` bytes as fit `slice`, one behind the other in one file.
pub(crate) fn singles(dir: &Path, bytes: usize, slice: Duration) -> anyhow::Result<Bare> {
    const FILE_BYTES: u64 = 64 << 20;
    let path = dir.join("single");
    let file = allocated(&path, FILE_BYTES)?;
    let buffer = vec![b'a'; bytes];
    let (mut syncs, mut offset) = (times()?, 0);
    let started = SystemClock.monotonic();
    let mut now = started;
    while now.saturating_duration_since(started) < slice && offset + bytes as u64 <= FILE_BYTES {
        now = timed(&file, &buffer, offset, &mut syncs)?;
        offset += bytes as u64;
    }
    let took = now.saturating_duration_since(started);
    forget(dir, &[path])?;
    Ok(Bare { syncs, took })
}

/// The same writes once more: the same bytes at the same places of files that are as large, each write followed by one
/// fdatasync, and nothing else.
pub(crate) fn replay(dir: &Path, segments: &[Segment]) -> anyhow::Result<Bare> {
    let mut files = Vec::new();
    let mut paths = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let path = dir.join(format!("replay-{index}"));
        files.push(allocated(&path, segment.allocated_bytes)?);
        paths.push(path);
    }
    let largest = segments.iter().flat_map(|segment| &segment.writes).map(|write| write.bytes).max();
    let buffer = vec![b'a'; largest.unwrap_or(0)];
    let mut syncs = times()?;
    let started = SystemClock.monotonic();
    let mut now = started;
    for (file, segment) in files.iter().zip(segments) {
        for &Write { offset, bytes, .. } in &segment.writes {
            now = timed(file, &buffer[..bytes], offset, &mut syncs)?;
        }
    }
    let took = now.saturating_duration_since(started);
    forget(dir, &paths)?;
    Ok(Bare { syncs, took })
}

/// One write and one sync. Gives the time behind them.
fn timed(file: &File, buffer: &[u8], offset: u64, syncs: &mut Times) -> anyhow::Result<std::time::Instant> {
    file.write_all_at(buffer, offset)?;
    let written = SystemClock.monotonic();
    file.sync_data()?;
    let synced = SystemClock.monotonic();
    syncs.record(nanos(synced.saturating_duration_since(written)))?;
    Ok(synced)
}

/// A file with room on the disk, durable with its name.
fn allocated(path: &Path, bytes: u64) -> io::Result<File> {
    let file = File::create(path)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    file.sync_all()?;
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(file)
}

/// Removes files, durably, so that the next measurement does not pay for it.
fn forget(dir: &Path, paths: &[std::path::PathBuf]) -> io::Result<()> {
    for path in paths {
        std::fs::remove_file(path)?;
    }
    File::open(dir)?.sync_all()
}
