//! The whole server as its users meet it: keys, personas, the audit over REST, the store away, and the end.

use std::time::Duration;

use annals::app::Node;
use annals::config::Config;
use annals::event::Kind;
use annals::event::{AuthFailed, Facts, Personal, Stopping};
use annals::log::{RecordError, Refusal};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Caller, Home, PATIENCE, call_id};
use crate::reading;

const EVENTS: &str = "/api/v1/admin/audit/events";

/// The first audit row that `found` accepts.
async fn row(caller: &Caller, query: &str, found: impl Fn(&Value) -> bool) -> Value {
    let path = format!("{EVENTS}?limit=200{query}");
    let first = |body: &Value| body["data"].as_array().unwrap().iter().find(|row| found(row)).cloned();
    caller.get_until(&path, first).await
}

fn trimmed(text: &str) -> &str {
    text.trim_end_matches('\n')
}

fn key_in(banner: &str) -> Option<&str> {
    banner.lines().find_map(|line| line.trim_start().strip_prefix("Admin API key"))?.split_whitespace().next()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_start_shows_an_admin_key_once_and_every_call_has_its_row() {
    let home = Home::new();
    let server = home.serve(&["--sample"]);
    let key = key_in(&server.banner).expect("a key in the banner").to_owned();
    let caller = Caller::with_key(&server, &key);
    let arguments = json!({ "sql": "SELECT count(*) AS n FROM customers", "purpose": "a first look" });
    let (status, answer) = caller.call("sql_query", arguments).await.unwrap();
    assert_eq!((status, &answer["result"]["isError"]), (200, &json!(false)), "{answer}");
    let call = call_id(&answer).unwrap().to_owned();
    let found = row(&caller, "&tool_name=sql_query", |row| row["id"] == call.as_str()).await;
    assert_eq!(found["event_kind"], "tool_call.completed");
    assert_eq!(
        (&found["success"], &found["user_id"], &found["connection"], &found["purpose"], &found["persona"]),
        (&json!(true), &json!("admin"), &json!("sample"), &json!("a first look"), &json!("admin"))
    );
    assert_eq!(found["parameters"], json!({ "sql": "SELECT count(*) AS n FROM customers" }));
    let event_id = found["event_id"].as_str().unwrap();
    let (status, detail) = caller.get(&format!("{EVENTS}/{event_id}")).await.unwrap();
    assert_eq!(status, 200, "{detail}");
    let read = row(&caller, "&event_kind=admin.audit_queried", |row| row["user_id"] == "admin").await;
    assert_eq!(read["authorized"], true);
    assert!(server.terminate().success());
    let again = home.serve(&[]);
    assert_eq!(key_in(&again.banner), None, "the key is shown once");
    let (status, _) = Caller::with_key(&again, &key).call("platform_info", json!({})).await.unwrap();
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_made_and_revoked_over_the_socket_and_without_a_server() {
    let home = Home::new();
    let server = home.serve(&[]);
    let admin = Caller::new(&server);
    let made = home.annals(&["key", "create", "--name", "ann", "--role", "analyst"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let ann = Caller::with_key(&server, trimmed(&made.stdout));
    assert_eq!(ann.call("platform_info", json!({})).await.unwrap().0, 200);
    let listed = home.annals(&["key", "list", "--json"]);
    let keys: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert!(!listed.stdout.contains(trimmed(&made.stdout)), "a list shows no keys");
    let id =
        keys.as_array().unwrap().iter().find(|key| key["name"] == "ann").unwrap()["key_id"].as_str().unwrap();
    let revoked = home.annals(&["key", "revoke", id]);
    assert_eq!((revoked.code, trimmed(&revoked.stdout)), (Some(0), format!("revoked {id}").as_str()));
    // The revocation answers once this server refuses the key, so the very next call is refused.
    let (status, body) = ann.call("platform_info", json!({})).await.unwrap();
    assert_eq!(status, 401, "{body}");
    row(&admin, "&event_kind=auth.failed", |row| row["user_id"] == "ann").await;
    row(&admin, "&event_kind=admin.key_revoked", |row| row["user_id"] == "local-operator").await;
    let again = home.annals(&["key", "revoke", id]);
    assert_eq!(again.code, Some(2), "{}", again.stderr);
    assert!(again.stderr.contains("is revoked already"), "{}", again.stderr);
    let wrong = home.annals(&["key", "create", "--name", "ben", "--role", "analist"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains(r#"did you mean "analyst"?"#), "{}", wrong.stderr);
    assert!(server.terminate().success());

    let events = reading::events_in(&home.data_dir().join("log")).len();
    let listed = home.annals(&["key", "list", "--json"]);
    assert!(listed.stdout.contains(r#""name": "ann""#), "{}{}", listed.stdout, listed.stderr);
    assert_eq!(reading::events_in(&home.data_dir().join("log")).len(), events, "a list leaves no trace");
    let made = home.annals(&["key", "create", "--name", "cleo", "--role", "auditor", "--expires", "1d"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let server = home.serve(&[]);
    let cleo = Caller::with_key(&server, trimmed(&made.stdout));
    assert_eq!(cleo.get(EVENTS).await.unwrap().0, 200);
    let created = |row: &Value| row["event_kind"] == "admin.key_created";
    row(&Caller::new(&server), "", created).await;
    let verified = home.annals(&["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_credentials_and_personas_leave_their_reason() {
    let home = Home::new();
    let server = home.serve(&["--sample"]);
    let admin = Caller::new(&server);
    let (status, body) =
        Caller::with_key(&server, "annals_nobody").call("platform_info", json!({})).await.unwrap();
    assert_eq!(status, 401, "{body}");
    assert_eq!(Caller::with_key(&server, "a b").get(EVENTS).await.unwrap().0, 401);
    for (reason, source) in [("unknown", "mcp"), ("malformed", "rest")] {
        let failed = |row: &Value| row["error_code"] == reason && row["source"] == source;
        let found = row(&admin, "&event_kind=auth.failed", failed).await;
        assert_eq!((&found["success"], &found["error_category"]), (&json!(false), &json!("auth")), "{found}");
        assert_eq!(found["client_ip"], "127.0.0.1");
    }
    let key =
        |role| trimmed(&home.annals(&["key", "create", "--name", role, "--role", role]).stdout).to_owned();
    let auditor = Caller::with_key(&server, &key("auditor"));
    let (_, answer) = auditor.call("sql_query", json!({ "sql": "SELECT 1" })).await.unwrap();
    assert!(answer.to_string().contains("tool_not_allowed"), "{answer}");
    let denied = row(&auditor, "&event_kind=tool_call.denied", |row| row["user_id"] == "auditor").await;
    assert_eq!(
        (&denied["error_code"], &denied["authorized"], &denied["success"], &denied["persona"]),
        (&json!("tool_not_allowed"), &json!(false), &json!(false), &json!("auditor"))
    );
    let analyst = Caller::with_key(&server, &key("analyst"));
    let (status, body) = analyst.get(EVENTS).await.unwrap();
    assert_eq!((status, &body["error"]["code"]), (403, &json!("audit_not_allowed")), "{body}");
    let queried = row(&admin, "&event_kind=admin.audit_queried", |row| row["user_id"] == "analyst").await;
    assert_eq!(queried["authorized"], false);
}

/// One of the statements that `sql_query` must refuse.
#[derive(serde::Deserialize)]
struct Escape {
    name: String,
    sql: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sql_escape_is_refused_over_http_and_recorded_with_its_reason() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sql_escapes.json")).unwrap();
    let escapes: Vec<Escape> = serde_json::from_str(&text).unwrap();
    assert!(escapes.len() >= 60, "{}", escapes.len());
    let home = Home::new();
    let server = home.serve(&["--sample"]);
    let caller = Caller::new(&server);
    let mut calls = std::collections::BTreeMap::new();
    for escape in &escapes {
        let (_, answer) = caller.call("sql_query", json!({ "sql": escape.sql })).await.unwrap();
        assert_eq!(answer["result"]["isError"], true, "{}: {answer}", escape.name);
        let error: Value =
            serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
        assert!(
            ["validation", "authz"].contains(&error["category"].as_str().unwrap()),
            "{}: {error}",
            escape.name
        );
        calls.insert(call_id(&answer).unwrap().to_owned(), (escape, error["code"].clone()));
    }
    assert_eq!(calls.len(), escapes.len());
    let path = format!("{EVENTS}?limit=1000&tool_name=sql_query");
    let all = |body: &Value| (body["data"].as_array()?.len() >= escapes.len()).then(|| body["data"].clone());
    for row in caller.get_until(&path, all).await.as_array().unwrap() {
        let (escape, code) = calls.remove(row["id"].as_str().unwrap()).expect("a row of one of these calls");
        assert_eq!(
            (&row["event_kind"], &row["success"], &row["error_code"], &row["parameters"]["sql"]),
            (&json!("tool_call.failed"), &json!(false), &code, &json!(escape.sql)),
            "{}",
            escape.name
        );
    }
    assert!(calls.is_empty(), "calls without a row: {:?}", calls.keys());
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_is_away_calls_go_on_and_reads_say_so() {
    let home = Home::new();
    let nowhere = ["--database-url", "postgres://nobody@127.0.0.1:1/none"];
    let server = home.serve_front(&nowhere, &[]).await;
    let caller = Caller::new(&server);
    let (status, body) = caller.get("/readyz").await.unwrap();
    assert_eq!(
        (status, &body["log"], &body["store"]),
        (200, &json!("accepting"), &json!("starting")),
        "{body}"
    );
    let (status, answer) = caller.call("platform_info", json!({})).await.unwrap();
    assert_eq!(status, 200, "{answer}");
    let (status, body) = caller.get(EVENTS).await.unwrap();
    assert_eq!((status, &body["error"]["code"]), (503, &json!("store_unavailable")), "{body}");
    let (status, body) =
        Caller::with_key(&server, "annals_somebody").call("platform_info", json!({})).await.unwrap();
    assert_eq!(status, 503, "an unknown key is not called unknown while the keys are not loaded: {body}");
    assert!(server.terminate().success());
    let server = home.serve(&[]);
    let call = call_id(&answer).unwrap().to_owned();
    row(&Caller::new(&server), "", |row| row["id"] == call.as_str()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_postgres_that_dies_comes_back_and_the_rows_catch_up() {
    let home = Home::new();
    let server = home.serve(&[]);
    let caller = Caller::new(&server);
    let pid_file = server.data_dir.join("pg/postmaster.pid");
    let pid =
        || -> i32 { std::fs::read_to_string(&pid_file).unwrap().lines().next().unwrap().parse().unwrap() };
    let first = rustix::process::Pid::from_raw(pid()).unwrap();
    rustix::process::kill_process(first, rustix::process::Signal::QUIT).unwrap();
    let (status, answer) = caller.call("platform_info", json!({})).await.unwrap();
    assert_eq!(status, 200, "{answer}");
    let call = call_id(&answer).unwrap().to_owned();
    row(&caller, "", |row| row["id"] == call.as_str()).await;
    assert_ne!(pid(), first.as_raw_nonzero().get());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_postgres_that_dies_while_it_is_filled_does_not_end_the_server() {
    let home = Home::new();
    let server = home.serve_front(&["--sample"], &[]).await;
    let loading = async {
        loop {
            if let Some(postmaster) = loading_postmaster(&server.data_dir) {
                return postmaster;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let postmaster = tokio::time::timeout(PATIENCE, loading).await.expect("the sample is being loaded");
    assert!(!server.log_text().contains("sample data is there"), "too late to be a test");
    kill_process(postmaster, Signal::KILL).unwrap();
    let caller = Caller::new(&server);
    assert_eq!(caller.call("platform_info", json!({})).await.unwrap().0, 200);
    caller.get_until("/readyz", |body| (body["store"] == "ok").then_some(())).await;
    let count = json!({ "connection": "sample", "sql": "SELECT count(*) AS n FROM orders" });
    let (status, answer) = caller.call("sql_query", count).await.unwrap();
    assert_eq!((status, &answer["result"]["isError"]), (200, &json!(false)), "{answer}");
    assert!(server.terminate().success());
}

/// The private Postgres, while one of its processes takes the sample's rows.
fn loading_postmaster(data_dir: &std::path::Path) -> Option<Pid> {
    let text = std::fs::read_to_string(data_dir.join("pg/postmaster.pid")).ok()?;
    let postmaster: i32 = text.lines().next()?.parse().ok()?;
    let children = std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children")).ok()?;
    let titles = children.split_whitespace().map(|pid| std::fs::read(format!("/proc/{pid}/cmdline")));
    let copies = |title: Vec<u8>| String::from_utf8_lossy(&title).contains(" COPY");
    titles.flatten().any(copies).then(|| Pid::from_raw(postmaster)).flatten()
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_within_eight_seconds_and_running_calls_are_recorded_as_cancelled() {
    let home = Home::new();
    let mut server = home.serve(&["--sample"]);
    let caller = Caller::new(&server);
    let slow = "SELECT count(*) FROM generate_series(1, 4000000) a, generate_series(1, 4000000) b";
    let tasks = annals::base::Tasks::new();
    let running = {
        let caller = caller.clone();
        tasks.spawn("slow call", async move { caller.call("sql_query", json!({ "sql": slow })).await })
    };
    let started = async {
        while events_on_the_log(&home, Kind::ToolCallRequested) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, started).await.unwrap();
    let status = server.terminate_within(Duration::from_secs(8)).await.expect("an end within eight seconds");
    assert!(status.success(), "{status}: {}", server.log_text());
    let (_, answer) = running.await.unwrap().unwrap();
    assert!(answer.to_string().contains("cancelled_by_shutdown"), "{answer}");
    let report: Value = serde_json::from_str(&home.annals(&["verify", "--json"]).stdout).unwrap();
    assert_eq!(report["rows"]["pending"], 0, "the last events have their rows: {report}");
    assert!(!server.data_dir.join("run.json").exists());
    assert!(!server.data_dir.join("pg/postmaster.pid").exists(), "Postgres was stopped too");
    let again = home.serve(&[]);
    let cancelled = row(&Caller::new(&again), "&event_kind=tool_call.cancelled", |_| true).await;
    assert_eq!(cancelled["error_code"], "cancelled_by_shutdown");
    assert!(again.terminate().success());
    let verified = home.annals(&["verify", "--json"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

/// Processes whose command line names `path`.
fn processes_of(path: &std::path::Path) -> Vec<String> {
    let commands = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let bytes = std::fs::read(entry.unwrap().path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&bytes).replace('\0', " "))
    });
    commands.filter(|command| command.contains(path.to_str().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_while_the_store_starts_leaves_no_process_and_the_next_start_works() {
    for seen in ["pg", "pg/PG_VERSION", "pg/postmaster.pid"] {
        let home = Home::new();
        let mut server = home.serve_front(&["--sample"], &[]).await;
        let path = server.data_dir.join(seen);
        let there = async {
            while !path.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, there).await.unwrap();
        let status =
            server.terminate_within(Duration::from_secs(8)).await.expect("an end within eight seconds");
        assert!(status.success(), "{seen}: {status}: {}", server.log_text());
        // A start that takes longer than the end may is left to the next one, and the server says so.
        if !server.log_text().contains("the next start adopts it") {
            assert_eq!(processes_of(&server.data_dir), Vec::<String>::new(), "{seen}");
        }
        let again = home.serve(&["--sample"]);
        assert_eq!(Caller::new(&again).call("platform_info", json!({})).await.unwrap().0, 200, "{seen}");
        assert!(again.terminate().success());
        assert_eq!(processes_of(&server.data_dir), Vec::<String>::new(), "{seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_hangs_does_not_hold_the_end_up() {
    let home = Home::new();
    let mut server = home.serve(&[]);
    assert_eq!(Caller::new(&server).call("platform_info", json!({})).await.unwrap().0, 200);
    let text = std::fs::read_to_string(server.data_dir.join("pg/postmaster.pid")).unwrap();
    let postmaster: i32 = text.lines().next().unwrap().parse().unwrap();
    let children = std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children")).unwrap();
    let all: Vec<Pid> = std::iter::once(postmaster)
        .chain(children.split_whitespace().map(|pid| pid.parse().unwrap()))
        .map(|pid| Pid::from_raw(pid).unwrap())
        .collect();
    for &pid in &all {
        kill_process(pid, Signal::STOP).unwrap();
    }
    let status = server.terminate_within(Duration::from_secs(8)).await;
    for &pid in &all {
        kill_process(pid, Signal::CONT).unwrap_or(());
    }
    let status = status.expect("an end within eight seconds");
    // It says so; the log has its clean end all the same.
    assert_eq!(status.code(), Some(3), "{}", server.log_text());
    assert!(server.log_text().contains("the private Postgres"), "{}", server.log_text());
    let verified = home.annals(&["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_recorded_behind_the_last_events_of_a_process() {
    let home = Home::new();
    let node = Node::open(&home.data_dir(), &Config::default(), "serve").await.unwrap();
    // A client that was slow to send its request: it is refused while the store stops.
    let late = |facts: &Facts| {
        let draft = node.lanes.draft();
        let event = draft.build(node.lanes.clock().now(), "192.0.2.9", facts, &Personal::default()).unwrap();
        node.lanes.record(event)
    };
    let refused = Facts::AuthFailed(AuthFailed {
        reason: "unknown".into(),
        key_id: None,
        source: "mcp".into(),
        route: "POST /mcp".into(),
        count: 1,
        window: None,
    });
    late(&refused).await.unwrap();
    node.finish("signal").await.unwrap();
    for facts in [refused, Facts::Stopping(Stopping { reason: "again".into() })] {
        let error = late(&facts).await.unwrap_err();
        assert!(matches!(error, RecordError::Refused(Refusal::Closed)), "{facts:?}: {error}");
    }
    node.close().await.unwrap();
    let verified = home.annals(&["verify", "--log-only"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

fn events_on_the_log(home: &Home, kind: Kind) -> usize {
    reading::events_in(&home.data_dir().join("log")).iter().filter(|event| event.kind == kind).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_start_says_why_and_exits_with_its_code() {
    let home = Home::new();
    let config = home.path().join("annals.yaml");
    std::fs::write(&config, "limits:\n  body_bytes: 5\n").unwrap();
    let config = config.to_str().unwrap();
    let checked = home.annals(&["config", "check", "--config", config]);
    assert_eq!(checked.code, Some(2));
    assert!(checked.stderr.contains("body_bytes") && checked.stderr.contains('2'), "{}", checked.stderr);
    assert_eq!(home.annals(&["config", "check"]).code, Some(0));
    let no_url = home.path().join("no-url.yaml");
    std::fs::write(&no_url, "connections: {sales: {kind: postgres, url: nonsense}}").unwrap();
    let checked = home.annals(&["config", "check", "--config", no_url.to_str().unwrap()]);
    assert_eq!((checked.code, checked.stdout.as_str()), (Some(2), ""), "serve refuses it, too");
    assert!(checked.stderr.contains("connections.sales.url"), "{}", checked.stderr);
    let full = home.annals_on_full_disk(&["config", "check"]);
    assert_eq!(full.code, Some(3), "lost output is no success");
    assert!(full.stderr.contains("cannot write to stdout"), "{}", full.stderr);
    assert_eq!(home.annals(&["serve", "--nonsense"]).code, Some(2));
    assert_eq!(home.annals(&["serve", "--role", "edge"]).code, Some(2));

    let typo = home.annals(&["key", "list"]);
    assert_eq!((typo.code, home.data_dir().exists()), (Some(2), false), "{}", typo.stderr);

    let free = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
    let missing = home.annals(&[&["serve", "--pg-bin", "/nonexistent"], &free[..]].concat());
    assert_eq!(missing.code, Some(3), "{}", missing.stderr);
    assert!(missing.stderr.contains("/nonexistent"), "{}", missing.stderr);

    let elsewhere = ["--database-url", "mysql://localhost/annals"];
    for command in ["serve", "verify"] {
        let free = if command == "serve" { &free[..] } else { &[] };
        let refused = home.annals(&[&[command], &elsewhere[..], free].concat());
        assert_eq!(refused.code, Some(2), "{command}: {}", refused.stderr);
        assert!(refused.stderr.contains("is not a Postgres URL"), "{command}: {}", refused.stderr);
    }

    let server = home.serve(&["--database-url", ""]);
    let second = home.annals(&[&["serve"], &free[..]].concat());
    assert_eq!(second.code, Some(3), "{}", second.stderr);
    assert!(second.stderr.contains("log/lock"), "names the lock: {}", second.stderr);
    let taken = server.url.trim_start_matches("http://").to_owned();
    let other = Home::new();
    let bind = other.annals(&["serve", "--listen", &taken, "--metrics-listen", "127.0.0.1:0"]);
    assert_eq!(bind.code, Some(3), "{}", bind.stderr);
    assert!(bind.stderr.contains(&format!("cannot listen on {taken}")), "{}", bind.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_byte_in_the_log_is_named_by_verify_and_by_serve() {
    let home = Home::new();
    let server = home.serve(&[]);
    let caller = Caller::new(&server);
    assert_eq!(caller.call("platform_info", json!({})).await.unwrap().0, 200);
    assert!(server.terminate().success());
    assert_eq!(home.annals(&["verify", "--log-only"]).code, Some(0));
    let log = home.data_dir().join("log");
    let holds = |path: std::path::PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(13).rposition(|window| window == b"platform_info")?;
        path.extension().is_some_and(|extension| extension == "seg").then_some((path, bytes, at))
    };
    let mut files = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path());
    let (segment, mut bytes, at) = files.find_map(holds).expect("a segment that holds a call");
    bytes[at] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();
    let verified = home.annals(&["verify", "--log-only", "--json"]);
    assert_eq!(verified.code, Some(1), "{}{}", verified.stdout, verified.stderr);
    let report: Value = serde_json::from_str(&verified.stdout).unwrap();
    let first = &report["findings"][0];
    let name = segment.file_name().unwrap().to_str().unwrap();
    let place =
        (first["file"].as_str().unwrap(), usize::try_from(first["offset"].as_u64().unwrap()).unwrap());
    assert!(place.0.ends_with(name), "{report}");
    assert!(place.1 < at && at < place.1 + 4_096, "byte {at}: {report}");

    // No start reads all of the log, but the projection reads where it goes on: nobody serves on a record that is not whole.
    let served = home.annals(&["serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]);
    assert_eq!(served.code, Some(3), "{}", served.stderr);
    assert!(served.stderr.contains(&format!("{name} is corrupt at byte {}", place.1)), "{}", served.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_a_listener_of_their_own() {
    let home = Home::new();
    let server = home.serve(&[]);
    let caller = Caller::new(&server);
    assert_eq!(caller.call("platform_info", json!({})).await.unwrap().0, 200);
    let text = reqwest::get(&server.metrics_url).await.unwrap().text().await.unwrap();
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).split(' ').nth(1).unwrap().parse().unwrap()
    };
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("process_cpu_seconds_total") > 0.0);
    assert!(value("annals_log_appended_records_total") >= 2.0);
    assert!(value("annals_events_missing_total").abs() < f64::EPSILON);
    let not_here = reqwest::get(format!("{}/metrics", server.url)).await.unwrap();
    assert_eq!(not_here.status().as_u16(), 404);
    assert_eq!(caller.get("/healthz").await.unwrap().0, 200);
}

#[cfg(feature = "planted-bugs")]
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_relay_appends_twice_becomes_one_row() {
    let home = Home::new();
    // This relay never deletes what it appended, as one that is killed at that point: the key stays pending.
    let dying = [("ANNALS_PLANTED_BUG", "relay_dies_after_append")];
    let server = home.serve_front(&[], &dying).await;
    let caller = Caller::new(&server);
    row(&caller, "&event_kind=admin.key_created", |_| true).await;
    let appended_twice = async {
        while events_on_the_log(&home, Kind::AdminKeyCreated) < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, appended_twice).await.unwrap();
    server.kill();
    let server = home.serve(&[]);
    let caller = Caller::new(&server);
    caller.get_until("/readyz", |body| (body["store"] == "ok").then_some(())).await;
    let made = home.annals(&["key", "create", "--name", "last", "--role", "analyst"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    row(&caller, "&event_kind=admin.key_created", |row| row["user_id"] == "local-operator").await;
    let verified = home.annals(&["verify", "--json"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    let (_, body) = caller.get(&format!("{EVENTS}?event_kind=admin.key_created")).await.unwrap();
    let mut ids: Vec<&str> =
        body["data"].as_array().unwrap().iter().map(|row| row["event_id"].as_str().unwrap()).collect();
    let rows = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), rows, "an event has two rows");
}
