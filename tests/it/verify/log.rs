//! Logs that were touched, and lanes that do not hold together. Postgres has no part in these.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use annals::base::{Clock, SystemClock, Timestamp};
use annals::event::{
    AckCheck, AckClass, Draft, Facts, Kind, LaneClosed, LaneHead, Personal, Requested, Started, Stopping,
    SystemCheckpoint, Topic, TopicPartition, closure,
};
use annals::log::embedded::EmbeddedLog;
use annals::log::{Frame, Log, Position};
use annals::verify::{self, Report};
use bytes::Bytes;
use uuid::Uuid;

use super::first;
use crate::projection::stand::{Forged, OF_ITS_LANE, append, call, lanes, open_log, terminal};

/// A log without anything around it.
struct Bench {
    dir: tempfile::TempDir,
    log: Arc<EmbeddedLog>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = open_log(&dir.path().join("log"));
        Self { dir, log }
    }

    async fn append(&self, frame: Frame) -> Position {
        append(&*self.log, frame).await
    }

    async fn verify(&self) -> Report {
        verify::run(verify::Options {
            log_dir: self.dir.path().join("log"),
            log_only: true,
            postgres: None,
            progress: Box::new(|_, _| {}),
        })
        .await
        .unwrap()
    }

    /// Asserts that the first finding is of `kind`, at `position`, and says `detail`.
    async fn finds(&self, kind: &str, position: Position, detail: &str) -> Report {
        let report = self.verify().await;
        let found = first(&report);
        assert_eq!((found.0, found.1), (kind, position.0), "{report}");
        assert!(found.2.contains(detail), "{report}");
        report
    }
}

fn body(facts: &Facts) -> Bytes {
    body_at(SystemClock.now(), facts)
}

fn body_at(occurred_at: Timestamp, facts: &Facts) -> Bytes {
    let draft = Draft {
        source: "urn:annals:default".into(),
        incarnation: OF_ITS_LANE,
        ack: AckClass::Fsync,
        ack_check: AckCheck::Verified,
        redactor: annals::redact::Redactor::shared(),
    };
    let personal = Personal { user_name: Some("ann".into()), ..Personal::default() };
    draft.build(occurred_at, "k", facts, &personal).unwrap().body
}

fn stopping() -> Bytes {
    body(&Facts::Stopping(Stopping { reason: "signal".into() }))
}

fn system(partition: u32) -> Forged {
    Forged::new(TopicPartition { topic: Topic::System, partition })
}

fn calls(partition: u32) -> Forged {
    Forged::new(TopicPartition { topic: Topic::ToolCalls, partition })
}

fn head(lane: &Forged) -> LaneHead {
    LaneHead {
        topic: lane.target.topic,
        partition: lane.target.partition,
        seq: lane.seq - 1,
        link: hex::encode(lane.link),
    }
}

fn closed(lane: &Forged, head: LaneHead) -> Bytes {
    body(&Facts::LaneClosed(LaneClosed { lane_incarnation: lane.incarnation, head }))
}

#[tokio::test]
async fn an_empty_log_is_clean() {
    let bench = Bench::new();
    let report = bench.verify().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(
        (report.events, report.range.first_position, report.log_id),
        (0, None, Some(bench.log.id().0))
    );
}

#[tokio::test]
async fn no_log_is_an_error_and_no_finding() {
    let dir = tempfile::tempdir().unwrap();
    let error = verify::run(verify::Options {
        log_dir: dir.path().join("log"),
        log_only: true,
        postgres: None,
        progress: Box::new(|_, _| {}),
    })
    .await
    .unwrap_err();
    assert!(matches!(error, verify::Error::Log(_)), "{error}");
    assert!(error.to_string().contains("there is no log in this directory"), "{error}");
}

