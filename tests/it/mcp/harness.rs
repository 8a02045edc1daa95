//! One server on a free port with test tools, and requests written down as tables.

use std::sync::Arc;
use std::time::Duration;

use annals::auth::{Auth, FloodLimits, KeyRecord, Keys};
use annals::base::{Clock, SystemClock, Tasks, sha256};
use annals::config::Config;
use annals::dispatch::{Dispatch, Limits};
use annals::event::{Decoded, Facts, Kind, Terminal, TopicPartition};
use annals::http::{Guard, ListenerLimits, Readiness, State, StoreState};
use annals::log::embedded::{EmbeddedLog, Options};
use annals::log::{Lanes, Log};
use annals::mcp::{Server, SessionLimits};
use annals::refusal::Reason;
use annals::tools::{
    CallContext, Definition, DefinitionSource, Prepared, Tool, ToolError, ToolResult, Toolbox,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::faulty_log::FaultyLog;

/// How often sessions are looked after.
const SWEEP: Duration = Duration::from_millis(20);
/// How long something may take that must come.
const SOON: Duration = Duration::from_secs(10);

/// Keys of three people; `ANN` may do everything, `BOB` is an analyst, `CARL` an auditor.
pub(crate) const ANN: &str = "annals_key_of_ann";
pub(crate) const BOB: &str = "annals_key_of_bob";
pub(crate) const CARL: &str = "annals_key_of_carl";
/// A second key of the same principal as `ANN`.
pub(crate) const ANN_TOO: &str = "annals_other_key_of_ann";

/// Waits for something that must come.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// A tool that does what its name says.
struct TestTool {
    definition: Definition,
    run: Behaviour,
    started: watch::Sender<usize>,
    go_on: watch::Receiver<bool>,
}

#[derive(Clone, Copy)]
enum Behaviour {
    Echo,
    Slow,
    Panic,
    Fail,
    PanicInParse,
}

struct Run {
    run: Behaviour,
    arguments: Box<RawValue>,
    started: watch::Sender<usize>,
    go_on: watch::Receiver<bool>,
}

impl Tool for TestTool {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        if arguments.get().contains("unwanted") {
            return Err(ToolError::new(
                Reason::ArgumentUnknown,
                "There is no argument \"unwanted\".",
                "Leave it out.",
            ));
        }
        assert!(!matches!(self.run, Behaviour::PanicInParse), "told to");
        let (started, go_on) = (self.started.clone(), self.go_on.clone());
        Ok(Box::new(Run { run: self.run, arguments: arguments.to_owned(), started, go_on }))
    }
}

impl Prepared for Run {
    fn connection(&self) -> Option<&str> {
        None
    }

    fn run(mut self: Box<Self>, context: CallContext) -> BoxFuture<'static, Result<ToolResult, ToolError>> {
        async move {
            self.started.send_modify(|count| *count += 1);
            match self.run {
                Behaviour::Slow => {
                    tokio::select! {
                        () = context.cancel.cancelled() => {}
                        went_on = self.go_on.wait_for(|go_on| *go_on) => { went_on.unwrap(); }
                    }
                }
                Behaviour::Panic => panic!("told to"),
                Behaviour::Fail => {
                    return Err(ToolError::new(Reason::ConnectionUnreachable, "It is down.", "Wait."));
                }
                Behaviour::Echo | Behaviour::PanicInParse => {}
            }
            let structured = format!("{{\"echo\":{}}}", self.arguments.get());
            Ok(ToolResult { structured: structured.into() })
        }
        .boxed()
    }
}

/// What may differ between servers.
pub(crate) struct Setup {
    pub(crate) dispatch: Limits,
    pub(crate) sessions: SessionLimits,
    pub(crate) listener: ListenerLimits,
    pub(crate) body_bytes_max: usize,
    pub(crate) body_timeout: Duration,
    pub(crate) http: annals::config::Http,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            dispatch: Limits::default(),
            sessions: SessionLimits {
                sessions_max: 100,
                sessions_per_key_max: 10,
                idle: Duration::from_secs(600),
            },
            listener: ListenerLimits::default(),
            body_bytes_max: 64 * 1024,
            body_timeout: Duration::from_secs(10),
            http: annals::config::Http::default(),
        }
    }
}

pub(crate) struct Harness {
    _dir: tempfile::TempDir,
    pub(crate) address: std::net::SocketAddr,
    pub(crate) log: Arc<FaultyLog>,
    pub(crate) started: watch::Receiver<usize>,
    pub(crate) go_on: watch::Sender<bool>,
    pub(crate) store: watch::Sender<StoreState>,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: Tasks,
    pub(crate) listening: Tasks,
    pub(crate) mcp: Server,
    pub(crate) keys: Arc<Keys>,
    client: reqwest::Client,
}

