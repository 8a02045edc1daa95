//! `platform_info` and `list_connections`, and how `sql_query` finds its connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use annals::auth::Persona;
use annals::base::{Category, SystemClock};
use annals::config;
use annals::dispatch::Limits;
use annals::tools::{About, ConnectionError, ConnectionLimits, Connections, Toolbox, toolbox};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::caller::{context, no_connections, persona, prepare};

fn about() -> About {
    About {
        name: "annals".into(),
        version: "1.2.3".into(),
        description: "Tools on record.".into(),
        instructions: "Ask platform_info first.".into(),
        ack: "fsync".into(),
        limits: Limits { call_timeout: Duration::from_secs(30), ..Limits::default() },
    }
}

/// Three connections, none of which is ever opened.
fn tools() -> Toolbox {
    let connections = no_connections();
    for name in ["support", "sales", "secret"] {
        connections.declare(name, &format!("The {name} data"), ConnectionLimits::default());
    }
    toolbox(connections, about(), None)
}

async fn text(tools: &Toolbox, name: &str, persona: Persona) -> String {
    let prepared = prepare(tools.get(name).unwrap().as_ref(), &json!({}), &persona).unwrap();
    let result = prepared.run(context(persona, CancellationToken::new())).await.unwrap();
    String::from_utf8(result.structured.to_vec()).unwrap()
}

#[tokio::test]
async fn connections_are_listed_in_order_and_others_only_counted() {
    let tools = tools();
    let limits = json!({"rows_max": 1000, "bytes_max": 1_048_576, "timeout_ms": 15000});
    let text_of_two = text(&tools, "list_connections", persona(&["s[au]*"])).await;
    assert_eq!(
        serde_json::from_str::<Value>(&text_of_two).unwrap(),
        json!({
            "connections": [
                {"name": "sales", "kind": "postgres", "description": "The sales data", "limits": limits},
                {"name": "support", "kind": "postgres", "description": "The support data", "limits": limits}
            ],
            "total": 2,
            "withheld": 1
        })
    );
    assert_eq!(text_of_two, text(&tools, "list_connections", persona(&["s[au]*"])).await);
    assert!(!text_of_two.contains("secret"));
}

#[tokio::test]
async fn the_platform_tells_who_asks_what_is_theirs() {
    let tools = tools();
    let told = text(&tools, "platform_info", persona(&["sales"])).await;
    let info: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&info["user"], &info["persona"], &info["roles"], &info["version"]),
        (&json!("ada"), &json!("analyst"), &json!(["analyst"]), &json!("1.2.3"))
    );
    let names = ["list_connections", "platform_info", "sql_describe", "sql_query", "sql_tables"];
    let allowed = json!({"allowed": names, "withheld": 2});
    assert_eq!(info["tools"], allowed);
    assert_eq!(
        (&info["connections"]["allowed"][0]["name"], &info["connections"]["withheld"]),
        (&json!("sales"), &json!(2))
    );
    assert_eq!(
        (&info["audit"]["ack"], &info["limits"]["call_timeout_ms"]),
        (&json!("fsync"), &json!(30_000))
    );
    assert_eq!(info["instructions"], json!("Ask platform_info first."));
    assert!(!told.contains("secret") && !told.contains("support"));
    assert_eq!(told, text(&tools, "platform_info", persona(&["sales"])).await);
    let nobody: Value =
        serde_json::from_str(&text(&tools, "platform_info", Persona::default()).await).unwrap();
    assert_eq!(nobody["tools"], json!({"allowed": [], "withheld": 7}));
}

#[tokio::test]
async fn results_follow_their_schemas_and_definitions_are_stable() {
    let tools = tools();
    for tool in tools.iter() {
        let definition: Value = serde_json::from_str(tool.definition().json.get()).unwrap();
        let schema = jsonschema::validator_for(&definition["outputSchema"]).unwrap();
        assert!(jsonschema::validator_for(&definition["inputSchema"]).is_ok());
        assert_eq!(definition["annotations"]["readOnlyHint"], json!(true));
        let has_purpose = definition["inputSchema"]["properties"].get("purpose").is_some();
        let is_platform = ["list_connections", "platform_info"].contains(&tool.definition().name);
        assert_eq!(has_purpose, !is_platform);
        if is_platform {
            let result: Value =
                serde_json::from_str(&text(&tools, tool.definition().name, persona(&["*"])).await).unwrap();
            assert!(schema.is_valid(&result), "{result}");
        }
    }
    let names: Vec<_> = tools.iter().map(|tool| tool.definition().name).collect();
    assert_eq!(
        names,
        ["fetch", "list_connections", "platform_info", "search", "sql_describe", "sql_query", "sql_tables"]
    );
}

