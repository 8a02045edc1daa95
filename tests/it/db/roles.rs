//! What each role may do, as a table: every cell is tried on a real server.

use std::time::Duration;

use annals::db::{Postgres, Role, SAMPLE_DATABASE};
use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};

use super::server::{DataDir, TestServer};

/// Insufficient privilege, and no right to connect, which Postgres reports by the same code.
const DENIED: &str = "42501";
/// A write in a session that begins read-only.
const READ_ONLY: &str = "25006";

/// What a projection makes as the owner, in small.
const PROJECTION: &str = "
CREATE SCHEMA audit_v1;
CREATE TABLE audit_v1.audit_events (id bigint PRIMARY KEY);
GRANT SELECT, INSERT ON audit_v1.audit_events TO annals_writer;
INSERT INTO audit_v1.audit_events VALUES (1);
CREATE VIEW public.audit_logs AS SELECT * FROM audit_v1.audit_events;
CREATE FUNCTION audit_v1.make_partition() RETURNS void LANGUAGE sql SECURITY DEFINER
    AS 'CREATE TABLE IF NOT EXISTS audit_v1.made (id bigint)';
";

/// Runs `sql` as `role` in a transaction that is rolled back; the code of the error, or nothing.
async fn attempt(connection: &mut PgConnection, sql: &str) -> Option<String> {
    let mut transaction = connection.begin().await.expect("a transaction");
    let result = transaction.execute(sqlx::query(AssertSqlSafe(sql.to_owned()))).await;
    let code = result.err().map(|error| match error.as_database_error().and_then(DatabaseError::code) {
        Some(code) => code.into_owned(),
        None => error.to_string(),
    });
    transaction.rollback().await.expect("a rollback");
    code
}

