//! Calls tools as dispatch does, without a log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use annals::auth::{Globs, Persona, Principal};
use annals::base::{SystemClock, uuid_v7};
use annals::db::{Postgres, Role};
use annals::event::AuthMethod;
use annals::tools::{CallContext, ConnectionLimits, Connections, Prepared, Tool, ToolError};
use serde_json::Value;
use serde_json::value::RawValue;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio_util::sync::CancellationToken;

/// The private server's superuser.
const SUPERUSER: &str = "postgres";

/// A persona that reaches the connections which `globs` allow.
pub(crate) fn persona(connections: &[&str]) -> Persona {
    let globs = |allow: &[&str]| {
        Globs::new("analyst", &allow.iter().map(|&glob| glob.to_owned()).collect::<Vec<_>>(), &[]).unwrap()
    };
    Persona {
        name: "analyst".into(),
        tools: globs(&["*_info", "list_connections", "sql_*"]),
        connections: globs(connections),
        reads_audit: false,
    }
}

/// A call's context that ends with `cancel`.
pub(crate) fn context(persona: Persona, cancel: CancellationToken) -> CallContext {
    let principal = Principal {
        subject_id: "subject".into(),
        user_name: "ada".into(),
        auth_method: AuthMethod::ApiKey,
        key_id: None,
        roles: vec!["analyst".into()],
        no_limit: false,
    };
    CallContext {
        call_id: uuid_v7(annals::base::Timestamp::default()),
        principal: Arc::new(principal),
        persona: Arc::new(persona),
        client: Arc::default(),
        cancel,
    }
}

/// Reads the arguments and settles the connection.
pub(crate) fn prepare(
    tool: &dyn Tool,
    arguments: &Value,
    persona: &Persona,
) -> Result<Box<dyn Prepared>, ToolError> {
    let raw = RawValue::from_string(arguments.to_string()).unwrap();
    let mut prepared = tool.parse(&raw)?;
    prepared.resolve(persona)?;
    Ok(prepared)
}

/// One call, as text of its JSON.
pub(crate) async fn call_text(tool: &dyn Tool, arguments: Value) -> Result<String, ToolError> {
    let persona = persona(&["*"]);
    let prepared = prepare(tool, &arguments, &persona)?;
    let result = prepared.run(context(persona, CancellationToken::new())).await?;
    Ok(String::from_utf8(result.structured.to_vec()).unwrap())
}

/// One call.
pub(crate) async fn call(tool: &dyn Tool, arguments: Value) -> Result<Value, ToolError> {
    Ok(serde_json::from_str(&call_text(tool, arguments).await?).unwrap())
}

/// Connections with none in it.
pub(crate) fn no_connections() -> Arc<Connections> {
    Arc::new(Connections::new(&BTreeMap::new(), Arc::new(SystemClock)).unwrap())
}

/// Connections with the sample database as its reader.
pub(crate) fn sample_connections(postgres: &Postgres, limits: ConnectionLimits) -> Arc<Connections> {
    let connections = no_connections();
    connections.add("sample", "Order to cash", postgres.connect_options(Role::SampleReader), limits);
    connections
}

/// How the private server's superuser connects to the sample database.
pub(crate) fn superuser(postgres: &Postgres, data_dir: &std::path::Path) -> PgConnectOptions {
    let password = std::fs::read_to_string(data_dir.join("keys").join(SUPERUSER)).unwrap();
    postgres.connect_options(Role::SampleOwner).username(SUPERUSER).password(password.trim())
}

/// Waits until `expected` statements of our tools with `text` in them run on the server that `watcher` sees.
pub(crate) async fn await_statements(watcher: &mut PgConnection, text: &str, expected: i64) {
    let mut seen = -1;
    for _ in 0..500 {
        seen = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE application_name = 'annals sql_query' AND state = 'active' AND query LIKE '%' || $1 || '%'",
        )
        .bind(text)
        .fetch_one(&mut *watcher)
        .await
        .unwrap();
        if seen == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(seen, expected, "statements that run");
}
