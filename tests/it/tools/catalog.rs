//! `sql_tables` and `sql_describe`: what they tell, in which order, within which bounds, and what they never show.

use std::sync::Arc;
use std::time::Duration;

use annals::base::Tasks;
use annals::db::Role;
use annals::tools::{
    CatalogLimits, ConnectionLimits, Connections, SqlDescribe, SqlQuery, SqlTables, Tool, ToolError,
    ToolResult,
};
use serde_json::{Value, json};
use sqlx::postgres::PgConnection;
use sqlx::{ConnectOptions, Connection};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::caller::{
    await_statements, call, call_text, context, no_connections, persona, prepare, sample_connections,
    superuser,
};
use super::sample::load;
use crate::db::server::TestServer;

/// Tables in two schemas, parts of which `annals_sample_reader` may not read.
const SHOP: &str = "
    CREATE SCHEMA sales;
    CREATE TABLE sales.customers (id int PRIMARY KEY, name text NOT NULL, card text);
    COMMENT ON TABLE sales.customers IS 'Who buys.';
    COMMENT ON COLUMN sales.customers.card IS 'Of the card.';
    CREATE TABLE sales.\"Order Items\" (
        order_id int, line int, customer_id int REFERENCES sales.customers, amount numeric(10, 2), note text,
        PRIMARY KEY (order_id, line));
    CREATE INDEX ON sales.\"Order Items\" (customer_id);
    CREATE INDEX ON sales.\"Order Items\" (lower(note));
    CREATE INDEX ON sales.\"Order Items\" (amount) WHERE amount > 100;
    CREATE VIEW sales.totals AS SELECT customer_id, sum(amount) AS total FROM sales.\"Order Items\" GROUP BY 1;
    CREATE TABLE sales.measured (at date NOT NULL, customer_id int) PARTITION BY RANGE (at);
    CREATE TABLE sales.measured_2025 PARTITION OF sales.measured FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
    CREATE TABLE sales.salaries (employee text, salary int);
    CREATE TABLE public.customers (id int, old_id int REFERENCES sales.customers);
    CREATE SCHEMA hidden;
    CREATE TABLE hidden.plans (id int);
    INSERT INTO sales.customers VALUES (1, 'Ada', 'x'), (2, 'Bram', 'y');
    ANALYZE sales.customers;
    GRANT USAGE ON SCHEMA sales TO annals_sample_reader;
    REVOKE USAGE ON SCHEMA hidden FROM annals_sample_reader;
    GRANT SELECT ON hidden.plans TO annals_sample_reader;
    GRANT SELECT ON sales.\"Order Items\", sales.totals, sales.measured, sales.measured_2025, public.customers TO annals_sample_reader;
    REVOKE ALL ON sales.salaries, sales.customers FROM annals_sample_reader;
    GRANT SELECT (id, name) ON sales.customers TO annals_sample_reader;";

pub(super) async fn shop(server: &TestServer) -> PgConnection {
    let mut admin = superuser(&server.postgres, server.data_dir.path()).connect().await.unwrap();
    sqlx::raw_sql(SHOP).execute(&mut admin).await.unwrap();
    admin
}

fn catalog(limits: CatalogLimits) -> ConnectionLimits {
    ConnectionLimits { catalog: limits, ..ConnectionLimits::default() }
}

fn names(tables: &Value) -> Vec<String> {
    let name =
        |table: &Value| format!("{}.{}", table["schema"].as_str().unwrap(), table["name"].as_str().unwrap());
    tables["tables"].as_array().unwrap().iter().map(name).collect()
}

