//! How calls end, with the real server: each in one terminal event, on the log and in the rows, within 30 seconds.

mod closures;
mod late;

use std::time::Duration;

use annals::base::Tasks;
use annals::event::{Facts, Kind, Terminal};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::crash::in_the_rows;
use crate::harness::{ADMIN_KEY, Caller, Home, Server, call_id};
use crate::reading;

/// Runs for minutes, and ends when it is cancelled.
const SLOW: &str = "SELECT count(*) FROM (SELECT generate_series(1, 100000000000)) AS slow";
const THIRTY_SECONDS: Duration = Duration::from_secs(30);

/// Calls that have an intent on the log, in order.
fn begun(home: &Home) -> Vec<Uuid> {
    let requested = |event: annals::event::Decoded| match event.facts {
        Facts::Requested(requested) => Some(requested.call.call_id),
        _ => None,
    };
    reading::events_in(&home.data_dir().join("log")).into_iter().filter_map(requested).collect()
}

/// The ends of `call` on the log.
fn ends(home: &Home, call: Uuid) -> Vec<(Kind, Terminal)> {
    let end = |event: annals::event::Decoded| match event.facts {
        Facts::Terminal(kind, end) if kind.is_terminal() && end.call.call_id == call => Some((kind, end)),
        _ => None,
    };
    reading::events_in(&home.data_dir().join("log")).into_iter().filter_map(end).collect()
}

async fn until<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = found().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(THIRTY_SECONDS, wait).await.unwrap_or_else(|_| panic!("not within 30 s: {what}"))
}

/// The call that began last, once there are `count`.
async fn begun_by(home: &Home, count: usize) -> Uuid {
    until("the intent", async || begun(home).get(count - 1).copied()).await
}

/// Waits for the one end of `call` on the log and in the rows, and gives kind and error code.
async fn ended(home: &Home, call: Uuid) -> (Kind, String) {
    until("the end in the rows", async || {
        in_the_rows(home).await.get(&call).is_some_and(|counts| counts.1 > 0).then_some(())
    })
    .await;
    assert_eq!(in_the_rows(home).await[&call], (1, 1), "(requested, terminal) in the rows");
    let ends = ends(home, call);
    assert_eq!(ends.len(), 1, "{ends:?}");
    let (kind, end) = ends.into_iter().next().unwrap();
    (kind, end.outcome.error.map(|error| error.code).unwrap_or_default())
}

/// A message of 2025-11-25; the answer and its session.
async fn legacy(server: &Server, session: Option<&str>, body: Value) -> reqwest::Response {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client
        .post(format!("{}/mcp", server.url))
        .bearer_auth(ADMIN_KEY)
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2025-11-25");
    if let Some(session) = session {
        request = request.header("mcp-session-id", session);
    }
    request.json(&body).send().await.unwrap()
}

async fn session(server: &Server) -> String {
    let info = json!({ "name": "test", "version": "1" });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
    let answer =
        legacy(server, None, json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }))
            .await;
    answer.headers()["mcp-session-id"].to_str().unwrap().to_owned()
}

fn slow_call() -> Value {
    let params = json!({ "name": "sql_query", "arguments": { "sql": SLOW, "purpose": "to wait" } });
    json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params })
}

