//! The helper thread: prepares the next segment and writes indexes of sealed ones, so that the writer never waits for it.

use std::sync::mpsc::Receiver;

use super::Shared;
use super::outage::Fault;
use super::segment::{PREPARED, index_name};
use super::small::SegmentIndex;
use super::storage::{Storage, WriteFile};

/// Work for the thread.
pub(super) enum Job {
    /// Allocate a segment that also has room for a header of this size.
    Prepare { header: u64 },
    /// Write the index of a sealed segment.
    Index(Box<SegmentIndex>),
    /// End.
    Stop,
}

/// A segment file without frames whose bytes are allocated.
pub(super) struct Prepared {
    pub(super) file: WriteFile,
    pub(super) bytes: u64,
}

/// Does jobs until told to stop.
pub(super) fn run(shared: &Shared, segment_bytes: u64, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        if !perform(shared, segment_bytes, job) {
            break;
        }
    }
}

/// Does one job. `false` when it says to stop.
pub(super) fn perform(shared: &Shared, segment_bytes: u64, job: Job) -> bool {
    let storage = &shared.storage;
    match job {
        Job::Prepare { header } => {
            let is_ours = shared.check_lock();
            let next = is_ours.and_then(|()| prepare_as(storage, PREPARED, segment_bytes + header));
            if let Some(shortage) = shared.room.prepared(next) {
                shared.tell(shortage);
            }
        }
        Job::Index(index) => {
            if let Err(error) = storage.replace(&index_name(index.base), &index.encode(shared.id)) {
                // The index is derived; it is made again from the segment when it is asked for.
                tracing::warn!(segment.base = index.base, %error, "the index of a log segment was not written");
            }
        }
        Job::Stop => return false,
    }
    true
}

/// Allocates a segment of `bytes` bytes as `name`, or says why not.
pub(super) fn prepare_as(storage: &Storage, name: &str, bytes: u64) -> Result<Prepared, Fault> {
    match storage.create_allocated(name, bytes) {
        Ok(file) => Ok(Prepared { file, bytes }),
        Err(error) => {
            // What was allocated in part would only take room from others.
            let fault = Fault::io(&format!("allocate {bytes} bytes for {name}"), &error);
            if let Err(error) = storage.remove(name) {
                tracing::debug!(%error, "a half-prepared log segment stays behind");
            }
            Err(fault)
        }
    }
}
