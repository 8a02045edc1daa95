//! The log's disk is full: a small one, in a mount namespace of the test's own.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use super::load::Load;
use super::{Alarm, ENOUGH, is_survived, record, refuses, serve};
use crate::harness::{Home, PATIENCE};

/// Four segments of 1 MiB, and some.
const DISK: &str = "5m";

/// A home whose log is a directory on a small disk; and where the test finds that disk.
fn small_disk() -> (Home, PathBuf) {
    let home = Home::with_mounts();
    let (disk, log) = (home.path().join("disk"), home.data_dir().join("log"));
    std::fs::create_dir_all(&disk).unwrap();
    std::fs::create_dir_all(&log).unwrap();
    let script = format!(
        "mount -t tmpfs -o size={DISK} none \"$1\"; mkdir \"$1/log\"; mount --bind \"$1/log\" \"$2\""
    );
    home.mounts().run(&script, &[&disk, &log]);
    let disk = home.seen(&disk);
    (home, disk)
}

/// Leaves no room on the disk, until the file is removed.
fn fill(disk: &Path) -> PathBuf {
    let path = disk.join("filler");
    let mut file = File::options().create(true).append(true).open(&path).unwrap();
    loop {
        match file.write_all(&[1; 4096]) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return path,
            Err(error) => panic!("{error}"),
        }
    }
}

const NO_SEGMENT: Alarm = Alarm {
    cause: "no_space",
    says: "No space left on device",
    code: "log_full",
    retry_after_s: 30,
    verified: 0,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_without_room_for_the_next_segment_refuses_until_there_is_some() {
    let (home, disk) = small_disk();
    let server = serve(&home).await;
    let load = Load::start(&server);
    load.more_ended(ENOUGH).await;
    let filler = fill(&disk);
    // What is allocated already is used first.
    load.more_refused(1).await;
    is_survived(&home, server, load, &NO_SEGMENT, || std::fs::remove_file(filler).unwrap()).await;
}

/// Takes the room that the file's unwritten end holds.
fn unallocate_end(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    let (from, end) = (written.next_multiple_of(4096), bytes.len() as u64);
    if from >= end {
        return;
    }
    let file = File::options().write(true).open(path).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, from, end - from).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_full_inside_a_segment_refuses_until_there_is_room() {
    let alarm = Alarm { code: "log_unavailable", retry_after_s: 2, ..NO_SEGMENT };
    let (home, disk) = small_disk();
    let server = serve(&home).await;
    let load = Load::start(&server);
    load.more_ended(ENOUGH).await;
    let before = load.stop().await;
    // Allocated ahead, a segment has its room. Other file systems allocate again for each write.
    for entry in std::fs::read_dir(disk.join("log")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "seg" || extension == "prepared") {
            unallocate_end(&path);
        }
    }
    let filler = fill(&disk);
    let load = Load::after(&server, before);
    is_survived(&home, server, load, &alarm, || std::fs::remove_file(filler).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_on_a_full_disk_is_a_clean_one_while_the_last_events_have_room() {
    let (home, disk) = small_disk();
    let server = serve(&home).await;
    let load = Load::start(&server);
    load.more_ended(ENOUGH).await;
    let told = load.stop().await;
    let filler = fill(&disk);
    let log = server.data_dir.with_extension("log");
    let status = server.terminate();
    let text = std::fs::read_to_string(log).unwrap();
    assert!(status.success(), "{status}: {text}");
    std::fs::remove_file(filler).unwrap();
    let verified = home.annals(&["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    record::goes_on(&home, &told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_without_room_for_the_last_events_names_the_disk() {
    let (home, disk) = small_disk();
    let mut server = serve(&home).await;
    let load = Load::start(&server);
    load.more_ended(ENOUGH).await;
    let filler = fill(&disk);
    load.more_refused(1).await;
    refuses(&server, &load, &NO_SEGMENT).await;
    let told = load.stop().await;
    let status = server.terminate_within(PATIENCE).await.expect("an end");
    let text = server.log_text();
    assert_eq!(status.code(), Some(3), "{text}");
    let last = text.trim_end().lines().next_back().unwrap_or_default();
    assert!(last.contains(NO_SEGMENT.says), "{text}");
    std::fs::remove_file(filler).unwrap();
    record::goes_on(&home, &told).await;
}
