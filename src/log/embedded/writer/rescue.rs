//! What the writer does when the disk fails it: it refuses at once, and goes on as soon as it can.
//!
//! ```text
//!   trouble ─► refuse, keep what was promised ─► the newest file cut to what is durable, or written anew from memory
//!                      ▲                                             │
//!                      └──────────── it failed again ◄── a new segment with all that waits ──► told, accepted again
//! ```
//!
//! The file that failed is never synced again through the same handle, and its pages are compared with what was written.

use std::io;
use std::time::Instant;

use super::{Active, Writer, check_standing, watermark_fault};
use crate::base::{Timestamp, planted};
use crate::event::{Gap, GapCause};
use crate::log::Refusal;
use crate::log::embedded::outage::Fault;
use crate::log::embedded::segment::{self, PREPARED, RESCUED};
use crate::log::embedded::small::{IDENTITY, WATERMARK, Watermark, decode_identity, encode_identity};
use crate::log::embedded::storage::{Standing, Storage, WriteFile};
use crate::log::embedded::{allocate, room_for_gap};

/// Bytes that one comparison reads.
const COMPARED_BYTES: usize = 1 << 20;

/// Why the log refuses now, and since when.
pub(super) struct Trouble {
    /// As last seen.
    pub(super) fault: Fault,
    /// As first seen.
    cause: GapCause,
    detail: String,
    began_at: Timestamp,
    tried: Instant,
    tries: u32,
}

impl Writer {
    /// The files are those that this log was opened with, and can be written.
    pub(super) fn inspect(&self) -> Result<(), Fault> {
        self.check_directory()?;
        if !planted::armed("lost_watermark_unseen") {
            check_standing(&self.watermark, Watermark::BYTES)?;
        }
        self.active.as_ref().map_or(Ok(()), |active| check_standing(&active.file, active.bytes))
    }

    fn check_directory(&self) -> Result<(), Fault> {
        let storage = &self.shared.storage;
        if !storage.is_there() {
            return Err(Fault::directory_missing());
        }
        self.shared.check_lock()?;
        let looked = |error| Fault::io("look at the log's directory", &error);
        match storage.read(IDENTITY).map_err(looked)? {
            Some(bytes) if decode_identity(&bytes) == Ok(self.shared.id) => {}
            Some(_) => return Err(Fault::replaced()),
            None => {
                return Err(Fault::new(GapCause::Missing, format!("{IDENTITY} is not there any more")));
            }
        }
        if storage.is_read_only().map_err(looked)? {
            return Err(Fault::new(GapCause::ReadOnly, "the log's file system takes no writes"));
        }
        Ok(())
    }

    /// Nothing new is accepted from here on, and the first try to mend it is made at once.
    pub(super) fn fail(&mut self, fault: Fault) {
        // A file that is gone with all others is the lesser part of it.
        let fault = match fault.cause {
            GapCause::Missing | GapCause::Replaced => self.check_directory().err().unwrap_or(fault),
            _ => fault,
        };
        let dir = self.shared.storage.dir().display();
        tracing::error!(cause = fault.cause.as_str(), detail = %fault, %dir, "the log cannot write and refuses until it can");
        if let Some(Active { image, .. }) = &mut self.active {
            let durable = usize::try_from(self.durable - self.tracker.base()).unwrap_or(usize::MAX);
            image.truncate(durable);
        }
        self.position = self.durable;
        self.shared.stats.failed.set(1);
        self.shared.stats.outage(fault.cause);
        self.shared.room.suspend(Refusal::Suspended(fault.to_string()));
        self.shared.vigil.suspended(true);
        self.trouble = Some(Trouble {
            cause: fault.cause,
            detail: fault.detail.clone(),
            fault,
            began_at: self.shared.clock.now(),
            tried: self.shared.clock.monotonic(),
            tries: 0,
        });
        self.try_rescue();
    }

    /// Tries again, unless the last try was a moment ago: the longer it lasts, the less often, at least each second.
    pub(super) fn mend(&mut self) {
        let now = self.shared.clock.monotonic();
        let due = self.trouble.as_ref().is_some_and(|trouble| {
            now.saturating_duration_since(trouble.tried) >= super::WATCH_INTERVAL * trouble.tries.min(4)
        });
        if due {
            self.try_rescue();
        }
    }

