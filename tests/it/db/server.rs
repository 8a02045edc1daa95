//! A private Postgres in a directory of its own, that does not outlive its test.

use std::path::Path;

use annals::db::{Options, Postgres};

/// The options for a private server in `data_dir`.
pub(crate) fn options(data_dir: &Path) -> Options {
    Options {
        data_dir: data_dir.to_owned(),
        url: None,
        pg_bin: None,
        database: annals::config::Database::default(),
    }
}

/// A server for one test. Call [`TestServer::stop`] at the end; a test that fails before leaves it to `drop`.
pub(crate) struct TestServer {
    pub(crate) postgres: Postgres,
    pub(crate) data_dir: tempfile::TempDir,
}

impl TestServer {
    /// Makes and starts one.
    pub(crate) async fn start() -> Self {
        let data_dir = tempfile::tempdir().expect("a temporary directory");
        let postgres = Postgres::start(options(data_dir.path())).await.expect("a private server");
        Self { postgres, data_dir }
    }

    /// Stops it and sees that nothing of it is left.
    pub(crate) async fn stop(self) {
        self.postgres.clone().stop().await.expect("the server stops");
        assert_eq!(processes_of(self.data_dir.path()), Vec::<u32>::new());
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        kill_all(self.data_dir.path());
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

/// Ends, at once, all processes that work below `data_dir`.
pub(crate) fn kill_all(data_dir: &Path) {
    for pid in processes_of(data_dir) {
        let pid = rustix::process::Pid::from_raw(pid.try_into().expect("a process id")).expect("not zero");
        // It may have ended meanwhile.
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
    }
}
