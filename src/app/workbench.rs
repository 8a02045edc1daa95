//! Keys without a server: the log, the store, the relay and the follower, for as long as one command takes.

use std::path::Path;
use std::sync::Arc;

use super::{Node, StartError};
use crate::auth::{KeyStore, Keys, follow};
use crate::base::Tasks;
use crate::config::Config;
use crate::db::{self, Postgres, Role};
use crate::event::{PARTITIONS, Topic, TopicPartition};
use crate::log::{Lanes, Log, ReadError, Reader};
use crate::outbox::{Outbox, Relay, relay};

/// What changes keys, over an open node.
pub struct Workbench {
    /// The keys.
    pub keys: Arc<KeyStore>,
    node: Node,
    postgres: Postgres,
    tasks: Tasks,
}

impl Workbench {
    /// Takes the data directory for itself: fails when a server runs on it.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn open(
        root: &Path,
        config: &Config,
        database: impl FnOnce(&Path) -> db::Options,
    ) -> Result<Self, StartError> {
        let node = Node::open(root, config, "key").await?;
        let postgres = Postgres::start(database(node.data_dir.root())).await?;
        let tasks = Tasks::new();
        let keys = Arc::new(Keys::new());
        let store = key_store(&node.lanes, &postgres, config, &keys, &tasks).await?;
        Ok(Self { keys: store, node, postgres, tasks })
    }

    /// Ends the incarnation in good order.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn close(self) -> Result<(), StartError> {
        self.tasks.stop().await;
        self.node.finish("done").await?;
        self.postgres.stop().await?;
        self.node.close().await?;
        Ok(())
    }
}

/// Starts following `annals.admin`, loads the keys and starts the relay: the same for a server and for one command.
pub(super) async fn key_store(
    lanes: &Arc<Lanes>,
    postgres: &Postgres,
    config: &Config,
    keys: &Arc<Keys>,
    tasks: &Tasks,
) -> Result<Arc<KeyStore>, StartError> {
    let pool = postgres.pool(Role::Writer);
    let outbox = Outbox::new();
    let store = Arc::new(KeyStore::new(
        pool.clone(),
        outbox.clone(),
        Arc::clone(keys),
        config.personas()?,
        lanes.draft().clone(),
        Arc::clone(lanes.clock()),
    ));
    // The reader stands at the end before the load reads Postgres, so no change falls between the two.
    let reader = admin_reader(lanes.log().as_ref())?;
    store.load().await?;
    let following = follow(reader, Arc::clone(keys), tasks.cancel_token().clone());
    tasks.spawn("key follower", async move {
        if let Err(error) = following.await {
            tracing::error!(error = %error, "changes of keys are no longer followed; restart");
        }
    });
    let work = Relay { pool, lanes: Arc::clone(lanes), outbox };
    tasks.spawn("outbox relay", relay(work, tasks.cancel_token().clone()));
    Ok(store)
}

fn admin_reader(log: &dyn Log) -> Result<Box<dyn Reader>, ReadError> {
    let targets: Vec<TopicPartition> =
        (0..PARTITIONS).map(|partition| TopicPartition { topic: Topic::Admin, partition }).collect();
    log.reader_from_end(&targets)
}
