//! Compares the rows in Postgres with those that the projection's own pure half gives for the events on the log.
//!
//! Reads one snapshot, as `annals_reader`, and writes nothing. Postgres compares, column by column, so that what is
//! compared is what people query.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::postgres::PgRow;
use sqlx::types::time::OffsetDateTime;
use sqlx::{Acquire, AssertSqlSafe, PgConnection, PgPool, Postgres, Row, Transaction};
use uuid::Uuid;

use super::report::{FINDINGS_MAX, Finding, FindingKind, Rows};
use crate::base::{Timestamp, planted};
use crate::consumer::REJECTED;
use crate::consumer::lane::{Head, Verdict};
use crate::db;
use crate::event::{Decoded, Link, RowsCut, TopicPartition};
use crate::log::embedded::Scanner;
use crate::log::{LogId, LogStart, Position, Stored};
use crate::projection::Item;
use crate::projection::audit::{
    Audit, Columns, EventArrays, EventRow, OpenCalls, PersonalArrays, PersonalRow, rows,
};

/// Rows that are listed one by one when no event gives them.
const ADDED_MAX: i64 = 200;

/// An index entry of Postgres has room for this much text with all that may stand beside it, however its version packs it.
const INDEXED_BYTES_MAX: usize = 2_000;

/// An event with what the log side made of it.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) stored: Stored,
    pub(super) verdict: Verdict,
    /// `None` when it cannot be read.
    pub(super) decoded: Option<Decoded>,
}

/// How far a partition is applied.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) position: Position,
    pub(super) link: Link,
    pub(super) seen: bool,
}

/// See the module.
pub(super) struct RowCheck {
    pub(super) tx: Transaction<'static, Postgres>,
    pub(super) log: LogId,
    pub(super) checkpoints: BTreeMap<TopicPartition, Applied>,
    /// Up to where rows were compared.
    through: BTreeMap<TopicPartition, i64>,
    pub(super) once: HashMap<(String, Uuid), [u8; 32]>,
    pub(super) open: OpenCalls,
    pub(super) heads: HashMap<(TopicPartition, Uuid), Head>,
    pub(super) counts: Rows,
    pub(super) installed: bool,
    /// Logs that are not here, whose rows an event on this one vouches for.
    pub(super) history: BTreeSet<Uuid>,
    /// Where the log starts.
    pub(super) start: LogStart,
    /// Records before that.
    dropped: BTreeMap<TopicPartition, u64>,
    /// Missing rows by year and month: whether they were dropped is known at the end of the log.
    missing: BTreeMap<(i32, u8), Missing>,
    /// Rows of events before this may be missing, as the log says.
    vouched: Option<Timestamp>,
    /// Findings that are only counted.
    pub(super) unlisted: u64,
    /// What stands beside the rows and is older than the log's start.
    pub(super) older_state: u64,
    /// API keys that are older than the log's start.
    pub(super) older_keys: u64,
    events_sql: String,
    personal_sql: String,
}

/// Rows of one month that are missing.
#[derive(Debug, Default)]
struct Missing {
    count: u64,
    /// The first ones.
    findings: Vec<Finding>,
}

/// What the projection must have made of an event.
enum Fate {
    Row(Box<(EventRow, PersonalRow)>),
    Parked,
    Dropped,
    /// Repeated or reordered: the log side reports it, the projection either dropped it or set it aside.
    Unsure,
}

/// A parked event as it stands in Postgres.
struct ParkedRow {
    content: Vec<u8>,
    link: Vec<u8>,
    body: Vec<u8>,
    cause: String,
}

type Place = (TopicPartition, i64);

