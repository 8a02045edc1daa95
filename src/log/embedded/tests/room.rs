//! Reservations: their figures, and kept when nothing else fits any more. What every engine must do:
//! `tests/it/log_conformance`.

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
async fn the_figures_say_what_is_set_aside() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(&options(&dir));
    let figures = || (log.stats().reserved_records.get(), log.stats().reserved_bytes.get());
    let mut held = log.reserve(16, 100).await.unwrap();
    assert_eq!(figures(), (16, 100));
    let part = held.take(40).unwrap();
    log.append(part, frame(0, 0, 4)).await.unwrap();
    assert_eq!(figures(), (15, 60));
    // Over its room: refused, and that room is free again.
    let part = held.take(10).unwrap();
    let refused = log.append(part, frame(0, 1, 11)).await;
    assert!(matches!(refused, Err(AppendError::Refused(Refusal::Full(_)))), "{refused:?}");
    assert_eq!(figures(), (14, 50));
    drop(held);
    assert_eq!(figures(), (0, 0));
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