#[tokio::test]
async fn a_query_finds_its_connection_or_says_which_there_are() {
    let tools = tools();
    let query = tools.get("sql_query").unwrap().as_ref();
    let resolved = |arguments: Value, persona: &Persona| {
        prepare(query, &arguments, persona).map(|prepared| prepared.connection().unwrap().to_owned())
    };
    let sql = json!({"sql": "SELECT 1"});
    assert_eq!(resolved(sql.clone(), &persona(&["sales"])).unwrap(), "sales");
    let choose = resolved(sql.clone(), &persona(&["s[au]*"])).unwrap_err();
    assert_eq!(
        (choose.code(), choose.message.as_str()),
        ("connection_required", "Name a connection: sales, support.")
    );
    assert_eq!(resolved(sql, &Persona::default()).unwrap_err().message, "You reach no connection.");
    let typo = json!({"sql": "SELECT 1", "connection": "slaes"});
    let unknown = resolved(typo, &persona(&["*"])).unwrap_err();
    assert_eq!((unknown.code(), unknown.hint.as_str()), ("connection_unknown", "Did you mean \"sales\"?"));
    // A connection out of reach is left to whoever asks the persona; asked to run all the same, the tool refuses.
    let secret = json!({"sql": "SELECT 1", "connection": "secret"});
    let analyst = persona(&["sales"]);
    let prepared = prepare(query, &secret, &analyst).unwrap();
    assert_eq!(prepared.connection(), Some("secret"));
    let refused = prepared.run(context(analyst, CancellationToken::new())).await.unwrap_err();
    assert_eq!((refused.code(), refused.category()), ("connection_not_allowed", Category::Authz));
}

#[tokio::test]
async fn arguments_are_refused_by_name() {
    let tools = tools();
    let code = |name: &str, arguments: Value| {
        let error =
            prepare(tools.get(name).unwrap().as_ref(), &arguments, &persona(&["sales"])).err().unwrap();
        assert_eq!(error.category(), Category::Validation);
        (error.code(), error.message)
    };
    assert_eq!(
        code("list_connections", json!({"kind": "postgres"})),
        (
            "argument_unknown",
            "list_connections has no argument \"kind\"; it accepts none (and purpose).".into()
        )
    );
    assert_eq!(
        code("sql_query", json!({"query": "SELECT 1"})),
        (
            "argument_unknown",
            "sql_query has no argument \"query\"; it accepts sql, connection, limit (and purpose).".into()
        )
    );
    assert_eq!(code("sql_query", json!({})), ("argument_missing", "sql_query: missing field `sql`.".into()));
    assert_eq!(code("sql_query", json!({"sql": "SELECT 1", "limit": 0})).0, "argument_invalid");
    assert_eq!(code("sql_query", json!({"sql": "SELECT 1", "limit": "2"})).0, "argument_invalid");
    assert_eq!(code("sql_query", json!({"sql": "x".repeat(70_000)})).0, "sql_too_long");
}

#[tokio::test]
async fn a_connection_that_is_only_declared_says_so() {
    let tools = tools();
    let persona = persona(&["sales"]);
    let arguments = json!({"sql": "SELECT 1"});
    let prepared = prepare(tools.get("sql_query").unwrap().as_ref(), &arguments, &persona).unwrap();
    let error = prepared.run(context(persona, CancellationToken::new())).await.unwrap_err();
    assert_eq!((error.code(), error.category()), ("connection_starting", Category::Upstream));
}

#[test]
fn a_bad_url_is_named_and_not_shown() {
    let postgres = config::PostgresConnection::new("mysql:/x:hunter2@h".into(), String::new());
    let configured = BTreeMap::from([("shop".to_owned(), config::Connection::Postgres(postgres))]);
    let error = Connections::new(&configured, Arc::new(SystemClock)).err().unwrap();
    assert_eq!(error, ConnectionError::Url { name: "shop".into() });
    assert!(!error.to_string().contains("hunter2"));
}
