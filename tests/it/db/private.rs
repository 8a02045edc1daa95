//! Making, starting, sharing, adopting and stopping the private server.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use annals::db::{Postgres, Role};
use sqlx::{ConnectOptions, Connection};

use super::server::{DataDir, TestServer, count_once, options, postmaster, processes_of, signal, write_once};

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_server_starts_and_stops_and_keeps_what_was_written() {
    let server = TestServer::start().await;
    write_once(&server.postgres).await;
    server.postgres.clone().stop().await.unwrap();
    assert_eq!(processes_of(server.data_dir.path()), Vec::<u32>::new());
    let again = Postgres::start(options(server.data_dir.path())).await.unwrap();
    assert_eq!(count_once(&again).await, 1);
    again.stop().await.unwrap();
    assert_eq!(processes_of(server.data_dir.path()), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_left_running_is_adopted_and_can_be_stopped() {
    let TestServer { postgres, data_dir } = &TestServer::start().await;
    write_once(postgres).await;
    let pid = postmaster(data_dir.path());
    // Whoever is killed stops nothing; the system frees its locks, as it does here by a second handle.
    let adopted = Postgres::start(options(data_dir.path())).await.unwrap();
    assert_eq!(postmaster(data_dir.path()), pid);
    assert_eq!(count_once(&adopted).await, 1);
    adopted.stop().await.unwrap();
    assert_eq!(postmaster(data_dir.path()), pid, "the first handle still uses it");
    postgres.clone().stop().await.unwrap();
    assert_eq!(processes_of(data_dir.path()), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_that_was_dropped_holds_nothing() {
    let data_dir = DataDir::new();
    drop(Postgres::start(options(data_dir.path())).await.unwrap());
    let pid = postmaster(data_dir.path());
    let adopted = Postgres::start(options(data_dir.path())).await.unwrap();
    assert_eq!(postmaster(data_dir.path()), pid);
    adopted.stop().await.unwrap();
    assert_eq!(processes_of(data_dir.path()), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_at_the_same_time_share_one_server_and_the_last_stops_it() {
    let data_dir = DataDir::new();
    let start = || Postgres::start(options(data_dir.path()));
    let (a, b, c) = tokio::join!(start(), start(), start());
    let pid = postmaster(data_dir.path());
    for handle in [a.unwrap(), b.unwrap()] {
        handle.stop().await.unwrap();
        assert_eq!(postmaster(data_dir.path()), pid);
    }
    let last = c.unwrap();
    write_once(&last).await;
    last.stop().await.unwrap();
    assert_eq!(processes_of(data_dir.path()), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_finds_only_what_runs() {
    let data_dir = DataDir::new();
    assert!(Postgres::attach(options(&data_dir.path().join("missing"))).await.unwrap().is_none());
    assert!(Postgres::attach(options(data_dir.path())).await.unwrap().is_none());
    assert!(!data_dir.path().join("pg").exists());
    let serving = Postgres::start(options(data_dir.path())).await.unwrap();
    let attached = Postgres::attach(options(data_dir.path())).await.unwrap().expect("a running server");
    assert_eq!(attached.socket(), serving.socket());
    assert_eq!(count_once(&attached).await, 0);
    // The other way round: the one that attached goes on and, as the last, stops the server.
    serving.stop().await.unwrap();
    assert_eq!(count_once(&attached).await, 0);
    attached.stop().await.unwrap();
    assert_eq!(processes_of(data_dir.path()), Vec::<u32>::new());
    assert!(Postgres::attach(options(data_dir.path())).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_server_leaves_does_not_stop_the_next() {
    let TestServer { postgres, data_dir } = &TestServer::start().await;
    write_once(postgres).await;
    let path = data_dir.path();
    let dead = postmaster(path);
    let pid_file = std::fs::read_to_string(path.join("pg/postmaster.pid")).unwrap();
    signal(dead, rustix::process::Signal::KILL);
    // Its backends may still be there; the file still names it.
    let second = Postgres::start(options(path)).await.unwrap();
    assert_ne!(postmaster(path), dead);
    assert_eq!(count_once(&second).await, 1);
    second.stop().await.unwrap();
    postgres.clone().stop().await.unwrap();
    assert_eq!(processes_of(path), Vec::<u32>::new());

    // By now its process id belongs to somebody else, here to this test.
    let recycled = pid_file.replacen(&dead.to_string(), &std::process::id().to_string(), 1);
    std::fs::write(path.join("pg/postmaster.pid"), recycled).unwrap();
    let lock = path.join("pg-socket/.s.PGSQL.5432.lock");
    std::fs::write(lock, format!("{}\n", std::process::id())).unwrap();
    let third = Postgres::start(options(path)).await.unwrap();
    assert_eq!(count_once(&third).await, 1);
    third.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_path_moves_the_socket_and_nothing_else() {
    let top = DataDir::new();
    let data_dir = top.path().join("d".repeat(120)).join("data, \"quoted\"");
    std::fs::create_dir_all(&data_dir).unwrap();
    let first = Postgres::start(options(&data_dir)).await.unwrap();
    let socket_dir = first.socket().unwrap().dir;
    assert!(socket_dir.starts_with(std::env::temp_dir()), "{}", socket_dir.display());
    assert_eq!(mode(&socket_dir), 0o700);
    write_once(&first).await;
    let pid = postmaster(&data_dir);
    drop(first);
    let adopted = Postgres::start(options(&data_dir)).await.unwrap();
    assert_eq!((postmaster(&data_dir), &adopted.socket().unwrap().dir), (pid, &socket_dir));
    assert_eq!(count_once(&adopted).await, 1);
    adopted.stop().await.unwrap();
    assert!(!socket_dir.exists());
    assert_eq!(processes_of(&data_dir), Vec::<u32>::new());
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_comes_in_without_the_right_password() {
    let server = TestServer::start().await;
    let path = server.data_dir.path();
    let hba = std::fs::read_to_string(path.join("pg/pg_hba.conf")).unwrap();
    let rules: Vec<&str> = hba.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(rules.len() >= 2, "{hba}");
    for rule in rules {
        assert_eq!(rule.split_whitespace().last(), Some("scram-sha-256"), "{rule}");
    }
    let base = server.postgres.connect_options(Role::Reader);
    let names = Role::ALL.map(Role::name).into_iter().chain(["postgres"]);
    for name in names {
        for password in ["", "wrong"] {
            let error = base.clone().username(name).password(password).connect().await.unwrap_err();
            let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
            assert_eq!(code.as_deref(), Some("28P01"), "{name}: {error}");
        }
        assert_eq!(mode(&path.join("keys").join(name)), 0o600, "{name}");
    }
    assert_eq!(mode(&path.join("keys")), 0o700);
    let password = std::fs::read_to_string(path.join("keys/annals_owner")).unwrap();
    assert!(!format!("{:?}", server.postgres).contains(password.trim()));
    assert_eq!(mode(&path.join("pg")), 0o700);
    let socket = server.postgres.socket().unwrap();
    assert_eq!(mode(&socket.dir), 0o700);
    assert_eq!(mode(&socket.dir.join(".s.PGSQL.5432")), 0o700);
    let mut reader = base.connect().await.unwrap();
    let settings: Vec<(String, String)> = sqlx::query_as(
        "SELECT name, setting FROM pg_settings WHERE name IN \
         ('listen_addresses', 'fsync', 'full_page_writes', 'password_encryption', 'data_checksums') ORDER BY name",
    )
    .fetch_all(&mut reader)
    .await
    .unwrap();
    reader.close().await.unwrap();
    let settings: Vec<(&str, &str)> = settings.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(
        settings,
        [
            ("data_checksums", "on"),
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("listen_addresses", ""),
            ("password_encryption", "scram-sha-256"),
        ]
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_at_the_terminal_does_not_reach_the_server() {
    let server = TestServer::start().await;
    let group = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // The fields after the name, which stands in parentheses: state, parent, group.
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(2).unwrap().to_owned()
    };
    let pid = postmaster(server.data_dir.path()).to_string();
    assert_eq!(group(&pid), pid);
    assert_ne!(group(&pid), group("self"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_that_was_cut_short_is_made_anew() {
    let data_dir = DataDir::new();
    let half = data_dir.path().join("pg.new/data");
    std::fs::create_dir_all(&half).unwrap();
    std::fs::write(half.join("PG_VERSION"), "15\n").unwrap();
    let postgres = Postgres::start(options(data_dir.path())).await.unwrap();
    assert!(!data_dir.path().join("pg.new").exists());
    assert_eq!(count_once(&postgres).await, 0);
    let owner = std::fs::metadata(data_dir.path().join("pg")).unwrap().uid();
    assert_eq!(owner, std::fs::metadata(data_dir.path().join("pg/base")).unwrap().uid());
    postgres.stop().await.unwrap();
}
