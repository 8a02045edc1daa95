//! `annals log inspect` and `annals log dump`, through the real binary.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use annals::base::{Clock, SystemClock, Timestamp, sha256_hex};
use annals::event::{Facts, LaneClosed, LaneHead, Personal, Topic, TopicPartition};
use annals::log::embedded::{EmbeddedLog, Options};
use annals::log::{Frame, Log, Stored};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::harness::{Caller, Finished, Home, call_id};
use crate::projection::stand::{Forged, lanes};

/// A log in `home`, with segments of a few records.
fn open(home: &Home) -> Arc<EmbeddedLog> {
    std::fs::create_dir_all(home.data_dir()).unwrap();
    let options = Options {
        dir: home.data_dir().join("log"),
        segment_bytes: 64 * 1024,
        in_flight_records_max: 64,
        in_flight_bytes_max: 32 * 1024,
        reserve_wait: Duration::from_secs(30),
        append_wait: Duration::from_secs(60),
    };
    EmbeddedLog::open(options, Arc::new(SystemClock)).unwrap().0
}

async fn append(log: &EmbeddedLog, frame: Frame) -> Stored {
    let position = crate::projection::stand::append(log, frame.clone()).await;
    Stored { position, frame }
}

fn calls(partition: u32) -> Forged {
    Forged::new(TopicPartition { topic: Topic::ToolCalls, partition })
}

fn admin(partition: u32) -> Forged {
    Forged::new(TopicPartition { topic: Topic::Admin, partition })
}

/// Events of two process starts on three lanes, over several segments; the log is closed.
async fn filled(home: &Home) -> Vec<Stored> {
    let log = open(home);
    let (mut first, mut second) = (calls(3), admin(4));
    let mut written = Vec::new();
    for n in 0..300_u32 {
        let lane = if n % 3 == 0 { &mut second } else { &mut first };
        written.push(
            append(&log, lane.next(format!("{{\"n\": {n}.0, \"fill\": \"{}\"}}", "x".repeat(300)))).await,
        );
    }
    for body in [&b"\x00not JSON\xff"[..], b"{\n}", b""] {
        written.push(append(&log, first.next(body.to_vec())).await);
    }
    log.close().await.unwrap();
    written
}

/// What a line of the dump says.
#[derive(Deserialize)]
struct Line {
    position: u64,
    file: String,
    offset: u64,
    topic: Topic,
    partition: u32,
    incarnation: Uuid,
    seq: u64,
    recorded_at: Timestamp,
    content: String,
    link: String,
    body: Option<Box<RawValue>>,
    body_base64: Option<String>,
}

