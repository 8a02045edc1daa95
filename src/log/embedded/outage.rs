//! Trouble with the disk: which kind it is, and what is to be told of it once it is over. Knows no files.

use std::fmt;
use std::io;

use crate::event::{Gap, GapCause};
use crate::log::{Refusal, Reservation};

/// Called on the writer's thread when an outage is over, before anything new is accepted, with room for one record of
/// [`GAP_BYTES`] that tells of it. It must not block.
pub type OnRecovery = Box<dyn Fn(Gap, Reservation) + Send + Sync>;

/// Body bytes of the record that tells of an outage.
pub const GAP_BYTES: u64 = 8 * 1024;

/// Why the log cannot write now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) cause: GapCause,
    pub(super) detail: String,
}

impl Fault {
    pub(super) fn new(cause: GapCause, detail: impl Into<String>) -> Self {
        Self { cause, detail: detail.into() }
    }

    pub(super) fn directory_missing() -> Self {
        Self::new(GapCause::DirectoryMissing, "the log's directory is not there any more")
    }

    pub(super) fn replaced() -> Self {
        Self::new(GapCause::DirectoryReplaced, "the log's directory is not the one that this process locked")
    }

    /// What those are told who ask for room in the next segment, which this keeps from being made.
    pub(super) fn refusal(&self) -> Refusal {
        match self.cause {
            GapCause::NoSpace => Refusal::Full(self.to_string()),
            _ => Refusal::Suspended(self.to_string()),
        }
    }

    /// `doing` is what failed, as in "cannot …".
    pub(super) fn io(doing: &str, error: &io::Error) -> Self {
        let cause = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => GapCause::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => GapCause::ReadOnly,
            io::ErrorKind::WriteZero => GapCause::ShortWrite,
            io::ErrorKind::NotFound => GapCause::Missing,
            _ => GapCause::Io,
        };
        Self::new(cause, format!("cannot {doing}: {error}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}
