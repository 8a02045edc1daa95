//! The medium that production runs on: files in a directory, through the system. Decides nothing.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, StatVfsMountFlags};

use super::{FileId, KEEP, LOCK, LockError, Standing};

/// Makes `dir` (mode 0700) and what is missing above it. Gives what was made.
pub(super) fn make(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let made = dir.ancestors().take_while(|level| !level.is_dir() && !level.as_os_str().is_empty());
    let made = made.map(Path::to_owned).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    Ok(made)
}

/// Whether `dir` is on another device than the directory above it. Not when that cannot be told.
pub(super) fn is_mount_point(dir: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
    let differs = |dir: PathBuf| Some(device(&dir)? != device(dir.parent()?)?);
    dir.canonicalize().ok().and_then(differs).unwrap_or(false)
}

/// Makes the name of `dir` durable.
pub(super) fn sync_above(dir: &Path) -> io::Result<()> {
    let parent = dir.parent().unwrap_or(dir);
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    File::open(parent)?.sync_all()
}

pub(super) fn lock(dir: &Path) -> Result<File, LockError> {
    let path = dir.join(LOCK);
    let mut file = options().read(true).create(true).truncate(false).open(&path).map_err(LockError::Io)?;
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
    Ok(file)
}

pub(super) fn lock_shared(dir: &Path) -> io::Result<Option<File>> {
    let Some(file) = present(File::open(dir.join(LOCK)))? else { return Ok(None) };
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Takes the file lock that keeps segments, shared or alone; `None` while others stand in the way.
pub(super) fn keep(dir: &Path, alone: bool) -> io::Result<Option<File>> {
    let file = options().read(true).create(true).truncate(false).open(dir.join(KEEP))?;
    let taken = if alone { file.try_lock() } else { file.try_lock_shared() };
    match taken {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

pub(super) fn list(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

pub(super) fn length(path: &Path) -> io::Result<Option<u64>> {
    Ok(present(std::fs::metadata(path))?.map(|metadata| metadata.len()))
}

pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    present(std::fs::read(path))
}

pub(super) fn open_write(path: &Path) -> io::Result<File> {
    options().read(true).create(true).truncate(false).open(path)
}

pub(super) fn open_existing(path: &Path) -> io::Result<File> {
    options().read(true).open(path)
}

pub(super) fn id(path: &Path) -> io::Result<Option<FileId>> {
    let found = present(std::fs::metadata(path))?;
    Ok(found.map(|found| FileId { device: found.dev(), inode: found.ino() }))
}

pub(super) fn standing(file: &File, path: &Path) -> io::Result<Standing> {
    let (ours, Some(named)) = (file.metadata()?, present(std::fs::metadata(path))?) else {
        return Ok(Standing::Missing);
    };
    let same = (ours.dev(), ours.ino()) == (named.dev(), named.ino());
    Ok(if same { Standing::Same { bytes: named.len() } } else { Standing::Replaced })
}

pub(super) fn is_read_only(dir: &Path) -> io::Result<bool> {
    Ok(rustix::fs::statvfs(dir)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    present(std::fs::remove_file(path)).map(|_| ())
}

pub(super) fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while let Some(rest) = buffer.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

pub(super) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        // Some file systems cannot; zeros that were written occupy the disk as well.
        Err(rustix::io::Errno::OPNOTSUPP) => {
            let zeros = vec![0; 1 << 20];
            let mut offset = 0;
            while offset < bytes {
                let step = (bytes - offset).min(zeros.len() as u64);
                let chunk = usize::try_from(step).map_or(&zeros[..], |step| &zeros[..step]);
                file.write_all_at(chunk, offset)?;
                offset += step;
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// `None` when it is not there.
fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
