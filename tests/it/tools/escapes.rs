//! SQL that tries to do more than read: refused by the tool, and harmless with each barrier alone.
//!
//! Every entry of `tests/sql_escapes.json` runs in the sample database through the tool; through the tool without its
//! statement check; and bare, as the reader's role, in the simple protocol and outside any transaction of ours; then
//! with and without the check in a database that nobody hardened. After each the whole database is as it was.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use annals::base::Category;
use annals::db::Role;
use annals::tools::{ConnectionLimits, SqlQuery, Tool};
use serde::Deserialize;
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::caller::{call, no_connections, sample_connections, superuser};
use super::sample;
use crate::db::server::TestServer;

const ESCAPES: &str = include_str!("../../sql_escapes.json");
const INNOCENTS: &str = include_str!("../../sql_innocents.json");

/// Things that an escape could use or break. Functions are as a careless owner would write them.
const BAIT: &str = "
    CREATE TABLE accounts (id int PRIMARY KEY, owner text, balance int);
    INSERT INTO accounts VALUES (1, 'ada', 100), (2, 'bob', 200);
    CREATE MATERIALIZED VIEW totals AS SELECT sum(balance) FROM accounts;
    CREATE SEQUENCE serial;
    GRANT USAGE ON SEQUENCE serial TO annals_sample_owner;
    CREATE FUNCTION danger() RETURNS int LANGUAGE sql VOLATILE SECURITY DEFINER
        AS 'UPDATE accounts SET balance = 0; SELECT 1';
    CREATE FUNCTION quiet_danger() RETURNS int LANGUAGE sql STABLE SECURITY DEFINER AS 'SELECT danger()';
    CREATE FUNCTION danger_row(accounts) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT danger()';
    CREATE FUNCTION danger_of(int, int DEFAULT 0) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT danger()';
    CREATE FUNCTION danger_two(int, int) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT danger()';
    CREATE OPERATOR ## (FUNCTION = danger_two, LEFTARG = int, RIGHTARG = int);
    CREATE AGGREGATE danger_sum(int) (SFUNC = danger_two, STYPE = int, INITCOND = '0');
    CREATE TYPE hazard AS (n int);
    CREATE FUNCTION to_hazard(int) RETURNS hazard LANGUAGE sql VOLATILE AS 'SELECT ROW(danger())::hazard';
    CREATE CAST (int AS hazard) WITH FUNCTION to_hazard(int);
    CREATE PROCEDURE drain() LANGUAGE sql SECURITY DEFINER AS 'DELETE FROM accounts';
    SELECT lo_from_bytea(0, 'large');";

