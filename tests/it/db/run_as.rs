//! As whom the server runs: never as root, whoever we are.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};

use annals::db::Postgres;

use super::server::{DataDir, count_once, options, postmaster};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this machine lets us have a user namespace, asked independently of the code under test.
fn has_namespaces() -> bool {
    let uid = Command::new("unshare").args(["-U", "--map-user=65534", "--", "id", "-u"]).output();
    uid.is_ok_and(|output| output.stdout == b"65534\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_runs_as_whom_it_must() {
    let parent = DataDir::new();
    let path = &parent.path().join("made");
    let postgres = Postgres::start(options(path)).await.unwrap();
    let process = std::fs::metadata(format!("/proc/{}", postmaster(path))).unwrap();
    let own_uid = rustix::process::geteuid().as_raw();
    let files = std::fs::metadata(path.join("pg")).unwrap();
    let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    if is_root() && !has_namespaces() {
        assert_ne!(files.uid(), 0);
        assert_eq!((process.uid(), mode), (files.uid(), 0o711));
    } else {
        assert_eq!((process.uid(), files.uid(), mode), (own_uid, own_uid, 0o700));
    }
    // Secrets stay ours.
    assert_eq!(std::fs::metadata(path.join("keys/annals_owner")).unwrap().uid(), own_uid);
    // Inside, the server is not root: in a namespace it has another number there.
    let map = std::fs::read_to_string(format!("/proc/{}/uid_map", postmaster(path))).unwrap();
    let inside: u32 = map.split_whitespace().next().unwrap().parse().unwrap();
    assert!(process.uid() != 0 || inside != 0, "{map}");
    assert_eq!(count_once(&postgres).await, 0);
    postgres.stop().await.unwrap();
}

/// Runs tests of this binary again, from a copy that other users can reach, by way of `before`.
fn run_again(before: &[&str], path: &str, tests: &[&str]) -> Output {
    let directory = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let program = directory.path().join("it");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let words: Vec<&str> = before.iter().copied().chain([program.to_str().unwrap()]).collect();
    let (first, rest) = words.split_first().unwrap();
    Command::new(first)
        .args(rest)
        .arg("--exact")
        .args(tests)
        .env("PATH", path)
        .current_dir("/")
        .output()
        .unwrap()
}

fn assert_passed(output: &Output, count: usize) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("test result: ok. {count} passed")), "{output:?}");
}

const AGAIN: [&str; 3] = [
    "db::run_as::the_server_runs_as_whom_it_must",
    "db::private::a_fresh_server_starts_and_stops_and_keeps_what_was_written",
    "db::private::what_a_killed_server_leaves_does_not_stop_the_next",
];
const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

// Where the tests run as an ordinary user, all of them already show what the next two show.

#[test]
fn an_ordinary_user_can_do_it_too() {
    if is_root() {
        let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
        assert_passed(&run_again(&as_nobody, SYSTEM_PATH, &AGAIN), 3);
    }
}

#[test]
fn root_without_namespaces_runs_it_as_an_unprivileged_user() {
    if is_root() {
        // Without the program that makes them, there are none.
        assert_passed(&run_again(&[], "/nonexistent", &AGAIN), 3);
    }
}