impl RowCheck {
    /// Takes the snapshot. Must come before the log is opened, so that every event that was applied is seen.
    pub(super) async fn begin(pool: &PgPool) -> Result<Self, sqlx::Error> {
        let mut tx =
            db::begin_with(pool, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY".to_owned()).await?;
        // The role's limit is for people's queries.
        sqlx::raw_sql("SET LOCAL statement_timeout = 0").execute(&mut *tx).await?;
        let installed: bool =
            sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL")
                .bind(format!("{}.audit_events", Audit::SCHEMA))
                .bind(format!("{}.audit_personal", Audit::SCHEMA))
                .fetch_one(&mut *tx)
                .await?;
        Ok(Self {
            tx,
            log: LogId(Uuid::nil()),
            checkpoints: BTreeMap::new(),
            through: BTreeMap::new(),
            once: HashMap::new(),
            open: OpenCalls::default(),
            heads: HashMap::new(),
            counts: Rows::default(),
            installed,
            history: BTreeSet::new(),
            start: LogStart::default(),
            dropped: BTreeMap::new(),
            missing: BTreeMap::new(),
            vouched: None,
            unlisted: 0,
            older_state: 0,
            older_keys: 0,
            events_sql: compare_sql(&EventRow::COLUMNS),
            personal_sql: compare_sql(&PersonalRow::COLUMNS),
        })
    }

    /// The log may start late: what is older cannot be compared.
    pub(super) fn begin_at(&mut self, scanner: &Scanner) {
        self.start = scanner.start().clone();
        if self.start.first.0 > 0 {
            let before = signed(self.start.first.0) - 1;
            self.through = TopicPartition::all().map(|target| (target, before)).collect();
            self.dropped =
                TopicPartition::all().map(|target| (target, scanner.dropped_records(target))).collect();
        }
    }

    /// Whether something made at that time may belong to a record before the log's start.
    pub(super) fn is_before_start(&self, at: Timestamp) -> bool {
        self.start.recorded_through.is_some_and(|through| at <= through)
    }

    /// Takes an event that says that rows were to be dropped.
    pub(super) fn vouch(&mut self, cut: &RowsCut) {
        if cut.projection == Audit::NAME && i32::try_from(cut.version) == Ok(Audit::VERSION) {
            self.vouched = self.vouched.max(Some(cut.before));
        }
    }

    /// Counts the rows of events before the log's start. There cannot be more of them than there were records.
    pub(super) async fn count_older(&mut self, found: &mut Vec<Finding>) -> Result<(), sqlx::Error> {
        let first = self.start.first.0;
        if first == 0 || !self.installed {
            return Ok(());
        }
        let sql = format!(
            "SELECT topic, partition, count(*) AS rows, max(position) AS position FROM {}.audit_events
             WHERE log_id = $1 AND position BETWEEN 0 AND $2 GROUP BY topic, partition ORDER BY topic, partition",
            Audit::SCHEMA
        );
        let counted = sqlx::query(AssertSqlSafe(sql))
            .bind(self.log.0)
            .bind(signed(first) - 1)
            .fetch_all(&mut *self.tx)
            .await?;
        for row in counted {
            let rows = unsigned(row.try_get("rows")?);
            self.counts.not_compared += rows;
            let place = place_of(&row)?;
            let records = place.and_then(|(target, _)| self.dropped.get(&target)).copied().unwrap_or(0);
            if rows > records {
                let detail = format!(
                    "there are {rows} rows of events before the log's start, but the log had {records} records there"
                );
                found.push(nowhere(FindingKind::RowAdded, &row, detail)?);
            }
        }
        Ok(())
    }

    /// What is worth knowing at the end.
    pub(super) fn note(&self, notes: &mut Vec<String>) {
        for (count, what) in [
            (self.older_keys, "API keys were made before the log's start"),
            (self.older_state, "entries beside the rows are older than the log's start"),
        ] {
            if count > 0 {
                notes.push(format!("{count} {what}: not compared"));
            }
        }
    }

    /// Rows that are missing are a fault, unless the log says that they were dropped.
    fn settle_missing(&mut self, found: &mut Vec<Finding>) {
        let before = self.vouched.map(Timestamp::to_offset);
        let before = before.map(|before| (before.year(), u8::from(before.month())));
        for (month, missing) in std::mem::take(&mut self.missing) {
            if before.is_some_and(|before| month < before) {
                self.counts.dropped += missing.count;
            } else {
                self.unlisted += missing.count - missing.findings.len() as u64;
                found.extend(missing.findings);
            }
        }
    }

    /// Reads the checkpoints, of which all must belong to `log`.
    pub(super) async fn load(&mut self, log: LogId, found: &mut Vec<Finding>) -> Result<(), sqlx::Error> {
        self.log = log;
        let rows = sqlx::query(
            "SELECT topic, partition, log_id, position, link FROM annals.checkpoints
             WHERE projection = $1 AND version = $2 AND position IS NOT NULL ORDER BY topic, partition",
        )
        .bind(Audit::NAME)
        .bind(Audit::VERSION)
        .fetch_all(&mut *self.tx)
        .await?;
        for row in rows {
            let place = place_of(&row)?;
            let theirs: Uuid = row.try_get("log_id")?;
            let link: Option<Vec<u8>> = row.try_get("link")?;
            let (Some((target, position)), Some(link)) =
                (place, link.and_then(|link| Link::try_from(link.as_slice()).ok()))
            else {
                let detail = "a checkpoint names a place that cannot be".to_owned();
                found.push(nowhere(FindingKind::Checkpoint, &row, detail)?);
                continue;
            };
            if theirs != log.0 {
                let detail = format!("the checkpoint belongs to log {theirs}");
                found.push(Finding::at(FindingKind::Checkpoint, target, unsigned(position), detail));
            } else if !self.installed {
                let detail = "there is a checkpoint, but the projection's tables are gone".to_owned();
                found.push(Finding::at(FindingKind::Checkpoint, target, unsigned(position), detail));
            } else {
                let position = Position(unsigned(position));
                let tail = self.start.tails.get(&target);
                let seen = position < self.start.first && tail == Some(&(position, link));
                let applied = Applied { position, link, seen };
                self.checkpoints.insert(target, applied);
            }
        }
        self.load_once_of_others().await
    }

    /// An event that may land twice is one row in all logs together, so those of other logs count from the start.
    async fn load_once_of_others(&mut self) -> Result<(), sqlx::Error> {
        if !self.installed {
            return Ok(());
        }
        let others: Vec<Uuid> = sqlx::query_scalar(
            "SELECT DISTINCT log_id FROM annals.lane_heads WHERE projection = $1 AND version = $2 AND log_id <> $3",
        )
        .bind(Audit::NAME)
        .bind(Audit::VERSION)
        .bind(self.log.0)
        .fetch_all(&mut *self.tx)
        .await?;
        if others.is_empty() {
            return Ok(());
        }
        let sql = format!(
            "SELECT source, event_id, content FROM {}.audit_events WHERE once AND log_id = ANY($1)",
            Audit::SCHEMA
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).bind(others).fetch_all(&mut *self.tx).await?;
        for row in rows {
            let content: Vec<u8> = row.try_get("content")?;
            if let Ok(content) = content.try_into() {
                self.once.insert((row.try_get("source")?, row.try_get("event_id")?), content);
            }
        }
        Ok(())
    }

    /// How many rows of each log in `history` there are.
    pub(super) async fn count_history(&mut self) -> Result<Vec<(Uuid, i64)>, sqlx::Error> {
        if !self.installed || self.history.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT log_id, count(*) FROM {}.audit_events WHERE log_id = ANY($1) GROUP BY log_id ORDER BY log_id",
            Audit::SCHEMA
        );
        let logs: Vec<Uuid> = self.history.iter().copied().collect();
        sqlx::query_as(AssertSqlSafe(sql)).bind(logs).fetch_all(&mut *self.tx).await
    }