#[tokio::test]
async fn any_changed_byte_is_found_with_its_file_and_place() {
    let bench = Bench::new();
    let lanes = lanes(&bench.log);
    let mut receipts = Vec::new();
    for _ in 0..20 {
        let facts = Facts::Stopping(Stopping { reason: "signal".into() });
        let event = lanes.draft().build(SystemClock.now(), "k", &facts, &Personal::default()).unwrap();
        receipts.push(lanes.record(event).await.unwrap());
    }
    bench.log.close().await.unwrap();
    let report = bench.verify().await;
    assert_eq!((report.is_clean(), report.events), (true, 20), "{report}");
    let dir = bench.dir.path().join("log");
    let segment = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| std::fs::metadata(path).unwrap().len() > 4_096)
        .unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&segment).unwrap();
    let base: u64 = segment.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let (position, next) = (receipts[7].position.0, receipts[8].position.0);
    let (from, to) = (position - base, next - base);
    for at in (from..to).step_by(7) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        let report = bench.verify().await;
        let found = report.findings.first().unwrap_or_else(|| panic!("byte {at}:\n{report}"));
        assert_eq!(
            (found.kind, found.position),
            (verify::FindingKind::LogCorrupt, position),
            "byte {at}:\n{report}"
        );
        assert_eq!(found.offset, Some(from));
        assert_eq!(found.file.as_deref(), segment.to_str(), "{report}");
        assert_eq!(report.events, 7);
        file.write_all_at(&byte, at).unwrap();
    }
    assert!(bench.verify().await.is_clean());
    drop(file);
    // A cut tail.
    let file = std::fs::OpenOptions::new().write(true).open(&segment).unwrap();
    file.set_len(receipts[19].position.0 - base).unwrap();
    let report = bench.verify().await;
    assert_eq!(first(&report).0, "log_corrupt", "{report}");
}

#[tokio::test]
async fn a_changed_link_and_a_swapped_suffix_are_found() {
    let bench = Bench::new();
    let mut lane = system(1);
    bench.append(lane.next(stopping())).await;
    let mut frame = lane.next(stopping());
    frame.link[0] ^= 1;
    let position = bench.append(frame).await;
    bench.finds("link", position, "event 1 does not follow").await;

    // Two lanes of one process start; the second goes on with the first one's end.
    let bench = Bench::new();
    let (mut one, mut other) = (system(1), system(2));
    one.incarnation = other.incarnation;
    bench.append(one.next(stopping())).await;
    bench.append(other.next(stopping())).await;
    let mut moved = one.next(stopping());
    moved.target = other.target;
    let position = bench.append(moved).await;
    let report = bench.finds("link", position, "event 1 does not follow").await;
    assert_eq!(report.findings_total, 1, "{report}");
    assert_eq!((report.lanes, report.incarnations), (2, 1));
    assert!(report.findings[0].offset.is_some_and(|offset| offset < position.0), "{report}");
}

#[tokio::test]
async fn gaps_repetitions_conflicts_and_clocks_are_found() {
    let bench = Bench::new();
    let mut lane = system(1);
    bench.append(lane.next(stopping())).await;
    let _lost = (lane.next(stopping()), lane.next(stopping()));
    let position = bench.append(lane.next(stopping())).await;
    bench.finds("gap", position, "events 1 to 2 of its lane are missing").await;

    let bench = Bench::new();
    let mut lane = system(1);
    let frames = [lane.next(stopping()), lane.next(stopping())];
    bench.append(frames[0].clone()).await;
    bench.append(frames[1].clone()).await;
    let again = bench.append(frames[1].clone()).await;
    let behind = bench.append(frames[0].clone()).await;
    let report = bench.finds("duplicate", again, "event 1 of its lane is there again").await;
    assert_eq!((report.findings[1].position, report.findings_total), (behind.0, 2), "{report}");

    let bench = Bench::new();
    let mut lane = system(1);
    let (seq, link) = (lane.seq, lane.link);
    bench.append(lane.next(stopping())).await;
    (lane.seq, lane.link) = (seq, link);
    let position = bench.append(lane.next(stopping())).await;
    bench.finds("conflict", position, "another event has number 0").await;

    let bench = Bench::new();
    let mut lane = system(1);
    bench.append(lane.next_at(Timestamp::from_micros(1_764_521_228_000_042), stopping())).await;
    let position =
        bench.append(lane.next_at(Timestamp::from_micros(1_764_521_228_000_041), stopping())).await;
    let report = bench.finds("clock", position, "recorded at 2025-11-30T16:47:08.000041Z").await;
    assert_eq!(report.findings_total, 1, "{report}");
}

