//! Every file operation of the embedded log, and nothing else: no frames, no positions, no decisions.
//!
//! No other module of the engine may touch `std::fs`. What is written is durable only after the matching `sync`;
//! a name only after [`Storage::sync_dir`]. Below it lies a medium: `directory` is the real one, and for tests
//! `simulated` is a disk in memory that loses what was not synced.

mod directory;
#[cfg(test)]
pub(super) mod simulated;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::planted;

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
    /// Where the lock is, which is looked at with each ack.
    lock: PathBuf,
    medium: Medium,
    observer: Option<Observer>,
}

/// What holds the files.
#[derive(Clone)]
enum Medium {
    Directory,
    #[cfg(test)]
    Simulated(simulated::Disk),
}

/// An open file of a medium.
#[derive(Debug)]
enum Handle {
    Directory(File),
    #[cfg(test)]
    Simulated(simulated::File),
}

/// Who holds the lock, as far as its file says.
#[derive(Debug)]
pub(super) enum LockError {
    Held { file: PathBuf, pid: Option<u32> },
    Io(io::Error),
}

/// The log is ours until this is dropped.
#[derive(Debug)]
pub(super) enum Lock {
    Directory {
        _file: File,
    },
    #[cfg(test)]
    Simulated {
        _lock: simulated::Lock,
    },
}

/// Whether an open file is still the one that its name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is, and has this many bytes.
    Same { bytes: u64 },
    /// Nothing has its name.
    Missing,
    /// Another file has its name.
    Replaced,
}

/// Which file of the system something is, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

/// Segments are kept, or nobody keeps them, until this is dropped.
#[derive(Debug)]
pub(super) struct Keep {
    _file: Option<File>,
}

const LOCK: &str = "lock";
const KEEP: &str = "keep";

