//! Appending: order, durability, room, and what a failure means.

use std::sync::Arc;
use std::time::Duration;

use annals::base::{Clock, SystemClock};
use annals::event::{Event, Facts, PARTITIONS, Personal, Stopping, TopicPartition, partition_of};
use annals::log::{AppendError, Frame, Health, Lanes, Log, Position, RecordError, Refusal, Stored};
use futures::FutureExt;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{
    Backend, INCARNATION, Limits, alone, append, by_partition, frame, read_all, refusal, target, within,
};

fn every_partition() -> Vec<TopicPartition> {
    (0..PARTITIONS).map(target).collect()
}

pub(super) async fn positions_increase_in_the_order_of_append(backend: &dyn Backend) {
    let place = backend.place(Limits::SMALL);
    let mut last: [Option<Position>; 2] = [None; 2];
    for opening in 0..3 {
        let log = place.open().await;
        let mut acks = Vec::new();
        for seq in 0..200 {
            let partition = u32::try_from(seq % 2).unwrap();
            let room = log.reserve(1, 100).await.unwrap();
            acks.push((partition, log.append(room, frame(target(partition), INCARNATION, seq, 100))));
        }
        for (partition, ack) in acks {
            let position = within(ack).await.unwrap();
            let before = last[partition as usize].replace(position);
            assert!(before < Some(position), "{position} behind {before:?} in opening {opening}");
        }
        log.close().await.unwrap();
    }
}

pub(super) async fn an_acked_record_is_read_at_once(backend: &dyn Backend) {
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let mut follower = log.reader(&[(target(5), None)]).unwrap();
    for seq in 0..100 {
        let stored = append(&*log, frame(target(5), INCARNATION, seq, 300)).await;
        let followed = follower.next_ready(10).await.unwrap();
        assert_eq!(followed, std::slice::from_ref(&stored), "by a reader that follows");
        assert_eq!(log.frame_at(target(5), stored.position).await.unwrap(), stored);
        assert_eq!(log.count_after(target(5), None).await.unwrap(), seq + 1);
        let read = read_all(&*log, &[target(5)]).await.remove(&target(5)).unwrap();
        assert_eq!((read.len() as u64, read.last()), (seq + 1, Some(&stored)), "by a reader from the start");
    }
}

pub(super) async fn each_key_keeps_its_order_under_many_writers(backend: &dyn Backend) {
    const WRITERS: u64 = 64;
    const RECORDS: u64 = 40;
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let log = log.clone();
        writers.spawn(async move {
            let target = target(partition_of(&format!("key {writer}")));
            let mut acks = Vec::new();
            for seq in 0..RECORDS {
                let room = log.reserve(1, 60).await.unwrap();
                let frame = frame(target, Uuid::from_u128(writer.into()), seq, 60);
                let ack = log.append(room, frame.clone());
                acks.push(async move { Stored { position: ack.await.unwrap(), frame } });
            }
            futures::future::join_all(acks).await
        });
    }
    let written: Vec<Vec<Stored>> = within(writers.join_all()).await;
    let read = read_all(&*log, &every_partition()).await;
    for (target, read) in &read {
        assert!(read.is_sorted_by(|a, b| a.position < b.position), "{target} goes back");
    }
    assert_eq!(read.values().map(Vec::len).sum::<usize>() as u64, WRITERS * RECORDS);
    for written in written {
        let first = &written[0].frame;
        let of_key: Vec<Stored> = read[&first.target]
            .iter()
            .filter(|stored| stored.frame.incarnation == first.incarnation)
            .cloned()
            .collect();
        assert_eq!(of_key, written, "of {}", first.incarnation);
    }
}

pub(super) async fn the_same_event_twice_is_kept_twice(backend: &dyn Backend) {
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let first = append(&*log, frame(target(1), INCARNATION, 0, 80)).await;
    let again = append(&*log, first.frame.clone()).await;
    // The same event with a number of its own, as a resent outbox entry has it.
    let renumbered = append(&*log, Frame { seq: 1, ..first.frame.clone() }).await;
    assert!(first.position < again.position && again.position < renumbered.position);
    let read = read_all(&*log, &[target(1)]).await;
    assert_eq!(read, by_partition([first, again, renumbered]));
}

