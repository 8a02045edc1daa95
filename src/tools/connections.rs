//! The named connections, and `list_connections`.
//!
//! A connection may be declared before it can be used: the sample database comes up after the listener. Never shows
//! a URL, and never a connection that the caller's persona may not reach.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;

use super::arguments;
use super::catalog::{self, Cache, Catalog, CatalogLimits};
use super::postgres::{Pool, tool_error};
use super::{CallContext, Definition, DefinitionSource, Prepared, Tool, ToolError, ToolResult};
use crate::auth::Persona;
use crate::base::{Clock, nearest, whole};
use crate::config;
use crate::refusal::Reason;

/// Bounds of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Rows of one answer.
    pub rows_max: u32,
    /// JSON bytes of one answer's rows.
    pub bytes_max: u64,
    /// The longest a statement may run.
    pub timeout: Duration,
    /// Statements that run at once.
    pub connections_max: u32,
    /// What is kept of its tables and columns.
    pub catalog: CatalogLimits,
}

impl From<&config::PostgresConnection> for ConnectionLimits {
    fn from(config: &config::PostgresConnection) -> Self {
        Self {
            rows_max: config.rows_max,
            bytes_max: config.bytes_max,
            timeout: Duration::from_millis(config.timeout_ms),
            connections_max: config.connections_max,
            catalog: CatalogLimits {
                ttl: Duration::from_millis(config.catalog_ttl_ms),
                tables_max: config.catalog_tables_max,
                columns_max: config.catalog_columns_max,
            },
        }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self::from(&config::PostgresConnection::new(String::new(), String::new()))
    }
}

/// A configured connection cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConnectionError {
    /// The URL is none; it is not shown, since it may hold a password.
    #[error("connections.{name}.url is not like postgres://role:password@host/database")]
    Url {
        /// The connection.
        name: String,
    },
}

/// All connections, by name. Shared; connections may be added while calls run.
pub struct Connections {
    entries: RwLock<BTreeMap<String, Entry>>,
    clock: Arc<dyn Clock>,
}

#[derive(Clone)]
struct Entry {
    description: String,
    limits: ConnectionLimits,
    /// `None` while it is only declared.
    pool: Option<Arc<Pool>>,
    catalog: Arc<Cache>,
}

/// What is shown of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Listed {
    pub(super) name: String,
    kind: &'static str,
    pub(super) description: String,
    limits: ListedLimits,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct ListedLimits {
    rows_max: u32,
    bytes_max: u64,
    timeout_ms: u64,
}

