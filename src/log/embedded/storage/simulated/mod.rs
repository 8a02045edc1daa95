//! A disk in memory for tests: it keeps apart what was synced and what is only cached, stops at a chosen operation, and
//! comes back as a machine does after a power cut, with any part of what was not synced. Knows nothing of logs.
//!
//! What it takes for granted, as the engine does: a sector of 512 bytes is written whole or not at all, and a rename
//! is whole or not at all. What it does not: any order between files, between the sectors of a file, between a file's length
//! and its bytes, or between names; a data sync covers the bytes and the length they need, not a cut.

mod cached;
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::cached::{Change, Content, Names, Renaming, Survival};
use super::{LOCK, LockError, Standing};

pub(crate) use self::cached::Random;

const SECTOR_BYTES: usize = 512;
const PAGE_BYTES: usize = 4096;

/// When a disk stops, as seen from an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Moment {
    Before,
    Within,
    Behind,
}

const MOMENTS: [Moment; 3] = [Moment::Before, Moment::Within, Moment::Behind];

/// Where a disk stopped.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    pub(crate) verb: &'static str,
    pub(crate) file: String,
    pub(crate) moment: Moment,
}

/// Another thread that works with the disk.
pub(crate) type Other = Box<dyn FnMut() + Send>;

/// See the module. Clones are the same disk.
#[derive(Clone)]
pub(crate) struct Disk {
    state: Arc<Mutex<State>>,
    other: Arc<Mutex<Option<Other>>>,
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a state of its own, and they go together in any way"
)]
#[derive(Debug, Clone)]
struct State {
    /// By number; an entry of a directory is a number.
    files: Vec<Content>,
    names: Names,
    random: Random,
    operations: u64,
    stop_at: Option<u64>,
    /// Stop at an operation on names only.
    with_names: bool,
    stopped: bool,
    stop: Option<Stop>,
    /// So many operations fail, behind that one, though the machine goes on.
    failing: u64,
    fails_from: u64,
    /// One failed since the machine was started.
    failed: bool,
    locked: bool,
    trace: Option<Vec<String>>,
}

