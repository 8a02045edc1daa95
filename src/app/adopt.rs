//! `log_diverged` and its end: does the store belong to the log that is here, and if not, what following that log means.
//!
//! Never goes on under the id of a log that lacks events which the store has: their positions would be given twice.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

use super::{DataDir, NodeError, StartError, Workbench};
use crate::auth::{KeyError, list_adoptable, local_principal};
use crate::base::{Clock, SystemClock, planted};
use crate::config::Config;
use crate::consumer::{self, KnownHead, Resume, Standing, known_heads, standings};
use crate::db::{self, Postgres, Role};
use crate::event::{
    AdoptionReason, Facts, KeptKey, Link, LogAdopted, OldCheckpoint, Personal, TopicPartition,
};
use crate::log::embedded::{Held, ScannedItem, Scanner};
use crate::log::{LogId, ReadError};

/// Keys in one event at most, so that it stays below the size that a body may have.
const KEYS_OF_PART_MAX: usize = 200;
/// How long the events may take to get into the log.
const WAIT: Duration = Duration::from_secs(10);

/// What is wrong between store and log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// Which of the two cases.
    pub reason: AdoptionReason,
    /// The log that is here; none when there is none yet.
    pub here: Option<LogId>,
    /// The logs whose rows the store has and that are not here afterwards.
    pub old: BTreeSet<Uuid>,
    /// What was noticed first.
    pub detail: String,
    /// Where the projections go on, when the store followed the log that is here before.
    pub resume: Resume,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// The log that is followed from here on.
    pub log: LogId,
    /// Where the older copy lies now.
    pub set_aside: Option<PathBuf>,
}

/// Why nothing was adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The log cannot be read to its end.
    #[error("{0}; `annals log adopt` is for a whole log, see `annals verify --log-only`")]
    Log(#[from] ReadError),
    /// The store cannot be read or changed.
    #[error("the store failed: {0}")]
    Store(#[from] sqlx::Error),
    /// The keys cannot be read.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The store or the log cannot be opened.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The older copy cannot be moved.
    #[error("cannot move {} to {}: {cause}", .from.display(), .to.display())]
    Move {
        /// The log's directory.
        from: PathBuf,
        /// Where it should go.
        to: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The event cannot be built.
    #[error("the event cannot be built: {0}")]
    Build(#[from] crate::event::BuildError),
    /// It is done, but its event waits.
    #[error(
        "the store follows the log now, but the event is not durable yet ({0}); the next start publishes it"
    )]
    Pending(#[from] crate::outbox::PublishError),
}

impl From<db::Error> for AdoptError {
    fn from(error: db::Error) -> Self {
        Self::Start(error.into())
    }
}

/// Compares the store with the log in `data_dir`; `None` when they belong together.
///
/// # Errors
/// [`AdoptError`].
pub async fn diagnose(data_dir: &DataDir, postgres: &Postgres) -> Result<Option<Divergence>, AdoptError> {
    let pool = postgres.pool(Role::Writer);
    let read = async {
        let mut connection = pool.acquire().await?;
        Ok::<_, sqlx::Error>((standings(&mut connection).await?, known_heads(&mut connection).await?))
    };
    let read = read.await;
    pool.close().await;
    let (standings, heads) = read?;
    let dir = data_dir.log();
    let judged = tokio::task::spawn_blocking(move || judge(&dir, &standings, &heads)).await;
    Ok(judged.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))?)
}

fn judge(dir: &Path, standings: &[Standing], heads: &[KnownHead]) -> Result<Option<Divergence>, ReadError> {
    let known: BTreeSet<Uuid> =
        standings.iter().map(|at| at.log.0).chain(heads.iter().map(|head| head.log.0)).collect();
    let scanner = if dir.join("log.json").exists() { Some(Scanner::open(dir)?) } else { None };
    let here = scanner.as_ref().map(Scanner::log_id);
    let (missing, resume) = match scanner {
        Some(scanner) => missing(scanner, standings, heads)?,
        None => (None, Resume::new()),
    };
    if let Some(detail) = missing {
        let (reason, resume) = (AdoptionReason::OlderCopy, Resume::new());
        return Ok(Some(Divergence { reason, here, old: known, detail, resume }));
    }
    let Some(other) = standings.iter().find(|at| Some(at.log) != here) else { return Ok(None) };
    let found = here.map_or_else(|| "there is no log here".to_owned(), |here| format!("this is log {here}"));
    let detail = format!("the checkpoint of {} belongs to log {}, and {found}", other.target, other.log);
    let old = known.into_iter().filter(|log| here.is_none_or(|here| here.0 != *log)).collect();
    Ok(Some(Divergence { reason: AdoptionReason::OtherLog, here, old, detail, resume }))
}

