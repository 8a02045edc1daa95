//! Lease and checkpoint, one row per partition: who may apply it, and how far it is applied.
//!
//! Time is the database's clock only, so that two machines never disagree about who owns a partition.

use std::collections::BTreeMap;

use sqlx::{PgConnection, PgPool, Row};
use uuid::Uuid;

use crate::db;
use crate::event::{Link, TopicPartition};
use crate::log::{LogId, Position};

/// Who asks, for which projection.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) projection: &'static str,
    pub(super) version: i32,
    pub(super) log: LogId,
    pub(super) owner: String,
    pub(super) lease_ms: u64,
    /// Everybody else is known to be dead: leases of others are taken without waiting.
    pub(super) sole_owner: bool,
}

/// How far one partition is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checkpoint {
    pub(super) position: Position,
    pub(super) link: Link,
}

/// A partition that we hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) epoch: i64,
    pub(super) checkpoint: Option<Checkpoint>,
}

/// What was claimed, or why the whole projection must not go on.
#[derive(Debug)]
pub(super) enum Claimed {
    Owned(BTreeMap<TopicPartition, Owned>),
    /// A checkpoint belongs to another log.
    OtherLog {
        target: TopicPartition,
        log: Uuid,
    },
}

/// One partition's part of a move.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub(super) target: TopicPartition,
    pub(super) epoch: i64,
    pub(super) from: Option<Position>,
    pub(super) to: Option<Checkpoint>,
}

/// Takes what is free or expired of `targets`. Never waits for a row that somebody is moving: it comes with a later try.
pub(super) async fn claim(
    pool: &PgPool,
    me: &Identity,
    targets: &[TopicPartition],
) -> Result<Claimed, sqlx::Error> {
    let (topics, partitions) = arrays(targets);
    let mut tx = db::begin(pool).await?;
    sqlx::query(
        "INSERT INTO annals.checkpoints (projection, version, topic, partition, log_id, epoch)
         SELECT $1, $2, t.topic, t.partition, $3, 0
         FROM UNNEST($4::text[], $5::int4[]) AS t(topic, partition)
         ON CONFLICT DO NOTHING",
    )
    .bind(me.projection)
    .bind(me.version)
    .bind(me.log.0)
    .bind(&topics)
    .bind(&partitions)
    .execute(&mut *tx)
    .await?;
    let rows = sqlx::query(
        "WITH free AS (
             SELECT c.topic, c.partition FROM annals.checkpoints c
             JOIN UNNEST($3::text[], $4::int4[]) AS t(topic, partition) USING (topic, partition)
             WHERE c.projection = $1 AND c.version = $2
               AND ($7 OR c.owner IS NULL OR c.owner = $5 OR c.expires_at IS NULL OR c.expires_at < clock_timestamp())
             ORDER BY c.topic, c.partition
             FOR UPDATE OF c SKIP LOCKED
         )
         UPDATE annals.checkpoints c
         SET owner = $5, epoch = c.epoch + 1,
             expires_at = clock_timestamp() + make_interval(secs => $6::float8 / 1000)
         FROM free
         WHERE c.projection = $1 AND c.version = $2 AND c.topic = free.topic AND c.partition = free.partition
         RETURNING c.topic, c.partition, c.log_id, c.position, c.link, c.epoch",
    )
    .bind(me.projection)
    .bind(me.version)
    .bind(&topics)
    .bind(&partitions)
    .bind(&me.owner)
    .bind(lease_ms(me))
    .bind(me.sole_owner)
    .fetch_all(&mut *tx)
    .await?;
    let mut owned = BTreeMap::new();
    for row in rows {
        let target = target_of(&row)?;
        let log: Uuid = row.try_get("log_id")?;
        if log != me.log.0 {
            tx.rollback().await?;
            return Ok(Claimed::OtherLog { target, log });
        }
        owned.insert(target, Owned { epoch: row.try_get("epoch")?, checkpoint: checkpoint_of(&row)? });
    }
    tx.commit().await?;
    Ok(Claimed::Owned(owned))
}