    /// Compares one batch, which is in log order.
    pub(super) async fn add(
        &mut self,
        batch: Vec<Judged>,
        found: &mut Vec<Finding>,
    ) -> Result<(), sqlx::Error> {
        let applied: Vec<Judged> =
            batch.into_iter().filter_map(|judged| self.applied(judged, found)).collect();
        let Some(ranges) = Ranges::of(&applied, &self.through) else { return Ok(()) };
        let mut parked = self.parked(&ranges).await?;
        let mut rows = Vec::new();
        for judged in applied {
            let place = (judged.stored.frame.target, signed(judged.stored.position.0));
            let stored = judged.stored.clone();
            let aside = parked.remove(&place);
            if let Some(aside) = &aside {
                self.counts.parked += 1;
                compare_parked(&stored, aside, found);
            }
            match (self.fate(judged), aside) {
                (Fate::Row(row), None) => rows.push(*row),
                // Postgres refused it for its data, so it was set aside. The cause alone is no proof: anybody who may
                // write there could hide a row so.
                (Fate::Row(row), Some(aside))
                    if aside.cause.starts_with(REJECTED) && may_be_rejected(&row) => {}
                (Fate::Row(_), Some(_)) => {
                    found.push(at(FindingKind::State, &stored, "it was set aside, although it gives a row"));
                }
                (Fate::Parked, Some(_)) | (Fate::Dropped, None) | (Fate::Unsure, _) => {}
                (Fate::Parked, None) => found.push(at(
                    FindingKind::RowMissing,
                    &stored,
                    "it gives no row and should stand among the parked, but does not",
                )),
                (Fate::Dropped, Some(_)) => {
                    found.push(at(
                        FindingKind::State,
                        &stored,
                        "it repeats another event, but was set aside",
                    ));
                }
            }
        }
        for ((target, position), _) in parked {
            let detail = "an event was set aside there, but the log has none".to_owned();
            found.push(Finding::at(FindingKind::State, target, unsigned(position), detail));
        }
        self.compare(&ranges, rows, found).await?;
        self.through.extend(ranges.ends());
        Ok(())
    }