/// How much of an operation happens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Whole,
    Part,
    /// It failed, as a device does: of a sync, nobody knows what it kept, and the system does not try again.
    Failed,
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Self {
        Self::of(State {
            files: Vec::new(),
            names: Names::default(),
            random: Random::new(seed),
            operations: 0,
            stop_at: None,
            with_names: false,
            stopped: false,
            stop: None,
            failing: 0,
            fails_from: 0,
            failed: false,
            locked: false,
            trace: None,
        })
    }

    fn of(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(state)), other: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An independent disk in the same state that never stops.
    pub(crate) fn fork(&self) -> Self {
        let mut state = self.state().clone();
        state.stop_at = None;
        state.failing = 0;
        state.trace = None;
        Self::of(state)
    }

    /// Remembers operations from now on.
    pub(crate) fn trace(&self) {
        self.state().trace.get_or_insert_default();
    }

    /// Puts a line between the remembered operations.
    pub(crate) fn note(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.state().trace {
            trace.push(line());
        }
    }

    /// What was remembered.
    pub(crate) fn traced(&self) -> Vec<String> {
        self.state().trace.clone().unwrap_or_default()
    }

    /// Stops before, in the middle of or after the `operations`-th operation from now, or the next one with names.
    pub(crate) fn stop_after(&self, operations: u64, with_names: bool) {
        let mut state = self.state();
        state.stop_at = Some(state.operations + operations);
        state.with_names = with_names;
    }

    /// After `spared` operations the next `count` fail, each having done nothing, a part or all of what it should.
    pub(crate) fn fail_after(&self, spared: u64, count: u64) {
        let mut state = self.state();
        state.fails_from = state.operations + spared;
        state.failing = count;
    }

    /// Nothing fails any more. Whether something had to fail still.
    pub(crate) fn heal(&self) -> bool {
        std::mem::take(&mut self.state().failing) > 0
    }

    /// An operation failed since the machine was started.
    pub(crate) fn failed(&self) -> bool {
        self.state().failed
    }

    /// It stopped: everything fails until it is started again.
    pub(crate) fn stopped(&self) -> bool {
        self.state().stopped
    }

    /// Starts again after a killed process: the cache is still there.
    pub(crate) fn restart(&self) {
        let mut state = self.state();
        state.stop_at = None;
        state.stopped = false;
        state.failing = 0;
        state.failed = false;
    }

    /// Starts again after a power cut.
    pub(crate) fn power_cut(&self) {
        self.restart();
        let mut state = self.state();
        let State { files, names, random, .. } = &mut *state;
        let (of_files, of_names) = match random.below(8) {
            0 => (Survival::Nothing, Survival::Nothing),
            1 => (Survival::All, Survival::All),
            2 => (Survival::Nothing, Survival::All),
            3 => (Survival::All, Survival::Nothing),
            _ => (Survival::Any, Survival::Any),
        };
        let grain = if random.below(2) == 0 { SECTOR_BYTES } else { PAGE_BYTES };
        names.cut(random, of_names);
        for file in files.iter_mut() {
            file.cut(random, of_files, grain);
        }
    }

    /// Does one operation: `verb` on the file that `file` names.
    fn operate(
        &self,
        verb: &'static str,
        file: impl FnOnce(&State) -> String,
        perform: impl FnOnce(&mut State, Extent) -> io::Result<()>,
    ) -> io::Result<()> {
        self.interrupt();
        let mut state = self.state();
        if state.stopped {
            return Err(off());
        }
        state.operations += 1;
        let stops = state.stop_at.is_some_and(|stop_at| state.operations >= stop_at)
            && (!state.with_names || verb.contains("name"));
        let fails = !stops && state.failing > 0 && state.operations > state.fails_from;
        let moment = if stops || fails { MOMENTS[state.random.below(3)] } else { Moment::Behind };
        if stops || state.trace.is_some() {
            let file = file(&state);
            let number = state.operations;
            if let Some(trace) = &mut state.trace {
                let ending = match (stops, fails) {
                    (true, _) => format!("  <- stopped {moment:?}"),
                    (false, true) => format!("  <- failed {moment:?}"),
                    (false, false) => String::new(),
                };
                trace.push(format!("{number:5} {verb} {file}{ending}"));
            }
            if stops {
                state.stop = Some(Stop { verb, file, moment });
            }
        }
        state.stopped = stops;
        state.failing -= u64::from(fails);
        state.failed |= fails;
        match moment {
            Moment::Before if fails && verb.contains("sync") => perform(&mut state, Extent::Failed)?,
            Moment::Before => {}
            Moment::Within => perform(&mut state, if fails { Extent::Failed } else { Extent::Part })?,
            Moment::Behind => perform(&mut state, Extent::Whole)?,
        }
        match (stops, fails) {
            (true, _) => Err(off()),
            (false, true) => Err(trouble(&mut state)),
            (false, false) => Ok(()),
        }
    }

    /// Lets the other thread have its turn, unless this is it.
    fn interrupt(&self) {
        let other = self.other.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut other) = other {
            other();
            *self.other.lock().unwrap_or_else(PoisonError::into_inner) = Some(other);
        }
    }

    /// `other` plays another thread: it is called before each operation but its own.
    pub(crate) fn interrupted_by(&self, other: Option<Other>) {
        *self.other.lock().unwrap_or_else(PoisonError::into_inner) = other;
    }

    /// Where it stopped last.
    pub(crate) fn stop(&self) -> Option<Stop> {
        self.state().stop.clone()
    }

    /// Where a file is, for reading.
    fn look<T>(&self, look: impl FnOnce(&State) -> io::Result<T>) -> io::Result<T> {
        let state = self.state();
        if state.stopped { Err(off()) } else { look(&state) }
    }

    pub(super) fn make(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        if self.look(|state| Ok(state.names.made))? {
            return Ok(Vec::new());
        }
        self.operate(
            "make",
            |_| "the directory".into(),
            |state, _| {
                state.names.made = true;
                Ok(())
            },
        )?;
        Ok(vec![dir.to_owned()])
    }

    pub(super) fn sync_above(&self) -> io::Result<()> {
        self.operate(
            "sync the name of",
            |_| "the directory".into(),
            |state, extent| {
                state.names.made_durably |= extent == Extent::Whole;
                Ok(())
            },
        )
    }

    pub(super) fn lock(&self) -> Result<Lock, LockError> {
        let mut state = self.state();
        if state.stopped {
            return Err(LockError::Io(off()));
        }
        if std::mem::replace(&mut state.locked, true) {
            return Err(LockError::Held { file: PathBuf::from(LOCK), pid: None });
        }
        Ok(Lock(self.clone()))
    }

    pub(super) fn list(&self) -> io::Result<Vec<String>> {
        self.look(|state| Ok(state.names.seen.keys().cloned().collect()))
    }

    pub(super) fn length(&self, name: &str) -> io::Result<Option<u64>> {
        self.look(|state| Ok(state.find(name).map(|file| file.seen.len() as u64)))
    }

    pub(super) fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.look(|state| Ok(state.find(name).map(|file| file.seen.clone())))
    }

    pub(super) fn open_read(&self, name: &str) -> io::Result<File> {
        let file = self.look(|state| {
            state.names.seen.get(name).copied().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        })?;
        Ok(File { disk: self.clone(), file })
    }

    pub(super) fn open_write(&self, name: &str) -> io::Result<File> {
        if self.look(|state| Ok(state.find(name).is_none()))? {
            self.operate(
                "create",
                |_| name.to_owned(),
                |state, _| {
                    let file = state.files.len();
                    state.files.push(Content::default());
                    state.names.change(Renaming { file, from: None, to: Some(name.to_owned()) });
                    Ok(())
                },
            )?;
        }
        self.open_read(name)
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.operate(
            "rename",
            |_| from.to_owned(),
            |state, _| {
                let file = state.names.seen.get(from).copied();
                let file = file.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
                state.names.change(Renaming { file, from: Some(from.to_owned()), to: Some(to.to_owned()) });
                Ok(())
            },
        )
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        if self.look(|state| Ok(state.find(name).is_none()))? {
            return Ok(());
        }
        self.operate(
            "remove",
            |_| name.to_owned(),
            |state, _| {
                if let Some(&file) = state.names.seen.get(name) {
                    state.names.change(Renaming { file, from: Some(name.to_owned()), to: None });
                }
                Ok(())
            },
        )
    }

    pub(super) fn sync_dir(&self) -> io::Result<()> {
        self.operate(
            "sync the names of",
            |_| "the directory".into(),
            |state, extent| {
                if extent == Extent::Whole {
                    state.names.durable.clone_from(&state.names.seen);
                    state.names.pending.clear();
                }
                Ok(())
            },
        )
    }
}

