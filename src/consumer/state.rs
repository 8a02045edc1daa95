//! The rows beside a projection's own that move in its transaction: lane heads, once, parked, findings.
//!
//! Only statements; what to write is decided elsewhere.

use std::collections::{HashMap, HashSet};

use sqlx::{PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::lane::Head;
use super::lease::{Identity, arrays, partition_i32, position_i64, target_of};
use super::sort::{Finding, LaneKey, Parked};
use crate::base::Timestamp;
use crate::event::Link;
use crate::log::Stored;
use crate::projection::{Item, clean};

/// Heads of the lanes in `keys` that have one.
pub(super) async fn load_heads(
    tx: &mut PgConnection,
    me: &Identity,
    keys: &[LaneKey],
) -> Result<HashMap<LaneKey, Head>, sqlx::Error> {
    let targets: Vec<_> = keys.iter().map(|(target, _)| *target).collect();
    let (topics, partitions) = arrays(&targets);
    let incarnations: Vec<Uuid> = keys.iter().map(|(_, incarnation)| *incarnation).collect();
    let rows = sqlx::query(
        "SELECT topic, partition, incarnation, h.seq, h.link FROM annals.lane_heads h
         JOIN UNNEST($4::text[], $5::int4[], $6::uuid[]) AS k(topic, partition, incarnation)
             USING (topic, partition, incarnation)
         WHERE h.projection = $1 AND h.version = $2 AND h.log_id = $3",
    )
    .bind(me.projection)
    .bind(me.version)
    .bind(me.log.0)
    .bind(topics)
    .bind(partitions)
    .bind(incarnations)
    .fetch_all(tx)
    .await?;
    rows.iter()
        .map(|row| {
            let key = (target_of(row)?, row.try_get("incarnation")?);
            let seq = u64::try_from(row.try_get::<i64, _>("seq")?)
                .map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
            let link = Link::try_from(row.try_get::<Vec<u8>, _>("link")?.as_slice())
                .map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
            Ok((key, Head { seq, link }))
        })
        .collect()
}

/// Moves lane heads forward.
pub(super) async fn save_heads(
    tx: &mut PgConnection,
    me: &Identity,
    heads: &HashMap<LaneKey, Head>,
) -> Result<(), sqlx::Error> {
    if heads.is_empty() {
        return Ok(());
    }
    let mut ordered: Vec<_> = heads.iter().collect();
    ordered.sort_by_key(|(key, _)| **key);
    let targets: Vec<_> = ordered.iter().map(|((target, _), _)| *target).collect();
    let (topics, partitions) = arrays(&targets);
    sqlx::query(
        "INSERT INTO annals.lane_heads (projection, version, log_id, topic, partition, incarnation, seq, link)
         SELECT $1, $2, $3, h.* FROM UNNEST($4::text[], $5::int4[], $6::uuid[], $7::int8[], $8::bytea[]) AS h
         ON CONFLICT (projection, version, log_id, topic, partition, incarnation)
         DO UPDATE SET seq = EXCLUDED.seq, link = EXCLUDED.link",
    )
    .bind(me.projection)
    .bind(me.version)
    .bind(me.log.0)
    .bind(topics)
    .bind(partitions)
    .bind(ordered.iter().map(|((_, incarnation), _)| *incarnation).collect::<Vec<_>>())
    .bind(ordered.iter().map(|(_, head)| bigint(head.seq)).collect::<Vec<_>>())
    .bind(ordered.iter().map(|(_, head)| head.link.to_vec()).collect::<Vec<_>>())
    .execute(tx)
    .await?;
    Ok(())
}

/// What stands in the once table for one (source, id).
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) content: Vec<u8>,
    /// It was put there just now.
    pub(super) fresh: bool,
}

/// Identity and content of a `once` event.
#[derive(Debug, Clone)]
pub(super) struct OnceEntry {
    pub(super) source: String,
    pub(super) id: Uuid,
    pub(super) content: [u8; 32],
}

impl OnceEntry {
    pub(super) fn of(item: &Item) -> Self {
        Self { source: once_source(item), id: item.decoded.id, content: item.stored.frame.content }
    }
}

/// Records `entries`, which differ in (source, id), and says what stands for each now.
pub(super) async fn claim_once(
    tx: &mut PgConnection,
    me: &Identity,
    entries: &[OnceEntry],
) -> Result<Vec<Standing>, sqlx::Error> {
    let sources: Vec<String> = entries.iter().map(|entry| entry.source.clone()).collect();
    let ids: Vec<Uuid> = entries.iter().map(|entry| entry.id).collect();
    let inserted = sqlx::query(
        "INSERT INTO annals.once (projection, version, source, event_id, content)
         SELECT $1, $2, o.* FROM UNNEST($3::text[], $4::uuid[], $5::bytea[]) AS o
         ON CONFLICT DO NOTHING RETURNING source, event_id",
    )
    .bind(me.projection)
    .bind(me.version)
    .bind(&sources)
    .bind(&ids)
    .bind(entries.iter().map(|entry| entry.content.to_vec()).collect::<Vec<_>>())
    .fetch_all(&mut *tx)
    .await?;
    let fresh = inserted
        .iter()
        .map(|row| Ok((row.try_get("source")?, row.try_get("event_id")?)))
        .collect::<Result<HashSet<(String, Uuid)>, sqlx::Error>>()?;
    let rows = sqlx::query(
        "SELECT o.source, o.event_id, o.content
         FROM UNNEST($3::text[], $4::uuid[]) WITH ORDINALITY AS k(source, event_id, number)
         JOIN annals.once o ON o.projection = $1 AND o.version = $2
             AND o.source = k.source AND o.event_id = k.event_id
         ORDER BY k.number",
    )
    .bind(me.projection)
    .bind(me.version)
    .bind(&sources)
    .bind(&ids)
    .fetch_all(tx)
    .await?;
    rows.iter()
        .map(|row| {
            let key = (row.try_get("source")?, row.try_get("event_id")?);
            Ok(Standing { content: row.try_get("content")?, fresh: fresh.contains(&key) })
        })
        .collect()
}