impl Connections {
    /// The configured connections. None is opened before it is used.
    ///
    /// # Errors
    /// [`ConnectionError`] names the bad one.
    pub fn new(
        configured: &BTreeMap<String, config::Connection>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ConnectionError> {
        let connections = Self { entries: RwLock::default(), clock };
        for (name, connection) in configured {
            let config::Connection::Postgres(postgres) = connection;
            let bad = || ConnectionError::Url { name: name.clone() };
            // The URL parser takes any scheme.
            let is_postgres =
                ["postgres://", "postgresql://"].iter().any(|scheme| postgres.url.starts_with(scheme));
            let options =
                PgConnectOptions::from_str(&postgres.url).ok().filter(|_| is_postgres).ok_or_else(bad)?;
            connections.add(name, &postgres.description, options, postgres.into());
        }
        Ok(connections)
    }

    /// Makes a connection known that [`Connections::add`] will make usable; calls get `connection_starting` until then.
    pub fn declare(&self, name: &str, description: &str, limits: ConnectionLimits) {
        let entry =
            Entry { description: description.to_owned(), limits, pool: None, catalog: Arc::default() };
        self.insert(name, entry);
    }

    /// Adds a connection, or replaces the one of that name.
    pub fn add(&self, name: &str, description: &str, options: PgConnectOptions, limits: ConnectionLimits) {
        let pool = Some(Arc::new(Pool::new(name, options, limits.connections_max)));
        let entry = Entry { description: description.to_owned(), limits, pool, catalog: Arc::default() };
        self.insert(name, entry);
    }

    fn insert(&self, name: &str, entry: Entry) {
        self.entries.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), entry);
    }

    /// Closes all idle sessions.
    pub async fn close(&self) {
        let pools: Vec<_> = self.read(|entries| entries.values().filter_map(|e| e.pool.clone()).collect());
        for pool in pools {
            pool.close().await;
        }
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The name of the one connection, when there is one only.
    pub(super) fn only(&self) -> Option<String> {
        self.read(|entries| if entries.len() == 1 { entries.keys().next().cloned() } else { None })
    }

    /// The connection that `asked` means for `persona`. A name that the persona may not reach is given back as it is,
    /// known or not: whoever asks the persona refuses it, and nobody learns whether it exists.
    ///
    /// # Errors
    /// `connection_required` lists the choices; `connection_unknown` names the nearest.
    pub(super) fn resolve(&self, asked: Option<&str>, persona: &Persona) -> Result<String, ToolError> {
        let mut reached: Vec<String> = self.read(|entries| {
            entries.keys().filter(|name| persona.connections.allows(name)).cloned().collect()
        });
        match asked {
            Some(asked) if reached.iter().any(|name| name == asked) => Ok(asked.to_owned()),
            Some(asked) if !persona.connections.allows(asked) => Ok(asked.to_owned()),
            Some(asked) => Err(unknown(asked, &reached)),
            None if reached.len() == 1 => Ok(reached.remove(0)),
            None if reached.is_empty() => Err(ToolError::new(
                Reason::ConnectionRequired,
                "You reach no connection.",
                "Ask the operator for a persona with connections.",
            )),
            None => Err(ToolError::new(
                Reason::ConnectionRequired,
                format!("Name a connection: {}.", reached.join(", ")),
                "Pass one of them as connection.",
            )),
        }
    }

    /// The sessions and limits of a connection.
    ///
    /// # Errors
    /// `connection_starting` when it is only declared.
    pub(super) fn pool(&self, name: &str) -> Result<(Arc<Pool>, ConnectionLimits), ToolError> {
        match self.read(|entries| entries.get(name).cloned()) {
            Some(Entry { pool: Some(pool), limits, .. }) => Ok((pool, limits)),
            Some(Entry { pool: None, .. }) => Err(ToolError::new(
                Reason::ConnectionStarting,
                format!("The connection {name:?} is still starting."),
                "Try again in a few seconds.",
            )),
            None => Err(unknown(name, &[])),
        }
    }

    /// What the connection holds, at most `catalog.ttl` old.
    ///
    /// # Errors
    /// As [`Connections::pool`] and the connection say; `cancelled`.
    pub(super) async fn catalog(
        &self,
        name: &str,
        cancel: &CancellationToken,
    ) -> Result<Arc<Catalog>, ToolError> {
        let (pool, limits) = self.pool(name)?;
        let Some(cache) = self.read(|entries| entries.get(name).map(|entry| Arc::clone(&entry.catalog)))
        else {
            return Err(unknown(name, &[]));
        };
        let read = async {
            let lease = pool.lease(&limits, cancel).await?;
            let read = lease.run(&limits, cancel, move |lease| {
                async move {
                    let read = catalog::read(lease.connection(), limits.catalog).await;
                    read.map_err(|error| tool_error(lease.name(), &error, &limits))
                }
                .boxed()
            });
            read.await
        };
        cache.get(self.clock.as_ref(), limits.catalog.ttl, cancel, read).await
    }

    /// The connections that `persona` reaches, by name, and how many it does not.
    pub(super) fn listed(&self, persona: &Persona) -> (Vec<Listed>, usize) {
        self.read(|entries| {
            let reached: Vec<Listed> = entries
                .iter()
                .filter(|(name, _)| persona.connections.allows(name))
                .map(|(name, entry)| Listed::of(name, entry))
                .collect();
            let withheld = entries.len() - reached.len();
            (reached, withheld)
        })
    }

    fn read<T>(&self, ask: impl FnOnce(&BTreeMap<String, Entry>) -> T) -> T {
        ask(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Listed {
    fn of(name: &str, entry: &Entry) -> Self {
        Self {
            name: name.to_owned(),
            kind: "postgres",
            description: entry.description.clone(),
            limits: ListedLimits {
                rows_max: entry.limits.rows_max,
                bytes_max: entry.limits.bytes_max,
                timeout_ms: u64::try_from(entry.limits.timeout.as_millis()).unwrap_or(u64::MAX),
            },
        }
    }

    /// The schema of one.
    pub(super) fn schema() -> serde_json::Value {
        json!({
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "kind": {"enum": ["postgres"]},
                "description": {"type": "string"},
                "limits": {
                    "type": "object",
                    "properties": {
                        "rows_max": {"type": "integer", "description": "Rows of one answer."},
                        "bytes_max": {"type": "integer", "description": "JSON bytes of one answer's rows."},
                        "timeout_ms": {"type": "integer", "description": "The longest a statement may run."}
                    },
                    "required": ["rows_max", "bytes_max", "timeout_ms"],
                    "additionalProperties": false
                }
            },
            "required": ["name", "kind", "description", "limits"],
            "additionalProperties": false
        })
    }
}

/// The connection that a call names, or leaves to what its caller reaches.
pub(super) struct Choice {
    connections: Arc<Connections>,
    name: Option<String>,
}

impl Choice {
    /// Of `connections`: the one that was asked for, else the only one there is, else still open.
    pub(super) fn new(connections: &Arc<Connections>, asked: Option<String>) -> Self {
        Self { connections: Arc::clone(connections), name: asked.or_else(|| connections.only()) }
    }

    /// What [`Prepared::connection`] tells.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What [`Prepared::resolve`] does.
    ///
    /// # Errors
    /// As [`Connections::resolve`].
    pub(super) fn resolve(&mut self, persona: &Persona) -> Result<(), ToolError> {
        self.name = Some(self.connections.resolve(self.name.as_deref(), persona)?);
        Ok(())
    }

    /// The name to run with, which `persona` may reach.
    ///
    /// # Errors
    /// As [`Connections::resolve`], and `connection_not_allowed`.
    pub(super) fn settle(&self, persona: &Persona) -> Result<String, ToolError> {
        let name = self.connections.resolve(self.name.as_deref(), persona)?;
        allowed(persona, &name)?;
        Ok(name)
    }
}

/// Dispatch asks the persona before; this holds when a tool is called in another way.
///
/// # Errors
/// `connection_not_allowed`.
pub(super) fn allowed(persona: &Persona, name: &str) -> Result<(), ToolError> {
    if persona.connections.allows(name) {
        return Ok(());
    }
    Err(ToolError::new(
        Reason::ConnectionNotAllowed,
        format!("Your persona may not reach the connection {:?}.", whole(name, 128)),
        "list_connections names those that you may.",
    ))
}

fn unknown(asked: &str, reached: &[String]) -> ToolError {
    let hint = match nearest(asked, reached.iter().map(String::as_str)) {
        Some(near) => format!("Did you mean {near:?}?"),
        None if reached.is_empty() => "list_connections names what you reach.".to_owned(),
        None => format!("You reach: {}.", reached.join(", ")),
    };
    ToolError::new(
        Reason::ConnectionUnknown,
        format!("There is no connection {:?} that you reach.", whole(asked, 128)),
        hint,
    )
}

/// The tool.
pub struct ListConnections {
    definition: Definition,
    connections: Arc<Connections>,
}

impl ListConnections {
    /// Lists `connections`.
    #[must_use]
    pub fn new(connections: Arc<Connections>) -> Self {
        let definition = DefinitionSource {
            name: "list_connections",
            title: "List connections",
            description: "Lists the connections that you reach, by name, with their kind and limits. `withheld` counts \
                          those that exist and are not yours to reach."
                .to_owned(),
            input_schema: json!({"type": "object", "properties": {}, "additionalProperties": false}),
            output_schema: json!({
                "type": "object",
                "properties": {
                    "connections": {"type": "array", "items": Listed::schema()},
                    "total": {"type": "integer", "description": "Entries of connections."},
                    "withheld": {"type": "integer"}
                },
                "required": ["connections", "total", "withheld"],
                "additionalProperties": false
            }),
            annotations: json!({"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false}),
        }
        .prepare("platform", false);
        Self { definition, connections }
    }
}

impl Tool for ListConnections {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        let NoArguments {} = arguments::read("list_connections", &[], arguments)?;
        Ok(Box::new(Listing { connections: Arc::clone(&self.connections) }))
    }
}

/// `{}`.
#[derive(Debug, Deserialize)]
pub(super) struct NoArguments {}

struct Listing {
    connections: Arc<Connections>,
}

#[derive(Serialize)]
struct Listings {
    connections: Vec<Listed>,
    total: usize,
    withheld: usize,
}

impl Prepared for Listing {
    fn connection(&self) -> Option<&str> {
        None
    }

    fn run(self: Box<Self>, context: CallContext) -> BoxFuture<'static, Result<ToolResult, ToolError>> {
        let (connections, withheld) = self.connections.listed(&context.persona);
        let total = connections.len();
        let result = ToolResult::from_serialize(&Listings { connections, total, withheld });
        Box::pin(std::future::ready(result))
    }
}
