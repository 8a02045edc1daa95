//! Postgres: a private server in the data directory or one of the user's own, its roles, the migrations of the state
//! tables, and pools.
//!
//! Nothing in here knows of events or the log, and no other module makes a role, a database or a connection string.

mod binaries;
mod bootstrap;
mod dump;
mod error;
mod keys;
mod lock;
mod private;
mod process;
mod role;
mod run_as;
mod sample;
pub mod secret_file;
mod socket_dir;
mod transaction;

pub use dump::{Versions, is_taken, schema_version};
pub use error::{Error, ErrorKind, is_transient};
pub use role::Role;
pub use sample::harden_sample;
pub use transaction::{begin, begin_with};

use std::collections::BTreeMap;
use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgSslMode};

use crate::config;
use keys::Keys;
use lock::{Transition, User};
use private::Running;
use socket_dir::PORT;

/// The oldest major version of Postgres that Annals works with.
pub const VERSION_MIN: u32 = 15;
/// State, audit and projections, on the private server.
pub const DATABASE: &str = "annals";
/// The sample data, on the private server.
pub const SAMPLE_DATABASE: &str = "annals_sample";

/// Idle connections are closed after this long.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// Where Postgres is, or is to be.
#[derive(Clone)]
pub struct Options {
    /// The data directory: `pg/` and `keys/` are in it.
    pub data_dir: PathBuf,
    /// A server of the user's own. None: the private one.
    pub url: Option<String>,
    /// The bin directory of the Postgres to run. None: look for one.
    pub pg_bin: Option<PathBuf>,
    /// Pool sizes and timeouts.
    pub database: config::Database,
}

/// A reachable server with its roles. Clones are the same server.
///
/// Dropping it leaves a private server running, to be adopted by the next start; [`Postgres::stop`] stops it.
#[derive(Debug, Clone)]
pub struct Postgres {
    inner: Arc<Inner>,
}

struct Inner {
    server: Server,
    base: PgConnectOptions,
    database: String,
    passwords: BTreeMap<Role, String>,
    settings: config::Database,
}

#[derive(Debug)]
struct Private {
    data_dir: PathBuf,
    running: Running,
    user: User,
}

#[derive(Debug)]
enum Server {
    Private(Box<Private>),
    External,
}

/// Where the socket of the private server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketInfo {
    /// Its directory: `host` for a Postgres client.
    pub dir: PathBuf,
    /// The port, which is a part of the socket's name.
    pub port: u16,
    /// The database with the audit.
    pub database: String,
}

// Written by hand: a URL and the driver's options hold passwords.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("data_dir", &self.data_dir)
            .field("url", &self.url.as_ref().map(|_| "..."))
            .field("pg_bin", &self.pg_bin)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("server", &self.server)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