impl Storage {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), lock: dir.join(LOCK), medium: Medium::Directory, observer: None }
    }

    #[cfg(test)]
    pub(super) fn observed(dir: &Path, observer: Observer) -> Self {
        Self { observer: Some(observer), ..Self::new(dir) }
    }

    #[cfg(test)]
    pub(super) fn simulated(dir: &Path, disk: simulated::Disk) -> Self {
        Self { medium: Medium::Simulated(disk), ..Self::new(dir) }
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

    /// Makes the directory (mode 0700) when it is not there. Its name is durable afterwards, whoever made it.
    pub(super) fn create_dir(&self) -> io::Result<()> {
        let made = match &self.medium {
            Medium::Directory => directory::make(&self.dir)?,
            #[cfg(test)]
            Medium::Simulated(disk) => disk.make(&self.dir)?,
        };
        for level in &made {
            self.sync_above(level)?;
        }
        if !made.is_empty() || planted::armed("directory_without_sync") {
            return Ok(());
        }
        // The process that made it may have died before this.
        match self.sync_above(&self.dir) {
            // Then it was made by someone else: by an administrator, or as a mount point, of which alone it is true that the
            // directory above takes no writes and this one does.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            Err(error)
                if error.kind() == io::ErrorKind::ReadOnlyFilesystem
                    && (self.is_mount_point() || planted::armed("read_only_parent_believed")) =>
            {
                Ok(())
            }
            result => result,
        }
    }

    fn is_mount_point(&self) -> bool {
        match &self.medium {
            Medium::Directory => directory::is_mount_point(&self.dir),
            #[cfg(test)]
            Medium::Simulated(_) => false,
        }
    }

    fn sync_above(&self, dir: &Path) -> io::Result<()> {
        match &self.medium {
            Medium::Directory => directory::sync_above(dir),
            #[cfg(test)]
            Medium::Simulated(disk) => disk.sync_above(),
        }
    }

    /// Takes the lock and writes our process id into its file.
    pub(super) fn lock(&self) -> Result<Lock, LockError> {
        match &self.medium {
            Medium::Directory => directory::lock(&self.dir).map(|file| Lock::Directory { _file: file }),
            #[cfg(test)]
            Medium::Simulated(disk) => disk.lock().map(|lock| Lock::Simulated { _lock: lock }),
        }
    }

    /// Keeps writers out while the result lives; `None` while one owns the log.
    pub(super) fn lock_shared(&self) -> io::Result<Option<Lock>> {
        match &self.medium {
            Medium::Directory => {
                Ok(directory::lock_shared(&self.dir)?.map(|file| Lock::Directory { _file: file }))
            }
            #[cfg(test)]
            Medium::Simulated(disk) => Ok(disk.lock().ok().map(|lock| Lock::Simulated { _lock: lock })),
        }
    }

    /// Which file is the lock now; `None` when there is none.
    pub(super) fn lock_id(&self) -> io::Result<Option<FileId>> {
        match &self.medium {
            Medium::Directory => directory::id(&self.lock),
            #[cfg(test)]
            Medium::Simulated(_) => Ok(Some(FileId { device: 0, inode: 0 })),
        }
    }

    /// Whether the directory is there.
    pub(super) fn is_there(&self) -> bool {
        match &self.medium {
            Medium::Directory => self.dir.is_dir(),
            #[cfg(test)]
            Medium::Simulated(_) => true,
        }
    }

    /// Whether the file system takes no writes.
    pub(super) fn is_read_only(&self) -> io::Result<bool> {
        match &self.medium {
            Medium::Directory => directory::is_read_only(&self.dir),
            #[cfg(test)]
            Medium::Simulated(_) => Ok(false),
        }
    }

    /// Keeps segments from being dropped (shared), or makes sure that nobody keeps them (`alone`); `None` while others
    /// stand in the way.
    pub(super) fn keep(&self, alone: bool) -> io::Result<Option<Keep>> {
        match &self.medium {
            Medium::Directory => {
                Ok(directory::keep(&self.dir, alone)?.map(|file| Keep { _file: Some(file) }))
            }
            #[cfg(test)]
            Medium::Simulated(_) => Ok(Some(Keep { _file: None })),
        }
    }

    /// The names in the directory, in no order.
    pub(super) fn list(&self) -> io::Result<Vec<String>> {
        match &self.medium {
            Medium::Directory => directory::list(&self.dir),
            #[cfg(test)]
            Medium::Simulated(disk) => disk.list(),
        }
    }

    /// The bytes in a file; `None` when it is not there.
    pub(super) fn length(&self, name: &str) -> io::Result<Option<u64>> {
        match &self.medium {
            Medium::Directory => directory::length(&self.dir.join(name)),
            #[cfg(test)]
            Medium::Simulated(disk) => disk.length(name),
        }
    }

    /// All of a small file; `None` when it is not there.
    pub(super) fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match &self.medium {
            Medium::Directory => directory::read(&self.dir.join(name)),
            #[cfg(test)]
            Medium::Simulated(disk) => disk.read(name),
        }
    }

    /// Opens a file for reading.
    pub(super) fn open_read(&self, name: &str) -> io::Result<ReadFile> {
        let handle = match &self.medium {
            Medium::Directory => Handle::Directory(File::open(self.dir.join(name))?),
            #[cfg(test)]
            Medium::Simulated(disk) => Handle::Simulated(disk.open_read(name)?),
        };
        Ok(ReadFile { handle })
    }

    /// Opens a file for reading and writing; makes it when it is not there.
    pub(super) fn open_write(&self, name: &str) -> io::Result<WriteFile> {
        let handle = match &self.medium {
            Medium::Directory => Handle::Directory(directory::open_write(&self.dir.join(name))?),
            #[cfg(test)]
            Medium::Simulated(disk) => Handle::Simulated(disk.open_write(name)?),
        };
        Ok(WriteFile { handle, name: name.to_owned(), path: self.dir.join(name), storage: self.clone() })
    }

    /// Opens a file that is there for reading and writing.
    pub(super) fn open_existing(&self, name: &str) -> io::Result<WriteFile> {
        let handle = match &self.medium {
            Medium::Directory => Handle::Directory(directory::open_existing(&self.dir.join(name))?),
            #[cfg(test)]
            Medium::Simulated(disk) => Handle::Simulated(disk.open_read(name)?),
        };
        Ok(WriteFile { handle, name: name.to_owned(), path: self.dir.join(name), storage: self.clone() })
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
        match &self.medium {
            Medium::Directory => std::fs::rename(self.dir.join(from), self.dir.join(to)),
            #[cfg(test)]
            Medium::Simulated(disk) => disk.rename(from, to),
        }
    }

    /// Removes a file when it is there.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        self.observe(|| Operation::Remove { file: name.to_owned() })?;
        match &self.medium {
            Medium::Directory => directory::remove(&self.dir.join(name)),
            #[cfg(test)]
            Medium::Simulated(disk) => disk.remove(name),
        }
    }

    /// Makes the names in the directory durable.
    pub(super) fn sync_dir(&self) -> io::Result<()> {
        self.observe(|| Operation::SyncDir)?;
        match &self.medium {
            Medium::Directory => directory::sync(&self.dir),
            #[cfg(test)]
            Medium::Simulated(disk) => disk.sync_dir(),
        }
    }
}

