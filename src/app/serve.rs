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
use super::book::Book;
use super::retention::{self, Retention};
use super::stdio::{self, Stdio};
use super::store;
use super::{Node, RunFile, StartError, control, socket_path};
use crate::auth::{Auth, KeyStore, Keys};
use crate::base::Tasks;
use crate::config::Config;
use crate::consumer::{self, StoreState, StoreStatus};
use crate::db;
use crate::dispatch::{self, Dispatch};
use crate::http;
use crate::log::Lanes;
use crate::query::Query;
use crate::telemetry::ProcessMetrics;
use crate::tools::{About, Connections, toolbox};

/// How long the cancelled calls may take to record their ends, and the worker to stop.
const SETTLE: Duration = Duration::from_secs(1);

/// How long the end may take in all; eight seconds are promised.
const EXIT_MAX: Duration = Duration::from_millis(7_500);

/// What Postgres gets of that, however long the rest took.
const STORE_WAIT_MIN: Duration = Duration::from_millis(500);

/// The banner waits for the store, which may have a first key to show. After this long a note says so.
const NOTE_WAIT: Duration = Duration::from_secs(10);

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
    pub(super) postgres: store::Server,
    pub(super) worker: Tasks,
    pub(super) worker_metrics: consumer::Metrics,
    pub(super) outcomes: dispatch::Outcomes,
    pub(super) retention_metrics: retention::Metrics,
    pub(super) status: watch::Sender<StoreStatus>,
}

/// The listeners, bound before anything else so that a taken port is told at once.
struct Listeners {
    http: TcpListener,
    metrics: TcpListener,
}

impl Listeners {
    async fn bind(config: &Config) -> Result<Self, StartError> {
        Ok(Self {
            http: bind(config.listen, "listen", "--listen").await?,
            metrics: bind(config.metrics_listen, "metrics_listen", "--metrics-listen").await?,
        })
    }
}

async fn bind(address: SocketAddr, key: &'static str, flag: &'static str) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|cause| StartError::Bind { address, key, flag, cause })
}

/// Runs until SIGTERM or SIGINT, or until something that it cannot do without is missing.
///
/// # Errors
/// [`StartError`].
pub async fn serve(options: ServeOptions) -> Result<(), StartError> {
    let mut signals = Signals::new()?;
    let listeners = Listeners::bind(&options.config).await?;
    let node = Node::open(&options.data_dir, &options.config, "serve").await?;
    let database = (options.database)(node.data_dir.root());
    let mut registry = Registry::default();
    node.log.register(&mut registry);
    let started_at = node.lanes.clock().now();
    registry.register_collector(Box::new(ProcessMetrics::new(started_at)));
    let services = services(&options.config, options.sample, &node, &mut registry)?;
    let calls = Tasks::new();
    let (key_stores, key_store) = watch::channel(None);
    let front = Front { options: &options.config, admin_key: options.admin_key.as_deref(), calls: &calls };
    let ends = front.open(&node, &services, registry, listeners, key_store)?;
    let outcome = tokio::select! {
        reason = signals.next() => Ok(reason),
        error = corrupt(services.status.subscribe()) => Err(error),
        ended = run_store(&services, database, &key_stores, &ends, options.print) => ended,
    };
    let (reason, outcome) = match outcome {
        Ok(reason) => (reason, Ok(())),
        Err(error) => ("error", Err(error)),
    };
    tracing::info!(reason, "stopping");
    let stopped = stop(node, services, calls, ends, &options.config, reason).await;
    outcome.and(stopped)
}

fn services(
    config: &Config,
    sample: bool,
    node: &Node,
    registry: &mut Registry,
) -> Result<Services, StartError> {
    let connections = Connections::new(&config.connections, Arc::clone(node.lanes.clock()))?;
    if sample {
        if config.connections.contains_key(store::SAMPLE_CONNECTION) {
            return Err(StartError::SampleName);
        }
        let limits = crate::tools::ConnectionLimits::default();
        connections.declare(store::SAMPLE_CONNECTION, crate::sample::DESCRIPTION, limits);
    }
    Ok(Services {
        config: config.clone(),
        sample,
        lanes: Arc::clone(&node.lanes),
        keys: Arc::new(Keys::new()),
        query: Arc::new(Query::closed().of_tenant(config.tenant.clone())),
        connections: Arc::new(connections),
        background: Tasks::new(),
        postgres: store::Server::default(),
        worker: Tasks::new(),
        worker_metrics: consumer::Metrics::register(registry),
        outcomes: dispatch::Outcomes {
            unrecorded: Arc::default(),
            metrics: dispatch::Metrics::register(registry),
        },
        retention_metrics: retention::Metrics::register(registry),
        status: watch::Sender::new(StoreStatus::starting()),
    })
}

