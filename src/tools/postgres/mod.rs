//! Sessions with Postgres databases that agents query: opened when needed, checked for a harmless role, used inside a
//! READ ONLY transaction, reset before the next call gets them.
//!
//! Never keeps a session whose state is unknown, and never shows a URL or a password.

mod error;
mod role;

pub(super) use error::{timed_out, tool_error};

use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::ToolError;
use super::connections::ConnectionLimits;
use crate::refusal::Reason;

/// How long opening a session may take, its role check included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call waits for one of the connection's sessions.
const LEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long resetting a session may take before it is closed instead.
const RESET_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a statement may go on after it was told to stop before its session is closed.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two requests to stop: one that arrives between two statements stops nothing.
const STOP_INTERVAL: Duration = Duration::from_millis(200);

/// The sessions of one connection.
pub(super) struct Pool {
    name: String,
    options: PgConnectOptions,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Session>>,
}

struct Session {
    connection: PgConnection,
    /// The server's process, for `pg_cancel_backend`.
    pid: i32,
    /// Whether the server can notice a vanished client while a statement runs.
    watches_client: bool,
}

/// A session in use, inside a READ ONLY transaction. Dropping it closes it; [`Lease::give_back`] keeps it.
pub(super) struct Lease {
    pool: Arc<Pool>,
    session: Session,
    _permit: OwnedSemaphorePermit,
}

/// Stops what a session runs, from outside.
struct Stopper {
    options: PgConnectOptions,
    pid: i32,
}

impl Pool {
    /// No session is opened yet.
    pub(super) fn new(name: &str, options: PgConnectOptions, connections_max: u32) -> Self {
        // Text of callers neither belongs into our log output nor into a cache of prepared statements.
        let options = options
            .disable_statement_logging()
            .statement_cache_capacity(0)
            .application_name("annals sql_query");
        let permits = usize::try_from(connections_max).unwrap_or(1).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            name: name.to_owned(),
            options,
            permits: Arc::new(Semaphore::new(permits)),
            idle: Mutex::default(),
        }
    }

    /// A session inside a READ ONLY transaction with the given limits.
    ///
    /// # Errors
    /// `connection_busy`, `connection_unreachable`, `connection_role_refused` or `cancelled`.
    pub(super) async fn lease(
        self: &Arc<Self>,
        limits: &ConnectionLimits,
        cancel: &CancellationToken,
    ) -> Result<Lease, ToolError> {
        let permit = tokio::time::timeout(LEASE_TIMEOUT, Arc::clone(&self.permits).acquire_owned());
        let permit = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(super::sql_query::cancelled()),
            permit = permit => permit,
        };
        let Ok(Ok(permit)) = permit else {
            return Err(ToolError::new(
                Reason::ConnectionBusy,
                format!("All sessions of the connection {:?} are in use.", self.name),
                "Try again in a few seconds.",
            ));
        };
        let opening = tokio::time::timeout(CONNECT_TIMEOUT, self.begun(limits));
        let session = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(super::sql_query::cancelled()),
            opened = opening => opened.unwrap_or_else(|_| Err(error::unreachable(&self.name)))?,
        };
        Ok(Lease { pool: Arc::clone(self), session, _permit: permit })
    }

    /// An idle session that still answers, else a new one.
    async fn begun(&self, limits: &ConnectionLimits) -> Result<Session, ToolError> {
        while let Some(mut session) = self.pop_idle() {
            if session.begin(limits).await.is_ok() {
                return Ok(session);
            }
        }
        let mut session = self.open().await?;
        session.begin(limits).await.map_err(|error| error::connection_failed(&self.name, &error))?;
        Ok(session)
    }

    fn pop_idle(&self) -> Option<Session> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    async fn open(&self) -> Result<Session, ToolError> {
        let failed = |error: sqlx::Error| error::connection_failed(&self.name, &error);
        let mut connection = PgConnection::connect_with(&self.options).await.map_err(failed)?;
        role::check(&mut connection, &self.name).await.map_err(failed)??;
        let pid = sqlx::query_scalar("SELECT pg_catalog.pg_backend_pid()")
            .persistent(false)
            .fetch_one(&mut connection)
            .await
            .map_err(failed)?;
        // Some platforms cannot watch the client's socket; then the statement timeout bounds what is left behind.
        let watches_client = sqlx::raw_sql("SET client_connection_check_interval = '200ms'")
            .execute(&mut connection)
            .await
            .is_ok();
        Ok(Session { connection, pid, watches_client })
    }

    /// Closes the idle sessions.
    pub(super) async fn close(&self) {
        while let Some(session) = self.pop_idle() {
            drop(tokio::time::timeout(RESET_TIMEOUT, session.connection.close()).await);
        }
    }
}