#[tokio::test]
async fn ends_of_lanes_are_held_against_their_closing_events() {
    // In order: another lane, then the lane that carries the closing events.
    let bench = Bench::new();
    let (mut own, mut other) = (system(1), calls(2));
    other.incarnation = own.incarnation;
    let call = call("s");
    let denied = body(&terminal(&call, Kind::ToolCallDenied));
    bench.append(own.next(stopping())).await;
    bench.append(other.next(denied.clone())).await;
    bench.append(own.next(closed(&other, head(&other)))).await;
    let last = head(&own);
    bench.append(own.next(closed(&own, last))).await;
    let report = bench.verify().await;
    assert!(report.is_clean() && report.notes.is_empty(), "{report}");
    // Something behind the end.
    let position = bench.append(other.next(denied.clone())).await;
    bench.finds("lane_end", position, "its lane was closed").await;

    // A shorter and a longer lane than the closing event says.
    for change in [1_i64, -1] {
        let bench = Bench::new();
        let (mut own, mut other) = (system(1), calls(2));
        bench.append(other.next(body(&terminal(&call, Kind::ToolCallDenied)))).await;
        bench
            .append(other.next(body(&terminal(&crate::projection::stand::call("t"), Kind::ToolCallDenied))))
            .await;
        let mut head = head(&other);
        head.seq = head.seq.checked_add_signed(change).unwrap();
        let position = bench.append(own.next(closed(&other, head))).await;
        bench.finds("lane_end", position, "but the log has it end with event 1").await;
    }

    // A lane that never was.
    let bench = Bench::new();
    let (mut own, mut never) = (system(1), calls(2));
    let _unwritten = never.next(stopping());
    let position = bench.append(own.next(closed(&never, head(&never)))).await;
    bench.finds("lane_end", position, "of which there is no event").await;

    // An end that the engine was told of, and no event says.
    let bench = Bench::new();
    let mut own = system(1);
    bench.append(own.next(stopping())).await;
    bench.log.mark_closed(own.incarnation).await.unwrap();
    let report = bench.verify().await;
    assert_eq!(first(&report).0, "lane_open", "{report}");
}

#[tokio::test]
async fn an_open_lane_is_a_note_until_a_later_process_start_went_to_work() {
    let bench = Bench::new();
    let (mut killed, mut next) = (system(1), system(2));
    bench.append(killed.next(stopping())).await;
    let report = bench.verify().await;
    assert!(report.is_clean(), "{report}");
    assert!(report.notes[0].starts_with("1 lanes of process start"), "{report}");
    // The next start was killed as well, before it closed the first one's lanes.
    let started = Started { version: "0".into(), log_id: bench.log.id().0, command: "serve".into() };
    bench.append(next.next(body(&Facts::Started(started)))).await;
    let report = bench.verify().await;
    assert_eq!((report.is_clean(), report.notes.len()), (true, 2), "{report}");
    // It works, so it must have closed them.
    bench.append(next.next(stopping())).await;
    let report = bench.verify().await;
    let found = first(&report);
    assert_eq!((found.0, report.findings_total), ("lane_open", 1), "{report}");
}