fn verified(home: &Home) {
    let verified = home.annals(&["verify", "--json"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    let report: Value = serde_json::from_str(&verified.stdout).unwrap();
    assert_eq!(report["open"], 0, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_to_end_a_call_is_one_end_on_the_log_and_in_the_rows() {
    let home = Home::new();
    let config = home.path().join("annals.yaml");
    std::fs::write(&config, "limits: { call_timeout_ms: 4000 }\n").unwrap();
    let server = home.serve(&["--sample", "--config", config.to_str().unwrap()]);
    let caller = Caller::new(&server);
    let tasks = Tasks::new();
    let slow = |caller: Caller| async move { caller.call("sql_query", json!({ "sql": SLOW })).await };

    // A disconnect cancels in 2026-07-28.
    let vanishing = tasks.spawn("call", slow(caller.clone()));
    let call = begun_by(&home, 1).await;
    vanishing.abort();
    assert_eq!(ended(&home, call).await, (Kind::ToolCallCancelled, "cancelled_by_caller".into()));

    // A notification cancels in 2025-11-25.
    let session = session(&server).await;
    let answer = async { legacy(&server, Some(&session), slow_call()).await.status() };
    let cancel = async {
        let call = begun_by(&home, 2).await;
        let params = json!({ "requestId": 7, "reason": "enough" });
        let body = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        assert_eq!(legacy(&server, Some(&session), body).await.status(), 202);
        call
    };
    let (_, call) = tokio::join!(answer, cancel);
    assert_eq!(ended(&home, call).await, (Kind::ToolCallCancelled, "cancelled_by_caller".into()));

    // The deadline ends it, and so it does where the client of a session is gone.
    let (_, answer) = slow(caller.clone()).await.unwrap();
    let call: Uuid = call_id(&answer).unwrap().parse().unwrap();
    assert_eq!(ended(&home, call).await, (Kind::ToolCallTimedOut, "call_timed_out".into()));
    tokio::select! {
        answer = legacy(&server, Some(&session), slow_call()) => panic!("{answer:?}"),
        _ = begun_by(&home, 4) => {}
    }
    let call = begun_by(&home, 4).await;
    assert_eq!(ended(&home, call).await, (Kind::ToolCallTimedOut, "call_timed_out".into()));

    // The end of the process.
    let running = tasks.spawn("call", slow(caller));
    let call = begun_by(&home, 5).await;
    assert!(server.terminate().success());
    let (_, answer) = running.await.unwrap().unwrap();
    assert!(answer.to_string().contains("cancelled_by_shutdown"), "{answer}");
    let ended_so: Vec<Kind> = ends(&home, call).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(ended_so, [Kind::ToolCallCancelled]);
    let server = home.serve(&[]);
    assert_eq!(ended(&home, call).await, (Kind::ToolCallCancelled, "cancelled_by_shutdown".into()));
    assert!(server.terminate().success());
    verified(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_process_was_killed_is_closed_after_the_restart() {
    let home = Home::new();
    let server = home.serve(&["--sample"]);
    let caller = Caller::new(&server);
    let tasks = Tasks::new();
    let slow = json!({ "sql": SLOW, "purpose": "to be killed" });
    let running = tasks.spawn("call", async move { caller.call("sql_query", slow).await });
    let call = begun_by(&home, 1).await;
    server.kill();
    assert!(running.await.unwrap().is_err(), "nobody answered");
    assert_eq!(ends(&home, call), []);
    let server = home.serve(&["--sample"]);
    assert_eq!(ended(&home, call).await, (Kind::ToolCallInterrupted, "interrupted".into()));
    let row = Caller::new(&server)
        .get_until("/api/v1/admin/audit/events?limit=5&event_kind=tool_call.interrupted", |body| {
            body["data"].as_array()?.first().cloned()
        })
        .await;
    assert_eq!(row["purpose"], "to be killed", "{row}");
    assert_eq!((&row["effect"], &row["success"]), (&json!("unknown"), &json!(false)), "{row}");
    let metrics = reqwest::Client::builder().no_proxy().build().unwrap();
    let metrics = metrics.get(&server.metrics_url).send().await.unwrap().text().await.unwrap();
    for line in ["annals_calls_interrupted_total 1", "annals_calls_late_total 0"] {
        assert!(metrics.lines().any(|found| found == line), "{line} in\n{metrics}");
    }
    // Again, and nothing is closed twice.
    server.kill();
    let server = home.serve(&["--sample"]);
    Caller::new(&server).get_until("/readyz", |body| (body["store"] == "ok").then_some(())).await;
    assert_eq!(ended(&home, call).await.0, Kind::ToolCallInterrupted);
    assert!(server.terminate().success());
    verified(&home);
}