    /// The event when it is not past its partition's checkpoint.
    fn applied(&mut self, judged: Judged, found: &mut Vec<Finding>) -> Option<Judged> {
        let stored = &judged.stored;
        let Some(checkpoint) = self
            .checkpoints
            .get_mut(&stored.frame.target)
            .filter(|checkpoint| stored.position <= checkpoint.position)
        else {
            self.counts.pending += 1;
            return None;
        };
        if stored.position == checkpoint.position {
            checkpoint.seen = true;
            if stored.frame.link != checkpoint.link {
                found.push(at(FindingKind::Checkpoint, stored, "the checkpoint here has another link"));
            }
        }
        Some(judged)
    }

    /// What the projection had to do with the event; the same rules as the consumer's.
    fn fate(&mut self, judged: Judged) -> Fate {
        let Judged { stored, verdict, decoded } = judged;
        let frame = &stored.frame;
        if i64::try_from(frame.seq).is_err() {
            return Fate::Parked;
        }
        match verdict {
            Verdict::Duplicate => return Fate::Dropped,
            Verdict::Conflict => return Fate::Parked,
            Verdict::Behind => return Fate::Unsure,
            Verdict::Next | Verdict::Gap { .. } => {}
        }
        self.heads.insert((frame.target, frame.incarnation), Head { seq: frame.seq, link: frame.link });
        let Some(decoded) = decoded else { return Fate::Parked };
        let item = Item { stored, decoded };
        if item.decoded.common.once {
            let key = (crate::projection::clean(&item.decoded.source).into_owned(), item.decoded.id);
            match self.once.get(&key) {
                Some(content) if *content == item.stored.frame.content => return Fate::Dropped,
                Some(_) => return Fate::Parked,
                None => {
                    self.once.insert(key, item.stored.frame.content);
                }
            }
        }
        let Ok((event, personal)) = rows(self.log, &item) else { return Fate::Parked };
        self.open.add(&item, &event);
        Fate::Row(Box::new((event, personal)))
    }

    async fn parked(&mut self, ranges: &Ranges) -> Result<BTreeMap<Place, ParkedRow>, sqlx::Error> {
        let found = sqlx::query(
            "SELECT p.topic, p.partition, p.position, p.content, p.link, p.body, p.cause
             FROM UNNEST($4::text[], $5::int4[], $6::int8[], $7::int8[]) AS r(topic, partition, after, through)
             JOIN annals.parked p ON p.projection = $1 AND p.version = $2 AND p.log_id = $3
                 AND p.topic = r.topic AND p.partition = r.partition
                 AND p.position > r.after AND p.position <= r.through",
        )
        .bind(Audit::NAME)
        .bind(Audit::VERSION)
        .bind(self.log.0)
        .bind(&ranges.topics)
        .bind(&ranges.partitions)
        .bind(&ranges.after)
        .bind(&ranges.through)
        .fetch_all(&mut *self.tx)
        .await?;
        let mut parked = BTreeMap::new();
        for row in found {
            if let Some(place) = place_of(&row)? {
                let aside = ParkedRow {
                    content: row.try_get("content")?,
                    link: row.try_get("link")?,
                    body: row.try_get("body")?,
                    cause: row.try_get("cause")?,
                };
                parked.insert(place, aside);
            }
        }
        Ok(parked)
    }

