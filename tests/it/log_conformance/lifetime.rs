//! A log's identity, its end, and copies of it.

use annals::log::{AppendError, Health, ReadError, Refusal};

use super::{
    Backend, INCARNATION, Limits, append, by_partition, frame, not_found, read_all, refusal, target, within,
};

pub(super) async fn its_id_stays_and_a_fresh_log_has_another(backend: &dyn Backend) {
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let id = log.id();
    let stored = append(&*log, frame(target(0), INCARNATION, 0, 20)).await;
    let class = log.ack_class();
    drop(log);
    for _ in 0..2 {
        let log = place.open().await;
        assert_eq!((log.id(), log.ack_class()), (id, class));
        assert_eq!(read_all(&*log, &[target(0)]).await, by_partition([stored.clone()]));
        log.close().await.unwrap();
        assert_eq!(log.id(), id);
    }
    let other = backend.place(Limits::SMALL);
    let fresh = other.open().await;
    assert_ne!(fresh.id(), id);
    not_found(fresh.reader(&[(target(0), Some(super::beyond(&stored)))]), super::beyond(&stored));
}

pub(super) async fn a_closed_log_refuses_and_lets_its_readers_finish(backend: &dyn Backend) {
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let mut written = Vec::new();
    for seq in 0..5 {
        written.push(append(&*log, frame(target(0), INCARNATION, seq, 10)).await);
    }
    let early = log.reserve(1, 10).await.unwrap();
    let mut reader = log.reader(&[(target(0), None)]).unwrap();
    let mut waiting = log.reader_from_end(&[target(0)]).unwrap();
    // What was handed over before the close is written.
    let room = log.reserve(1, 10).await.unwrap();
    let last = frame(target(0), INCARNATION, 5, 10);
    let ack = log.append(room, last.clone());
    let (given, ended, ()) = tokio::join!(
        async { within(waiting.next(10)).await },
        async {
            let position = within(ack).await.unwrap();
            annals::log::Stored { position, frame: last }
        },
        async { within(log.close()).await.unwrap() },
    );
    assert_eq!(given.unwrap(), std::slice::from_ref(&ended));
    assert!(matches!(within(waiting.next(10)).await, Err(ReadError::Closed)), "nothing comes any more");
    written.push(ended);

    let error = log.append(early, frame(target(0), INCARNATION, 6, 10)).await.unwrap_err();
    assert_eq!(error, AppendError::Refused(Refusal::Closed));
    assert_eq!(refusal(log.reserve(1, 10).await), Refusal::Closed);
    assert!(matches!(log.health(), Health::Refusing(_)));
    log.close().await.unwrap();
    let mut finished = Vec::new();
    while finished.len() < written.len() {
        finished.extend(within(reader.next(4)).await.unwrap());
    }
    assert_eq!(finished, written);
    for _ in 0..2 {
        assert!(matches!(within(reader.next(4)).await, Err(ReadError::Closed)));
        assert!(matches!(within(reader.next_ready(4)).await, Err(ReadError::Closed)));
    }
    // It is let go although the handle still lives.
    let again = place.open().await;
    assert_eq!(read_all(&*again, &[target(0)]).await, by_partition(written));
}

pub(super) async fn an_older_copy_does_not_pass_for_the_log(backend: &dyn Backend) {
    if backend.cannot().put_back {
        return;
    }
    let place = backend.place(Limits::SMALL);
    let log = place.open().await;
    let id = log.id();
    let old = append(&*log, frame(target(0), INCARNATION, 0, 100)).await;
    log.close().await.unwrap();
    drop(log);
    place.keep();
    let log = place.open().await;
    append(&*log, frame(target(0), INCARNATION, 1, 100)).await;
    // What a reader applied last: its checkpoint.
    let applied = append(&*log, frame(target(0), INCARNATION, 2, 100)).await;
    log.close().await.unwrap();
    drop(log);

    place.put_back();
    let log = place.open().await;
    assert_eq!(log.id(), id, "a copy has the same id: only the frames tell");
    assert_eq!(log.frame_at(target(0), old.position).await.unwrap(), old);
    not_found(log.frame_at(target(0), applied.position).await, applied.position);
    not_found(log.reader(&[(target(0), Some(applied.position))]), applied.position);
    // It grows past the checkpoint with other events.
    let mut other = Vec::new();
    for seq in 10..20 {
        other.push(append(&*log, frame(target(0), INCARNATION, seq, 100)).await);
    }
    assert!(other[9].position > applied.position);
    match log.frame_at(target(0), applied.position).await {
        Ok(found) => assert_ne!(found.frame.link, applied.frame.link),
        Err(error) => assert_eq!(error, ReadError::NotFound(applied.position)),
    }
}
