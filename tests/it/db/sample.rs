//! The role that agents' SQL runs under reads the sample and does nothing else, whatever it sends.

use annals::db::Role;
use sqlx::error::DatabaseError;
use sqlx::{ConnectOptions, Connection, Executor};

use super::server::TestServer;

const SAMPLE: &str = "
CREATE TABLE public.orders (id integer PRIMARY KEY, note text DEFAULT 'x');
CREATE TABLE public.lines (id serial PRIMARY KEY, order_id integer REFERENCES public.orders (id));
INSERT INTO public.orders (id) VALUES (1), (2);
INSERT INTO public.lines (order_id) VALUES (1), (2);
CREATE SCHEMA extra;
CREATE VIEW extra.all_orders AS SELECT * FROM public.orders;
CREATE FUNCTION public.grow() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO public.orders VALUES (9)';
";

#[tokio::test(flavor = "multi_thread")]
async fn the_reader_reads_and_nothing_it_sends_has_an_effect() {
    let server = TestServer::start().await;
    let mut owner = server.postgres.connect_options(Role::SampleOwner).connect().await.unwrap();
    owner.execute(sqlx::raw_sql(SAMPLE)).await.unwrap();

    let mut reader = server.postgres.connect_options(Role::SampleReader).connect().await.unwrap();
    for allowed in [
        "SELECT * FROM orders JOIN lines ON order_id = orders.id ORDER BY random()",
        "SELECT count(*) FROM extra.all_orders",
        "SELECT gen_random_uuid(), clock_timestamp(), timeofday(), pg_sleep(0), setseed(0.5), random()",
        "SELECT pg_total_relation_size('orders'), pg_size_pretty(pg_database_size(current_database()))",
        "SELECT * FROM information_schema.columns",
        "SELECT * FROM information_schema.table_constraints",
        "SELECT * FROM pg_catalog.pg_tables",
        "SELECT jsonb_agg(o), string_agg(note, ','), array_agg(id) FROM orders o",
        "SELECT row_to_json(o) FROM orders o TABLESAMPLE BERNOULLI (50)",
        "SELECT * FROM generate_series(now(), now() + '1 hour', '1 minute')",
        "SELECT regexp_replace('a', 'b', 'c'), to_char(now(), 'YYYY'), 'orders'::regclass",
        "EXPLAIN ANALYZE SELECT * FROM orders",
    ] {
        if let Err(error) = reader.execute(allowed).await {
            panic!("{allowed}: {error}");
        }
    }
    reader.close().await.unwrap();

    // Each alone on a fresh session, first as the session begins, then with its read-only start turned off: then the
    // rights alone must hold.
    let mut wrong = Vec::new();
    for sql in ESCAPES {
        for prelude in ["SELECT 1", "SET default_transaction_read_only = off"] {
            let mut reader = server.postgres.connect_options(Role::SampleReader).connect().await.unwrap();
            reader.execute(prelude).await.unwrap();
            match reader.execute(*sql).await {
                Ok(_) => wrong.push(format!("{sql} after {prelude}: allowed")),
                Err(error) => {
                    let code = error.as_database_error().and_then(DatabaseError::code);
                    if !matches!(code.as_deref(), Some("42501" | "25006")) {
                        wrong.push(format!("{sql} after {prelude}: {error}"));
                    }
                }
            }
            reader.close().await.unwrap();
        }
    }
    let mut reader = server.postgres.connect_options(Role::SampleReader).connect().await.unwrap();
    let lock = reader.execute("BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE").await.unwrap_err();
    assert_eq!(lock.as_database_error().and_then(DatabaseError::code).as_deref(), Some("42501"));
    reader.close().await.unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&mut owner).await.unwrap();
    assert_eq!(rows, 2);
    owner.close().await.unwrap();
    server.stop().await;
}

