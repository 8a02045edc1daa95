//! Brings a backup back into an empty data directory, and verifies what it made of it.
//!
//! It never writes where something is. A directory in which it was interrupted carries a mark, and nothing starts there.

use std::path::{Path, PathBuf};

use super::manifest::BadManifest;
use super::{DATA, DUMP, Error, FileEntry, LOG, LaneHeads, MANIFEST, Manifest, files};
use crate::base::{planted, sha256_hex};
use crate::db::{self, Postgres, Role};
use crate::log::embedded::{copy, open_lanes};
use crate::log::{LogId, Position, ReadError};
use crate::projection::{AuditProjection, Projection};
use crate::verify;

/// Lies in a data directory while a restore into it is not done.
const MARK: &str = "restore.incomplete";

/// A backup whose every file is what was written.
#[derive(Debug, Clone)]
pub struct Checked {
    dir: PathBuf,
    /// What it holds.
    pub manifest: Manifest,
    /// SHA-256 of the manifest's file, hexadecimal: the one in the event `admin.backup_taken`.
    pub manifest_sha256: String,
}

/// What a restore made.
#[derive(Debug)]
pub struct Restored {
    /// What `annals verify` says of it.
    pub report: verify::Report,
}

/// Whether a restore into `data_dir` was interrupted: what is in it is no whole store.
#[must_use]
pub fn was_interrupted(data_dir: &Path) -> bool {
    data_dir.join(MARK).exists()
}

/// Reads the manifest in `dir` and compares every file with it.
///
/// # Errors
/// [`Error::NoManifest`], [`Error::Damaged`] with the first bad file, [`Error::Newer`].
pub fn check(dir: &Path) -> Result<Checked, Error> {
    let path = dir.join(MANIFEST);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::NoManifest { dir: dir.to_owned() });
        }
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let manifest = Manifest::decode(&bytes).map_err(|bad| match bad {
        BadManifest::Damaged(cause) => Error::Damaged { file: path.clone(), cause },
        BadManifest::Version(found) => Error::Newer {
            what: "format version",
            found: found.into(),
            known: super::manifest::VERSION.into(),
            remedy: "restore it with the Annals that took it, or a later one",
        },
    })?;
    for entry in &manifest.files {
        check_file(dir, entry)?;
    }
    let known = db::schema_version();
    if manifest.schema_version > known {
        return Err(Error::Newer {
            what: "schema version",
            found: manifest.schema_version,
            known,
            remedy: "restore it with the Annals that took it, or a later one",
        });
    }
    Ok(Checked { dir: dir.to_owned(), manifest_sha256: sha256_hex(&bytes), manifest })
}

fn check_file(dir: &Path, entry: &FileEntry) -> Result<(), Error> {
    let path = dir.join(&entry.path);
    let damaged = |cause: String| Error::Damaged { file: path.clone(), cause };
    let is_known = match entry.path.split('/').collect::<Vec<_>>()[..] {
        [DATA, DUMP] => true,
        [DATA, LOG, name] => !name.is_empty() && name != ".." && name != ".",
        _ => false,
    };
    if !is_known {
        return Err(damaged("a backup has no file of that name".into()));
    }
    let (bytes, sha256) = match files::digest(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(damaged("it is missing".into()));
        }
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    if planted::armed("restore_without_digest_check") {
        return Ok(());
    }
    if bytes != entry.bytes {
        return Err(damaged(format!("it has {bytes} bytes, and the manifest says {}", entry.bytes)));
    }
    if sha256 != entry.sha256 {
        return Err(damaged(format!("its SHA-256 is {sha256}, and the manifest says {}", entry.sha256)));
    }
    Ok(())
}

/// Restores `backup` into the data directory of `options`, which must be empty or missing, and into its database.
/// The private server is stopped again.
///
/// # Errors
/// [`Error`]. What the verification finds is in [`Restored`]; the mark stays when it finds something.
pub async fn restore(
    backup: &Checked,
    options: db::Options,
    progress: verify::Progress,
) -> Result<Restored, Error> {
    let root = options.data_dir.clone();
    if was_interrupted(&root) {
        return Err(Error::HalfRestored { dir: root });
    }
    if db::is_taken(&options).await? {
        return Err(Error::DatabaseTaken);
    }
    files::claim(&root)?;
    files::write(&root, MARK, b"a restore into this directory is not done\n")?;
    copy_log(backup, &root.join(LOG)).await?;
    let pg_bin = options.pg_bin.clone();
    let postgres = Postgres::start(options).await?;
    let restored = fill(backup, &postgres, pg_bin.as_deref(), root.join(LOG), progress).await;
    let stopped = postgres.stop().await;
    let restored = restored?;
    stopped?;
    if restored.report.is_clean() {
        let mark = root.join(MARK);
        std::fs::remove_file(&mark).map_err(Error::io("remove", &mark))?;
        files::sync(&root)?;
    }
    Ok(restored)
}

async fn copy_log(backup: &Checked, to: &Path) -> Result<(), Error> {
    let (from, to) = (backup.dir.join(DATA).join(LOG), to.to_owned());
    let (log, end) = (LogId(backup.manifest.log_id), Position(backup.manifest.end));
    let manifest = backup.manifest.clone();
    let work = move || -> Result<(), Error> {
        for copied in copy(&from, &to, log, end)? {
            let path = format!("{DATA}/{LOG}/{}", copied.file);
            let known = manifest.files.iter().find(|entry| entry.path == path);
            if known.is_none_or(|entry| (entry.bytes, &entry.sha256) != (copied.bytes, &copied.sha256)) {
                let cause = "what was read from it is not what the manifest names".to_owned();
                return Err(Error::Damaged { file: from.join(&copied.file), cause });
            }
        }
        let lanes = open_lanes(&to, end)?.into_iter();
        let lanes: Vec<LaneHeads> =
            lanes.map(|open| LaneHeads { incarnation: open.incarnation, heads: open.heads }).collect();
        if lanes != manifest.lanes {
            let cause = "the heads of the open lanes are not those in the manifest".to_owned();
            let file = to.display().to_string();
            return Err(ReadError::Corrupt { file, offset: 0, position: end.0, cause }.into());
        }
        Ok(())
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}

async fn fill(
    backup: &Checked,
    postgres: &Postgres,
    pg_bin: Option<&Path>,
    log_dir: PathBuf,
    progress: verify::Progress,
) -> Result<Restored, Error> {
    let found = backup.manifest.postgres_version;
    let known = postgres.versions().await?.postgres;
    if found > known {
        return Err(Error::Newer {
            what: "Postgres version",
            found: found.into(),
            known: known.into(),
            remedy: "name the bin directory of that Postgres in ANNALS_PG_BIN, or a server of it in DATABASE_URL",
        });
    }
    postgres.load(&backup.dir.join(DATA).join(DUMP), pg_bin).await?;
    let owner = postgres.pool(Role::Owner);
    let installed = AuditProjection::new().install(&owner).await;
    owner.close().await;
    installed.map_err(Error::sql("make the views of the audit"))?;
    let options = verify::Options { log_dir, log_only: false, postgres: Some(postgres), progress };
    Ok(Restored { report: verify::run(options).await? })
}
