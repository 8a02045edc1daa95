//! Connections whose role could do more than read, or that cannot be reached, are not used, and say why.

use annals::base::Category;
use annals::db::Role;
use annals::tools::{ConnectionLimits, SqlQuery, ToolError};
use serde_json::json;
use sqlx::{ConnectOptions, Connection};

use super::caller::{call, no_connections, sample_connections, superuser};
use crate::db::server::TestServer;

const ROLES: &str = "
    CREATE TABLE plain (id serial PRIMARY KEY, note text);
    CREATE SCHEMA open_schema;
    CREATE ROLE r_super LOGIN PASSWORD 'pw-of-r' SUPERUSER;
    CREATE ROLE r_createrole LOGIN PASSWORD 'pw-of-r' CREATEROLE;
    CREATE ROLE r_replication LOGIN PASSWORD 'pw-of-r' REPLICATION;
    CREATE ROLE r_bypass LOGIN PASSWORD 'pw-of-r' BYPASSRLS;
    CREATE ROLE r_files LOGIN PASSWORD 'pw-of-r' IN ROLE pg_read_server_files;
    CREATE ROLE r_program LOGIN PASSWORD 'pw-of-r' NOINHERIT IN ROLE pg_execute_server_program;
    CREATE ROLE r_writes LOGIN PASSWORD 'pw-of-r' IN ROLE pg_write_all_data;
    CREATE ROLE r_insert LOGIN PASSWORD 'pw-of-r';
    GRANT INSERT (note) ON plain TO r_insert;
    CREATE ROLE r_sequence LOGIN PASSWORD 'pw-of-r';
    GRANT USAGE ON SEQUENCE plain_id_seq TO r_sequence;
    CREATE ROLE r_schema LOGIN PASSWORD 'pw-of-r';
    GRANT CREATE ON SCHEMA open_schema TO r_schema;
    CREATE ROLE r_reads LOGIN PASSWORD 'pw-of-r' IN ROLE pg_read_all_data;
    DO $$ BEGIN EXECUTE format('GRANT CONNECT ON DATABASE %I TO PUBLIC', current_database()); END $$;";

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_could_do_more_than_read_is_refused_with_its_reason() {
    let server = TestServer::start().await;
    let options = superuser(&server.postgres, server.data_dir.path());
    let mut admin = options.clone().connect().await.unwrap();
    sqlx::raw_sql(ROLES).execute(&mut admin).await.unwrap();
    admin.close().await.unwrap();
    for (role, why) in [
        ("r_super", Some("is a superuser")),
        ("r_createrole", Some("may create roles")),
        ("r_replication", Some("may replicate")),
        ("r_bypass", Some("bypasses row security")),
        ("r_files", Some("belongs to pg_read_server_files")),
        ("r_program", Some("belongs to pg_execute_server_program")),
        ("r_writes", Some("belongs to pg_write_all_data")),
        ("r_insert", Some("may write to public.plain")),
        ("r_sequence", Some("may write to public.plain_id_seq")),
        ("r_schema", Some("may create objects in schema open_schema")),
        ("r_reads", None),
    ] {
        let connections = no_connections();
        connections.add(
            "c",
            "",
            options.clone().username(role).password("pw-of-r"),
            ConnectionLimits::default(),
        );
        let answer =
            call(&SqlQuery::new(connections.clone()), json!({"sql": "SELECT count(*) FROM plain"})).await;
        match why {
            Some(why) => {
                let error = answer.unwrap_err();
                assert_eq!(
                    (error.code(), error.category()),
                    ("connection_role_refused", Category::Upstream),
                    "{role}"
                );
                assert_eq!(error.message, format!("The connection \"c\" is not used: its role {why}."));
            }
            None => assert_eq!(answer.unwrap()["rows"], json!([[0]]), "{role}"),
        }
        connections.close().await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_on_the_way_is_told_without_internals() {
    let server = TestServer::start().await;
    let reader = server.postgres.connect_options(Role::SampleReader);
    for options in [
        reader.clone().password("not-the-password"),
        reader.clone().database("no_such_database"),
        reader.clone().socket("/nowhere/at/all"),
    ] {
        let connections = no_connections();
        connections.add("shop", "", options, ConnectionLimits::default());
        let error: ToolError =
            call(&SqlQuery::new(connections), json!({"sql": "SELECT 1"})).await.unwrap_err();
        assert_eq!((error.code(), error.category()), ("connection_unreachable", Category::Upstream));
        assert_eq!(
            error.message,
            "The connection \"shop\" is not reachable or its server ended the session."
        );
    }
    // A session that the server ended between two calls is replaced without anybody's notice.
    let connections = sample_connections(&server.postgres, ConnectionLimits::default());
    let tool = SqlQuery::new(connections.clone());
    let mut admin = superuser(&server.postgres, server.data_dir.path()).connect().await.unwrap();
    for _ in 0..2 {
        assert_eq!(call(&tool, json!({"sql": "SELECT 1"})).await.unwrap()["rows"], json!([[1]]));
        let ended: i64 = sqlx::query_scalar(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name = 'annals sql_query'",
        )
        .fetch_one(&mut admin)
        .await
        .unwrap();
        assert_eq!(ended, 1);
    }
    admin.close().await.unwrap();
    connections.close().await;
    server.stop().await;
}