/// The source as the once table keys it.
pub(super) fn once_source(item: &Item) -> String {
    clean(&item.decoded.source).into_owned()
}

/// Which of `frames` stand among the parked with the same lane, number and link.
pub(super) async fn known_parked(
    tx: &mut PgConnection,
    me: &Identity,
    frames: &[Stored],
) -> Result<Vec<bool>, sqlx::Error> {
    let targets: Vec<_> = frames.iter().map(|stored| stored.frame.target).collect();
    let (topics, partitions) = arrays(&targets);
    let rows = sqlx::query(
        "SELECT EXISTS (SELECT FROM annals.parked p WHERE p.projection = $1 AND p.version = $2 AND p.log_id = $3
             AND p.topic = f.topic AND p.partition = f.partition AND p.incarnation = f.incarnation
             AND p.seq = f.seq AND p.link = f.link AND p.cause NOT LIKE 'conflict: %') AS known
         FROM UNNEST($4::text[], $5::int4[], $6::uuid[], $7::int8[], $8::bytea[])
             WITH ORDINALITY AS f(topic, partition, incarnation, seq, link, number)
         ORDER BY f.number",
    )
    .bind(me.projection)
    .bind(me.version)
    .bind(me.log.0)
    .bind(topics)
    .bind(partitions)
    .bind(frames.iter().map(|stored| stored.frame.incarnation).collect::<Vec<_>>())
    .bind(frames.iter().map(|stored| bigint(stored.frame.seq)).collect::<Vec<_>>())
    .bind(frames.iter().map(|stored| stored.frame.link.to_vec()).collect::<Vec<_>>())
    .fetch_all(tx)
    .await?;
    rows.iter().map(|row| row.try_get("known")).collect()
}

/// Whether `item` stands in the once table with the same content.
pub(super) async fn known_once(
    tx: &mut PgConnection,
    me: &Identity,
    item: &Item,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM annals.once WHERE projection = $1 AND version = $2 AND source = $3
             AND event_id = $4 AND content = $5)",
    )
    .bind(me.projection)
    .bind(me.version)
    .bind(once_source(item))
    .bind(item.decoded.id)
    .bind(item.stored.frame.content.to_vec())
    .fetch_one(tx)
    .await
}

/// Sets events aside with their causes.
pub(super) async fn save_parked(
    tx: &mut PgConnection,
    me: &Identity,
    parked: &[Parked],
) -> Result<(), sqlx::Error> {
    for Parked { stored, cause } in parked {
        let frame = &stored.frame;
        sqlx::query(
            "INSERT INTO annals.parked (projection, version, log_id, topic, partition, position, recorded_at,
                 incarnation, seq, content, link, body, cause, parked_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, clock_timestamp())
             ON CONFLICT DO NOTHING",
        )
        .bind(me.projection)
        .bind(me.version)
        .bind(me.log.0)
        .bind(frame.target.topic.name())
        .bind(partition_i32(frame.target))
        .bind(position_i64(stored.position))
        .bind(storable(frame.recorded_at))
        .bind(frame.incarnation)
        .bind(bigint(frame.seq))
        .bind(frame.content.to_vec())
        .bind(frame.link.to_vec())
        .bind(frame.body.to_vec())
        .bind(clean(&crate::telemetry::redacted(cause)).into_owned())
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}

/// Records what is wrong with lanes.
pub(super) async fn save_findings(
    tx: &mut PgConnection,
    me: &Identity,
    findings: &[Finding],
) -> Result<(), sqlx::Error> {
    for finding in findings {
        sqlx::query(
            "INSERT INTO annals.findings (projection, version, log_id, topic, partition, incarnation, kind,
                 from_seq, to_seq, position, detail, found_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, clock_timestamp())
             ON CONFLICT DO NOTHING",
        )
        .bind(me.projection)
        .bind(me.version)
        .bind(me.log.0)
        .bind(finding.target.topic.name())
        .bind(partition_i32(finding.target))
        .bind(finding.incarnation)
        .bind(finding.kind.as_str())
        .bind(bigint(finding.from_seq))
        .bind(bigint(finding.to_seq))
        .bind(bigint(finding.position))
        .bind(clean(&finding.detail).into_owned())
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}

/// A number as `bigint`, the largest one when it does not fit.
fn bigint(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A lane's time as Postgres can keep it; only a forged one is changed, and the frame's own stays in the log.
fn storable(at: Timestamp) -> OffsetDateTime {
    Timestamp::from_micros(at.as_micros().clamp(0, 253_402_300_799_999_999)).to_offset()
}
