//! Copies of a log that is being written, and what is found bad in them.

use super::super::{Keep, check_copy, copy, durable_end, open_lanes};
use super::{Options, fill, open, options, scan};
use crate::log::{Log, Position, ReadError};

#[tokio::test]
async fn a_copy_of_a_log_in_use_ends_where_it_should_and_goes_on_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    let before = fill(&log, 30, 300).await;
    let (id, end) = durable_end(&options.dir).unwrap();
    // What is written after the end was read is no part of it.
    fill(&log, 30, 300).await;
    let to = dir.path().join("copy");
    let files = copy(&options.dir, &to, id, end).unwrap();
    assert_eq!(id, log.id());
    let lanes = check_copy(&options.dir, &to, end).unwrap();
    assert_eq!(lanes.len(), 1);
    let heads: Vec<(u32, u64)> = lanes[0].heads.iter().map(|head| (head.partition, head.seq)).collect();
    assert_eq!(heads, [(0, 9), (1, 9), (2, 9)]);
    for copied in &files {
        let bytes = std::fs::read(to.join(&copied.file)).unwrap();
        assert_eq!(
            (bytes.len() as u64, crate::base::sha256_hex(&bytes)),
            (copied.bytes, copied.sha256.clone())
        );
    }
    let copied = Options { dir: to.clone(), ..options };
    assert_eq!(scan(&copied), (before, None));
    let (copied, recovered) = open(&copied);
    assert_eq!(
        (copied.id(), recovered.created, recovered.torn_bytes, recovered.unclosed.len()),
        (id, false, 0, 3)
    );
    let after = fill(&copied, 1, 300).await;
    assert!(after[0].position >= end);
    copied.close().await.unwrap();
    log.close().await.unwrap();
}

#[tokio::test]
async fn damage_is_named_in_the_log_or_in_the_copy_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    fill(&log, 30, 300).await;
    log.close().await.unwrap();
    let (id, end) = durable_end(&options.dir).unwrap();
    let first = super::super::segment::name(0);
    let spoil = |path: &std::path::Path| {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[100] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    let named = |error: ReadError| match error {
        ReadError::Corrupt { file, offset, .. } => (file, offset),
        other => panic!("{other}"),
    };
    let to = dir.path().join("copy");
    copy(&options.dir, &to, id, end).unwrap();
    spoil(&to.join(&first));
    let found = named(check_copy(&options.dir, &to, end).unwrap_err());
    assert_eq!(found, (to.join(&first).display().to_string(), 0));
    spoil(&options.dir.join(&first));
    let again = dir.path().join("again");
    copy(&options.dir, &again, id, end).unwrap();
    let found = named(check_copy(&options.dir, &again, end).unwrap_err());
    assert_eq!(found, (options.dir.join(&first).display().to_string(), 0));

    // A segment that ends too early, and an end that is not the log's.
    spoil(&options.dir.join(&first));
    let file = std::fs::File::options().write(true).open(options.dir.join(&first)).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 1).unwrap();
    let error = copy(&options.dir, &dir.path().join("short"), id, end).unwrap_err();
    assert_eq!(named(error), (options.dir.join(&first).display().to_string(), length - 1));
    spoil(&to.join(&first));
    assert!(open_lanes(&to, end).is_ok());
    let error = open_lanes(&to, Position(end.0 + 1)).unwrap_err();
    assert!(
        error.to_string().contains(&format!("the log ends at position {end}, not at {}", end.0 + 1)),
        "{error}"
    );
}

#[tokio::test]
async fn segments_are_kept_while_somebody_copies() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    let one = Keep::segments(&options.dir).unwrap().unwrap();
    let other = Keep::segments(&options.dir).unwrap().unwrap();
    assert!(Keep::nobody(&options.dir).unwrap().is_none());
    drop(one);
    assert!(Keep::nobody(&options.dir).unwrap().is_none());
    drop(other);
    let dropping = Keep::nobody(&options.dir).unwrap().unwrap();
    assert!(Keep::segments(&options.dir).unwrap().is_none());
    drop(dropping);
    assert!(Keep::segments(&options.dir).unwrap().is_some());
    log.close().await.unwrap();
}
