//! Dropping segments for their age: what is dropped, what readers make of it, and a stop at every operation of a drop.

use std::collections::BTreeSet;

use super::*;
use crate::event::LogCut;
use crate::log::embedded::retention::{carry_out, plan};
use crate::log::embedded::small::{ANCHOR, encode_anchor};
use crate::log::embedded::storage::simulated::Disk;
use crate::log::embedded::{DropError, OpenError};

/// A record that is as old as its place says.
fn aged(seq: u64) -> Frame {
    let age = i64::try_from(seq).unwrap() * 1_000;
    Frame { recorded_at: at(age), ..frame(u32::try_from(seq % 3).unwrap(), seq / 3, 200) }
}

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(1_000_000 + micros)
}

async fn fill_aged(log: &EmbeddedLog, count: u64) -> Vec<Stored> {
    let mut written = Vec::new();
    for seq in 0..count {
        written.push(append(log, aged(seq)).await);
    }
    written
}

fn behind(written: &[Stored], first: u64) -> Vec<Stored> {
    written.iter().filter(|stored| stored.position.0 >= first).cloned().collect()
}

async fn planned(log: &EmbeddedLog, older_than: Timestamp) -> LogCut {
    log.plan_drop(older_than, 64).await.unwrap().expect("something to drop")
}

/// Everything that a reader gets from the start.
async fn read_all(log: &EmbeddedLog) -> Vec<Stored> {
    let all: Vec<_> = (0..3).map(|partition| (target(partition), None)).collect();
    let mut reader = log.reader(&all).unwrap();
    let mut found = Vec::new();
    loop {
        let batch = reader.next_ready(100).await.unwrap();
        if batch.is_empty() {
            return found;
        }
        found.extend(batch);
    }
}

#[tokio::test]
async fn whole_old_segments_are_dropped_and_all_else_stays() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    let written = fill_aged(&log, 120).await;
    let cut = planned(&log, at(60_000)).await;
    let dropped: Vec<&Stored> = written.iter().filter(|stored| stored.position.0 < cut.first).collect();
    // All that is old and whole, and nothing of the segment that also holds what is not.
    assert!(dropped.iter().all(|stored| stored.frame.recorded_at < at(60_000)));
    assert_eq!(cut.recorded_through, dropped.last().unwrap().frame.recorded_at);
    let bases: Vec<u64> = segments(&options).into_iter().map(|(base, _)| base).collect();
    let kept = bases.iter().position(|&base| base == cut.first).unwrap();
    assert_eq!(cut.segments.iter().map(|segment| segment.base).collect::<Vec<_>>(), bases[..kept]);
    let next = written.iter().find(|stored| stored.position.0 > bases[kept + 1]).unwrap();
    assert!(next.frame.recorded_at >= at(60_000), "more could have been dropped");
    assert_eq!(cut.segments.iter().map(|segment| segment.records).sum::<u64>(), dropped.len() as u64);
    assert_eq!(segments(&options).len(), bases.len(), "a plan changes nothing");

    log.drop_segments(cut.clone()).await.unwrap();
    let rest = behind(&written, cut.first);
    assert_eq!(segments(&options).iter().map(|(base, _)| *base).collect::<Vec<_>>(), bases[kept..]);
    assert_eq!(log.stats().dropped_segments.get(), kept as u64);
    assert_eq!(read_all(&log).await, rest);
    assert_eq!(scan(&options), (rest.clone(), None));
    assert_eq!(log.oldest_recorded_at().await.unwrap(), Some(rest[0].frame.recorded_at));
    assert!(log.plan_drop(at(60_000), 64).await.unwrap().is_none());

    // And the same when it is opened again, written on and cut again.
    log.close().await.unwrap();
    let (log, recovered) = open(&options);
    assert_eq!(recovered.unclosed.len(), 3, "the lanes are known from before the cut");
    assert_eq!(read_all(&log).await, rest);
    let mut written = written;
    for seq in 120..180 {
        written.push(append(&log, aged(seq)).await);
    }
    let again = planned(&log, at(100_000)).await;
    assert!(again.first > cut.first && again.previous_anchor_sha256.is_some());
    log.drop_segments(again.clone()).await.unwrap();
    assert_eq!(read_all(&log).await, behind(&written, again.first));
    assert_eq!(scan(&options), (behind(&written, again.first), None));
}