    async fn compare(
        &mut self,
        ranges: &Ranges,
        rows: Vec<(EventRow, PersonalRow)>,
        found: &mut Vec<Finding>,
    ) -> Result<(), sqlx::Error> {
        self.counts.compared += rows.len() as u64;
        let mut events = EventArrays::default();
        let mut personal = PersonalArrays::default();
        let places: Vec<(String, i32, i64, OffsetDateTime)> = rows
            .iter()
            .map(|(event, _)| (event.topic.clone(), event.partition, event.position, event.recorded_at))
            .collect();
        for (event, person) in rows {
            events.push(event);
            personal.push(person);
        }
        let mut savepoint = self.tx.begin().await?;
        let compared = async {
            let query = ranges.bind(sqlx::query(AssertSqlSafe(self.events_sql.clone())), self.log);
            let mut differing = events.bind(query).fetch_all(&mut *savepoint).await?;
            let query = ranges.bind(sqlx::query(AssertSqlSafe(self.personal_sql.clone())), self.log);
            differing.extend(personal.bind(query).fetch_all(&mut *savepoint).await?);
            Ok::<_, sqlx::Error>(differing)
        };
        match compared.await {
            Ok(differing) => {
                savepoint.commit().await?;
                for row in differing.into_iter().filter(|_| !planted::armed("verify_trusts_rows")) {
                    match difference(&row)? {
                        Some(finding) if finding.kind == FindingKind::RowMissing => {
                            self.miss(finding, &row, &places)?;
                        }
                        finding => found.extend(finding),
                    }
                }
            }
            // One of the events gives a row that Postgres does not take, and was not set aside.
            Err(sqlx::Error::Database(error)) if error.code().is_some_and(|code| code.starts_with("22")) => {
                savepoint.rollback().await?;
                let (first, last) = (places.first(), places.last());
                let (Some((topic, partition, position, _)), Some((_, _, last, _))) = (first, last) else {
                    return Ok(());
                };
                found.push(Finding {
                    kind: FindingKind::RowMissing,
                    topic: Some(topic.clone()),
                    partition: u32::try_from(*partition).ok(),
                    position: unsigned(*position),
                    file: None,
                    offset: None,
                    detail: format!(
                        "Postgres does not take the row of an event from here to position {last}, and it is not set aside: {error}"
                    ),
                });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Keeps a missing row until the log says whether it was dropped.
    fn miss(
        &mut self,
        finding: Finding,
        row: &PgRow,
        places: &[(String, i32, i64, OffsetDateTime)],
    ) -> Result<(), sqlx::Error> {
        let (topic, partition): (String, i32) = (row.try_get("topic")?, row.try_get("partition")?);
        let position: i64 = row.try_get("position")?;
        // The batch is in log order, which is that of the positions.
        let index = places.partition_point(|place| place.2 < position);
        let place =
            places.get(index).filter(|place| (&place.0, place.1, place.2) == (&topic, partition, position));
        let month = place.map_or((i32::MAX, 0), |(.., at)| (at.year(), u8::from(at.month())));
        let missing = self.missing.entry(month).or_default();
        missing.count += 1;
        if missing.findings.len() < FINDINGS_MAX {
            missing.findings.push(finding);
        }
        Ok(())
    }

    /// At the end of the log (or of what of it can be read, with `whole` false): rows that no event gives.
    pub(super) async fn finish(&mut self, whole: bool, found: &mut Vec<Finding>) -> Result<(), sqlx::Error> {
        self.settle_missing(found);
        if !self.installed {
            return Ok(());
        }
        let mut checked = self.through.clone();
        for (target, applied) in &self.checkpoints {
            if !whole {
                // Rows of events that cannot be read any more are neither right nor wrong.
                let through = checked.entry(*target).or_insert(-1);
                *through = (*through).max(signed(applied.position.0));
            } else if !applied.seen {
                let detail = "the checkpoint names an event that is not on the log";
                found.push(Finding::at(FindingKind::Checkpoint, *target, applied.position.0, detail));
            }
        }
        for table in [EventRow::COLUMNS.table, PersonalRow::COLUMNS.table] {
            self.added(table, &checked, found).await?;
        }
        self.parked_elsewhere(&checked, found).await
    }

    async fn added(
        &mut self,
        table: &str,
        checked: &BTreeMap<TopicPartition, i64>,
        found: &mut Vec<Finding>,
    ) -> Result<(), sqlx::Error> {
        let sql = format!(
            "SELECT a.log_id, a.topic, a.partition, a.position FROM {}.{table} a
             WHERE a.log_id <> ALL($5) AND NOT EXISTS (
                 SELECT FROM UNNEST($2::text[], $3::int4[], $4::int8[]) AS r(topic, partition, through)
                 WHERE a.log_id = $1 AND a.topic = r.topic AND a.partition = r.partition
                   AND a.position BETWEEN 0 AND r.through)
             ORDER BY a.position, a.topic, a.partition LIMIT {ADDED_MAX}",
            Audit::SCHEMA
        );
        let rows = bind_checked(sqlx::query(AssertSqlSafe(sql)).bind(self.log.0), checked)
            .bind(self.history.iter().copied().collect::<Vec<_>>())
            .fetch_all(&mut *self.tx)
            .await?;
        for row in rows {
            let log: Uuid = row.try_get("log_id")?;
            let detail = if log == self.log.0 {
                format!("a row of {table} stands here, past everything that was applied")
            } else {
                format!("a row of {table} names log {log}")
            };
            found.push(nowhere(FindingKind::RowAdded, &row, detail)?);
        }
        Ok(())
    }

    async fn parked_elsewhere(
        &mut self,
        checked: &BTreeMap<TopicPartition, i64>,
        found: &mut Vec<Finding>,
    ) -> Result<(), sqlx::Error> {
        let sql = format!(
            "SELECT a.topic, a.partition, a.position FROM annals.parked a
             WHERE a.projection = $5 AND a.version = $6 AND a.log_id <> ALL($7) AND NOT EXISTS (
                 SELECT FROM UNNEST($2::text[], $3::int4[], $4::int8[]) AS r(topic, partition, through)
                 WHERE a.log_id = $1 AND a.topic = r.topic AND a.partition = r.partition
                   AND a.position BETWEEN 0 AND r.through)
             ORDER BY a.position, a.topic, a.partition LIMIT {ADDED_MAX}"
        );
        let rows = bind_checked(sqlx::query(AssertSqlSafe(sql)).bind(self.log.0), checked)
            .bind(Audit::NAME)
            .bind(Audit::VERSION)
            .bind(self.history.iter().copied().collect::<Vec<_>>())
            .fetch_all(&mut *self.tx)
            .await?;
        for row in rows {
            let detail = "an event was set aside there, past everything that was applied".to_owned();
            found.push(nowhere(FindingKind::State, &row, detail)?);
        }
        Ok(())
    }

    /// Whether the event at this place was applied in the snapshot.
    pub(super) fn has_applied(&self, (target, position): (TopicPartition, Position)) -> bool {
        self.checkpoints.get(&target).is_some_and(|applied| position <= applied.position)
    }

    /// The open snapshot, for further comparisons.
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.tx
    }
}

type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

/// Part of each partition that one comparison covers: behind `after`, up to and with `through`.
struct Ranges {
    targets: Vec<TopicPartition>,
    topics: Vec<&'static str>,
    partitions: Vec<i32>,
    after: Vec<i64>,
    through: Vec<i64>,
}

impl Ranges {
    fn of(applied: &[Judged], through: &BTreeMap<TopicPartition, i64>) -> Option<Self> {
        let ends: BTreeMap<TopicPartition, i64> = applied
            .iter()
            .map(|judged| (judged.stored.frame.target, signed(judged.stored.position.0)))
            .collect();
        (!ends.is_empty()).then(|| Self {
            targets: ends.keys().copied().collect(),
            topics: ends.keys().map(|target| target.topic.name()).collect(),
            partitions: ends.keys().map(|target| partition_i32(*target)).collect(),
            after: ends.keys().map(|target| through.get(target).copied().unwrap_or(-1)).collect(),
            through: ends.values().copied().collect(),
        })
    }

    fn ends(&self) -> impl Iterator<Item = (TopicPartition, i64)> {
        self.targets.iter().copied().zip(self.through.iter().copied())
    }

    fn bind<'q>(&self, query: Query<'q>, log: LogId) -> Query<'q> {
        query.bind(log.0).bind(&self.topics).bind(&self.partitions).bind(&self.after).bind(&self.through)
    }
}

