//! The embedded log with real processes and real full disks.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use annals::base::{SystemClock, Timestamp, sha256};
use annals::event::{Topic, TopicPartition};
use annals::log::embedded::{EmbeddedLog, OpenError, Options, ScannedItem, Scanner};
use annals::log::{AppendError, Frame, Health, Log, Refusal};
use bytes::Bytes;
use tempfile::TempDir;
use uuid::Uuid;

const LANES: u32 = 16;

fn options(dir: &Path) -> Options {
    Options {
        dir: dir.to_owned(),
        segment_bytes: 256 * 1024,
        in_flight_records_max: 256,
        in_flight_bytes_max: 128 * 1024,
        reserve_wait: Duration::from_secs(5),
        append_wait: Duration::from_secs(60),
    }
}

fn frame(incarnation: Uuid, partition: u32, seq: u64) -> Frame {
    let body = format!("{{\"lane\":{partition},\"seq\":{seq},\"fill\":\"{}\"}}", "x".repeat(400));
    Frame {
        target: TopicPartition { topic: Topic::ToolCalls, partition },
        incarnation,
        seq,
        recorded_at: Timestamp::from_micros(i64::try_from(seq).unwrap()),
        content: sha256(body.as_bytes()),
        link: sha256(&seq.to_be_bytes()),
        body: Bytes::from(body),
    }
}