/// Everything that a write could leave behind, as text.
const STATE: &str = "
    SELECT concat_ws(E'\\n',
        (SELECT string_agg(a::text, ',' ORDER BY id) FROM accounts a),
        (SELECT string_agg(totals::text, ',') FROM totals),
        (SELECT last_value::text || is_called::text FROM serial),
        (SELECT string_agg(l::text, ',' ORDER BY oid) FROM pg_largeobject_metadata l),
        (SELECT string_agg(encode(lo_get(oid), 'hex'), ',' ORDER BY oid) FROM pg_largeobject_metadata),
        (SELECT string_agg(concat_ws(':', oid::regclass, relkind, relowner, relacl, relnatts, relfilenode), ',' ORDER BY oid)
            FROM pg_class WHERE relnamespace::regnamespace::text NOT LIKE 'pg\\_%'),
        (SELECT string_agg(p::regprocedure::text || proacl::text, ',' ORDER BY oid) FROM pg_proc p2, LATERAL (SELECT p2.oid) x(p)
            WHERE pronamespace::regnamespace::text NOT LIKE 'pg\\_%'),
        (SELECT string_agg(nspname || coalesce(nspacl::text, ''), ',' ORDER BY nspname) FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_t%'),
        (SELECT string_agg(r::text, ',' ORDER BY rolname) FROM pg_roles r),
        (SELECT string_agg(s::text, ',' ORDER BY s::text) FROM pg_db_role_setting s),
        (SELECT string_agg(d::text, ',' ORDER BY d::text) FROM pg_database d),
        (SELECT count(*)::text FROM pg_description),
        (SELECT string_agg(extname, ',' ORDER BY extname) FROM pg_extension),
        (SELECT count(*)::text FROM pg_replication_slots),
        (SELECT count(*)::text FROM pg_prepared_xacts))";

#[derive(Deserialize)]
struct Escape {
    name: String,
    sql: String,
    code: String,
    /// Postgres lets every role change its own settings, whatever it was granted. That takes a statement of its own,
    /// which neither the statement check nor the cursor around a query lets through.
    #[serde(default)]
    own_role: bool,
}

#[derive(Deserialize)]
struct Innocent {
    name: String,
    sql: String,
}

struct Bait {
    owner: PgConnection,
    scratch: tempfile::TempDir,
    before: String,
    large_object: String,
}

impl Bait {
    async fn lay(owner: PgConnectOptions) -> Self {
        let mut owner = owner.connect().await.unwrap();
        sqlx::raw_sql(BAIT).execute(&mut owner).await.unwrap();
        let large_object = sqlx::query_scalar("SELECT max(oid)::text FROM pg_largeobject_metadata")
            .fetch_one(&mut owner)
            .await
            .unwrap();
        let before = sqlx::query_scalar(STATE).fetch_one(&mut owner).await.unwrap();
        let scratch = tempfile::tempdir().unwrap();
        // The server's user must be able to write here, if only SQL could make it.
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        Self { owner, scratch, before, large_object }
    }

    fn sql(&self, escape: &Escape) -> String {
        let scratch = self.scratch.path().to_str().unwrap();
        escape.sql.replace("{scratch}", scratch).replace("{lo}", &self.large_object)
    }

    async fn assert_unchanged(&mut self, what: &str) {
        let now: String = sqlx::query_scalar(STATE).fetch_one(&mut self.owner).await.unwrap();
        let changed: Vec<_> =
            now.lines().zip(self.before.lines()).filter(|(now, before)| now != before).collect();
        assert!(now == self.before, "{what} changed the database: {changed:?}");
        assert_eq!(files(self.scratch.path()), Vec::<String>::new(), "{what} wrote a file");
    }
}

fn files(directory: &Path) -> Vec<String> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path().display().to_string()).collect()
}

fn escapes() -> Vec<Escape> {
    let escapes: Vec<Escape> = serde_json::from_str(ESCAPES).unwrap();
    assert!(escapes.len() >= 60, "{}", escapes.len());
    escapes
}