fn bind_checked<'q>(query: Query<'q>, checked: &BTreeMap<TopicPartition, i64>) -> Query<'q> {
    query
        .bind(checked.keys().map(|target| target.topic.name()).collect::<Vec<_>>())
        .bind(checked.keys().map(|target| partition_i32(*target)).collect::<Vec<_>>())
        .bind(checked.values().copied().collect::<Vec<_>>())
}

/// Lists where the bound rows and the table's rows of the ranges do not agree, and in which columns.
fn compare_sql(columns: &Columns) -> String {
    let differs = |name: &&str| format!("e.{name}::text IS DISTINCT FROM a.{name}::text");
    let any: Vec<String> = columns.names.iter().map(differs).collect();
    let each: Vec<String> =
        columns.names.iter().map(|name| format!("CASE WHEN {} THEN '{name}' END", differs(name))).collect();
    format!(
        "WITH e AS ({bound}),
              a AS (SELECT a.* FROM UNNEST($2::text[], $3::int4[], $4::int8[], $5::int8[])
                        AS r(topic, partition, after, through)
                    JOIN {schema}.{table} a ON a.log_id = $1 AND a.topic = r.topic AND a.partition = r.partition
                        AND a.position > r.after AND a.position <= r.through)
         SELECT COALESCE(e.topic, a.topic) AS topic, COALESCE(e.partition, a.partition) AS partition,
             COALESCE(e.position, a.position) AS position, e.topic IS NOT NULL AS expected,
             a.topic IS NOT NULL AS present, '{table}' AS table_name,
             array_to_string(ARRAY[{each}], ', ') AS columns
         FROM e FULL JOIN a ON e.topic = a.topic AND e.partition = a.partition AND e.position = a.position
         WHERE e.topic IS NULL OR a.topic IS NULL OR {any}
         ORDER BY 3, 1, 2",
        bound = columns.select_bound(6),
        schema = Audit::SCHEMA,
        table = columns.table,
        each = each.join(", "),
        any = any.join(" OR "),
    )
}

