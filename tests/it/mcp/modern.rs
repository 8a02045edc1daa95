//! MCP 2026-07-28 on the wire.

use annals::event::{Facts, Kind};
use serde_json::{Value, json};

use super::harness::{Ask, BOB, Harness, META, modern, modern_call, soon};

const VERSION: &str = "mcp-protocol-version";
const LIST: &str = "tools/list";

/// What is asked, the HTTP status and the JSON-RPC code (0: a result).
type Case = (&'static str, Ask, u16, i64);

fn body(method: &str, meta: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"_meta":{meta}}}}}"#)
}

fn with_body(ask: Ask, body: String) -> Ask {
    Ask { body, ..ask }
}

fn meta(version: &str) -> String {
    format!(
        r#"{{"io.modelcontextprotocol/protocolVersion":{version},"io.modelcontextprotocol/clientCapabilities":{{}}}}"#
    )
}

fn header_cases() -> Vec<Case> {
    let call = || modern_call("sql_echo", "{}");
    let unknown = with_body(modern(LIST, ""), body(LIST, &meta("\"1900-01-01\"")));
    vec![
        ("as it should be", modern(LIST, ""), 200, 0),
        ("also at the root", modern(LIST, "").path("/"), 200, 0),
        ("without a version header", modern(LIST, "").without(VERSION), 400, -32020),
        ("with an empty version header", modern(LIST, "").header(VERSION, ""), 400, -32020),
        ("with another version header", modern(LIST, "").header(VERSION, "2025-11-25"), 400, -32020),
        ("with the version header twice", modern(LIST, "").also(VERSION, "2026-07-28"), 400, -32020),
        ("without Mcp-Method", modern(LIST, "").without("mcp-method"), 400, -32020),
        ("with another Mcp-Method", modern(LIST, "").header("mcp-method", "tools/call"), 400, -32020),
        ("with Mcp-Method in capitals", modern(LIST, "").header("mcp-method", "TOOLS/LIST"), 400, -32020),
        ("with Mcp-Method twice", modern(LIST, "").also("mcp-method", LIST), 400, -32020),
        ("with Mcp-Method in UTF-8", modern(LIST, "").header("mcp-method", "tools/lïst"), 400, -32020),
        ("with spaces around values", modern(LIST, "").header("mcp-method", "  tools/list\t"), 200, 0),
        ("a call as it should be", call(), 200, 0),
        ("a call without Mcp-Name", call().without("mcp-name"), 400, -32020),
        ("a call with another Mcp-Name", call().header("mcp-name", "sql_query"), 400, -32020),
        ("a call with Mcp-Name in capitals", call().header("mcp-name", "SQL_ECHO"), 400, -32020),
        ("a call with Mcp-Name twice", call().also("mcp-name", "sql_echo"), 400, -32020),
        ("a call with Mcp-Name in Base64", call().header("mcp-name", "=?base64?c3FsX2VjaG8=?="), 200, 0),
        ("a call with another name in Base64", call().header("mcp-name", "=?base64?c3Fs?="), 400, -32020),
        ("a call with bad Base64", call().header("mcp-name", "=?base64?c3FsX2VjaG8?="), 400, -32020),
        ("an unknown version", unknown.clone().header(VERSION, "1900-01-01"), 400, -32022),
        ("an unknown version in the body only", unknown, 400, -32020),
        (
            "a later version",
            with_body(modern(LIST, ""), body(LIST, &meta("\"2027-01-01\""))).header(VERSION, "2027-01-01"),
            400,
            -32022,
        ),
        (
            "the legacy version, made modern by _meta",
            with_body(modern(LIST, ""), body(LIST, &meta("\"2025-11-25\""))).header(VERSION, "2025-11-25"),
            400,
            -32022,
        ),
    ]
}

