//! The table of refusals, row by row: each input that fires one leaves exactly the event that the row promises.
//!
//! The inputs are one list. What a transport-neutral input says is [`Input::text`]; a transport that is not HTTP sends that.

mod strained;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use annals::base::{Clock, SystemClock};
use annals::event::{Decoded, Facts, Kind, Topic, Transport};
use annals::http::Route;
use annals::refusal::{Reason, Recorded, Row, Rpc, Surface};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::faulty_log::Fault;
use crate::harness::{ADMIN_KEY, Home, PATIENCE, Server};
use crate::mcp::harness::{ANN, Ask, BOB, Harness, initialize, legacy, modern, modern_call};
use crate::reading;
use crate::stdio::Process;

const EVENTS: &str = "/api/v1/admin/audit/events";
const MODERN: &str = "2026-07-28";
const BODY_BYTES_MAX: usize = 100_000;

/// What fires a row.
enum Input {
    /// One message that stands alone, the same on every transport.
    Message(String),
    /// One message inside a session of 2025-11-25, the same on every transport.
    InSession(String),
    /// Messages of a stdio process, of which the last fires the row.
    OverStdio(&'static [&'static str]),
    /// A whole HTTP request.
    Http(Ask),
    /// As the last, with the key made for somebody.
    HttpAs(Who, Ask),
    /// Bytes on a connection.
    Bytes(String),
    /// A request to the metrics listener: its method and path.
    Metrics(&'static str, &'static str),
    /// It needs a server under strain: [`strained`] fires it, and checks that each such row was fired.
    Strained,
    /// It needs a fault, a race or limits of its own: the test that has them.
    Elsewhere(&'static str),
    /// Nothing can bring it about on purpose, and why.
    Never(&'static str),
}

/// Whose key is used.
#[derive(Debug, Clone, Copy)]
enum Who {
    Revoked,
    Expired,
    Auditor,
    Analyst,
    Narrow,
}

impl Input {
    /// What any transport of MCP can send to fire the row: the text of the message, and whether it needs a session.
    fn text(&self) -> Option<(&str, bool)> {
        match self {
            Self::Message(text) => Some((text, false)),
            Self::InSession(text) => Some((text, true)),
            Self::Http(_)
            | Self::OverStdio(_)
            | Self::HttpAs(..)
            | Self::Bytes(_)
            | Self::Metrics(..)
            | Self::Strained
            | Self::Elsewhere(_)
            | Self::Never(_) => None,
        }
    }
}

/// A message of 2026-07-28; `members` stand in `params` before `_meta`.
fn message(method: &str, members: &str) -> Input {
    Input::Message(modern(method, members).body)
}

fn call(tool: &str, arguments: &Value) -> Input {
    Input::Message(modern_call(tool, &arguments.to_string()).body)
}

fn sql(statement: &str) -> Input {
    call("sql_query", &json!({ "connection": "sample", "sql": statement }))
}

fn raw(text: &str) -> Input {
    Input::Message(text.into())
}

fn list() -> Ask {
    modern("tools/list", "")
}

fn post(headers: &str, body: &str) -> Input {
    let head = "POST /mcp HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\n";
    Input::Bytes(format!("{head}{headers}\r\n\r\n{body}"))
}

fn with_key(header: &str) -> String {
    format!("Host: localhost\r\nAuthorization: Bearer {ADMIN_KEY}\r\n{header}")
}

/// What fires `reason`. Without a wildcard: a new row needs its input.
#[expect(clippy::too_many_lines, reason = "one line for each row")]
fn input(reason: Reason) -> Input {
    use Input::{Elsewhere, Http, HttpAs, InSession, Metrics, Never};
    let slow = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b";
    match reason {
        Reason::HostHeader => post("Content-Length: 2", "{}"),
        Reason::HostNotAllowed => Http(list().header("host", "evil.example")),
        Reason::OriginNotAllowed => Http(list().header("origin", "https://evil.example")),
        Reason::RouteNotFound => Http(Ask::get("/nope")),
        Reason::MethodNotAllowed => Http(list().method("PUT")),
        Reason::BodyTooLarge => Http(Ask { body: "x".repeat(BODY_BYTES_MAX + 1), ..list() }),
        Reason::MetricsRouteNotFound => Metrics("GET", "/nope"),
        Reason::MetricsMethodNotAllowed => Metrics("POST", "/metrics"),
        Reason::CredentialsMissing => Http(list().without("authorization")),
        Reason::CredentialsMalformed => Http(list().header("authorization", "Basic eA==")),
        Reason::KeyUnknown => Http(list().key("annals_nobody")),
        Reason::KeyRevoked => HttpAs(Who::Revoked, list()),
        Reason::KeyExpired => HttpAs(Who::Expired, list()),
        Reason::RolesUnmapped => Input::Strained,
        Reason::KeysLoading => Input::Strained,
        Reason::ContentType => Http(list().header("content-type", "text/plain")),
        Reason::Accept => Http(list().header("accept", "text/event-stream")),
        Reason::BodyCut => post(&with_key("Transfer-Encoding: chunked"), "no chunk\r\n"),
        Reason::BodyTimeout => post(&with_key("Content-Length: 10"), "{"),
        Reason::NotJson => raw("nonsense"),
        Reason::TooDeep => raw(&format!("{}{}", "[".repeat(129), "]".repeat(129))),
        Reason::Batch => raw(r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#),
        Reason::NotObject => raw("7"),
        Reason::MemberRepeated => raw(r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"ping"}"#),
        Reason::JsonrpcVersion => raw(r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#),
        Reason::MethodMissing => raw(r#"{"jsonrpc":"2.0","id":1}"#),
        Reason::MethodNotString => raw(r#"{"jsonrpc":"2.0","id":1,"method":7}"#),
        Reason::IdNull => raw(r#"{"jsonrpc":"2.0","id":null,"method":"tools/call"}"#),
        Reason::IdInvalid => raw(r#"{"jsonrpc":"2.0","id":1.5,"method":"tools/call"}"#),
        Reason::ResponseUnexpected => raw(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#),
        Reason::HeaderMissing => Http(list().without("mcp-method")),
        Reason::HeaderUnusable => Http(list().also("mcp-method", "tools/list")),
        Reason::HeaderMismatch => Http(list().header("mcp-method", "ping")),
        Reason::MetaMissing => raw(r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}}"#),
        Reason::UnsupportedVersion => Input::Message(list().body.replace(MODERN, "1900-01-01")),
        Reason::VersionHeaderUnusable => {
            Http(initialize().header("mcp-protocol-version", "2025-11-25").also("mcp-protocol-version", "x"))
        }
        Reason::SessionHeaderMissing => Http(Ask::post(PING)),
        Reason::SessionHeaderUnusable => Http(legacy("a", PING).also("mcp-session-id", "b")),
        Reason::SessionNotFound => Http(legacy("00000000000000000000000000000000", PING)),
        Reason::SessionsExhausted => Input::Strained,
        Reason::NotInitialized => Input::OverStdio(&[r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#]),
        Reason::AlreadyInitialized => Input::OverStdio(&[INITIALIZE, INITIALIZE]),
        Reason::MethodNotFound => message("prompts/list", ""),
        Reason::MethodNotFoundInSession => {
            InSession(r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#.into())
        }
        Reason::ParamsMalformed => {
            InSession(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[1]}"#.into())
        }
        Reason::CursorUnknown => message("tools/list", r#""cursor":"x""#),
        Reason::ProtocolVersionMissing => {
            raw(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#)
        }
        Reason::CallWithoutId => Input::Message(
            modern_call("platform_info", r#"{"purpose":"to see"}"#).body.replace(r#""id":1,"#, ""),
        ),
        Reason::ToolNameMissing => message("tools/call", ""),
        Reason::ToolNameNotString => message("tools/call", r#""name":7"#),
        Reason::ArgumentsNotObject => message("tools/call", r#""name":"sql_query","arguments":[1]"#),
        Reason::RequestIdInFlight => Input::Strained,
        Reason::UnknownTool => call("sql_qery", &json!({})),
        Reason::ToolNotAllowed => HttpAs(Who::Auditor, modern_call("sql_query", r#"{"sql":"SELECT 1"}"#)),
        Reason::ConnectionNotAllowed => {
            HttpAs(Who::Narrow, modern_call("sql_query", r#"{"sql":"SELECT 1","connection":"sample"}"#))
        }
        Reason::ConnectionRequired => HttpAs(Who::Narrow, modern_call("sql_query", r#"{"sql":"SELECT 1"}"#)),
        Reason::ConnectionUnknown => call("sql_query", &json!({ "sql": "SELECT 1", "connection": "sampel" })),
        Reason::PurposeTwice => {
            Input::Message(modern_call("platform_info", r#"{"purpose":"a","purpose":"b"}"#).body)
        }
        Reason::PurposeNotText => call("platform_info", &json!({ "purpose": 5 })),
        Reason::PurposeTooLong => call("platform_info", &json!({ "purpose": "x".repeat(1_001) })),
        Reason::ArgumentUnknown => call("sql_query", &json!({ "sql": "SELECT 1", "conection": "sample" })),
        Reason::ArgumentMissing => call("sql_query", &json!({ "connection": "sample" })),
        // Only the schema refuses this one: the tool itself would take it and fail.
        Reason::ArgumentInvalid => sql(""),
        Reason::ArgumentRepeated => {
            Input::Message(modern_call("sql_query", r#"{"sql":"SELECT 1","sql":"SELECT 2"}"#).body)
        }
        Reason::SqlTooLong => sql(&format!("SELECT '{}'", "é".repeat(40_000))),
        Reason::RateLimited => Input::Strained,
        Reason::TooManyCalls => Input::Strained,
        Reason::SqlEmpty => sql(";"),
        Reason::SqlSyntax => sql("SELECT FROM WHERE"),
        Reason::SqlUnsupportedSyntax => sql("SELECT $1::int"),
        Reason::SqlUnsupportedType => sql("SELECT '{[1,2]}'::int4multirange"),
        Reason::SqlMultipleStatements => sql("SELECT 1; SELECT 2"),
        Reason::SqlNotAQuery => sql("DROP TABLE customers"),
        Reason::SqlWrites => sql("WITH gone AS (DELETE FROM customers RETURNING 1) SELECT * FROM gone"),
        Reason::SqlLocksRows => sql("SELECT * FROM customers FOR UPDATE"),
        Reason::SqlSelectInto => sql("SELECT 1 AS n INTO mine"),
        Reason::SqlRelationRefused => sql("SELECT * FROM pg_authid"),
        Reason::SqlFunctionRefused => sql("SELECT pg_sleep(1)"),
        Reason::SqlTooComplex => sql(&format!("SELECT {}1{}", "(".repeat(500), ")".repeat(500))),
        Reason::SqlPermissionDenied => Input::Strained,
        Reason::SqlUndefinedTable => sql("SELECT * FROM nowhere"),
        Reason::SqlUndefinedColumn => sql("SELECT nothing FROM customers"),
        Reason::SqlUndefinedFunction => sql("SELECT no_such_function(1)"),
        Reason::SqlReadOnly => Input::Strained,
        Reason::SqlNotSupported => sql("SELECT count(DISTINCT n) OVER () FROM (VALUES (1)) AS t (n)"),
        Reason::SqlBadValue => sql("SELECT 1 / 0"),
        Reason::SqlInvalid => sql("SELECT count(*), n FROM (VALUES (1)) AS t (n)"),
        Reason::SqlConflict => Input::Strained,
        Reason::SqlResourcesExhausted => Input::Strained,
        Reason::SqlServerFailed => Input::Strained,
        Reason::SqlTimeout => Input::Strained,
        Reason::ConnectionUnreachable => {
            call("sql_query", &json!({ "sql": "SELECT 1", "connection": "broken" }))
        }
        Reason::ConnectionStarting => Input::Strained,
        Reason::ConnectionBusy => Input::Strained,
        Reason::ConnectionRoleRefused => Input::Strained,
        Reason::IdUnknown => call("fetch", &json!({ "id": "tool:sql_qery" })),
        Reason::CallTimedOut => sql(slow),
        Reason::CancelledByCaller => Input::Strained,
        Reason::CancelledByShutdown => Input::Strained,
        Reason::Cancelled => {
            Elsewhere("a_cancelled_statement_ends_on_the_server_and_its_session_is_used_again")
        }
        Reason::Panic => Elsewhere("each_end_of_a_call_has_its_answer_and_its_event"),
        Reason::ResultNotJson => Elsewhere("a_result_that_is_no_text_is_our_failure"),
        Reason::RowNotJson => Never("Postgres itself writes the JSON of a row"),
        Reason::CallTaskLost => Never("it needs a mistake in the task that catches all others"),
        Reason::OutcomeUnrecorded => Elsewhere("an_outcome_that_may_be_lost_is_said_to_be_with_its_call_id"),
        Reason::ToolDropped => Elsewhere("a_tool_that_does_not_stop_is_dropped_and_its_effect_is_unknown"),
        Reason::ServerGone => Elsewhere("a_server_that_goes_away_leaves_an_error_for_each_open_request"),
        Reason::LogUnavailable => Elsewhere("a_refusal_that_cannot_be_recorded_is_unavailable"),
        Reason::LogFull => Elsewhere("a_log_that_does_not_accept_is_503_and_nothing_runs"),
        Reason::LogBusy => Never("it needs more events at once than the log's queue takes within its time"),
        Reason::ShuttingDown => Elsewhere("after_shutdown_no_call_starts"),
        Reason::BadParameter => Http(Ask::get(&format!("{EVENTS}?nope=1"))),
        Reason::BadEventId => Http(Ask::get(&format!("{EVENTS}/7"))),
        Reason::AuditNotAllowed => HttpAs(Who::Analyst, Ask::get(EVENTS)),
        Reason::BadCursor => Http(Ask::get(&format!("{EVENTS}?cursor=x"))),
        Reason::EventNotFound => Http(Ask::get(&format!("{EVENTS}/0198c0de-0000-7000-8000-000000000000"))),
        Reason::StoreUnavailable => Input::Strained,
        Reason::StoreStopped => Elsewhere("another_log_is_found_and_adopted_with_the_old_rows_as_history"),
        Reason::StoreFailed => Never("it needs a store of which nobody knows how it answers"),
    }
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"rows","version":"1"}}}"#;
const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// The server, its log, and the keys of those who ask.
struct Stage {
    server: Server,
    client: reqwest::Client,
    keys: Vec<String>,
    session: String,
}

/// What came back: the status, and the body as JSON.
struct Got {
    status: u16,
    body: Value,
}

/// `ask` to the server at `url`.
fn request(client: &reqwest::Client, url: &str, ask: &Ask) -> reqwest::RequestBuilder {
    let request = client.request(ask.method.parse().unwrap(), format!("{url}{}", ask.path));
    request.headers(ask.headers.clone()).body(ask.body.clone())
}

async fn got_of(response: reqwest::Response) -> Got {
    let status = response.status().as_u16();
    Got { status, body: response.json().await.unwrap_or(Value::Null) }
}

impl Stage {
    async fn open(home: &Home) -> Self {
        let config = home.path().join("annals.yaml");
        let text = format!(
            "limits: {{ body_bytes_max: {BODY_BYTES_MAX}, body_timeout_ms: 500, call_timeout_ms: 5000, refusals_per_source_per_minute: 1000 }}\n\
             personas:\n  narrow:\n    roles: [narrow]\n    tools: {{ allow: ['*'] }}\n    connections: {{ allow: [] }}\n\
             connections:\n  broken:\n    kind: postgres\n    url: postgres://nobody:x@127.0.0.1:1/none\n"
        );
        std::fs::write(&config, text).unwrap();
        let server = home.serve(&["--sample", "--config", config.to_str().unwrap()]);
        let soon = SystemClock.now().plus_micros(5_000_000);
        // In the order of `Who`.
        let keys = vec![
            home.key("revoked", "analyst", &[]),
            home.key("expired", "analyst", &["--expires", &soon.to_string()]),
            home.key("auditor", "auditor", &[]),
            home.key("analyst", "analyst", &[]),
            home.key("narrow", "narrow", &[]),
        ];
        let listed: Value = serde_json::from_str(&home.annals(&["key", "list", "--json"]).stdout).unwrap();
        let revoked = listed.as_array().unwrap().iter().find(|key| key["name"] == "revoked").unwrap();
        let revoked = home.annals(&["key", "revoke", revoked["key_id"].as_str().unwrap()]);
        assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
        let mut stage = Self::over(server, keys);
        let opened = stage.send(&initialize().key(ADMIN_KEY)).await;
        let expired = Ask::get(EVENTS).key(&stage.keys[Who::Expired as usize]);
        while stage.got(&expired).await.status != 401 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        stage.session = opened.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        stage
    }

    /// Of a server that runs, without a session.
    fn over(server: Server, keys: Vec<String>) -> Self {
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self { server, client, keys, session: String::new() }
    }

    async fn send(&self, ask: &Ask) -> reqwest::Response {
        request(&self.client, &self.server.url, ask).send().await.unwrap()
    }

    async fn got(&self, ask: &Ask) -> Got {
        got_of(self.send(ask).await).await
    }

    /// Sends `bytes` and reads until the server closes.
    async fn bytes(&self, bytes: &str) -> Got {
        let address = self.server.url.strip_prefix("http://").unwrap();
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        Got { status, body: serde_json::from_str(body).unwrap_or(Value::Null) }
    }

    /// Fires `input` over HTTP; `None` when it is fired elsewhere.
    async fn fire(&self, input: &Input) -> Option<Got> {
        if let Some((text, in_session)) = input.text() {
            let ask = if in_session { legacy(&self.session, text) } else { with_headers(text) };
            return Some(self.got(&ask.key(ADMIN_KEY)).await);
        }
        match input {
            Input::Http(ask) => Some(self.got(&as_admin(ask.clone())).await),
            Input::HttpAs(who, ask) => Some(self.got(&ask.clone().key(&self.keys[*who as usize])).await),
            Input::Bytes(bytes) => Some(self.bytes(bytes).await),
            Input::Metrics(method, path) => {
                let base = self.server.metrics_url.strip_suffix("/metrics").unwrap();
                let request = self.client.request(method.parse().unwrap(), format!("{base}{path}"));
                let response = request.send().await.unwrap();
                let status = response.status().as_u16();
                Some(Got { status, body: response.json().await.unwrap() })
            }
            Input::Message(_)
            | Input::InSession(_)
            | Input::OverStdio(_)
            | Input::Strained
            | Input::Elsewhere(_)
            | Input::Never(_) => None,
        }
    }

    /// The key and the messages with which a stdio process fires `input`; `None` when none can.
    fn over_stdio(&self, reason: Reason, input: &Input) -> Option<(String, Vec<String>)> {
        let admin = ADMIN_KEY.to_owned();
        match input {
            Input::Message(text) => Some((admin, vec![text.clone()])),
            Input::InSession(text) => Some((admin, vec![INITIALIZE.into(), text.clone()])),
            Input::OverStdio(lines) => Some((admin, lines.iter().map(|&line| line.into()).collect())),
            Input::HttpAs(_, ask) if ask.body.is_empty() => None,
            Input::HttpAs(who, ask) => Some((self.keys[*who as usize].clone(), vec![ask.body.clone()])),
            Input::Http(ask) if reason == Reason::BodyTooLarge => Some((admin, vec![ask.body.clone()])),
            Input::Http(_) if reason == Reason::KeyUnknown => Some(("annals_nobody".into(), Vec::new())),
            Input::Http(_) if reason == Reason::CredentialsMalformed => {
                Some(("two words".into(), Vec::new()))
            }
            Input::Http(_)
            | Input::Bytes(_)
            | Input::Metrics(..)
            | Input::Strained
            | Input::Elsewhere(_)
            | Input::Never(_) => None,
        }
    }

    /// What is recorded but the system's own.
    fn events(&self) -> Vec<Decoded> {
        let events = reading::events_in(&self.server.data_dir.join("log"));
        events.into_iter().filter(|event| event.kind.topic() != Topic::System).collect()
    }
}

/// The helpers of a request carry another key; one that was set on purpose stays.
fn as_admin(ask: Ask) -> Ask {
    let is_default = ask.headers.get("authorization").is_some_and(|value| value == &format!("Bearer {ANN}"));
    if is_default { ask.key(ADMIN_KEY) } else { ask }
}

/// The message as HTTP carries it: with the headers that its body asks for.
fn with_headers(text: &str) -> Ask {
    let ask = Ask::post(text);
    let Ok(json) = serde_json::from_str::<Value>(text) else { return ask };
    let version = json["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str();
    let method = json["method"].as_str().unwrap_or_default();
    if method == "initialize" {
        return ask;
    }
    let ask = ask.header("mcp-protocol-version", version.unwrap_or(MODERN)).header("mcp-method", method);
    json["params"]["name"].as_str().into_iter().fold(ask, |ask, name| ask.header("mcp-name", name))
}

/// Reason and category, where the event has them.
fn why(event: &Decoded) -> (Option<String>, Option<&'static str>) {
    match &event.facts {
        Facts::AuthFailed(failed) => (Some(failed.reason.clone()), None),
        Facts::RequestRefused(refused) => (Some(refused.reason.clone()), Some(refused.category.as_str())),
        Facts::Terminal(_, ended) => {
            let error = ended.outcome.error.as_ref();
            (error.map(|error| error.code.clone()), error.map(|error| error.category.as_str()))
        }
        _ => (None, None),
    }
}

fn check_events(row: &Row, events: &[Decoded]) {
    let code = row.code;
    let kinds: Vec<Kind> = events.iter().map(|event| event.kind).collect();
    let promised = row.recorded.kinds();
    let Some((last, before)) = kinds.split_last() else {
        assert!(promised.is_empty(), "{code}: nothing is recorded, promised is one of {promised:?}");
        return;
    };
    assert!(promised.contains(last), "{code}: {kinds:?}, promised is one of {promised:?}");
    let behind_intent =
        matches!(last, Kind::ToolCallFailed | Kind::ToolCallTimedOut | Kind::ToolCallCancelled);
    let intent: &[Kind] = if behind_intent { &[Kind::ToolCallRequested] } else { &[] };
    assert_eq!(before, intent, "{code}");
    let event = events.last().unwrap();
    let (reason, category) = why(event);
    if *last != Kind::AdminAuditQueried {
        assert_eq!(reason.as_deref(), Some(code));
    }
    assert!(category.is_none_or(|category| category == row.category.as_str()), "{code}: {category:?}");
    if let Facts::RequestRefused(refused) = &event.facts {
        let over_mcp = refused.source == "mcp";
        let rpc = if over_mcp { row.rpc.code() } else { None };
        let status = (refused.transport == Transport::Http).then_some(row.status);
        assert_eq!((refused.status, refused.rpc_code, refused.count), (status, rpc, 1), "{code}");
        let known = event.personal.as_ref().is_some_and(|who| who.user_name.is_some());
        assert_eq!(known, refused.subject_id.is_some(), "{code}: named exactly when known");
    }
}

fn check_answer(row: &Row, got: &Got) {
    let (code, body) = (row.code, &got.body);
    assert_eq!(got.status, row.status, "{code}: {body}");
    if body["jsonrpc"] != "2.0" {
        assert_eq!(
            (&body["error"]["code"], &body["error"]["category"]),
            (&json!(code), &json!(row.category))
        );
        return;
    }
    let error = match row.rpc {
        Rpc::Result => {
            assert_eq!(body["result"]["isError"], true, "{code}: {body}");
            serde_json::from_str(body["result"]["content"][0]["text"].as_str().unwrap()).unwrap()
        }
        Rpc::Error(rpc) => {
            assert_eq!(body["error"]["code"], rpc, "{code}: {body}");
            body["error"]["data"].clone()
        }
        Rpc::Absent => panic!("{code}: answered by MCP: {body}"),
    };
    assert_eq!((&error["code"], &error["category"]), (&json!(code), &json!(row.category)), "{body}");
    assert!(error["message"].is_string() && error["hint"].is_string(), "{code}: {body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_fires_exactly_the_event_it_promises() {
    let home = Home::new();
    let stage = Stage::open(&home).await;
    let mut before = stage.events().len();
    let mut wrong = Vec::new();
    for &reason in Reason::ALL {
        let row = reason.row();
        let Some(got) = stage.fire(&input(reason)).await else { continue };
        let events = stage.events();
        let checked = std::panic::catch_unwind(|| {
            check_answer(row, &got);
            check_events(row, &events[before..]);
        });
        if checked.is_err() {
            wrong.push(row.code);
        }
        before = events.len();
    }
    assert_eq!(wrong, Vec::<&str>::new(), "what is wrong with each stands above");
}

/// How the event came in, where it says so.
fn transport(event: &Decoded) -> Option<Transport> {
    match &event.facts {
        Facts::RequestRefused(refused) => Some(refused.transport),
        Facts::Terminal(_, ended) => Some(ended.call.transport),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_of_standard_input_fires_its_event_there_too() {
    let home = Home::new();
    let stage = Stage::open(&home).await;
    let recorded = || {
        let events = stage.events().into_iter();
        events.filter(|event| event.kind.topic() != Topic::Sessions).collect::<Vec<_>>()
    };
    let mut before = recorded().len();
    let (mut fired, mut wrong) = (0, Vec::new());
    for &reason in Reason::ALL.iter().filter(|reason| reason.row().transports.contains(&Transport::Stdio)) {
        let row = reason.row();
        let Some((key, lines)) = stage.over_stdio(reason, &input(reason)) else { continue };
        let mut process = Process::start(&home, &key);
        if row.recorded != Recorded::AuthFailed {
            for line in &lines {
                process.write(line).await;
            }
        }
        process.close();
        let mut ended = process.end().await;
        let events = recorded();
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if row.recorded == Recorded::AuthFailed {
                assert_eq!((ended.code, ended.rest.len()), (Some(3), 0), "{}: {}", row.code, ended.stderr);
            } else {
                assert_eq!(ended.code, Some(0), "{}: {}", row.code, ended.stderr);
                if reason == Reason::CallWithoutId {
                    assert!(ended.rest.is_empty(), "a notification has no answer: {:?}", ended.rest);
                } else {
                    let body = ended.rest.pop().expect("an answer");
                    check_answer(row, &Got { status: row.status, body });
                }
            }
            check_events(row, &events[before..]);
            let told: Vec<_> = events[before..].iter().filter_map(transport).collect();
            assert!(told.iter().all(|transport| *transport == Transport::Stdio), "{}: {told:?}", row.code);
        }));
        if checked.is_err() {
            wrong.push(row.code);
        }
        (before, fired) = (events.len(), fired + 1);
    }
    assert_eq!(wrong, Vec::<&str>::new(), "what is wrong with each stands above");
    assert!(fired > 50, "{fired} rows are too few");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_its_headers_or_session_refuse_is_denied_as_a_call() {
    let server = Harness::start().await;
    let call = modern_call("sql_echo", r#"{"a":1,"purpose":"to see"}"#);
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sql_echo"}}"#;
    let cases = [
        (Reason::HeaderMissing, call.clone().without("mcp-name")),
        (Reason::HeaderMismatch, call.clone().header("mcp-name", "other")),
        (
            Reason::UnsupportedVersion,
            Ask { body: call.body.replace(MODERN, "1900-01-01"), ..call.clone() }
                .header("mcp-protocol-version", "1900-01-01"),
        ),
        (Reason::SessionHeaderMissing, Ask::post(body)),
        (Reason::SessionNotFound, legacy(&server.session(BOB).await, body)),
    ];
    for (reason, ask) in cases {
        let before = server.events().await.len();
        let got = server.send(&ask).await;
        assert_eq!((got.status, Some(got.code())), (reason.row().status, reason.row().rpc.code()), "{got:?}");
        let events = server.events().await;
        assert_eq!(events.len(), before + 1, "{reason:?}");
        let call_id = got.json()["error"]["data"]["call_id"].as_str().unwrap().to_owned();
        let (kind, ended) = server
            .endings()
            .await
            .into_iter()
            .find(|(_, ended)| ended.call.call_id.to_string() == call_id)
            .unwrap();
        assert_eq!(
            (kind, ended.call.tool_name.as_str(), ended.call.session_id),
            (Kind::ToolCallDenied, "sql_echo", None)
        );
        assert_eq!(ended.call.subject_id, "sub-ann", "whoever asked, not whose session it is");
        assert_eq!(ended.outcome.error.unwrap().code, reason.code());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_that_cannot_be_taken_has_its_event_and_others_none() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    let without_id = |ask: Ask| {
        let body = ask.body.replace(r#""id":1,"#, "");
        assert_ne!(body, ask.body);
        Ask { body, ..ask }
    };
    let call = without_id(modern_call("sql_echo", "{}"));
    let in_session = without_id(crate::mcp::harness::legacy_call(&session, "1", "sql_echo", "{}"));
    let note = without_id(modern("notifications/cancelled", r#""requestId":7"#));
    let strange = Ask { body: note.body.replace(MODERN, "1900-01-01"), ..note.clone() };
    let denied = Some(Kind::ToolCallDenied);
    let refused = Some(Kind::RequestRefused);
    for (ask, reason, kind) in [
        (call.clone(), Reason::CallWithoutId, denied),
        (in_session.clone(), Reason::CallWithoutId, denied),
        (in_session.without("mcp-session-id"), Reason::SessionHeaderMissing, denied),
        (note.clone().header("mcp-method", "tools/list"), Reason::HeaderMismatch, refused),
        (note.clone().also("mcp-method", "tools/list"), Reason::HeaderUnusable, refused),
        (strange.clone(), Reason::HeaderMismatch, refused),
        (strange.header("mcp-protocol-version", "1900-01-01"), Reason::UnsupportedVersion, refused),
        (note.clone(), Reason::CallWithoutId, None),
        (note.without("mcp-method"), Reason::CallWithoutId, None),
    ] {
        let before = server.events().await.len();
        let got = server.send(&ask).await;
        let events = server.events().await;
        let kinds: Vec<Kind> = events[before..].iter().map(|event| event.kind).collect();
        assert_eq!(kinds, kind.into_iter().collect::<Vec<_>>(), "{}: {got:?}", ask.body);
        let Some(row) = kind.map(|_| reason.row()) else {
            assert_eq!((got.status, got.body.as_str()), (202, ""), "{}", ask.body);
            continue;
        };
        check_answer(row, &Got { status: got.status, body: got.json() });
        assert_eq!(got.json()["id"], Value::Null);
        check_events(row, &events[before..]);
    }
    assert_eq!(*server.started.borrow(), 0, "nothing ran");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_before_the_key_is_asked_for_is_recorded_with_whose_it_is() {
    let server = Harness::start().await;
    let large = "x".repeat(64 * 1024 + 1);
    for (reason, ask) in [
        (Reason::HostNotAllowed, list().header("host", "evil.example")),
        (Reason::OriginNotAllowed, list().header("origin", "https://evil.example")),
        (Reason::RouteNotFound, Ask::get("/nope")),
        (Reason::MethodNotAllowed, list().method("PUT")),
        (Reason::MethodNotAllowed, Ask::get(EVENTS).method("PUT")),
        (Reason::BodyTooLarge, Ask { body: large, ..list() }),
    ] {
        for (key, whose) in [(ANN, Some("sub-ann")), (BOB, Some("sub-bob")), ("annals_nobody", None)] {
            let before = server.events().await.len();
            let got = server.send(&ask.clone().key(key)).await;
            assert_eq!(got.status, reason.row().status, "{got:?}");
            let events = server.events().await;
            check_events(reason.row(), &events[before..]);
            let Facts::RequestRefused(refused) = &events[before].facts else { panic!("{reason:?}") };
            assert_eq!(refused.subject_id.as_deref(), whose, "{reason:?}");
            assert_eq!(refused.persona.is_some(), whose.is_some(), "{reason:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_the_log_does_not_take_is_503() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    server.log.set(Fault::Refuse);
    for ask in [
        list().header("origin", "https://evil.example"),
        Ask::get("/nope"),
        list().method("PUT"),
        list().header("content-type", "text/plain"),
        Ask { body: "nonsense".into(), ..list() },
        modern("prompts/list", ""),
        legacy(&session, r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#),
        legacy("nobodys", PING),
        Ask::get(&format!("{EVENTS}?nope=1")),
    ] {
        let got = server.send(&ask).await;
        assert_eq!(got.status, 503, "{} {}: {got:?}", ask.method, ask.path);
        assert!(!got.header("retry-after").is_empty(), "{got:?}");
    }
    server.log.set(Fault::None);
    let kinds: Vec<Kind> = server.events().await.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [Kind::SessionStarted]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_of_the_list_is_served_and_guards_its_methods() {
    let server = Harness::start().await;
    for route in Route::ALL {
        let served = route.served();
        let path = served.path.replace("{id}", "0198c0de-0000-7000-8000-000000000000");
        let before = server.events().await.len();
        let got = server.send(&Ask::get(&path).method("PATCH")).await;
        assert_eq!((got.status, got.header("allow")), (405, served.methods), "{path}");
        let events = server.events().await;
        let [event] = &events[before..] else { panic!("{path}: {}", events.len() - before) };
        assert_eq!(why(event).0.as_deref(), Some("method_not_allowed"));
        if served.surface == Surface::Rest {
            assert!(![404, 405].contains(&server.send(&Ask::get(&path)).await.status), "{path}");
        }
    }
    for file in std::fs::read_dir(root().join("src/http")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let made = text.matches(".route(").count();
        let allowed = usize::from(path.ends_with("http/mod.rs") || path.ends_with("http/health.rs"));
        assert!(made <= allowed, "{}: routes are made from the list", path.display());
    }
}

#[test]
fn what_is_fired_elsewhere_has_its_test() {
    let mut names = BTreeSet::new();
    for &reason in Reason::ALL {
        match input(reason) {
            Input::Elsewhere(test) => {
                names.insert(test);
            }
            Input::Never(why) => assert!(why.len() > 20, "{reason:?}"),
            _ => {}
        }
    }
    let sources = sources(&root().join("src")) + &sources(&root().join("tests/it"));
    for name in names {
        assert!(sources.contains(&format!("fn {name}(")), "there is no test {name}");
    }
}

#[test]
fn rows_of_standard_input_have_a_message_that_needs_no_http() {
    // Their transports are tested with what HTTP alone can say: credentials, and what the process decides.
    for &reason in Reason::ALL {
        let row = reason.row();
        let input = input(reason);
        let fired = matches!(
            input,
            Input::Strained | Input::Elsewhere(_) | Input::Never(_) | Input::HttpAs(..) | Input::OverStdio(_)
        );
        let by_key = row.recorded == Recorded::AuthFailed || reason == Reason::BodyTooLarge;
        // The session of a process ends before it only when the server stops.
        let by_key = by_key || reason == Reason::SessionNotFound;
        // The tools that read the audit have these, too: the tests of `compliance` fire them through calls.
        let by_tool = row.recorded == Recorded::AuditQueried;
        if row.transports.contains(&Transport::Stdio) && !fired && !by_key && !by_tool {
            assert!(input.text().is_some(), "{}: what would a client on standard input send?", row.code);
        }
    }
}

#[test]
fn the_document_of_events_is_what_the_code_generates() {
    let path = root().join("docs/events.md");
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let text = annals::refusal::events_document(&annals::http::routes());
    assert!(found == text, "{} is not current: run `annals refusals --out docs/events.md`", path.display());
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(dir: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &std::fs::read_to_string(path).unwrap();
        }
    }
    text
}
