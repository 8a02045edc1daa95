//! The engine's behaviour, with its files and faults in reach. Processes and full disks: `tests/it/log.rs`.

mod allocations;
mod copy;
mod damage;
mod durability;
mod everywhere;
mod faults;
mod forger;
mod read;
mod retention;
mod room;
mod simulation;
mod tear;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use uuid::Uuid;

use super::storage::{Observer, Operation, Storage};
use super::{EmbeddedLog, Options, Recovered, ScannedItem, Scanner};
use crate::base::{SystemClock, Timestamp, sha256};
use crate::event::{Topic, TopicPartition};
use crate::log::{Ack, Frame, Log, Position, ReadError, Stored};

const INCARNATION: Uuid = Uuid::from_u128(7);

fn target(partition: u32) -> TopicPartition {
    TopicPartition { topic: Topic::ToolCalls, partition }
}

/// Small segments, so that a few records need several.
fn options(dir: &TempDir) -> Options {
    Options {
        dir: dir.path().join("log"),
        segment_bytes: 4 * 1024,
        in_flight_records_max: 16,
        in_flight_bytes_max: 2 * 1024,
        reserve_wait: Duration::from_millis(200),
        append_wait: Duration::from_secs(60),
    }
}

fn open(options: &Options) -> (Arc<EmbeddedLog>, Recovered) {
    EmbeddedLog::open(options.clone(), Arc::new(SystemClock)).unwrap()
}

fn observed(options: &Options, observer: Observer) -> Arc<EmbeddedLog> {
    let storage = Storage::observed(&options.dir, observer);
    EmbeddedLog::open_in(options, Arc::new(SystemClock), storage).unwrap().0
}

fn frame(partition: u32, seq: u64, bytes: usize) -> Frame {
    let body: Vec<u8> = (0..bytes).map(|index| b'a' + u8::try_from((index + bytes) % 26).unwrap()).collect();
    Frame {
        target: target(partition),
        incarnation: INCARNATION,
        seq,
        recorded_at: Timestamp::from_micros(1_000),
        content: sha256(&body),
        link: sha256(&seq.to_be_bytes()),
        body: Bytes::from(body),
    }
}

/// Hands a frame over and gives its ack to await.
async fn send(log: &EmbeddedLog, frame: Frame) -> Ack {
    let room = log.reserve(1, frame.body.len() as u64).await.unwrap();
    log.append(room, frame)
}

async fn append(log: &EmbeddedLog, frame: Frame) -> Stored {
    let position = send(log, frame.clone()).await.await.unwrap();
    Stored { position, frame }
}

/// `count` records of `bytes` bytes over three partitions.
async fn fill(log: &EmbeddedLog, count: u64, bytes: usize) -> Vec<Stored> {
    let mut written = Vec::new();
    for seq in 0..count {
        written.push(append(log, frame(u32::try_from(seq % 3).unwrap(), seq / 3, bytes)).await);
    }
    written
}

/// All events, and the error that ended the scan.
fn scan(options: &Options) -> (Vec<Stored>, Option<ReadError>) {
    let mut found = Vec::new();
    let mut scanner = match Scanner::open(&options.dir) {
        Ok(scanner) => scanner,
        Err(error) => return (found, Some(error)),
    };
    loop {
        match scanner.next() {
            Ok(Some(scanned)) => {
                assert!(options.dir.join(&scanned.file).is_file());
                if let ScannedItem::Event(stored) = scanned.item {
                    found.push(stored);
                }
            }
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
}

/// Where the scan found the first damage: file name, offset, position.
fn damage(error: Option<ReadError>) -> (String, u64, u64) {
    match error {
        Some(ReadError::Corrupt { file, offset, position, .. }) => {
            let name = Path::new(&file).file_name().unwrap().to_str().unwrap();
            (name.to_owned(), offset, position)
        }
        other => panic!("no damage was found, but {other:?}"),
    }
}

fn segments(options: &Options) -> Vec<(u64, PathBuf)> {
    let storage = Storage::new(&options.dir);
    let bases = super::segment::bases(&storage).unwrap();
    bases.into_iter().map(|base| (base, options.dir.join(super::segment::name(base)))).collect()
}

/// A copy of a log, to be damaged.
fn copy(options: &Options) -> (TempDir, Options) {
    let dir = TempDir::new().unwrap();
    let copy = Options { dir: dir.path().join("log"), ..options.clone() };
    std::fs::create_dir(&copy.dir).unwrap();
    for entry in std::fs::read_dir(&options.dir).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.dir.join(entry.file_name())).unwrap();
    }
    (dir, copy)
}

/// Changes a file's bytes.
fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Holds the writer before an operation, and remembers every operation.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    shut: bool,
    waiting: bool,
    seen: Vec<Operation>,
}

impl Gate {
    /// Stands before every data sync of a segment.
    fn observer(self: &Arc<Self>) -> Observer {
        let gate = self.clone();
        Arc::new(move |operation| {
            let mut state = gate.state.lock().unwrap();
            state.seen.push(operation.clone());
            if matches!(operation, Operation::SyncData { file } if file.ends_with(".seg")) {
                state.waiting = true;
                gate.changed.notify_all();
                // Bounded, so that a failed assertion ends the test.
                let patience = Duration::from_secs(10);
                state = gate.changed.wait_timeout_while(state, patience, |state| state.shut).unwrap().0;
                state.waiting = false;
            }
            Ok(())
        })
    }

    fn shut(&self) {
        self.state.lock().unwrap().shut = true;
    }

    fn open(&self) {
        self.state.lock().unwrap().shut = false;
        self.changed.notify_all();
    }

    /// Until the writer stands before the gate.
    fn arrived(&self) {
        let state = self.state.lock().unwrap();
        let (state, timeout) =
            self.changed.wait_timeout_while(state, Duration::from_secs(10), |state| !state.waiting).unwrap();
        assert!(!timeout.timed_out(), "the writer never came to a sync");
        drop(state);
    }
}