    #[cfg(test)]
    pub(in crate::log::embedded) const fn in_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    pub(in crate::log::embedded) fn try_rescue(&mut self) {
        if self.trouble.is_none() {
            return;
        }
        let rescued = self.at_the_disk(Self::rescue);
        let Some(trouble) = &mut self.trouble else { return };
        match rescued {
            Ok(()) => self.go_on(),
            Err(fault) => {
                if trouble.fault != fault {
                    tracing::error!(cause = fault.cause.as_str(), detail = %fault, "the log still cannot write");
                }
                trouble.tries += 1;
                trouble.tried = self.shared.clock.monotonic();
                self.shared.room.suspend(Refusal::Suspended(fault.to_string()));
                trouble.fault = fault;
                self.leave_uncertain();
            }
        }
    }

    /// Who waits is told that it may be written. It will be, unless the process ends before.
    pub(super) fn leave_uncertain(&mut self) {
        if let Some(trouble) = &self.trouble {
            self.batch.leave_uncertain(&trouble.fault.to_string());
        }
    }

    /// Writes all that waits into a new segment, durably. What the writer knows changes only when that is done.
    fn rescue(&mut self) -> Result<(), Fault> {
        self.restore_identity()?;
        self.check_directory()?;
        // The one that failed may have said more than is kept.
        if !planted::armed("failed_watermark_kept") {
            self.replace_watermark(self.durable)?;
        }
        self.settle_newest()?;
        let base = self.durable;
        let name = segment::name(base);
        let (header, crc) =
            self.shared.codec.encode_header(self.shared.id, base, self.tracker.base(), &self.tracker);
        let header_bytes = header.len() as u64;
        let mut image = header;
        if !planted::armed("unacknowledged_dropped") {
            self.batch.encode_again(self.shared.codec, base, &mut image);
        }
        let (mut file, bytes) = self.rescue_file(image.len() as u64)?;
        let end = base + image.len() as u64;
        let from = file.name().to_owned();
        let mut write = || {
            file.write_at(&image, 0)?;
            file.sync_data()?;
            self.shared.storage.rename(&from, &name)?;
            file.renamed(&name);
            self.shared.storage.sync_dir()
        };
        write().map_err(|error| Fault::io(&format!("write {name}"), &error))?;
        check_standing(&file, bytes)?;
        self.shared.check_lock()?;
        self.replace_watermark(end)?;
        self.start_segment(base, crc, Active { file, image, bytes, zeroed: 0 }, header_bytes);
        Ok(())
    }

    /// Durably, and under another handle.
    fn replace_watermark(&mut self, end: u64) -> Result<(), Fault> {
        let storage = &self.shared.storage;
        let watermark = Watermark { end, clean: false }.encode(self.shared.id);
        let replaced = storage.replace(WATERMARK, &watermark).and_then(|()| storage.open_existing(WATERMARK));
        self.watermark = replaced.map_err(|error| watermark_fault(&error))?;
        Ok(())
    }

    /// Everything is written: whoever waits is told, the outage is told, and the log accepts again.
    fn go_on(&mut self) {
        let Some(trouble) = self.trouble.take() else { return };
        let rewritten = u64::from(self.batch.len());
        self.take_in();
        let (records, bytes) = (self.batch.len(), self.batch.room());
        let refused = self.shared.room.recovered(records, bytes, self.rest(), self.next_header());
        let room = room_for_gap(&self.shared);
        self.shared.vigil.suspended(false);
        self.shared.publish(self.durable);
        let outage = Gap {
            cause: trouble.cause,
            detail: trouble.detail,
            began_at: trouble.began_at,
            ended_at: self.shared.clock.now(),
            refused,
            rewritten,
        };
        tracing::info!(
            cause = outage.cause.as_str(), refused, rewritten,
            began_at = %outage.began_at, "the log writes again"
        );
        if let Some(on_recovery) = self.shared.on_recovery.get() {
            on_recovery(outage, room);
        } else {
            drop(room);
        }
        self.shared.stats.failed.set(0);
        self.shared.room.resume();
        // Last, so that who is told may go on at once.
        self.acknowledge();
    }

