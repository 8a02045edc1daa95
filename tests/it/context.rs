//! What a caller says of itself: it decides nothing, stands under `asserted` only, and its trace can be followed.

use std::io::Write;
use std::sync::{Arc, Mutex};

use annals::base::sha256_hex;
use annals::event::{Decoded, Facts, Kind, Terminal, TopicPartition, partition_of};
use annals::http::ListenerLimits;
use annals::log::Log;
use serde_json::{Value, json};

use crate::harness::{Caller, Home, MODERN};
use crate::mcp::harness::{ANN, Ask, BOB, Harness, Setup, initialize, legacy, modern_call, soon};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const OTHER_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "00f067aa0ba902b7";

fn traceparent(trace: &str) -> String {
    format!("00-{trace}-{SPAN}-01")
}

/// What every forged header and member holds, so that it can be looked for.
const FORGED: &str = "forged-root";

const HEADERS: [&str; 9] = [
    "baggage",
    "tracestate",
    "x-user",
    "x-authenticated-user",
    "x-forwarded-for",
    "x-real-ip",
    "x-annals-persona",
    "x-session-id",
    "forwarded",
];

fn forged(ask: Ask) -> Ask {
    let value = format!("user={FORGED}, 203.0.113.5");
    let ask = HEADERS.into_iter().fold(ask, |ask, name| ask.header(name, &value));
    ask.header("traceparent", &traceparent(TRACE)).header("x-api-key-id", FORGED)
}

fn forged_meta() -> String {
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": FORGED, "version": "1" },
        "subject_id": FORGED, "persona": FORGED, "session_id": FORGED, "call_id": FORGED,
        "io.annals/principal": { "roles": [FORGED, "admin"] },
    })
    .to_string()
}

fn call(tool: &str, meta: &str) -> Ask {
    let params = format!(r#"{{"name":"{tool}","arguments":{{}},"_meta":{meta}}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    Ask { body, ..modern_call(tool, "{}") }
}

/// All events with where they stand and their body.
async fn stored(server: &Harness) -> Vec<(u32, Decoded, Value)> {
    let all: Vec<_> = TopicPartition::all().map(|target| (target, None)).collect();
    let mut reader = server.log.reader(&all).unwrap();
    let mut events = Vec::new();
    loop {
        let batch = reader.next_ready(100).await.unwrap();
        if batch.is_empty() {
            return events;
        }
        for stored in batch {
            let target = stored.frame.target;
            let body: Value = serde_json::from_slice(&stored.frame.body).unwrap();
            events.push((target.partition, Decoded::read(target.topic, &stored.frame.body).unwrap(), body));
        }
    }
}

/// The body without what is asserted, as text.
fn without_asserted(body: &Value) -> String {
    let mut personal: Value =
        serde_json::from_str(body["data"]["personal"]["bytes"].as_str().unwrap()).unwrap();
    personal.as_object_mut().unwrap().remove("asserted");
    format!("{} {personal}", body["data"]["facts"])
}

fn asserted(event: &Decoded) -> Value {
    let personal = event.personal.as_ref().unwrap();
    personal.asserted.as_ref().map_or(Value::Null, |raw| serde_json::from_str(raw.get()).unwrap())
}

/// What was decided of a call, without what differs between any two calls.
fn decision(facts: &Facts) -> Option<(Kind, Value)> {
    let Facts::Terminal(kind, Terminal { call, authorized, outcome }) = facts else { return None };
    let mut call = serde_json::to_value(call).unwrap();
    for name in ["call_id", "received_at", "trace_id", "session_id"] {
        call.as_object_mut().unwrap().remove(name);
    }
    Some((*kind, json!([call, authorized, outcome.error, outcome.response_bytes])))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_forged_decides_nothing_and_stands_under_asserted_only() {
    let server = Harness::start().await;
    let plain = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    for (tool, key) in [("sql_echo", ANN), ("sql_echo", BOB), ("test_fail", BOB), ("test_fail", ANN)] {
        let honest = server.send(&call(tool, plain).key(key)).await;
        let lying = server.send(&forged(call(tool, &forged_meta())).key(key)).await;
        assert_eq!(honest.status, lying.status, "{tool}");
        let session = server.session(key).await;
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{{}},"_meta":{{"sessionId":"{FORGED}"}}}}}}"#
        );
        server.send(&forged(legacy(&session, &body)).key(key)).await;
    }
    let nobody = server.send(&forged(call("sql_echo", &forged_meta())).without("authorization")).await;
    assert_eq!(nobody.status, 401);

    let events = stored(&server).await;
    let mut decisions: Vec<(Kind, Value)> =
        events.iter().filter_map(|event| decision(&event.1.facts)).collect();
    assert_eq!(decisions.len(), 12);
    decisions.sort_by_key(|(kind, facts)| format!("{kind} {facts}"));
    for same in decisions.chunks(3) {
        // The revision is what the three may differ in.
        let facts = |at: usize| same[at].1.to_string().replace("2025-11-25", MODERN);
        assert_eq!((same[0].0, facts(0)), (same[1].0, facts(1)));
        assert_eq!((same[0].0, facts(0)), (same[2].0, facts(2)));
    }
    for (partition, event, body) in &events {
        assert!(!without_asserted(body).contains(FORGED), "{body}");
        assert!(!without_asserted(body).contains("203.0.113.5"), "{body}");
        if let Facts::Terminal(_, Terminal { call, .. }) = &event.facts {
            let key = call.session_id.clone().unwrap_or_else(|| call.call_id.to_string());
            assert_eq!(*partition, partition_of(&key), "the key is the session's or the call's id");
            assert_eq!(call.session_id.is_some(), call.protocol_version != MODERN);
            let asserted = asserted(event);
            if call.trace_id.is_some() {
                for name in HEADERS {
                    let value = format!("user={FORGED}, 203.0.113.5");
                    assert_eq!(asserted["headers"][name], value, "{name}");
                }
                assert_eq!(asserted["headers"].get("x-api-key-id"), None);
                assert!(asserted["_meta"].to_string().contains(FORGED));
            } else {
                assert_eq!(asserted.get("headers"), None);
            }
        }
    }
    let failed = events.iter().find(|event| event.1.kind == Kind::AuthFailed).unwrap();
    assert_eq!(asserted(&failed.1)["headers"]["x-user"], format!("user={FORGED}, 203.0.113.5"));
    assert_eq!(failed.1.personal.as_ref().unwrap().client_ip.as_deref(), Some("127.0.0.1"));
}

