//! API keys in memory: one hash probe decides. Loaded from Postgres once, kept current by following `annals.admin`,
//! so that authentication goes on while Postgres is away.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use tokio::sync::watch;
use uuid::Uuid;

use crate::base::Timestamp;
use crate::event::{Decoded, Facts};

/// What every key starts with, so that scanners for leaked secrets can find it.
pub const KEY_PREFIX: &str = "annals_";

/// A new key: the prefix and 256 random bits as 43 characters of base64url.
#[must_use]
pub fn mint() -> String {
    use base64::Engine;
    let secret = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(crate::base::random_bytes::<32>());
    format!("{KEY_PREFIX}{secret}")
}

/// One key as the snapshot holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// The key's id.
    pub key_id: Uuid,
    /// The principal's pseudonymous id.
    pub subject_id: String,
    /// The holder's name.
    pub user_name: String,
    /// Roles, which personas map.
    pub roles: Vec<String>,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// Whether it was revoked.
    pub revoked: bool,
    /// Whether it has no rate limit.
    pub no_limit: bool,
}

#[derive(Default)]
struct Snapshot {
    by_hash: HashMap<[u8; 32], KeyRecord>,
    hash_of: HashMap<Uuid, [u8; 32]>,
    /// Revocations of keys that are not here (yet).
    revoked: std::collections::HashSet<Uuid>,
    loaded: bool,
}

/// The keys of this process.
pub struct Keys {
    snapshot: RwLock<Snapshot>,
    changed: watch::Sender<u64>,
}

/// What the snapshot says of a presented key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// It is known; expiry and revocation are the caller's to check.
    Known(KeyRecord),
    /// There is no such key.
    Unknown,
    /// The keys were not loaded yet, so nothing can be said of an unknown one.
    NotLoaded,
}

impl Default for Keys {
    fn default() -> Self {
        Self { snapshot: RwLock::default(), changed: watch::channel(0).0 }
    }
}

impl Keys {
    /// Nothing loaded.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The key whose SHA-256 is `hash`.
    #[must_use]
    pub fn lookup(&self, hash: &[u8; 32]) -> Lookup {
        let snapshot = self.snapshot.read().unwrap_or_else(PoisonError::into_inner);
        match snapshot.by_hash.get(hash) {
            Some(record) => Lookup::Known(record.clone()),
            None if snapshot.loaded => Lookup::Unknown,
            None => Lookup::NotLoaded,
        }
    }

    /// Takes over what Postgres has. What was followed from the log meanwhile stays in force.
    pub fn load(&self, records: impl IntoIterator<Item = ([u8; 32], KeyRecord)>) {
        self.change(|snapshot| {
            for (hash, record) in records {
                snapshot.insert(hash, record);
            }
            snapshot.loaded = true;
        });
    }

    /// Takes over one event of `annals.admin`.
    pub fn follow(&self, event: &Decoded) {
        match &event.facts {
            Facts::KeyCreated(created) => {
                let Some(hash) = hex::decode(&created.key_sha256).ok().and_then(|hash| hash.try_into().ok())
                else {
                    tracing::error!(event.id = %event.id, "a key_created event has no SHA-256; the key is not accepted");
                    return;
                };
                let user_name = event.personal.as_ref().and_then(|personal| personal.object_name.clone());
                let record = KeyRecord {
                    key_id: created.key_id,
                    subject_id: created.subject_id.clone(),
                    user_name: user_name.unwrap_or_else(|| created.subject_id.clone()),
                    roles: created.roles.clone(),
                    expires_at: created.expires_at,
                    revoked: false,
                    no_limit: created.no_limit,
                };
                self.change(|snapshot| snapshot.insert(hash, record));
            }
            Facts::KeyRevoked(revoked) => self.change(|snapshot| snapshot.revoke(revoked.key_id)),
            Facts::Requested(_)
            | Facts::Terminal(..)
            | Facts::RequestRefused(_)
            | Facts::SessionStarted(_)
            | Facts::SessionEnded(_)
            | Facts::AuthFailed(_)
            | Facts::AuditQueried(_)
            | Facts::BackupTaken(_)
            | Facts::LogAdopted(_)
            | Facts::Started(_)
            | Facts::Stopping(_)
            | Facts::LaneClosed(_)
            | Facts::Checkpoint(_)
            | Facts::Retention(_)
            | Facts::Gap(_) => {}
        }
    }

    /// Waits until the snapshot has the key and `holds` is true of it.
    pub async fn wait_until(&self, key_id: Uuid, holds: impl Fn(&KeyRecord) -> bool) {
        let mut changed = self.changed.subscribe();
        loop {
            if self.record(key_id).is_some_and(|record| holds(&record)) {
                return;
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Changes whenever the snapshot does.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn record(&self, key_id: Uuid) -> Option<KeyRecord> {
        let snapshot = self.snapshot.read().unwrap_or_else(PoisonError::into_inner);
        snapshot.by_hash.get(snapshot.hash_of.get(&key_id)?).cloned()
    }

    fn change(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.snapshot.write().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_modify(|count| *count += 1);
    }
}

impl Snapshot {
    fn insert(&mut self, hash: [u8; 32], mut record: KeyRecord) {
        record.revoked |= self.revoked.contains(&record.key_id)
            || self.by_hash.get(&hash).is_some_and(|known| known.revoked);
        self.hash_of.insert(record.key_id, hash);
        self.by_hash.insert(hash, record);
    }

    fn revoke(&mut self, key_id: Uuid) {
        match self.hash_of.get(&key_id).and_then(|hash| self.by_hash.get_mut(hash)) {
            Some(record) => record.revoked = true,
            None => {
                self.revoked.insert(key_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u128) -> KeyRecord {
        KeyRecord {
            key_id: Uuid::from_u128(id),
            subject_id: "s".into(),
            user_name: "ann".into(),
            roles: vec!["analyst".into()],
            expires_at: None,
            revoked: false,
            no_limit: false,
        }
    }

    #[test]
    fn minted_keys_differ_and_have_256_bits() {
        let (a, b) = (mint(), mint());
        assert_ne!(a, b);
        assert_eq!(a.len(), KEY_PREFIX.len() + 43);
    }

    #[test]
    fn before_the_load_nothing_is_called_unknown() {
        let keys = Keys::new();
        assert_eq!(keys.lookup(&[1; 32]), Lookup::NotLoaded);
        keys.load([([2; 32], record(2))]);
        assert_eq!(keys.lookup(&[1; 32]), Lookup::Unknown);
        assert_eq!(keys.lookup(&[2; 32]), Lookup::Known(record(2)));
    }

    #[test]
    fn a_revocation_seen_before_the_load_holds() {
        let keys = Keys::new();
        keys.change(|snapshot| snapshot.revoke(Uuid::from_u128(2)));
        keys.load([([2; 32], record(2))]);
        assert_eq!(keys.lookup(&[2; 32]), Lookup::Known(KeyRecord { revoked: true, ..record(2) }));
    }

    #[test]
    fn a_stale_load_does_not_undo_a_revocation() {
        let keys = Keys::new();
        keys.load([([2; 32], record(2))]);
        keys.change(|snapshot| snapshot.revoke(Uuid::from_u128(2)));
        keys.load([([2; 32], record(2))]);
        assert_eq!(keys.lookup(&[2; 32]), Lookup::Known(KeyRecord { revoked: true, ..record(2) }));
    }
}