    /// In our own directory a lost identity is written again.
    fn restore_identity(&self) -> Result<(), Fault> {
        let storage = &self.shared.storage;
        let restore = || {
            if storage.lock_id()? == Some(self.shared.lock_id) && storage.read(IDENTITY)?.is_none() {
                storage.replace(IDENTITY, &encode_identity(self.shared.id))?;
            }
            Ok(())
        };
        restore().map_err(|error| Fault::io(&format!("restore {IDENTITY}"), &error))
    }

    /// Afterwards the newest segment's file holds exactly what is durable, durably.
    fn settle_newest(&mut self) -> Result<(), Fault> {
        let storage = &self.shared.storage;
        let name = segment::name(self.tracker.base());
        let wanted = self.durable - self.tracker.base();
        let Some(active) = &mut self.active else {
            // It was sealed by the opening, and is not in memory.
            return match storage.length(&name) {
                Ok(Some(found)) if found == wanted => Ok(()),
                Ok(found) => {
                    let found =
                        found.map_or_else(|| "is missing".into(), |found| format!("has {found} bytes"));
                    let detail = format!(
                        "{name} {found} and cannot be made whole from memory: put it back, or restore a backup"
                    );
                    Err(Fault::new(GapCause::Missing, detail))
                }
                Err(error) => Err(Fault::io(&format!("look at {name}"), &error)),
            };
        };
        let restore = |active: &mut Active| {
            storage.replace(&name, &active.image)?;
            active.file = storage.open_existing(&name)?;
            Ok(())
        };
        let kept = cut(storage, &active.file, &active.image);
        if !matches!(kept, Ok(true)) {
            restore(active).map_err(|error| Fault::io(&format!("write {name} anew"), &error))?;
        }
        active.bytes = wanted;
        Ok(())
    }

    /// A file that is allocated for a segment which already holds `image_bytes`, and for all that was promised.
    fn rescue_file(&mut self, image_bytes: u64) -> Result<(WriteFile, u64), Fault> {
        let (promised, header) = self.shared.room.promised();
        let needed = image_bytes + promised;
        // It has room on a disk that is full.
        let prepared = self.shared.room.take_prepared().filter(|prepared| {
            let standing = prepared.file.standing();
            prepared.bytes >= needed
                && matches!(standing, Ok(Standing::Same { bytes }) if bytes == prepared.bytes)
        });
        if let Some(prepared) = prepared {
            debug_assert_eq!(prepared.file.name(), PREPARED, "the only file that is prepared");
            return Ok((prepared.file, prepared.bytes));
        }
        let bytes = needed.max(self.shared.segment_bytes + header);
        let prepared = allocate::prepare_as(&self.shared.storage, RESCUED, bytes);
        let prepared = prepared.inspect_err(|_| self.remove_failed_tries())?;
        Ok((prepared.file, prepared.bytes))
    }

    /// What earlier tries began and did not end only takes the room that the next one needs. Nothing in it was acknowledged.
    fn remove_failed_tries(&self) {
        let prepared = (!self.shared.room.is_preparing()).then(|| PREPARED.to_owned());
        for name in prepared.into_iter().chain([segment::name(self.durable)]) {
            if let Err(error) = self.shared.storage.remove(&name) {
                tracing::debug!(%error, "a segment that was not started stays behind");
            }
        }
    }
}

/// Cuts the file to `image`, through another handle. `false` when it is not that file any more, or holds something else.
fn cut(storage: &Storage, ours: &WriteFile, image: &[u8]) -> io::Result<bool> {
    let wanted = image.len() as u64;
    if !matches!(ours.standing()?, Standing::Same { bytes } if bytes >= wanted) {
        return Ok(false);
    }
    let file = storage.open_existing(ours.name())?;
    if !planted::armed("failed_write_kept") {
        file.truncate(wanted)?;
    }
    file.sync_all()?;
    let mut buffer = vec![0; COMPARED_BYTES.min(image.len())];
    for (index, chunk) in image.chunks(COMPARED_BYTES).enumerate() {
        let found = buffer.get_mut(..chunk.len()).unwrap_or_default();
        let read = file.read_at(found, (index * COMPARED_BYTES) as u64)?;
        if read < chunk.len() || found != chunk {
            return Ok(false);
        }
    }
    Ok(true)
}
