//! What an ack means, and what is left when the disk fails.

use futures::FutureExt;

use super::*;

#[tokio::test]
async fn an_ack_waits_for_the_sync_that_covers_it() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let gate = Arc::new(Gate::default());
    let log = observed(&options, gate.observer());
    append(&log, frame(0, 0, 10)).await;
    let mut reader = log.reader_from_end(&[target(0)]).unwrap();

    gate.shut();
    let mut ack = send(&log, frame(0, 1, 10)).await;
    gate.arrived();
    let written = {
        let state = gate.state.lock().unwrap();
        // The helper thread's files are not of interest.
        let of_segment = |seen: &&Operation| match seen {
            Operation::Write { file, .. } | Operation::SyncData { file } => file.ends_with(".seg"),
            _ => false,
        };
        state.seen.iter().rev().filter(of_segment).nth(1).cloned()
    };
    assert!(matches!(written, Some(Operation::Write { .. })), "written before the sync, but {written:?}");
    assert!((&mut ack).now_or_never().is_none(), "acknowledged before the sync returned");
    assert_eq!(reader.next_ready(1).await.unwrap(), [], "a reader saw it before the sync returned");

    gate.open();
    let position = ack.await.unwrap();
    assert_eq!(reader.next(1).await.unwrap()[0].position, position);
}

#[tokio::test]
async fn what_waits_shares_one_write_and_one_sync() {
    let dir = TempDir::new().unwrap();
    let gate = Arc::new(Gate::default());
    let log = observed(&options(&dir), gate.observer());
    append(&log, frame(0, 0, 10)).await;
    gate.shut();
    let mut acks = vec![send(&log, frame(0, 1, 10)).await];
    gate.arrived();
    for seq in 2..9 {
        acks.push(send(&log, frame(0, seq, 10)).await);
    }
    gate.state.lock().unwrap().seen.clear();
    gate.open();
    let positions: Vec<Position> =
        futures::future::join_all(acks).await.into_iter().collect::<Result<_, _>>().unwrap();
    assert!(positions.is_sorted());
    let syncs = gate
        .state
        .lock()
        .unwrap()
        .seen
        .iter()
        .filter(|seen| matches!(seen, Operation::SyncData { file } if file.ends_with(".seg")))
        .count();
    assert_eq!(syncs, 1, "the seven that waited behind the first");
}

/// A process that was killed may have renamed a segment and not synced the directory. Were the watermark's new name durable
/// and the segment's not, the log would look cut. Found by the simulation.
#[test]
fn opening_syncs_the_names_it_found_before_a_watermark_builds_on_them() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    drop(open(&options));
    let gate = Arc::new(Gate::default());
    drop(observed(&options, gate.observer()));
    let seen = std::mem::take(&mut gate.state.lock().unwrap().seen);
    let first = |found: &dyn Fn(&Operation) -> bool| seen.iter().position(found).unwrap();
    let synced = first(&|seen| *seen == Operation::SyncDir);
    let named = first(&|seen| matches!(seen, Operation::Rename { to, .. } if to == "watermark"));
    assert!(synced < named, "{seen:?}");
}

#[tokio::test]
async fn lanes_stay_unclosed_until_their_incarnation_is_marked() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let other = Uuid::from_u128(8);
    let (log, _) = open(&options);
    // Over several segments, so that lanes come from a header too.
    fill(&log, 60, 100).await;
    append(&log, Frame { incarnation: other, ..frame(5, 0, 10) }).await;
    drop(log);
    for clean in [false, true] {
        let (log, recovered) = open(&options);
        let lanes: Vec<(Uuid, u32, u64)> = recovered
            .unclosed
            .iter()
            .map(|lane| (lane.incarnation, lane.target.partition, lane.seq))
            .collect();
        assert_eq!(lanes, [(INCARNATION, 0, 19), (INCARNATION, 1, 19), (INCARNATION, 2, 19), (other, 5, 0)]);
        assert_eq!(recovered.unclosed[0].link, sha256(&19_u64.to_be_bytes()));
        if clean {
            log.mark_closed(INCARNATION).await.unwrap();
            log.close().await.unwrap();
        }
    }
    let (log, recovered) = open(&options);
    assert_eq!(recovered.unclosed.len(), 1);
    assert_eq!(recovered.unclosed[0].incarnation, other);
    log.mark_closed(other).await.unwrap();
    drop(log);
    assert_eq!(open(&options).1.unclosed, []);
}

#[test]
fn figures_have_their_names() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(&options(&dir));
    let mut registry = prometheus_client::registry::Registry::default();
    log.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for name in [
        "annals_log_appended_records_total 0",
        "annals_log_fsync_duration_seconds_count 0",
        "annals_log_in_flight_records 0",
        "annals_log_reserved_bytes 0",
        "annals_log_segments 1",
        "annals_log_failed 0",
    ] {
        assert!(text.lines().any(|line| line == name), "{name} is not in\n{text}");
    }
}
