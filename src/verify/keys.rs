//! Holds the API keys in Postgres against the log: a key that no event made, or one whose revocation was undone, would
//! open a door without a trace.
//!
//! A row that is gone opens nothing and is no finding. Changes whose event still waits in the outbox are left alone.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::types::time::OffsetDateTime;
use uuid::Uuid;

use super::report::{Finding, FindingKind};
use super::rows::RowCheck;
use crate::base::Timestamp;
use crate::event::{Decoded, Facts, TopicPartition};
use crate::log::{Position, Stored};

/// Where an event stands.
type Place = (TopicPartition, Position);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct KeyBook {
    made: HashMap<Uuid, (Place, KeyFacts)>,
    revoked: HashMap<Uuid, Place>,
}

/// What a key may do and for whom.
#[derive(Debug)]
struct KeyFacts {
    subject_id: String,
    user_name: Option<String>,
    /// The event names its user; one that restates a key of another log does not.
    named: bool,
    key_sha256: String,
    roles: Vec<String>,
    expires_at: Option<Timestamp>,
    no_limit: bool,
}

impl KeyFacts {
    fn agrees(&self, row: &Self) -> bool {
        let of = |facts: &Self| {
            (facts.subject_id.clone(), facts.key_sha256.clone(), facts.expires_at, facts.no_limit)
        };
        of(self) == of(row) && self.roles == row.roles && (!self.named || self.user_name == row.user_name)
    }
}

impl KeyBook {
    /// Takes one event.
    pub(super) fn add(&mut self, stored: &Stored, decoded: &Decoded) {
        let place = (stored.frame.target, stored.position);
        if let Facts::KeyCreated(made) = &decoded.facts {
            let facts = KeyFacts {
                subject_id: made.subject_id.clone(),
                user_name: decoded.personal.as_ref().and_then(|personal| personal.object_name.clone()),
                key_sha256: made.key_sha256.clone(),
                roles: made.roles.clone(),
                expires_at: made.expires_at,
                no_limit: made.no_limit,
                named: true,
            };
            self.made.entry(made.key_id).or_insert((place, facts));
        } else if let Facts::KeyRevoked(revoked) = &decoded.facts {
            self.revoked.entry(revoked.key_id).or_insert(place);
        } else if let Facts::LogAdopted(adopted) = &decoded.facts {
            for kept in &adopted.keys {
                let facts = KeyFacts {
                    subject_id: kept.subject_id.clone(),
                    user_name: None,
                    named: false,
                    key_sha256: kept.key_sha256.clone(),
                    roles: kept.roles.clone(),
                    expires_at: kept.expires_at,
                    no_limit: kept.no_limit,
                };
                self.made.entry(kept.key_id).or_insert((place, facts));
                if kept.revoked {
                    self.revoked.entry(kept.key_id).or_insert(place);
                }
            }
        }
    }

    /// Compares, in the snapshot of `rows`.
    pub(super) async fn compare(
        &self,
        rows: &mut RowCheck,
        found: &mut Vec<Finding>,
    ) -> Result<(), sqlx::Error> {
        let all = sqlx::query(
            "SELECT key_id, subject_id, user_name, encode(key_sha256, 'hex') AS key_sha256, roles, expires_at,
                 created_at, revoked_at IS NOT NULL AS revoked, no_limit
             FROM annals.api_keys k WHERE NOT EXISTS (
                 SELECT FROM annals.outbox o WHERE o.topic = 'annals.admin' AND o.key = k.key_id::text)
             ORDER BY created_at, key_id",
        )
        .fetch_all(rows.connection())
        .await?;
        for row in all {
            let key_id: Uuid = row.try_get("key_id")?;
            let facts = KeyFacts {
                subject_id: row.try_get("subject_id")?,
                user_name: Some(row.try_get("user_name")?),
                named: true,
                key_sha256: row.try_get("key_sha256")?,
                roles: row.try_get("roles")?,
                expires_at: row
                    .try_get::<Option<OffsetDateTime>, _>("expires_at")?
                    .map(Timestamp::from_offset),
                no_limit: row.try_get("no_limit")?,
            };
            let created_at = Timestamp::from_offset(row.try_get("created_at")?);
            let (place, detail) = match self.made.get(&key_id) {
                // Its event may have been dropped with the log's oldest records.
                None if rows.is_before_start(created_at) => {
                    rows.older_keys += 1;
                    continue;
                }
                None => (None, format!("api_keys has key {key_id}, which no event made")),
                Some((place, made)) if !made.agrees(&facts) => {
                    (Some(*place), format!("api_keys has another key {key_id} than this event made"))
                }
                Some(_) => match self.revoked.get(&key_id) {
                    // One that came after the snapshot is no part of it yet.
                    Some(place) if !row.try_get::<bool, _>("revoked")? && rows.has_applied(*place) => {
                        (Some(*place), format!("key {key_id} was revoked here, and api_keys has it in force"))
                    }
                    _ => continue,
                },
            };
            found.push(Finding {
                kind: FindingKind::State,
                topic: place.map(|(target, _)| target.topic.name().to_owned()),
                partition: place.map(|(target, _)| target.partition),
                position: place.map_or(0, |(_, position)| position.0),
                file: None,
                offset: None,
                detail,
            });
        }
        Ok(())
    }
}
