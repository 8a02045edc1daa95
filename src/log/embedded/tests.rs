//! The engine's behaviour, with its files and faults in reach.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use uuid::Uuid;

use super::{EmbeddedLog, Options, Scanner};
use crate::base::{SystemClock, Timestamp, sha256};
use crate::event::{Topic, TopicPartition};
use crate::log::{Frame, Log, Position, Stored};

fn options(dir: &TempDir) -> Options {
    Options {
        dir: dir.path().join("log"),
        segment_bytes: 8 * 1024,
        in_flight_records_max: 16,
        in_flight_bytes_max: 6 * 1024,
        reserve_wait: Duration::from_millis(200),
    }
}

fn frame(partition: u32, seq: u64, body: &[u8]) -> Frame {
    Frame {
        target: TopicPartition { topic: Topic::ToolCalls, partition },
        incarnation: Uuid::from_u128(7),
        seq,
        recorded_at: Timestamp::from_micros(1_000),
        content: sha256(body),
        link: sha256(&seq.to_be_bytes()),
        body: Bytes::copy_from_slice(body),
    }
}

async fn append(log: &EmbeddedLog, frame: Frame) -> Position {
    let room = log.reserve(1, frame.body.len() as u64).await.unwrap();
    log.append(room, frame).await.unwrap()
}

fn scan(options: &Options) -> Vec<Stored> {
    let mut scanner = Scanner::open(&options.dir).unwrap();
    let mut found = Vec::new();
    while let Some(scanned) = scanner.next().unwrap() {
        if let super::ScannedItem::Event(stored) = scanned.item {
            found.push(stored);
        }
    }
    found
}

#[tokio::test]
async fn what_was_appended_is_read_in_order_across_segments_and_openings() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let mut written = Vec::new();
    for round in 0..3_u64 {
        let (log, recovered) = EmbeddedLog::open(options.clone(), Arc::new(SystemClock)).unwrap();
        assert_eq!(recovered.created, round == 0);
        assert_eq!(recovered.torn_bytes, 0);
        let mut live =
            log.reader(&[(TopicPartition { topic: Topic::ToolCalls, partition: 3 }, None)]).unwrap();
        for seq in 0..100 {
            let frame = frame(3, round * 100 + seq, &vec![b'x'; 200]);
            let position = append(&log, frame.clone()).await;
            written.push(Stored { position, frame });
        }
        let mut read = Vec::new();
        while read.len() < written.len() {
            read.extend(live.next(7).await.unwrap());
        }
        assert_eq!(read, written);
        assert_eq!(scan(&options), written, "while the log is open");
        if round == 1 {
            drop(log);
        } else {
            log.close().await.unwrap();
        }
        assert_eq!(scan(&options), written, "after it was closed");
    }
}