#[tokio::test]
async fn stated_heads_must_be_those_of_the_lanes() {
    let bench = Bench::new();
    let (mut own, mut other) = (system(1), calls(2));
    other.incarnation = own.incarnation;
    let mut heads = Vec::new();
    for _ in 0..1_500 {
        bench.log.reserve(1, 10).await.unwrap();
        let frame = other.next(body(&terminal(&call("s"), Kind::ToolCallDenied)));
        let reservation = bench.log.reserve(1, frame.body.len() as u64).await.unwrap();
        heads.push(head(&other));
        let ack = bench.log.append(reservation, frame);
        if heads.len() % 500 == 0 {
            ack.await.unwrap();
        }
    }
    let checkpoint = |heads: Vec<LaneHead>| body(&Facts::Checkpoint(SystemCheckpoint { heads }));
    // The newest, a recent and an old one: all true.
    for index in [1_499, 1_400, 3] {
        bench.append(own.next(checkpoint(vec![heads[index].clone()]))).await;
    }
    let report = bench.verify().await;
    assert!(report.is_clean(), "{report}");
    let mut lies = Vec::new();
    for index in [1_499, 1_400, 3] {
        let lie = LaneHead { link: hex::encode([7; 32]), ..heads[index].clone() };
        lies.push(bench.append(own.next(checkpoint(vec![lie]))).await);
    }
    let ahead = LaneHead { seq: 1_500, ..heads[1_499].clone() };
    lies.push(bench.append(own.next(checkpoint(vec![ahead]))).await);
    let nowhere = LaneHead { partition: 5, ..heads[3].clone() };
    lies.push(bench.append(own.next(checkpoint(vec![nowhere]))).await);
    let report = bench.verify().await;
    let places: Vec<(&str, u64)> =
        report.findings.iter().map(|found| (found.kind.as_str(), found.position)).collect();
    let want: Vec<(&str, u64)> = lies.iter().map(|position| ("heads", position.0)).collect();
    assert_eq!(places, want, "{report}");
}

#[tokio::test]
async fn each_call_has_one_intent_and_one_end() {
    let bench = Bench::new();
    let mut lane = calls(2);
    let call = call("s");
    let deadline = call.received_at.plus_micros(1);
    let intent = body(&Facts::Requested(Requested { call: call.clone(), deadline }));
    let end = body(&terminal(&call, Kind::ToolCallCompleted));
    bench.append(lane.next(intent.clone())).await;
    bench.append(lane.next(end.clone())).await;
    assert!(bench.verify().await.is_clean());
    let position = bench.append(lane.next(end.clone())).await;
    bench.finds("call", position, "has a second end").await;

    let bench = Bench::new();
    let mut lane = calls(2);
    bench.append(lane.next(intent.clone())).await;
    let report = bench.verify().await;
    assert_eq!((report.is_clean(), report.open), (true, 1));
    let position = bench.append(lane.next(intent.clone())).await;
    bench.finds("call", position, "has a second intent").await;

    let bench = Bench::new();
    let mut lane = calls(2);
    let position = bench.append(lane.next(end)).await;
    bench.finds("call", position, "ends without an intent").await;

    let bench = Bench::new();
    let mut lane = calls(2);
    bench.append(lane.next(body(&terminal(&call, Kind::ToolCallDenied)))).await;
    assert!(bench.verify().await.is_clean());
}

#[tokio::test]
async fn bodies_are_held_against_what_they_commit_to() {
    let bench = Bench::new();
    let mut lane = system(1);
    let changed = String::from_utf8(stopping().to_vec()).unwrap().replace("ann\\", "bob\\");
    let position = bench.append(lane.next(changed)).await;
    bench.finds("personal", position, "the personal part does not match its digest").await;

    let bench = Bench::new();
    let mut lane = system(1);
    let started = Started { version: "0".into(), log_id: Uuid::from_u128(3), command: "serve".into() };
    let position = bench.append(lane.next(body(&Facts::Started(started)))).await;
    bench.finds("log_id", position, "it was written for log 00000000-0000-0000-0000-000000000003").await;

    // What cannot be read may come from a later version: no fault by itself.
    let bench = Bench::new();
    let mut lane = system(1);
    bench.append(lane.next(&b"{}"[..])).await;
    let report = bench.verify().await;
    assert!(report.is_clean(), "{report}");
    assert!(report.notes.contains(&"1 events cannot be read by this version".to_owned()), "{report}");
}

#[tokio::test]
async fn the_report_speaks_to_people_and_programs() {
    let bench = Bench::new();
    let mut lane = system(1);
    let _lost = lane.next(stopping());
    let position = bench.append(lane.next(stopping())).await;
    let report = bench.verify().await;
    let text = report.to_string();
    assert!(text.contains(&format!("positions  {position} to {position}\n")), "{text}");
    assert!(text.contains("rows       not compared (log only)\n"), "{text}");
    assert!(text.contains(&format!("  gap: position {position} of annals.system/1 (")), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["clean"], false);
    assert_eq!(json["findings"][0]["kind"], "gap");
    assert_eq!(json["findings"][0]["position"], position.0);
    assert_eq!(json["events"], 1);
}

