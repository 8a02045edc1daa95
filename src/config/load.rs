//! From a file's text to a checked config.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Config, Connection, ExpandError, expand};
use crate::auth::PersonaError;
use crate::dispatch::Recording;
use crate::event::ArgumentsLevel;
use crate::redact::{DigestKey, Redactor};

/// The config cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {cause}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A variable is missing.
    #[error(transparent)]
    Expand(#[from] ExpandError),
    /// Not the YAML of a config; the text has line, column and the unknown key.
    #[error("{0}")]
    Yaml(String),
    /// A value that contradicts another or makes no sense.
    #[error("{key}: {cause}")]
    Value {
        /// The key's path.
        key: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A bad glob.
    #[error(transparent)]
    Persona(#[from] PersonaError),
}

/// Reads and checks `path`.
///
/// # Errors
/// [`ConfigError`] says what to change.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|cause| ConfigError::Read { path: path.to_owned(), cause })?;
    parse(&text, environment)
}

#[expect(clippy::disallowed_methods, reason = "config is where the environment is read")]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Checks a config's text; `get` gives the environment.
///
/// # Errors
/// [`ConfigError`] says what to change.
pub fn parse(text: &str, get: impl Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
    let text = expand(text, get)?;
    let mut config: Config = if text.trim().is_empty() {
        Config::default()
    } else {
        // No excerpt of the text: it holds what the environment gave, passwords among it.
        let options = serde_saphyr::options! { with_snippet: false };
        serde_saphyr::from_str_with_options(&text, options)
            .map_err(|error| ConfigError::Yaml(error.to_string()))?
    };
    add_default_personas(&mut config);
    check(&config)?;
    Ok(config)
}

/// The personas that come with Annals stand beside those of the file: a name of the file replaces one, and a role that
/// the file gives to another persona leaves it.
fn add_default_personas(config: &mut Config) {
    let taken: BTreeSet<String> =
        config.personas.values().flat_map(|persona| persona.roles.clone()).collect();
    for (name, mut persona) in super::default_personas() {
        persona.roles.retain(|role| !taken.contains(role));
        config.personas.entry(name).or_insert(persona);
    }
}

fn check(config: &Config) -> Result<(), ConfigError> {
    let require = |holds: bool, key: &str, cause: &str| {
        if holds { Ok(()) } else { Err(ConfigError::Value { key: key.to_owned(), cause: cause.to_owned() }) }
    };
    let tenant_ok =
        !config.tenant.is_empty() && config.tenant.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    require(tenant_ok, "tenant", "letters, digits and - only")?;
    require(config.log.segment_bytes >= 1024 * 1024, "log.segment_bytes", "at least 1 MiB")?;
    require(config.log.segment_bytes <= 1 << 30, "log.segment_bytes", "at most 1 GiB")?;
    require(
        config.log.in_flight_bytes_max <= config.log.segment_bytes,
        "log.in_flight_bytes_max",
        "at most log.segment_bytes: what is in flight must fit the room allocated ahead",
    )?;
    require(config.log.in_flight_bytes_max >= 1024 * 1024, "log.in_flight_bytes_max", "at least 1 MiB")?;
    require(
        config.log.in_flight_records_max >= 2,
        "log.in_flight_records_max",
        "at least 2: an intent and its outcome",
    )?;
    require(config.log.checkpoint_interval_ms >= 100, "log.checkpoint_interval_ms", "at least 100")?;
    require(config.projection.loops >= 1, "projection.loops", "at least 1")?;
    require(config.projection.batch_records_max >= 1, "projection.batch_records_max", "at least 1")?;
    require(
        config.projection.lease_renew_ms.saturating_mul(2) <= config.projection.lease_ms,
        "projection.lease_renew_ms",
        "at most half of projection.lease_ms",
    )?;
    require(
        (100..=20_000).contains(&config.projection.closure_interval_ms),
        "projection.closure_interval_ms",
        "100 to 20000: a call is closed within 30 s",
    )?;
    check_retention(config)?;
    check_refusals(&config.limits)?;
    check_rates(&config.limits)?;
    check_redaction(config)?;
    require(config.limits.calls_in_flight_max >= 1, "limits.calls_in_flight_max", "at least 1")?;
    require(config.limits.session_sweep_ms >= 10, "limits.session_sweep_ms", "at least 10")?;
    require(
        (1..=4_096).contains(&config.limits.stdio_in_flight_max),
        "limits.stdio_in_flight_max",
        "1 to 4096",
    )?;
    require(config.limits.connections_max >= 1, "limits.connections_max", "at least 1")?;
    require(config.limits.head_bytes_max >= 8 * 1024, "limits.head_bytes_max", "at least 8192")?;
    require(config.limits.body_bytes_max >= 1024, "limits.body_bytes_max", "at least 1024")?;
    require(
        config.limits.recorded_arguments_bytes_max <= 96 * 1024,
        "limits.recorded_arguments_bytes_max",
        "at most 98304: an event has 256 KiB and its text is escaped twice",
    )?;
    require(
        config.limits.recorded_result_bytes_max <= 64 * 1024,
        "limits.recorded_result_bytes_max",
        "at most 65536: an event has 256 KiB and its text is escaped twice",
    )?;
    require(
        config.limits.shutdown_grace_ms <= 3_000,
        "limits.shutdown_grace_ms",
        "at most 3000: the whole exit takes at most 8 s",
    )?;
    require(config.database.pool_connections_max >= 4, "database.pool_connections_max", "at least 4")?;
    check_connections(&config.connections)?;
    check_http(&config.http)?;
    roles_are_unique(config)?;
    config.personas()?;
    Ok(())
}

fn check_connections(connections: &BTreeMap<String, Connection>) -> Result<(), ConfigError> {
    let require = |holds: bool, key: &str, cause: &str| {
        if holds { Ok(()) } else { Err(ConfigError::Value { key: key.to_owned(), cause: cause.to_owned() }) }
    };
    for (name, Connection::Postgres(connection)) in connections {
        let at_least_one = [
            ("rows_max", u64::from(connection.rows_max)),
            ("bytes_max", connection.bytes_max),
            ("timeout_ms", connection.timeout_ms),
            ("connections_max", u64::from(connection.connections_max)),
            ("catalog_ttl_ms", connection.catalog_ttl_ms),
            ("catalog_tables_max", u64::from(connection.catalog_tables_max)),
            ("catalog_columns_max", u64::from(connection.catalog_columns_max)),
        ];
        for (key, value) in at_least_one {
            require(value >= 1, &format!("connections.{name}.{key}"), "at least 1")?;
        }
        let key = format!("connections.{name}.timeout_ms");
        require(connection.timeout_ms <= 86_400_000, &key, "at most 86400000, a day")?;
    }
    Ok(())
}

fn check_http(http: &super::Http) -> Result<(), ConfigError> {
    let require = |holds: bool, key: &str, cause: &str| {
        if holds { Ok(()) } else { Err(ConfigError::Value { key: key.to_owned(), cause: cause.to_owned() }) }
    };
    for host in &http.allowed_hosts {
        let names_a_host = !host.is_empty() && !host.contains(['/', '@', ' ']) && !has_port(host);
        require(
            names_a_host,
            "http.allowed_hosts",
            "each a host name or address alone, without scheme and port",
        )?;
    }
    for origin in &http.allowed_origins {
        require(
            is_origin(origin),
            "http.allowed_origins",
            "each like https://host or http://host:8080, nothing behind",
        )?;
    }
    for proxy in &http.trusted_proxies {
        require(
            crate::http::network(proxy).is_some_and(|net| net.prefix_len() > 0),
            "http.trusted_proxies",
            "each an address like 10.0.0.7 or a block like 10.0.0.0/8 or 2001:db8::/32, and none that is everybody",
        )?;
    }
    Ok(())
}

/// Nobody could call anything.
fn check_rates(limits: &super::Limits) -> Result<(), ConfigError> {
    let rates = [
        ("calls_in_flight_per_key_max", limits.calls_in_flight_per_key_max == 0),
        ("calls_per_minute", limits.calls_per_minute == 0),
        ("calls_burst", limits.calls_burst == 0),
    ];
    match rates.into_iter().find(|(_, is_none)| *is_none) {
        Some((key, _)) => {
            Err(ConfigError::Value { key: format!("limits.{key}"), cause: "at least 1".to_owned() })
        }
        None => Ok(()),
    }
}

/// What a flood may cost must have a bound, and none of the refusals may wait long for its event.
fn check_refusals(limits: &super::Limits) -> Result<(), ConfigError> {
    let value =
        |key: &str, cause: &str| Err(ConfigError::Value { key: key.to_owned(), cause: cause.to_owned() });
    if limits.refusals_per_minute > 100_000 {
        return value("limits.refusals_per_minute", "at most 100000");
    }
    if !(1..=1_000_000).contains(&limits.refusal_sources_max) {
        return value("limits.refusal_sources_max", "1 to 1000000");
    }
    if !(100..=10_000).contains(&limits.refusal_window_ms) {
        return value("limits.refusal_window_ms", "100 to 10000: a crash may lose the counts of that time");
    }
    Ok(())
}

fn check_redaction(config: &Config) -> Result<(), ConfigError> {
    let value = |key: String, cause: String| ConfigError::Value { key, cause };
    Redactor::new(DigestKey::random(), &config.redaction.rules())
        .map_err(|error| value(format!("redaction.{}", error.key), error.to_string()))?;
    for glob in config.redaction.levels.keys() {
        Recording::new(ArgumentsLevel::Arguments, [(glob.as_str(), ArgumentsLevel::Full)], 0)
            .map_err(|error| value("redaction.levels".into(), error.to_string()))?;
    }
    config.recording().map_err(|error| value("redaction.sql_literals_tools".into(), error.to_string()))?;
    Ok(())
}

/// A day in which nothing can be rebuilt would be a day in which a lost store is lost for good.
fn check_retention(config: &Config) -> Result<(), ConfigError> {
    let value = |key: &str, cause: String| Err(ConfigError::Value { key: key.to_owned(), cause });
    let (log, rows) = (config.log.retention_days, config.projection.retention_days);
    for (key, days) in [("log.retention_days", log), ("projection.retention_days", rows)] {
        if days.is_some_and(|days| !(1..=36_500).contains(&days)) {
            return value(key, "1 to 36500 days; without the key everything is kept".into());
        }
    }
    if config.log.retention_interval_ms < 100 {
        return value("log.retention_interval_ms", "at least 100".into());
    }
    match (log, rows) {
        (Some(log), None) => value(
            "log.retention_days",
            format!(
                "{log} days is shorter than projection.retention_days, which is not set and so keeps audit rows for \
                 ever: set that to at most {log}, or keep the log for ever too"
            ),
        ),
        (Some(log), Some(rows)) if log < rows => value(
            "log.retention_days",
            format!(
                "{log} days is shorter than projection.retention_days, {rows} days: rows would outlive the records that \
                 prove them and that rebuild them; set it to at least {rows}"
            ),
        ),
        _ => Ok(()),
    }
}

fn has_port(host: &str) -> bool {
    !host.starts_with('[') && host.matches(':').count() == 1 || host.contains("]:")
}

fn is_origin(origin: &str) -> bool {
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '@', ' ', '?', '#']))
}

