//! Every setting and every limit, each with its unit in its name. The only place that reads the config file.
//!
//! `annals config check` reads a file as `serve` would.

mod expand;
mod load;

pub use expand::{ExpandError, expand};
pub use load::{ConfigError, load, parse};

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::auth::{Globs, Persona, PersonaError, Personas};
use crate::event::ArgumentsLevel;

/// The whole config. Every field has a default, so an empty file is a config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The tenant in each event's source: letters, digits, `-`.
    pub tenant: String,
    /// Where MCP and REST listen.
    pub listen: SocketAddr,
    /// Where `/metrics` listens.
    pub metrics_listen: SocketAddr,
    /// Who may reach the HTTP listener from a browser.
    pub http: Http,
    /// The log.
    pub log: Log,
    /// The audit store.
    pub database: Database,
    /// The workers that fill the store.
    pub projection: Projection,
    /// Bounds.
    pub limits: Limits,
    /// What is secret, and how much of a call the record keeps.
    pub redaction: Redaction,
    /// What roles may reach, by persona name.
    pub personas: BTreeMap<String, PersonaConfig>,
    /// Named bindings to downstream systems, by name.
    pub connections: BTreeMap<String, Connection>,
}

/// Checks against DNS rebinding and foreign pages, and whose word on an address is taken.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// `Host` values accepted beside loopback names and the listen address, without port.
    pub allowed_hosts: Vec<String>,
    /// `Origin` values accepted beside loopback origins, as `scheme://host[:port]`.
    pub allowed_origins: Vec<String>,
    /// Proxies whose word on a client's address is taken: addresses and CIDR blocks. None by default.
    pub trusted_proxies: Vec<String>,
    /// The header in which they say it.
    pub forwarded_header: ForwardedHeader,
}

/// A header in which proxies name the client's address. One, not both: a client can send the one that the proxies leave alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`
    #[default]
    XForwardedFor,
    /// `Forwarded`, RFC 7239.
    Forwarded,
}

/// The embedded log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Size at which a segment file is closed, bytes. Also how much is allocated ahead, and how much of it is kept in memory.
    pub segment_bytes: u64,
    /// Records that may wait for their sync.
    pub in_flight_records_max: u32,
    /// Body bytes that may wait for their sync or are set aside for outcomes.
    pub in_flight_bytes_max: u64,
    /// How long an append waits for room before it is refused as busy, milliseconds.
    pub reserve_wait_ms: u64,
    /// How long an append may wait for the disk before the caller is told that its fate is uncertain, milliseconds. When the
    /// disk keeps the writer waiting that long, nothing new is accepted.
    pub append_wait_ms: u64,
    /// Interval of `system.checkpoint` events, milliseconds.
    pub checkpoint_interval_ms: u64,
    /// How long records are kept, days; for ever when absent. At least `projection.retention_days`.
    pub retention_days: Option<u32>,
    /// How often what is old enough to be dropped is looked for, in the log and in the store, milliseconds.
    pub retention_interval_ms: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            segment_bytes: 64 * 1024 * 1024,
            in_flight_records_max: 8_192,
            in_flight_bytes_max: 32 * 1024 * 1024,
            reserve_wait_ms: 2_000,
            append_wait_ms: 5_000,
            checkpoint_interval_ms: 60_000,
            retention_days: None,
            retention_interval_ms: 3_600_000,
        }
    }
}

/// The audit store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Database {
    /// A Postgres of your own, version 15 or later, whose role may create roles and databases' objects.
    /// Without it a private Postgres runs in the data directory. `DATABASE_URL` overrides.
    pub url: Option<String>,
    /// Connections per pool; there are three pools (state and projection, audit reads, sample data has its own).
    pub pool_connections_max: u32,
    /// How long a statement may wait for a connection, milliseconds.
    pub acquire_timeout_ms: u64,
    /// The longest an audit query may run, milliseconds.
    pub query_timeout_ms: u64,
    /// How long `annals backup` may wait for changes of keys that are under way, and new ones behind it, milliseconds.
    pub backup_lock_wait_ms: u64,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url: None,
            pool_connections_max: 8,
            acquire_timeout_ms: 5_000,
            query_timeout_ms: 15_000,
            backup_lock_wait_ms: 5_000,
        }
    }
}