fn limits() -> ConnectionLimits {
    ConnectionLimits { timeout: Duration::from_secs(3), ..ConnectionLimits::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_escape_is_refused_by_its_rule_and_changes_nothing() {
    let server = TestServer::start().await;
    let mut bait = Bait::lay(server.postgres.connect_options(Role::SampleOwner)).await;
    let connections = sample_connections(&server.postgres, limits());
    let tool = SqlQuery::new(connections.clone());
    let mut wrong = Vec::new();
    for escape in escapes() {
        match call(&tool, json!({"sql": bait.sql(&escape)})).await {
            Ok(answer) => wrong.push(format!("{}: passed with {answer}", escape.name)),
            Err(error) if error.code() != escape.code || error.category() != Category::Validation => {
                wrong.push(format!(
                    "{}: {} {:?} {}",
                    escape.name,
                    error.code(),
                    error.category(),
                    error.message
                ));
            }
            Err(_) => {}
        }
        bait.assert_unchanged(&escape.name).await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    connections.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_statement_check_no_escape_changes_anything() {
    let server = TestServer::start().await;
    let mut bait = Bait::lay(server.postgres.connect_options(Role::SampleOwner)).await;
    let connections = sample_connections(&server.postgres, limits());
    let tool = SqlQuery::without_statement_check(connections.clone());
    for escape in escapes() {
        // Some pass, as pg_sleep does: what counts is what they leave behind.
        drop(call(&tool, json!({"sql": bait.sql(&escape)})).await);
        bait.assert_unchanged(&escape.name).await;
        // The next call meets a session without traces of this one.
        let setting = call(
            &tool,
            json!({"sql": "SELECT current_user, current_setting('transaction_read_only'), current_setting('statement_timeout')"}),
        );
        assert_eq!(
            setting.await.unwrap()["rows"],
            json!([["annals_sample_reader", "on", "3s"]]),
            "{}",
            escape.name
        );
    }
    connections.close().await;
    server.stop().await;
}

/// A database as Postgres makes it, where everybody may call every function, and a role that may only SELECT.
async fn ordinary_database(server: &TestServer) -> (PgConnectOptions, PgConnectOptions) {
    let options = superuser(&server.postgres, server.data_dir.path());
    let mut admin = options.clone().connect().await.unwrap();
    for sql in [
        "CREATE DATABASE shop OWNER annals_sample_owner",
        "CREATE ROLE shop_reader LOGIN PASSWORD 'pw-of-reader' IN ROLE pg_read_all_data",
        "GRANT CONNECT ON DATABASE shop TO shop_reader",
    ] {
        sqlx::raw_sql(sql).execute(&mut admin).await.unwrap();
    }
    admin.close().await.unwrap();
    let owner = server.postgres.connect_options(Role::SampleOwner).database("shop");
    (owner, options.username("shop_reader").password("pw-of-reader").database("shop"))
}

#[tokio::test(flavor = "multi_thread")]
async fn in_an_ordinary_database_the_check_refuses_all_and_the_transaction_alone_loses_nothing() {
    let server = TestServer::start().await;
    let (owner, reader) = ordinary_database(&server).await;
    let mut bait = Bait::lay(owner).await;
    let connections = no_connections();
    connections.add("shop", "", reader, limits());
    let (checking, bare) =
        (SqlQuery::new(connections.clone()), SqlQuery::without_statement_check(connections.clone()));
    for escape in escapes() {
        let arguments = json!({"sql": bait.sql(&escape)});
        let error = call(&checking, arguments.clone()).await.unwrap_err();
        assert_eq!(error.code(), escape.code, "{}: {}", escape.name, error.message);
        drop(call(&bare, arguments).await);
        bait.assert_unchanged(&escape.name).await;
        let locks: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            .fetch_one(&mut bait.owner)
            .await
            .unwrap();
        assert_eq!(locks, 0, "{} left a lock in its session", escape.name);
    }
    for sql in
        ["SELECT danger()", "SELECT quiet_danger()", "SELECT 1 ## 1", "SELECT danger_sum(id) FROM accounts"]
    {
        assert_eq!(call(&bare, json!({"sql": sql})).await.unwrap_err().code(), "sql_read_only", "{sql}");
    }
    connections.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_alone_stops_every_write() {
    let server = TestServer::start().await;
    let mut bait = Bait::lay(server.postgres.connect_options(Role::SampleOwner)).await;
    let mut admin = superuser(&server.postgres, server.data_dir.path()).connect().await.unwrap();
    for escape in escapes() {
        // The role's default of read-only transactions is a setting that any statement may change.
        let settings = [("statement_timeout", "3s"), ("default_transaction_read_only", "off")];
        let options = server.postgres.connect_options(Role::SampleReader).options(settings);
        let mut reader = options.connect().await.unwrap();
        let ran = sqlx::raw_sql(AssertSqlSafe(bait.sql(&escape))).execute(&mut reader).await;
        drop(ran);
        // A session that a statement broke cannot say good-bye.
        reader.close().await.ok();
        if escape.own_role {
            sqlx::raw_sql("ALTER ROLE annals_sample_reader SET default_transaction_read_only = on")
                .execute(&mut admin)
                .await
                .unwrap();
        }
        bait.assert_unchanged(&escape.name).await;
    }
    admin.close().await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_that_only_read_are_answered() {
    let server = TestServer::start().await;
    sample::load(&server.postgres).await;
    let innocents: Vec<Innocent> = serde_json::from_str(INNOCENTS).unwrap();
    assert!(innocents.len() >= 25, "{}", innocents.len());
    let connections = sample_connections(&server.postgres, ConnectionLimits::default());
    let tool = SqlQuery::new(connections.clone());
    let mut wrong = Vec::new();
    for innocent in innocents {
        match call(&tool, json!({"sql": innocent.sql})).await {
            Ok(answer) if answer["row_count"].as_u64().unwrap() > 0 => {}
            Ok(_) => wrong.push(format!("{}: no rows", innocent.name)),
            Err(error) => wrong.push(format!("{}: {} {}", innocent.name, error.code(), error.message)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(tool.definition().name, "sql_query");
    connections.close().await;
    server.stop().await;
}
