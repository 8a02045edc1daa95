//! The manifest: what a backup holds, with the digest of each file. Its own bytes are canonical, so any change shows.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::base::{Timestamp, sha256_hex};
use crate::event::LaneHead;

const FORMAT: &str = "annals-backup";
/// The version that this program writes, and the newest that it reads.
pub(super) const VERSION: u16 = 1;

/// One file of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Below the backup's directory, with `/`.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256, hexadecimal.
    pub sha256: String,
}

/// The lanes of one process start that are open where the copy ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneHeads {
    /// The process start.
    pub incarnation: Uuid,
    /// The last event of each lane.
    pub heads: Vec<LaneHead>,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// `annals-backup`.
    pub format: String,
    /// The version of this format.
    pub version: u16,
    /// The program that took the backup.
    pub annals_version: String,
    /// When it was begun.
    pub taken_at: Timestamp,
    /// The tenant.
    pub tenant: String,
    /// The log.
    pub log_id: Uuid,
    /// Every event before this position is in the backup.
    pub end: u64,
    /// The major version of the Postgres that was dumped.
    pub postgres_version: u32,
    /// The newest migration of the state tables in the dump.
    pub schema_version: i64,
    /// Every other file, ordered by path.
    pub files: Vec<FileEntry>,
    /// The open lanes at the end, ordered by process start, topic and partition.
    pub lanes: Vec<LaneHeads>,
    /// SHA-256 of this file's bytes with this value empty, hexadecimal.
    pub sha256: String,
}

/// Why a manifest is no good.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadManifest {
    Damaged(String),
    Version(u16),
}

#[derive(Deserialize)]
struct Probe {
    format: String,
    version: u16,
}

impl Manifest {
    /// The format's name and version for a new one.
    pub(super) fn format() -> (String, u16) {
        (FORMAT.to_owned(), VERSION)
    }

    /// The file's bytes; what `sha256` holds does not matter.
    pub(super) fn encode(&self) -> Vec<u8> {
        let sha256 = sha256_hex(&Self { sha256: String::new(), ..self.clone() }.write());
        Self { sha256, ..self.clone() }.write()
    }

    fn write(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("strings and numbers always serialise");
        bytes.push(b'\n');
        bytes
    }

    /// Reads what [`Manifest::encode`] wrote, byte for byte.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, BadManifest> {
        let damaged = |error: serde_json::Error| BadManifest::Damaged(format!("it is no manifest: {error}"));
        let probe: Probe = serde_json::from_slice(bytes).map_err(damaged)?;
        if probe.format == FORMAT && probe.version > VERSION {
            return Err(BadManifest::Version(probe.version));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(damaged)?;
        if manifest.format != FORMAT || manifest.encode() != bytes {
            return Err(BadManifest::Damaged("its bytes are not those that its SHA-256 stands for".into()));
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Topic;

    fn manifest() -> Manifest {
        let (format, version) = Manifest::format();
        let head = LaneHead { topic: Topic::Admin, partition: 3, seq: 7, link: "ab".into() };
        Manifest {
            format,
            version,
            annals_version: "0.1.0".into(),
            taken_at: Timestamp::from_micros(1_764_521_228_000_042),
            tenant: "default".into(),
            log_id: Uuid::from_u128(4),
            end: 1_234,
            postgres_version: 15,
            schema_version: 20_261_130_170_000,
            files: vec![FileEntry { path: "data/postgres.dump".into(), bytes: 9, sha256: "00".into() }],
            lanes: vec![LaneHeads { incarnation: Uuid::from_u128(5), heads: vec![head] }],
            sha256: String::new(),
        }
    }

    #[test]
    fn a_manifest_reads_back_and_any_changed_byte_shows() {
        let bytes = manifest().encode();
        let read = Manifest::decode(&bytes).unwrap();
        assert_eq!(Manifest { sha256: String::new(), ..read.clone() }, manifest());
        assert_eq!(read.sha256.len(), 64);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Manifest::decode(&changed).is_err(), "byte {at}");
        }
        assert!(Manifest::decode(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let text = r#"{"format":"annals-backup","version":2,"other":true}"#;
        assert_eq!(Manifest::decode(text.as_bytes()), Err(BadManifest::Version(2)));
    }
}
