//! MCP 2025-11-25 on the wire.

use std::time::Duration;

use annals::event::{Facts, Kind};
use annals::mcp::SessionLimits;
use serde_json::{Value, json};

use super::harness::{ANN, ANN_TOO, Ask, BOB, Harness, Setup, initialize, legacy, legacy_call, soon};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

fn delete(session: &str) -> Ask {
    Ask::get("/mcp").method("DELETE").header("mcp-session-id", session)
}

fn cancel(session: &str, id: &str) -> Ask {
    let params = format!(r#"{{"requestId":{id},"reason":"enough"}}"#);
    legacy(session, &format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_an_official_client_works() {
    let server = Harness::start().await;
    let got = server.send(&initialize()).await;
    let result = got.result();
    assert_eq!((&result["protocolVersion"], &got.json()["id"]), (&json!("2025-11-25"), &json!(0)));
    assert_eq!(result["capabilities"], json!({ "tools": {} }));
    assert_eq!(result["serverInfo"]["name"], "annals");
    assert!(result["instructions"].as_str().unwrap().contains("purpose"));
    assert!(result.get("resultType").is_none() && result.get("_meta").is_none());
    let session = got.header("mcp-session-id").to_owned();
    assert!(session.len() >= 32 && session.bytes().all(|byte| byte.is_ascii_graphic()));
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let got = server.send(&legacy(&session, initialized)).await;
    assert_eq!((got.status, got.body.as_str()), (202, ""));
    let got = server.send(&Ask::get("/mcp").header("mcp-session-id", &session)).await;
    assert_eq!((got.status, got.header("allow")), (405, "POST, DELETE"));
    assert_eq!(server.send(&legacy(&session, PING)).await.result(), json!({}));
    let list = r#"{"jsonrpc":"2.0","id":"a","method":"tools/list"}"#;
    let result = server.send(&legacy(&session, list)).await.result();
    assert_eq!(result["tools"].as_array().unwrap().len(), 5);
    assert!(result.get("ttlMs").is_none() && result.get("resultType").is_none());
    let result = server.send(&legacy_call(&session, "2", "sql_echo", r#"{"a": 1}"#)).await.result();
    assert_eq!(result["structuredContent"], json!({ "echo": { "a": 1 } }));
    assert_eq!(server.send(&delete(&session)).await.status, 204);
    let got = server.send(&legacy(&session, PING)).await;
    assert_eq!((got.status, got.json()["error"]["data"]["code"].as_str()), (404, Some("session_not_found")));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_of_sessions_and_versions_holds() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    let ping = || legacy(&session, PING);
    let with = |body: &str| legacy(&session, body);
    let initialize_with = |params: &str| {
        Ask::post(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#))
    };
    let cases = [
        ("as it should be", ping(), 200, 0),
        ("at the root", ping().path("/"), 200, 0),
        ("without a version", ping().without("mcp-protocol-version"), 200, 0),
        ("an older version", ping().header("mcp-protocol-version", "2025-06-18"), 400, -32022),
        ("an unknown version", ping().header("mcp-protocol-version", "1900-01-01"), 400, -32022),
        ("no version at all", ping().header("mcp-protocol-version", "latest"), 400, -32022),
        (
            "the modern version without its _meta",
            ping().header("mcp-protocol-version", "2026-07-28"),
            400,
            -32602,
        ),
        ("the version twice", ping().also("mcp-protocol-version", "2025-11-25"), 400, -32600),
        ("without a session", ping().without("mcp-session-id"), 400, -32600),
        ("with an empty session", ping().header("mcp-session-id", ""), 404, 1404),
        ("with the session twice", ping().also("mcp-session-id", &session), 400, -32600),
        ("with an unknown session", ping().header("mcp-session-id", &"0".repeat(32)), 404, 1404),
        ("with another principal's session", ping().key(BOB), 404, 1404),
        ("with another key of the principal", ping().key(ANN_TOO), 404, 1404),
        ("an unknown method", with(r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#), 200, -32601),
        (
            "discover, which is modern",
            with(r#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#),
            400,
            -32602,
        ),
        (
            "params that are an array",
            with(r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#),
            200,
            -32602,
        ),
        (
            "a cursor",
            with(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"x"}}"#),
            200,
            -32602,
        ),
        ("initialize for an older version", initialize_with(r#"{"protocolVersion":"2024-11-05"}"#), 200, 0),
        ("initialize for a later one", initialize_with(r#"{"protocolVersion":"2026-07-28"}"#), 200, 0),
        ("initialize without version", initialize_with("{}"), 200, -32602),
        ("initialize with a number", initialize_with(r#"{"protocolVersion":1}"#), 200, -32602),
        ("initialize with an array", initialize_with("[]"), 200, -32602),
        (
            "initialize under an unknown header",
            initialize().header("mcp-protocol-version", "1900-01-01"),
            400,
            -32022,
        ),
    ];
    for (what, ask, status, code) in cases {
        let got = server.send(&ask).await;
        assert_eq!((got.status, got.code()), (status, code), "{what}: {got:?}");
        if code == 0 && ask.body.contains("initialize") {
            assert_eq!(got.json()["result"]["protocolVersion"], "2025-11-25", "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_and_responses_are_taken_within_a_session_only() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}"#,
    ] {
        let got = server.send(&legacy(&session, body)).await;
        assert_eq!((got.status, got.body.as_str()), (202, ""), "{body}");
        let got = server.send(&legacy(&session, body).without("mcp-session-id")).await;
        assert_eq!((got.status, got.json()["id"].clone()), (400, Value::Null), "{body}");
        assert_eq!(server.send(&legacy(&session, body).key(BOB)).await.status, 404, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_owner_ends_a_session() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    for (what, ask, status) in [
        ("another principal", delete(&session).key(BOB), 404),
        ("another key", delete(&session).key(ANN_TOO), 404),
        ("no key", delete(&session).without("authorization"), 401),
        ("no session", delete(&session).without("mcp-session-id"), 400),
        ("an unknown session", delete("nope"), 404),
        ("the owner", delete(&session), 204),
        ("the owner again", delete(&session), 404),
    ] {
        assert_eq!(server.send(&ask).await.status, status, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_is_answered_and_recorded_as_such() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    let slow = legacy_call(&session, "\"s\"", "test_slow", "{}");
    let (got, ()) = soon("the answer", async {
        tokio::join!(server.send(&slow), async {
            server.until_started(1).await;
            assert_eq!(server.send(&cancel(&session, "1")).await.status, 202);
            assert_eq!(server.send(&cancel(&session, "\"s\"").key(BOB)).await.status, 404);
            assert!(server.endings().await.is_empty(), "only its own id and owner cancel a request");
            assert_eq!(server.send(&cancel(&session, "\"\\u0073\"")).await.status, 202);
        })
    })
    .await;
    assert_eq!((got.status, got.code()), (200, 1499));
    assert_eq!(got.json()["id"], "s");
    let (kind, ending) = server.endings().await.remove(0);
    assert_eq!((kind, ending.call.session_id), (Kind::ToolCallCancelled, Some(session)));
    assert_eq!(got.json()["error"]["data"]["call_id"], ending.call.call_id.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_in_flight_is_not_taken_twice() {
    let server = Harness::start().await;
    let (session, other) = (server.session(ANN).await, server.session(ANN).await);
    let slow = |session: &str| legacy_call(session, "7", "test_slow", "{}");
    let (here, there) = (slow(&session), slow(&other));
    let (first, elsewhere, ()) = soon("the answers", async {
        tokio::join!(server.send(&here), server.send(&there), async {
            server.until_started(2).await;
            let again = server.send(&here).await;
            assert_eq!((again.status, again.code()), (200, -32600));
            assert_eq!(again.json()["error"]["data"]["code"], "request_id_in_flight");
            server.go_on.send_replace(true);
        })
    })
    .await;
    assert_eq!((first.code(), elsewhere.code()), (0, 0));
    assert_eq!(server.send(&here).await.code(), 0, "the id is free again");
    let denied = server.endings().await.into_iter().filter(|(kind, _)| *kind == Kind::ToolCallDenied);
    let codes: Vec<_> = denied.map(|(_, ending)| ending.outcome.error.unwrap().code).collect();
    assert_eq!(codes, ["request_id_in_flight"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_client_has_cancelled_nothing() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    let slow = legacy_call(&session, "1", "test_slow", "{}");
    tokio::select! {
        got = server.send(&slow) => panic!("answered: {got:?}"),
        () = server.until_started(1) => {}
    }
    // The id stays taken until the call ends, so the server has not given the call up.
    let again = server.send(&slow).await;
    assert_eq!(again.code(), -32600);
    server.go_on.send_replace(true);
    let event = server.until_recorded(Kind::ToolCallCompleted).await;
    let Facts::Terminal(_, terminal) = event.facts else { panic!() };
    assert_eq!(terminal.call.session_id, Some(session));
}

#[tokio::test(flavor = "multi_thread")]
async fn ending_a_session_leaves_its_requests_alone() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    let slow = legacy_call(&session, "1", "test_slow", "{}");
    let (got, ()) = soon("the answer", async {
        tokio::join!(server.send(&slow), async {
            server.until_started(1).await;
            assert_eq!(server.send(&delete(&session)).await.status, 204);
            server.go_on.send_replace(true);
        })
    })
    .await;
    assert_eq!(got.code(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_idle_session_makes_room() {
    let sessions = SessionLimits { sessions_max: 3, sessions_per_key_max: 2, idle: Duration::from_secs(600) };
    let server = Harness::start_with(Setup { sessions, ..Setup::default() }).await;
    let status = async |session: &str| server.send(&legacy(session, PING)).await.status;
    let (one, two) = (server.session(ANN).await, server.session(ANN).await);
    let three = server.session(ANN).await;
    assert_eq!(status(&one).await, 404, "the third session of a key ends its first");
    assert_eq!((status(&two).await, status(&three).await), (200, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_ends() {
    let sessions = SessionLimits { idle: Duration::from_millis(200), ..Setup::default().sessions };
    let server = Harness::start_with(Setup { sessions, ..Setup::default() }).await;
    let session = server.session(ANN).await;
    tokio::time::sleep(sessions.idle).await;
    assert_eq!(server.send(&legacy(&session, PING)).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_session_opens_when_each_is_busy() {
    let sessions = SessionLimits { sessions_max: 1, sessions_per_key_max: 1, idle: Duration::from_secs(600) };
    let server = Harness::start_with(Setup { sessions, ..Setup::default() }).await;
    let session = server.session(ANN).await;
    let slow = legacy_call(&session, "1", "test_slow", "{}");
    let (got, ()) = soon("the answer", async {
        tokio::join!(server.send(&slow), async {
            server.until_started(1).await;
            let refused = server.send(&initialize().key(BOB)).await;
            assert_eq!((refused.status, refused.header("retry-after")), (503, "1"));
            assert_eq!(refused.json()["error"]["data"]["code"], "sessions_exhausted");
            let Facts::RequestRefused(refused) = server.until_recorded(Kind::RequestRefused).await.facts
            else {
                panic!("another event")
            };
            let expected = ("sessions_exhausted", Some(503), Some(1503), Some("sub-bob"));
            let found =
                (refused.reason.as_str(), refused.status, refused.rpc_code, refused.subject_id.as_deref());
            assert_eq!(found, expected);
            server.go_on.send_replace(true);
        })
    })
    .await;
    assert_eq!(got.code(), 0);
    assert!(!server.session(BOB).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_info_of_the_session_is_recorded_with_its_calls() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sql_echo","_meta":{"progressToken":1e2}}}"#;
    assert_eq!(server.send(&legacy(&session, call)).await.code(), 0);
    let personal = server.until_recorded(Kind::ToolCallCompleted).await.personal.unwrap();
    let expected = r#"{"clientInfo":{"name":"wire","version":"1"},"_meta":{"progressToken":1e2}}"#;
    assert_eq!(personal.asserted.unwrap().get(), expected);
}
