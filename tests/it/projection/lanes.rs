//! What a worker does with lanes that do not hold together, and with events that have no row.

use annals::base::SystemClock;
use annals::event::{Draft, Facts, KeyRevoked, Kind, Personal, Stopping, Topic, TopicPartition};
use annals::log::Frame;
use bytes::Bytes;
use uuid::Uuid;

use super::stand::{Forged, Stand, append, call, target_of, terminal};

fn stopping(draft: &Draft) -> Bytes {
    let facts = Facts::Stopping(Stopping { reason: "signal".into() });
    draft.build(annals::base::Clock::now(&SystemClock), "k", &facts, &Personal::default()).unwrap().body
}

fn system(partition: u32) -> Forged {
    Forged::new(TopicPartition { topic: Topic::System, partition })
}

async fn append_all(stand: &Stand, frames: &[Frame]) -> Vec<u64> {
    let mut positions = Vec::new();
    for frame in frames {
        positions.push(append(&*stand.log, frame.clone()).await.0);
    }
    positions
}

async fn row_positions(stand: &Stand) -> Vec<i64> {
    sqlx::query_scalar("SELECT position FROM audit_v1.audit_events ORDER BY position")
        .fetch_all(&stand.owner)
        .await
        .unwrap()
}

async fn parked(stand: &Stand) -> Vec<(i64, String)> {
    sqlx::query_as("SELECT position, cause FROM annals.parked ORDER BY position")
        .fetch_all(&stand.owner)
        .await
        .unwrap()
}