/// The first event of this log that the store knows and the log does not have; and where a store that comes back to this
/// log stood: the last event of each partition that is the head of a lane.
fn missing(
    mut scanner: Scanner,
    standings: &[Standing],
    heads: &[KnownHead],
) -> Result<(Option<String>, Resume), ReadError> {
    let (log, end) = (scanner.log_id(), scanner.end());
    let mut applied: BTreeMap<(TopicPartition, u64), Link> = BTreeMap::new();
    for at in standings.iter().filter(|at| at.log == log) {
        applied.extend(at.applied.map(|(position, link)| ((at.target, position.0), link)));
    }
    // A partition that was idle since may stand on its last record before the log's start.
    for (target, (position, link)) in &scanner.start().tails {
        let at = (*target, position.0);
        if applied.get(&at) == Some(link) {
            applied.remove(&at);
        }
    }
    let mut lanes: HashMap<(TopicPartition, Uuid, u64), Vec<&KnownHead>> = HashMap::new();
    let mut resume = Resume::new();
    // A store that follows this log says so by its checkpoints, and a lane may have ended in a part of the log that is
    // dropped by now. One that comes back to a log it followed before has its lanes only.
    let came_back = standings.iter().all(|at| at.log != log);
    for head in heads.iter().filter(|head| came_back && head.log == log) {
        lanes.entry((head.target, head.incarnation, head.seq)).or_default().push(head);
    }
    while let Some(scanned) = scanner.next()? {
        let ScannedItem::Event(stored) = scanned.item else { continue };
        let frame = &stored.frame;
        let at = (frame.target, stored.position.0);
        if applied.get(&at) == Some(&frame.link) {
            applied.remove(&at);
        }
        let lane = (frame.target, frame.incarnation, frame.seq);
        if lanes.get(&lane).is_some_and(|heads| heads.iter().all(|head| head.link == frame.link)) {
            for head in lanes.remove(&lane).unwrap_or_default() {
                // The log is read in order, so the last one stays.
                let key = (head.projection.clone(), head.target);
                resume.insert(key, (stored.position, frame.link));
            }
        }
    }
    if let Some(((target, position), _)) = applied.first_key_value() {
        let detail = format!(
            "the store applied an event of {target} at position {position} that is not in log {log}, which ends at {end}"
        );
        return Ok((Some(detail), resume));
    }
    let lane = lanes.into_keys().min();
    let detail = lane.map(|(target, incarnation, seq)| {
        format!(
            "the store has event {seq} of {target} of process start {incarnation}, which is not in log {log}"
        )
    });
    Ok((detail, resume))
}

/// Makes the store follow the log that is here, or a new one: from its start, or from where it stood there.
///
/// # Errors
/// [`AdoptError`].
pub async fn adopt(
    data_dir: &DataDir,
    divergence: &Divergence,
    config: &Config,
    database: impl FnOnce(&Path) -> db::Options,
) -> Result<Adopted, AdoptError> {
    let set_aside = match divergence.reason {
        AdoptionReason::OlderCopy if planted::armed("older_copy_gone_on_with") => None,
        AdoptionReason::OlderCopy => Some(set_aside(data_dir, divergence)?),
        AdoptionReason::OtherLog => None,
    };
    let bench = Workbench::open(data_dir.root(), config, "log adopt", database).await?;
    let moved = follow(&bench, divergence).await;
    let log = bench.lanes().log().id();
    bench.close().await?;
    moved?;
    Ok(Adopted { log, set_aside })
}

/// Moves the older copy away, so that the next start begins a new log.
fn set_aside(data_dir: &DataDir, divergence: &Divergence) -> Result<PathBuf, AdoptError> {
    let from = data_dir.log();
    let held = Held::take(&from).map_err(|error| StartError::from(NodeError::from(error)))?;
    let at: String = SystemClock.now().to_string().chars().filter(|c| *c != ':').collect();
    let id = divergence.here.map_or_else(String::new, |log| log.to_string());
    let to = data_dir.root().join(format!("log-{id}-{at}"));
    let moved = std::fs::rename(&from, &to)
        .and_then(|()| std::fs::File::open(data_dir.root()))
        .and_then(|root| root.sync_all());
    moved.map_err(|cause| AdoptError::Move { from, to: to.clone(), cause })?;
    drop(held);
    Ok(to)
}

/// Checkpoints and event in one transaction.
async fn follow(bench: &Workbench, divergence: &Divergence) -> Result<(), AdoptError> {
    let log = bench.lanes().log().id();
    let pool = bench.postgres().pool(Role::Writer);
    let mut tx = db::begin(&pool).await?;
    let checkpoints: Vec<OldCheckpoint> =
        standings(&mut tx).await?.iter().filter_map(Standing::to_fact).collect();
    let keys = list_adoptable(&mut tx).await?;
    consumer::follow(&mut tx, log, &divergence.resume).await?;
    let mut published = Vec::new();
    for facts in parts(log, divergence, checkpoints, keys) {
        let personal = Personal { user_name: Some(local_principal().user_name), ..Personal::default() };
        let draft = bench.lanes().draft();
        let sealed = draft.build_once(bench.lanes().clock().now(), &log.to_string(), &facts, &personal)?;
        published.push(bench.outbox().insert(&mut tx, &sealed).await?);
    }
    tx.commit().await?;
    pool.close().await;
    bench.outbox().wake();
    for published in published {
        published.wait(WAIT).await?;
    }
    Ok(())
}

fn parts(
    log: LogId,
    divergence: &Divergence,
    mut checkpoints: Vec<OldCheckpoint>,
    keys: Vec<KeptKey>,
) -> Vec<Facts> {
    let actor = local_principal();
    let mut chunks: Vec<Vec<KeptKey>> = keys.chunks(KEYS_OF_PART_MAX).map(<[KeptKey]>::to_vec).collect();
    if chunks.is_empty() {
        chunks.push(Vec::new());
    }
    let parts = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
    (1..)
        .zip(chunks)
        .map(|(part, keys)| {
            Facts::LogAdopted(LogAdopted {
                actor_subject_id: actor.subject_id.clone(),
                actor_auth_method: actor.auth_method,
                reason: divergence.reason,
                old_log_ids: divergence.old.iter().copied().collect(),
                new_log_id: log.0,
                part,
                parts,
                // The first part has them all.
                checkpoints: std::mem::take(&mut checkpoints),
                keys,
            })
        })
        .collect()
}
