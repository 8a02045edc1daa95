//! `annals serve`: listeners first, the store beside them, and an orderly end within eight seconds.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::banner::Banner;
use super::store::{self, Store};
use super::{Node, RunFile, StartError, control, socket_path};
use crate::auth::{Auth, KeyStore, Keys};
use crate::base::Tasks;
use crate::config::{Config, Connection};
use crate::consumer::{self, StoreStatus, Worker};
use crate::db::{self, Postgres};
use crate::dispatch::Dispatch;
use crate::http;
use crate::log::{Lanes, Log};
use crate::query::Query;
use crate::telemetry::ProcessMetrics;
use crate::tools::{About, Connections, toolbox};

/// How long the cancelled calls may take to record their ends, and the worker to stop.
const SETTLE: Duration = Duration::from_secs(1);

/// What `annals serve` was asked for.
pub struct ServeOptions {
    /// The data directory; made when missing.
    pub data_dir: PathBuf,
    /// The config in force.
    pub config: Config,
    /// Whether to make sample data.
    pub sample: bool,
    /// Accepted as an admin key.
    pub admin_key: Option<String>,
    /// Says how to reach Postgres, given the data directory.
    pub database: Box<dyn FnOnce(&Path) -> db::Options + Send>,
    /// Prints the banner.
    pub print: fn(&str),
}

/// What the parts share.
pub(super) struct Services {
    pub(super) config: Config,
    pub(super) sample: bool,
    pub(super) lanes: Arc<Lanes>,
    pub(super) keys: Arc<Keys>,
    pub(super) query: Arc<Query>,
    pub(super) connections: Arc<Connections>,
    pub(super) background: Tasks,
    worker_metrics: consumer::Metrics,
    worker_stop: Tasks,
    status: watch::Sender<StoreStatus>,
}