/// The projection worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Projection {
    /// Loops in this worker; each has a share of the partitions.
    pub loops: u32,
    /// Events in one transaction at most.
    pub batch_records_max: usize,
    /// Life of a lease without renewal, milliseconds.
    pub lease_ms: u64,
    /// Interval of renewal when idle, milliseconds.
    pub lease_renew_ms: u64,
    /// How long audit rows are kept, days; for ever when absent. They go by whole months, once all of the month is older.
    pub retention_days: Option<u32>,
    /// How often calls are looked for that nobody can end any more, milliseconds.
    pub closure_interval_ms: u64,
}

impl Default for Projection {
    fn default() -> Self {
        Self {
            loops: 2,
            batch_records_max: 1_000,
            lease_ms: 5_000,
            lease_renew_ms: 1_500,
            retention_days: None,
            closure_interval_ms: 5_000,
        }
    }
}

/// Bounds on what callers may send and hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// HTTP connections at once; further ones wait to be accepted.
    pub connections_max: usize,
    /// Head of one HTTP request, bytes.
    pub head_bytes_max: usize,
    /// How long a client may take to send a head; an idle connection is closed after this too, milliseconds.
    pub head_timeout_ms: u64,
    /// Body of one HTTP request, bytes.
    pub body_bytes_max: usize,
    /// How long a client may take to send a body, milliseconds.
    pub body_timeout_ms: u64,
    /// Tool calls that run at once.
    pub calls_in_flight_max: usize,
    /// Tool calls of one API key that run at once.
    pub calls_in_flight_per_key_max: usize,
    /// Tool calls of one API key in a minute, after its burst.
    pub calls_per_minute: u32,
    /// Tool calls that an API key may make at once before its rate counts.
    pub calls_burst: u32,
    /// From receipt to the end of a call, milliseconds.
    pub call_timeout_ms: u64,
    /// Arguments over this size are recorded as digest and size only, bytes.
    pub recorded_arguments_bytes_max: usize,
    /// Results over this size are recorded as digest and size only, also at level `full`, bytes.
    pub recorded_result_bytes_max: usize,
    /// Sessions of MCP 2025-11-25 in all.
    pub sessions_max: usize,
    /// Sessions of MCP 2025-11-25 of one API key; one more ends the oldest idle one.
    pub sessions_per_key_max: usize,
    /// Idle life of a session, milliseconds.
    pub session_idle_ms: u64,
    /// How often sessions that are idle for too long, or whose key expired, are looked for, milliseconds.
    pub session_sweep_ms: u64,
    /// Calls of one stdio process whose answers it has not taken; its further messages wait.
    pub stdio_in_flight_max: usize,
    /// How long running calls may go on after SIGTERM before they are cancelled, milliseconds.
    pub shutdown_grace_ms: u64,
    /// Refusals of callers nobody knows that have events of their own, of one network and minute; more are counted.
    pub refusals_per_source_per_minute: u32,
    /// The same over all networks.
    pub refusals_per_minute: u32,
    /// Networks that are told apart; all further ones are as one.
    pub refusal_sources_max: usize,
    /// The longest time that one event of counted refusals stands for, milliseconds.
    pub refusal_window_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 2_048,
            head_bytes_max: 64 * 1024,
            head_timeout_ms: 60_000,
            body_bytes_max: 1024 * 1024,
            body_timeout_ms: 30_000,
            calls_in_flight_max: 256,
            calls_in_flight_per_key_max: 128,
            calls_per_minute: 240,
            calls_burst: 60,
            call_timeout_ms: 30_000,
            recorded_arguments_bytes_max: 64 * 1024,
            recorded_result_bytes_max: 32 * 1024,
            sessions_max: 10_000,
            sessions_per_key_max: 1_000,
            session_idle_ms: 30 * 60 * 1_000,
            session_sweep_ms: 1_000,
            stdio_in_flight_max: 64,
            shutdown_grace_ms: 2_000,
            refusals_per_source_per_minute: 20,
            refusals_per_minute: 300,
            refusal_sources_max: 4_096,
            refusal_window_ms: 10_000,
        }
    }
}