#[tokio::test]
async fn what_is_late_has_an_end_before_it() {
    let call = call("s");
    let deadline = call.received_at.plus_micros(1);
    let intent = body(&Facts::Requested(Requested { call: call.clone(), deadline }));
    let [late, cancelled, completed] = [Kind::ToolCallLate, Kind::ToolCallCancelled, Kind::ToolCallCompleted]
        .map(|kind| body(&terminal(&call, kind)));
    let bench = Bench::new();
    let mut lane = calls(2);
    bench.append(lane.next(intent.clone())).await;
    bench.append(lane.next(cancelled.clone())).await;
    bench.append(lane.next(late.clone())).await;
    let report = bench.verify().await;
    assert!(report.is_clean(), "{report}");
    let position = bench.append(lane.next(late.clone())).await;
    bench.finds("call", position, "has something late twice").await;

    let bench = Bench::new();
    let mut lane = calls(2);
    bench.append(lane.next(intent.clone())).await;
    let position = bench.append(lane.next(late.clone())).await;
    bench.finds("call", position, "has something late, but no end before it").await;

    let bench = Bench::new();
    let mut lane = calls(2);
    bench.append(lane.next(intent.clone())).await;
    bench.append(lane.next(completed)).await;
    let position = bench.append(lane.next(late.clone())).await;
    bench.finds("call", position, "has something late after tool_call.completed").await;

    let bench = Bench::new();
    let (mut lane, mut other) = (calls(2), calls(3));
    other.incarnation = lane.incarnation;
    bench.append(lane.next(intent)).await;
    bench.append(lane.next(cancelled)).await;
    let position = bench.append(other.next(late)).await;
    bench.finds("call", position, "and has something late elsewhere").await;
}

#[tokio::test]
async fn a_closure_follows_from_its_intent_and_is_the_last_end() {
    let call = call("s");
    let deadline = call.received_at.plus_micros(1);
    let intent = body(&Facts::Requested(Requested { call: call.clone(), deadline }));
    let begun = async || {
        let bench = Bench::new();
        let mut lane = calls(2);
        let frame = lane.next(intent.clone());
        let closure = closure(lane.target, &frame.body).unwrap().body;
        bench.append(frame).await;
        (bench, lane, closure)
    };
    let (bench, mut lane, closed) = begun().await;
    bench.append(lane.next(closed.clone())).await;
    bench.append(lane.next(closed)).await;
    let report = bench.verify().await;
    assert!(report.is_clean() && report.open == 0, "{report}");
    let note = "1 closures stand behind the end of their call: the end before counts";
    assert!(report.notes.contains(&note.to_owned()), "{report}");
    let position = bench.append(lane.next(body(&terminal(&call, Kind::ToolCallCompleted)))).await;
    bench.finds("call", position, "ends although it was closed as interrupted before").await;

    let (bench, mut lane, _) = begun().await;
    let position = bench.append(lane.next(body(&terminal(&call, Kind::ToolCallInterrupted)))).await;
    bench.finds("call", position, "by an event that does not follow from its intent").await;

    let (bench, mut lane, closed) = begun().await;
    bench.append(lane.next(closed.clone())).await;
    let other = String::from_utf8(closed.to_vec()).unwrap().replace("\"duration_ms\":0", "\"duration_ms\":9");
    let position = bench.append(lane.next(other)).await;
    bench.finds("call", position, "was closed twice, with different content").await;
}

#[tokio::test]
async fn an_event_names_the_process_start_of_its_lane() {
    let bench = Bench::new();
    let (mut lane, mut other) = (system(1), system(2));
    let frame = lane.next(stopping());
    let position = bench.append(other.next(frame.body.clone())).await;
    bench.finds("origin", position, "not its lane's").await;
}
