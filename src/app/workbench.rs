//! Keys, and other state, without a server: the log, the store, the relay and the follower, for as long as one command
//! takes.

use std::path::Path;
use std::sync::Arc;

use super::{DataDir, Node, StartError};
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
    outbox: Outbox,
    tasks: Tasks,
}

impl Workbench {
    /// Takes the data directory for itself: fails when a server runs on it. `command` is what its first event says.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn open(
        root: &Path,
        config: &Config,
        command: &str,
        database: impl FnOnce(&Path) -> db::Options,
    ) -> Result<Self, StartError> {
        let node = Node::open(root, config, command).await?;
        let postgres = Postgres::start(database(node.data_dir.root())).await?;
        let tasks = Tasks::new();
        let keys = Arc::new(Keys::new());
        let outbox = Outbox::new();
        let store = key_store(&node.lanes, &postgres, config, &keys, &outbox, &tasks).await?;
        Ok(Self { keys: store, node, postgres, outbox, tasks })
    }

    /// Where everything lies.
    #[must_use]
    pub const fn data_dir(&self) -> &DataDir {
        &self.node.data_dir
    }

    /// The lanes of this process start.
    #[must_use]
    pub const fn lanes(&self) -> &Arc<Lanes> {
        &self.node.lanes
    }

    /// The store.
    #[must_use]
    pub const fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    /// Where changes of state leave their events; they are relayed while the bench is open.
    #[must_use]
    pub const fn outbox(&self) -> &Outbox {
        &self.outbox
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
    outbox: &Outbox,
    tasks: &Tasks,
) -> Result<Arc<KeyStore>, StartError> {
    let pool = postgres.pool(Role::Writer);
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
    let work = Relay { pool, lanes: Arc::clone(lanes), outbox: outbox.clone() };
    tasks.spawn("outbox relay", relay(work, tasks.cancel_token().clone()));
    Ok(store)
}

fn admin_reader(log: &dyn Log) -> Result<Box<dyn Reader>, ReadError> {
    let targets: Vec<TopicPartition> =
        (0..PARTITIONS).map(|partition| TopicPartition { topic: Topic::Admin, partition }).collect();
    log.reader_from_end(&targets)
}