/// Another process of this test binary that runs `test` on `dir`.
fn other_process(test: &str, dir: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env("ANNALS_TEST_LOG_DIR", dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// Where the process that started this one wants the log; nothing in an ordinary test run.
fn wanted_dir() -> Option<std::path::PathBuf> {
    std::env::var_os("ANNALS_TEST_LOG_DIR").map(Into::into)
}

/// The other process: appends on every lane until it is killed, and tells each ack on stdout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_appends_until_killed() {
    let Some(dir) = wanted_dir() else { return };
    let (log, _) = EmbeddedLog::open(options(&dir), Arc::new(SystemClock)).unwrap();
    let incarnation = Uuid::new_v4();
    let lanes = (0..LANES).map(|lane| {
        let log = log.clone();
        async move {
            for seq in 0.. {
                let frame = frame(incarnation, lane, seq);
                let room = log.reserve(1, frame.body.len() as u64).await.unwrap();
                let position = log.append(room, frame).await.unwrap();
                let line = format!("acked {incarnation} {lane} {seq} {position}\n");
                std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
            }
        }
    });
    futures::future::join_all(lanes).await;
}

#[test]
fn after_a_kill_every_acked_record_is_there_and_every_lane_is_whole() {
    let dir = TempDir::new().unwrap();
    let log_dir = dir.path().join("log");
    let mut acked: BTreeMap<(Uuid, u32, u64), u64> = BTreeMap::new();
    for round in 0..8_u64 {
        let (mut child, mut lines) = other_process("log::process_appends_until_killed", &log_dir);
        let mut told = 0;
        let mut line = String::new();
        while told < 200 + round * 137 {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "the process ended by itself");
            told += u64::from(take_ack(&line, &mut acked));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had told before it died counts too.
        for line in lines.lines() {
            take_ack(&(line.unwrap() + "\n"), &mut acked);
        }

        let found = scan(&log_dir);
        for (key, position) in &acked {
            assert_eq!(found.get(key), Some(position), "round {round}: acked and not there");
        }
        let (log, recovered) = EmbeddedLog::open(options(&log_dir), Arc::new(SystemClock)).unwrap();
        assert!(recovered.unclosed.len() >= usize::try_from((round + 1) * u64::from(LANES)).unwrap());
        drop(log);
        let after = scan(&log_dir);
        for key in found.keys() {
            assert!(after.contains_key(key), "round {round}: seen before the opening and gone behind it");
        }
        let mut next: BTreeMap<(Uuid, u32), u64> = BTreeMap::new();
        for (incarnation, lane, seq) in after.keys() {
            let expected = next.entry((*incarnation, *lane)).or_default();
            assert_eq!(seq, expected, "round {round}: a hole in a lane");
            *expected += 1;
        }
    }
}

/// A line that was cut off by the kill is no ack.
fn take_ack(line: &str, acked: &mut BTreeMap<(Uuid, u32, u64), u64>) -> bool {
    let Some(rest) = line.strip_suffix('\n').and_then(|line| line.strip_prefix("acked ")) else {
        return false;
    };
    let fields: Vec<&str> = rest.split(' ').collect();
    let [incarnation, lane, seq, position] = fields[..] else { panic!("{line}") };
    let key = (incarnation.parse().unwrap(), lane.parse().unwrap(), seq.parse().unwrap());
    acked.insert(key, position.parse().unwrap());
    true
}

fn scan(dir: &Path) -> BTreeMap<(Uuid, u32, u64), u64> {
    let mut scanner = Scanner::open(dir).unwrap();
    let mut found = BTreeMap::new();
    while let Some(scanned) = scanner.next().unwrap() {
        if let ScannedItem::Event(stored) = scanned.item {
            let frame = stored.frame;
            let key = (frame.incarnation, frame.target.partition, frame.seq);
            assert_eq!(frame.link, sha256(&frame.seq.to_be_bytes()));
            assert!(found.insert(key, stored.position.0).is_none(), "twice: {key:?}");
        }
    }
    found
}

#[test]
fn a_log_that_another_process_owns_is_refused_and_still_readable() {
    let dir = TempDir::new().unwrap();
    let log_dir = dir.path().join("log");
    let (mut child, mut lines) = other_process("log::process_appends_until_killed", &log_dir);
    let mut acked = BTreeMap::new();
    let mut line = String::new();
    while acked.len() < 50 {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the process ended by itself");
        take_ack(&line, &mut acked);
    }
    let error = EmbeddedLog::open(options(&log_dir), Arc::new(SystemClock)).err().unwrap();
    let found = scan(&log_dir);
    // Keeps the pipe from filling while the process is still alive.
    child.kill().unwrap();
    child.wait().unwrap();
    let OpenError::Locked { file, pid } = error else { panic!("{error}") };
    assert_eq!((file, pid), (log_dir.join("lock"), Some(child.id())));
    for (key, position) in &acked {
        assert_eq!(found.get(key), Some(position));
    }
}

/// The other process, on a file system of its own with little room: fills it, and proves that outcomes still fit.
#[tokio::test]
async fn process_fills_a_small_disk() {
    let Some(dir) = wanted_dir() else { return };
    let clock = Arc::new(SystemClock);
    let (log, _) = EmbeddedLog::open(options(&dir.join("log")), clock).unwrap();
    let incarnation = Uuid::new_v4();
    let mut outcomes = Vec::new();
    let mut seq = 0;
    let cause = loop {
        match log.reserve(2, 1_000).await {
            Ok(mut room) => {
                let intent = room.take(500).unwrap();
                log.append(intent, frame(incarnation, 0, seq)).await.unwrap();
                outcomes.push(room);
                seq += 1;
                if outcomes.len() > 50 {
                    log.append(outcomes.remove(0), frame(incarnation, 0, seq)).await.unwrap();
                    seq += 1;
                }
            }
            Err(AppendError::Refused(Refusal::Full(cause))) => break cause,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert!(cause.contains("No space left on device"), "{cause}");
    assert!(matches!(log.health(), Health::Refusing(cause) if cause.contains("No space left on device")));
    assert_eq!(outcomes.len(), 50);
    for room in outcomes {
        log.append(room, frame(incarnation, 0, seq)).await.unwrap();
        seq += 1;
    }
    std::fs::remove_file(dir.join("ballast")).unwrap();
    let again = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            match log.reserve(1, 100_000).await {
                Ok(room) => return room,
                Err(AppendError::Refused(Refusal::Full(_))) => tokio::task::yield_now().await,
                Err(other) => panic!("{other:?}"),
            }
        }
    });
    log.append(again.await.unwrap(), frame(incarnation, 0, seq)).await.unwrap();
    assert_eq!(log.health(), Health::Accepting);
    log.close().await.unwrap();
    assert_eq!(scan(&dir.join("log")).len(), usize::try_from(seq + 1).unwrap());
}

#[test]
fn outcomes_fit_on_a_disk_that_is_full() {
    let dir = TempDir::new().unwrap();
    // A memory file system in a mount namespace of its own; it goes away with the process.
    let script = "mount -t tmpfs -o size=2m none \"$1\" && head -c 600000 /dev/zero >\"$1/ballast\" && \
                  ANNALS_TEST_LOG_DIR=\"$1\" exec \"$2\" log::process_fills_a_small_disk --exact";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-ec", script, "sh"])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}