fn difference(row: &PgRow) -> Result<Option<Finding>, sqlx::Error> {
    let table: String = row.try_get("table_name")?;
    let (kind, detail) = match (row.try_get("expected")?, row.try_get("present")?) {
        (true, true) => {
            let columns: String = row.try_get("columns")?;
            (FindingKind::RowChanged, format!("its row of {table} is not what the event gives: {columns}"))
        }
        (true, false) => (FindingKind::RowMissing, format!("its row of {table} is missing")),
        (false, true) => {
            (FindingKind::RowAdded, format!("a row of {table} stands here, and no event gives it"))
        }
        (false, false) => return Ok(None),
    };
    nowhere(kind, row, detail).map(Some)
}

/// Whether a row of the projection could be more than Postgres takes: a text that no index entry holds. All else is made
/// fit for Postgres before it gets there.
fn may_be_rejected((event, person): &(EventRow, PersonalRow)) -> bool {
    let indexed =
        [Some(&event.tenant), event.tool_name.as_ref(), event.session_id.as_ref(), person.user_id.as_ref()];
    indexed.into_iter().flatten().any(|text| text.len() > INDEXED_BYTES_MAX)
}

fn compare_parked(stored: &Stored, aside: &ParkedRow, found: &mut Vec<Finding>) {
    let frame = &stored.frame;
    if aside.content != frame.content || aside.link != frame.link || aside.body != frame.body {
        found.push(at(FindingKind::State, stored, "what was set aside here is not this event"));
    }
}

fn at(kind: FindingKind, stored: &Stored, detail: &str) -> Finding {
    Finding::at(kind, stored.frame.target, stored.position.0, detail)
}

/// A finding at the place that a row names, which may be no real place.
pub(super) fn nowhere(kind: FindingKind, row: &PgRow, detail: String) -> Result<Finding, sqlx::Error> {
    let partition: i32 = row.try_get("partition")?;
    Ok(Finding {
        kind,
        topic: Some(row.try_get("topic")?),
        partition: u32::try_from(partition).ok(),
        position: unsigned(row.try_get("position")?),
        file: None,
        offset: None,
        detail,
    })
}

/// The place a row names; `None` when there is no such partition.
fn place_of(row: &PgRow) -> Result<Option<Place>, sqlx::Error> {
    let topic: String = row.try_get("topic")?;
    let partition: i32 = row.try_get("partition")?;
    let position: i64 = row.try_get("position")?;
    let (Ok(topic), Ok(partition)) = (topic.parse(), u32::try_from(partition)) else {
        return Ok(None);
    };
    Ok(Some((TopicPartition { topic, partition }, position)))
}

pub(super) fn partition_i32(target: TopicPartition) -> i32 {
    i32::try_from(target.partition).unwrap_or(i32::MAX)
}

fn signed(position: u64) -> i64 {
    i64::try_from(position).unwrap_or(i64::MAX)
}

fn unsigned(position: i64) -> u64 {
    u64::try_from(position).unwrap_or(0)
}
