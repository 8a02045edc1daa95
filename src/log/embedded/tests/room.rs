//! Reservations: bounded, given back, and kept when nothing else fits any more.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::log::{AppendError, Health, Refusal};

fn refusal(result: Result<crate::log::Reservation, AppendError>) -> Refusal {
    match result {
        Err(AppendError::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn records_and_bytes_out_are_bounded_and_come_back() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(&options(&dir));
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(log.reserve(2, 10).await.unwrap());
    }
    assert_eq!(refusal(log.reserve(1, 0).await), Refusal::Busy);
    assert_eq!(log.stats().reserved_records.get(), 16);

    // Taken apart and used or dropped, all of it comes back.
    let outcome = held[0].take(4).unwrap();
    append_in(&log, outcome, 0).await;
    log.reserve(1, 0).await.unwrap();
    held.clear();
    assert_eq!((log.stats().reserved_records.get(), log.stats().reserved_bytes.get()), (0, 0));

    let big = log.reserve(1, 2_000).await.unwrap();
    assert_eq!(refusal(log.reserve(1, 100).await), Refusal::Busy);
    let waiting = log.reserve(1, 100);
    let (waited, ()) = tokio::join!(waiting, async move { drop(big) });
    waited.unwrap();
}

async fn append_in(log: &EmbeddedLog, room: crate::log::Reservation, seq: u64) {
    log.append(room, frame(0, seq, 4)).await.unwrap();
}

#[tokio::test]
async fn an_opened_log_accepts_at_once() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(&Options { reserve_wait: Duration::ZERO, ..options(&dir) });
    append(&log, frame(0, 0, 10)).await;
}

#[tokio::test]
async fn what_can_never_fit_is_refused_at_once() {
    let dir = TempDir::new().unwrap();
    let roomy =
        Options { in_flight_bytes_max: 1 << 20, reserve_wait: Duration::from_secs(60), ..options(&dir) };
    let (log, _) = open(&roomy);
    let over_limit = refusal(log.reserve(1, (1 << 20) + 1).await);
    assert!(
        matches!(&over_limit, Refusal::Full(cause) if cause.contains("may ever be in flight")),
        "{over_limit}"
    );
    let over_segment = refusal(log.reserve(1, 5_000).await);
    assert!(
        matches!(&over_segment, Refusal::Full(cause) if cause.contains("a segment holds")),
        "{over_segment}"
    );
    append(&log, frame(0, 0, 10)).await;
}

#[tokio::test]
async fn a_record_over_its_reservation_is_refused_and_harms_nobody() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(&options(&dir));
    let room = log.reserve(1, 10).await.unwrap();
    let error = log.append(room, frame(0, 0, 11)).await.unwrap_err();
    assert!(matches!(error, AppendError::Refused(Refusal::Full(_))), "{error:?}");
    assert_eq!(log.stats().reserved_records.get(), 0);
    append(&log, frame(0, 0, 11)).await;
}

#[tokio::test]
async fn outcomes_fit_when_the_disk_is_full_and_room_comes_back_with_space() {
    let dir = TempDir::new().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let wide = Options { in_flight_records_max: 1_000, in_flight_bytes_max: 1 << 20, ..options(&dir) };
    let log = observed(&wide, {
        let full = full.clone();
        Arc::new(move |operation| match operation {
            Operation::Allocate { .. } if full.load(Ordering::SeqCst) => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        })
    });
    append(&log, frame(0, 0, 100)).await;
    full.store(true, Ordering::SeqCst);

    // Calls start until one is refused: each writes its intent and keeps room for its outcome.
    let mut outcomes = Vec::new();
    let mut seq = 1;
    let cause = loop {
        match log.reserve(2, 200).await {
            Ok(mut room) => {
                let intent = room.take(100).unwrap();
                log.append(intent, frame(0, seq, 100)).await.unwrap();
                seq += 1;
                outcomes.push(room);
            }
            Err(AppendError::Refused(Refusal::Full(cause))) => break cause,
            // All that is allocated is promised: a call has to end first.
            Err(AppendError::Refused(Refusal::Busy)) => {
                log.append(outcomes.pop().unwrap(), frame(0, seq, 100)).await.unwrap();
                seq += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    };
    assert!(cause.contains("cannot allocate"), "{cause}");
    assert!(outcomes.len() > 5, "{} calls fit", outcomes.len());
    assert!(matches!(log.health(), Health::Refusing(cause) if cause.contains("cannot allocate")));
    for room in outcomes {
        log.append(room, frame(0, seq, 100)).await.unwrap();
        seq += 1;
    }

    full.store(false, Ordering::SeqCst);
    let again = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            match log.reserve(1, 1_000).await {
                Ok(room) => return room,
                Err(AppendError::Refused(Refusal::Full(_) | Refusal::Busy)) => tokio::task::yield_now().await,
                Err(other) => panic!("{other:?}"),
            }
        }
    });
    log.append(again.await.unwrap(), frame(0, seq, 1_000)).await.unwrap();
    // The room may have come from the old segment's rest; asking for the health tries the preparation again.
    let healthy = async {
        while log.health() != Health::Accepting {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), healthy).await.expect("a log that accepts again");
}
