//! Brings the audit store up beside the listeners, and keeps a private Postgres running.
//!
//! Calls do not wait for any of this: the log alone decides whether they may run.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::workbench::key_store;
use super::{Services, StartError};
use crate::auth::{KeyStore, NewKey, local_principal};
use crate::base::Tasks;
use crate::consumer::{Closer, Options, Pools, Worker};
use crate::db::{self, Postgres, Role};
use crate::outbox::Outbox;
use crate::projection::audit::Audit;
use crate::sample;
use crate::tools::ConnectionLimits;

/// The name of the connection to the sample data.
pub(super) const SAMPLE_CONNECTION: &str = "sample";
const RETRY: Duration = Duration::from_secs(2);
const PROBE: Duration = Duration::from_secs(2);
/// How long the end waits for a start that has begun.
const START_MAX: Duration = Duration::from_secs(4);

/// The Postgres of this process. A start that has begun runs to its end even when nobody waits for it any more, so
/// that whatever it starts is also stopped.
#[derive(Default)]
pub(super) struct Server {
    starting: Tasks,
    running: Arc<OnceLock<Postgres>>,
}

impl Server {
    async fn start_once(&self, options: db::Options) -> Result<Postgres, db::Error> {
        let running = Arc::clone(&self.running);
        let start = self.starting.spawn("postgres start", async move {
            let postgres = Postgres::start(options).await?;
            Ok(running.get_or_init(|| postgres).clone())
        });
        start.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    }

    async fn start(&self, options: &db::Options) -> Result<Postgres, StartError> {
        loop {
            match self.start_once(options.clone()).await {
                Ok(postgres) => return Ok(postgres),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(error = %error, "the store is not reachable; calls go on, it is tried again");
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The Postgres once it runs.
    pub(super) fn running(&self) -> Arc<OnceLock<Postgres>> {
        Arc::clone(&self.running)
    }

    /// Stops what runs or is just being started.
    pub(super) async fn stop(&self) -> Result<(), StartError> {
        if tokio::time::timeout(START_MAX, self.starting.join()).await.is_err() {
            tracing::warn!("Postgres was still starting; the next start adopts it");
        }
        match self.running.get() {
            Some(postgres) => Ok(postgres.clone().stop().await?),
            None => Ok(()),
        }
    }
}

/// Starts Postgres and everything that lives on it. Retries while that can help. Gives Postgres and, when no key
/// existed, a fresh admin key.
pub(super) async fn bring_up(
    services: &Services,
    options: db::Options,
    key_stores: &watch::Sender<Option<Arc<KeyStore>>>,
) -> Result<(Postgres, Option<String>), StartError> {
    let postgres = services.postgres.start(&options).await?;
    if services.sample {
        if postgres.has_sample() {
            let load = async || Ok(sample::ensure(&postgres.pool(Role::SampleOwner)).await?);
            let loaded = until_done(services, &options, load).await?;
            tracing::info!(
                tables = loaded.rows.len(),
                rows = loaded.rows.values().sum::<u64>(),
                "sample data is there"
            );
            let reader = postgres.connect_options(Role::SampleReader);
            let limits = ConnectionLimits::default();
            services.connections.add(SAMPLE_CONNECTION, sample::DESCRIPTION, reader, limits);
        } else {
            tracing::warn!(
                "--sample is for the private Postgres; nothing is written into a database of yours"
            );
        }
    }
    start_worker(services, &postgres);
    services.query.open(postgres.pool(Role::Auditor));
    let load = async || {
        let Services { lanes, config, keys, background, .. } = services;
        key_store(lanes, &postgres, config, keys, &Outbox::new(), background).await
    };
    let keys = until_done(services, &options, load).await?;
    let first_key = until_done(services, &options, async || first_key(&keys).await).await?;
    key_stores.send_replace(Some(keys));
    Ok((postgres, first_key))
}

/// Does `step` again, on a Postgres that is brought back, as long as it fails because that went away: the log is well
/// then, and calls go on.
async fn until_done<T>(
    services: &Services,
    options: &db::Options,
    step: impl AsyncFn() -> Result<T, StartError>,
) -> Result<T, StartError> {
    loop {
        match step().await {
            Err(error) if error.is_transient() => {
                tracing::warn!(error = %error, "the store went away while it was brought up; it is tried again");
                tokio::time::sleep(RETRY).await;
                services.postgres.start(options).await?;
            }
            done => return done,
        }
    }
}

fn start_worker(services: &Services, postgres: &Postgres) {
    let options = Options {
        projection: services.config.projection.clone(),
        owner: services.lanes.incarnation().to_string(),
        sole_owner: true,
    };
    let pools = Pools { owner: postgres.pool(Role::Owner), writer: postgres.pool(Role::Writer) };
    let worker = Worker::new(
        options,
        Arc::clone(services.lanes.log()),
        pools,
        Arc::new(Audit::new()),
        Arc::clone(services.lanes.clock()),
        services.worker_metrics.clone(),
    );
    let mut status = worker.status();
    let whole = services.status.clone();
    services.worker.spawn("store status", async move {
        // Ends with the worker, whose last word stays.
        while status.changed().await.is_ok() {
            whole.send_replace(status.borrow_and_update().clone());
        }
    });
    let tasks = services.worker.clone();
    services.worker.spawn("audit projection", async move { worker.run(&tasks).await });
    start_closer(services, postgres);
}

/// It records, so it stops before the last events do, and not with the worker.
fn start_closer(services: &Services, postgres: &Postgres) {
    let closer = Closer::new(
        Arc::clone(&services.lanes),
        postgres.pool(Role::Writer),
        Arc::clone(&services.outcomes.unrecorded),
        services.worker_metrics.clone(),
    );
    let interval = Duration::from_millis(services.config.projection.closure_interval_ms);
    let stop = services.background.cancel_token().clone();
    services.background.spawn("closures of calls", closer.run(interval, stop));
}

/// Lets the projection come to the end of a closed log, then stops it; the next start goes on from its checkpoint.
pub(super) async fn stop_worker(worker: &Tasks, at_most: Duration) {
    if tokio::time::timeout(at_most, worker.join()).await.is_ok() {
        return;
    }
    if tokio::time::timeout(at_most, worker.stop()).await.is_err() {
        tracing::warn!("the projection did not stop in time; the next start takes its leases over");
    }
}

async fn first_key(keys: &KeyStore) -> Result<Option<String>, StartError> {
    if !keys.is_empty().await? {
        return Ok(None);
    }
    // The operator's own key, which must work while others use theirs up.
    let new = NewKey { name: "admin".into(), roles: vec!["admin".into()], expires_at: None, no_limit: true };
    Ok(Some(keys.create(&local_principal(), &new).await?.key))
}

/// Starts a private Postgres again when it died. Pools reconnect by themselves.
pub(super) async fn keep_running(postgres: Postgres, options: db::Options, stop: CancellationToken) {
    if options.url.is_some() {
        return;
    }
    let pool = postgres.pool(Role::Writer);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PROBE) => {}
        }
        let Err(error) = sqlx::query("SELECT 1").execute(&pool).await else { continue };
        if !db::is_transient(&error) || stop.is_cancelled() {
            continue;
        }
        tracing::error!(error = %error, "the private Postgres does not answer; it is started again");
        tokio::select! {
            () = stop.cancelled() => return,
            started = Postgres::start(options.clone()) => if let Err(error) = started {
                tracing::error!(error = %error, "the private Postgres could not be started; it is tried again");
            }
        }
    }
}
