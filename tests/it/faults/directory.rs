//! The log's directory is moved away, removed, or made read-only under the server.

use std::time::Duration;

use super::load::Load;
use super::{Alarm, ENOUGH, lasts, record, refused_with, refuses, says_little, serve};
use crate::harness::Home;

const MOVED: Alarm = Alarm {
    cause: "directory_missing",
    says: "the log's directory is not there any more",
    code: "log_unavailable",
    retry_after_s: 2,
    verified: 3,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_comes_back_is_used_again() {
    let home = Home::new();
    let (log, away) = (home.data_dir().join("log"), home.path().join("away"));
    let strike = || std::fs::rename(&log, &away).unwrap();
    lasts(&home, &MOVED, strike, || std::fs::rename(&away, &log).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_takes_no_writes_for_a_while_is_used_again() {
    let home = Home::with_mounts();
    let log = home.data_dir().join("log");
    let alarm = Alarm {
        cause: "read_only",
        says: "the log's file system takes no writes",
        code: "log_unavailable",
        retry_after_s: 2,
        verified: 0,
    };
    let strike = || home.mounts().run("mount --bind \"$1\" \"$1\"; mount -o remount,bind,ro \"$1\"", &[&log]);
    lasts(&home, &alarm, strike, || home.mounts().run("umount --lazy \"$1\"", &[&log])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_stays_away_is_named_at_the_end() {
    let home = Home::new();
    let mut server = serve(&home).await;
    let load = Load::start(&server);
    load.more_ended(ENOUGH).await;
    // At once: what is seen of a removal that is under way is one lost file or the other.
    let removed = home.path().join("removed");
    std::fs::rename(home.data_dir().join("log"), &removed).unwrap();
    std::fs::remove_dir_all(&removed).unwrap();
    refuses(&server, &load, &MOVED).await;
    let told = load.stop().await;
    refused_with(&told, &MOVED);
    says_little(&server, &told);
    let status = server.terminate_within(Duration::from_secs(30)).await.expect("an end");
    let text = server.log_text();
    assert_eq!(status.code(), Some(3), "{text}");
    let last = text.trim_end().lines().next_back().unwrap_or_default();
    assert!(last.contains(MOVED.says), "{text}");
    assert!(!home.data_dir().join("log").exists(), "a log was made where one was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_while_it_refuses_leaves_all_that_it_answered() {
    let home = Home::new();
    let (log, away) = (home.data_dir().join("log"), home.path().join("away"));
    let server = serve(&home).await;
    let load = Load::start(&server);
    load.more_ended(ENOUGH).await;
    std::fs::rename(&log, &away).unwrap();
    refuses(&server, &load, &MOVED).await;
    server.kill();
    let (told, _) = load.abandon().await;
    std::fs::rename(&away, &log).unwrap();
    let verified = home.annals(&["verify", "--log-only"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    record::goes_on(&home, &told).await;
}
