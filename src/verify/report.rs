//! What a verification found, for people and for programs.

use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use crate::base::Timestamp;
use crate::event::TopicPartition;

/// Findings that are kept one by one; more are only counted.
pub(super) const FINDINGS_MAX: usize = 1_000;

/// What does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A file of the log is damaged, or its bytes are not what was written. Nothing behind it can be checked.
    LogCorrupt,
    /// A link is not the hash of the event and the link before it: changed, or moved.
    Link,
    /// Events of a lane are missing.
    Gap,
    /// An event of a lane is there twice.
    Duplicate,
    /// Two events have the same number or the same id, and other content.
    Conflict,
    /// A lane's clock goes backwards.
    Clock,
    /// A lane goes on behind its end, or ends elsewhere than its closing event says.
    LaneEnd,
    /// A lane of a finished incarnation was never closed.
    LaneOpen,
    /// The heads in a `system.checkpoint` are not those of the lanes.
    Heads,
    /// `system.started` names another log.
    LogId,
    /// An event names another process start than its lane's, and is none that somebody else may record.
    Origin,
    /// The personal part is not what the facts commit to.
    Personal,
    /// A call has no intent, or more than one intent or end; something late without an end; or a closure that does not
    /// follow from its intent.
    Call,
    /// A row that should be there is not.
    RowMissing,
    /// A row is not what its event gives.
    RowChanged,
    /// A row that no event gives.
    RowAdded,
    /// A checkpoint names an event that is not there, or another log.
    Checkpoint,
    /// What the projection remembers beside its rows does not follow from the log.
    State,
    /// Records are missing before the log's start, and no event on the log says that they were dropped.
    Retention,
}

impl FindingKind {
    /// As in the report.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LogCorrupt => "log_corrupt",
            Self::Link => "link",
            Self::Gap => "gap",
            Self::Duplicate => "duplicate",
            Self::Conflict => "conflict",
            Self::Clock => "clock",
            Self::LaneEnd => "lane_end",
            Self::LaneOpen => "lane_open",
            Self::Heads => "heads",
            Self::LogId => "log_id",
            Self::Origin => "origin",
            Self::Personal => "personal",
            Self::Call => "call",
            Self::RowMissing => "row_missing",
            Self::RowChanged => "row_changed",
            Self::RowAdded => "row_added",
            Self::Checkpoint => "checkpoint",
            Self::State => "state",
            Self::Retention => "retention",
        }
    }
}

/// One thing that does not hold, at one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub kind: FindingKind,
    /// The topic, where it is known.
    pub topic: Option<String>,
    /// The partition, where it is known.
    pub partition: Option<u32>,
    /// The position in the log; for what has none, where it was noticed.
    pub position: u64,
    /// The log's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The byte in that file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// In words.
    pub detail: String,
}

impl Finding {
    /// A finding at `position` of `target`.
    #[must_use]
    pub fn at(kind: FindingKind, target: TopicPartition, position: u64, detail: impl Into<String>) -> Self {
        Self {
            kind,
            topic: Some(target.topic.name().to_owned()),
            partition: Some(target.partition),
            position,
            file: None,
            offset: None,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: position {}", self.kind.as_str(), self.position)?;
        if let (Some(topic), Some(partition)) = (&self.topic, self.partition) {
            write!(f, " of {topic}/{partition}")?;
        }
        if let (Some(file), Some(offset)) = (&self.file, self.offset) {
            write!(f, " ({file}, byte {offset})")?;
        }
        write!(f, ": {}", self.detail)
    }
}

/// What part of the log was checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Range {
    /// Position of the first event.
    pub first_position: Option<u64>,
    /// Position of the last event.
    pub last_position: Option<u64>,
    /// The lane's clock at the first event.
    pub first_recorded_at: Option<Timestamp>,
    /// The latest of the lanes' clocks.
    pub last_recorded_at: Option<Timestamp>,
}

