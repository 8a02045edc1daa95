//! What cannot work says why and what to do, and leaves no process behind.

use std::path::Path;

use annals::db::{Error, ErrorKind, Postgres};

use super::server::{DataDir, TestServer, count_once, options, processes_of};

async fn refused(data_dir: &Path) -> Error {
    let error = Postgres::start(options(data_dir)).await.expect_err("a refusal");
    assert_eq!(processes_of(data_dir), Vec::<u32>::new());
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_another_major_version_is_refused_with_the_steps() {
    let server = TestServer::start().await;
    let path = std::fs::canonicalize(server.data_dir.path()).unwrap();
    server.postgres.clone().stop().await.unwrap();
    let version = std::fs::read_to_string(path.join("pg/PG_VERSION")).unwrap();
    std::fs::write(path.join("pg/PG_VERSION"), "11\n").unwrap();
    let error = refused(&path).await;
    let Error::MajorVersion { data, binaries, .. } = &error else { panic!("{error}") };
    assert_eq!((data.as_str(), binaries.to_string()), ("11", version.trim().to_owned()));
    let text = error.to_string();
    for part in ["has version 11", "ANNALS_PG_BIN", "pg_upgrade -b <bin of 11>"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Refused, false));
    std::fs::write(path.join("pg/PG_VERSION"), version).unwrap();
    let again = Postgres::start(options(&path)).await.unwrap();
    again.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_directory_is_left_alone() {
    let data_dir = DataDir::new();
    std::fs::create_dir(data_dir.path().join("pg")).unwrap();
    std::fs::write(data_dir.path().join("pg/letter"), "dear").unwrap();
    let error = refused(data_dir.path()).await;
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(data_dir.path().join("pg/letter")).unwrap(), "dear");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_start_shows_the_end_of_its_log() {
    let server = TestServer::start().await;
    let path = server.data_dir.path();
    server.postgres.clone().stop().await.unwrap();
    std::fs::write(path.join("pg/postgresql.auto.conf"), "no_such_setting = 1\n").unwrap();
    let error = refused(path).await;
    let Error::Start { cause, tail, .. } = &error else { panic!("{error}") };
    assert_eq!(cause, "it ended (exit status: 1)");
    assert!(tail.contains("unrecognized configuration parameter \"no_such_setting\""), "{tail}");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unreachable, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_superuser_password_is_named_and_a_lost_role_password_is_set_anew() {
    let server = TestServer::start().await;
    let path = server.data_dir.path();
    server.postgres.clone().stop().await.unwrap();
    std::fs::remove_file(path.join("keys/annals_writer")).unwrap();
    std::fs::write(path.join("keys/annals_reader"), "something else\n").unwrap();
    let healed = Postgres::start(options(path)).await.unwrap();
    assert_eq!(count_once(&healed).await, 0);
    healed.stop().await.unwrap();

    let key = path.join("keys/postgres");
    let password = std::fs::read_to_string(&key).unwrap();
    for lost in [None, Some("something else\n")] {
        std::fs::remove_file(&key).unwrap();
        if let Some(text) = lost {
            std::fs::write(&key, text).unwrap();
        }
        let error = refused(path).await;
        let Error::Password { path: named } = &error else { panic!("{error}") };
        assert!(named.ends_with("keys/postgres"), "{}", named.display());
        std::fs::write(&key, &password).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_never_stops_a_server_that_others_use() {
    let server = TestServer::start().await;
    let path = server.data_dir.path();
    let key = path.join("keys/postgres");
    let password = std::fs::read_to_string(&key).unwrap();
    std::fs::write(&key, "something else\n").unwrap();
    let error = Postgres::start(options(path)).await.expect_err("a refusal");
    assert!(matches!(error, Error::Password { .. }), "{error}");
    assert_eq!(count_once(&server.postgres).await, 0);
    std::fs::write(&key, password).unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn binaries_that_are_named_are_the_only_ones() {
    let data_dir = DataDir::new();
    let mut with = options(data_dir.path());
    with.pg_bin = Some(data_dir.path().join("nowhere"));
    let error = Postgres::start(with).await.expect_err("a refusal");
    let text = error.to_string();
    for part in ["nowhere: no initdb there", "apt-get install postgresql", "ANNALS_PG_BIN", "DATABASE_URL"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Missing, false));
    assert!(!data_dir.path().join("pg").exists());
}