impl Postgres {
    /// Finds, makes and starts, or adopts the server; creates what is missing of roles, databases and state tables.
    /// Running it again changes nothing.
    ///
    /// # Errors
    /// See [`Error`]: each says what to do, [`Error::is_retryable`] whether to try again.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let data_dir = prepare_data_dir(&options.data_dir)?;
        let keys = Keys::open(&data_dir)?;
        let postgres = match &options.url {
            Some(url) => {
                let base = external_options(url)?;
                bootstrap::external(&base, &keys).await?;
                Self::new(Server::External, base.clone(), database_of(&base), &keys, options.database)?
            }
            None => {
                let transition = Transition::begin(&data_dir).await?;
                let running = Running::start(&data_dir, options.pg_bin.as_deref(), &keys).await?;
                let superuser = private::super_options(&running.socket_dir, &keys)?;
                bootstrap::private(&superuser, DATABASE, &keys).await?;
                let user = User::enter(&data_dir)?;
                drop(transition);
                let base = local_options(&running.socket_dir);
                let server = Server::Private(Box::new(Private { data_dir, running, user }));
                Self::new(server, base, DATABASE.to_owned(), &keys, options.database)?
            }
        };
        postgres.migrate().await?;
        Ok(postgres)
    }

    /// Connects to the server when it runs already; changes nothing. None when the private server does not run, or
    /// was never brought into shape.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::Sql`], [`Error::Busy`], [`Error::Io`].
    pub async fn attach(options: Options) -> Result<Option<Self>, Error> {
        let Ok(data_dir) = std::fs::canonicalize(&options.data_dir) else { return Ok(None) };
        let keys = Keys::open(&data_dir)?;
        let (server, base, database) = match &options.url {
            Some(url) => {
                let base = external_options(url)?;
                let database = database_of(&base);
                (Server::External, base, database)
            }
            None => {
                let transition = Transition::begin(&data_dir).await?;
                let Some(running) = Running::adopt(&data_dir, &keys).await? else {
                    return Ok(None);
                };
                let user = User::enter(&data_dir)?;
                drop(transition);
                let base = local_options(&running.socket_dir);
                (Server::Private(Box::new(Private { data_dir, running, user })), base, DATABASE.to_owned())
            }
        };
        if keys.read(Role::Owner.name())?.is_none() {
            return Ok(None);
        }
        let postgres = Self::new(server, base, database, &keys, options.database)?;
        let reader = postgres.connect_options(Role::Reader);
        bootstrap::close(bootstrap::connect(&reader, "connect as annals_reader").await?).await;
        Ok(Some(postgres))
    }

    fn new(
        server: Server,
        base: PgConnectOptions,
        database: String,
        keys: &Keys,
        settings: config::Database,
    ) -> Result<Self, Error> {
        let mut passwords = BTreeMap::new();
        for role in Role::ALL {
            if let Some(password) = keys.read(role.name())? {
                passwords.insert(role, password);
            }
        }
        Ok(Self { inner: Arc::new(Inner { server, base, database, passwords, settings }) })
    }

    /// How `role` connects to its database.
    ///
    /// The sample's roles exist only where [`Postgres::has_sample`]; elsewhere a connection as one is refused.
    #[must_use]
    pub fn connect_options(&self, role: Role) -> PgConnectOptions {
        let database = if role.is_sample() { SAMPLE_DATABASE } else { &self.inner.database };
        let options = self.inner.base.clone().username(role.name()).database(database);
        let options = match self.inner.passwords.get(&role) {
            Some(password) => options.password(password),
            None => options.password(""),
        };
        match role {
            Role::Reader | Role::Auditor => {
                options.options([("statement_timeout", self.inner.settings.query_timeout_ms.to_string())])
            }
            Role::Owner | Role::Writer | Role::SampleOwner | Role::SampleReader => options,
        }
    }

    /// A new pool of `role`, sized by the config; it connects when it is first used. Statements of [`Role::Reader`]
    /// and [`Role::Auditor`] end after `database.query_timeout_ms`.
    #[must_use]
    pub fn pool(&self, role: Role) -> PgPool {
        PgPoolOptions::new()
            .max_connections(self.inner.settings.pool_connections_max)
            .acquire_timeout(Duration::from_millis(self.inner.settings.acquire_timeout_ms))
            .idle_timeout(IDLE_MAX)
            .connect_lazy_with(self.connect_options(role))
    }

    /// Whether the sample database and its roles are there: on the private server only.
    #[must_use]
    pub fn has_sample(&self) -> bool {
        matches!(self.inner.server, Server::Private(_))
    }

    /// Where the private server's socket is; none for a server of the user's own.
    #[must_use]
    pub fn socket(&self) -> Option<SocketInfo> {
        match &self.inner.server {
            Server::Private(private) => Some(SocketInfo {
                dir: private.running.socket_dir.clone(),
                port: PORT,
                database: self.inner.database.clone(),
            }),
            Server::External => None,
        }
    }

    /// Stops the private server, started or adopted, unless another process still uses it: then that one's stop
    /// does. A server of the user's own is left alone. Close the pools before.
    ///
    /// # Errors
    /// [`Error::Stop`] when the server outlives an immediate shutdown, [`Error::Busy`], [`Error::Io`].
    pub async fn stop(self) -> Result<(), Error> {
        let Server::Private(private) = &self.inner.server else { return Ok(()) };
        let _transition = Transition::begin(&private.data_dir).await?;
        if private.user.leave()? {
            private.running.stop().await
        } else {
            tracing::info!("another process uses the private Postgres; it is left running");
            Ok(())
        }
    }

    /// Runs the migrations of the state tables as their owner.
    async fn migrate(&self) -> Result<(), Error> {
        let owner = self.connect_options(Role::Owner);
        let mut connection = bootstrap::connect(&owner, "connect as annals_owner").await?;
        migrator().run_direct(None, &mut connection, false).await?;
        bootstrap::close(connection).await;
        Ok(())
    }
}

/// The migrations, with their own table beside the state tables.
fn migrator() -> Migrator {
    let mut migrator = sqlx::migrate!();
    migrator.dangerous_set_table_name("annals.migrations");
    migrator.create_schema("annals");
    migrator
}

/// The data directory, made when it is missing, as a real path: a server is known by it.
fn prepare_data_dir(data_dir: &Path) -> Result<PathBuf, Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(data_dir).map_err(Error::io("create", data_dir))?;
    std::fs::canonicalize(data_dir).map_err(Error::io("resolve", data_dir))
}

/// To the private server's socket; role, password and database are still open.
fn local_options(socket_dir: &Path) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .socket(socket_dir)
        .host("localhost")
        .port(PORT)
        .ssl_mode(PgSslMode::Disable)
        .application_name("annals")
}

fn external_options(url: &str) -> Result<PgConnectOptions, Error> {
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(Error::Url { cause: "it does not begin with postgres:// or postgresql://".into() });
    }
    let options: PgConnectOptions =
        url.parse().map_err(|error: sqlx::Error| Error::Url { cause: error.to_string() })?;
    Ok(options.application_name("annals"))
}

/// A URL without a database means the one named like the role, as for every client.
fn database_of(options: &PgConnectOptions) -> String {
    options.get_database().unwrap_or_else(|| options.get_username()).to_owned()
}
