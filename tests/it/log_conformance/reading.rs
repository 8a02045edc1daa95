//! Reading: what is given, to whom, from where, and what is not there.

use std::time::Duration;

use annals::log::{Position, ReadError, Stored};
use futures::FutureExt;

use super::{
    Backend, INCARNATION, Limits, Random, append, beyond, by_partition, fill, frame, not_found, take, target,
    within,
};

const ALL: [u32; 3] = [0, 1, 2];

pub(super) async fn replay_equals_live_across_reopenings(backend: &dyn Backend) {
    let mut random = Random::new(11);
    let place = backend.place(Limits::SMALL);
    let targets = ALL.map(target);
    let mut written: Vec<Stored> = Vec::new();
    for round in 0..4 {
        let log = place.open().await;
        let mut live = log.reader_from_end(&targets).unwrap();
        let before = written.len();
        let (some, followed) = tokio::join!(fill(&*log, 250, &mut random), async {
            let mut random = Random::new(12 + round);
            take(&mut *live, 250, || 1 + random.below(40)).await
        });
        written.extend(some);
        let new = by_partition(written[before..].iter().cloned());
        assert_eq!(by_partition(followed), new, "live in round {round}");

        let whole = by_partition(written.iter().cloned());
        for batch in [1, 7, 10_000] {
            let mut replay = log.reader(&targets.map(|target| (target, None))).unwrap();
            let replayed = take(&mut *replay, written.len(), || batch).await;
            assert_eq!(by_partition(replayed), whole, "in batches of {batch} in round {round}");
            assert_eq!(replay.next_ready(1).await.unwrap(), []);
        }
        // Every other time without a good end.
        if round % 2 == 0 {
            log.close().await.unwrap();
        }
    }
}

pub(super) async fn a_reader_gives_only_what_is_asked_for(backend: &dyn Backend) {
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let written = by_partition(fill(&*log, 300, &mut Random::new(21)).await);
    // One partition from the start, one from its middle, one not at all.
    let (start, middle) = (target(0), target(2));
    let after = &written[&middle][40];
    let mut reader = log.reader(&[(start, None), (middle, Some(after.position))]).unwrap();
    let wanted = by_partition([&written[&start][..], &written[&middle][41..]].concat());
    let count = wanted.values().map(Vec::len).sum();
    assert_eq!(by_partition(take(&mut *reader, count, || 9).await), wanted);
    assert_eq!(reader.next_ready(9).await.unwrap(), []);
    append(&*log, frame(target(1), INCARNATION, 900, 10)).await;
    assert_eq!(reader.next_ready(9).await.unwrap(), []);
    let newest = append(&*log, frame(middle, INCARNATION, 900, 10)).await;
    assert_eq!(within(reader.next(9)).await.unwrap(), [newest]);
}

pub(super) async fn a_reader_that_is_dropped_while_waiting_loses_nothing(backend: &dyn Backend) {
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let mut random = Random::new(31);
    let targets = ALL.map(target);
    let mut reader = log.reader(&targets.map(|target| (target, None))).unwrap();
    assert!(reader.next(3).now_or_never().is_none(), "there is nothing yet");
    let (written, seen) = tokio::join!(fill(&*log, 300, &mut random), async {
        let mut seen = Vec::new();
        let mut dropped = 0;
        while seen.len() < 300 {
            // Dropped after one poll, whatever it was doing.
            match reader.next(3).now_or_never() {
                Some(some) => seen.extend(some.unwrap()),
                None => dropped += 1,
            }
            // And while it waits.
            if let Ok(some) = tokio::time::timeout(Duration::from_micros(50), reader.next(2)).await {
                seen.extend(some.unwrap());
            }
            tokio::task::yield_now().await;
        }
        assert!(dropped > 0, "no future was dropped");
        seen
    });
    assert_eq!(by_partition(seen), by_partition(written));
    assert_eq!(reader.next_ready(3).await.unwrap(), []);
}

pub(super) async fn a_reader_from_the_end_gives_what_comes_later(backend: &dyn Backend) {
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let mut of_empty = log.reader_from_end(&[target(0)]).unwrap();
    let first = append(&*log, frame(target(0), INCARNATION, 0, 40)).await;
    assert_eq!(within(of_empty.next(5)).await.unwrap(), [first]);

    let mut later = log.reader_from_end(&[target(0), target(1)]).unwrap();
    assert_eq!(later.next_ready(5).await.unwrap(), []);
    // The very next record is the first that it gives.
    let second = append(&*log, frame(target(1), INCARNATION, 0, 40)).await;
    append(&*log, frame(target(2), INCARNATION, 0, 40)).await;
    let third = append(&*log, frame(target(0), INCARNATION, 1, 40)).await;
    let given = take(&mut *later, 2, || 5).await;
    assert_eq!(by_partition(given), by_partition([second, third.clone()]));

    // One that follows from the last position does the same.
    let mut from_last = log.reader(&[(target(0), Some(third.position))]).unwrap();
    assert_eq!(from_last.next_ready(5).await.unwrap(), []);
    log.close().await.unwrap();
    drop(log);
    let log = place.open().await;
    let mut reopened = log.reader_from_end(&[target(0)]).unwrap();
    let fourth = append(&*log, frame(target(0), INCARNATION, 2, 40)).await;
    assert_eq!(within(reopened.next(5)).await.unwrap(), [fourth]);
}

