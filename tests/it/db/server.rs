//! A private Postgres in a directory of its own, that does not outlive its test.

use std::path::Path;

use annals::db::{Options, Postgres, Role};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{ConnectOptions, Connection};

/// The options for a private server in `data_dir`.
pub(crate) fn options(data_dir: &Path) -> Options {
    Options {
        data_dir: data_dir.to_owned(),
        url: None,
        pg_bin: None,
        database: annals::config::Database::default(),
    }
}

/// A data directory for one test. No process that works in it outlives it, even when the test fails.
pub(crate) struct DataDir(tempfile::TempDir);

impl DataDir {
    /// A new one, empty.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        for pid in processes_of(self.path()) {
            signal(pid, Signal::KILL);
        }
    }
}

/// A server for one test. Call [`TestServer::stop`] at the end; a test that fails before leaves it to its directory.
pub(crate) struct TestServer {
    pub(crate) postgres: Postgres,
    pub(crate) data_dir: DataDir,
}

impl TestServer {
    /// Makes and starts one.
    pub(crate) async fn start() -> Self {
        let data_dir = DataDir::new();
        let postgres = Postgres::start(options(data_dir.path())).await.expect("a private server");
        Self { postgres, data_dir }
    }

    /// Stops it and sees that nothing of it is left.
    pub(crate) async fn stop(self) {
        self.postgres.clone().stop().await.expect("the server stops");
        assert_eq!(processes_of(self.data_dir.path()), Vec::<u32>::new());
    }
}

/// The ids of all processes that work below `data_dir`.
pub(crate) fn processes_of(data_dir: &Path) -> Vec<u32> {
    let data_dir = std::fs::canonicalize(data_dir).expect("a real path");
    let processes = std::fs::read_dir("/proc").expect("a list of processes");
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(&data_dir))
        })
        .collect()
}

/// Sends `to`; the process may have ended meanwhile.
pub(crate) fn signal(pid: u32, to: Signal) {
    let pid = Pid::from_raw(pid.try_into().expect("a process id")).expect("not zero");
    kill_process(pid, to).ok();
}

/// The process id of the server of `data_dir`, which runs.
pub(crate) fn postmaster(data_dir: &Path) -> u32 {
    let text = std::fs::read_to_string(data_dir.join("pg/postmaster.pid")).expect("a running server");
    let pid = text.lines().next().and_then(|line| line.parse().ok()).expect("a process id");
    assert!(processes_of(data_dir).contains(&pid), "{pid} does not run");
    pid
}

/// Writes one row of state as the writer.
pub(crate) async fn write_once(postgres: &Postgres) {
    let mut writer = postgres.connect_options(Role::Writer).connect().await.expect("a connection");
    sqlx::query("INSERT INTO annals.once VALUES ('p', 1, 's', gen_random_uuid(), sha256('a'))")
        .execute(&mut writer)
        .await
        .expect("a row");
    writer.close().await.expect("a closed connection");
}

/// Counts, as the reader, what [`write_once`] wrote.
pub(crate) async fn count_once(postgres: &Postgres) -> i64 {
    let mut reader = postgres.connect_options(Role::Reader).connect().await.expect("a connection");
    let count = sqlx::query_scalar("SELECT count(*) FROM annals.once");
    let count = count.fetch_one(&mut reader).await.expect("a count");
    reader.close().await.expect("a closed connection");
    count
}
