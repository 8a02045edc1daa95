//! `search` and `fetch`: what is found, in which order, and what another persona's data never shows in.

use std::sync::Arc;

use annals::auth::{Globs, Persona};
use annals::db::Role;
use annals::dispatch::Limits;
use annals::tools::{About, ConnectionLimits, Connections, ToolError, Toolbox, toolbox};
use serde_json::{Value, json};
use sqlx::Connection;
use tokio_util::sync::CancellationToken;

use super::caller::{context, no_connections, persona, prepare, sample_connections};
use super::catalog::shop;
use super::sample::load;
use crate::db::server::TestServer;

/// Who may search, and reaches the connections that `connections` allow.
fn searcher(connections: &[&str]) -> Persona {
    let tools = ["search", "fetch", "sql_*", "list_connections"].map(str::to_owned);
    Persona { tools: Globs::new("analyst", &tools, &[]).unwrap(), ..persona(connections) }
}

fn tools(connections: &Arc<Connections>) -> Toolbox {
    let about = About {
        name: "annals".into(),
        version: "1".into(),
        description: String::new(),
        instructions: String::new(),
        ack: "fsync".into(),
        limits: Limits::default(),
    };
    toolbox(Arc::clone(connections), about, None)
}

async fn ask(
    connections: &Arc<Connections>,
    persona: Persona,
    tool: &str,
    arguments: Value,
) -> Result<String, ToolError> {
    let tools = tools(connections);
    let tool = tools.get(tool).unwrap();
    let prepared = prepare(tool.as_ref(), &arguments, &persona)?;
    let result = prepared.run(context(persona, CancellationToken::new())).await?;
    let text = String::from_utf8(result.structured.to_vec()).unwrap();
    let definition: Value = serde_json::from_str(tool.definition().json.get()).unwrap();
    let schema = jsonschema::validator_for(&definition["outputSchema"]).unwrap();
    assert!(schema.is_valid(&serde_json::from_str(&text).unwrap()), "{text}");
    Ok(text)
}

/// What a search answers to somebody who reaches all connections.
pub(super) async fn text(connections: &Arc<Connections>, arguments: Value) -> String {
    ask(connections, searcher(&["*"]), "search", arguments).await.unwrap()
}

async fn search(connections: &Arc<Connections>, arguments: Value) -> Value {
    serde_json::from_str(&text(connections, arguments).await).unwrap()
}

async fn fetch(connections: &Arc<Connections>, id: &str) -> Result<Value, ToolError> {
    let text = ask(connections, searcher(&["*"]), "fetch", json!({ "id": id })).await?;
    Ok(serde_json::from_str(&text).unwrap())
}