#[tokio::test]
async fn the_newest_segment_stays_however_old_it_is() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    assert!(log.plan_drop(at(i64::MAX / 2), 64).await.unwrap().is_none());
    let written = fill_aged(&log, 60).await;
    let newest = segments(&options).last().unwrap().0;
    let few = log.plan_drop(at(i64::MAX / 2), 2).await.unwrap().unwrap();
    assert_eq!(few.segments.len(), 2, "not more at once than asked for");
    let cut = planned(&log, at(i64::MAX / 2)).await;
    assert_eq!(cut.first, newest);
    log.drop_segments(cut).await.unwrap();
    assert_eq!(read_all(&log).await, behind(&written, newest));
    // A cut that was planned for another start is refused.
    let error = log.drop_segments(few).await.unwrap_err();
    assert!(matches!(error, DropError::Stale { start, .. } if start == newest), "{error}");
}

#[tokio::test]
async fn readers_and_counts_know_what_was_dropped() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    let written = fill_aged(&log, 120).await;
    let lonely = TopicPartition { topic: Topic::Admin, partition: 5 };
    let mut inside = log.reader(&[(target(0), None)]).unwrap();
    let first = inside.next(1).await.unwrap();
    assert_eq!(first[0], written[0]);
    let cut = planned(&log, at(60_000)).await;
    log.drop_segments(cut.clone()).await.unwrap();
    let cut_at = Position(cut.first);
    // Who is inside of a dropped segment reads it to its end, then learns what happened. The first one is a header alone.
    let end = cut.segments[1].end;
    let mut got = Vec::new();
    let error = loop {
        match inside.next(4).await {
            Ok(batch) => got.extend(batch),
            Err(error) => break error,
        }
    };
    let of_first: Vec<Stored> = written[1..]
        .iter()
        .filter(|stored| stored.position.0 < end && stored.frame.target == target(0))
        .cloned()
        .collect();
    assert_eq!(got, of_first);
    assert_eq!(error, ReadError::Dropped { position: Position(end), first: cut_at });
    for partition in 0..3 {
        let of: Vec<&Stored> =
            written.iter().filter(|stored| stored.frame.target == target(partition)).collect();
        let (old, kept): (Vec<&Stored>, Vec<&Stored>) =
            of.iter().partition(|stored| stored.position < cut_at);
        assert_eq!(log.count_after(target(partition), None).await.unwrap(), kept.len() as u64);
        let (last, earlier) = old.split_last().unwrap();
        // The last one before the cut: what comes next is there.
        assert_eq!(log.count_after(target(partition), Some(last.position)).await.unwrap(), kept.len() as u64);
        let mut reader = log.reader(&[(target(partition), Some(last.position))]).unwrap();
        assert_eq!(&reader.next(1).await.unwrap()[0], kept[0]);
        let dropped = ReadError::Dropped { position: earlier[0].position, first: cut_at };
        assert_eq!(log.count_after(target(partition), Some(earlier[0].position)).await, Err(dropped.clone()));
        assert_eq!(log.frame_at(target(partition), earlier[0].position).await, Err(dropped.clone()));
        assert_eq!(log.reader(&[(target(partition), Some(earlier[0].position))]).err(), Some(dropped));
        for (index, stored) in kept.iter().enumerate() {
            let count = log.count_after(target(partition), Some(stored.position)).await.unwrap();
            assert_eq!(count, (kept.len() - 1 - index) as u64);
        }
        assert_eq!(log.start().tails[&target(partition)], (last.position, last.frame.link));
    }
    assert!(!log.start().tails.contains_key(&lonely));
    assert_eq!(log.start().heads.len(), 3);
}