pub(super) async fn a_stalled_reader_never_stalls_the_writer(backend: &dyn Backend) {
    const RECORDS: usize = 10_000;
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let targets = ALL.map(target).map(|target| (target, None));
    let mut random = Random::new(41);
    // One never reads, one stops after its first batch, one waits and is never asked again.
    let mut never = log.reader(&targets).unwrap();
    let mut stopped = log.reader(&targets).unwrap();
    let mut waiting = log.reader_from_end(&ALL.map(target)).unwrap();
    assert!(waiting.next(1).now_or_never().is_none());
    let mut written = fill(&*log, 100, &mut random).await;
    let first = within(stopped.next(10)).await.unwrap();
    let started = std::pin::pin!(fill(&*log, RECORDS, &mut random));
    written
        .extend(tokio::time::timeout(super::PATIENCE, started).await.expect("a writer that is not held up"));

    let count = written.len();
    let whole = by_partition(written);
    assert_eq!(by_partition(take(&mut *never, count, || 1_000).await), whole);
    let rest = take(&mut *stopped, count - first.len(), || 1_000).await;
    assert_eq!(by_partition([first, rest].concat()), whole);
    assert_eq!(by_partition(take(&mut *waiting, count, || 1_000).await), whole);
}

pub(super) async fn counts_are_what_a_reader_gives(backend: &dyn Backend) {
    let place = backend.place(Limits::SMALL);
    let mut random = Random::new(51);
    let mut written: Vec<Stored> = Vec::new();
    for round in 0..2 {
        let log = place.open().await;
        assert_eq!(log.count_after(target(9), None).await.unwrap(), 0);
        written.extend(fill(&*log, 400, &mut random).await);
        let whole = by_partition(written.iter().cloned());
        for (target, of) in &whole {
            assert_eq!(log.count_after(*target, None).await.unwrap(), of.len() as u64, "round {round}");
            assert_eq!(log.count_after(*target, Some(of[of.len() - 1].position)).await.unwrap(), 0);
        }
        for _ in 0..60 {
            let after = &written[random.below(written.len())];
            let target = after.frame.target;
            let mut reader = log.reader(&[(target, Some(after.position))]).unwrap();
            let mut given = 0;
            loop {
                let some = within(reader.next_ready(50)).await.unwrap();
                if some.is_empty() {
                    break;
                }
                given += some.len();
            }
            let behind = whole[&target].iter().filter(|stored| stored.position > after.position).count();
            let count = log.count_after(target, Some(after.position)).await.unwrap();
            assert_eq!((given, count), (behind, behind as u64), "behind {} of {target}", after.position);
        }
        log.close().await.unwrap();
    }
}

pub(super) async fn positions_are_exact_and_others_are_not_found(backend: &dyn Backend) {
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let missing = Position(1 << 40);
    not_found(log.frame_at(target(0), missing).await, missing);
    not_found(log.reader(&[(target(0), Some(missing))]), missing);
    let written = fill(&*log, 300, &mut Random::new(61)).await;
    log.close().await.unwrap();
    drop(log);

    let log = place.open().await;
    for (target, of) in &by_partition(written.clone()) {
        for (stored, next) in of.iter().zip(of.iter().skip(1)) {
            assert_eq!(log.frame_at(*target, stored.position).await.unwrap(), *stored);
            let mut reader = log.reader(&[(*target, Some(stored.position))]).unwrap();
            assert_eq!(within(reader.next(1)).await.unwrap(), std::slice::from_ref(next));
            // Whatever lies between two frames of a partition is none of its frames: other partitions' among them.
            for between in [stored.position.0 + 1, next.position.0 - 1] {
                if stored.position.0 < between && between < next.position.0 {
                    let between = Position(between);
                    not_found(log.frame_at(*target, between).await, between);
                }
            }
        }
        let last = &of[of.len() - 1];
        assert_eq!(log.frame_at(*target, last.position).await.unwrap(), *last);
        let mut reader = log.reader(&[(*target, Some(last.position))]).unwrap();
        assert_eq!(reader.next_ready(1).await.unwrap(), []);
        not_found(log.frame_at(*target, beyond(last)).await, beyond(last));
        not_found(log.reader(&[(*target, Some(beyond(last)))]), beyond(last));
        not_found(log.count_after(*target, Some(beyond(last))).await, beyond(last));
    }
    for stored in &written {
        let other = target((stored.frame.target.partition + 1) % 3);
        match log.frame_at(other, stored.position).await {
            // Where each partition counts for itself, another one may have the same number.
            Ok(found) => assert_eq!((found.frame.target, found.position), (other, stored.position)),
            Err(error) => assert_eq!(error, ReadError::NotFound(stored.position)),
        }
    }
}

pub(super) async fn a_changed_record_is_never_given(backend: &dyn Backend) {
    if backend.cannot().change {
        return;
    }
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let mut written = Vec::new();
    for seq in 0..300 {
        written.push(append(&*log, frame(target(0), INCARNATION, seq, 200)).await);
    }
    // Deep in the past, and the newest.
    for changed in [299, 20] {
        place.change(&written[changed]);
        let mut reader = log.reader(&[(target(0), None)]).unwrap();
        assert_eq!(take(&mut *reader, changed, || 10).await, written[..changed]);
        for _ in 0..2 {
            match within(reader.next(1)).await {
                Err(ReadError::Corrupt { position, .. }) => assert_eq!(position, written[changed].position.0),
                other => panic!("a changed record was passed over: {other:?}"),
            }
        }
        let found = log.frame_at(target(0), written[changed].position).await;
        assert!(matches!(found, Err(ReadError::NotFound(_) | ReadError::Corrupt { .. })), "{found:?}");
    }
    assert_eq!(log.frame_at(target(0), written[19].position).await.unwrap(), written[19]);
    assert_eq!(log.frame_at(target(0), written[21].position).await.unwrap(), written[21]);
}
