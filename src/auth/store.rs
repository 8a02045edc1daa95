//! Creating, listing and revoking API keys: the row and its event in one transaction, answered once this process
//! acts on it.

use std::sync::Arc;
use std::time::Duration;

use sqlx::types::time::OffsetDateTime;
use sqlx::{PgConnection, PgPool, Row};
use uuid::Uuid;

use super::keys::{KeyRecord, Keys, mint};
use super::{Personas, Principal};
use crate::base::{Clock, Timestamp, nearest, sha256, sha256_hex};
use crate::db;
use crate::event::{Draft, Facts, KeptKey, KeyCreated, KeyRevoked, Personal};
use crate::outbox::{Outbox, PublishError};
use crate::redact::Secrets;

/// How long an answer waits for its event to be durable and followed.
const WAIT: Duration = Duration::from_secs(10);
const NAME_CHARS_MAX: usize = 128;

/// A key that was just made. The secret is shown once and kept as SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Created {
    /// The key's id.
    pub key_id: Uuid,
    /// The key.
    pub key: String,
}

/// What a key is made from.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NewKey {
    /// The holder's name; keys of one name share one pseudonymous subject.
    pub name: String,
    /// Roles; at least one must lead to a persona.
    pub roles: Vec<String>,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// Whether its calls have no rate limit.
    #[serde(default)]
    pub no_limit: bool,
}

/// A key as `annals key list` shows it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Listed {
    /// The key's id.
    pub key_id: Uuid,
    /// The holder's name.
    pub name: String,
    /// The pseudonymous subject.
    pub subject_id: String,
    /// Roles.
    pub roles: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// Whether its calls have no rate limit.
    pub no_limit: bool,
}

/// A key could not be made, listed or revoked.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Wrong input.
    #[error("{0}")]
    Invalid(String),
    /// No such key.
    #[error("there is no key {0}")]
    NotFound(Uuid),
    /// It was revoked before.
    #[error("key {0} is revoked already")]
    AlreadyRevoked(Uuid),
    /// The store failed; nothing was changed.
    #[error("the store failed: {0}")]
    Store(#[from] sqlx::Error),
    /// The change is stored, and its event follows when the log accepts.
    #[error(
        "the change is stored, but its event is not durable yet ({0}); it will be published, do not repeat it"
    )]
    Pending(PublishError),
    /// The event cannot be built.
    #[error("the event cannot be built: {0}")]
    Build(#[from] crate::event::BuildError),
}

/// The store of keys.
pub struct KeyStore {
    pool: PgPool,
    outbox: Outbox,
    keys: Arc<Keys>,
    personas: Personas,
    draft: Draft,
    clock: Arc<dyn Clock>,
}

impl KeyStore {
    /// A store on `pool` (role writer), whose events go through `outbox` and come back into `keys`.
    #[must_use]
    pub fn new(
        pool: PgPool,
        outbox: Outbox,
        keys: Arc<Keys>,
        personas: Personas,
        draft: Draft,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { pool, outbox, keys, personas, draft, clock }
    }

    /// Loads the snapshot from Postgres.
    ///
    /// # Errors
    /// [`KeyError::Store`].
    pub async fn load(&self) -> Result<(), KeyError> {
        let rows = sqlx::query(
            "SELECT key_sha256, key_id, subject_id, user_name, roles, expires_at, revoked_at IS NOT NULL AS revoked, no_limit
             FROM annals.api_keys",
        )
        .fetch_all(&self.pool)
        .await?;
        let records = rows.iter().map(|row| {
            let hash: Vec<u8> = row.try_get("key_sha256")?;
            let hash =
                hash.try_into().map_err(|_| sqlx::Error::Decode("key_sha256 has not 32 bytes".into()))?;
            let record = KeyRecord {
                key_id: row.try_get("key_id")?,
                subject_id: row.try_get("subject_id")?,
                user_name: row.try_get("user_name")?,
                roles: row.try_get("roles")?,
                expires_at: row
                    .try_get::<Option<OffsetDateTime>, _>("expires_at")?
                    .map(Timestamp::from_offset),
                revoked: row.try_get("revoked")?,
                no_limit: row.try_get("no_limit")?,
            };
            Ok((hash, record))
        });
        self.keys.load(records.collect::<Result<Vec<_>, sqlx::Error>>()?);
        Ok(())
    }

