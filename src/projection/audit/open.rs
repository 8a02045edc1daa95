//! The set of open calls: opened by an intent, closed by the first terminal event after it, per partition.
//!
//! [`OpenCalls`] says what the set is; [`Changes`] brings the table to the same set, batch by batch.

use std::collections::{BTreeSet, HashMap};

use sqlx::{AssertSqlSafe, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::row::{CallStep, EventRow, call_step};
use crate::log::LogId;
use crate::projection::Item;

/// A call with an intent and no terminal event: a row of `open_calls`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenCall {
    /// The intent's topic.
    pub topic: String,
    /// The intent's partition.
    pub partition: i32,
    /// The call.
    pub call_id: Uuid,
    /// Where the intent stands.
    pub position: i64,
    /// Who wrote the intent.
    pub incarnation: Uuid,
    /// The tenant.
    pub tenant: String,
    /// When the intent was recorded.
    pub recorded_at: OffsetDateTime,
    /// When the call ends at the latest.
    pub deadline: OffsetDateTime,
}

type Key = (String, i32, Uuid);

/// The open calls after a run of events.
#[derive(Debug, Clone, Default)]
pub struct OpenCalls {
    open: HashMap<Key, OpenCall>,
}

impl OpenCalls {
    /// Adds one event; `row` is its row.
    pub fn add(&mut self, item: &Item, row: &EventRow) {
        match step(item, row) {
            Some((key, Some(call))) => {
                self.open.entry(key).or_insert(call);
            }
            Some((key, None)) => {
                self.open.remove(&key);
            }
            None => {}
        }
    }

    /// The open calls, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &OpenCall> {
        self.open.values()
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

/// What the event does: opens its key with a call, or closes it.
fn step(item: &Item, row: &EventRow) -> Option<(Key, Option<OpenCall>)> {
    let (call_id, deadline) = match call_step(&item.decoded)? {
        CallStep::Opened { call_id, deadline } => (call_id, Some(deadline)),
        CallStep::Ended { call_id } => (call_id, None),
    };
    let call = deadline.map(|deadline| OpenCall {
        topic: row.topic.clone(),
        partition: row.partition,
        call_id,
        position: row.position,
        incarnation: row.incarnation,
        tenant: row.tenant.clone(),
        recorded_at: row.recorded_at,
        deadline: deadline.to_offset(),
    });
    Some(((row.topic.clone(), row.partition, call_id), call))
}

/// The changes of one batch: what it ended is deleted first, then what it left open is inserted.
#[derive(Debug, Default)]
pub(super) struct Changes {
    ended: BTreeSet<Key>,
    opened: OpenCalls,
}

impl Changes {
    pub(super) fn add(&mut self, item: &Item, row: &EventRow) {
        if let Some((key, None)) = step(item, row) {
            self.ended.insert(key);
        }
        self.opened.add(item, row);
    }

    pub(super) async fn write(
        self,
        tx: &mut PgConnection,
        schema: &str,
        log: LogId,
    ) -> Result<(), sqlx::Error> {
        if !self.ended.is_empty() {
            let (topics, rest): (Vec<_>, Vec<_>) =
                self.ended.into_iter().map(|(topic, partition, call)| (topic, (partition, call))).unzip();
            let (partitions, calls): (Vec<_>, Vec<_>) = rest.into_iter().unzip();
            let sql = format!(
                "DELETE FROM {schema}.open_calls o USING UNNEST($2::text[], $3::int4[], $4::uuid[])
                     AS e(topic, partition, call_id)
                 WHERE o.log_id = $1 AND o.topic = e.topic AND o.partition = e.partition AND o.call_id = e.call_id"
            );
            sqlx::query(AssertSqlSafe(sql))
                .bind(log.0)
                .bind(topics)
                .bind(partitions)
                .bind(calls)
                .execute(&mut *tx)
                .await?;
        }
        if !self.opened.is_empty() {
            insert(tx, schema, log, self.opened.open.into_values()).await?;
        }
        Ok(())
    }
}

async fn insert(
    tx: &mut PgConnection,
    schema: &str,
    log: LogId,
    calls: impl Iterator<Item = OpenCall>,
) -> Result<(), sqlx::Error> {
    let calls: Vec<OpenCall> = calls.collect();
    let sql = format!(
        "INSERT INTO {schema}.open_calls
             (log_id, topic, partition, call_id, position, incarnation, tenant, recorded_at, deadline)
         SELECT $1, c.* FROM UNNEST($2::text[], $3::int4[], $4::uuid[], $5::int8[], $6::uuid[], $7::text[],
             $8::timestamptz[], $9::timestamptz[]) AS c
         ON CONFLICT DO NOTHING"
    );
    sqlx::query(AssertSqlSafe(sql))
        .bind(log.0)
        .bind(calls.iter().map(|call| call.topic.clone()).collect::<Vec<_>>())
        .bind(calls.iter().map(|call| call.partition).collect::<Vec<_>>())
        .bind(calls.iter().map(|call| call.call_id).collect::<Vec<_>>())
        .bind(calls.iter().map(|call| call.position).collect::<Vec<_>>())
        .bind(calls.iter().map(|call| call.incarnation).collect::<Vec<_>>())
        .bind(calls.iter().map(|call| call.tenant.clone()).collect::<Vec<_>>())
        .bind(calls.iter().map(|call| call.recorded_at).collect::<Vec<_>>())
        .bind(calls.iter().map(|call| call.deadline).collect::<Vec<_>>())
        .execute(tx)
        .await?;
    Ok(())
}