/// The side that callers see.
struct Front<'a> {
    options: &'a Config,
    admin_key: Option<&'a str>,
    calls: &'a Tasks,
}

/// What the front needs to be told at the end.
struct Ends {
    url: String,
    metrics: SocketAddr,
    data_dir: PathBuf,
    run_file: PathBuf,
    socket: PathBuf,
    accept: CancellationToken,
    listening: Tasks,
    mcp: crate::mcp::Server,
}

impl Front<'_> {
    fn open(
        &self,
        node: &Node,
        services: &Services,
        mut registry: Registry,
        listeners: Listeners,
        key_store: watch::Receiver<Option<Arc<KeyStore>>>,
    ) -> Result<Ends, StartError> {
        let (address, metrics) = (listeners.http.local_addr()?, listeners.metrics.local_addr()?);
        let accept = CancellationToken::new();
        let listening = Tasks::new();
        let (state, mcp) = self.state(node, services, address, &mut registry)?;
        let auth = Arc::clone(&state.auth);
        let router = http::router(state);
        mcp.register(&mut registry);
        let limits = self.options.limits.listener();
        let serving = http::serve_within(limits, listeners.http, router, accept.clone());
        listening.spawn("http listener", serving);
        let router = http::metrics_router(Arc::new(registry));
        listening.spawn("metrics listener", http::serve(listeners.metrics, router, accept.clone()));
        let socket = socket_path(node.data_dir.root(), "control.sock")?;
        // A killed process leaves its socket's file; the log's lock says that nobody listens on it.
        remove_if_there(&socket)?;
        let token = hex::encode(crate::base::random_bytes::<32>());
        let control = UnixListener::bind(&socket)?;
        let limits = stdio::StdioLimits {
            line_bytes_max: self.options.limits.body_bytes_max,
            in_flight_max: self.options.limits.stdio_in_flight_max,
        };
        let stdio = Stdio {
            mcp: mcp.clone(),
            auth: Arc::clone(&auth),
            limits,
            tasks: listening.clone(),
            stop: accept.clone(),
        };
        let serving = control::serve(
            control,
            token.as_str().into(),
            key_store,
            Arc::clone(&node.lanes),
            stdio,
            accept.clone(),
        );
        listening.spawn("control socket", serving);
        let interval = Duration::from_millis(self.options.limits.session_sweep_ms);
        let keeping = mcp.clone().keep_sessions(auth, interval, services.background.cancel_token().clone());
        services.background.spawn("sessions", keeping);
        let heads = Node::publish_checkpoints(
            Arc::clone(&node.lanes),
            self.options.log.checkpoint_interval_ms,
            services.background.cancel_token().clone(),
        );
        services.background.spawn("lane head checkpoints", heads);
        let retention = Retention::new(
            self.options,
            Arc::clone(&node.log),
            Arc::clone(&node.lanes),
            services.postgres.running(),
            services.retention_metrics.clone(),
        );
        services.background.spawn("retention", retention.run(services.background.cancel_token().clone()));
        let url = format!("http://{address}");
        let run_file = node.data_dir.run_file();
        let run = RunFile {
            pid: std::process::id(),
            incarnation: node.lanes.incarnation(),
            url: url.clone(),
            metrics_url: format!("http://{metrics}/metrics"),
            socket: socket.clone(),
            token,
        };
        run.write(&run_file)?;
        let data_dir = node.data_dir.root().to_owned();
        Ok(Ends { url, metrics, data_dir, run_file, socket, accept, listening, mcp })
    }

    fn state(
        &self,
        node: &Node,
        services: &Services,
        address: SocketAddr,
        registry: &mut Registry,
    ) -> Result<(http::State, crate::mcp::Server), StartError> {
        let config = self.options;
        let lanes = Arc::clone(&node.lanes);
        let (ack, _) = lanes.log().ack_class();
        let about = About {
            name: "annals".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            description: "Tools for data, where every call is recorded before it is answered.".into(),
            instructions: crate::mcp::INSTRUCTIONS.into(),
            ack: ack.as_str().into(),
            limits: config.limits.dispatch(),
        };
        let auth =
            Auth::new(Arc::clone(&services.keys), config.personas()?, self.admin_key, Arc::clone(&lanes))
                .with_flood_limits(config.limits.flood());
        auth.register(registry);
        let auth = Arc::new(auth);
        let book = Arc::new(Book::new(
            Arc::clone(&auth),
            Arc::clone(&services.query),
            Arc::clone(lanes.clock()),
            services.status.subscribe(),
        ));
        let toolbox = Arc::new(toolbox(Arc::clone(&services.connections), about, Some(book)));
        let dispatch = Arc::new(Dispatch::recording(
            Arc::clone(&lanes),
            toolbox,
            config.limits.dispatch(),
            config.recording()?,
            self.calls.clone(),
            services.outcomes.clone(),
        ));
        dispatch.register(registry);
        let sessions = crate::mcp::SessionLimits {
            sessions_max: config.limits.sessions_max,
            sessions_per_key_max: config.limits.sessions_per_key_max,
            idle: Duration::from_millis(config.limits.session_idle_ms),
        };
        services.background.spawn("counts of refusals", {
            let (auth, stop) = (Arc::clone(&auth), services.background.cancel_token().clone());
            async move { auth.record_counts(stop).await }
        });
        let status = services.status.subscribe();
        let readiness = move || http::Readiness {
            log: lanes.log().health(),
            store: http::StoreState::from(status.borrow().state),
        };
        let mcp = crate::mcp::Server::new(Arc::clone(&dispatch), sessions, self.calls.clone());
        let state = http::State {
            mcp: mcp.clone(),
            dispatch,
            auth,
            query: Arc::clone(&services.query),
            readiness: Box::new(readiness),
            guard: http::Guard::new(address, &config.http),
            proxies: http::Proxies::new(&config.http),
            body_bytes_max: config.limits.body_bytes_max,
            body_timeout: Duration::from_millis(config.limits.body_timeout_ms),
        };
        Ok((state, mcp))
    }
}

