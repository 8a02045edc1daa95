//! The store's side of another log: what the checkpoints and lane heads name, and the move to that log.
//!
//! Only statements; whether to do it is decided elsewhere, and its event goes out in the same transaction.

use std::collections::BTreeMap;

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::lease::{partition_i32, position_i64, target_of};
use crate::event::{Link, OldCheckpoint, TopicPartition};
use crate::log::{LogId, Position};

/// Ends `log_diverged`, in one line, for whoever reads it.
pub const REMEDY: &str = "put back the log that this store was made from (annals restore), or stop the server and let \
     `annals log adopt` say what following this log would mean";

/// Where each projection goes on in each partition, when it followed the log before.
pub type Resume = BTreeMap<((String, i32), TopicPartition), (Position, Link)>;

/// The checkpoint of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The projection and its version.
    pub projection: (String, i32),
    /// The partition.
    pub target: TopicPartition,
    /// The log that it belongs to.
    pub log: LogId,
    /// The last event applied; none yet.
    pub applied: Option<(Position, Link)>,
}

/// A lane's last event as a projection remembers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownHead {
    /// The projection and its version.
    pub projection: (String, i32),
    /// The log.
    pub log: LogId,
    /// The partition.
    pub target: TopicPartition,
    /// Whose lane.
    pub incarnation: Uuid,
    /// Its number.
    pub seq: u64,
    /// Its link.
    pub link: Link,
}

impl Standing {
    /// As the event says it; `None` when nothing was applied.
    #[must_use]
    pub fn to_fact(&self) -> Option<OldCheckpoint> {
        let (position, link) = self.applied?;
        Some(OldCheckpoint {
            projection: self.projection.0.clone(),
            version: self.projection.1,
            log_id: self.log.0,
            topic: self.target.topic,
            partition: self.target.partition,
            position: position.0,
            link: hex::encode(link),
        })
    }
}

/// Every checkpoint, of every projection.
///
/// # Errors
/// What Postgres says.
pub async fn standings(connection: &mut PgConnection) -> Result<Vec<Standing>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT projection, version, topic, partition, log_id, position, link FROM annals.checkpoints
         ORDER BY projection, version, topic, partition",
    )
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let position: Option<i64> = row.try_get("position")?;
            let link: Option<Vec<u8>> = row.try_get("link")?;
            let applied = match (position, link) {
                (Some(position), Some(link)) => Some((Position(number(position)?), link_of(&link)?)),
                _ => None,
            };
            Ok(Standing {
                projection: (row.try_get("projection")?, row.try_get("version")?),
                target: target_of(row)?,
                log: LogId(row.try_get("log_id")?),
                applied,
            })
        })
        .collect()
}

/// The head of every lane of every log that was followed.
///
/// # Errors
/// What Postgres says.
pub async fn known_heads(connection: &mut PgConnection) -> Result<Vec<KnownHead>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT projection, version, log_id, topic, partition, incarnation, seq, link FROM annals.lane_heads",
    )
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(KnownHead {
                projection: (row.try_get("projection")?, row.try_get("version")?),
                log: LogId(row.try_get("log_id")?),
                target: target_of(row)?,
                incarnation: row.try_get("incarnation")?,
                seq: number(row.try_get("seq")?)?,
                link: link_of(&row.try_get::<Vec<u8>, _>("link")?)?,
            })
        })
        .collect()
}

/// Sets every checkpoint before the first event of `log`, or where `resume` says. Nobody may hold a lease.
///
/// # Errors
/// What Postgres says.
pub async fn follow(connection: &mut PgConnection, log: LogId, resume: &Resume) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE annals.checkpoints SET log_id = $1, position = NULL, link = NULL, epoch = epoch + 1, owner = NULL,
             expires_at = NULL
         WHERE log_id <> $1",
    )
    .bind(log.0)
    .execute(&mut *connection)
    .await?;
    for (((projection, version), target), (position, link)) in resume {
        sqlx::query(
            "UPDATE annals.checkpoints SET position = $5, link = $6
             WHERE projection = $1 AND version = $2 AND topic = $3 AND partition = $4 AND log_id = $7",
        )
        .bind(projection)
        .bind(version)
        .bind(target.topic.name())
        .bind(partition_i32(*target))
        .bind(position_i64(*position))
        .bind(link.to_vec())
        .bind(log.0)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

fn number(value: i64) -> Result<u64, sqlx::Error> {
    u64::try_from(value).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

fn link_of(bytes: &[u8]) -> Result<Link, sqlx::Error> {
    Link::try_from(bytes).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
