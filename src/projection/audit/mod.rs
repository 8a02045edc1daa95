//! The audit projection: every event as one immutable row, and the calls that are still open.
//!
//! It never changes or deletes a row of `audit_events` or `audit_personal`; whole old months are dropped on request.

mod columns;
mod months;
mod open;
mod row;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row};
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

use super::{ApplyError, INSTALL_LOCK_TIMEOUT, Item, Projection};
use crate::base::Timestamp;
use crate::db;
use crate::event::Topic;
use crate::log::{Frame, LogId};

pub use columns::Columns;
pub use months::Month;
pub use open::{OpenCall, OpenCalls};
pub use row::{CallStep, EventArrays, EventRow, PersonalArrays, PersonalRow, call_step, rows};

/// Version 1 of the audit projection, in the schema [`Audit::SCHEMA`].
#[derive(Debug)]
pub struct Audit {
    schema: &'static str,
    insert_events: Arc<str>,
    insert_personal: Arc<str>,
    months: Mutex<BTreeSet<(i32, u8)>>,
}

impl Default for Audit {
    fn default() -> Self {
        Self::new()
    }
}

impl Audit {
    /// The name in checkpoints.
    pub const NAME: &'static str = "audit";
    /// The version in checkpoints.
    pub const VERSION: i32 = 1;
    /// Where its tables are.
    pub const SCHEMA: &'static str = "audit_v1";

    /// The projection; nothing is created before [`Projection::install`].
    #[must_use]
    pub fn new() -> Self {
        Self {
            schema: Self::SCHEMA,
            insert_events: EventRow::COLUMNS.insert(Self::SCHEMA).into(),
            insert_personal: PersonalRow::COLUMNS.insert(Self::SCHEMA).into(),
            months: Mutex::default(),
        }
    }

    async fn create(&self, owner: &PgPool) -> Result<(), sqlx::Error> {
        let mut tx = db::begin(owner).await?;
        let lock = format!(
            "SET LOCAL lock_timeout = {}; SELECT pg_advisory_xact_lock(hashtextextended('annals.projection.{}', 0))",
            INSTALL_LOCK_TIMEOUT.as_millis(),
            self.schema
        );
        sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *tx).await?;
        for template in [include_str!("schema.sql"), include_str!("views.sql")] {
            let ddl = template.replace("@schema@", self.schema);
            sqlx::raw_sql(AssertSqlSafe(ddl)).execute(&mut *tx).await?;
        }
        tx.commit().await
    }

    async fn prepare_months(&self, writer: &PgPool, recorded: &[Timestamp]) -> Result<(), sqlx::Error> {
        let wanted: BTreeSet<(i32, u8)> = recorded.iter().filter_map(|at| row::month_of(*at)).collect();
        let missing: Vec<(i32, u8)> = {
            let known = self.months.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.difference(&known).copied().collect()
        };
        for (year, month) in missing {
            let first = first_of(year, month);
            let sql = format!("SELECT {}.ensure_month($1)", self.schema);
            sqlx::query(AssertSqlSafe(sql)).bind(first).execute(writer).await?;
            self.months.lock().unwrap_or_else(PoisonError::into_inner).insert((year, month));
        }
        Ok(())
    }

    async fn write(&self, tx: &mut PgConnection, log: LogId, batch: &[Item]) -> Result<(), ApplyError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut events = EventArrays::default();
        let mut personal = PersonalArrays::default();
        let mut calls = open::Changes::default();
        for (index, item) in batch.iter().enumerate() {
            let (event, person) = rows(log, item).map_err(|cause| ApplyError::Item { index, cause })?;
            calls.add(item, &event);
            events.push(event);
            personal.push(person);
        }
        events.bind(sqlx::query(AssertSqlSafe(Arc::clone(&self.insert_events)))).execute(&mut *tx).await?;
        personal
            .bind(sqlx::query(AssertSqlSafe(Arc::clone(&self.insert_personal))))
            .execute(&mut *tx)
            .await?;
        calls.write(tx, self.schema, log).await?;
        Ok(())
    }

    async fn known(
        &self,
        tx: &mut PgConnection,
        log: LogId,
        frames: &[Frame],
    ) -> Result<Vec<bool>, sqlx::Error> {
        let topics: Vec<&str> = frames.iter().map(|frame| frame.target.topic.name()).collect();
        let partitions: Vec<i32> =
            frames.iter().map(|frame| i32::try_from(frame.target.partition).unwrap_or(-1)).collect();
        let incarnations: Vec<Uuid> = frames.iter().map(|frame| frame.incarnation).collect();
        let seqs: Vec<i64> = frames.iter().map(|frame| i64::try_from(frame.seq).unwrap_or(-1)).collect();
        let links: Vec<&[u8]> = frames.iter().map(|frame| frame.link.as_slice()).collect();
        // The link covers `recorded_at`, so the same link can only stand in the partition of the same time.
        let recorded: Vec<OffsetDateTime> =
            frames.iter().map(|frame| frame.recorded_at.to_offset()).collect();
        let sql = format!(
            "SELECT EXISTS (SELECT FROM {}.audit_events e WHERE e.log_id = $1 AND e.topic = f.topic
                 AND e.partition = f.partition AND e.recorded_at = f.recorded_at
                 AND e.incarnation = f.incarnation AND e.seq = f.seq AND e.link = f.link) AS known
             FROM UNNEST($2::text[], $3::int4[], $4::timestamptz[], $5::uuid[], $6::int8[], $7::bytea[])
                 WITH ORDINALITY AS f(topic, partition, recorded_at, incarnation, seq, link, number)
             ORDER BY f.number",
            self.schema
        );
        let found = sqlx::query(AssertSqlSafe(sql))
            .bind(log.0)
            .bind(topics)
            .bind(partitions)
            .bind(recorded)
            .bind(incarnations)
            .bind(seqs)
            .bind(links)
            .fetch_all(tx)
            .await?;
        found.iter().map(|row| row.try_get("known")).collect()
    }
}

/// Midnight UTC of a month's first day.
fn first_of(year: i32, month: u8) -> OffsetDateTime {
    time::Month::try_from(month)
        .and_then(|month| time::Date::from_calendar_date(year, month, 1))
        .map_or(OffsetDateTime::UNIX_EPOCH, |date| date.midnight().assume_offset(UtcOffset::UTC))
}

impl Projection for Audit {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn version(&self) -> i32 {
        Self::VERSION
    }

    fn topics(&self) -> &'static [Topic] {
        &Topic::ALL
    }

    fn install<'a>(&'a self, owner: &'a PgPool) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(self.create(owner))
    }

    fn prepare<'a>(
        &'a self,
        writer: &'a PgPool,
        recorded: &'a [Timestamp],
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(self.prepare_months(writer, recorded))
    }

    fn forget(&self) {
        self.months.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn apply<'a>(
        &'a self,
        tx: &'a mut PgConnection,
        log: LogId,
        batch: &'a [Item],
    ) -> BoxFuture<'a, Result<(), ApplyError>> {
        Box::pin(self.write(tx, log, batch))
    }

    fn knows<'a>(
        &'a self,
        tx: &'a mut PgConnection,
        log: LogId,
        frames: &'a [Frame],
    ) -> BoxFuture<'a, Result<Vec<bool>, sqlx::Error>> {
        Box::pin(self.known(tx, log, frames))
    }
}