/// What is taken out of the record beside what always is, and how much of a call is kept: `docs/redaction.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Redaction {
    /// More names of secrets: each fits every name that contains it, without case, `_`, `-`, spaces and dots.
    pub key_patterns: Vec<String>,
    /// Whole names whose values are kept although they look like secrets' names.
    pub keys_allowed: Vec<String>,
    /// More forms of secrets: regular expressions by the name that their markers carry.
    pub value_patterns: BTreeMap<String, String>,
    /// Whether string literals in SQL statements are secrets, for every tool.
    pub sql_literals: bool,
    /// Globs over tools whose statements have secret literals.
    pub sql_literals_tools: Vec<String>,
    /// How much of a call is kept when no glob of `levels` fits its tool.
    pub level_default: ArgumentsLevel,
    /// How much of a call is kept, by glob over tools. Of several that fit, the one that keeps least holds.
    pub levels: BTreeMap<String, ArgumentsLevel>,
}

impl Default for Redaction {
    fn default() -> Self {
        Self {
            key_patterns: Vec::new(),
            keys_allowed: Vec::new(),
            value_patterns: BTreeMap::new(),
            sql_literals: false,
            sql_literals_tools: Vec::new(),
            level_default: ArgumentsLevel::Arguments,
            levels: BTreeMap::new(),
        }
    }
}

impl Redaction {
    /// For the redactor.
    #[must_use]
    pub fn rules(&self) -> crate::redact::Rules {
        crate::redact::Rules {
            key_patterns: self.key_patterns.clone(),
            keys_allowed: self.keys_allowed.clone(),
            value_patterns: self.value_patterns.clone(),
        }
    }
}

/// What a persona may reach. Deny wins; what nothing allows is denied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PersonaConfig {
    /// The roles that lead to it; a role may stand in one persona only.
    pub roles: Vec<String>,
    /// Globs over tool names.
    pub tools: Rules,
    /// Globs over connection names.
    pub connections: Rules,
    /// Whether it may read the audit.
    pub reads_audit: bool,
}

/// Globs: `*` any run of characters, `?` one, `[ab]` a choice.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// What is allowed.
    pub allow: Vec<String>,
    /// What is denied all the same.
    pub deny: Vec<String>,
}

/// One downstream system under one credential.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Connection {
    /// A Postgres database, reached read-only.
    Postgres(PostgresConnection),
}

/// A Postgres database. Give it a role of its own without superuser and with SELECT only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostgresConnection {
    /// `postgres://role:password@host/database`; take the password from the environment: `${VAR}`.
    pub url: String,
    /// What an agent finds there.
    #[serde(default)]
    pub description: String,
    /// Rows of one answer at most.
    #[serde(default = "PostgresConnection::rows_max_default")]
    pub rows_max: u32,
    /// JSON bytes of one answer's rows at most.
    #[serde(default = "PostgresConnection::bytes_max_default")]
    pub bytes_max: u64,
    /// The longest a statement may run, milliseconds.
    #[serde(default = "PostgresConnection::timeout_ms_default")]
    pub timeout_ms: u64,
    /// Statements that run at once.
    #[serde(default = "PostgresConnection::connections_max_default")]
    pub connections_max: u32,
    /// How long what was read of its tables and columns is taken for true, milliseconds.
    #[serde(default = "PostgresConnection::catalog_ttl_ms_default")]
    pub catalog_ttl_ms: u64,
    /// Tables that are listed and searched at most, the first by name.
    #[serde(default = "PostgresConnection::catalog_tables_max_default")]
    pub catalog_tables_max: u32,
    /// The same of columns, over all its tables.
    #[serde(default = "PostgresConnection::catalog_columns_max_default")]
    pub catalog_columns_max: u32,
}

impl PostgresConnection {
    /// A connection to `url` with the default limits.
    #[must_use]
    pub fn new(url: String, description: String) -> Self {
        Self {
            url,
            description,
            rows_max: Self::rows_max_default(),
            bytes_max: Self::bytes_max_default(),
            timeout_ms: Self::timeout_ms_default(),
            connections_max: Self::connections_max_default(),
            catalog_ttl_ms: Self::catalog_ttl_ms_default(),
            catalog_tables_max: Self::catalog_tables_max_default(),
            catalog_columns_max: Self::catalog_columns_max_default(),
        }
    }

    const fn rows_max_default() -> u32 {
        1_000
    }

    const fn bytes_max_default() -> u64 {
        1024 * 1024
    }

    const fn timeout_ms_default() -> u64 {
        15_000
    }

