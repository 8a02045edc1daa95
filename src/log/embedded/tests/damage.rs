//! Damage to what was durable: found, named by its first bad record, never repaired.

use super::*;
use crate::log::embedded::frame::{Codec, Decoded, Place};
use crate::log::embedded::{OpenError, segment};

/// A closed log of a few segments, and where each frame of it starts (headers and events).
async fn closed() -> (TempDir, Options, Vec<Stored>, Vec<u64>) {
    let dir = TempDir::new().unwrap();
    let options = Options { segment_bytes: 2 * 1024, ..options(&dir) };
    let (log, _) = open(&options);
    let written = fill(&log, 24, 150).await;
    log.close().await.unwrap();
    let mut starts: Vec<u64> = written.iter().map(|stored| stored.position.0).collect();
    starts.extend(segments(&options).iter().map(|(base, _)| *base));
    starts.sort_unstable();
    (dir, options, written, starts)
}

/// The start of the frame that holds `position`.
fn frame_start(starts: &[u64], position: u64) -> u64 {
    starts[starts.partition_point(|&start| start <= position) - 1]
}

fn open_error(options: &Options) -> (String, u64) {
    match EmbeddedLog::open(options.clone(), Arc::new(SystemClock)) {
        Err(OpenError::Corrupt { file, offset, .. }) => {
            (file.file_name().unwrap().to_str().unwrap().to_owned(), offset)
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[tokio::test]
async fn a_flipped_byte_anywhere_is_found_at_its_record() {
    let (_dir, options, written, starts) = closed().await;
    assert!(segments(&options).len() >= 3);
    for (base, path) in segments(&options) {
        let good = std::fs::read(&path).unwrap();
        for offset in 0..good.len() {
            let mut bad = good.clone();
            bad[offset] ^= 0x20;
            std::fs::write(&path, &bad).unwrap();
            let (found, error) = scan(&options);
            let start = frame_start(&starts, base + offset as u64);
            assert_eq!(damage(error), (segment::name(base), start - base, start), "byte {offset} of {base}");
            let before = written.iter().filter(|stored| stored.position.0 < start).count();
            assert_eq!(found, written[..before]);
        }
        std::fs::write(&path, &good).unwrap();
    }
    for name in ["log.json", "watermark"] {
        let path = options.dir.join(name);
        let good = std::fs::read(&path).unwrap();
        for offset in 0..good.len() {
            let mut bad = good.clone();
            bad[offset] ^= 0x20;
            std::fs::write(&path, &bad).unwrap();
            match scan(&options).1 {
                // A changed version number may read as a newer one.
                Some(ReadError::Io { cause, .. }) if name == "log.json" => {
                    assert!(cause.contains("version"), "byte {offset} of {name}: {cause}");
                }
                error => assert_eq!(damage(error), (name.to_owned(), 0, 0), "byte {offset} of {name}"),
            }
        }
        std::fs::write(&path, &good).unwrap();
    }
    assert_eq!(scan(&options), (written, None));
}

#[tokio::test]
async fn opening_after_a_kill_finds_a_flipped_byte_in_the_newest_segment() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    let written = fill(&log, 30, 150).await;
    drop(log);
    let (base, path) = segments(&options).pop().unwrap();
    let last = written.last().unwrap();
    let end = last.position.0 + 116 + last.frame.body.len() as u64;
    let mut starts: Vec<u64> = written.iter().map(|stored| stored.position.0).collect();
    starts.extend(segments(&options).iter().map(|(base, _)| *base));
    starts.sort_unstable();
    let good = std::fs::read(&path).unwrap();
    for offset in 0..usize::try_from(end - base).unwrap() {
        let mut bad = good.clone();
        bad[offset] ^= 0x20;
        std::fs::write(&path, &bad).unwrap();
        let start = frame_start(&starts, base + offset as u64);
        assert_eq!(open_error(&options), (segment::name(base), start - base), "byte {offset}");
        assert!(std::fs::read(&path).unwrap() == bad, "it was changed");
        assert_eq!(damage(scan(&options).1), (segment::name(base), start - base, start), "byte {offset}");
    }
    std::fs::write(&path, &good).unwrap();
    let (log, recovered) = open(&options);
    assert_eq!(recovered.torn_bytes, 0);
    assert_eq!(log.count_after(target(0), None).await.unwrap(), 10);
}

#[tokio::test]
async fn a_segment_that_is_missing_cut_or_prolonged_is_found() {
    let (_dir, options, written, _) = closed().await;
    let all = segments(&options);
    let (middle, path) = all[1].clone();
    let next = all[2].0;
    let (newest, newest_path) = all.last().unwrap().clone();
    let length = std::fs::metadata(&newest_path).unwrap().len();

    let (_copy, removed) = copy(&options);
    std::fs::remove_file(removed.dir.join(segment::name(middle))).unwrap();
    assert_eq!(damage(scan(&removed).1), (segment::name(0), middle, middle));
    assert_eq!(open_error(&removed), (segment::name(0), middle));

    let (_copy, first) = copy(&options);
    std::fs::remove_file(first.dir.join(segment::name(0))).unwrap();
    assert_eq!(damage(scan(&first).1), (segment::name(0), 0, 0));
    assert_eq!(open_error(&first), (segment::name(0), 0));

    let (_copy, last) = copy(&options);
    std::fs::remove_file(last.dir.join(segment::name(newest))).unwrap();
    let (before, _) = all[all.len() - 2];
    assert_eq!(damage(scan(&last).1), (segment::name(before), newest - before, newest));
    assert_eq!(open_error(&last), (segment::name(before), newest - before));

    let tail = written.iter().rfind(|stored| stored.position.0 < next).unwrap().position.0;
    for cut in [next - tail, 1, 60] {
        let (_copy, cut_off) = copy(&options);
        let file = cut_off.dir.join(segment::name(middle));
        edit(&file, |bytes| bytes.truncate(usize::try_from(next - middle - cut).unwrap()));
        assert_eq!(damage(scan(&cut_off).1), (segment::name(middle), tail - middle, tail));
        assert_eq!(open_error(&cut_off), (segment::name(middle), next - middle - cut));
    }

    let (_copy, shorter) = copy(&options);
    let file = shorter.dir.join(segment::name(newest));
    let tail = written.last().unwrap().position.0;
    edit(&file, |bytes| bytes.truncate(usize::try_from(tail - newest).unwrap()));
    assert_eq!(damage(scan(&shorter).1), (segment::name(newest), tail - newest, tail));
    assert_eq!(open_error(&shorter), (segment::name(newest), tail - newest));

    for (base, end) in [(middle, next - middle), (newest, length)] {
        let (_copy, longer) = copy(&options);
        edit(&longer.dir.join(segment::name(base)), |bytes| bytes.push(0));
        assert_eq!(damage(scan(&longer).1), (segment::name(base), end, base + end));
        assert_eq!(open_error(&longer), (segment::name(base), end));
    }

    let (_copy, more) = copy(&options);
    std::fs::copy(&path, more.dir.join(segment::name(newest + length))).unwrap();
    assert_eq!(damage(scan(&more).1), (segment::name(newest + length), 0, newest + length));

    let (_copy, empty) = copy(&options);
    std::fs::remove_file(empty.dir.join("log.json")).unwrap();
    assert_eq!(open_error(&empty), ("log.json".to_owned(), 0));
}

#[tokio::test]
async fn records_that_were_swapped_doubled_or_taken_out_are_found() {
    let (_dir, options, written, _) = closed().await;
    let (base, path) = segments(&options)[1].clone();
    let inside: Vec<u64> = written
        .iter()
        .map(|stored| stored.position.0)
        .filter(|&at| at >= base && at < segments(&options)[2].0)
        .collect();
    let [first, second, third] = inside[..3] else { panic!("three records in the segment") };
    let range =
        |from: u64, to: u64| usize::try_from(from - base).unwrap()..usize::try_from(to - base).unwrap();
    let good = std::fs::read(&path).unwrap();
    let expected = (segment::name(base), first - base, first);

    edit(&path, |bytes| {
        let record = bytes[range(first, second)].to_vec();
        bytes.copy_within(range(second, third), range(first, first).start);
        bytes[range(second, third)].copy_from_slice(&record);
    });
    assert_eq!(damage(scan(&options).1), expected, "swapped");

    std::fs::write(&path, &good).unwrap();
    edit(&path, |bytes| bytes.copy_within(range(first, second), range(second, second).start));
    assert_eq!(damage(scan(&options).1), (segment::name(base), second - base, second), "doubled");

    std::fs::write(&path, &good).unwrap();
    edit(&path, |bytes| drop(bytes.drain(range(first, second))));
    assert_eq!(damage(scan(&options).1), expected, "taken out");
}

#[tokio::test]
async fn a_record_that_was_replaced_with_a_fresh_checksum_breaks_the_next_header() {
    let (_dir, options, written, _) = closed().await;
    let (base, path) = segments(&options)[1].clone();
    let next = segments(&options)[2].0;
    let victim = written.iter().find(|stored| stored.position.0 > base).unwrap();
    let codec = Codec::new(Scanner::open(&options.dir).unwrap().log_id());
    let place = Place { position: victim.position.0, write_start: victim.position.0 };
    let mut forged = Vec::new();
    let mut frame = victim.frame.clone();
    frame.body = Bytes::from(vec![b'z'; frame.body.len()]);
    frame.content = sha256(&frame.body);
    codec.encode_event(place, &frame, &mut forged);
    assert!(matches!(codec.decode(place.position, &forged), Decoded::Whole { .. }));
    edit(&path, |bytes| {
        let start = usize::try_from(victim.position.0 - base).unwrap();
        bytes[start..start + forged.len()].copy_from_slice(&forged);
    });
    // Its lane's link does not follow either; that is for the reader of chains to say, with the exact record.
    assert_eq!(damage(scan(&options).1), (segment::name(next), 0, next));

    frame.content = [0; 32];
    forged.clear();
    codec.encode_event(place, &frame, &mut forged);
    edit(&path, |bytes| {
        let start = usize::try_from(victim.position.0 - base).unwrap();
        bytes[start..start + forged.len()].copy_from_slice(&forged);
    });
    let at = victim.position.0;
    assert_eq!(damage(scan(&options).1), (segment::name(base), at - base, at), "the body's digest");
}

#[tokio::test]
async fn a_cleanly_closed_log_is_opened_without_reading_its_segments() {
    let (_dir, options, written, _) = closed().await;
    let (base, path) = segments(&options).pop().unwrap();
    let last = written.last().unwrap().position.0;
    edit(&path, |bytes| bytes[usize::try_from(last - base).unwrap()] ^= 1);
    let (log, recovered) = open(&options);
    assert_eq!(recovered.unclosed.len(), 3);
    assert_eq!(log.count_after(target(0), None).await.unwrap(), 8);
    let found = damage(log.frame_at(target(2), Position(last)).await.err());
    assert_eq!(found, (segment::name(base), last - base, last));
    log.close().await.unwrap();
    assert_eq!(damage(scan(&options).1), (segment::name(base), last - base, last));
}

#[test]
fn another_owner_and_a_newer_version_are_refused_by_name() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    let error = EmbeddedLog::open(options.clone(), Arc::new(SystemClock)).err().unwrap();
    let OpenError::Locked { file, pid } = error else { panic!("{error}") };
    assert_eq!((file, pid), (options.dir.join("lock"), Some(std::process::id())));
    drop(log);
    edit(&options.dir.join("log.json"), |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        *bytes = text.replace("\"version\":1", "\"version\":2").into_bytes();
    });
    let error = EmbeddedLog::open(options, Arc::new(SystemClock)).err().unwrap();
    assert!(matches!(error, OpenError::Version { found: 2, known: 1, .. }), "{error}");
}