impl Session {
    async fn begin(&mut self, limits: &ConnectionLimits) -> Result<(), sqlx::Error> {
        let timeout_ms = limits.timeout.as_millis();
        let watch =
            if self.watches_client { "SET LOCAL client_connection_check_interval = '200ms';" } else { "" };
        let begin = format!(
            "BEGIN TRANSACTION READ ONLY;
             SET LOCAL statement_timeout = {timeout_ms};
             SET LOCAL lock_timeout = {timeout_ms};
             SET LOCAL idle_in_transaction_session_timeout = {idle_ms};
             SET LOCAL standard_conforming_strings = on;
             SET LOCAL row_security = on;
             SET LOCAL bytea_output = 'hex';
             SET LOCAL DateStyle = 'ISO, YMD';
             {watch}",
            idle_ms = timeout_ms + 10_000,
        );
        sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut self.connection).await.map(drop)
    }
}

impl Lease {
    /// The connection's name.
    pub(super) fn name(&self) -> &str {
        &self.pool.name
    }

    /// For statements.
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.session.connection
    }

    /// A handle that can stop the session's statement.
    fn stopper(&self) -> Stopper {
        Stopper { options: self.pool.options.clone(), pid: self.session.pid }
    }

    /// Runs `work` until it ends, is cancelled or takes longer than the connection allows; then the server is stopped too.
    ///
    /// # Errors
    /// What `work` fails with, `cancelled` or `sql_timeout`.
    pub(super) async fn run<T: Send>(
        mut self,
        limits: &ConnectionLimits,
        cancel: &CancellationToken,
        work: impl for<'l> FnOnce(&'l mut Lease) -> BoxFuture<'l, Result<T, ToolError>>,
    ) -> Result<T, ToolError> {
        let stopper = self.stopper();
        let mut work = work(&mut self);
        let stopped = tokio::select! {
            biased;
            done = &mut work => {
                drop(work);
                self.give_back().await;
                return done;
            }
            () = cancel.cancelled() => super::sql_query::cancelled(),
            () = tokio::time::sleep(limits.timeout) => timed_out(limits),
        };
        let ended = stopper.stop(&mut work).await;
        drop(work);
        if ended {
            self.give_back().await;
        }
        Err(stopped)
    }

    /// Rolls back, resets everything a statement could have left in the session, and keeps it; else closes it.
    async fn give_back(self) {
        let Self { pool, mut session, _permit } = self;
        let reset = async {
            sqlx::raw_sql("ROLLBACK").execute(&mut session.connection).await?;
            sqlx::raw_sql("DISCARD ALL").execute(&mut session.connection).await
        };
        if let Ok(Ok(_)) = tokio::time::timeout(RESET_TIMEOUT, reset).await {
            pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        }
    }
}

impl Stopper {
    /// Tells the server to stop until `work` ends. Gives `false` when it did not end in time: its session must be
    /// closed then, upon which the server stops by itself.
    async fn stop<F: Future + Unpin>(&self, work: &mut F) -> bool {
        let ended = async {
            tokio::select! {
                _ = work => true,
                // The role may lack the right to ask; closing its session stops the statement, too.
                _ = self.ask() => false,
            }
        };
        tokio::time::timeout(STOP_TIMEOUT, ended).await.unwrap_or(false)
    }

    /// Asks again and again, since a request between two statements stops nothing. Ends only when it may not ask.
    async fn ask(&self) -> Result<Infallible, sqlx::Error> {
        let mut connection = PgConnection::connect_with(&self.options).await?;
        loop {
            sqlx::query("SELECT pg_catalog.pg_cancel_backend($1)")
                .bind(self.pid)
                .persistent(false)
                .execute(&mut connection)
                .await?;
            tokio::time::sleep(STOP_INTERVAL).await;
        }
    }
}