/// What was compared with the log in Postgres.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Rows {
    /// Events whose rows were compared.
    pub compared: u64,
    /// Events that were set aside instead of becoming a row.
    pub parked: u64,
    /// Events on the log behind the checkpoints: their rows are yet to come.
    pub pending: u64,
    /// Rows of events before the log's start: neither right nor wrong, for their records were dropped for their age.
    pub not_compared: u64,
    /// Rows that are not there because they were dropped for their age, as the log says.
    pub dropped: u64,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether nothing was found.
    pub clean: bool,
    /// The log's identity, unless the file that holds it is damaged.
    pub log_id: Option<Uuid>,
    /// What was checked.
    pub range: Range,
    /// Events on the log.
    pub events: u64,
    /// Lanes that they are in.
    pub lanes: u64,
    /// Process starts that wrote them.
    pub incarnations: u64,
    /// Intents without an end.
    pub open: u64,
    /// Events that this version cannot read.
    pub unreadable: u64,
    /// The comparison with Postgres; absent when only the log was checked.
    pub rows: Option<Rows>,
    /// What does not hold, first bad position first.
    pub findings: Vec<Finding>,
    /// How many there are in all, also those that are not listed.
    pub findings_total: u64,
    /// What is worth knowing and no fault.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether nothing was found: exit code 0, else 1.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.findings_total == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.log_id {
            Some(log) => writeln!(f, "log        {log}")?,
            None => writeln!(f, "log        unknown")?,
        }
        match (self.range.first_position, self.range.last_position) {
            (Some(first), Some(last)) => writeln!(f, "positions  {first} to {last}")?,
            _ => writeln!(f, "positions  none")?,
        }
        if let (Some(first), Some(last)) = (self.range.first_recorded_at, self.range.last_recorded_at) {
            writeln!(f, "recorded   {first} to {last}")?;
        }
        writeln!(
            f,
            "events     {} in {} lanes of {} process starts",
            self.events, self.lanes, self.incarnations
        )?;
        match &self.rows {
            Some(rows) => {
                writeln!(f, "rows       {} compared, {} events parked", rows.compared, rows.parked)?;
                if rows.not_compared > 0 {
                    writeln!(
                        f,
                        "older      {} rows are older than the log's start: not compared",
                        rows.not_compared
                    )?;
                }
                if rows.dropped > 0 {
                    writeln!(f, "dropped    {} rows were dropped for their age", rows.dropped)?;
                }
                writeln!(f, "pending    {}", rows.pending)?;
            }
            None => writeln!(f, "rows       not compared (log only)")?,
        }
        writeln!(f, "open       {}", self.open)?;
        for note in &self.notes {
            writeln!(f, "note       {note}")?;
        }
        if self.is_clean() {
            return writeln!(f, "result     everything holds");
        }
        writeln!(f, "result     {} findings; the first bad position first:", self.findings_total)?;
        for finding in &self.findings {
            writeln!(f, "  {finding}")?;
        }
        let unlisted = self.findings_total - self.findings.len() as u64;
        if unlisted > 0 {
            writeln!(f, "  and {unlisted} more")?;
        }
        Ok(())
    }
}

/// Collects findings, bounded.
#[derive(Debug, Default)]
pub(super) struct Findings {
    kept: Vec<Finding>,
    total: u64,
}

impl Findings {
    pub(super) fn add(&mut self, finding: Finding) {
        self.total += 1;
        // The scan goes forward, so the first ones are those that matter; twice as many are kept until the end,
        // because what is noticed at the end may lie before.
        if self.kept.len() < 2 * FINDINGS_MAX {
            self.kept.push(finding);
        }
    }

    /// Counts findings that are not kept.
    pub(super) const fn count(&mut self, unlisted: u64) {
        self.total += unlisted;
    }

    /// First bad position first, and how many in all.
    pub(super) fn finish(mut self) -> (Vec<Finding>, u64) {
        self.kept.sort_by_key(|finding| finding.position);
        self.kept.truncate(FINDINGS_MAX);
        (self.kept, self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Topic;

    #[test]
    fn findings_are_bounded_counted_and_sorted() {
        let target = TopicPartition { topic: Topic::Admin, partition: 3 };
        let mut findings = Findings::default();
        for position in (0..3_000).rev() {
            findings.add(Finding::at(FindingKind::Gap, target, position, "x"));
        }
        let (kept, total) = findings.finish();
        assert_eq!((kept.len(), total, kept[0].position), (FINDINGS_MAX, 3_000, 1_000));
        assert_eq!(kept[0].to_string(), "gap: position 1000 of annals.admin/3: x");
    }
}
