//! The scanner, counts by index and positions inside of records. What every engine's readers must do:
//! `tests/it/log_conformance`.

use super::*;

#[tokio::test]
async fn the_scanner_gives_the_same_while_the_log_is_open_and_when_nobody_owns_it() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let mut written = Vec::new();
    for round in 0..3_u64 {
        let (log, recovered) = open(&options);
        assert_eq!((recovered.created, recovered.torn_bytes), (round == 0, 0));
        for seq in 0..60 {
            written.push(append(&log, frame(3, round * 60 + seq, 200)).await);
        }
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
async fn a_position_inside_a_record_is_not_found() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(&options(&dir));
    let written = fill(&log, 30, 100).await;
    let inside = Position(written[4].position.0 + 1);
    let mut reader = log.reader(&[(target(0), Some(inside))]).unwrap();
    assert!(matches!(reader.next(1).await, Err(ReadError::NotFound(at)) if at == inside));
    assert!(
        matches!(log.count_after(target(0), Some(inside)).await, Err(ReadError::NotFound(at)) if at == inside)
    );
    // Exactly behind the last record is past the end.
    let end = Position(log.stats().watermark_bytes.get());
    assert!(matches!(log.reader(&[(target(0), Some(end))]), Err(ReadError::NotFound(at)) if at == end));
    assert!(matches!(log.frame_at(target(0), end).await, Err(ReadError::NotFound(at)) if at == end));
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

#[tokio::test]
async fn a_read_that_the_system_failed_is_tried_again_by_the_same_reader() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    let written = fill(&log, 60, 100).await;
    let mut reader =
        log.reader(&(0..3).map(|partition| (target(partition), None)).collect::<Vec<_>>()).unwrap();
    let mut read = reader.next(1).await.unwrap();
    // A directory cannot be read as a file.
    let (_, second) = segments(&options).swap_remove(2);
    let away = second.with_extension("away");
    std::fs::rename(&second, &away).unwrap();
    std::fs::create_dir(&second).unwrap();
    let error = loop {
        match reader.next(100).await {
            Ok(found) => read.extend(found),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReadError::Io { .. }), "{error:?}");
    std::fs::remove_dir(&second).unwrap();
    std::fs::rename(&away, &second).unwrap();
    while read.len() < 60 {
        read.extend(reader.next(100).await.unwrap());
    }
    assert_eq!(read, written);
}