fn ids(found: &Value) -> Vec<&str> {
    found["results"].as_array().unwrap().iter().map(|result| result["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_finds_its_tables_and_columns_in_a_stable_order() {
    let server = TestServer::start().await;
    load(&server.postgres).await;
    let connections = sample_connections(&server.postgres, ConnectionLimits::default());
    for (intent, sources, first) in [
        ("Which product's returns jumped, and why?", json!(["tables"]), "table:sample/public.returns"),
        ("refunds", json!(["columns"]), "column:sample/public.returns.refund_amount"),
        ("late deliveries by carrier", json!(["columns"]), "column:sample/public.shipments.carrier"),
        (
            "satisfaction of customers",
            json!(["columns"]),
            "column:sample/public.support_tickets.satisfaction",
        ),
        ("orderItems", json!(["tables"]), "table:sample/public.order_items"),
        ("describe a table", json!(["tools"]), "tool:sql_describe"),
        ("cash", json!(["connections"]), "connection:sample"),
    ] {
        let found = search(&connections, json!({"intent": intent, "sources": sources})).await;
        assert_eq!(ids(&found).first(), Some(&first), "{intent}: {found}");
        assert!(found["results"].as_array().unwrap().iter().all(|result| result["source"] == sources[0]));
    }
    let asked = json!({"intent": "region of an order", "limit": 5});
    let told = text(&connections, asked.clone()).await;
    let found: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((ids(&found).len(), &found["truncated"]), (5, &json!(true)));
    assert!(found["total"].as_u64().unwrap() > 5);
    let results = found["results"].as_array().unwrap();
    let keys: Vec<_> =
        results.iter().map(|r| (-r["score"].as_f64().unwrap(), r["id"].as_str().unwrap())).collect();
    assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{keys:?}");
    for _ in 0..5 {
        assert_eq!(text(&connections, asked.clone()).await, told);
    }
    // A longer answer begins like a shorter one.
    let more = search(&connections, json!({"intent": "region of an order", "limit": 50})).await;
    assert_eq!(ids(&more)[..5], ids(&found)[..]);
    let none = search(&connections, json!({"intent": "zzzz qqqq"})).await;
    assert_eq!(
        none,
        json!({"results": [], "total": 0, "truncated": false, "unavailable": [], "partial": [], "withheld": {"tools": 1, "connections": 0}})
    );
    for (arguments, code) in [
        (json!({"intent": "? !"}), "argument_invalid"),
        (json!({"intent": "x y", "sources": ["vectors"]}), "argument_invalid"),
        (json!({"intent": "orders", "limit": 51}), "argument_invalid"),
        (json!({}), "argument_missing"),
    ] {
        let refused = ask(&connections, searcher(&["*"]), "search", arguments.clone()).await.unwrap_err();
        assert_eq!(refused.code(), code, "{arguments}");
    }
    connections.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_persona_or_a_role_may_not_reach_is_never_found_and_does_not_change_a_score() {
    let server = TestServer::start().await;
    shop(&server).await.close().await.unwrap();
    let reader = server.postgres.connect_options(Role::SampleReader);
    let only = no_connections();
    only.add("shop", "What is sold", reader.clone(), ConnectionLimits::default());
    let both = no_connections();
    both.add("shop", "What is sold", reader.clone(), ConnectionLimits::default());
    both.add("payroll", "Customers of the payroll", reader, ConnectionLimits::default());
    let asked = json!({"intent": "customers of the payroll, salaries, plans and cards"});
    let told = ask(&both, searcher(&["shop"]), "search", asked.clone()).await.unwrap();
    for hidden in ["payroll", "salar", "plans", "card"] {
        assert!(!told.contains(hidden), "{hidden}: {told}");
    }
    let found: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(found["withheld"], json!({"tools": 1, "connections": 1}));
    assert!(ids(&found).contains(&"table:shop/sales.customers"));
    let alone = ask(&only, searcher(&["shop"]), "search", asked.clone()).await.unwrap();
    let alone: Value = serde_json::from_str(&alone).unwrap();
    assert_eq!(found["results"], alone["results"]);
    let all = ask(&both, searcher(&["*"]), "search", asked).await.unwrap();
    assert!(all.contains("connection:payroll") && !all.contains("salaries"), "{all}");
    // fetch names a connection, so that the persona is asked for it.
    let analyst = searcher(&["shop"]);
    let tools = tools(&both);
    let id = json!({"id": "table:payroll/sales.customers"});
    let prepared = prepare(tools.get("fetch").unwrap().as_ref(), &id, &analyst).unwrap();
    assert_eq!(prepared.connection(), Some("payroll"));
    let refused = prepared.run(context(analyst.clone(), CancellationToken::new())).await.unwrap_err();
    assert_eq!(refused.code(), "connection_not_allowed");
    let tool = ask(&both, analyst, "fetch", json!({"id": "tool:platform_info"})).await.unwrap_err();
    assert_eq!((tool.code(), tool.hint.contains("platform_info")), ("id_unknown", false));
    both.close().await;
    only.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_cannot_be_looked_at_is_named() {
    let server = TestServer::start().await;
    shop(&server).await.close().await.unwrap();
    let reader = server.postgres.connect_options(Role::SampleReader);
    let connections = no_connections();
    connections.add("down", "", reader.clone().socket("/nowhere/at/all"), ConnectionLimits::default());
    connections.declare("soon", "", ConnectionLimits::default());
    connections.add("shop", "", reader, ConnectionLimits::default());
    let found = search(&connections, json!({"intent": "customers"})).await;
    assert!(ids(&found).contains(&"table:shop/sales.customers"), "{found}");
    let named: Vec<_> = found["unavailable"].as_array().unwrap().iter().collect();
    assert_eq!(named.len(), 2);
    assert_eq!(
        (&named[0]["connection"], &named[0]["code"]),
        (&json!("down"), &json!("connection_unreachable"))
    );
    assert_eq!((&named[1]["connection"], &named[1]["code"]), (&json!("soon"), &json!("connection_starting")));
    let tools_alone = search(&connections, json!({"intent": "customers", "sources": ["tools"]})).await;
    assert_eq!(tools_alone["unavailable"], json!([]), "nothing was to be read");
    assert_eq!(fetch(&connections, "table:down/a.b").await.unwrap_err().code(), "connection_unreachable");
    connections.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_found_is_fetched_whole_and_an_unknown_id_names_the_nearest() {
    let server = TestServer::start().await;
    load(&server.postgres).await;
    let connections = sample_connections(&server.postgres, ConnectionLimits::default());
    let found =
        search(&connections, json!({"intent": "returns refunds reason region tool sample", "limit": 50}))
            .await;
    assert!(ids(&found).len() > 10);
    for id in ids(&found) {
        assert_eq!(fetch(&connections, id).await.unwrap()["id"], id);
    }
    let table = fetch(&connections, "table:sample/public.returns").await.unwrap();
    assert_eq!(
        (&table["title"], &table["url"]),
        (&json!("public.returns"), &json!("annals:table:sample/public.returns"))
    );
    assert_eq!(
        table["text"],
        "public.returns on the connection sample.\nOrder lines that came back.\nColumns:\n\
         - return_id integer not null: Identifies the return.\n\
         - order_item_id integer not null: The order line that came back.\n\
         - quantity integer not null: Units sent back.\n\
         - reason text not null: damaged, wrong item, changed mind, too late, leaks or defective.\n\
         - returned_on date not null: Day on which the goods came back and the refund was made.\n\
         - refund_amount numeric(12,2) not null: Money refunded to the customer, EUR.\n\
         Primary key: return_id\n\
         Foreign key: order_item_id to public.order_items (order_item_id)\n\
         Index: order_item_id, unique\nIndex: return_id, unique"
    );
    assert_eq!(table["metadata"]["foreign_keys"][0]["references"]["table"], "order_items");
    let column = fetch(&connections, "column:sample/public.returns.refund_amount").await.unwrap();
    assert_eq!(
        column["metadata"],
        json!({"connection": "sample", "schema": "public", "table": "returns", "name": "refund_amount", "type": "numeric(12,2)", "nullable": false, "comment": "Money refunded to the customer, EUR."})
    );
    assert_eq!(fetch(&connections, "tool:sql_query").await.unwrap()["metadata"]["name"], "sql_query");
    assert_eq!(fetch(&connections, "connection:sample").await.unwrap()["metadata"]["kind"], "postgres");
    for (id, code, near) in [
        ("table:sample/public.return", "id_unknown", "table:sample/public.returns"),
        ("column:sample/public.returns.refund", "id_unknown", "column:sample/public.returns.refund_amount"),
        ("column:sample/public.retuns.reason", "id_unknown", "table:sample/public.returns"),
        ("tool:sql_qery", "id_unknown", "tool:sql_query"),
        ("sql_query", "id_unknown", ""),
        ("table:sampel/public.returns", "connection_unknown", "sample"),
    ] {
        let error = fetch(&connections, id).await.unwrap_err();
        assert_eq!(error.code(), code, "{id}");
        assert!(error.hint.contains(near), "{id}: {}", error.hint);
    }
    connections.close().await;
    server.stop().await;
}