/// Resolves when the projection meets damaged bytes: nobody may go on as if the record were whole.
async fn corrupt(mut status: watch::Receiver<StoreStatus>) -> StartError {
    match status.wait_for(|status| status.state == StoreState::Corrupt).await {
        Ok(status) => StartError::Corrupt(status.detail.clone()),
        Err(_) => std::future::pending().await,
    }
}

/// Brings the store up, says so, and watches over it. Ends only with an error.
async fn run_store(
    services: &Services,
    database: db::Options,
    key_stores: &watch::Sender<Option<Arc<KeyStore>>>,
    ends: &Ends,
    print: fn(&str),
) -> Result<&'static str, StartError> {
    let bringing = store::bring_up(services, database.clone(), key_stores);
    tokio::pin!(bringing);
    let banner = |first_key: Option<&str>| {
        let (url, data_dir) = (ends.url.as_str(), ends.data_dir.as_path());
        Banner { url, metrics: ends.metrics, data_dir, first_key, sample: services.sample }.to_string()
    };
    let (postgres, first_key) = tokio::select! {
        up = &mut bringing => up?,
        () = tokio::time::sleep(NOTE_WAIT) => {
            tracing::warn!("calls are served; the store is still on its way");
            print(&super::banner::early(&ends.url));
            bringing.await?
        }
    };
    print(&banner(first_key.as_deref()));
    store::keep_running(postgres, database, services.background.cancel_token().clone()).await;
    std::future::pending().await
}

/// The order of the end: no new requests, calls to their recorded ends, the last events, the log, the store.
async fn stop(
    node: Node,
    services: Services,
    calls: Tasks,
    ends: Ends,
    config: &Config,
    reason: &str,
) -> Result<(), StartError> {
    let begun = tokio::time::Instant::now();
    ends.accept.cancel();
    let grace = Duration::from_millis(config.limits.shutdown_grace_ms);
    if tokio::time::timeout(grace, calls.join()).await.is_err() {
        tracing::warn!("calls still run after the grace period; they are cancelled and recorded as such");
    }
    if tokio::time::timeout(SETTLE, calls.stop()).await.is_err() {
        tracing::warn!("a cancelled tool still winds down");
    }
    if tokio::time::timeout(SETTLE, ends.listening.join()).await.is_err() {
        tracing::warn!("a connection did not close in time");
    }
    services.background.stop().await;
    if tokio::time::timeout(SETTLE, ends.mcp.end_sessions()).await.is_err() {
        tracing::warn!("sessions end unrecorded: the log did not take their ends in time");
    }
    let finished = node.finish(reason).await;
    remove_if_there(&ends.run_file)?;
    remove_if_there(&ends.socket)?;
    // Before the store: a Postgres that hangs must not keep the log from its clean end. The worker takes in the last
    // events and ends by itself when the log is closed.
    let closed = node.close().await;
    store::stop_worker(&services.worker, SETTLE).await;
    let store = async {
        let stopped = services.postgres.stop().await;
        services.connections.close().await;
        stopped
    };
    let left = EXIT_MAX.saturating_sub(begun.elapsed()).max(STORE_WAIT_MIN);
    let stopped = tokio::time::timeout(left, store).await.unwrap_or_else(|_| {
        let cause = "the private Postgres did not stop in time; the next start adopts or stops it";
        Err(std::io::Error::new(std::io::ErrorKind::TimedOut, cause).into())
    });
    closed?;
    finished?;
    stopped
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, StartError> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "signal",
            _ = self.interrupt.recv() => "signal",
        }
    }
}