    const fn connections_max_default() -> u32 {
        8
    }

    const fn catalog_ttl_ms_default() -> u64 {
        60_000
    }

    const fn catalog_tables_max_default() -> u32 {
        2_000
    }

    const fn catalog_columns_max_default() -> u32 {
        50_000
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tenant: "default".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            metrics_listen: SocketAddr::from(([127, 0, 0, 1], 9090)),
            http: Http::default(),
            log: Log::default(),
            database: Database::default(),
            projection: Projection::default(),
            limits: Limits::default(),
            redaction: Redaction::default(),
            personas: default_personas(),
            connections: BTreeMap::new(),
        }
    }
}

/// `admin` reaches everything, `analyst` the data tools, `auditor` the audit and nothing that touches data.
#[must_use]
pub fn default_personas() -> BTreeMap<String, PersonaConfig> {
    let everything = || Rules { allow: vec!["*".into()], deny: vec![] };
    let only =
        |names: &[&str]| Rules { allow: names.iter().map(|&name| name.into()).collect(), deny: vec![] };
    let persona = |role: &str, tools, connections, reads_audit| {
        (role.to_owned(), PersonaConfig { roles: vec![role.to_owned()], tools, connections, reads_audit })
    };
    BTreeMap::from([
        persona("admin", everything(), everything(), true),
        persona(
            "analyst",
            only(&["platform_info", "list_connections", "search", "fetch", "sql_*"]),
            everything(),
            false,
        ),
        persona("auditor", only(&["platform_info", "audit_*"]), Rules::default(), true),
    ])
}

impl Config {
    /// How much of calls the record keeps.
    ///
    /// # Errors
    /// [`crate::dispatch::GlobError`] names the bad glob.
    pub fn recording(&self) -> Result<crate::dispatch::Recording, crate::dispatch::GlobError> {
        let Redaction { sql_literals, sql_literals_tools, level_default, levels, .. } = &self.redaction;
        let levels = levels.iter().map(|(glob, level)| (glob.as_str(), *level));
        let all = sql_literals.then_some("*");
        crate::dispatch::Recording::new(*level_default, levels, self.limits.recorded_result_bytes_max)?
            .with_sql_literals(sql_literals_tools.iter().map(String::as_str).chain(all))
    }

    /// The personas, compiled.
    ///
    /// # Errors
    /// [`PersonaError`] names the bad glob.
    pub fn personas(&self) -> Result<Personas, PersonaError> {
        let compiled = self.personas.iter().map(|(name, persona)| {
            let globs = |rules: &Rules| Globs::new(name, &rules.allow, &rules.deny);
            let compiled = Persona {
                name: name.clone(),
                tools: globs(&persona.tools)?,
                connections: globs(&persona.connections)?,
                reads_audit: persona.reads_audit,
            };
            Ok((compiled, persona.roles.clone()))
        });
        Ok(Personas::new(compiled.collect::<Result<Vec<_>, PersonaError>>()?))
    }
}

impl Limits {
    /// For the HTTP listener.
    #[must_use]
    pub fn listener(&self) -> crate::http::ListenerLimits {
        crate::http::ListenerLimits {
            connections_max: self.connections_max,
            head_timeout: Duration::from_millis(self.head_timeout_ms),
            head_bytes_max: self.head_bytes_max,
            ..crate::http::ListenerLimits::default()
        }
    }

    /// For dispatch.
    #[must_use]
    pub fn dispatch(&self) -> crate::dispatch::Limits {
        crate::dispatch::Limits {
            calls_in_flight_max: self.calls_in_flight_max,
            calls_in_flight_per_key_max: self.calls_in_flight_per_key_max,
            calls_per_minute: self.calls_per_minute,
            calls_burst: self.calls_burst,
            call_timeout: Duration::from_millis(self.call_timeout_ms),
            recorded_arguments_bytes_max: self.recorded_arguments_bytes_max,
        }
    }

    /// For the gate.
    #[must_use]
    pub fn flood(&self) -> crate::auth::FloodLimits {
        crate::auth::FloodLimits {
            per_source_per_minute: self.refusals_per_source_per_minute,
            per_minute: self.refusals_per_minute,
            sources_max: self.refusal_sources_max,
            window: Duration::from_millis(self.refusal_window_ms),
        }
    }
}