fn follows_its_schema(tool: &dyn Tool, result: &Value) {
    let definition: Value = serde_json::from_str(tool.definition().json.get()).unwrap();
    let schema = jsonschema::validator_for(&definition["outputSchema"]).unwrap();
    assert!(schema.is_valid(result), "{result}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_listed_in_order_with_totals_and_only_those_that_may_be_read() {
    let server = TestServer::start().await;
    shop(&server).await.close().await.unwrap();
    let connections = sample_connections(&server.postgres, ConnectionLimits::default());
    let tool = SqlTables::new(connections.clone());
    let text = call_text(&tool, json!({})).await.unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    follows_its_schema(&tool, &all);
    assert_eq!(
        names(&all),
        ["public.customers", "sales.Order Items", "sales.customers", "sales.measured", "sales.totals"]
    );
    assert_eq!(
        (&all["total"], &all["truncated"], &all["connection"]),
        (&json!(5), &json!(false), &json!("sample"))
    );
    assert_eq!(
        all["tables"][2],
        json!({"schema": "sales", "name": "customers", "kind": "table", "comment": "Who buys.", "columns": 2, "rows_estimated": 2})
    );
    assert_eq!(all["tables"][4], json!({"schema": "sales", "name": "totals", "kind": "view", "columns": 2}));
    assert!(!text.contains("salaries") && !text.contains("hidden") && !text.contains("null"), "{text}");
    // The same bytes, kept or read anew.
    let anew = sample_connections(&server.postgres, ConnectionLimits::default());
    assert_eq!(call_text(&tool, json!({})).await.unwrap(), text);
    assert_eq!(call_text(&SqlTables::new(anew.clone()), json!({})).await.unwrap(), text);
    for (arguments, expected, total, truncated) in [
        (json!({"schema": "public"}), vec!["public.customers"], 1, false),
        (json!({"pattern": "CUST*"}), vec!["public.customers", "sales.customers"], 2, false),
        (json!({"pattern": "sales.*", "limit": 1}), vec!["sales.Order Items"], 4, true),
        (json!({"schema": "sales", "pattern": "*es"}), vec![], 0, false),
    ] {
        let listed = call(&tool, arguments.clone()).await.unwrap();
        follows_its_schema(&tool, &listed);
        assert_eq!(names(&listed), expected, "{arguments}");
        assert_eq!(
            (&listed["total"], &listed["truncated"]),
            (&json!(total), &json!(truncated)),
            "{arguments}"
        );
        assert_eq!(listed.get("note").is_some(), truncated, "{arguments}");
    }
    let unknown = call(&tool, json!({"schema": "slaes"})).await.unwrap_err();
    assert_eq!((unknown.code(), unknown.hint.as_str()), ("sql_undefined_table", "Did you mean \"sales\"?"));
    for (arguments, code) in [
        (json!({"pattern": "[a"}), "argument_invalid"),
        (json!({"limit": 0}), "argument_invalid"),
        (json!({"limit": 501}), "argument_invalid"),
        (json!({"table": "x"}), "argument_unknown"),
    ] {
        assert_eq!(call(&tool, arguments.clone()).await.unwrap_err().code(), code, "{arguments}");
    }
    connections.close().await;
    anew.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_described_with_its_keys_and_without_what_may_not_be_read() {
    let server = TestServer::start().await;
    shop(&server).await.close().await.unwrap();
    let connections = sample_connections(&server.postgres, ConnectionLimits::default());
    let tool = SqlDescribe::new(connections.clone());
    let items = call(&tool, json!({"table": "Order Items"})).await.unwrap();
    follows_its_schema(&tool, &items);
    assert_eq!(
        items,
        json!({
            "connection": "sample", "schema": "sales", "name": "Order Items", "kind": "table",
            "columns": [
                {"name": "order_id", "type": "integer", "nullable": false},
                {"name": "line", "type": "integer", "nullable": false},
                {"name": "customer_id", "type": "integer", "nullable": true},
                {"name": "amount", "type": "numeric(10,2)", "nullable": true},
                {"name": "note", "type": "text", "nullable": true}
            ],
            "total": 5, "truncated": false,
            "primary_key": ["order_id", "line"],
            "foreign_keys": [{"columns": ["customer_id"], "references": {"schema": "sales", "table": "customers", "columns": ["id"]}}],
            "indexes": [{"columns": ["customer_id"], "unique": false}, {"columns": ["order_id", "line"], "unique": true}]
        })
    );
    let several = call(&tool, json!({"table": "customers"})).await.unwrap_err();
    assert_eq!(
        (several.code(), several.hint.as_str()),
        ("sql_undefined_table", "Name one with its schema: public.customers, sales.customers.")
    );
    let text = call_text(&tool, json!({"table": "sales.customers"})).await.unwrap();
    assert!(
        text.contains(r#""columns":[{"name":"id","type":"integer","nullable":false},{"name":"name","#),
        "{text}"
    );
    assert!(text.contains(r#""total":2,"truncated":false,"primary_key":["id"],"foreign_keys":[]"#), "{text}");
    assert!(!text.contains("card"), "{text}");
    assert_eq!(text, call_text(&tool, json!({"table": "sales.customers"})).await.unwrap());
    for (table, hint) in [
        ("sales.customer", "Did you mean \"sales.customers\"?"),
        ("total", "Did you mean \"totals\"?"),
        ("salaries", "sql_tables lists the tables of the connection."),
        ("xq", "sql_tables lists the tables of the connection."),
    ] {
        let error = call(&tool, json!({"table": table})).await.unwrap_err();
        assert_eq!(error.code(), "sql_undefined_table", "{table}");
        assert!(error.hint.starts_with(hint) && !error.hint.contains("salaries"), "{table}: {}", error.hint);
    }
    connections.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_catalog_is_read_once_for_its_time_and_within_its_bounds() {
    let server = TestServer::start().await;
    let mut admin = shop(&server).await;
    let default = ConnectionLimits::default().catalog;
    let kept = sample_connections(&server.postgres, catalog(default));
    let fresh =
        sample_connections(&server.postgres, catalog(CatalogLimits { ttl: Duration::ZERO, ..default }));
    let (kept_tool, fresh_tool) = (SqlTables::new(kept.clone()), SqlTables::new(fresh.clone()));
    for tool in [&kept_tool, &fresh_tool] {
        assert_eq!(call(tool, json!({})).await.unwrap()["total"], 5);
    }
    sqlx::raw_sql("CREATE TABLE sales.new (id int); GRANT SELECT ON sales.new TO annals_sample_reader")
        .execute(&mut admin)
        .await
        .unwrap();
    assert_eq!(call(&kept_tool, json!({})).await.unwrap()["total"], 5);
    assert_eq!(call(&fresh_tool, json!({})).await.unwrap()["total"], 6);

    let bounds = CatalogLimits { tables_max: 3, columns_max: 6, ..default };
    let bounded = sample_connections(&server.postgres, catalog(bounds));
    let listed = call(&SqlTables::new(bounded.clone()), json!({})).await.unwrap();
    assert_eq!(names(&listed), ["public.customers", "sales.Order Items", "sales.customers"]);
    assert_eq!((&listed["total"], &listed["truncated"]), (&json!(3), &json!(true)));
    assert_eq!(listed["note"], "The connection has 6 tables, of which the first 3 by name are looked at.");
    let cut = call(&SqlDescribe::new(bounded.clone()), json!({"table": "Order Items"})).await.unwrap();
    assert_eq!(
        (cut["columns"].as_array().unwrap().len(), &cut["total"], &cut["truncated"]),
        (4, &json!(5), &json!(true))
    );
    for connections in [kept, fresh, bounded] {
        connections.close().await;
    }
    admin.close().await.unwrap();
    server.stop().await;
}

/// A superuser's lock that a read of the catalog waits for.
struct Blocked {
    connections: Arc<Connections>,
    locker: PgConnection,
    watcher: PgConnection,
}

impl Blocked {
    async fn start(server: &TestServer) -> Self {
        let options = superuser(&server.postgres, server.data_dir.path());
        let mut locker = options.clone().connect().await.unwrap();
        let connections = sample_connections(&server.postgres, ConnectionLimits::default());
        // A session is open before the lock: opening one looks into the catalog, too.
        let query = SqlQuery::new(connections.clone());
        assert_eq!(call(&query, json!({"sql": "SELECT 1"})).await.unwrap()["row_count"], 1);
        sqlx::raw_sql("BEGIN; LOCK TABLE pg_catalog.pg_description IN ACCESS EXCLUSIVE MODE")
            .execute(&mut locker)
            .await
            .unwrap();
        Self { connections, locker, watcher: options.connect().await.unwrap() }
    }

    fn ask(&self, cancel: &CancellationToken) -> JoinHandle<Result<ToolResult, ToolError>> {
        let tool = SqlTables::new(self.connections.clone());
        let prepared = prepare(&tool, &json!({}), &persona(&["*"])).unwrap();
        Tasks::new().spawn("asks for tables", prepared.run(context(persona(&["*"]), cancel.clone())))
    }

    async fn await_reads(&mut self, expected: i64) {
        await_statements(&mut self.watcher, "", expected).await;
    }

    async fn unlock(&mut self) {
        sqlx::raw_sql("ROLLBACK").execute(&mut self.locker).await.unwrap();
    }

    async fn end(self) {
        self.connections.close().await;
        self.locker.close().await.unwrap();
        self.watcher.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_that_ask_at_once_cause_one_read_and_a_cancelled_one_ends_on_the_server() {
    let server = TestServer::start().await;
    shop(&server).await.close().await.unwrap();
    let mut blocked = Blocked::start(&server).await;
    let cancelled = CancellationToken::new();
    let first = blocked.ask(&cancelled);
    blocked.await_reads(1).await;
    cancelled.cancel();
    assert_eq!(first.await.unwrap().unwrap_err().code(), "cancelled");
    blocked.await_reads(0).await;
    let going_on = CancellationToken::new();
    let asked: Vec<_> = (0..8).map(|_| blocked.ask(&going_on)).collect();
    blocked.await_reads(1).await;
    let late = CancellationToken::new();
    let waiting = blocked.ask(&late);
    late.cancel();
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), "cancelled", "who waits for a read may give up");
    blocked.await_reads(1).await;
    blocked.unlock().await;
    for call in asked {
        assert!(call.await.unwrap().is_ok());
    }
    blocked.end().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_down_or_refused_says_so_for_tables_too() {
    let server = TestServer::start().await;
    let reader = server.postgres.connect_options(Role::SampleReader);
    for (options, code) in [
        (reader.clone().socket("/nowhere/at/all"), "connection_unreachable"),
        (superuser(&server.postgres, server.data_dir.path()), "connection_role_refused"),
    ] {
        let connections = no_connections();
        connections.add("shop", "", options, ConnectionLimits::default());
        assert_eq!(call(&SqlTables::new(connections.clone()), json!({})).await.unwrap_err().code(), code);
        let described = call(&SqlDescribe::new(connections), json!({"table": "x"})).await;
        assert_eq!(described.unwrap_err().code(), code);
    }
    let connections = no_connections();
    connections.declare("shop", "", ConnectionLimits::default());
    let starting = call(&SqlTables::new(connections.clone()), json!({})).await.unwrap_err();
    assert_eq!(starting.code(), "connection_starting");
    let elsewhere = persona(&["sales"]);
    let prepared = prepare(&SqlTables::new(connections), &json!({"connection": "shop"}), &elsewhere).unwrap();
    assert_eq!(prepared.connection(), Some("shop"));
    let refused = prepared.run(context(elsewhere, CancellationToken::new())).await.unwrap_err();
    assert_eq!(refused.code(), "connection_not_allowed");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_is_described_the_same_on_every_server() {
    let mut texts = Vec::new();
    for _ in 0..2 {
        let server = TestServer::start().await;
        load(&server.postgres).await;
        let connections = sample_connections(&server.postgres, ConnectionLimits::default());
        let tables = call_text(&SqlTables::new(connections.clone()), json!({})).await.unwrap();
        let returns =
            call_text(&SqlDescribe::new(connections.clone()), json!({"table": "returns"})).await.unwrap();
        let found = super::search::text(&connections, json!({"intent": "refunds by region"})).await;
        texts.push([tables, returns, found]);
        connections.close().await;
        server.stop().await;
    }
    assert_eq!(texts[0], texts[1]);
    let tables: Value = serde_json::from_str(&texts[0][0]).unwrap();
    assert_eq!((&tables["total"], &tables["tables"][9]["name"]), (&json!(13), &json!("sample_data")));
}