fn roles_are_unique(config: &Config) -> Result<(), ConfigError> {
    let mut seen = BTreeMap::new();
    for (name, persona) in &config.personas {
        for role in &persona.roles {
            if let Some(other) = seen.insert(role, name) {
                return Err(ConfigError::Value {
                    key: format!("personas.{name}.roles"),
                    cause: format!("role {role:?} already leads to persona {other:?}"),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse("", none).unwrap(), Config::default());
        assert_eq!(parse("# nothing\ntenant: default\n", none).unwrap(), Config::default());
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error = parse("tenant: a\nlimits:\n  bodybytes_max: 5\n", none).unwrap_err().to_string();
        assert!(error.contains("bodybytes_max") && error.contains('3'), "{error}");
    }

    #[test]
    fn an_error_shows_no_value_of_the_environment() {
        for text in [
            "connections:\n  sales:\n    url: postgres://r:${PW}@h/d\n    kind: postgres\n    rows: 1\n",
            "connections: {s: {kind: mysql, url: 'postgres://r:${PW}@h/d'}}",
            "tenant: a\nlog: '${PW}\n",
            "tenant: ${PW}\ntenant: b\n",
        ] {
            let error = parse(text, |name| (name == "PW").then(|| "hunter2".into())).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert!(error.to_string().contains("line"), "{error}");
        }
    }

    #[test]
    fn personas_of_the_file_stand_beside_the_default_ones() {
        let text = "personas:\n  support: {roles: [support, auditor], tools: {allow: [platform_info]}}\n  admin: {roles: [root]}";
        let config = parse(text, none).unwrap();
        let roles = |persona: &str| config.personas[persona].roles.clone();
        assert_eq!(config.personas.keys().collect::<Vec<_>>(), ["admin", "analyst", "auditor", "support"]);
        assert_eq!(roles("support"), ["support", "auditor"]);
        assert_eq!((roles("admin"), config.personas["admin"].reads_audit), (vec!["root".to_owned()], false));
        assert_eq!((roles("analyst"), roles("auditor")), (vec!["analyst".to_owned()], vec![]));
    }

    /// The YAML of `docs/config.md` is a config.
    #[test]
    fn the_documented_config_is_one() {
        let text = include_str!("../../docs/config.md");
        let yaml = text.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
        let config = parse(yaml, |name| (name == "SALES_PASSWORD").then(|| "secret".into())).unwrap();
        assert!(config.personas["support"].tools.allow.contains(&"sql_query".to_owned()));
        assert!(config.connections.contains_key("sales"));
        let defaults = Config::default();
        assert_eq!(
            (config.limits, config.log, config.projection),
            (defaults.limits, defaults.log, defaults.projection)
        );
    }

    #[test]
    fn contradictions_are_refused_by_key() {
        for (text, key) in [
            ("tenant: 'a b'", "tenant"),
            ("log: {segment_bytes: 5}", "log.segment_bytes"),
            ("projection: {lease_ms: 1000, lease_renew_ms: 900}", "projection.lease_renew_ms"),
            ("projection: {closure_interval_ms: 99}", "projection.closure_interval_ms"),
            ("projection: {closure_interval_ms: 20001}", "projection.closure_interval_ms"),
            ("personas: {a: {roles: [x]}, b: {roles: [x]}}", "personas.b.roles"),
            ("log: {retention_days: 0}", "log.retention_days"),
            ("limits: {calls_in_flight_per_key_max: 0}", "limits.calls_in_flight_per_key_max"),
            ("limits: {calls_per_minute: 0}", "limits.calls_per_minute"),
            ("limits: {calls_burst: 0}", "limits.calls_burst"),
            ("limits: {refusals_per_minute: 100001}", "limits.refusals_per_minute"),
            ("limits: {refusal_sources_max: 0}", "limits.refusal_sources_max"),
            ("limits: {refusal_window_ms: 10001}", "limits.refusal_window_ms"),
            ("projection: {retention_days: 36501}", "projection.retention_days"),
            ("log: {retention_interval_ms: 99}", "log.retention_interval_ms"),
            ("limits: {session_sweep_ms: 9}", "limits.session_sweep_ms"),
            ("limits: {stdio_in_flight_max: 0}", "limits.stdio_in_flight_max"),
            ("limits: {shutdown_grace_ms: 60000}", "limits.shutdown_grace_ms"),
            ("limits: {recorded_result_bytes_max: 65537}", "limits.recorded_result_bytes_max"),
            ("redaction: {key_patterns: ['-']}", "redaction.key_patterns"),
            ("redaction: {keys_allowed: ['']}", "redaction.keys_allowed"),
            ("redaction: {value_patterns: {patient: 'PAT-('}}", "redaction.value_patterns"),
            ("redaction: {levels: {'a[': full}}", "redaction.levels"),
            ("redaction: {sql_literals_tools: ['']}", "redaction.sql_literals_tools"),
            ("http: {allowed_hosts: ['annals.example:8080']}", "http.allowed_hosts"),
            ("http: {allowed_hosts: ['https://annals.example']}", "http.allowed_hosts"),
            ("http: {allowed_origins: [annals.example]}", "http.allowed_origins"),
            ("http: {allowed_origins: ['https://annals.example/']}", "http.allowed_origins"),
            ("http: {trusted_proxies: ['10.0.0.0/33']}", "http.trusted_proxies"),
            ("http: {trusted_proxies: ['::/0']}", "http.trusted_proxies"),
            ("http: {trusted_proxies: [proxy.example]}", "http.trusted_proxies"),
            ("connections: {c: {kind: postgres, url: u, rows_max: 0}}", "connections.c.rows_max"),
            ("connections: {c: {kind: postgres, url: u, bytes_max: 0}}", "connections.c.bytes_max"),
            ("connections: {c: {kind: postgres, url: u, catalog_ttl_ms: 0}}", "connections.c.catalog_ttl_ms"),
            (
                "connections: {c: {kind: postgres, url: u, catalog_tables_max: 0}}",
                "connections.c.catalog_tables_max",
            ),
            (
                "connections: {c: {kind: postgres, url: u, catalog_columns_max: 0}}",
                "connections.c.catalog_columns_max",
            ),
            ("connections: {c: {kind: postgres, url: u, timeout_ms: 0}}", "connections.c.timeout_ms"),
            (
                "connections: {c: {kind: postgres, url: u, timeout_ms: 4294967296}}",
                "connections.c.timeout_ms",
            ),
            (
                "connections: {c: {kind: postgres, url: u, connections_max: 0}}",
                "connections.c.connections_max",
            ),
        ] {
            match parse(text, none).unwrap_err() {
                ConfigError::Value { key: found, .. } => assert_eq!(found, key),
                other => panic!("{text}: {other}"),
            }
        }
    }

    #[test]
    fn a_log_that_is_kept_shorter_than_its_rows_is_refused() {
        let with = |log: &str, rows: &str| {
            let text = format!("log: {{{log}}}\nprojection: {{{rows}}}");
            parse(&text, none).map(|config| (config.log.retention_days, config.projection.retention_days))
        };
        let refused = |log, rows| match with(log, rows).unwrap_err() {
            ConfigError::Value { key, cause } => {
                assert_eq!(key, "log.retention_days");
                cause
            }
            other => panic!("{other}"),
        };
        // Rows that are kept for ever need a log that is.
        assert!(
            refused("retention_days: 400", "").contains("keeps audit rows for ever: set that to at most 400")
        );
        assert!(refused("retention_days: 29", "retention_days: 30").contains("set it to at least 30"));
        assert_eq!(with("retention_days: 30", "retention_days: 30").unwrap(), (Some(30), Some(30)));
        assert_eq!(with("", "retention_days: 30").unwrap(), (None, Some(30)));
        assert_eq!(with("", "").unwrap(), (None, None));
    }

    #[test]
    fn a_connection_takes_its_password_from_the_environment() {
        let text = "connections:\n  sales:\n    kind: postgres\n    url: postgres://r:${PW}@h/d\n";
        let config = parse(text, |name| (name == "PW").then(|| "s3".into())).unwrap();
        let super::super::Connection::Postgres(sales) = &config.connections["sales"];
        assert_eq!((sales.url.as_str(), sales.rows_max), ("postgres://r:s3@h/d", 1_000));
    }

    #[test]
    fn the_analyst_finds_and_reads_data_and_the_auditor_touches_none() {
        let personas = super::super::Config::default().personas().unwrap();
        for (role, reaches) in [("admin", true), ("analyst", true), ("auditor", false)] {
            let persona = personas.of(&[role.to_owned()]).unwrap();
            for tool in ["search", "fetch", "sql_tables", "sql_describe", "sql_query", "list_connections"] {
                assert_eq!(persona.tools.allows(tool), reaches, "{role}: {tool}");
            }
            assert_eq!(persona.connections.allows("sales"), reaches, "{role}");
            assert!(persona.tools.allows("platform_info"), "{role}");
        }
    }
}
