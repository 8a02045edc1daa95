//! Readers, counts and single frames, live and after opening again.

use futures::FutureExt;

use super::*;

#[tokio::test]
async fn live_and_replayed_are_the_same_across_segments_and_openings() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let mut written = Vec::new();
    for round in 0..3_u64 {
        let (log, recovered) = open(&options);
        assert_eq!((recovered.created, recovered.torn_bytes), (round == 0, 0));
        let mut live = log.reader_from_end(&[target(3)]).unwrap();
        let before = written.len();
        for seq in 0..60 {
            written.push(append(&log, frame(3, round * 60 + seq, 200)).await);
        }
        let mut seen = Vec::new();
        while seen.len() < 60 {
            seen.extend(live.next(7).await.unwrap());
        }
        assert_eq!(seen, written[before..]);
        let mut replay = log.reader(&[(target(3), None)]).unwrap();
        let mut seen = Vec::new();
        while seen.len() < written.len() {
            let some = replay.next(50).await.unwrap();
            assert!(some.len() <= 50);
            seen.extend(some);
        }
        assert_eq!(seen, written);
        assert_eq!(scan(&options), (written.clone(), None), "while the log is open");
        if round == 1 {
            drop(log);
        } else {
            log.close().await.unwrap();
        }
        assert_eq!(scan(&options), (written.clone(), None), "when nobody owns it");
    }
    assert!(segments(&options).len() > 5);
}

#[tokio::test]
async fn a_reader_gives_only_what_is_asked_for_and_loses_nothing_when_dropped() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(&options(&dir));
    let written = fill(&log, 60, 100).await;
    // Partition 0 from the start, partition 2 from behind its tenth record, partition 1 not at all.
    let after = written[3 * 9 + 2].position;
    let wanted: Vec<Stored> = written
        .iter()
        .filter(|stored| match stored.frame.target.partition {
            0 => true,
            2 => stored.position > after,
            _ => false,
        })
        .cloned()
        .collect();
    let mut reader = log.reader(&[(target(0), None), (target(2), Some(after))]).unwrap();
    let mut seen = Vec::new();
    while seen.len() < wanted.len() {
        // Dropped after one poll, whatever it was doing.
        if let Some(some) = reader.next(3).now_or_never() {
            seen.extend(some.unwrap());
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(seen, wanted);
    assert_eq!(reader.next_ready(3).await.unwrap(), []);
    assert!(reader.next(3).now_or_never().is_none());

    let mut from_last = log.reader(&[(target(2), Some(written[59].position))]).unwrap();
    assert_eq!(from_last.next_ready(1).await.unwrap(), []);
    let newest = append(&log, frame(2, 20, 5)).await;
    assert_eq!(from_last.next(1).await.unwrap(), [newest]);
}

#[tokio::test]
async fn positions_that_are_not_in_the_log_are_not_found() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(&options(&dir));
    let written = fill(&log, 30, 100).await;
    let end = Position(log.stats().watermark_bytes.get());
    assert!(matches!(log.reader(&[(target(0), Some(end))]), Err(ReadError::NotFound(at)) if at == end));
    let between = Position(written[4].position.0 + 1);
    let mut reader = log.reader(&[(target(0), Some(between))]).unwrap();
    assert!(matches!(reader.next(1).await, Err(ReadError::NotFound(at)) if at == between));
    for stored in &written {
        assert_eq!(log.frame_at(stored.frame.target, stored.position).await.unwrap(), *stored);
        for position in [stored.position.0 + 1, stored.position.0 - 1] {
            let missing = log.frame_at(stored.frame.target, Position(position)).await;
            assert!(matches!(missing, Err(ReadError::NotFound(at)) if at.0 == position), "{missing:?}");
        }
        let other = log.frame_at(target(9), stored.position).await;
        assert!(matches!(other, Err(ReadError::NotFound(_))), "{other:?}");
    }
    assert!(matches!(log.frame_at(target(0), end).await, Err(ReadError::NotFound(_))));
    assert!(matches!(log.count_after(target(0), Some(between)).await, Err(ReadError::NotFound(_))));
}

#[tokio::test]
async fn counts_are_exact_with_and_without_indexes() {
    let dir = TempDir::new().unwrap();
    // Segments with several marks each.
    let wide = Options { segment_bytes: 1 << 20, in_flight_bytes_max: 512 * 1024, ..options(&dir) };
    let (log, _) = open(&wide);
    let written = fill(&log, 120, 20_000).await;
    let check = async |log: &EmbeddedLog| {
        for partition in 0..4 {
            let of: Vec<&Stored> =
                written.iter().filter(|stored| stored.frame.target.partition == partition).collect();
            assert_eq!(log.count_after(target(partition), None).await.unwrap(), of.len() as u64);
            for (index, stored) in of.iter().enumerate() {
                let count = log.count_after(target(partition), Some(stored.position)).await.unwrap();
                assert_eq!(count, (of.len() - 1 - index) as u64);
            }
        }
    };
    check(&log).await;
    log.close().await.unwrap();
    let (log, _) = open(&wide);
    check(&log).await;
    drop(log);
    let indexes: Vec<PathBuf> = segments(&wide)
        .into_iter()
        .map(|(base, _)| wide.dir.join(super::super::segment::index_name(base)))
        .collect();
    assert!(indexes.len() > 2);
    for (turn, path) in indexes.iter().enumerate() {
        assert!(path.is_file(), "{} was not written", path.display());
        if turn % 2 == 0 {
            std::fs::remove_file(path).unwrap();
        } else {
            edit(path, |bytes| bytes[100] ^= 1);
        }
    }
    check(&open(&wide).0).await;
}
