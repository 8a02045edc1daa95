//! A server of the user's own, named by `DATABASE_URL`.

use std::path::Path;

use annals::db::{Error, ErrorKind, Options, Postgres, Role};
use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};

use super::server::{DataDir, TestServer, count_once, options, write_once};

/// A server without anything of Annals on it, and its superuser.
pub(crate) async fn plain_server() -> (TestServer, PgConnection) {
    let server = TestServer::start().await;
    let password = std::fs::read_to_string(server.data_dir.path().join("keys/postgres")).unwrap();
    let superuser =
        server.postgres.connect_options(Role::Owner).username("postgres").password(password.trim());
    let mut superuser = superuser.database("postgres").connect().await.unwrap();
    superuser.execute("DROP DATABASE annals").await.unwrap();
    superuser.execute("DROP DATABASE annals_sample").await.unwrap();
    for role in Role::ALL {
        run(&mut superuser, &format!("DROP OWNED BY {0}; DROP ROLE {0}", role.name())).await;
    }
    (server, superuser)
}

pub(crate) async fn run(connection: &mut PgConnection, sql: &str) {
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
}

pub(crate) fn url(server: &TestServer, role: &str, database: &str) -> String {
    let socket = server.postgres.socket().unwrap();
    format!("postgres://{role}:secret@localhost:{}/{database}?host={}", socket.port, socket.dir.display())
}

fn external(data_dir: &Path, url: String) -> Options {
    Options { url: Some(url), ..options(data_dir) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_owns_its_database_and_may_create_roles_is_enough() {
    let (server, mut superuser) = plain_server().await;
    run(&mut superuser, "CREATE ROLE ops LOGIN CREATEROLE PASSWORD 'secret'").await;
    run(&mut superuser, "CREATE DATABASE \"Audit \"\"db\" OWNER ops").await;
    let data_dir = DataDir::new();
    let with = || external(data_dir.path(), url(&server, "ops", "Audit%20%22db"));
    let postgres = Postgres::start(with()).await.unwrap();
    assert!(!postgres.has_sample());
    assert_eq!(postgres.socket(), None);
    write_once(&postgres).await;
    // Again, and by a process that only looks.
    Postgres::start(with()).await.unwrap();
    let attached = Postgres::attach(with()).await.unwrap().expect("a server in shape");
    assert_eq!(count_once(&attached).await, 1);
    let mut auditor = postgres.connect_options(Role::Auditor).connect().await.unwrap();
    let error = auditor.execute("SELECT FROM annals.once").await.unwrap_err();
    assert_eq!(error.as_database_error().and_then(DatabaseError::code).as_deref(), Some("42501"));
    auditor.close().await.unwrap();
    let databases: Vec<String> =
        sqlx::query_scalar("SELECT datname::text FROM pg_database WHERE NOT datistemplate ORDER BY 1")
            .fetch_all(&mut superuser)
            .await
            .unwrap();
    assert_eq!(databases, ["Audit \"db", "postgres"]);
    assert!(!data_dir.path().join("pg").exists());
    // It is not ours to stop.
    postgres.stop().await.unwrap();
    assert_eq!(count_once(&attached).await, 1);

    // Another data directory has other passwords; the last start counts, and the first heals itself.
    let other_dir = DataDir::new();
    let other =
        Postgres::start(external(other_dir.path(), url(&server, "ops", "Audit%20%22db"))).await.unwrap();
    assert_eq!(count_once(&other).await, 1);
    let healed = Postgres::start(with()).await.unwrap();
    assert_eq!(count_once(&healed).await, 1);
    superuser.close().await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_with_the_statement_that_gives_it() {
    let (server, mut superuser) = plain_server().await;
    run(&mut superuser, "CREATE ROLE ops LOGIN PASSWORD 'secret'").await;
    run(&mut superuser, "CREATE DATABASE audit").await;
    run(&mut superuser, "GRANT CONNECT ON DATABASE audit TO ops").await;
    let data_dir = DataDir::new();
    let start = || Postgres::start(external(data_dir.path(), url(&server, "ops", "audit")));
    for (lacks, remedy) in [
        ("may not create roles; as a superuser: ALTER ROLE \"ops\" CREATEROLE", "ALTER ROLE ops CREATEROLE"),
        (
            "does not own the database \"audit\"; as a superuser: ALTER DATABASE \"audit\" OWNER TO \"ops\"",
            "ALTER DATABASE audit OWNER TO ops",
        ),
    ] {
        let error = start().await.expect_err("a refusal");
        assert_eq!(error.to_string(), format!("the role \"ops\" of DATABASE_URL {lacks}"));
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Refused, false));
        run(&mut superuser, remedy).await;
    }
    start().await.unwrap();
    // A role of ours that may do too much is refused, not used.
    run(&mut superuser, "ALTER ROLE annals_auditor CREATEDB").await;
    let error = start().await.expect_err("a refusal");
    let text = error.to_string();
    assert!(text.contains("role annals_auditor may do more") && text.contains("NOCREATEDB"), "{text}");
    superuser.close().await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_leads_nowhere_says_so() {
    let data_dir = DataDir::new();
    let error = Postgres::start(external(data_dir.path(), "mysql:/x".into())).await.expect_err("a refusal");
    assert!(matches!(error, Error::Url { .. }), "{error}");
    let text = "DATABASE_URL is not a Postgres URL: it does not begin with postgres:// or postgresql://";
    assert_eq!(error.to_string(), text);
    let with_password = external(data_dir.path(), "postgres://ops:topsecret@h:no/audit".into());
    assert!(!format!("{with_password:?}").contains("topsecret"));
    let error = Postgres::start(with_password).await.expect_err("a refusal");
    assert_eq!(
        error.to_string(),
        "DATABASE_URL is not a Postgres URL: error with configuration: invalid port number"
    );
    // A port that was free a moment ago: nobody listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("postgres://ops:topsecret@{free}/audit");
    let error = Postgres::start(external(data_dir.path(), url)).await.expect_err("a refusal");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unreachable, true), "{error}");
    assert!(error.to_string().starts_with("Postgres, while trying to connect to DATABASE_URL: "), "{error}");
    assert!(!format!("{error:?} {error}").contains("topsecret"));
}
