//! Every file operation of the embedded log, and nothing else: no frames, no positions, no decisions.
//!
//! No other module of the engine may touch `std::fs`. What is written is durable only after the matching `sync`;
//! a name only after [`Storage::sync_dir`].

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FallocateFlags;

/// One operation, as an observer sees it before it happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Operation {
    Write { file: String, offset: u64, bytes: usize },
    SyncData { file: String },
    SyncAll { file: String },
    Truncate { file: String, bytes: u64 },
    Allocate { file: String, bytes: u64 },
    Rename { from: String, to: String },
    Remove { file: String },
    SyncDir,
}

/// Sees each operation before it happens, and may make it fail.
pub(super) type Observer = Arc<dyn Fn(&Operation) -> io::Result<()> + Send + Sync>;

/// The log's directory.
#[derive(Clone)]
pub(super) struct Storage {
    dir: PathBuf,
    observer: Option<Observer>,
}

/// Who holds the lock, as far as its file says.
#[derive(Debug)]
pub(super) enum LockError {
    Held { file: PathBuf, pid: Option<u32> },
    Io(io::Error),
}

/// The log is ours until this is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

const LOCK: &str = "lock";

impl Storage {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), observer: None }
    }

    #[cfg(test)]
    pub(super) fn observed(dir: &Path, observer: Observer) -> Self {
        Self { dir: dir.to_owned(), observer: Some(observer) }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The full path of a file, for messages.
    pub(super) fn display(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn observe(&self, operation: impl FnOnce() -> Operation) -> io::Result<()> {
        self.observer.as_ref().map_or(Ok(()), |observer| observer(&operation()))
    }

    /// Makes the directory (mode 0700) when it is not there, durably.
    pub(super) fn create_dir(&self) -> io::Result<()> {
        if self.dir.is_dir() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        match self.dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
            _ => File::open(".")?.sync_all(),
        }
    }

    /// Takes the lock and writes our process id into its file.
    pub(super) fn lock(&self) -> Result<Lock, LockError> {
        let path = self.dir.join(LOCK);
        let mut file =
            options().read(true).create(true).truncate(false).open(&path).map_err(LockError::Io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(LockError::Held { file: path, pid });
            }
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
        }
        file.set_len(0).map_err(LockError::Io)?;
        writeln!(file, "{}", std::process::id()).map_err(LockError::Io)?;
        Ok(Lock { _file: file })
    }

    /// Keeps writers out while the result lives; `None` while one owns the log.
    pub(super) fn lock_shared(&self) -> io::Result<Option<Lock>> {
        let file = match File::open(self.dir.join(LOCK)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The names in the directory, in no order.
    pub(super) fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The bytes in a file; `None` when it is not there.
    pub(super) fn length(&self, name: &str) -> io::Result<Option<u64>> {
        match std::fs::metadata(self.dir.join(name)) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All of a small file; `None` when it is not there.
    pub(super) fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.dir.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a file for reading.
    pub(super) fn open_read(&self, name: &str) -> io::Result<ReadFile> {
        Ok(ReadFile { file: File::open(self.dir.join(name))? })
    }

    /// Opens a file for reading and writing; makes it when it is not there.
    pub(super) fn open_write(&self, name: &str) -> io::Result<WriteFile> {
        let file = options().read(true).create(true).truncate(false).open(self.dir.join(name))?;
        Ok(WriteFile { file, name: name.to_owned(), storage: self.clone() })
    }

    /// Puts `bytes` into `name` in one step and durably: a reader sees the old file or the new one, whole.
    pub(super) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!("{name}.tmp");
        let file = self.open_write(&temporary)?;
        file.truncate(0)?;
        file.write_at(bytes, 0)?;
        file.sync_all()?;
        self.rename(&temporary, name)?;
        self.sync_dir()
    }

    /// Makes a file with room for `bytes` bytes that really exists on the disk, durably but for its name.
    pub(super) fn create_allocated(&self, name: &str, bytes: u64) -> io::Result<WriteFile> {
        let file = self.open_write(name)?;
        file.truncate(0)?;
        file.allocate(bytes)?;
        file.sync_all()?;
        Ok(file)
    }

    /// Renames; durable after [`Storage::sync_dir`].
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.observe(|| Operation::Rename { from: from.to_owned(), to: to.to_owned() })?;
        std::fs::rename(self.dir.join(from), self.dir.join(to))
    }

    /// Removes a file when it is there.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        self.observe(|| Operation::Remove { file: name.to_owned() })?;
        match std::fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the names in the directory durable.
    pub(super) fn sync_dir(&self) -> io::Result<()> {
        self.observe(|| Operation::SyncDir)?;
        File::open(&self.dir)?.sync_all()
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// A file that is only read.
#[derive(Debug)]
pub(super) struct ReadFile {
    file: File,
}

impl ReadFile {
    pub(super) fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Fills `buffer` from `offset` as far as the file goes; returns the bytes read.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while let Some(rest) = buffer.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }
}

/// A file that is written.
pub(super) struct WriteFile {
    file: File,
    name: String,
    storage: Storage,
}

impl WriteFile {
    /// Names it as it is called now, after a rename.
    pub(super) fn renamed(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.storage.observe(|| Operation::Write { file: self.name.clone(), offset, bytes: bytes.len() })?;
        self.file.write_all_at(bytes, offset)
    }

    /// Makes the bytes durable.
    pub(super) fn sync_data(&self) -> io::Result<()> {
        self.storage.observe(|| Operation::SyncData { file: self.name.clone() })?;
        self.file.sync_data()
    }

    /// Makes the bytes and the length durable.
    pub(super) fn sync_all(&self) -> io::Result<()> {
        self.storage.observe(|| Operation::SyncAll { file: self.name.clone() })?;
        self.file.sync_all()
    }

    pub(super) fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.storage.observe(|| Operation::Truncate { file: self.name.clone(), bytes })?;
        self.file.set_len(bytes)
    }

    /// Gives an empty file `bytes` bytes of zeros that occupy the disk.
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.storage.observe(|| Operation::Allocate { file: self.name.clone(), bytes })?;
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(()),
            // Some file systems cannot; zeros that were written occupy the disk as well.
            Err(rustix::io::Errno::OPNOTSUPP) => {
                let zeros = vec![0; 1 << 20];
                let mut offset = 0;
                while offset < bytes {
                    let step = (bytes - offset).min(zeros.len() as u64);
                    let chunk = usize::try_from(step).map_or(&zeros[..], |step| &zeros[..step]);
                    self.file.write_all_at(chunk, offset)?;
                    offset += step;
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
