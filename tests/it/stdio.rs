//! `annals stdio` as a client starts it, against the real server: both revisions, and each way in which it ends.

use std::process::Stdio;
use std::time::Duration;

use annals::event::{Decoded, Facts, Kind, SessionEnd, SessionEnded, SessionStarted, Terminal, Transport};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::harness::{ADMIN_KEY, Caller, Home, MODERN, PATIENCE, call_id};
use crate::reading;

const SLOW: &str = "SELECT count(*) FROM generate_series(1, 4000000) a, generate_series(1, 4000000) b";

/// One process and the answers that were not asked for yet.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    kept: Vec<Value>,
}

/// How a process ended, and what it still said.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
    pub(crate) rest: Vec<Value>,
}

async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

impl Process {
    pub(crate) fn start(home: &Home, key: &str) -> Self {
        let mut command = Command::from(home.stdio(Some(key)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdin, lines, kept: Vec::new() }
    }

    pub(crate) async fn write(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn send(&mut self, message: Value) {
        self.write(&message.to_string()).await;
    }

    async fn line(&mut self) -> Option<Value> {
        let line = soon("a line", self.lines.next_line()).await.unwrap()?;
        let json: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(json["jsonrpc"], "2.0", "only messages on stdout: {line}");
        Some(json)
    }

    /// The answer to the request `id`; others are kept.
    async fn answer(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        if let Some(at) = self.kept.iter().position(|answer| answer["id"] == id) {
            return self.kept.remove(at);
        }
        loop {
            let answer = self.line().await.unwrap_or_else(|| panic!("no answer to {id}"));
            if answer["id"] == id {
                return answer;
            }
            self.kept.push(answer);
        }
    }

    async fn ask(&mut self, id: impl Into<Value>, method: &str, params: Value) -> Value {
        let id = id.into();
        self.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        self.answer(id).await
    }

    async fn initialize(&mut self) {
        let info = json!({ "name": "wire", "version": "1" });
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
        let answer = self.ask("init", "initialize", params).await;
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
        self.send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    }

    async fn cancel(&mut self, id: impl Into<Value>) {
        let params = json!({ "requestId": id.into(), "reason": "enough" });
        self.send(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params })).await;
    }

    pub(crate) fn close(&mut self) {
        drop(self.stdin.take());
    }

    /// Reads to the end; closes nothing.
    pub(crate) async fn end(mut self) -> Ended {
        let mut rest = std::mem::take(&mut self.kept);
        while let Some(line) = self.line().await {
            rest.push(line);
        }
        let mut stderr = String::new();
        soon("stderr", self.child.stderr.take().unwrap().read_to_string(&mut stderr)).await.unwrap();
        let code = soon("the exit", self.child.wait()).await.unwrap().code();
        Ended { code, stderr, rest }
    }
}

/// Parameters of a call under 2025-11-25.
fn legacy(tool: &str, arguments: Value) -> Value {
    json!({ "name": tool, "arguments": arguments })
}

/// Parameters of 2026-07-28.
fn modern(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    params
}

fn request(id: impl Into<Value>, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": params })
}

fn on_the_log(home: &Home) -> Vec<Decoded> {
    reading::events_in(&home.data_dir().join("log"))
}

async fn until_recorded<T>(home: &Home, what: &str, found: impl Fn(&Decoded) -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = on_the_log(home).iter().find_map(&found) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(what, wait).await
}