fn meta_cases() -> Vec<Case> {
    let with_meta = |meta: &str| with_body(modern(LIST, ""), body(LIST, meta));
    let version = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#;
    let no_params = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    vec![
        ("without params", with_body(modern(LIST, ""), no_params.into()), 400, -32602),
        ("with an empty _meta", with_meta("{}"), 400, -32602),
        ("with a _meta that is no object", with_meta("[]"), 400, -32602),
        ("with a version that is no string", with_meta(&meta("20260728")), 400, -32602),
        ("without the capabilities", with_meta(&format!("{{{version}}}")), 400, -32602),
        (
            "with capabilities that are no object",
            with_meta(&format!(r#"{{{version},"io.modelcontextprotocol/clientCapabilities":[]}}"#)),
            400,
            -32602,
        ),
        ("with the version twice", with_meta(&format!("{{{version},{version}}}")), 400, -32602),
        (
            "with what nobody knows",
            with_meta(&meta("\"2026-07-28\"").replacen('{', r#"{"x.y/z":1e2,"#, 1)),
            200,
            0,
        ),
        (
            "params that are an array",
            with_body(
                modern(LIST, ""),
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[1]}"#.into(),
            ),
            200,
            -32602,
        ),
        ("a cursor that was never given", modern(LIST, r#""cursor":"x""#), 200, -32602),
        (
            "discover without any header of MCP",
            with_body(modern("server/discover", ""), body("server/discover", "{}")).without(VERSION),
            400,
            -32020,
        ),
    ]
}

fn method_cases() -> Vec<Case> {
    let absent = [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "prompts/list",
        "subscriptions/listen",
        "tools/nope",
        "",
    ];
    let mut cases: Vec<Case> =
        absent.map(|method| ("an absent method", modern(method, ""), 404, -32601)).into();
    let response = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    cases.push(("a response of the client", with_body(modern(LIST, ""), response.into()), 400, -32600));
    cases
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_of_headers_meta_and_methods_holds() {
    let server = Harness::start().await;
    for (what, ask, status, code) in header_cases().into_iter().chain(meta_cases()).chain(method_cases()) {
        let got = server.send(&ask).await;
        assert_eq!((got.status, got.code()), (status, code), "{what}: {got:?}");
        assert_eq!(
            got.json()["id"],
            if what == "a response of the client" { Value::Null } else { json!(1) },
            "{what}"
        );
        assert_eq!(got.header("content-type"), "application/json", "{what}");
        assert_eq!(got.header("cache-control"), "no-store", "{what}");
        assert!(got.headers.get("mcp-session-id").is_none(), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsupported_version_is_answered_with_those_that_are() {
    let server = Harness::start().await;
    let ask = with_body(modern(LIST, ""), body(LIST, &meta("\"1900-01-01\""))).header(VERSION, "1900-01-01");
    let data = &server.send(&ask).await.json()["error"]["data"];
    assert_eq!(data["supported"], json!(["2026-07-28", "2025-11-25"]));
    assert_eq!((&data["requested"], &data["code"]), (&json!("1900-01-01"), &json!("unsupported_version")));
}

#[tokio::test(flavor = "multi_thread")]
async fn discover_says_what_is_served() {
    let server = Harness::start().await;
    let result = server.send(&modern("server/discover", "")).await.result();
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["supportedVersions"], json!(["2026-07-28", "2025-11-25"]));
    assert_eq!(result["capabilities"], json!({ "tools": {} }));
    assert!(result["instructions"].as_str().unwrap().contains("list_connections"));
    assert_eq!((&result["cacheScope"], result["ttlMs"].is_u64()), (&json!("private"), true));
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "annals");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_the_personas_sorted_and_always_the_same_bytes() {
    let server = Harness::start().await;
    let got = server.send(&modern(LIST, "")).await;
    let result = got.result();
    let names = |result: &Value| -> Vec<String> {
        let tools = result["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&result), ["sql_echo", "test_fail", "test_panic", "test_panic_in_parse", "test_slow"]);
    assert_eq!(result["tools"][0]["inputSchema"]["type"], "object");
    assert_eq!((&result["resultType"], &result["cacheScope"]), (&json!("complete"), &json!("private")));
    assert_eq!(server.send(&modern(LIST, "")).await.body, got.body);
    assert_eq!(names(&server.send(&modern(LIST, "").key(BOB)).await.result()), ["sql_echo"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_and_results_pass_as_bytes() {
    let server = Harness::start().await;
    let arguments = r#"{"b": 123456789012345678901234567890, "a":1.0e2,"q":"\u00e9 é \" \\ 𝄞","z":[ ]}"#;
    let got = server.send(&modern_call("sql_echo", arguments)).await;
    assert!(got.body.contains(&format!(r#""structuredContent":{{"echo":{arguments}}}"#)), "{}", got.body);
    let result = got.result();
    assert_eq!(result["content"][0]["text"], format!("{{\"echo\":{arguments}}}"));
    assert_eq!((&result["isError"], &result["resultType"]), (&json!(false), &json!("complete")));
    let (kind, ending) = server.endings().await.remove(0);
    assert_eq!(kind, Kind::ToolCallCompleted);
    assert_eq!(result["_meta"]["io.annals/call_id"], ending.call.call_id.to_string());
    assert_eq!((ending.call.protocol_version.as_str(), ending.call.session_id), ("2026-07-28", None));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_peer_is_and_claims_is_recorded_as_received() {
    let server = Harness::start().await;
    let ask =
        modern_call("sql_echo", "{}").header("user-agent", "wire/1").header("x-forwarded-for", "9.9.9.9");
    let meta = META.replacen('{', r#"{"odd.example/x":[1e2, 123456789012345678901],"#, 1);
    let ask = with_body(ask.clone(), ask.body.replace(META, &meta)).header("mcp-session-id", "ignored");
    assert_eq!(server.send(&ask).await.code(), 0);
    let event = server.until_recorded(Kind::ToolCallCompleted).await;
    let personal = event.personal.unwrap();
    assert_eq!(personal.client_ip.as_deref(), Some("127.0.0.1"));
    assert_eq!(personal.user_agent.as_deref(), Some("wire/1"));
    let claimed = format!(r#"{{{meta},"headers":{{"x-forwarded-for":"9.9.9.9"}}}}"#);
    assert_eq!(personal.asserted.unwrap().get(), claimed);
    let Facts::Terminal(_, terminal) = event.facts else { panic!() };
    assert_eq!(terminal.call.session_id, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_client_has_cancelled_its_call() {
    let server = Harness::start().await;
    let slow = modern_call("test_slow", "{}");
    tokio::select! {
        got = server.send(&slow) => panic!("answered: {got:?}"),
        () = server.until_started(1) => {}
    }
    let event = server.until_recorded(Kind::ToolCallCancelled).await;
    let Facts::Terminal(_, terminal) = event.facts else { panic!() };
    assert_eq!(terminal.outcome.error.unwrap().code, "cancelled_by_caller");
    assert_eq!(server.endings().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_request_ids_are_different_requests() {
    let server = Harness::start().await;
    let slow = modern_call("test_slow", "{}");
    let (one, two, ()) = soon("both answers", async {
        tokio::join!(server.send(&slow), server.send(&slow), async {
            server.until_started(2).await;
            server.go_on.send_replace(true);
        })
    })
    .await;
    assert_eq!((one.code(), two.code()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_nothing_to_get_or_delete() {
    let server = Harness::start().await;
    for method in ["GET", "DELETE", "PUT", "PATCH", "HEAD"] {
        let got = server.send(&Ask::get("/mcp").method(method).header(VERSION, "2026-07-28")).await;
        assert_eq!((got.status, got.header("allow")), (405, "POST"), "{method}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_is_taken_and_does_nothing() {
    let server = Harness::start().await;
    let body = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":1,{META}}}}}"#
    );
    let got = server.send(&with_body(modern("notifications/cancelled", ""), body)).await;
    assert_eq!((got.status, got.body.as_str()), (202, ""));
}
