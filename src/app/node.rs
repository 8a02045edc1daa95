//! A process start on a data directory: the log is open and owned, the dead are closed, the lanes are ready.

use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::DataDir;
use super::digest_key::{self, DigestKeyError};
use super::system::{self, OpenLane};
use crate::base::{Clock, SystemClock, planted};
use crate::config::Config;
use crate::event::LaneHead;
use crate::log::embedded::{EmbeddedLog, OpenError, Options};
use crate::log::{AppendError, Lanes, Log, RecordError};
use crate::redact::{Redactor, RuleError};

/// The log and the lanes of this process start.
pub struct Node {
    /// Where everything lies.
    pub data_dir: DataDir,
    /// The embedded log.
    pub log: Arc<EmbeddedLog>,
    /// This incarnation's lanes.
    pub lanes: Arc<Lanes>,
    /// Whether the log was made just now.
    pub created: bool,
}

/// A node cannot start or stop in good order.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data directory cannot be made or read.
    #[error("cannot use the data directory {path}: {cause}")]
    DataDir {
        /// The directory.
        path: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A restore was interrupted there.
    #[error(
        "a restore into {path} was interrupted, or what it restored does not hold together: remove the directory and \
         run `annals restore` again"
    )]
    HalfRestored {
        /// The directory.
        path: String,
    },
    /// Root would take it away from whom it belongs to.
    #[error(
        "{path} is the data directory of user id {uid}, and what root writes there would be closed to it: run this as that \
         user (`setpriv --reuid={uid} --clear-groups annals ...`), or give all of it to root with `chown -R 0:0 {path}`"
    )]
    OtherUser {
        /// The directory.
        path: String,
        /// The user.
        uid: u32,
    },
    /// The key of the digests.
    #[error(transparent)]
    DigestKey(#[from] DigestKeyError),
    /// A rule of redaction, which the config's own check would have named.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The log cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The log does not take the first or last events.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The log did not close well.
    #[error(transparent)]
    Close(#[from] AppendError),
}

/// What takes secrets out of all that this process records and logs.
fn redactor(data_dir: &DataDir, config: &Config) -> Result<Arc<Redactor>, NodeError> {
    let key = digest_key::read_or_create(data_dir.root())?;
    Ok(Arc::new(Redactor::new(key, &config.redaction.rules())?))
}

/// Each outage of the log has its `system.gap`.
fn tell_of_outages(log: &EmbeddedLog, lanes: &Arc<Lanes>) {
    // Not kept alive by the log, which the lanes hold.
    let lanes = Arc::downgrade(lanes);
    let runtime = tokio::runtime::Handle::current();
    log.on_recovery(Box::new(move |outage, room| {
        if planted::armed("gap_untold") {
            return;
        }
        let Some(lanes) = lanes.upgrade() else { return };
        let recorded = system::gap(&lanes, outage, room);
        runtime.spawn(async move {
            if let Err(error) = recorded.await {
                tracing::error!(error = %error, "an outage of the log could not be recorded");
            }
        });
    }));
}

impl Node {
    /// Opens the log in `root` and begins an incarnation for `command`.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn open(root: &Path, config: &Config, command: &str) -> Result<Self, NodeError> {
        let data_dir = DataDir::create(root)
            .map_err(|cause| NodeError::DataDir { path: root.display().to_string(), cause })?;
        if crate::backup::was_interrupted(data_dir.root()) {
            return Err(NodeError::HalfRestored { path: data_dir.root().display().to_string() });
        }
        if let Some(uid) = data_dir.of_another_user() {
            return Err(NodeError::OtherUser { path: data_dir.root().display().to_string(), uid });
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let options = Options::new(data_dir.log(), &config.log);
        let opening = Arc::clone(&clock);
        let (log, recovered) = tokio::task::spawn_blocking(move || EmbeddedLog::open(options, opening))
            .await
            .map_err(|error| NodeError::DataDir {
                path: root.display().to_string(),
                cause: std::io::Error::other(error),
            })??;
        if recovered.torn_bytes > 0 {
            tracing::warn!(
                bytes = recovered.torn_bytes,
                "cut a torn tail: nothing in it was ever acknowledged"
            );
        }
        let redactor = redactor(&data_dir, config)?;
        crate::telemetry::redact_with(Arc::clone(&redactor));
        let port = Arc::clone(&log) as Arc<dyn Log>;
        let lanes = Arc::new(Lanes::redacting(port, clock, &config.tenant, redactor));
        tell_of_outages(&log, &lanes);
        system::started(&lanes, log.id(), command).await?;
        let open = recovered.unclosed.iter().map(|lane| OpenLane {
            incarnation: lane.incarnation,
            head: LaneHead {
                topic: lane.target.topic,
                partition: lane.target.partition,
                seq: lane.seq,
                link: hex::encode(lane.link),
            },
        });
        for incarnation in system::close_dead(&lanes, open.collect()).await? {
            log.mark_closed(incarnation).await?;
        }
        Ok(Self { data_dir, log, lanes, created: recovered.created })
    }

    /// Publishes the heads of the lanes at the configured interval until `stop` fires.
    pub async fn publish_checkpoints(lanes: Arc<Lanes>, interval_ms: u64, stop: CancellationToken) {
        let interval = std::time::Duration::from_millis(interval_ms);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
            if let Err(error) = system::checkpoint(&lanes).await {
                tracing::error!(error = %error, "the heads of the lanes could not be published");
            }
        }
    }

    /// Writes the last events. Nothing may be recorded afterwards.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn finish(&self, reason: &str) -> Result<(), NodeError> {
        system::stop(&self.lanes, reason).await?;
        self.log.mark_closed(self.lanes.incarnation()).await?;
        Ok(())
    }

    /// Lets go of the log.
    ///
    /// # Errors
    /// [`NodeError::Close`].
    pub async fn close(self) -> Result<(), NodeError> {
        Ok(self.log.close().await?)
    }
}