    /// Whether no key was ever made.
    ///
    /// # Errors
    /// [`KeyError::Store`].
    pub async fn is_empty(&self) -> Result<bool, KeyError> {
        Ok(sqlx::query_scalar("SELECT NOT EXISTS (SELECT FROM annals.api_keys)")
            .fetch_one(&self.pool)
            .await?)
    }

    /// Makes a key.
    ///
    /// # Errors
    /// [`KeyError`].
    pub async fn create(&self, actor: &Principal, new: &NewKey) -> Result<Created, KeyError> {
        self.check(new)?;
        let key = mint();
        let now = self.clock.now();
        let key_id = Uuid::new_v4();
        let mut tx = db::begin(&self.pool).await?;
        let known: Option<String> = sqlx::query_scalar(
            "SELECT subject_id FROM annals.api_keys WHERE user_name = $1 ORDER BY created_at LIMIT 1",
        )
        .bind(&new.name)
        .fetch_optional(&mut *tx)
        .await?;
        let subject_id = known.unwrap_or_else(|| format!("sub-{}", Uuid::new_v4().simple()));
        sqlx::query(
            "INSERT INTO annals.api_keys (key_id, subject_id, user_name, key_sha256, roles, created_at, expires_at,
                 no_limit)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(key_id)
        .bind(&subject_id)
        .bind(&new.name)
        .bind(sha256(key.as_bytes()).as_slice())
        .bind(&new.roles)
        .bind(now.to_offset())
        .bind(new.expires_at.map(Timestamp::to_offset))
        .bind(new.no_limit)
        .execute(&mut *tx)
        .await?;
        let facts = Facts::KeyCreated(KeyCreated {
            actor_subject_id: actor.subject_id.clone(),
            actor_auth_method: actor.auth_method,
            key_id,
            subject_id,
            key_sha256: sha256_hex(key.as_bytes()),
            roles: new.roles.clone(),
            expires_at: new.expires_at,
            no_limit: new.no_limit,
        });
        let personal = Personal {
            user_name: Some(actor.user_name.clone()),
            object_name: Some(new.name.clone()),
            ..Personal::default()
        };
        let sealed = self.draft.build_once(now, &key_id.to_string(), &facts, &personal)?;
        let published = self.outbox.insert(&mut tx, &sealed).await?;
        tx.commit().await?;
        self.settle(published, key_id, |_| true).await?;
        Ok(Created { key_id, key })
    }

    fn check(&self, new: &NewKey) -> Result<(), KeyError> {
        let name_ok = !new.name.trim().is_empty()
            && new.name.chars().count() <= NAME_CHARS_MAX
            && !new.name.chars().any(|c| c.is_control() || reorders_text(c));
        if !name_ok {
            return Err(KeyError::Invalid(format!(
                "the name must have 1 to {NAME_CHARS_MAX} characters, and none that controls or turns text"
            )));
        }
        if self.draft.redactor.text(&new.name, &mut Secrets::default()) != new.name {
            return Err(KeyError::Invalid(
                "the name holds what looks like a secret, and names are kept and shown: give another".into(),
            ));
        }
        for role in &new.roles {
            if !self.personas.roles().any(|known| known == role) {
                let near =
                    nearest(role, self.personas.roles()).map(|near| format!("; did you mean {near:?}?"));
                let known = self.personas.roles().collect::<Vec<_>>().join(", ");
                return Err(KeyError::Invalid(format!(
                    "no persona has the role {role:?}{} Known roles: {known}.",
                    near.unwrap_or_else(|| ".".into())
                )));
            }
        }
        if new.roles.is_empty() {
            return Err(KeyError::Invalid("a key needs at least one role".into()));
        }
        if new.expires_at.is_some_and(|end| end <= self.clock.now()) {
            return Err(KeyError::Invalid("the expiry lies in the past".into()));
        }
        Ok(())
    }

    /// All keys, newest first.
    ///
    /// # Errors
    /// [`KeyError::Store`].
    pub async fn list(&self) -> Result<Vec<Listed>, KeyError> {
        list_keys(&self.pool).await
    }