/// Waits until `count` calls have begun.
async fn until_begun(home: &Home, count: usize) {
    let wait = async {
        while on_the_log(home).iter().filter(|event| event.kind == Kind::ToolCallRequested).count() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("a call's intent", wait).await;
}

fn starts(home: &Home) -> Vec<SessionStarted> {
    let starts = on_the_log(home).into_iter().filter_map(|event| match event.facts {
        Facts::SessionStarted(facts) => Some(facts),
        _ => None,
    });
    starts.collect()
}

fn ends(home: &Home) -> Vec<SessionEnded> {
    let ends = on_the_log(home).into_iter().filter_map(|event| match event.facts {
        Facts::SessionEnded(facts) => Some(facts),
        _ => None,
    });
    ends.collect()
}

fn endings(home: &Home) -> Vec<(Kind, Terminal)> {
    let endings = on_the_log(home).into_iter().filter_map(|event| match event.facts {
        Facts::Terminal(kind, terminal) => Some((kind, terminal)),
        _ => None,
    });
    endings.collect()
}

/// The error code of the call `id`'s end, and its kind.
fn ending_of(home: &Home, id: &str) -> (Kind, Option<String>) {
    let endings = endings(home).into_iter().filter(|(_, terminal)| terminal.call.request_id == id);
    let mut endings: Vec<_> = endings.collect();
    assert_eq!(endings.len(), 1, "one end of {id}: {endings:?}");
    let (kind, terminal) = endings.remove(0);
    (kind, terminal.outcome.error.map(|error| error.code))
}

#[tokio::test(flavor = "multi_thread")]
async fn both_eras_are_served_over_stdio_and_their_rows_say_so() {
    let home = Home::new();
    let config = home.path().join("annals.yaml");
    // Fewer than are asked for at once: the others wait.
    std::fs::write(&config, "limits:\n  stdio_in_flight_max: 3\n").unwrap();
    let server = home.serve(&["--sample", "--config", config.to_str().unwrap()]);
    let caller = Caller::new(&server);

    let mut old = Process::start(&home, ADMIN_KEY);
    assert_eq!(old.ask(0, "ping", json!({})).await["result"], json!({}));
    let early = old.ask(1, "tools/list", json!({})).await;
    assert_eq!(early["error"]["code"], -32600, "{early}");
    old.initialize().await;
    let again = old.ask(2, "initialize", json!({ "protocolVersion": "2025-11-25" })).await;
    assert_eq!(again["error"]["code"], -32600, "{again}");
    let listed = old.ask(3, "tools/list", json!({})).await;
    let names: Vec<_> =
        listed["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(
        names,
        [
            "audit_event",
            "audit_overview",
            "audit_search",
            "fetch",
            "list_connections",
            "platform_info",
            "search",
            "sql_describe",
            "sql_query",
            "sql_tables"
        ]
    );
    // Several at once, each answered under its id.
    for n in 10..30 {
        let sql = format!("SELECT {n} AS n");
        old.send(request(n, legacy("sql_query", json!({ "sql": sql })))).await;
    }
    for n in (10..30).rev() {
        let answer = old.answer(n).await;
        assert_eq!(answer["result"]["structuredContent"]["rows"], json!([[n]]), "{answer}");
    }
    let denied = old.ask(30, "tools/call", legacy("sql_quary", json!({}))).await;
    assert_eq!(denied["error"]["data"]["code"], "unknown_tool", "{denied}");

    let mut new = Process::start(&home, ADMIN_KEY);
    let discovered = new.ask(1, "server/discover", modern(json!({}))).await;
    assert_eq!(discovered["result"]["supportedVersions"][0], MODERN, "{discovered}");
    assert_eq!(new.ask(2, "tools/list", modern(json!({}))).await["result"]["cacheScope"], "private");
    let called = new.ask(3, "tools/call", modern(legacy("platform_info", json!({})))).await;
    assert_eq!(called["result"]["resultType"], "complete", "{called}");
    let mut bad = modern(json!({}));
    bad["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    assert_eq!(new.ask(4, "tools/list", bad).await["error"]["code"], -32022);
    assert_eq!(new.ask(5, "ping", modern(json!({}))).await["error"]["code"], -32601);

    for mut process in [old, new] {
        process.close();
        let ended = process.end().await;
        assert_eq!((ended.code, ended.stderr.as_str(), ended.rest.len()), (Some(0), "", 0));
    }
    let (starts, ends) = (starts(&home), ends(&home));
    assert_eq!((starts.len(), ends.len()), (2, 2), "{starts:?} {ends:?}");
    for (start, end, version, calls, refused) in [(0, 0, "2025-11-25", 21, 1), (1, 1, MODERN, 1, 2)] {
        let (start, end) =
            (&starts[start], ends.iter().find(|e| e.session_id == starts[end].session_id).unwrap());
        assert_eq!((start.transport, start.protocol_version.as_str()), (Transport::Stdio, version));
        assert_eq!((end.reason, end.calls), (SessionEnd::ClientDelete, calls), "{end:?}");
        let rows = format!("/api/v1/admin/audit/events?limit=100&session_id={}", start.session_id);
        let wanted = usize::try_from(calls).unwrap();
        // The calls, the start, the end, and what was refused in it and is no call.
        let rows = caller
            .get_until(&rows, |body| {
                let rows: Vec<Value> = body["data"].as_array()?.clone();
                let of_calls = rows.iter().filter(|row| row["tool_name"] != Value::Null).count();
                (of_calls == wanted && rows.len() == wanted + 2 + refused).then_some(rows)
            })
            .await;
        assert!(rows.iter().all(|row| row["transport"] == "stdio"), "{rows:?}");
    }
    let row = format!("/api/v1/admin/audit/events/{}", call_id(&called).unwrap());
    let row = caller.get_until(&row, |row| Some(row.clone())).await;
    assert!(row.to_string().contains(r#""transport":"stdio""#), "{row}");
    assert!(server.terminate().success());
    let verified = home.annals(&["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_over_stdio_ends_the_call_unanswered_in_both_eras() {
    let home = Home::new();
    let server = home.serve(&["--sample"]);
    let mut process = Process::start(&home, ADMIN_KEY);
    process.initialize().await;
    let slow = || legacy("sql_query", json!({ "sql": SLOW }));
    process.send(request("old", slow())).await;
    process.send(request(7, modern(slow()))).await;
    process.send(request(8, slow())).await;
    until_begun(&home, 3).await;
    // A number is no text; a spelling is none of its own.
    process.cancel("7").await;
    process.cancel("\u{6f}ld").await;
    process.cancel(7).await;
    for id in ["\"old\"", "7"] {
        let ended = |event: &Decoded| match &event.facts {
            Facts::Terminal(_, terminal) if terminal.call.request_id == id => Some(()),
            _ => None,
        };
        until_recorded(&home, "the end of a call", ended).await;
        assert_eq!(ending_of(&home, id), (Kind::ToolCallCancelled, Some("cancelled_by_caller".into())));
    }
    // The id is free again, and the other call still runs.
    let again = process.ask(7, "tools/call", modern(legacy("platform_info", json!({})))).await;
    assert_eq!(again["result"]["isError"], false, "{again}");
    process.cancel(8).await;
    process.close();
    let ended = process.end().await;
    assert_eq!((ended.code, ended.rest.len()), (Some(0), 0), "{:?} {}", ended.rest, ended.stderr);
    assert!(server.terminate().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_that_is_in_flight_is_refused_over_stdio_and_recorded() {
    let home = Home::new();
    let server = home.serve(&["--sample"]);
    let mut process = Process::start(&home, ADMIN_KEY);
    process.send(request("\u{e9}", modern(legacy("sql_query", json!({ "sql": SLOW }))))).await;
    until_begun(&home, 1).await;
    let again = r#"{"jsonrpc":"2.0","id":"\u00e9","method":"tools/call","params":{"name":"platform_info",
        "_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",
        "io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    process.write(&again.replace('\n', "")).await;
    let refused = process.answer("\u{e9}").await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    assert_eq!(refused["error"]["data"]["code"], "request_id_in_flight", "{refused}");
    let denied = endings(&home).into_iter().find(|(kind, _)| *kind == Kind::ToolCallDenied).unwrap().1;
    assert_eq!(denied.outcome.error.unwrap().code, "request_id_in_flight");
    assert_eq!(denied.call.call_id.to_string(), call_id(&refused).unwrap());
    let listed = process.ask("\u{e9}", "tools/list", modern(json!({}))).await;
    assert_eq!(listed["error"]["code"], -32600, "{listed}");
    process.cancel("\u{e9}").await;
    process.close();
    assert_eq!(process.end().await.code, Some(0));
    assert_eq!(ends(&home)[0].calls, 2);
    assert!(server.terminate().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_message_is_answered_over_stdio_and_the_stream_goes_on() {
    let home = Home::new();
    let config = home.path().join("annals.yaml");
    std::fs::write(&config, "limits:\n  body_bytes_max: 2048\n").unwrap();
    let server = home.serve_front(&["--config", config.to_str().unwrap()], &[]).await;
    let mut process = Process::start(&home, ADMIN_KEY);
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{}{}}}"#,
        "[".repeat(128),
        "]".repeat(128)
    );
    let fits = |bytes: usize| {
        let rest = bytes - r#"{"jsonrpc":"2.0","id":"fits","method":"ping","x":""}"#.len();
        format!(r#"{{"jsonrpc":"2.0","id":"fits","method":"ping","x":"{}"}}"#, "x".repeat(rest))
    };
    for (line, code) in [
        ("{".to_owned(), -32700),
        ("nonsense".to_owned(), -32700),
        ("{} {}".to_owned(), -32700),
        (deep, -32600),
        ("[]".to_owned(), -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#.to_owned(), -32600),
        ("null".to_owned(), -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.to_owned(), -32600),
        (r#"{"id":1,"method":"ping"}"#.to_owned(), -32600),
        (fits(2049), 1413),
        ("x".repeat(300_000), 1413),
    ] {
        process.write(&line).await;
        let answer = process.answer(Value::Null).await;
        assert_eq!(answer["error"]["code"], code, "{}: {answer}", annals::base::clip(&line, 60));
    }
    process.write("").await;
    process.write("  \r").await;
    process.write(&fits(2048)).await;
    assert_eq!(process.answer("fits").await["result"], json!({}));
    // A call that nothing was agreed on for is refused as the call it is.
    let early = process.ask(1, "tools/call", legacy("platform_info", json!({}))).await;
    assert_eq!(early["error"]["data"]["code"], "not_initialized", "{early}");
    assert_eq!(ending_of(&home, "1"), (Kind::ToolCallDenied, Some("not_initialized".into())));
    for (id, params, code) in [
        (2, json!({ "name": 7 }), "tool_name_not_string"),
        (3, json!({ "name": "platform_info", "arguments": [1] }), "arguments_not_object"),
    ] {
        let refused = process.ask(id, "tools/call", modern(params)).await;
        assert_eq!(
            (&refused["error"]["code"], &refused["error"]["data"]["code"]),
            (&json!(-32602), &json!(code))
        );
        assert_eq!(ending_of(&home, &id.to_string()), (Kind::ToolCallDenied, Some(code.into())));
    }
    // The last line needs no end.
    let stdin = process.stdin.as_mut().unwrap();
    stdin.write_all(br#"{"jsonrpc":"2.0","id":"last","method":"ping"}"#).await.unwrap();
    process.close();
    assert_eq!(process.answer("last").await["result"], json!({}));
    assert_eq!(process.end().await.code, Some(0));
    drop(server);
}

#[test]
fn without_a_server_or_a_key_stdio_says_what_to_run() {
    let home = Home::new();
    let run = |key: Option<&str>| {
        let output = home.stdio(key).output().unwrap();
        assert_eq!(output.stdout, b"");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(None);
    assert_eq!(code, Some(2));
    assert!(said.contains("ANNALS_API_KEY is not set") && said.contains("annals key create"), "{said}");
    assert_eq!(run(Some(" ")).0, Some(2));
    let (code, said) = run(Some("annals_x"));
    assert_eq!((code, said.lines().count()), (Some(3), 1), "{said}");
    let command = format!("annals serve --data-dir {}", home.data_dir().display());
    assert!(said.contains("no server runs") && said.contains(&command), "{said}");
    // A server that was killed left its file and its socket.
    let server = home.serve(&[]);
    server.kill();
    assert!(home.data_dir().join("run.json").exists());
    let (code, said) = run(Some("annals_x"));
    assert_eq!((code, said.contains("annals serve")), (Some(3), true), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_away_leaves_an_error_for_each_open_request() {
    let home = Home::new();
    let server = home.serve(&["--sample"]);
    let mut process = Process::start(&home, ADMIN_KEY);
    let slow = || modern(legacy("sql_query", json!({ "sql": SLOW })));
    for id in ["a", "b", "c"] {
        process.send(request(id, slow())).await;
    }
    until_begun(&home, 3).await;
    process.cancel("c").await;
    until_recorded(&home, "a cancel", |event| (event.kind == Kind::ToolCallCancelled).then_some(())).await;
    server.kill();
    let ended = process.end().await;
    assert_eq!(ended.code, Some(3));
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("the server went away") && ended.stderr.contains("annals serve"));
    let mut lost: Vec<_> = ended.rest.iter().map(|answer| answer["id"].as_str().unwrap()).collect();
    lost.sort_unstable();
    assert_eq!(lost, ["a", "b"], "what was cancelled is not answered: {:?}", ended.rest);
    for answer in &ended.rest {
        assert_eq!(answer["error"]["code"], -32603);
        assert_eq!(answer["error"]["data"]["code"], "server_gone");
    }

    // A server that stops says so, after its calls were ended.
    let mut server = home.serve(&["--sample"]);
    let mut process = Process::start(&home, ADMIN_KEY);
    // Those that the kill left open are closed meanwhile.
    let cancelled = || endings(&home).iter().filter(|(kind, _)| *kind == Kind::ToolCallCancelled).count();
    let before = cancelled();
    process.send(request(1, slow())).await;
    until_begun(&home, 4).await;
    let status = server.terminate_within(Duration::from_secs(8)).await.expect("an end within eight seconds");
    assert!(status.success(), "{}", server.log_text());
    let ended = process.end().await;
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("the server stopped"), "{}", ended.stderr);
    assert_eq!(ended.rest[0]["error"]["data"]["code"], "cancelled_by_shutdown", "{:?}", ended.rest);
    assert_eq!(cancelled(), before + 1);
    let ends = ends(&home);
    assert_eq!(ends.len(), 1, "after kill -9 a session ends unrecorded: {ends:?}");
    assert_eq!((ends[0].reason, ends[0].calls), (SessionEnd::Shutdown, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_key_is_refused_over_stdio_at_the_start_and_at_each_message() {
    let home = Home::new();
    let server = home.serve(&[]);
    let unknown = Process::start(&home, "annals_unknown").end().await;
    assert_eq!((unknown.code, unknown.stderr.lines().count()), (Some(3), 1), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("is not known") && unknown.stderr.contains("annals key create"));
    let failed = |event: &Decoded| match &event.facts {
        Facts::AuthFailed(facts) if facts.route == "stdio" => Some(facts.reason.clone()),
        _ => None,
    };
    assert_eq!(until_recorded(&home, "a refusal", failed).await, "unknown");

    let key = home.key("ann", "analyst", &[]);
    let mut process = Process::start(&home, &key);
    process.initialize().await;
    assert_eq!(
        process.ask(1, "tools/call", legacy("platform_info", json!({}))).await["result"]["isError"],
        false
    );
    let listed: Value = serde_json::from_str(&home.annals(&["key", "list", "--json"]).stdout).unwrap();
    let id = listed.as_array().unwrap().iter().find(|key| key["name"] == "ann").unwrap()["key_id"].clone();
    assert_eq!(home.annals(&["key", "revoke", id.as_str().unwrap()]).code, Some(0));
    // The session is over by itself; the process hears it with its next message.
    let ended = |event: &Decoded| match &event.facts {
        Facts::SessionEnded(facts) => Some((facts.reason, facts.calls, facts.key_id)),
        _ => None,
    };
    let key_id = id.as_str().unwrap().parse().unwrap();
    let over = until_recorded(&home, "the session's end", ended).await;
    assert_eq!(over, (SessionEnd::Revoked, 1, Some(key_id)));
    let refused = process.ask(2, "tools/call", legacy("platform_info", json!({}))).await;
    assert_eq!(
        (&refused["error"]["code"], &refused["error"]["data"]["code"]),
        (&json!(1401), &json!("revoked"))
    );
    let process = process.end().await;
    assert_eq!(process.code, Some(3));
    assert!(process.stderr.contains("was revoked") && process.stderr.contains("annals key create"));
    let revoked = |event: &Decoded| failed(event).filter(|reason| reason == "revoked");
    until_recorded(&home, "the refusal", revoked).await;
    assert_eq!(endings(&home).len(), 1, "the second call was not made");
    assert_eq!((starts(&home).len(), ends(&home).len()), (1, 1));
    assert_eq!(Process::start(&home, &key).end().await.code, Some(3));
    let made = home.annals(&["key", "create", "--name", "bob", "--role", "analyst"]);
    assert!(server.terminate().success());

    // A process that comes while the server starts waits until the keys are known.
    let server = home.serve_front(&[], &[]).await;
    let mut process = Process::start(&home, made.stdout.trim());
    process.initialize().await;
    process.close();
    assert_eq!(process.end().await.code, Some(0));
    assert!(server.terminate().success());
}

/// Closing standard input is no cancel in either revision; a process that is gone is one under 2026-07-28.
#[tokio::test(flavor = "multi_thread")]
async fn closed_input_cancels_nothing_and_a_process_that_is_gone_cancels_calls_of_2026() {
    let home = Home::new();
    let config = home.path().join("annals.yaml");
    std::fs::write(&config, "limits:\n  call_timeout_ms: 3000\n").unwrap();
    let server = home.serve(&["--sample", "--config", config.to_str().unwrap()]);
    let slow = || legacy("sql_query", json!({ "sql": SLOW }));
    let mut process = Process::start(&home, ADMIN_KEY);
    process.initialize().await;
    process.send(request("old", slow())).await;
    process.send(request("new", modern(slow()))).await;
    process.close();
    for id in ["old", "new"] {
        let answer = process.answer(id).await;
        assert_eq!(answer["result"]["_meta"]["io.annals/error"]["code"], "call_timed_out", "{answer}");
    }
    assert_eq!(process.end().await.code, Some(0));

    for closes_first in [true, false] {
        let (old, new) = if closes_first { ("o1", "n1") } else { ("o2", "n2") };
        let before = endings(&home).len();
        let mut process = Process::start(&home, ADMIN_KEY);
        process.initialize().await;
        process.send(request(old, slow())).await;
        process.send(request(new, modern(slow()))).await;
        until_begun(&home, before + 2).await;
        if closes_first {
            process.close();
        }
        process.child.kill().await.unwrap();
        for (id, kind) in [(new, Kind::ToolCallCancelled), (old, Kind::ToolCallTimedOut)] {
            let id = format!("\"{id}\"");
            let ended = |event: &Decoded| match &event.facts {
                Facts::Terminal(found, terminal) if terminal.call.request_id == id => Some(*found),
                _ => None,
            };
            assert_eq!(until_recorded(&home, "an end", ended).await, kind, "{id}");
        }
    }
    let wait = async {
        while ends(&home).len() < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("the sessions' ends", wait).await;
    assert!(ends(&home).iter().all(|end| (end.reason, end.calls) == (SessionEnd::ClientDelete, 2)));
    assert!(server.terminate().success());
}
