//! On what a figure was measured, and whether there is room for the measurement.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use tempfile::TempDir;

/// Read once, when a measurement starts.
#[derive(Debug)]
pub(crate) struct Machine {
    cores: usize,
    processor: String,
    kernel: String,
    file_system: String,
    load: String,
}

impl Machine {
    /// This machine, with the file system that holds `dir`.
    pub(crate) fn of(dir: &Path) -> anyhow::Result<Self> {
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            processor: processor.map_or("unknown processor", |(_, name)| name).trim().to_owned(),
            kernel: kernel.trim().to_owned(),
            file_system: file_system(&fs::canonicalize(dir)?),
            load: load(),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, processor, kernel, file_system, load } = self;
        write!(
            f,
            "{cores} cores ({processor}), Linux {kernel}, {file_system}; load average {load} before, {} after",
            self::load()
        )
    }
}

/// Processes that were running or waiting to run, on average over one minute.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

fn file_system(dir: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut found: Option<(PathBuf, &str)> = None;
    for mount in mounts.lines() {
        let mut fields = mount.split(' ').skip(1);
        let (Some(point), Some(kind)) = (fields.next().map(PathBuf::from), fields.next()) else { continue };
        // The last of several on one point hides the others.
        if dir.starts_with(&point) && found.as_ref().is_none_or(|(best, _)| point.starts_with(best)) {
            found = Some((point, kind));
        }
    }
    found.map_or("unknown file system", |(_, kind)| kind).to_owned()
}

/// A directory below `dir` that is removed when it is dropped, on a disk with room for `bytes` and a margin.
pub(crate) fn scratch(dir: &Path, bytes: u64) -> anyhow::Result<TempDir> {
    const MARGIN_BYTES: u64 = 1 << 30;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let disk = rustix::fs::statvfs(dir)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    ensure!(
        free >= bytes.saturating_add(MARGIN_BYTES),
        "{} has {free} bytes free, and this needs {bytes} and 1 GiB to spare: choose another --dir or less work",
        dir.display()
    );
    Ok(tempfile::Builder::new().prefix("annals-bench-").tempdir_in(dir)?)
}