fn lines(dump: &Finished) -> Vec<Line> {
    dump.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn positions(dump: &Finished) -> Vec<u64> {
    lines(dump).iter().map(|line| line.position).collect()
}

fn dump(home: &Home, args: &[&str]) -> Finished {
    let dump = home.annals(&[&["log", "dump"], args].concat());
    assert_eq!((dump.code, dump.stderr.as_str()), (Some(0), ""), "{args:?}");
    dump
}

fn inspect(home: &Home) -> (Finished, Value) {
    let inspected = home.annals(&["log", "inspect", "--json"]);
    let found = serde_json::from_str(&inspected.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", inspected.stdout, inspected.stderr));
    (inspected, found)
}

#[tokio::test]
async fn dumped_events_are_the_stored_ones_byte_for_byte() {
    let home = Home::new();
    let written = filled(&home).await;
    let dumped = lines(&dump(&home, &[]));
    assert_eq!(dumped.len(), written.len());
    for (line, stored) in dumped.iter().zip(&written) {
        let frame = &stored.frame;
        assert_eq!((line.position, line.seq), (stored.position.0, frame.seq));
        assert_eq!((line.topic, line.partition), (frame.target.topic, frame.target.partition));
        assert_eq!((line.incarnation, line.recorded_at), (frame.incarnation, frame.recorded_at));
        assert_eq!((&line.content, &line.link), (&hex::encode(frame.content), &hex::encode(frame.link)));
        let body = match (&line.body, &line.body_base64) {
            (Some(body), None) => body.get().as_bytes().to_vec(),
            (None, Some(base64)) => STANDARD.decode(base64).unwrap(),
            other => panic!("one of both: {other:?}"),
        };
        assert_eq!(body, frame.body);
        assert_eq!(sha256_hex(&body), line.content);
        // The file holds the body there.
        let file = std::fs::File::open(home.data_dir().join("log").join(&line.file)).unwrap();
        let mut found = vec![0; 116 + body.len()];
        file.read_exact_at(&mut found, line.offset).unwrap();
        assert_eq!(found[116..], body);
    }
    let as_base64: Vec<bool> = dumped.iter().map(|line| line.body_base64.is_some()).collect();
    assert_eq!(as_base64[..300], [false; 300]);
    assert_eq!(as_base64[300..], [true; 3]);
}

#[tokio::test]
async fn a_dump_is_narrowed_by_topic_partition_position_and_number() {
    let home = Home::new();
    let written = filled(&home).await;
    let wanted = |wanted: &dyn Fn(&Stored) -> bool| -> Vec<u64> {
        written.iter().filter(|stored| wanted(stored)).map(|stored| stored.position.0).collect()
    };
    let on = |topic| wanted(&|stored: &Stored| stored.frame.target.topic == topic);
    assert_eq!(positions(&dump(&home, &["--topic", "annals.admin"])), on(Topic::Admin));
    assert_eq!(positions(&dump(&home, &["--topic", "annals.oauth"])), on(Topic::Oauth));
    assert_eq!(positions(&dump(&home, &["--partition", "4"])), on(Topic::Admin));
    assert_eq!(positions(&dump(&home, &["--topic", "annals.admin", "--partition", "3"])), [0; 0]);

    // From a position on, it included; and from between two.
    let from = written[150].position.0;
    let behind = wanted(&|stored| stored.position.0 >= from);
    assert_eq!(positions(&dump(&home, &["--from", &from.to_string()])), behind);
    assert_eq!(positions(&dump(&home, &["--from", &(from + 1).to_string()])), behind[1..]);
    assert_eq!(positions(&dump(&home, &["--from", &(1_u64 << 40).to_string()])), [0; 0]);
    let first = dump(&home, &["--topic", "annals.admin", "--from", &from.to_string(), "--limit", "2"]);
    let admin: Vec<u64> = on(Topic::Admin).into_iter().filter(|position| *position >= from).take(2).collect();
    assert_eq!(positions(&first), admin);
}

#[tokio::test]
async fn an_inspection_counts_what_the_log_holds_and_says_how_it_ends() {
    let home = Home::new();
    let log = open(&home);
    let (id, mut written) = (log.id(), Vec::new());
    // The first process start ends in good order, the second names the end of one lane, the third runs.
    let (mut ended, mut left, mut closing) = (calls(3), calls(3), calls(4));
    closing.incarnation = left.incarnation;
    for n in 0..200 {
        written.push(append(&log, ended.next(format!("{n:0300}"))).await);
    }
    log.mark_closed(ended.incarnation).await.unwrap();
    written.push(append(&log, left.next("{}")).await);
    written.push(append(&log, closing.next("{}")).await);
    let lanes = lanes(&log);
    let head = LaneHead { topic: Topic::ToolCalls, partition: 4, seq: 0, link: hex::encode(closing.link) };
    let facts = Facts::LaneClosed(LaneClosed { lane_incarnation: left.incarnation, head });
    let event = lanes.draft().build(SystemClock.now(), "k", &facts, &Personal::default()).unwrap();
    let system_bytes = event.body.len();
    let last = lanes.record(event).await.unwrap();

    let (inspected, found) = inspect(&home);
    assert_eq!((inspected.code, inspected.stderr.as_str()), (Some(0), ""));
    let first = &written[0];
    assert_eq!(found["log_id"], json!(id.0));
    assert_eq!((&found["format_version"], &found["damage"]), (&json!(1), &Value::Null));
    assert_eq!((&found["clean_end"], &found["end"]), (&json!(false), &found["watermark"]));
    assert_eq!(
        found["range"],
        json!({ "first_position": first.position.0, "last_position": last.position.0,
                "first_recorded_at": first.frame.recorded_at, "last_recorded_at": last.recorded_at })
    );
    let (events, bytes) = (203, 200 * 300 + 4 + system_bytes);
    assert_eq!((&found["events"], &found["bytes"]), (&json!(events), &json!(bytes)));
    let of_topic = |topic: &str, events: usize, bytes: usize| json!({ "topic": topic, "events": events, "bytes": bytes });
    assert_eq!(
        found["topics"],
        json!([
            of_topic("annals.tool-calls", 202, 200 * 300 + 4),
            of_topic("annals.sessions", 0, 0),
            of_topic("annals.oauth", 0, 0),
            of_topic("annals.admin", 0, 0),
            of_topic("annals.system", 1, system_bytes),
        ])
    );
    assert_eq!(found["lanes"], json!({ "open": 2, "closed": 2 }));
    let start = |incarnation, first: Timestamp, last: Timestamp, events: u32, open: u32, closed: u32| {
        json!({ "incarnation": incarnation, "started_at": first, "last_event_at": last, "events": events,
                "lanes": { "open": open, "closed": closed } })
    };
    let at = |index: usize| written[index].frame.recorded_at;
    assert_eq!(
        found["incarnations"],
        json!([
            start(ended.incarnation, at(0), at(199), 200, 0, 1),
            start(left.incarnation, at(200), at(201), 2, 1, 1),
            start(lanes.incarnation(), last.recorded_at, last.recorded_at, 1, 1, 0),
        ])
    );
    // The segments lie end to end; the mark of the first process start is a record too.
    let segments = found["segments"].as_array().unwrap();
    let mut base = 0;
    let mut records = 0;
    for segment in segments {
        assert_eq!(segment["base"], json!(base));
        assert_eq!(segment["file"], json!(format!("{base:020}.seg")));
        let file = home.data_dir().join("log").join(segment["file"].as_str().unwrap());
        assert_eq!(segment["file_bytes"], json!(file.metadata().unwrap().len()));
        base += segment["bytes"].as_u64().unwrap();
        records += segment["records"].as_u64().unwrap();
    }
    assert!(segments.len() > 1, "{segments:?}");
    assert_eq!((json!(base), records), (found["end"].clone(), 204));

    let text = home.annals(&["log", "inspect"]);
    assert_eq!((text.code, text.stderr.as_str()), (Some(0), ""));
    assert!(
        text.stdout.contains(&format!("{base}, not closed: in use, or its owner was killed")),
        "{}",
        text.stdout
    );
    assert!(text.stdout.contains(&left.incarnation.to_string()), "{}", text.stdout);
    drop(lanes);
    log.close().await.unwrap();
    assert_eq!(inspect(&home).1["clean_end"], json!(true));
}

#[tokio::test]
async fn damage_ends_a_dump_behind_what_was_read_and_is_named() {
    let home = Home::new();
    let written = filled(&home).await;
    let bad = &written[217];
    let whole = lines(&dump(&home, &[]));
    let file = home.data_dir().join("log").join(&whole[217].file);
    let segment = std::fs::File::options().read(true).write(true).open(&file).unwrap();
    let mut byte = [0];
    segment.read_exact_at(&mut byte, whole[217].offset + 130).unwrap();
    segment.write_all_at(&[byte[0] ^ 4], whole[217].offset + 130).unwrap();

    let place = format!(
        "{} is corrupt at byte {} (position {})",
        file.canonicalize().unwrap().display(),
        whole[217].offset,
        bad.position
    );
    let dumped = home.annals(&["log", "dump"]);
    assert_eq!(dumped.code, Some(1));
    assert!(dumped.stderr.contains(&place), "{}", dumped.stderr);
    let before: Vec<u64> = written[..217].iter().map(|stored| stored.position.0).collect();
    assert_eq!(positions(&dumped), before);
    // Whoever asks for less than that does not come to it.
    assert_eq!(positions(&dump(&home, &["--limit", "217"])), before);

    let (inspected, found) = inspect(&home);
    assert_eq!(inspected.code, Some(1));
    assert!(inspected.stderr.contains(&place), "{}", inspected.stderr);
    assert_eq!((&found["damage"]["position"], &found["events"]), (&json!(bad.position.0), &json!(217)));
    assert_eq!(found["damage"]["offset"], json!(whole[217].offset));

    // Damage where nothing can be read at all.
    std::fs::write(home.data_dir().join("log/log.json"), "{}").unwrap();
    for command in ["dump", "inspect"] {
        let ended = home.annals(&["log", command]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{command}");
        assert!(ended.stderr.contains("log.json is corrupt"), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn what_was_asked_wrongly_is_2_and_what_is_not_there_is_3() {
    let home = Home::new();
    for command in ["dump", "inspect"] {
        let ended = home.annals(&["log", command]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{command}");
        assert!(ended.stderr.contains("there is no log in"), "{}", ended.stderr);
    }
    std::fs::create_dir(home.data_dir()).unwrap();
    for command in ["dump", "inspect"] {
        let ended = home.annals(&["log", command]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{command}");
        assert!(ended.stderr.contains("there is no log in this directory"), "{}", ended.stderr);
    }
    assert_eq!(std::fs::read_dir(home.data_dir()).unwrap().count(), 0, "looking made something");
    for (args, says) in [
        (["--topic", "annals.tool-call"], "did you mean annals.tool-calls?"),
        (["--topic", "sesions"], "did you mean annals.sessions?"),
        (["--partition", "16"], "16 is not in 0..16"),
        (["--from", "-"], "invalid value '-'"),
        (["--limit", "0"], "0 is not in 1.."),
    ] {
        let ended = home.annals(&[&["log", "dump"], &args[..]].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
    }
}

#[tokio::test]
async fn a_dump_ends_quietly_when_its_reader_leaves_and_loudly_when_its_disk_is_full() {
    let home = Home::new();
    let log = open(&home);
    let mut lane = calls(0);
    // Over what a pipe and a buffer hold.
    for _ in 0..400 {
        append(&log, lane.next(format!("\"{}\"", "x".repeat(2_000)))).await;
    }
    log.close().await.unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_annals"))
        .args(["log", "dump", "--data-dir"])
        .arg(home.data_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    drop(stdout);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
    assert_eq!(serde_json::from_str::<Line>(&first).unwrap().seq, 0);

    for command in ["dump", "inspect"] {
        let lost = home.annals_on_full_disk(&["log", command]);
        assert_eq!(lost.code, Some(3), "{command}");
        assert!(lost.stderr.contains("cannot write to stdout: No space left"), "{}", lost.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_running_server_can_be_looked_at() {
    let home = Home::new();
    let server = home.serve(&[]);
    let caller = Caller::new(&server);
    let (status, answer) = caller.call("platform_info", json!({ "purpose": "look" })).await.unwrap();
    assert_eq!(status, 200);
    let call = call_id(&answer).unwrap();

    // The answer is there, so both of its events are.
    let dumped = dump(&home, &["--topic", "annals.tool-calls"]);
    let kinds: Vec<String> = lines(&dumped)
        .iter()
        .filter_map(|line| {
            let body: Value = serde_json::from_str(line.body.as_ref()?.get()).unwrap();
            (body["data"]["facts"]["call_id"] == *call).then(|| body["type"].as_str().unwrap().to_owned())
        })
        .collect();
    assert_eq!(kinds, ["annals.tool_call.requested.v1", "annals.tool_call.completed.v1"]);
    let (running, found) = inspect(&home);
    assert_eq!((running.code, &found["clean_end"]), (Some(0), &json!(false)), "{found}");
    assert_ne!(found["lanes"]["open"], 0, "{found}");

    assert_eq!(server.terminate().code(), Some(0));
    let (stopped, found) = inspect(&home);
    assert_eq!((stopped.code, &found["clean_end"]), (Some(0), &json!(true)), "{found}");
    assert_eq!(found["lanes"]["open"], 0, "{found}");
    // It asks no Postgres and starts none.
    std::fs::remove_dir_all(home.data_dir().join("pg")).unwrap();
    assert_eq!(positions(&dump(&home, &["--topic", "annals.tool-calls"])), positions(&dumped));
    assert!(!home.data_dir().join("pg").exists());
}