/// Moves checkpoints and renews leases in the open transaction. `false`: a lease is not ours any more.
pub(super) async fn advance(
    tx: &mut PgConnection,
    me: &Identity,
    moves: &[Move],
) -> Result<bool, sqlx::Error> {
    let targets: Vec<TopicPartition> = moves.iter().map(|step| step.target).collect();
    let (topics, partitions) = arrays(&targets);
    let done = sqlx::query(
        "UPDATE annals.checkpoints c
         SET position = COALESCE(m.position, c.position), link = COALESCE(m.link, c.link),
             expires_at = clock_timestamp() + make_interval(secs => $5::float8 / 1000)
         FROM UNNEST($6::text[], $7::int4[], $8::int8[], $9::int8[], $10::int8[], $11::bytea[])
             AS m(topic, partition, epoch, before, position, link)
         WHERE c.projection = $1 AND c.version = $2 AND c.log_id = $3 AND c.owner = $4
           AND c.topic = m.topic AND c.partition = m.partition AND c.epoch = m.epoch
           AND c.position IS NOT DISTINCT FROM m.before",
    )
    .bind(me.projection)
    .bind(me.version)
    .bind(me.log.0)
    .bind(&me.owner)
    .bind(lease_ms(me))
    .bind(topics)
    .bind(partitions)
    .bind(moves.iter().map(|step| step.epoch).collect::<Vec<_>>())
    .bind(moves.iter().map(|step| step.from.map(position_i64)).collect::<Vec<_>>())
    .bind(moves.iter().map(|step| step.to.map(|to| position_i64(to.position))).collect::<Vec<_>>())
    .bind(moves.iter().map(|step| step.to.map(|to| to.link.to_vec())).collect::<Vec<_>>())
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == moves.len() as u64)
}

/// Gives our leases back, so that the next owner need not wait.
pub(super) async fn release(
    pool: &PgPool,
    me: &Identity,
    owned: &BTreeMap<TopicPartition, Owned>,
) -> Result<(), sqlx::Error> {
    let targets: Vec<TopicPartition> = owned.keys().copied().collect();
    let (topics, partitions) = arrays(&targets);
    sqlx::query(
        "UPDATE annals.checkpoints c SET owner = NULL, expires_at = NULL
         FROM UNNEST($4::text[], $5::int4[], $6::int8[]) AS m(topic, partition, epoch)
         WHERE c.projection = $1 AND c.version = $2 AND c.owner = $3
           AND c.topic = m.topic AND c.partition = m.partition AND c.epoch = m.epoch",
    )
    .bind(me.projection)
    .bind(me.version)
    .bind(&me.owner)
    .bind(topics)
    .bind(partitions)
    .bind(owned.values().map(|owned| owned.epoch).collect::<Vec<_>>())
    .execute(pool)
    .await?;
    Ok(())
}

/// Topic names and partition numbers as arrays.
pub(super) fn arrays(targets: &[TopicPartition]) -> (Vec<&'static str>, Vec<i32>) {
    targets.iter().map(|target| (target.topic.name(), partition_i32(*target))).unzip()
}

pub(super) fn partition_i32(target: TopicPartition) -> i32 {
    i32::try_from(target.partition).expect("a partition is below 16")
}

/// A position as `bigint`. Positions over 2^63 do not exist on any engine: they would be exabytes of log.
pub(super) fn position_i64(position: Position) -> i64 {
    i64::try_from(position.0).unwrap_or(i64::MAX)
}

fn lease_ms(me: &Identity) -> f64 {
    // Milliseconds of a lease are far below 2^52.
    u32::try_from(me.lease_ms).map_or(f64::from(u32::MAX), f64::from)
}

/// Reads `topic` and `partition` of a row.
pub(super) fn target_of(row: &sqlx::postgres::PgRow) -> Result<TopicPartition, sqlx::Error> {
    let topic: String = row.try_get("topic")?;
    let partition: i32 = row.try_get("partition")?;
    let decode = |source: Box<dyn std::error::Error + Send + Sync>| sqlx::Error::Decode(source);
    Ok(TopicPartition {
        topic: topic.parse().map_err(|error| decode(Box::new(error)))?,
        partition: u32::try_from(partition).map_err(|error| decode(Box::new(error)))?,
    })
}

/// Reads `position` of a row, which may have none.
pub(super) fn position_of(row: &sqlx::postgres::PgRow) -> Result<Option<Position>, sqlx::Error> {
    let position: Option<i64> = row.try_get("position")?;
    let position = position.map(u64::try_from).transpose();
    Ok(position.map_err(|error| sqlx::Error::Decode(Box::new(error)))?.map(Position))
}

fn checkpoint_of(row: &sqlx::postgres::PgRow) -> Result<Option<Checkpoint>, sqlx::Error> {
    let link: Option<Vec<u8>> = row.try_get("link")?;
    let (Some(position), Some(link)) = (position_of(row)?, link) else {
        return Ok(None);
    };
    let link = Link::try_from(link.as_slice()).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    Ok(Some(Checkpoint { position, link }))
}