const ESCAPES: &[&str] = &[
    "INSERT INTO orders VALUES (3)",
    "UPDATE orders SET note = 'y'",
    "DELETE FROM orders",
    "TRUNCATE orders",
    "WITH gone AS (DELETE FROM orders RETURNING *) SELECT * FROM gone",
    "SELECT * FROM orders FOR UPDATE",
    "SELECT * FROM orders FOR KEY SHARE",
    "SELECT * INTO copied FROM orders",
    "CREATE TABLE made (id integer)",
    "CREATE TEMP TABLE made (id integer)",
    "CREATE TEMP VIEW made AS SELECT 1",
    "CREATE TEMP SEQUENCE made",
    "CREATE VIEW made AS SELECT 1",
    "CREATE SCHEMA made",
    "CREATE FUNCTION made() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "CREATE FUNCTION pg_temp.made() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "CREATE EXTENSION dblink",
    "CREATE EXTENSION pg_trgm",
    "CREATE DATABASE made",
    "CREATE ROLE made",
    "DROP TABLE orders",
    "ALTER TABLE orders ADD made integer",
    "CREATE INDEX ON orders (note)",
    "REINDEX TABLE orders",
    "COMMENT ON TABLE orders IS 'mine'",
    "ALTER TABLE orders OWNER TO annals_sample_reader",
    "ALTER DATABASE annals_sample SET work_mem = '1GB'",
    "ALTER ROLE annals_sample_owner PASSWORD 'x'",
    "SET ROLE annals_sample_owner",
    "SET ROLE postgres",
    "SET SESSION AUTHORIZATION postgres",
    "SET session_replication_role = replica",
    "SET log_statement = 'none'",
    "COPY orders TO '/tmp/annals-escape'",
    "COPY orders FROM '/etc/passwd'",
    "COPY orders TO PROGRAM 'true'",
    "LOAD 'auto_explain'",
    "CHECKPOINT",
    "DO $$ BEGIN PERFORM 1; END $$",
    "DO $$ BEGIN EXECUTE 'DELETE FROM orders'; END $$",
    "SELECT grow()",
    "SELECT nextval('lines_id_seq')",
    "SELECT setval('lines_id_seq', 9)",
    "SELECT set_config('default_transaction_read_only', 'off', false)",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_read_binary_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT pg_stat_file('/etc/passwd')",
    "SELECT * FROM pg_authid",
    "SELECT * FROM pg_hba_file_rules",
    "SELECT pg_current_logfile()",
    "SELECT lo_create(4242)",
    "SELECT lo_creat(-1)",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT lo_put(1, 0, 'x')",
    "SELECT lo_get(1)",
    "SELECT lo_open(1, 131072)",
    "SELECT lo_unlink(1)",
    "SELECT lo_truncate(0, 0)",
    "SELECT lowrite(0, 'x')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT lo_export(1, '/tmp/annals-escape')",
    "SELECT pg_notify('a', 'b')",
    "SELECT pg_logical_emit_message(false, 'a', 'b')",
    "SELECT pg_logical_emit_message(false, 'a', 'b'::bytea)",
    "SELECT pg_create_physical_replication_slot('made')",
    "SELECT pg_create_logical_replication_slot('made', 'pgoutput')",
    "SELECT pg_drop_replication_slot('made')",
    "SELECT pg_export_snapshot()",
    "SELECT txid_current()",
    "SELECT pg_current_xact_id()",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_try_advisory_lock(1)",
    "SELECT pg_advisory_xact_lock(1)",
    "SELECT pg_advisory_unlock_all()",
    "SELECT pg_terminate_backend(pg_backend_pid())",
    "SELECT pg_cancel_backend(pg_backend_pid())",
    "SELECT pg_reload_conf()",
    "SELECT pg_rotate_logfile()",
    "SELECT pg_switch_wal()",
    "SELECT pg_stat_reset()",
    "SELECT pg_log_backend_memory_contexts(pg_backend_pid())",
    "SELECT query_to_xml('DELETE FROM orders', true, false, '')",
    "SELECT query_to_xmlschema('SELECT 1', true, false, '')",
    "SELECT table_to_xml('orders', true, false, '')",
    "SELECT database_to_xml(true, false, '')",
    "SELECT * FROM ts_stat('SELECT to_tsvector(''a'')')",
    "SELECT ts_rewrite('a'::tsquery, 'SELECT ''a''::tsquery, ''b''::tsquery')",
    "SELECT binary_upgrade_set_next_pg_type_oid(1)",
    "SELECT brin_summarize_new_values('orders_pkey')",
    "SELECT gin_clean_pending_list('orders_pkey')",
    "SELECT pg_import_system_collations('public')",
    "SELECT pg_replication_origin_create('made')",
    "SELECT pg_promote()",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_changed_its_own_role_is_set_right_by_the_next_start() {
    let server = TestServer::start().await;
    let options = server.postgres.connect_options(Role::SampleReader);
    let mut reader = options.connect().await.unwrap();
    // A role may always change its own password and settings; in the read-only transactions of `sql_query` it cannot.
    let error = reader.execute("ALTER ROLE CURRENT_USER PASSWORD 'mine'").await.unwrap_err();
    assert_eq!(error.as_database_error().and_then(DatabaseError::code).as_deref(), Some("25006"));
    for sql in [
        "SET default_transaction_read_only = off",
        "ALTER ROLE CURRENT_USER SET default_transaction_read_only = off",
        "ALTER ROLE CURRENT_USER IN DATABASE annals_sample SET default_transaction_read_only = off",
        "ALTER ROLE CURRENT_USER PASSWORD 'mine'",
    ] {
        reader.execute(sql).await.unwrap();
    }
    reader.close().await.unwrap();
    let again = annals::db::Postgres::start(super::server::options(server.data_dir.path())).await.unwrap();
    let mut reader = again.connect_options(Role::SampleReader).connect().await.unwrap();
    let read_only: String =
        sqlx::query_scalar("SHOW default_transaction_read_only").fetch_one(&mut reader).await.unwrap();
    assert_eq!(read_only, "on");
    reader.close().await.unwrap();
    assert!(options.password("mine").connect().await.is_err());
    again.stop().await.unwrap();
    server.stop().await;
}