fn off() -> io::Error {
    io::Error::other("the machine is off")
}

fn trouble(state: &mut State) -> io::Error {
    let kinds = [io::ErrorKind::Other, io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem];
    io::Error::new(kinds[state.random.below(3)], "the device failed")
}

impl State {
    fn find(&self, name: &str) -> Option<&Content> {
        self.names.seen.get(name).and_then(|&file| self.files.get(file))
    }

    /// What a file is called, for the trace.
    fn name_of(&self, file: usize) -> &str {
        let found = self.names.seen.iter().find(|&(_, &named)| named == file);
        found.map_or("a file without name", |(name, _)| name)
    }
}

/// An open file.
pub(crate) struct File {
    disk: Disk,
    file: usize,
}

impl File {
    pub(super) fn length(&self) -> io::Result<u64> {
        self.disk.look(|state| Ok(state.files[self.file].seen.len() as u64))
    }

    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.look(|state| {
            let bytes = usize::try_from(offset).ok().and_then(|at| state.files[self.file].seen.get(at..));
            let bytes = bytes.unwrap_or_default();
            let count = bytes.len().min(buffer.len());
            buffer[..count].copy_from_slice(&bytes[..count]);
            Ok(count)
        })
    }

    pub(super) fn standing(&self, name: &str) -> io::Result<Standing> {
        self.disk.look(|state| {
            Ok(match state.names.seen.get(name) {
                None => Standing::Missing,
                Some(&file) if file == self.file => {
                    Standing::Same { bytes: state.files[file].seen.len() as u64 }
                }
                Some(_) => Standing::Replaced,
            })
        })
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        self.disk.operate(
            "write",
            |state| state.name_of(self.file).to_owned(),
            |state, extent| {
                let mut end = bytes.len();
                if extent != Extent::Whole {
                    // Up to the start of one of the sectors that it touches.
                    let sector = offset / SECTOR_BYTES + state.random.below(bytes.len() / SECTOR_BYTES + 2);
                    end = (sector * SECTOR_BYTES).saturating_sub(offset).min(end);
                }
                state.files[self.file].change(Change::Write { offset, bytes: bytes[..end].to_vec() });
                Ok(())
            },
        )
    }

    pub(super) fn truncate(&self, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        self.disk.operate(
            "set the length of",
            |state| state.name_of(self.file).to_owned(),
            |state, _| {
                state.files[self.file].change(Change::Length(bytes));
                Ok(())
            },
        )
    }

    pub(super) fn sync_data(&self) -> io::Result<()> {
        self.disk.operate(
            "sync the data of",
            |state| state.name_of(self.file).to_owned(),
            |state, extent| {
                let State { files, random, .. } = state;
                let content = &mut files[self.file];
                if extent == Extent::Failed {
                    content.fail(random);
                }
                if extent == Extent::Whole {
                    let last =
                        content.pending.iter().rposition(|change| matches!(change, Change::Write { .. }));
                    let Content { durable, pending, .. } = content;
                    for change in pending.drain(..last.map_or(0, |last| last + 1)) {
                        change.apply(durable);
                    }
                }
                Ok(())
            },
        )
    }

    pub(super) fn sync_all(&self) -> io::Result<()> {
        self.disk.operate(
            "sync",
            |state| state.name_of(self.file).to_owned(),
            |state, extent| {
                let State { files, random, .. } = state;
                let content = &mut files[self.file];
                if extent == Extent::Failed {
                    content.fail(random);
                }
                if extent == Extent::Whole && !content.betrayed {
                    content.durable.clone_from(&content.seen);
                    content.pending.clear();
                } else if extent == Extent::Whole {
                    let Content { durable, pending, .. } = content;
                    for change in pending.drain(..) {
                        change.apply(durable);
                    }
                }
                Ok(())
            },
        )
    }
}

/// Gives the lock back when it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(Disk);

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").finish_non_exhaustive()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.state().locked = false;
    }
}