#[tokio::test]
async fn a_scan_that_a_drop_overtakes_says_so() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    let written = fill_aged(&log, 120).await;
    let mut scanner = Scanner::open(&options.dir).unwrap();
    assert!(scanner.next().unwrap().is_some());
    let cut = planned(&log, at(60_000)).await;
    log.drop_segments(cut.clone()).await.unwrap();
    let mut found = 1;
    let error = loop {
        match scanner.next() {
            Ok(Some(_)) => found += 1,
            Ok(None) => panic!("the scan came to an end"),
            Err(error) => break error,
        }
    };
    let position = Position(cut.segments[2].base);
    assert_eq!(error, ReadError::Dropped { position, first: Position(cut.first) });
    assert_eq!(found, written.iter().filter(|stored| stored.position < position).count());
}

/// Where and why a log does not open; the scanner must say the same.
fn refused(options: &Options) -> (String, u64, String) {
    let error = EmbeddedLog::open(options.clone(), Arc::new(SystemClock)).map(|_| ()).unwrap_err();
    let OpenError::Corrupt { file, offset, cause } = error else { panic!("{error}") };
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();
    let seen = match scan(options).1 {
        Some(ReadError::Corrupt { file, offset, cause, .. }) => {
            (Path::new(&file).file_name().unwrap().to_str().unwrap().to_owned(), offset, cause)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(seen, (name.clone(), offset, cause.clone()));
    (name, offset, cause)
}

#[tokio::test]
async fn an_anchor_that_is_not_this_logs_own_is_found() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    fill_aged(&log, 120).await;
    log.close().await.unwrap();
    drop(log);
    let whole = copy(&options);
    let (log, _) = open(&options);
    let cut = planned(&log, at(60_000)).await;
    log.drop_segments(cut.clone()).await.unwrap();
    let id = log.id();
    log.close().await.unwrap();
    let first = super::super::segment::name(cut.first);

    let (_dir, missing) = copy(&options);
    std::fs::remove_file(missing.dir.join(ANCHOR)).unwrap();
    assert_eq!(refused(&missing), (super::super::segment::name(0), 0, "the first segment is missing".into()));

    let (_dir, changed) = copy(&options);
    let bytes = std::fs::read(changed.dir.join(ANCHOR)).unwrap();
    for index in 0..bytes.len() {
        edit(&changed.dir.join(ANCHOR), |bytes| bytes[index] ^= 1);
        assert_eq!(refused(&changed).0, ANCHOR, "byte {index}");
        std::fs::write(changed.dir.join(ANCHOR), &bytes).unwrap();
    }

    let (_dir, beyond) = copy(&options);
    std::fs::remove_file(beyond.dir.join(&first)).unwrap();
    assert_eq!(refused(&beyond), (first.clone(), 0, "the first segment is missing".into()));

    // With checksums that are right: of another log, with another header, and beside a segment that it does not name.
    let (_dir, other) = copy(&options);
    let other_log = crate::log::LogId(Uuid::from_u128(1));
    std::fs::write(other.dir.join(ANCHOR), encode_anchor(other_log, &cut)).unwrap();
    assert_eq!(refused(&other), (ANCHOR.to_owned(), 0, "it is the anchor of another log".into()));
    let forged = LogCut { header_sha256: "00".repeat(32), ..cut.clone() };
    std::fs::write(other.dir.join(ANCHOR), encode_anchor(id, &forged)).unwrap();
    assert_eq!(refused(&other), (first, 0, "its header is not the one that the anchor names".into()));
    let mut forged = cut.clone();
    forged.segments.remove(0);
    std::fs::write(other.dir.join(ANCHOR), encode_anchor(id, &forged)).unwrap();
    let zero = super::super::segment::name(0);
    std::fs::copy(whole.1.dir.join(&zero), other.dir.join(&zero)).unwrap();
    let cause = "it stands before the log's start, and the anchor does not name it";
    assert_eq!(refused(&other), (zero.clone(), 0, cause.into()));

    // What the anchor names is only the rest of the drop.
    std::fs::write(other.dir.join(ANCHOR), encode_anchor(id, &cut)).unwrap();
    let seen = scan(&other);
    assert_eq!(seen.1, None);
    drop(open(&other));
    assert!(!other.dir.join(&zero).exists());
    assert_eq!(scan(&other), seen);
}

fn scan_storage(storage: Storage) -> Vec<Stored> {
    let mut scanner = Scanner::open_in(storage).unwrap();
    let mut found = Vec::new();
    while let Some(scanned) = scanner.next().unwrap() {
        if let ScannedItem::Event(stored) = scanned.item {
            found.push(stored);
        }
    }
    found
}

/// What is left when the machine stops at one operation of a drop. `false` when the drop has no such operation.
fn drop_stopped_at(disk: &Disk, options: &Options, written: &[Stored], operation: u64, killed: bool) -> bool {
    let disk = disk.fork();
    let storage = || Storage::simulated(&options.dir, disk.clone());
    let opened = |storage| EmbeddedLog::open_in(options, Arc::new(SystemClock), storage).unwrap().0;
    let log = opened(storage());
    let cut = plan(&log.shared, at(60_000), 64).unwrap().unwrap();
    disk.stop_after(operation, false);
    let done = carry_out(&log.shared, cut.clone());
    let stopped = disk.stopped();
    assert_eq!(done.is_err(), stopped, "{done:?}");
    if !stopped {
        return false;
    }
    drop(log);
    if killed {
        disk.restart();
    } else {
        disk.power_cut();
    }
    let found = scan_storage(storage());
    let rest = behind(written, cut.first);
    assert!(found == written || found == rest, "{operation}: {} records, of {}", found.len(), written.len());
    let log = opened(storage());
    assert_eq!(scan_storage(storage()), found, "{operation}: opening changed what is there");
    // The next try finishes it.
    if let Some(cut) = plan(&log.shared, at(60_000), 64).unwrap() {
        assert_eq!(found, written);
        carry_out(&log.shared, cut).unwrap();
    }
    let names: BTreeSet<String> = storage().list().unwrap().into_iter().collect();
    let kept = super::super::segment::name(cut.first);
    let old: Vec<&String> = names.iter().filter(|name| name.ends_with("seg") && **name < kept).collect();
    assert!(old.is_empty(), "{operation}: {old:?} stay behind");
    drop(log);
    assert_eq!(scan_storage(storage()), rest);
    true
}

#[tokio::test]
async fn a_drop_that_stops_anywhere_is_finished_or_did_not_happen() {
    let options = Options {
        dir: "/simulated/log".into(),
        segment_bytes: 4 * 1024,
        in_flight_records_max: 16,
        in_flight_bytes_max: 2 * 1024,
        reserve_wait: Duration::from_secs(60),
        append_wait: Duration::from_secs(60),
    };
    let mut stops = 0;
    for seed in 0..20 {
        let disk = Disk::new(seed);
        let storage = Storage::simulated(&options.dir, disk.clone());
        let (log, _) = EmbeddedLog::open_in(&options, Arc::new(SystemClock), storage).unwrap();
        let written = fill_aged(&log, 90).await;
        log.close().await.unwrap();
        drop(log);
        for killed in [false, true] {
            let mut operation = 1;
            while drop_stopped_at(&disk, &options, &written, operation, killed) {
                operation += 1;
                stops += 1;
            }
        }
    }
    assert!(stops > 20 * 2 * 8, "only {stops} stops");
}

#[tokio::test]
async fn what_a_drop_left_behind_is_not_removed_from_another_log() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let log = observed(
        &options,
        Arc::new(|operation| match operation {
            Operation::Remove { file } if file.ends_with(".seg") => Err(std::io::Error::from_raw_os_error(5)),
            _ => Ok(()),
        }),
    );
    fill_aged(&log, 60).await;
    let cut = planned(&log, at(60_000)).await;
    let error = log.drop_segments(cut).await.unwrap_err();
    assert!(matches!(error, DropError::Io { .. }), "{error}");
    // Another log takes the place. It has a first segment too.
    std::fs::rename(&options.dir, options.dir.with_file_name("away")).unwrap();
    let (other, _) = open(&options);
    let written = fill(&other, 3, 10).await;
    let error = log.plan_drop(at(60_000), 64).await.unwrap_err().to_string();
    assert!(error.ends_with("the log's directory is not the one that this process locked"), "{error}");
    other.close().await.unwrap();
    assert_eq!(scan(&options), (written, None));
}
