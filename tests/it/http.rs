//! The HTTP side: who is let in, limits, health, and routes that are not MCP.

use std::time::Duration;

use annals::http::{ListenerLimits, StoreState};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::faulty_log::Fault;
use crate::mcp::harness::{ANN, Ask, Harness, Setup, modern, soon};

const LIST: &str = "tools/list";

/// Sends bytes and gives all that comes back until the server closes.
async fn raw(server: &Harness, bytes: &str) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    soon("the end of the connection", stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_hosts_and_pages_are_refused_everywhere_but_on_health() {
    let http = annals::config::Http {
        allowed_hosts: vec!["annals.example".into()],
        allowed_origins: vec!["https://app.example".into()],
        ..annals::config::Http::default()
    };
    let server = Harness::start_with(Setup { http, ..Setup::default() }).await;
    let cases = [
        ("no origin", None, None, true),
        ("a loopback page", None, Some("http://localhost:6274"), true),
        ("a page of the config", None, Some("https://app.example"), true),
        ("a foreign page", None, Some("https://evil.example"), false),
        ("a page without origin", None, Some("null"), false),
        ("a host of the config", Some("annals.example:8080"), None, true),
        ("a loopback name", Some("localhost:1"), None, true),
        ("a rebound name", Some("evil.example"), None, false),
        ("a name that starts well", Some("localhost.evil.example"), None, false),
    ];
    let routes = ["/mcp", "/", "/api/v1/admin/audit/events", "/robots.txt", "/nope"];
    let mut refused = 1;
    for (what, host, origin, allowed) in cases {
        for path in routes.iter().chain(&["/healthz", "/readyz"]) {
            let base = if matches!(*path, "/mcp" | "/") { modern(LIST, "") } else { Ask::get("") };
            let mut ask = base.path(path);
            ask = host.into_iter().fold(ask, |ask, host| ask.header("host", host));
            ask = origin.into_iter().fold(ask, |ask, origin| ask.header("origin", origin));
            let got = server.send(&ask).await;
            refused += usize::from(matches!(got.status, 403 | 404));
            let open = routes.contains(path);
            assert_eq!(got.status == 403, open && !allowed, "{what} {path}: {got:?}");
            if got.status == 403 {
                let mcp = matches!(*path, "/mcp" | "/");
                assert_eq!(if mcp { got.code() } else { 1403 }, 1403, "{what} {path}");
                let code = if mcp {
                    got.json()["error"]["data"]["code"].clone()
                } else {
                    got.json()["error"]["code"].clone()
                };
                let expected = if host.is_some() { "host_not_allowed" } else { "origin_not_allowed" };
                assert_eq!(code, expected, "{what} {path}");
            }
        }
    }
    let answer = raw(&server, "GET /nope HTTP/1.1\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    // Only what was let in reached the gate: one read of the audit for each allowed case; all else left its refusal.
    let kinds: Vec<_> = server.events().await.iter().map(|event| event.kind).collect();
    let count = |kind| kinds.iter().filter(|found| **found == kind).count();
    let allowed = cases.iter().filter(|case| case.3).count();
    let expected = (allowed, refused, allowed + refused);
    let (reads, refusals) = (annals::event::Kind::AdminAuditQueried, annals::event::Kind::RequestRefused);
    assert_eq!((count(reads), count(refusals), kinds.len()), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_are_served_may_read_the_answers() {
    let server = Harness::start().await;
    let page = "http://localhost:6274";
    let ask = modern(LIST, "").header("origin", page);
    let got = server.send(&ask).await;
    assert_eq!(
        (got.status, got.header("access-control-allow-origin"), got.header("vary")),
        (200, page, "origin")
    );
    assert!(got.header("access-control-expose-headers").contains("mcp-session-id"));
    assert_eq!(server.send(&modern(LIST, "")).await.header("access-control-allow-origin"), "");
    let question = |origin: &str| {
        let ask = Ask::get("/mcp").method("OPTIONS").without("authorization").header("origin", origin);
        ask.header("access-control-request-method", "POST")
    };
    let got = server.send(&question(page)).await;
    assert_eq!((got.status, got.header("access-control-allow-origin")), (204, page));
    for name in
        ["authorization", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id", "content-type"]
    {
        assert!(got.header("access-control-allow-headers").contains(name), "{name}");
    }
    let got = server.send(&question("https://evil.example")).await;
    assert_eq!((got.status, got.header("access-control-allow-origin")), (403, ""));
    let events = server.events().await;
    let [annals::event::Facts::RequestRefused(refused)] =
        &events.iter().map(|e| e.facts.clone()).collect::<Vec<_>>()[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(refused.reason, "origin_not_allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_413_announced_or_not() {
    let server = Harness::start_with(Setup { body_bytes_max: 1_000, ..Setup::default() }).await;
    let fits = Ask { body: "x".repeat(1_000), ..modern(LIST, "") };
    assert_eq!(server.send(&fits).await.code(), -32700);
    let over = Ask { body: "x".repeat(1_001), ..modern(LIST, "") };
    let got = server.send(&over).await;
    assert_eq!((got.status, got.code()), (413, 1413), "{got:?}");
    assert_eq!(got.json()["error"]["data"]["code"], "body_too_large");
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ANN}\r\n\
         Content-Type: application/json\r\nConnection: close\r\n"
    );
    let chunked =
        format!("{head}Transfer-Encoding: chunked\r\n\r\n3e9\r\n{}\r\n0\r\n\r\n", "x".repeat(1_001));
    let answer = raw(&server, &chunked).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn media_types_are_json() {
    let server = Harness::start().await;
    for (what, ask, status) in [
        ("no type", modern(LIST, "").without("content-type"), 415),
        ("another type", modern(LIST, "").header("content-type", "text/plain"), 415),
        ("with a charset", modern(LIST, "").header("content-type", "application/json; charset=utf-8"), 200),
        ("no accept", modern(LIST, "").without("accept"), 200),
        ("accepts all", modern(LIST, "").header("accept", "*/*"), 200),
        ("accepts no JSON", modern(LIST, "").header("accept", "text/event-stream"), 406),
    ] {
        let got = server.send(&ask).await;
        assert_eq!((got.status, got.code() == 0), (status, status == 200), "{what}: {got:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_the_process_and_readiness_the_log() {
    let server = Harness::start().await;
    let anonymous = |path: &str| Ask::get(path).without("authorization");
    assert_eq!(server.send(&anonymous("/healthz").method("POST")).await.status, 405);
    let ready = async || {
        let got = server.send(&anonymous("/readyz")).await;
        (got.status, got.json())
    };
    assert_eq!(ready().await, (200, json!({ "status": "ready", "log": "accepting", "store": "ok" })));
    server.store.send_replace(StoreState::Degraded);
    assert_eq!(ready().await, (200, json!({ "status": "ready", "log": "accepting", "store": "degraded" })));
    server.store.send_replace(StoreState::Starting);
    annals::log::Log::close(&*server.log).await.unwrap();
    assert_eq!(
        ready().await,
        (
            503,
            json!({
                "status": "not_ready",
                "log": "refusing",
                "log_refuses_because": "the log is closed",
                "store": "starting"
            })
        )
    );
    assert_eq!(server.send(&anonymous("/healthz")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_paths_answer_in_json() {
    let server = Harness::start().await;
    for path in ["/nope", "/mcp/", "/mcp/x", "/api", "/metrics", "/api/v1/admin/audit"] {
        let got = server.send(&Ask::get(path)).await;
        assert_eq!(
            (got.status, got.json()["error"]["code"].as_str()),
            (404, Some("route_not_found")),
            "{path}"
        );
        for member in ["category", "message", "hint"] {
            assert!(got.json()["error"][member].is_string(), "{path}");
        }
    }
    let got = server.send(&Ask::get("/api/v1/admin/audit/events").method("POST")).await;
    assert_eq!((got.status, got.header("allow")), (405, "GET"));
    assert_eq!(got.json()["error"]["code"], "method_not_allowed");
    let got = server.send(&Ask::get("/robots.txt").without("authorization")).await;
    assert_eq!((got.status, got.body.as_str()), (200, "User-agent: *\nDisallow: /\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_and_a_slow_head_are_given_up() {
    let listener = ListenerLimits { head_timeout: Duration::from_millis(200), ..ListenerLimits::default() };
    let setup = Setup { listener, body_timeout: Duration::from_millis(200), ..Setup::default() };
    let server = Harness::start_with(setup).await;
    let head = |authorization: &str| {
        format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Type: application/json\r\n\
             Content-Length: 10\r\nConnection: close\r\n\r\n{{"
        )
    };
    let answer = raw(&server, &head("")).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "nobody unknown is waited for: {answer}");
    let head = head(&format!("Authorization: Bearer {ANN}\r\n"));
    let answer = raw(&server, &head).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    raw(&server, "GET /healthz HTT").await;
    raw(&server, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_over_the_limit_wait_for_a_place() {
    let listener = ListenerLimits { connections_max: 1, ..ListenerLimits::default() };
    let server = Harness::start_with(Setup { listener, ..Setup::default() }).await;
    let ask = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut first = TcpStream::connect(server.address).await.unwrap();
    first.write_all(ask.as_bytes()).await.unwrap();
    let mut start = [0; 15];
    soon("the first answer", first.read_exact(&mut start)).await.unwrap();
    let mut second = TcpStream::connect(server.address).await.unwrap();
    second.write_all(ask.as_bytes()).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(300), second.read_exact(&mut start)).await;
    assert!(early.is_err(), "a second connection was served");
    drop(first);
    soon("the second answer", second.read_exact(&mut start)).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_over_the_limit_is_refused() {
    let listener = ListenerLimits { head_bytes_max: 8_192, ..ListenerLimits::default() };
    let server = Harness::start_with(Setup { listener, ..Setup::default() }).await;
    let start = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Big: ";
    let answer = raw(&server, &format!("{start}{}", "x".repeat(8_192 - start.len()))).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_and_never_reads_holds_no_connection() {
    let listener = ListenerLimits {
        connections_max: 1,
        write_timeout: Duration::from_millis(300),
        ..ListenerLimits::default()
    };
    let server = Harness::start_with(Setup { listener, ..Setup::default() }).await;
    let mut deaf = TcpStream::connect(server.address).await.unwrap();
    let asks = b"GET /robots.txt HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(1_000);
    // Answers fill the buffers of both ends; then the server takes no more, until it closes the connection.
    soon("the end of the deaf client's connection", async { while deaf.write_all(&asks).await.is_ok() {} })
        .await;
    assert_eq!(server.send(&Ask::get("/healthz")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_have_a_listener_of_their_own() {
    let mut registry = prometheus_client::registry::Registry::default();
    let counter = prometheus_client::metrics::counter::Counter::<u64>::default();
    registry.register("annals_test_things", "Things.", counter.clone());
    counter.inc();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, tasks) = (tokio_util::sync::CancellationToken::new(), annals::base::Tasks::new());
    let serving = annals::http::serve(listener, annals::http::metrics_router(registry.into()), stop.clone());
    tasks.spawn("metrics", async { serving.await.unwrap() });
    let got = reqwest::get(format!("http://{address}/metrics")).await.unwrap();
    assert_eq!(got.status(), 200);
    let content_type = got.headers()["content-type"].to_str().unwrap().to_owned();
    assert_eq!(content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = got.text().await.unwrap();
    assert!(text.contains("annals_test_things_total 1") && text.ends_with("# EOF\n"), "{text}");
    assert_eq!(reqwest::get(format!("http://{address}/mcp")).await.unwrap().status(), 404);
    stop.cancel();
    soon("the end of the listener", tasks.join()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_is_read_by_those_who_may_once_it_is_recorded() {
    use crate::mcp::harness::{BOB, CARL};
    use annals::event::{Facts, Kind};
    let server = Harness::start().await;
    let events = "/api/v1/admin/audit/events";
    let count = format!("{events}/count");
    let one = format!("{events}/0198c0de-0000-7000-8000-000000000000");
    for (what, ask, status, code) in [
        ("no key", Ask::get(events).without("authorization"), 401, "missing"),
        ("a persona that may not", Ask::get(events).key(BOB), 403, "audit_not_allowed"),
        ("a persona that may not, one event", Ask::get(&one).key(BOB), 403, "audit_not_allowed"),
        ("an unknown parameter", Ask::get(&format!("{events}?nope=1")), 400, "bad_parameter"),
        ("a persona that may not, a count", Ask::get(&count).key(BOB), 403, "audit_not_allowed"),
        ("a count of a page", Ask::get(&format!("{count}?limit=5")), 400, "bad_parameter"),
        ("the store is away, a count", Ask::get(&count), 503, "store_unavailable"),
        ("no UUID", Ask::get(&format!("{events}/7")), 400, "bad_event_id"),
        ("no text", Ask::get(&format!("{events}/%ff")), 400, "bad_event_id"),
        ("the store is away", Ask::get(&format!("{events}?limit=5")).key(CARL), 503, "store_unavailable"),
        ("the store is away, one event", Ask::get(&one), 503, "store_unavailable"),
    ] {
        let got = server.send(&ask).await;
        assert_eq!(
            (got.status, got.json()["error"]["code"].as_str()),
            (status, Some(code)),
            "{what}: {got:?}"
        );
        assert_eq!(got.header("www-authenticate"), if status == 401 { "Bearer" } else { "" }, "{what}");
        assert_eq!(got.header("retry-after").is_empty(), status != 503, "{what}");
        assert!(got.json().get("data").is_none(), "{what}");
    }
    let queried = server.events().await.into_iter().filter_map(|event| match event.facts {
        Facts::AuditQueried(queried) if event.kind == Kind::AdminAuditQueried => {
            Some((queried.subject_id, queried.view, queried.authorized))
        }
        _ => None,
    });
    let mut queried: Vec<_> = queried.collect();
    queried.sort();
    let of = |who: &str, view: &str, authorized| (who.to_owned(), view.to_owned(), authorized);
    let expected = [
        of("sub-ann", "count", true),
        of("sub-ann", "event", true),
        of("sub-bob", "count", false),
        of("sub-bob", "event", false),
        of("sub-bob", "events", false),
        of("sub-carl", "events", true),
    ];
    assert_eq!(queried, expected);
    server.log.set(Fault::Refuse);
    let got = server.send(&Ask::get(events).key(ANN)).await;
    assert_eq!((got.status, got.json()["error"]["code"].as_str()), (503, Some("log_unavailable")));
}