/// What the snapshot holds of a key.
pub(crate) fn key(key: &str) -> ([u8; 32], KeyRecord) {
    let (id, name, role) = match key {
        ANN => (1, "ann", "admin"),
        ANN_TOO => (2, "ann", "admin"),
        BOB => (3, "bob", "analyst"),
        CARL => (4, "carl", "auditor"),
        other => panic!("nobody has the key {other}"),
    };
    let record = KeyRecord {
        key_id: Uuid::from_u128(id),
        subject_id: format!("sub-{name}"),
        user_name: name.into(),
        roles: vec![role.into()],
        expires_at: None,
        revoked: false,
        no_limit: false,
    };
    (sha256(key.as_bytes()), record)
}

fn toolbox(started: &watch::Sender<usize>, go_on: &watch::Sender<bool>) -> Toolbox {
    let tools = [
        ("test_slow", Behaviour::Slow),
        ("sql_echo", Behaviour::Echo),
        ("test_panic", Behaviour::Panic),
        ("test_fail", Behaviour::Fail),
        ("test_panic_in_parse", Behaviour::PanicInParse),
    ];
    tools.into_iter().fold(Toolbox::default(), |toolbox, (name, run)| {
        let source = DefinitionSource {
            name,
            title: name,
            description: format!("Behaves as {name}."),
            input_schema: json!({ "type": "object", "properties": {} }),
            output_schema: json!({ "type": "object" }),
            annotations: json!({ "readOnlyHint": true }),
        };
        let definition = source.prepare("test", true);
        toolbox.with(TestTool { definition, run, started: started.clone(), go_on: go_on.subscribe() })
    })
}

impl Harness {
    pub(crate) async fn start() -> Self {
        Self::start_with(Setup::default()).await
    }

    pub(crate) async fn start_with(setup: Setup) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::default();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let options = Options::new(dir.path().join("log"), &config.log);
        let (engine, _) = EmbeddedLog::open(options, Arc::clone(&clock)).unwrap();
        let log = Arc::new(FaultyLog::new(engine));
        let lanes = Arc::new(Lanes::new(Arc::clone(&log) as Arc<dyn Log>, clock, "default"));
        let (started_sender, started) = watch::channel(0);
        let (go_on, _) = watch::channel(false);
        let (store, store_seen) = watch::channel(StoreState::Ok);
        let tasks = Tasks::new();
        let toolbox = Arc::new(toolbox(&started_sender, &go_on));
        let dispatch = Arc::new(Dispatch::new(Arc::clone(&lanes), toolbox, setup.dispatch, tasks.clone()));
        let keys = Arc::new(Keys::new());
        keys.load([ANN, ANN_TOO, BOB, CARL].map(key));
        let auth = Auth::new(Arc::clone(&keys), config.personas().unwrap(), None, lanes);
        // Each refusal has its own event here; floods have tests of their own.
        let one_by_one =
            FloodLimits { per_source_per_minute: 10_000, per_minute: 10_000, ..FloodLimits::default() };
        let auth = Arc::new(auth.with_flood_limits(one_by_one));
        let mcp = Server::new(Arc::clone(&dispatch), setup.sessions, tasks.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let health = Arc::clone(&log);
        let state = State {
            mcp: mcp.clone(),
            dispatch: Arc::clone(&dispatch),
            auth: Arc::clone(&auth),
            query: query(),
            readiness: Box::new(move || Readiness { log: health.health(), store: *store_seen.borrow() }),
            guard: Guard::new(address, &setup.http),
            proxies: annals::http::Proxies::new(&setup.http),
            body_bytes_max: setup.body_bytes_max,
            body_timeout: setup.body_timeout,
        };
        let (stop, listening) = (CancellationToken::new(), Tasks::new());
        let router = annals::http::router(state);
        let serving = annals::http::serve_within(setup.listener, listener, router, stop.clone());
        listening.spawn("listener", async { serving.await.unwrap() });
        listening.spawn("sessions", mcp.clone().keep_sessions(auth, SWEEP, stop.clone()));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { _dir: dir, address, log, started, go_on, store, stop, tasks, listening, mcp, keys, client }
    }

    pub(crate) async fn send(&self, ask: &Ask) -> Got {
        let url = format!("http://{}{}", self.address, ask.path);
        let method = ask.method.parse().unwrap();
        let request = self.client.request(method, url).headers(ask.headers.clone()).body(ask.body.clone());
        let response = soon("an answer", request.send()).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = soon("the body", response.text()).await.unwrap();
        Got { status, headers, body }
    }

    /// Waits until a tool has started.
    pub(crate) async fn until_started(&self, count: usize) {
        let mut started = self.started.clone();
        soon("a tool's start", started.wait_for(|started| *started >= count)).await.unwrap();
    }