    /// Revokes a key; returns once this process refuses it.
    ///
    /// # Errors
    /// [`KeyError`].
    pub async fn revoke(&self, actor: &Principal, key_id: Uuid) -> Result<(), KeyError> {
        let now = self.clock.now();
        let mut tx = db::begin(&self.pool).await?;
        let updated: Option<String> = sqlx::query_scalar(
            "UPDATE annals.api_keys SET revoked_at = $2 WHERE key_id = $1 AND revoked_at IS NULL RETURNING user_name",
        )
        .bind(key_id)
        .bind(now.to_offset())
        .fetch_optional(&mut *tx)
        .await?;
        let Some(name) = updated else {
            let exists: bool =
                sqlx::query_scalar("SELECT EXISTS (SELECT FROM annals.api_keys WHERE key_id = $1)")
                    .bind(key_id)
                    .fetch_one(&mut *tx)
                    .await?;
            return Err(if exists { KeyError::AlreadyRevoked(key_id) } else { KeyError::NotFound(key_id) });
        };
        let facts = Facts::KeyRevoked(KeyRevoked {
            actor_subject_id: actor.subject_id.clone(),
            actor_auth_method: actor.auth_method,
            key_id,
        });
        let personal = Personal {
            user_name: Some(actor.user_name.clone()),
            object_name: Some(name),
            ..Personal::default()
        };
        let sealed = self.draft.build_once(now, &key_id.to_string(), &facts, &personal)?;
        let published = self.outbox.insert(&mut tx, &sealed).await?;
        tx.commit().await?;
        self.settle(published, key_id, |record| record.revoked).await
    }

    async fn settle(
        &self,
        published: crate::outbox::Published,
        key_id: Uuid,
        holds: impl Fn(&KeyRecord) -> bool,
    ) -> Result<(), KeyError> {
        self.outbox.wake();
        published.wait(WAIT).await.map_err(KeyError::Pending)?;
        tokio::time::timeout(WAIT, self.keys.wait_until(key_id, holds))
            .await
            .map_err(|_| KeyError::Pending(PublishError::NotFollowed))
    }
}

/// All keys, newest first, for whoever needs no more than to look: nothing is recorded and no log is needed.
///
/// # Errors
/// [`KeyError::Store`].
pub async fn list_keys(pool: &PgPool) -> Result<Vec<Listed>, KeyError> {
    let rows = sqlx::query(
        "SELECT key_id, user_name, subject_id, roles, created_at, expires_at, revoked_at, no_limit
         FROM annals.api_keys ORDER BY created_at DESC, key_id",
    )
    .fetch_all(pool)
    .await?;
    let listed = rows.iter().map(|row| {
        let at = |column| {
            row.try_get::<Option<OffsetDateTime>, _>(column).map(|at| at.map(Timestamp::from_offset))
        };
        Ok(Listed {
            key_id: row.try_get("key_id")?,
            name: row.try_get("user_name")?,
            subject_id: row.try_get("subject_id")?,
            roles: row.try_get("roles")?,
            created_at: Timestamp::from_offset(row.try_get("created_at")?),
            expires_at: at("expires_at")?,
            revoked_at: at("revoked_at")?,
            no_limit: row.try_get("no_limit")?,
        })
    });
    Ok(listed.collect::<Result<_, sqlx::Error>>()?)
}

/// All keys as `admin.log_adopted` restates them, oldest first.
///
/// # Errors
/// [`KeyError::Store`].
pub async fn list_adoptable(connection: &mut PgConnection) -> Result<Vec<KeptKey>, KeyError> {
    let rows = sqlx::query(
        "SELECT key_id, subject_id, encode(key_sha256, 'hex') AS key_sha256, roles, expires_at,
             revoked_at IS NOT NULL AS revoked, no_limit
         FROM annals.api_keys ORDER BY created_at, key_id",
    )
    .fetch_all(connection)
    .await?;
    let kept = rows.iter().map(|row| {
        let expires_at: Option<OffsetDateTime> = row.try_get("expires_at")?;
        Ok(KeptKey {
            key_id: row.try_get("key_id")?,
            subject_id: row.try_get("subject_id")?,
            key_sha256: row.try_get("key_sha256")?,
            roles: row.try_get("roles")?,
            expires_at: expires_at.map(Timestamp::from_offset),
            revoked: row.try_get("revoked")?,
            no_limit: row.try_get("no_limit")?,
        })
    });
    Ok(kept.collect::<Result<_, sqlx::Error>>()?)
}

/// Whether `c` breaks the line or changes the direction of the text around it: a list of keys would show something
/// else than it holds.
const fn reorders_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hides_or_turns_text_is_told_from_what_writes_it() {
        for c in ['\u{202e}', '\u{2066}', '\u{2069}', '\u{2028}', '\u{200f}', '\u{61c}'] {
            assert!(reorders_text(c), "{c:?}");
        }
        for c in ['a', 'é', 'ש', 'م', '世', '\u{200c}', '\u{200d}', '\u{2027}', '\u{202f}'] {
            assert!(!reorders_text(c), "{c:?}");
        }
    }
}