pub(super) async fn records_and_bytes_in_flight_are_bounded_and_come_back(backend: &dyn Backend) {
    let limits = Limits { wait: Duration::from_millis(300), ..Limits::SMALL };
    let place = backend.place(limits);
    let log = place.open().await;
    let log: &dyn Log = &*log;
    let all = async || log.reserve(limits.records, limits.bytes).await.unwrap();
    let busy = async |records, bytes| {
        let started = SystemClock.monotonic();
        assert_eq!(refusal(log.reserve(records, bytes).await), Refusal::Busy);
        assert!(started.elapsed() >= limits.wait, "refused without waiting");
    };

    // Records, bytes and both bound alone; dropping gives back.
    let held = log.reserve(limits.records, 0).await.unwrap();
    busy(1, 0).await;
    drop(held);
    let held = log.reserve(1, limits.bytes).await.unwrap();
    busy(1, 1).await;
    log.reserve(1, 0).await.unwrap();
    drop(held);
    let mut held = all().await;
    busy(1, 0).await;

    // Taken apart, used and dropped, all of it comes back.
    let part = held.take(100).unwrap();
    assert!(held.take(limits.bytes).is_none(), "more than is left was taken");
    log.append(part, frame(target(0), INCARNATION, 0, 60)).await.unwrap();
    log.reserve(1, 100).await.unwrap();
    busy(1, 101).await;
    drop(held);

    // What is appended counts until its ack, whether that is awaited or not.
    let mut held = all().await;
    for seq in 1..10 {
        let room = held.take(100).unwrap();
        drop(log.append(room, frame(target(0), INCARNATION, seq, 100)));
    }
    let room = held.take(100).unwrap();
    log.append(room, frame(target(0), INCARNATION, 10, 100)).await.unwrap();
    drop(held);
    drop(all().await);
    assert_eq!(log.count_after(target(0), None).await.unwrap(), 11);

    // What can never be had is not waited for.
    for (records, bytes) in [(limits.records + 1, 0), (1, limits.bytes + 1)] {
        let refusal = refusal(log.reserve(records, bytes).await);
        assert!(matches!(refusal, Refusal::Full(_)), "{refusal:?}");
    }
    assert_eq!(log.health(), Health::Accepting);
}

pub(super) async fn who_waits_for_room_gets_it_when_it_comes_back(backend: &dyn Backend) {
    let limits = Limits { wait: super::PATIENCE, ..Limits::SMALL };
    let place = backend.place(limits);
    let log = place.open().await;
    let mut held = log.reserve(limits.records, limits.bytes).await.unwrap();
    let mut waiting = log.reserve(1, 50);
    assert!((&mut waiting).now_or_never().is_none(), "more than may be in flight was given");
    let part = held.take(100).unwrap();
    log.append(part, frame(target(0), INCARNATION, 0, 100)).await.unwrap();
    drop(within(waiting).await.unwrap());

    // The one who gave up waiting has taken nothing.
    let waiting = log.reserve(2, 50);
    let mut abandoned = log.reserve(2, 50);
    assert!((&mut abandoned).now_or_never().is_none());
    drop(abandoned);
    drop(held);
    drop(within(waiting).await.unwrap());
    drop(within(log.reserve(limits.records, limits.bytes)).await.unwrap());
}

pub(super) async fn a_record_over_its_reservation_is_refused_and_harms_nobody(backend: &dyn Backend) {
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let room = log.reserve(1, 10).await.unwrap();
    let error = log.append(room, frame(target(0), INCARNATION, 0, 11)).await.unwrap_err();
    assert!(matches!(error, AppendError::Refused(Refusal::Full(_))), "{error:?}");
    drop(log.reserve(Limits::SMALL.records, Limits::SMALL.bytes).await.unwrap());
    let stored = append(&*log, frame(target(0), INCARNATION, 0, 11)).await;
    assert_eq!(read_all(&*log, &[target(0)]).await, by_partition([stored]));
}

