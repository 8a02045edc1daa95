//! Takes a backup: the moment, the copy, the check of the copy, the manifest.
//!
//! The moment is what makes it one: the log's end is read behind the snapshot, so the log is never behind the rows, and
//! no change of state commits between the two, so every such change is with its event in the copy or neither is.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::{DATA, DUMP, Error, FileEntry, INCOMPLETE, LOG, LaneHeads, MANIFEST, Manifest, files};
use crate::base::{Clock, planted, sha256_hex};
use crate::db::{Postgres, Role};
use crate::log::embedded::{CopiedFile, Keep, check_copy, copy, durable_end};
use crate::log::{LogId, Position, ReadError};

/// How often a log that drops segments is looked at again.
const KEEP_POLL: Duration = Duration::from_millis(50);

/// What to copy, and where to.
pub struct Options<'a> {
    /// The log's directory. Somebody must own the log: a server, or this process.
    pub log_dir: PathBuf,
    /// The backup's directory: empty, or not there yet.
    pub to: PathBuf,
    /// The store.
    pub postgres: &'a Postgres,
    /// Where `pg_dump` is; none: look for it.
    pub pg_bin: Option<PathBuf>,
    /// The tenant.
    pub tenant: String,
    /// How long to wait for changes of state that are under way. New ones wait behind the backup for that long.
    pub lock_wait: Duration,
    /// Says when it was taken.
    pub clock: &'a dyn Clock,
}

/// A whole backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// What it holds.
    pub manifest: Manifest,
    /// SHA-256 of the manifest's file, hexadecimal.
    pub manifest_sha256: String,
}

impl Taken {
    /// Bytes of all files but the manifest.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.bytes).sum()
    }
}

/// The moment: a snapshot that lasts while this lives, and the log's end behind it.
struct Moment {
    connection: PgConnection,
    snapshot: String,
    log: LogId,
    end: Position,
}

/// Takes a backup. When it fails, what it wrote is removed; when it is killed, no manifest is there.
///
/// # Errors
/// [`Error`]; damage of the log is [`Error::Log`] with file and offset.
pub async fn take(options: Options<'_>) -> Result<Taken, Error> {
    let made = files::claim(&options.to)?;
    let partial = options.to.join(INCOMPLETE);
    if let Err(error) = files::make(&partial) {
        // Nothing in it is ours: another backup into the same place may have been quicker.
        if made {
            std::fs::remove_dir(&options.to).unwrap_or(());
        }
        return Err(match error {
            Error::Io { cause, .. } if cause.kind() == ErrorKind::AlreadyExists => {
                Error::NotEmpty { dir: options.to }
            }
            other => other,
        });
    }
    let taken = match fill(&options, &partial).await {
        Ok(manifest) => publish(&options.to, &partial, manifest),
        Err(error) => Err(error),
    };
    if taken.is_err() {
        remove(&options.to, made);
    }
    taken
}

/// Removes what an unfinished backup wrote, the manifest first.
fn remove(to: &Path, made: bool) {
    let beside = format!("{MANIFEST}.new");
    let files = [MANIFEST, &beside].map(|name| (to.join(name), false));
    let directories = [INCOMPLETE, DATA].map(|name| (to.join(name), true));
    for (left, is_dir) in files.into_iter().chain(directories) {
        let removed = if is_dir { std::fs::remove_dir_all(&left) } else { std::fs::remove_file(&left) };
        if let Err(error) = removed
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %left.display(), "an unfinished backup stays behind; remove it");
        }
    }
    if made {
        std::fs::remove_dir(to).unwrap_or(());
    }
}