fn behind(proxies: &[&str], header: annals::config::ForwardedHeader) -> Setup {
    let http = annals::config::Http {
        trusted_proxies: proxies.iter().map(|&net| net.into()).collect(),
        forwarded_header: header,
        ..annals::config::Http::default()
    };
    Setup { http, listener: ListenerLimits::default(), ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_is_the_nearest_that_is_no_trusted_proxy_and_everything_uses_that_one() {
    use annals::config::ForwardedHeader::{Forwarded, XForwardedFor};
    let loopback = &["127.0.0.0/8", "10.0.0.0/8"][..];
    for (proxies, header, name, value, expected) in [
        (&[][..], XForwardedFor, "x-forwarded-for", "203.0.113.9", "127.0.0.1"),
        (&[], Forwarded, "forwarded", "for=203.0.113.9", "127.0.0.1"),
        (&["192.0.2.1"], XForwardedFor, "x-forwarded-for", "203.0.113.9", "127.0.0.1"),
        (loopback, XForwardedFor, "x-forwarded-for", "1.1.1.1, 203.0.113.9, 10.0.0.1", "203.0.113.9"),
        (loopback, XForwardedFor, "x-forwarded-for", "[2001:db8::7]:443", "2001:db8::7"),
        (loopback, XForwardedFor, "x-forwarded-for", "203.0.113.9, nonsense, 10.0.0.1", "10.0.0.1"),
        (loopback, XForwardedFor, "forwarded", "for=203.0.113.9", "127.0.0.1"),
        (loopback, Forwarded, "x-forwarded-for", "203.0.113.9", "127.0.0.1"),
        (
            loopback,
            Forwarded,
            "forwarded",
            "for=1.1.1.1, for=\"[2001:db8::7]:443\";proto=https",
            "2001:db8::7",
        ),
        (loopback, Forwarded, "forwarded", "for=203.0.113.9, for=_hidden", "127.0.0.1"),
    ] {
        let server = Harness::start_with(behind(proxies, header)).await;
        let with = |ask: Ask| ask.header(name, value);
        server.send(&with(modern_call("sql_echo", "{}"))).await.result();
        server.send(&with(modern_call("test_fail", "{}").key(BOB))).await;
        assert_eq!(
            server.send(&with(modern_call("sql_echo", "{}")).without("authorization")).await.status,
            401
        );
        server.send(&with(Ask::get("/api/v1/admin/audit/events"))).await;
        let events = stored(&server).await;
        let what = format!("{proxies:?} {name}: {value}");
        assert_eq!(events.len(), 5, "{what}");
        let trusted = proxies == loopback;
        for (partition, event, _) in &events {
            let personal = event.personal.as_ref().unwrap();
            assert_eq!(personal.client_ip.as_deref(), Some(expected), "{what}: {}", event.kind);
            let asserted = asserted(event).to_string();
            assert_eq!(asserted.contains(name), !trusted, "{what}: {}: {asserted}", event.kind);
            if event.kind == Kind::AuthFailed {
                let network = match expected.parse().unwrap() {
                    std::net::IpAddr::V4(ip) => hex::encode(&ip.octets()[..3]),
                    std::net::IpAddr::V6(ip) => hex::encode(&ip.octets()[..6]),
                };
                assert_eq!(*partition, partition_of(&sha256_hex(network.as_bytes())), "{what}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_is_that_of_the_message_else_that_of_the_header_and_never_an_invalid_one() {
    let server = Harness::start().await;
    let zeros = traceparent(&"0".repeat(32));
    let (good, other) = (traceparent(TRACE), traceparent(OTHER_TRACE));
    for (in_meta, in_header, expected) in [
        (None, None, None),
        (Some(json!(good)), None, Some(TRACE)),
        (None, Some(vec![good.as_str()]), Some(TRACE)),
        (Some(json!(good)), Some(vec![other.as_str()]), Some(TRACE)),
        (Some(json!(zeros)), Some(vec![other.as_str()]), Some(OTHER_TRACE)),
        (Some(json!(zeros)), None, None),
        (Some(json!(7)), None, None),
        (Some(json!({ "a": good })), None, None),
        (Some(json!(good.to_uppercase())), None, None),
        (None, Some(vec![zeros.as_str()]), None),
        (None, Some(vec![good.as_str(), other.as_str()]), None),
        (None, Some(vec!["ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"]), None),
        (None, Some(vec!["01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"]), Some(TRACE)),
    ] {
        let mut meta: Value = serde_json::from_str(&forged_meta()).unwrap();
        if let Some(in_meta) = &in_meta {
            meta["traceparent"] = in_meta.clone();
        }
        let mut ask = call("sql_echo", &meta.to_string());
        for value in in_header.iter().flatten() {
            ask = ask.also("traceparent", value);
        }
        let answer = server.send(&ask).await.result();
        let id = answer["_meta"]["io.annals/call_id"].as_str().unwrap().to_owned();
        let mut seen = 0;
        for event in server.events().await {
            let call = match &event.facts {
                Facts::Requested(requested) => &requested.call,
                Facts::Terminal(_, terminal) => &terminal.call,
                _ => continue,
            };
            if call.call_id.to_string() == id {
                seen += 1;
                assert_eq!(call.trace_id.as_deref(), expected, "{in_meta:?} {in_header:?}");
                let asserted = asserted(&event);
                assert_eq!(asserted["_meta"].get("traceparent"), in_meta.as_ref());
                let header = in_header.as_ref().map(|values| json!(values.join(", ")));
                assert_eq!(asserted["headers"].get("traceparent"), header.as_ref());
            }
        }
        assert_eq!(seen, 2, "intent and outcome");
    }
    // Under 2025-11-25 too.
    let opened = server.send(&initialize()).await;
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"test_fail","_meta":{{"traceparent":"{other}"}}}}}}"#
    );
    server.send(&legacy(opened.header("mcp-session-id"), &body)).await;
    let failed = server.until_recorded(Kind::ToolCallFailed).await;
    let Facts::Terminal(_, terminal) = failed.facts else { panic!("{:?}", failed.kind) };
    assert_eq!(terminal.call.trace_id.as_deref(), Some(OTHER_TRACE));
}

/// Log lines as JSON, as `annals serve --log-json` writes them.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn read(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// On one thread, so that the subscriber of this thread sees all of the server.
#[tokio::test]
async fn log_lines_within_a_call_carry_its_id_and_its_trace() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_env_filter("error")
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Harness::start().await;
    let ask = modern_call("test_panic", "{}").header("traceparent", &traceparent(TRACE));
    let answer = soon("an answer", server.send(&ask)).await.json();
    let id = crate::harness::call_id(&answer).unwrap().to_owned();
    let line = lines.read().into_iter().find(|line| line["fields"]["message"] == "a tool panicked").unwrap();
    assert_eq!(
        line["span"],
        json!({
            "name": "tool_call", "call.id": id, "tool.name": "test_panic", "trace.id": TRACE,
            "trace.parent_id": SPAN,
        })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_found_by_their_trace() {
    let home = Home::new();
    let server = home.serve(&[]);
    let caller = Caller::new(&server);
    caller.call("platform_info", json!({})).await.unwrap();
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "platform_info", "arguments": {}, "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            "traceparent": traceparent(TRACE) } }
    });
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = http
        .post(format!("{}/mcp", server.url))
        .bearer_auth(&server.admin_key)
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", MODERN)
        .header("mcp-method", "tools/call")
        .header("mcp-name", "platform_info")
        .header("x-user", FORGED)
        .json(&body)
        .send()
        .await
        .unwrap();
    let answer: Value = answer.json().await.unwrap();
    let id = crate::harness::call_id(&answer).unwrap();
    let path = format!("/api/v1/admin/audit/events?trace_id={TRACE}");
    let found = caller
        .get_until(&path, |page| page["data"].as_array().filter(|rows| !rows.is_empty()).cloned())
        .await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0]["id"].as_str(), found[0]["trace_id"].as_str()), (Some(id), Some(TRACE)));
    assert!(!found[0].to_string().contains(FORGED));
    let none = caller.get(&format!("/api/v1/admin/audit/events?trace_id={OTHER_TRACE}")).await.unwrap();
    assert_eq!((none.0, none.1["data"].as_array().map(Vec::len)), (200, Some(0)));
    let bad = caller.get("/api/v1/admin/audit/events?trace_id=4BF9").await.unwrap();
    assert_eq!((bad.0, bad.1["error"]["code"].as_str()), (400, Some("bad_parameter")));
    drop(server);
}