    /// All that is recorded, in the order of topic and partition.
    pub(crate) async fn events(&self) -> Vec<Decoded> {
        let all: Vec<_> = TopicPartition::all().map(|target| (target, None)).collect();
        let mut reader = self.log.reader(&all).unwrap();
        let mut events = Vec::new();
        loop {
            let batch = reader.next_ready(100).await.unwrap();
            if batch.is_empty() {
                return events;
            }
            let read = batch
                .iter()
                .map(|stored| Decoded::read(stored.frame.target.topic, &stored.frame.body).unwrap());
            events.extend(read);
        }
    }

    /// The terminal events of calls, with the event type.
    pub(crate) async fn endings(&self) -> Vec<(Kind, Terminal)> {
        let events = self.events().await.into_iter().filter_map(|event| match event.facts {
            Facts::Terminal(kind, terminal) if kind.is_terminal() => Some((kind, terminal)),
            _ => None,
        });
        events.collect()
    }

    /// Waits until an event of `kind` is recorded.
    pub(crate) async fn until_recorded(&self, kind: Kind) -> Decoded {
        let found = async {
            loop {
                if let Some(event) = self.events().await.into_iter().find(|event| event.kind == kind) {
                    return event;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon(kind.name(), found).await
    }

    /// Opens a session of 2025-11-25 and gives its id.
    pub(crate) async fn session(&self, key: &str) -> String {
        let got = self.send(&initialize().key(key)).await;
        assert_eq!(got.status, 200, "{}", got.body);
        got.header("mcp-session-id").to_owned()
    }
}

/// The audit store, which these tests do not need.
pub(crate) fn query() -> Arc<annals::query::Query> {
    Arc::new(annals::query::Query::closed())
}

/// One request.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Ask {
    /// A POST to `/mcp` with the headers that every client sends, by `ANN`.
    pub(crate) fn post(body: impl Into<String>) -> Self {
        let ask = Self { method: "POST", path: "/mcp".into(), headers: HeaderMap::new(), body: body.into() };
        ask.header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .key(ANN)
    }

    pub(crate) fn get(path: &str) -> Self {
        Self { method: "GET", path: path.into(), headers: HeaderMap::new(), body: String::new() }.key(ANN)
    }

    pub(crate) fn method(self, method: &'static str) -> Self {
        Self { method, ..self }
    }

    pub(crate) fn path(self, path: &str) -> Self {
        Self { path: path.into(), ..self }
    }

    /// Sets a header, once.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.parse::<HeaderName>().unwrap(), value_of(value));
        self
    }

    /// Sends a header once more.
    pub(crate) fn also(mut self, name: &str, value: &str) -> Self {
        self.headers.append(name.parse::<HeaderName>().unwrap(), value_of(value));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.remove(name);
        self
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.header("authorization", &format!("Bearer {key}"))
    }
}

fn value_of(value: &str) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap()
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The JSON-RPC code, 0 for a result.
    pub(crate) fn code(&self) -> i64 {
        let json = self.json();
        assert_eq!(json["jsonrpc"], "2.0", "{self:?}");
        assert_ne!(json.get("result").is_some(), json.get("error").is_some(), "{self:?}");
        json.get("error").map_or(0, |error| error["code"].as_i64().unwrap())
    }

    pub(crate) fn result(&self) -> Value {
        assert_eq!((self.status, self.code()), (200, 0), "{self:?}");
        self.json()["result"].clone()
    }
}

pub(crate) const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"wire","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}"#;

/// A request of 2026-07-28 as a good client sends it; `members` stand in `params` before `_meta`.
pub(crate) fn modern(method: &str, members: &str) -> Ask {
    let comma = if members.is_empty() { "" } else { "," };
    let body =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{members}{comma}{META}}}}}"#);
    Ask::post(body).header("mcp-protocol-version", "2026-07-28").header("mcp-method", method)
}

/// A call of 2026-07-28.
pub(crate) fn modern_call(tool: &str, arguments: &str) -> Ask {
    modern("tools/call", &format!(r#""name":"{tool}","arguments":{arguments}"#)).header("mcp-name", tool)
}

/// The first request of 2025-11-25.
pub(crate) fn initialize() -> Ask {
    Ask::post(
        r#"{"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"wire","version":"1"}},"jsonrpc":"2.0","id":0}"#,
    )
}

/// A message of 2025-11-25 within a session.
pub(crate) fn legacy(session: &str, body: &str) -> Ask {
    Ask::post(body).header("mcp-session-id", session).header("mcp-protocol-version", "2025-11-25")
}

/// A call of 2025-11-25 with the request id `id`.
pub(crate) fn legacy_call(session: &str, id: &str, tool: &str, arguments: &str) -> Ask {
    let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
    legacy(session, &format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#))
}
