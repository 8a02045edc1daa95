//! Whether every projection is past a place of the log, so that what lies before it may be dropped.

use sqlx::{PgPool, Row};

use super::lease::{arrays, position_i64, target_of};
use crate::base::planted;
use crate::event::TopicPartition;
use crate::log::{LogId, Position};

/// The projections that have not applied every event of `log` up to `ends`, in words; empty when all have. A projection
/// without a checkpoint there is behind, and so is everything while there is no projection at all.
///
/// # Errors
/// When Postgres cannot be asked: nobody knows then.
pub async fn behind(
    pool: &PgPool,
    log: LogId,
    ends: &[(TopicPartition, Position)],
) -> Result<Vec<String>, sqlx::Error> {
    if planted::armed("retention_passes_projection") {
        return Ok(Vec::new());
    }
    let any: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM annals.checkpoints)").fetch_one(pool).await?;
    if !any {
        return Ok(vec!["no projection has a checkpoint yet".into()]);
    }
    let targets: Vec<TopicPartition> = ends.iter().map(|(target, _)| *target).collect();
    let (topics, partitions) = arrays(&targets);
    let rows = sqlx::query(
        "SELECT k.projection, k.version, e.topic, e.partition, e.through, c.log_id, c.position
         FROM (SELECT DISTINCT projection, version FROM annals.checkpoints) k
         CROSS JOIN UNNEST($1::text[], $2::int4[], $3::int8[]) AS e(topic, partition, through)
         LEFT JOIN annals.checkpoints c USING (projection, version, topic, partition)
         WHERE c.position IS NULL OR c.log_id <> $4 OR c.position < e.through
         ORDER BY k.projection, k.version, e.topic, e.partition",
    )
    .bind(topics)
    .bind(partitions)
    .bind(ends.iter().map(|(_, position)| position_i64(*position)).collect::<Vec<_>>())
    .bind(log.0)
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            let (projection, version): (String, i32) = (row.try_get("projection")?, row.try_get("version")?);
            let (target, through) = (target_of(row)?, row.try_get::<i64, _>("through")?);
            let applied = match row.try_get::<Option<i64>, _>("position")? {
                Some(position) => format!("has applied {target} up to position {position}"),
                None => format!("has applied nothing of {target}"),
            };
            Ok(format!("projection {projection} version {version} {applied} and not to {through}"))
        })
        .collect()
}
