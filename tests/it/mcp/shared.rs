//! What holds under both revisions: envelopes, refusals and the ends of calls.

use std::time::Duration;

use annals::dispatch::Limits;
use annals::event::{Facts, Kind};
use serde_json::{Value, json};

use super::harness::{ANN, Ask, BOB, Harness, META, Setup, legacy, legacy_call, modern, modern_call, soon};
use crate::faulty_log::Fault;

/// The same call under each revision.
fn calls(session: &str, tool: &str, arguments: &str) -> [Ask; 2] {
    [modern_call(tool, arguments), legacy_call(session, "1", tool, arguments)]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_message_is_refused_with_400() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{}{}}}"#,
        "[".repeat(128),
        "]".repeat(128)
    );
    let deeper = "[".repeat(30_000);
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("nonsense", -32700),
        (deeper.as_str(), -32700),
        (deep.as_str(), -32600),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
        ("7", -32600),
        ("null", -32600),
        (r#"{"id":1,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":5}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"ping"}"#, -32600),
    ] {
        let modern = modern("ping", "");
        for ask in [Ask { body: body.into(), ..modern }, legacy(&session, body)] {
            let got = server.send(&ask).await;
            let shown = annals::base::clip(body, 80);
            assert_eq!((got.status, got.code(), &got.json()["id"]), (400, code, &Value::Null), "{shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_come_back_as_they_were_sent() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    for id in ["0", "-1", "\"\"", "\"a\\u0062\"", "123456789012345678901234567890"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        let got = server.send(&legacy(&session, &body)).await;
        assert_eq!(got.body, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        let got = server.send(&legacy_call(&session, id, "sql_echo", "{}")).await;
        assert!(got.body.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"#)), "{}", got.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_call_is_refused_and_recorded() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    let cases = [
        ("{{META}}", "tool_name_missing"),
        (r#"{"name":7,{META}}"#, "tool_name_not_string"),
        (r#"{"name":null,{META}}"#, "tool_name_not_string"),
        (r#"{"name":"sql_echo","arguments":[1],{META}}"#, "arguments_not_object"),
        (r#"{"name":"sql_echo","arguments":"{}",{META}}"#, "arguments_not_object"),
        (r#"{"name":"sql_echo","name":"sql_echo",{META}}"#, "params_malformed"),
        ("[1]", "params_malformed"),
        ("\"sql_echo\"", "params_malformed"),
    ];
    for (params, code) in cases {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}}"#,
            params.replace("{META}", META)
        );
        let modern = Ask { body: body.clone(), ..modern("tools/call", "").header("mcp-name", "sql_echo") };
        // Without the version in `_meta` the same body belongs to a session.
        let in_session = legacy(&session, &body.replace("io.modelcontextprotocol/protocolVersion", "other"));
        for ask in [modern, in_session] {
            let before = server.endings().await.len();
            let got = server.send(&ask).await;
            assert_eq!((got.status, got.code()), (200, -32602), "{params}: {got:?}");
            assert_eq!(got.json()["error"]["data"]["code"], code, "{params}");
            let endings = server.endings().await;
            assert_eq!(endings.len(), before + 1, "{params}");
            let call_id = got.json()["error"]["data"]["call_id"].as_str().unwrap().to_owned();
            let (kind, ending) =
                endings.into_iter().find(|(_, ending)| ending.call.call_id.to_string() == call_id).unwrap();
            assert_eq!((kind, ending.outcome.error.unwrap().code.as_str()), (Kind::ToolCallDenied, code));
        }
    }
    assert_eq!(*server.started.borrow(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_end_of_a_call_has_its_answer_and_its_event() {
    let dispatch = Limits { call_timeout: Duration::from_millis(400), ..Limits::default() };
    let server = Harness::start_with(Setup { dispatch, ..Setup::default() }).await;
    let session = server.session(ANN).await;
    // Tool, arguments, JSON-RPC code (0: a tool result with `isError`), the error's code, the event.
    let cases = [
        ("sql_ecko", "{}", -32602, "unknown_tool", Kind::ToolCallDenied),
        ("", "{}", -32602, "unknown_tool", Kind::ToolCallDenied),
        ("sql_echo", r#"{"unwanted":1}"#, 0, "argument_unknown", Kind::ToolCallDenied),
        ("sql_echo", r#"{"purpose":1}"#, 0, "purpose_not_text", Kind::ToolCallDenied),
        ("test_fail", "{}", 0, "connection_unreachable", Kind::ToolCallFailed),
        ("test_panic", "{}", -32603, "panic", Kind::ToolCallFailed),
        ("test_panic_in_parse", "{}", -32603, "panic", Kind::ToolCallDenied),
        ("test_slow", "{}", 0, "call_timed_out", Kind::ToolCallTimedOut),
    ];
    for (tool, arguments, code, reason, kind) in cases {
        for ask in calls(&session, tool, arguments) {
            let got = server.send(&ask).await;
            assert_eq!((got.status, got.code()), (200, code), "{tool} {arguments}: {got:?}");
            let (error, call_id) = if code == 0 {
                let result = got.result();
                assert_eq!(result["isError"], true, "{tool}");
                assert!(result.get("structuredContent").is_none(), "{tool}");
                let text: Value =
                    serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
                assert_eq!(result["_meta"]["io.annals/error"], text, "{tool}");
                (text, result["_meta"]["io.annals/call_id"].clone())
            } else {
                let data = got.json()["error"]["data"].clone();
                let call_id = data["call_id"].clone();
                (data, call_id)
            };
            assert_eq!(error["code"], reason, "{tool}");
            for member in ["category", "message", "hint"] {
                assert!(error[member].is_string(), "{tool}: {error}");
            }
            let endings = server.endings().await;
            let of_call: Vec<_> =
                endings.iter().filter(|(_, ending)| call_id == ending.call.call_id.to_string()).collect();
            assert_eq!(of_call.len(), 1, "{tool}");
            assert_eq!(
                (of_call[0].0, of_call[0].1.outcome.error.as_ref().unwrap().code.as_str()),
                (kind, reason)
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persona_decides_and_a_near_name_is_suggested() {
    let server = Harness::start().await;
    let session = server.session(BOB).await;
    for ask in calls(&session, "test_fail", "{}") {
        let result = server.send(&ask.key(BOB)).await.result();
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!((&text["code"], &text["category"]), (&json!("tool_not_allowed"), &json!("authz")));
    }
    for ask in calls(&session, "sql_ecko", "{}") {
        let got = server.send(&ask.key(BOB)).await;
        assert!(got.json()["error"]["data"]["hint"].as_str().unwrap().contains("sql_echo"), "{got:?}");
    }
    assert_eq!(*server.started.borrow(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_does_not_accept_is_503_and_nothing_runs() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    server.log.set(Fault::Refuse);
    let malformed = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#;
    for ask in calls(&session, "sql_echo", "{}").into_iter().chain([legacy(&session, malformed)]) {
        let got = server.send(&ask).await;
        assert_eq!((got.status, got.code(), got.header("retry-after")), (503, 1503, "30"), "{got:?}");
        let data = got.json()["error"]["data"].clone();
        assert_eq!((&data["code"], data["hint"].is_string()), (&json!("log_full"), true));
    }
    server.log.set(Fault::None);
    let kinds: Vec<_> = server.events().await.into_iter().map(|event| event.kind).collect();
    assert_eq!((*server.started.borrow(), kinds), (0, vec![Kind::SessionStarted]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_may_be_lost_is_said_to_be_with_its_call_id() {
    for era in [0, 1] {
        let server = Harness::start().await;
        let session = server.session(ANN).await;
        server.log.set(Fault::LoseAck(Kind::ToolCallCompleted));
        let got = server.send(&calls(&session, "sql_echo", r#"{"secret":1}"#)[era]).await;
        assert_eq!((got.status, got.code()), (200, 1500), "{got:?}");
        assert_eq!(got.json()["error"]["data"]["code"], "outcome_unrecorded");
        assert!(!got.body.contains("secret"));
        let (_, ending) = server.endings().await.remove(0);
        assert_eq!(got.json()["error"]["data"]["call_id"], ending.call.call_id.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_byte_of_an_answer_leaves_before_its_event_is_durable() {
    for era in [0, 1] {
        let server = Harness::start().await;
        let session = server.session(ANN).await;
        server.log.set(Fault::Hold(Kind::ToolCallCompleted));
        let call = &calls(&session, "sql_echo", "{}")[era];
        let mut answer = std::pin::pin!(server.send(call));
        tokio::select! {
            got = &mut answer => panic!("answered: {got:?}"),
            () = server.log.handed_over(Kind::ToolCallCompleted) => {}
        }
        let early = tokio::time::timeout(Duration::from_millis(300), &mut answer).await;
        assert!(early.is_err(), "{early:?}");
        server.log.release();
        assert_eq!(answer.await.code(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_good_key_nothing_is_looked_at_and_the_refusal_is_recorded() {
    let server = Harness::start().await;
    let cases = [
        ("no key", Ask::post("nonsense").without("authorization"), "Bearer", "missing"),
        ("an unknown key", Ask::post("nonsense").key("x"), "Bearer error=\"invalid_token\"", "unknown"),
        (
            "not a key",
            Ask::post("nonsense").header("authorization", "Basic eA=="),
            "Bearer error=\"invalid_token\"",
            "malformed",
        ),
        (
            "two keys",
            Ask::post("nonsense").also("authorization", &format!("Bearer {ANN}")),
            "Bearer error=\"invalid_token\"",
            "malformed",
        ),
        (
            "two different keys",
            Ask::post("nonsense").header("x-api-key", BOB),
            "Bearer error=\"invalid_token\"",
            "malformed",
        ),
    ];
    let count = cases.len();
    for (what, ask, challenge, reason) in cases {
        let got = server.send(&ask).await;
        assert_eq!(
            (got.status, got.code(), got.header("www-authenticate")),
            (401, 1401, challenge),
            "{what}"
        );
        assert_eq!(got.json()["error"]["data"]["code"], reason, "{what}");
        assert_eq!(got.json()["id"], Value::Null, "{what}");
    }
    let events = server.events().await;
    assert_eq!(events.len(), count);
    for event in events {
        let Facts::AuthFailed(failed) = event.facts else { panic!("{:?}", event.kind) };
        assert_eq!((failed.source.as_str(), failed.route.as_str()), ("mcp", "POST /mcp"));
    }
    let with_header = Ask::post("nonsense").without("authorization").header("x-api-key", ANN);
    assert_eq!(server.send(&with_header).await.code(), -32700, "a good key gets as far as the body");
    server.log.set(Fault::Refuse);
    let got = server.send(&Ask::post("nonsense").key("x")).await;
    assert_eq!((got.status, got.code(), got.header("retry-after")), (503, 1503, "5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_running_answers_out_and_then_ends() {
    let server = Harness::start().await;
    let slow = modern_call("test_slow", "{}");
    let (got, ()) = soon("the answer", async {
        tokio::join!(server.send(&slow), async {
            server.until_started(1).await;
            server.stop.cancel();
            server.go_on.send_replace(true);
        })
    })
    .await;
    assert_eq!(got.code(), 0);
    soon("the listener's end", server.listening.join()).await;
    assert!(tokio::net::TcpStream::connect(server.address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_outlast_the_grace_end_as_cancelled_and_are_answered() {
    for era in [0, 1] {
        let server = Harness::start().await;
        let session = server.session(ANN).await;
        let slow = &calls(&session, "test_slow", "{}")[era];
        let (got, ()) = soon("the answer", async {
            tokio::join!(server.send(slow), async {
                server.until_started(1).await;
                server.stop.cancel();
                server.tasks.cancel_token().cancel();
            })
        })
        .await;
        assert_eq!((got.status, got.code()), (200, 1499), "{got:?}");
        soon("the listener's end", server.listening.join()).await;
        assert_eq!(server.endings().await[0].0, Kind::ToolCallCancelled);
    }
}
