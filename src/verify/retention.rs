//! Checks that a log that does not start at its beginning was cut by Annals itself: an event on the log says so.
//!
//! Pure. The anchor beside the log is only a file; what counts is the event, which the lanes' links hold.

use super::report::{Finding, FindingKind};
use crate::base::planted;
use crate::event::LogCut;
use crate::log::Stored;
use crate::log::embedded::Scanner;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct StartCheck {
    /// What the anchor says; `None` when the log starts at its beginning.
    cut: Option<LogCut>,
    /// Records before the start, of all partitions.
    records: u64,
    /// Where an event says the same.
    vouched: Option<u64>,
    /// The cut of the last such event, when it is a later one.
    announced: Option<(u64, u64)>,
}

impl StartCheck {
    /// Of the log that `scanner` reads.
    pub(super) fn of(scanner: &Scanner) -> Self {
        let records = crate::event::TopicPartition::all().map(|target| scanner.dropped_records(target)).sum();
        Self { cut: scanner.cut().cloned(), records, vouched: None, announced: None }
    }

    /// Takes an event that says that the log was to be cut.
    pub(super) fn add(&mut self, stored: &Stored, cut: &LogCut) {
        let position = stored.position.0;
        if self.cut.as_ref() == Some(cut) {
            self.vouched = Some(position);
        }
        let first = self.cut.as_ref().map_or(0, |cut| cut.first);
        if cut.first > first {
            self.announced = Some((position, cut.first));
        }
    }

    /// At the end of the log.
    pub(super) fn finish(&self, found: &mut Vec<Finding>, notes: &mut Vec<String>) {
        if let Some((position, first)) = self.announced {
            notes.push(format!(
                "the event at {position} says that the log is cut at position {first}, and that did not happen (yet)"
            ));
        }
        let Some(cut) = &self.cut else { return };
        let (first, through) = (cut.first, cut.recorded_through);
        let vouched = if planted::armed("verify_trusts_anchor") { Some(first) } else { self.vouched };
        match vouched {
            Some(position) => notes.push(format!(
                "the log starts at position {first}: {} records up to {through} were dropped for their age, as the event \
                 at {position} says",
                self.records
            )),
            None => found.push(Finding {
                kind: FindingKind::Retention,
                topic: None,
                partition: None,
                position: first,
                file: None,
                offset: None,
                detail: format!(
                    "the log starts at position {first}, as its anchor says, but no event on the log says that what was \
                     before was dropped"
                ),
            }),
        }
    }
}