async fn as_role(postgres: &Postgres, role: Role) -> PgConnection {
    postgres.connect_options(role).connect().await.expect("a connection")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_may_do_its_work_and_nothing_else() {
    let server = TestServer::start().await;
    let mut owner = as_role(&server.postgres, Role::Owner).await;
    owner.execute(sqlx::raw_sql(PROJECTION)).await.unwrap();
    owner.close().await.unwrap();

    // Columns: owner, writer, reader, auditor. `Y` allowed, `-` denied, `r` refused because the session only reads.
    let table = [
        ("SELECT FROM public.audit_logs", "Y-YY"),
        ("SELECT FROM audit_v1.audit_events", "YYY-"),
        ("INSERT INTO audit_v1.audit_events VALUES (2)", "YYr-"),
        ("UPDATE audit_v1.audit_events SET id = 3", "Y-r-"),
        ("DELETE FROM audit_v1.audit_events", "Y-r-"),
        ("TRUNCATE audit_v1.audit_events", "Y-rr"),
        ("SELECT audit_v1.make_partition()", "YY--"),
        ("CREATE TABLE audit_v1.more (id bigint)", "Y-rr"),
        ("CREATE TABLE public.more (id bigint)", "Y-rr"),
        ("CREATE SCHEMA more", "Y-rr"),
        ("CREATE TEMP TABLE more (id bigint)", "Y-rr"),
        ("CREATE ROLE more", "--rr"),
        ("CREATE DATABASE more", "----"),
        ("DROP VIEW public.audit_logs", "Y-rr"),
        ("SELECT FROM annals.api_keys", "YYY-"),
        (
            "INSERT INTO annals.outbox (event_id, topic, key, body) VALUES (gen_random_uuid(), '', '', '')",
            "YYr-",
        ),
        ("UPDATE annals.checkpoints SET epoch = 1", "YYr-"),
        ("DELETE FROM annals.outbox", "YYr-"),
        ("SELECT FROM annals.lane_heads, annals.parked, annals.findings, annals.once", "YYY-"),
        ("SELECT FROM annals.migrations", "Y---"),
        ("DROP TABLE annals.once", "Y-rr"),
        ("SET ROLE annals_owner", "Y---"),
        ("SET ROLE postgres", "----"),
        ("SELECT FROM pg_authid", "----"),
        ("SELECT pg_read_file('PG_VERSION')", "----"),
        ("COPY audit_v1.audit_events TO PROGRAM 'true'", "----"),
        ("ALTER SYSTEM SET work_mem = '1GB'", "!!!!"),
    ];
    let mut wrong = Vec::new();
    for (column, role) in [Role::Owner, Role::Writer, Role::Reader, Role::Auditor].into_iter().enumerate() {
        let mut connection = as_role(&server.postgres, role).await;
        for (sql, cells) in table {
            let expected = match cells.as_bytes()[column] {
                b'Y' => None,
                b'r' => Some(READ_ONLY),
                // Not inside a transaction; without one, below.
                b'!' => Some("25001"),
                _ => Some(DENIED),
            };
            // A database is not made inside a transaction either, but the right is looked at first or last.
            let found = attempt(&mut connection, sql).await;
            let is_right =
                found.as_deref() == expected || (sql.starts_with("CREATE DATABASE") && found.is_some());
            if !is_right {
                wrong.push(format!("{}: {sql}: {found:?}, not {expected:?}", role.name()));
            }
        }
        for sql in ["ALTER SYSTEM SET work_mem = '1GB'", "CREATE DATABASE more"] {
            let error = connection.execute(sql).await.expect_err("denied");
            let code =
                error.as_database_error().and_then(DatabaseError::code).map(std::borrow::Cow::into_owned);
            if !matches!(code.as_deref(), Some(DENIED | READ_ONLY)) {
                wrong.push(format!("{}: {sql}: {error}", role.name()));
            }
        }
        // A session may turn its read-only start off; its rights hold all the same.
        connection.execute("SET default_transaction_read_only = off").await.unwrap();
        for (sql, cells) in table {
            if cells.as_bytes()[column] == b'r' {
                let found = attempt(&mut connection, sql).await;
                if found.as_deref() != Some(DENIED) {
                    wrong.push(format!("{}, read-write: {sql}: {found:?}", role.name()));
                }
            }
        }
        connection.close().await.unwrap();
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_connect_to_their_own_database_only_and_have_no_attributes() {
    let server = TestServer::start().await;
    for role in Role::ALL {
        let options = server.postgres.connect_options(role);
        for database in ["annals", SAMPLE_DATABASE, "postgres", "template1"] {
            let is_own = (database == SAMPLE_DATABASE) == role.is_sample()
                && ["annals", SAMPLE_DATABASE].contains(&database);
            match options.clone().database(database).connect().await {
                Ok(connection) => {
                    assert!(is_own, "{} may connect to {database}", role.name());
                    connection.close().await.unwrap();
                }
                Err(error) => {
                    let code = error.as_database_error().and_then(DatabaseError::code);
                    assert_eq!((is_own, code.as_deref()), (false, Some(DENIED)), "{}: {error}", role.name());
                }
            }
        }
    }
    let mut reader = as_role(&server.postgres, Role::Reader).await;
    let with_attributes: Vec<String> = sqlx::query_scalar(
        "SELECT rolname::text FROM pg_roles WHERE rolname LIKE 'annals%' \
         AND (rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls OR NOT rolcanlogin)",
    )
    .fetch_all(&mut reader)
    .await
    .unwrap();
    assert_eq!(with_attributes, Vec::<String>::new());
    let memberships: i64 =
        sqlx::query_scalar("SELECT count(*) FROM pg_auth_members WHERE member::regrole::text LIKE 'annals%'")
            .fetch_one(&mut reader)
            .await
            .unwrap();
    assert_eq!(memberships, 0);
    reader.close().await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_are_bounded_and_their_statements_end() {
    let data_dir = DataDir::new();
    let mut options = super::server::options(data_dir.path());
    options.database.query_timeout_ms = 100;
    options.database.pool_connections_max = 4;
    options.database.acquire_timeout_ms = 2_000;
    let postgres = Postgres::start(options).await.unwrap();
    for (role, ends) in
        [(Role::Auditor, true), (Role::Reader, true), (Role::Writer, false), (Role::Owner, false)]
    {
        let pool = postgres.pool(role);
        let slept = sqlx::query("SELECT pg_sleep(0.3)").execute(&pool).await;
        let code = slept.err().and_then(|error| Some(error.as_database_error()?.code()?.into_owned()));
        assert_eq!(code.as_deref(), ends.then_some("57014"), "{}", role.name());
        let held = futures::future::try_join_all((0..4).map(|_| pool.acquire())).await.unwrap();
        assert_eq!(pool.options().get_acquire_timeout(), Duration::from_millis(2_000));
        if role == Role::Writer {
            assert!(matches!(pool.acquire().await, Err(sqlx::Error::PoolTimedOut)));
        }
        drop(held);
        pool.close().await;
    }
    postgres.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_sets_right_what_was_changed() {
    let server = TestServer::start().await;
    let path = server.data_dir.path();
    let password = std::fs::read_to_string(path.join("keys/postgres")).unwrap();
    let superuser =
        server.postgres.connect_options(Role::Owner).username("postgres").password(password.trim());
    let mut superuser = superuser.connect().await.unwrap();
    superuser
        .execute(sqlx::raw_sql(
            "ALTER ROLE annals_auditor SUPERUSER CREATEDB; ALTER ROLE annals_writer SET search_path = nowhere; \
             ALTER ROLE annals_auditor RESET default_transaction_read_only; \
             GRANT CONNECT ON DATABASE annals TO PUBLIC; GRANT CREATE ON SCHEMA public TO PUBLIC",
        ))
        .await
        .unwrap();
    let again = Postgres::start(super::server::options(path)).await.unwrap();
    let mut auditor = as_role(&again, Role::Auditor).await;
    assert_eq!(attempt(&mut auditor, "SELECT FROM pg_authid").await.as_deref(), Some(DENIED));
    assert_eq!(attempt(&mut auditor, "CREATE TABLE public.t (i int)").await.as_deref(), Some(READ_ONLY));
    auditor.execute("SET default_transaction_read_only = off").await.unwrap();
    assert_eq!(attempt(&mut auditor, "CREATE TABLE public.t (i int)").await.as_deref(), Some(DENIED));
    let stranger = again.connect_options(Role::SampleReader).database("annals").connect().await.unwrap_err();
    assert_eq!(stranger.as_database_error().and_then(DatabaseError::code).as_deref(), Some(DENIED));
    let mut writer = as_role(&again, Role::Writer).await;
    let path: String = sqlx::query_scalar("SHOW search_path").fetch_one(&mut writer).await.unwrap();
    assert_eq!(path, "\"$user\", public");
    again.stop().await.unwrap();
    server.stop().await;
}