/// A file that is only read.
#[derive(Debug)]
pub(super) struct ReadFile {
    handle: Handle,
}

impl ReadFile {
    pub(super) fn length(&self) -> io::Result<u64> {
        match &self.handle {
            Handle::Directory(file) => Ok(file.metadata()?.len()),
            #[cfg(test)]
            Handle::Simulated(file) => file.length(),
        }
    }

    /// Fills `buffer` from `offset` as far as the file goes; returns the bytes read.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.handle {
            Handle::Directory(file) => directory::read_at(file, buffer, offset),
            #[cfg(test)]
            Handle::Simulated(file) => file.read_at(buffer, offset),
        }
    }
}

/// A file that is written.
pub(super) struct WriteFile {
    handle: Handle,
    name: String,
    path: PathBuf,
    storage: Storage,
}

impl WriteFile {
    /// What it is called.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// How it stands to its name.
    pub(super) fn standing(&self) -> io::Result<Standing> {
        match &self.handle {
            Handle::Directory(file) => directory::standing(file, &self.path),
            #[cfg(test)]
            Handle::Simulated(file) => file.standing(&self.name),
        }
    }

    /// Fills `buffer` from `offset` as far as the file goes; returns the bytes read.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.handle {
            Handle::Directory(file) => directory::read_at(file, buffer, offset),
            #[cfg(test)]
            Handle::Simulated(file) => file.read_at(buffer, offset),
        }
    }

    /// Names it as it is called now, after a rename.
    pub(super) fn renamed(&mut self, name: &str) {
        name.clone_into(&mut self.name);
        self.path = self.storage.dir.join(name);
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.storage.observe(|| Operation::Write { file: self.name.clone(), offset, bytes: bytes.len() })?;
        match &self.handle {
            Handle::Directory(file) => file.write_all_at(bytes, offset),
            #[cfg(test)]
            Handle::Simulated(file) => file.write_at(bytes, offset),
        }
    }

    /// Makes the bytes durable.
    pub(super) fn sync_data(&self) -> io::Result<()> {
        self.storage.observe(|| Operation::SyncData { file: self.name.clone() })?;
        match &self.handle {
            Handle::Directory(file) => file.sync_data(),
            #[cfg(test)]
            Handle::Simulated(file) => file.sync_data(),
        }
    }

    /// Makes the bytes and the length durable.
    pub(super) fn sync_all(&self) -> io::Result<()> {
        self.storage.observe(|| Operation::SyncAll { file: self.name.clone() })?;
        match &self.handle {
            Handle::Directory(file) => file.sync_all(),
            #[cfg(test)]
            Handle::Simulated(file) => file.sync_all(),
        }
    }

    pub(super) fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.storage.observe(|| Operation::Truncate { file: self.name.clone(), bytes })?;
        match &self.handle {
            Handle::Directory(file) => file.set_len(bytes),
            #[cfg(test)]
            Handle::Simulated(file) => file.truncate(bytes),
        }
    }

    /// Gives an empty file `bytes` bytes of zeros that occupy the disk.
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.storage.observe(|| Operation::Allocate { file: self.name.clone(), bytes })?;
        match &self.handle {
            Handle::Directory(file) => directory::allocate(file, bytes),
            #[cfg(test)]
            Handle::Simulated(file) => file.truncate(bytes),
        }
    }
}
