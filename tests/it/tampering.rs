//! `annals verify` against somebody who may change every row: each change is found, named, and the exit code is 1.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use annals::config::Database;
use annals::db::{Options, Postgres, Role};
use annals::log::Log;
use annals::log::embedded::{ScannedItem, Scanner};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool, Row};

use crate::harness::{Caller, Home, PATIENCE};
use crate::projection::stand::open_log;
use crate::verify::forger;

/// Runs `annals verify --json`: the exit code and the report.
fn verify(home: &Home) -> (Option<i32>, Value) {
    let verified = home.annals(&["verify", "--json"]);
    let report = serde_json::from_str(&verified.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", verified.stdout, verified.stderr));
    (verified.code, report)
}

async fn execute(pool: &PgPool, sql: &str) {
    let done = sqlx::query(AssertSqlSafe(sql)).execute(pool).await.unwrap();
    assert_eq!(done.rows_affected(), 1, "{sql}");
}

/// Waits until every event has its row.
async fn caught_up(home: &Home) {
    let settled = async {
        loop {
            let (code, report) = verify(home);
            assert_eq!(code, Some(0), "{report}");
            if report["rows"]["pending"] == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("rows that have caught up");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_a_deleted_and_an_added_row_are_found_with_their_position() {
    let home = Home::new();
    let server = home.serve(&[]);
    let caller = Caller::new(&server);
    for n in 0..3 {
        assert_eq!(
            caller.call("platform_info", json!({ "purpose": format!("call {n}") })).await.unwrap().0,
            200
        );
    }
    let three = |body: &Value| (body["data"].as_array().unwrap().len() == 3).then_some(());
    caller.get_until("/api/v1/admin/audit/events?tool_name=platform_info", three).await;
    let options =
        Options { data_dir: home.data_dir(), url: None, pg_bin: None, database: Database::default() };
    let postgres = Postgres::attach(options).await.unwrap().expect("the server's Postgres");
    let owner = postgres.pool(Role::Owner);
    let row = sqlx::query(
        "SELECT topic, partition, position FROM audit_v1.audit_events
         WHERE event_kind = 'tool_call.completed' ORDER BY position LIMIT 1",
    )
    .fetch_one(&owner)
    .await
    .unwrap();
    let (topic, partition, position): (String, i32, i64) = (row.get(0), row.get(1), row.get(2));
    let here = format!("topic = '{topic}' AND partition = {partition} AND position = {position}");

    caught_up(&home).await;
    let copy = |table: &str| {
        format!("CREATE TABLE public.saved_{table} AS SELECT * FROM audit_v1.{table} WHERE {here}")
    };
    for table in ["audit_events", "audit_personal"] {
        sqlx::query(AssertSqlSafe(copy(table))).execute(&owner).await.unwrap();
    }
    let restore = |table: &str| format!("INSERT INTO audit_v1.{table} SELECT * FROM public.saved_{table}");
    let delete = |table: &str| format!("DELETE FROM audit_v1.{table} WHERE {here}");
    let changes = [
        (
            "an edited outcome",
            format!("UPDATE audit_v1.audit_events SET success = NOT success WHERE {here}"),
            vec![delete("audit_events"), restore("audit_events")],
        ),
        (
            "an edited purpose",
            format!("UPDATE audit_v1.audit_personal SET purpose = 'harmless' WHERE {here}"),
            vec![delete("audit_personal"), restore("audit_personal")],
        ),
        ("a deleted row", delete("audit_events"), vec![restore("audit_events")]),
        (
            "an added row",
            format!(
                "INSERT INTO audit_v1.audit_events SELECT (jsonb_populate_record(e, jsonb_build_object('position',
                 e.position + 1))).* FROM audit_v1.audit_events e WHERE {here}"
            ),
            vec![format!("DELETE FROM audit_v1.audit_events WHERE position = {}", position + 1)],
        ),
    ];
    for (what, change, repairs) in changes {
        execute(&owner, &change).await;
        let (code, report) = verify(&home);
        assert_eq!(code, Some(1), "{what}: {report}");
        let first = &report["findings"][0];
        let expected = if what == "an added row" { position + 1 } else { position };
        assert_eq!(
            (&first["topic"], &first["partition"], &first["position"]),
            (&json!(topic), &json!(partition), &json!(expected)),
            "{what}: {report}"
        );
        for repair in repairs {
            execute(&owner, &repair).await;
        }
        let (code, report) = verify(&home);
        assert_eq!(code, Some(0), "{what}, repaired: {report}");
    }
    assert!(server.terminate().success());
    assert_eq!(verify(&home).0, Some(0), "without a server it starts Postgres itself");
}

type Files = BTreeMap<String, Vec<u8>>;

/// The files of the log; the lock's text is no part of it, nor is the prepared room.
fn files(dir: &Path) -> Files {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let of_the_log = named.filter(|(name, _)| !["lock", "next.prepared"].contains(&name.as_str()));
    of_the_log.map(|(name, path)| (name, std::fs::read(path).unwrap())).collect()
}

fn put(dir: &Path, files: &Files) {
    for name in self::files(dir).keys().filter(|&name| !files.contains_key(name)) {
        std::fs::remove_file(dir.join(name)).unwrap();
    }
    for (name, bytes) in files {
        std::fs::write(dir.join(name), bytes).unwrap();
    }
}

/// A record on the log: its segment's file and base, and where it starts and ends in the file.
#[derive(Default)]
struct Place {
    file: String,
    base: u64,
    from: usize,
    to: usize,
}

/// The records of the log in `dir`, by segment.
fn records(dir: &Path) -> Vec<Vec<Place>> {
    let mut scanner = Scanner::open(dir).unwrap();
    let mut places = Vec::new();
    while let Some(scanned) = scanner.next().unwrap() {
        let ScannedItem::Event(stored) = scanned.item else { continue };
        let from = usize::try_from(scanned.offset).unwrap();
        let to = from + 116 + stored.frame.body.len();
        places.push(Place { file: scanned.file, base: scanned.position.0 - scanned.offset, from, to });
    }
    places
        .chunk_by_mut(|a, b| a.file == b.file)
        .map(|chunk| chunk.iter_mut().map(std::mem::take).collect())
        .collect()
}

/// A kind of damage: what it is, the damaged files, where verify finds it, and whether serve does not even start.
struct Damage {
    what: &'static str,
    files: Files,
    place: (String, usize, u64),
    refused: bool,
}

/// One of each kind, on a log whose newest segment is the last of `records`.
fn damages(whole: &Files, records: &[Vec<Place>], killed: bool) -> Vec<Damage> {
    let mut damages = Vec::new();
    let newest = records.last().unwrap();
    for (segment, is_newest) in [(&records[1], false), (newest, true)] {
        let [first, second, third] = &segment[..3] else { panic!("three records") };
        let at = |place: &Place| (place.file.clone(), place.from, place.base + place.from as u64);
        let mut add = |what, refused, place, change: &dyn Fn(&mut Vec<u8>)| {
            let mut files = whole.clone();
            change(files.get_mut(&first.file).unwrap());
            damages.push(Damage { what, files, place, refused });
        };
        let read = is_newest && killed;
        add("a flipped bit", read, at(second), &|bytes| bytes[second.to - 1] ^= 4);
        add("swapped records", read, at(first), &|bytes| {
            bytes[first.from..second.to].rotate_left(first.to - first.from);
        });
        add("a record taken out", true, at(second), &|bytes| drop(bytes.drain(second.from..second.to)));
        add("a doubled record", true, at(third), &|bytes| {
            let copy = bytes[second.from..second.to].to_vec();
            bytes.splice(second.to..second.to, copy).for_each(drop);
        });
        add("a cut tail", true, at(third), &|bytes| bytes.truncate(third.from + 9));
    }
    let (one, other) = (&records[0][0], &records[1][0]);
    let mut files = whole.clone();
    files.insert(one.file.clone(), whole[&other.file].clone());
    files.insert(other.file.clone(), whole[&one.file].clone());
    let place = (one.file.clone(), 0, one.base);
    damages.push(Damage { what: "exchanged segments", files, place, refused: true });
    let mut files = whole.clone();
    files.remove(&other.file);
    let end = whole[&one.file].len();
    let place = (one.file.clone(), end, one.base + end as u64);
    damages.push(Damage { what: "a removed segment", files, place, refused: true });
    let mut files = whole.clone();
    files.insert("log.json".into(), b"{}".to_vec());
    damages.push(Damage { what: "another identity", files, place: ("log.json".into(), 0, 0), refused: true });
    damages
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_damage_to_the_log_is_named_and_nothing_is_repaired() {
    let home = Home::new();
    let dir = home.data_dir().join("log");
    for killed in [false, true] {
        for start in 0..2 {
            let server = home.serve(&[]);
            let caller = Caller::new(&server);
            for n in 0..3 {
                let purpose = json!({ "purpose": format!("call {n}") });
                assert_eq!(caller.call("platform_info", purpose).await.unwrap().0, 200);
            }
            if killed && start == 1 { server.kill() } else { assert!(server.terminate().success()) }
        }
        let (whole, records) = (files(&dir), records(&dir));
        let dir = dir.canonicalize().unwrap();
        for Damage { what, files: damaged, place, refused } in damages(&whole, &records, killed) {
            put(&dir, &damaged);
            let verified = home.annals(&["verify", "--log-only", "--json"]);
            let report: Value = serde_json::from_str(&verified.stdout).unwrap();
            assert_eq!(verified.code, Some(1), "{what}: {report}");
            let first = &report["findings"][0];
            let file = dir.join(&place.0);
            assert_eq!(
                (&first["kind"], &first["file"], &first["offset"], &first["position"]),
                (&json!("log_corrupt"), &json!(file), &json!(place.1), &json!(place.2)),
                "{what}: {report}"
            );
            if refused {
                let ended = home.serve_in_vain().await;
                assert_eq!(ended.code, Some(3), "{what}: {}", ended.stderr);
                assert!(ended.stderr.contains("the log is corrupt: "), "{what}: {}", ended.stderr);
            }
            assert!(files(&dir) == damaged, "{what}: something was repaired");
        }
        put(&dir, &whole);
        assert_eq!(verify(&home).0, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_stops_applying_a_log_that_was_rewritten_with_all_its_hashes() {
    let home = Home::new();
    let log = home.data_dir().join("log");
    let empty = home.path().join("empty");
    std::fs::create_dir_all(&log).unwrap();
    open_log(&log).close().await.unwrap();
    forger::copy(&log, &empty);
    let server = home.serve(&[]);
    let caller = Caller::new(&server);
    // One call, so that its end is its lane's last event: two may come to stand in one partition.
    assert_eq!(caller.call("platform_info", json!({ "purpose": "to look" })).await.unwrap().0, 200);
    caught_up(&home).await;
    assert!(server.terminate().success());
    assert_eq!(verify(&home).0, Some(0));

    let position = std::sync::Mutex::new(None);
    forger::rewrite(&log, &empty, |at, body| {
        let mut position = position.lock().unwrap();
        let forged = body.replacen("annals.tool_call.completed.v1", "annals.tool_call.timed_out.v1", 1);
        let first = position.is_none() && forged != body && forged.len() == body.len();
        first.then(|| {
            *position = Some(at.0);
            forged
        })
    })
    .await;
    let position = position.into_inner().unwrap().expect("a call's end");
    assert_eq!(home.annals(&["verify", "--log-only"]).code, Some(0), "nothing in the log says otherwise");
    let (code, report) = verify(&home);
    assert_eq!(code, Some(1), "{report}");
    // It is its lane's last one, so the checkpoint names it as well.
    let first: Vec<_> = report["findings"].as_array().unwrap()[..2]
        .iter()
        .map(|finding| (finding["kind"].as_str().unwrap(), finding["position"].as_u64().unwrap()))
        .collect();
    assert_eq!(first, [("checkpoint", position), ("row_changed", position)], "{report}");

    let server = home.serve_front(&[], &[]).await;
    let caller = Caller::new(&server);
    caller.get_until("/readyz", |body| (body["store"] == "log_diverged").then_some(())).await;
    assert!(server.log_text().contains("is not the one that was applied"), "{}", server.log_text());
    assert!(server.terminate().success());
}