async fn fill(options: &Options<'_>, partial: &Path) -> Result<Manifest, Error> {
    let taken_at = options.clock.now();
    let versions = options.postgres.versions().await?;
    let keep = keep(options).await?;
    let moment = Moment::choose(options).await?;
    let Moment { connection, snapshot, log, end } = moment;
    let dump = partial.join(DUMP);
    let dumping = async {
        let pg_bin = options.pg_bin.as_deref();
        options.postgres.dump(&snapshot, options.lock_wait, &dump, pg_bin).await.map_err(Error::from)
    };
    let (from, to) = (options.log_dir.clone(), partial.join(LOG));
    let copying = blocking(move || {
        let copied = copy(&from, &to, log, end)?;
        let lanes = check_copy(&from, &to, end)?;
        Ok((copied, lanes))
    });
    // Both to their ends, whatever the other says: what fails is removed afterwards, under nobody's hands.
    let (dumped, copied) = tokio::join!(dumping, copying);
    drop(keep);
    let (copied, lanes) = copied?;
    dumped?;
    // The snapshot was needed until here.
    connection.close().await.map_err(Error::sql("end the snapshot"))?;
    files::protect(&dump)?;
    let (bytes, sha256) = files::digest(&dump).map_err(Error::io("read", &dump))?;
    let entry = |CopiedFile { file, bytes, sha256 }| FileEntry {
        path: format!("{DATA}/{LOG}/{file}"),
        bytes,
        sha256,
    };
    let mut files: Vec<FileEntry> = copied.into_iter().map(entry).collect();
    files.push(FileEntry { path: format!("{DATA}/{DUMP}"), bytes, sha256 });
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let (format, version) = Manifest::format();
    Ok(Manifest {
        format,
        version,
        annals_version: env!("CARGO_PKG_VERSION").to_owned(),
        taken_at,
        tenant: options.tenant.clone(),
        log_id: log.0,
        end: end.0,
        postgres_version: versions.postgres,
        schema_version: versions.schema,
        files,
        lanes: lanes
            .into_iter()
            .map(|open| LaneHeads { incarnation: open.incarnation, heads: open.heads })
            .collect(),
        sha256: String::new(),
    })
}

/// Gives the files their place and writes the manifest: from then on it is a backup.
fn publish(to: &Path, partial: &Path, manifest: Manifest) -> Result<Taken, Error> {
    files::sync(partial)?;
    let data = to.join(DATA);
    std::fs::rename(partial, &data).map_err(Error::io("rename into place", &data))?;
    files::sync(to)?;
    let bytes = manifest.encode();
    files::write(to, MANIFEST, &bytes)?;
    files::sync_above(to)?;
    let manifest = Manifest::decode(&bytes).unwrap_or(manifest);
    Ok(Taken { manifest, manifest_sha256: sha256_hex(&bytes) })
}

impl Moment {
    async fn choose(options: &Options<'_>) -> Result<Self, Error> {
        let early = match planted::armed("backup_log_before_snapshot") {
            true => Some(end_of(options).await?),
            false => None,
        };
        let connect = options.postgres.connect_options(Role::Owner);
        let mut gate = connect.connect().await.map_err(Error::sql("connect as annals_owner"))?;
        // Every change of state writes into the outbox in its own transaction, and the relay deletes what it appended:
        // while this lock is held neither commits.
        let lock = format!(
            "BEGIN; SET LOCAL lock_timeout = {}; LOCK TABLE annals.outbox IN SHARE MODE",
            options.lock_wait.as_millis()
        );
        if !planted::armed("backup_without_outbox_lock") {
            let locked = sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut gate).await;
            locked.map_err(Error::sql(
                "wait for changes of keys that are under way (database.backup_lock_wait_ms)",
            ))?;
        }
        let mut connection = connect.connect().await.map_err(Error::sql("connect as annals_owner"))?;
        let begin = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;
             BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        sqlx::raw_sql(begin).execute(&mut connection).await.map_err(Error::sql("begin a snapshot"))?;
        let snapshot = sqlx::query_scalar("SELECT pg_export_snapshot()").fetch_one(&mut connection).await;
        let snapshot = snapshot.map_err(Error::sql("export a snapshot"))?;
        if planted::armed("backup_without_outbox_lock") {
            // Long enough for a key to be made and its event to be relayed.
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let (log, end) = match early {
            Some(early) => early,
            None => end_of(options).await?,
        };
        gate.close().await.map_err(Error::sql("let changes of keys go on"))?;
        Ok(Self { connection, snapshot, log, end })
    }
}

/// Keeps old segments from being dropped; waits, at most as long as for changes of state, while some just are.
async fn keep(options: &Options<'_>) -> Result<Keep, Error> {
    let taken = tokio::time::timeout(options.lock_wait, async {
        loop {
            match Keep::segments(&options.log_dir) {
                Ok(Some(keep)) => return Ok(keep),
                Ok(None) => tokio::time::sleep(KEEP_POLL).await,
                Err(error) => return Err(Error::io("keep the segments of", &options.log_dir)(error)),
            }
        }
    });
    taken.await.unwrap_or_else(|_| Err(Error::Dropping { dir: options.log_dir.clone() }))
}

async fn end_of(options: &Options<'_>) -> Result<(LogId, Position), Error> {
    let dir = options.log_dir.clone();
    blocking(move || durable_end(&dir)).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))?)
}
