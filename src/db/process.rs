//! Which operating-system processes serve a data directory, and signals to them.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

const POLL: Duration = Duration::from_millis(10);

/// What a running server writes into `postmaster.pid`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PidFile {
    pub(super) pid: u32,
    pub(super) port: Option<u16>,
    pub(super) socket_dir: Option<String>,
}

impl PidFile {
    /// Reads it; none when there is none or it is not one.
    pub(super) fn read(pg: &Path) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(pg.join("postmaster.pid")).ok()?)
    }

    /// Pid, data directory, start time, port, socket directory, address, shared memory, status: one line each.
    fn parse(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let pid = lines.first()?.parse().ok().filter(|&pid| pid > 1)?;
        let port = lines.get(3).and_then(|port| port.parse().ok());
        let socket_dir = lines.get(4).filter(|dir| !dir.is_empty()).map(|&dir| dir.to_owned());
        Some(Self { pid, port, socket_dir })
    }
}

/// Whether process `pid` is a Postgres server process that works in `pg`, a real path. A process that has ended but
/// was not collected yet is none. Where the system has no `/proc`, being alive must do.
pub(super) fn serves(pid: u32, pg: &Path) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    if !Path::new("/proc/self").exists() {
        return is_alive(pid);
    }
    let is_postgres = match std::fs::read_link(process.join("exe")) {
        // A program that was upgraded under a running server is shown as "postgres (deleted)".
        Ok(program) => program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("postgres")),
        // One that is just ending has lost its program, but still its place and its files.
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    is_postgres && std::fs::read_link(process.join("cwd")).is_ok_and(|directory| directory == pg)
}

/// Every Postgres process, postmaster or backend, that works in `pg`.
pub(super) fn all_that_serve(pg: &Path) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| serves(pid, pg))
        .collect()
}

fn is_alive(pid: u32) -> bool {
    to_pid(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
}

fn to_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// Sends `signal`; a process that is gone is no error.
pub(super) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = to_pid(pid)
        && let Err(error) = kill_process(pid, signal)
        && error != rustix::io::Errno::SRCH
    {
        tracing::warn!(process.pid = pid.as_raw_nonzero().get(), %error, "a signal could not be sent");
    }
}

/// Waits until none of `pids` serves `pg` any more; false when `wait_max` passed before.
pub(super) async fn ended(pids: &[u32], pg: &Path, wait_max: Duration) -> bool {
    let gone = async {
        while pids.iter().any(|&pid| serves(pid, pg)) {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(wait_max, gone).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_is_read_and_nonsense_is_none() {
        let text = "13863\n/data/pg\n1796058688\n5432\n/data/pg-socket\n\n 10020018         4\nready   \n";
        assert_eq!(
            PidFile::parse(text),
            Some(PidFile { pid: 13863, port: Some(5432), socket_dir: Some("/data/pg-socket".into()) })
        );
        for nonsense in ["", "x\n", "0\n", "-5\n/data", "1\n"] {
            assert_eq!(PidFile::parse(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn this_process_serves_no_database() {
        assert!(!serves(std::process::id(), &std::env::current_dir().unwrap()));
    }
}