fn stopping(lanes: &Lanes, reason: &str) -> Event {
    let facts = Facts::Stopping(Stopping { reason: reason.into() });
    lanes.draft().build(SystemClock.now(), "key", &facts, &Personal::default()).unwrap()
}

pub(super) async fn a_refused_event_is_not_written_and_takes_no_number(backend: &dyn Backend) {
    let limits = Limits { wait: Duration::ZERO, ..Limits::SMALL };
    let place = backend.place(limits);
    let log = place.open().await;
    let lanes = Lanes::new(Arc::clone(&log), Arc::new(SystemClock), "default");
    let target = stopping(&lanes, "a").target;
    let first = lanes.record(stopping(&lanes, "first")).await.unwrap();
    assert_eq!(first.seq, 0);

    let held = log.reserve(limits.records, 0).await.unwrap();
    for _ in 0..3 {
        let refused = lanes.record(stopping(&lanes, "refused")).await.unwrap_err();
        assert!(matches!(refused, RecordError::Refused(Refusal::Busy)), "{refused:?}");
    }
    drop(held);
    assert_eq!(log.count_after(target, None).await.unwrap(), 1);

    let second = lanes.record(stopping(&lanes, "second")).await.unwrap();
    assert_eq!(second.seq, 1, "a refused event took a number");
    let read = read_all(&*log, &[target]).await.remove(&target).unwrap();
    let read: Vec<_> =
        read.iter().map(|stored| (stored.position, stored.frame.seq, stored.frame.link)).collect();
    assert_eq!(read, [first, second].map(|receipt| (receipt.position, receipt.seq, receipt.link)));
}

pub(super) async fn an_uncertain_append_keeps_its_place_in_its_lane(backend: &dyn Backend) {
    const NAME: &str = "an_uncertain_append_keeps_its_place_in_its_lane";
    if backend.cannot().fail || !alone(backend, NAME).await {
        return;
    }
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let lanes = Lanes::new(Arc::clone(&log), Arc::new(SystemClock), "default");
    let target = stopping(&lanes, "a").target;
    let kept = lanes.record(stopping(&lanes, "kept")).await.unwrap();
    let mut early = log.reserve(2, 2_000).await.unwrap();

    place.writes_fail(true);
    for reason in ["unsure", "unsure too"] {
        let room = early.take(1_000).unwrap();
        let error = within(lanes.record_in(room, stopping(&lanes, reason))).await.unwrap_err();
        assert!(matches!(error, RecordError::Uncertain(_)), "{error:?}");
    }
    let refused = within(lanes.record(stopping(&lanes, "refused"))).await.unwrap_err();
    assert!(matches!(refused, RecordError::Refused(Refusal::Suspended(_))), "{refused:?}");
    place.writes_fail(false);
    // It accepts again by itself.
    let after = within(async {
        loop {
            match lanes.record(stopping(&lanes, "after")).await {
                Ok(receipt) => return receipt,
                Err(RecordError::Refused(Refusal::Suspended(_))) => tokio::task::yield_now().await,
                Err(error) => panic!("{error:?}"),
            }
        }
    })
    .await;
    assert_eq!((kept.seq, after.seq), (0, 3));
    within(log.close()).await.unwrap();
    drop((lanes, log));

    let log = place.open().await;
    let read = read_all(&*log, &[target]).await.remove(&target).unwrap();
    assert_eq!(read.iter().map(|stored| stored.frame.seq).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!((read[0].position, read[3].position), (kept.position, after.position));
    let mut prev = [0; 32];
    for Stored { frame, .. } in &read {
        prev = frame.link_behind(&prev);
        assert_eq!(frame.link, prev, "number {}", frame.seq);
    }
}