fn signed(positions: &[u64]) -> Vec<i64> {
    positions.iter().map(|position| i64::try_from(*position).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_recorded_counted_and_passed() {
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |_| {});
    let draft = stand.lanes.draft();
    let mut lane = system(1);
    let first = lane.next(stopping(draft));
    let _lost = [lane.next(stopping(draft)), lane.next(stopping(draft)), lane.next(stopping(draft))];
    let after = [lane.next(stopping(draft)), lane.next(stopping(draft))];
    let mut positions = append_all(&stand, &[first]).await;
    // In another batch, so that the head comes from Postgres or from memory.
    stand.caught_up().await;
    positions.extend(append_all(&stand, &after).await);
    stand.caught_up().await;
    assert_eq!(row_positions(&stand).await, signed(&positions));
    let findings: Vec<(String, i64, i64, i64)> =
        sqlx::query_as("SELECT kind, from_seq, to_seq, position FROM annals.findings")
            .fetch_all(&stand.owner)
            .await
            .unwrap();
    assert_eq!(findings, [("gap".to_owned(), 1, 3, i64::try_from(positions[1]).unwrap())]);
    assert_eq!(run.metric("annals_events_missing_total"), 3);
    assert_eq!(run.metric("annals_projection_applied_events_total"), 3);
    run.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_applied_is_dropped_when_it_comes_again_and_kept_aside_when_it_differs() {
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |_| {});
    let draft = stand.lanes.draft();
    let mut lane = system(1);
    let unreadable = lane.next(&b"{}"[..]);
    let frames = [lane.next(stopping(draft)), lane.next(stopping(draft)), lane.next(stopping(draft))];
    append_all(&stand, std::slice::from_ref(&unreadable)).await;
    let positions = append_all(&stand, &frames).await;
    stand.caught_up().await;
    run.stop().await;
    // A new worker remembers nothing: what it knows of the lanes is in Postgres.
    let run = stand.worker("w2", true, |_| {});
    append_all(&stand, &[frames[2].clone(), frames[0].clone(), unreadable]).await;
    let mut other = system(1);
    other.incarnation = lane.incarnation;
    other.seq = 1;
    let conflict = append_all(&stand, &[other.next(stopping(draft))]).await;
    other.seq = 3;
    let head_conflict = append_all(&stand, &[other.next(stopping(draft))]).await;
    let next = append_all(&stand, &[lane.next(stopping(draft))]).await;
    stand.caught_up().await;
    assert_eq!(row_positions(&stand).await, [signed(&positions), signed(&next)].concat());
    let aside = parked(&stand).await;
    let causes: Vec<&str> = aside.iter().skip(1).map(|(_, cause)| cause.as_str()).collect();
    assert_eq!(causes, ["conflict: another event has this number"; 2]);
    let places: Vec<i64> = aside.iter().skip(1).map(|(position, _)| *position).collect();
    assert_eq!(places, [signed(&conflict), signed(&head_conflict)].concat());
    let kinds: Vec<(String, i64)> =
        sqlx::query_as("SELECT kind, from_seq FROM annals.findings ORDER BY position")
            .fetch_all(&stand.owner)
            .await
            .unwrap();
    assert_eq!(kinds, [("conflict".to_owned(), 1), ("conflict".to_owned(), 3)]);
    assert_eq!(run.metric("annals_projection_duplicate_events_total"), 3);
    assert_eq!(run.metric("annals_projection_conflict_events_total"), 2);
    assert_eq!(run.metric("annals_events_missing_total"), 0);
    run.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_once_event_that_lands_twice_has_one_row() {
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |_| {});
    let revoked = |id| {
        Facts::KeyRevoked(KeyRevoked {
            actor_subject_id: "sub-1".into(),
            actor_auth_method: annals::event::AuthMethod::Local,
            key_id: Uuid::from_u128(id),
        })
    };
    let now = annals::base::Clock::now(&SystemClock);
    let sealed = stand.lanes.draft().build_once(now, "k", &revoked(1), &Personal::default()).unwrap();
    let first = stand.lanes.record(sealed.event.clone()).await.unwrap();
    stand.lanes.record(sealed.event.clone()).await.unwrap();
    stand.caught_up().await;
    stand.lanes.record(sealed.event.clone()).await.unwrap();
    // The same id with other content.
    let mut other =
        stand.lanes.draft().build_once(now, "k", &revoked(2), &Personal::default()).unwrap().event;
    let body = String::from_utf8(other.body.to_vec()).unwrap();
    other.body = body.replace(&other.id.to_string(), &sealed.event.id.to_string()).into();
    let forged = stand.lanes.record(other).await.unwrap();
    stand.caught_up().await;
    assert_eq!(row_positions(&stand).await, signed(&[first.position.0]));
    let aside = parked(&stand).await;
    let want = (
        "conflict: another event has this source and id".to_owned(),
        i64::try_from(forged.position.0).unwrap(),
    );
    assert_eq!(aside, [(want.1, want.0)]);
    assert_eq!(run.metric("annals_projection_duplicate_events_total"), 2);
    run.stop().await;
    let report = crate::verify::verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_or_stored_is_parked_with_its_cause_and_the_rest_goes_on() {
    let stand = Stand::start().await;
    let draft = stand.lanes.draft();
    let mut lane = Forged::new(target_of(Kind::ToolCallDenied, "s"));
    lane.incarnation = draft.incarnation;
    let denied = |name: String| {
        let mut call = call("s");
        call.tool_name = name;
        let facts = terminal(&call, Kind::ToolCallDenied);
        draft.build(call.received_at, "s", &facts, &Personal::default()).unwrap().body
    };
    let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    // Too long for an index, and not to be compressed.
    let long: String = (0..400).map(|n| annals::base::sha256_hex(format!("{n}").as_bytes())).collect();
    let bodies = [
        denied("good".into()),
        Bytes::from_static(b"\xff\xfe"),
        Bytes::from(
            text(denied("later".into())).replace("annals.tool_call.denied.v1", "annals.tool_call.denied.v9"),
        ),
        stopping(draft),
        Bytes::from(text(denied("changed".into())).replace("\"bytes\":\"{}\"", "\"bytes\":\"{ }\"")),
        Bytes::from(text(denied("foreign".into())).replace("urn:annals:default", "urn:other:default")),
        denied(long),
        denied("good".into()),
    ];
    let frames = bodies.map(|body| lane.next(body));
    let positions = append_all(&stand, &frames).await;
    let run = stand.worker("w1", true, |_| {});
    stand.caught_up().await;
    assert_eq!(row_positions(&stand).await, signed(&[positions[0], positions[7]]));
    let aside = parked(&stand).await;
    let places: Vec<i64> = aside.iter().map(|(position, _)| *position).collect();
    assert_eq!(places, signed(&positions[1..7]));
    let causes: Vec<&str> = aside.iter().map(|(_, cause)| cause.as_str()).collect();
    let want = [
        "not an event: ",
        "annals.tool_call.denied.v9 is newer than v1, the newest that this version of Annals reads",
        "system.stopping does not belong on annals.tool-calls",
        "the personal part does not match its digest",
        "the event has no row: the source \"urn:other:default\" names no tenant",
        "Postgres rejects it: ",
    ];
    for (cause, want) in causes.iter().zip(want) {
        assert!(cause.starts_with(want), "{causes:#?}");
    }
    let bodies: Vec<Vec<u8>> = sqlx::query_scalar("SELECT body FROM annals.parked ORDER BY position")
        .fetch_all(&stand.owner)
        .await
        .unwrap();
    assert_eq!(bodies[0], b"\xff\xfe");
    assert_eq!(run.metric("annals_projection_parked_events_total"), 6);
    assert_eq!(run.metric("annals_projection_applied_events_total"), 2);
    run.stop().await;
    // Accounted for; only the digest that does not match is a fault.
    let report = crate::verify::verify(&stand).await;
    let kinds: Vec<&str> = report.findings.iter().map(|found| found.kind.as_str()).collect();
    assert_eq!(kinds, ["personal"], "{report}");
    assert_eq!(report.rows.unwrap().parked, 6);
    stand.stop().await;
}
