//! A backup that was taken is an event on the log that was copied.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::auth::local_principal;
use crate::base::Timestamp;
use crate::event::{BackupTaken, Facts, Personal};
use crate::log::{Lanes, RecordError, Refusal};

/// What is said of a whole backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// The log that was copied.
    pub log_id: Uuid,
    /// Where the copy ends.
    pub end: u64,
    /// SHA-256 of the manifest's file, hexadecimal.
    pub manifest_sha256: String,
    /// Where it was written to; a path may name people.
    pub directory: String,
}

/// Records `admin.backup_taken`; gives the time on the log.
///
/// # Errors
/// [`RecordError`]; the backup is whole all the same.
pub async fn record_backup(lanes: &Lanes, backup: &Backup) -> Result<Timestamp, RecordError> {
    let actor = local_principal();
    let facts = Facts::BackupTaken(BackupTaken {
        actor_subject_id: actor.subject_id,
        actor_auth_method: actor.auth_method,
        log_id: backup.log_id,
        end: backup.end,
        manifest_sha256: backup.manifest_sha256.clone(),
    });
    let personal = Personal {
        user_name: Some(actor.user_name),
        object_name: Some(backup.directory.clone()),
        ..Personal::default()
    };
    let event = lanes
        .draft()
        .build(lanes.clock().now(), &backup.log_id.to_string(), &facts, &personal)
        .map_err(|error| RecordError::Refused(Refusal::Failed(error.to_string())))?;
    Ok(lanes.record(event).await?.recorded_at)
}
