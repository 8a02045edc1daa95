//! Backups: log and store as of one moment, taken while a server runs, and brought back elsewhere.
//!
//! ```text
//!   DIR/manifest.json       written last: without it there is no backup
//!   DIR/data/log/           the log up to the end that the manifest names
//!   DIR/data/postgres.dump  our schemas, as a snapshot that is not ahead of that end
//! ```
//!
//! Passwords of the Postgres roles are no part of it: they open nothing but the private server of one data directory,
//! and a restore makes new ones. Nothing in here records events: whoever asks for a backup does.

mod error;
mod files;
mod manifest;
mod restore;
mod take;

pub use error::Error;
pub use manifest::{FileEntry, LaneHeads, Manifest};
pub use restore::{Checked, Restored, check, restore, was_interrupted};
pub use take::{Options, Taken, take};

/// The manifest's file.
pub const MANIFEST: &str = "manifest.json";
/// Everything else, below the backup's directory.
const DATA: &str = "data";
/// What [`DATA`] is called while it is being filled.
const INCOMPLETE: &str = "incomplete";
/// The log, below [`DATA`].
const LOG: &str = "log";
/// The dump, below [`DATA`].
const DUMP: &str = "postgres.dump";
