//! The path of a call: intent before run, outcome before answer, and one terminal event whatever happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use annals::auth::{Globs, Persona, Principal};
use annals::base::{Category, SystemClock, Tasks, Timestamp};
use annals::dispatch::{Answer, CallRequest, Client, Dispatch, Limits};
use annals::event::{AckCheck, AckClass, AuthMethod, Decoded, Facts, Kind, Transport};
use annals::log::embedded::{EmbeddedLog, Options};
use annals::log::{Lanes, Log};
use annals::refusal::Reason;
use annals::tools::{
    CallContext, Definition, DefinitionSource, Prepared, Tool, ToolError, ToolResult, Toolbox,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::faulty_log::{Fault, FaultyLog};
use crate::reading;

/// How long the absence of something is watched for.
const QUIET: Duration = Duration::from_millis(300);
/// How long something may take that must come.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// A tool that does what its `do` argument says.
struct Puppet {
    definition: Definition,
    started: watch::Sender<usize>,
    finished: Arc<AtomicUsize>,
    go_on: watch::Sender<bool>,
}

impl Puppet {
    fn new(started: watch::Sender<usize>, finished: Arc<AtomicUsize>, go_on: watch::Sender<bool>) -> Self {
        let definition = DefinitionSource {
            name: "puppet",
            title: "Puppet",
            description: "Does what it is told.".into(),
            input_schema: serde_json::json!({"type": "object", "properties": {}}),
            output_schema: serde_json::json!({"type": "object"}),
            annotations: serde_json::json!({}),
        }
        .prepare("test", true);
        Self { definition, started, finished, go_on }
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    r#do: String,
    #[serde(default)]
    connection: Option<String>,
}

struct Pull {
    arguments: Arguments,
    started: watch::Sender<usize>,
    finished: Arc<AtomicUsize>,
    go_on: watch::Receiver<bool>,
}

impl Tool for Puppet {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        let arguments: Arguments = serde_json::from_str(arguments.get())
            .map_err(|error| ToolError::new(Reason::ArgumentInvalid, error.to_string(), ""))?;
        assert_ne!(arguments.r#do, "panic_in_parse");
        let (started, finished) = (self.started.clone(), Arc::clone(&self.finished));
        Ok(Box::new(Pull { arguments, started, finished, go_on: self.go_on.subscribe() }))
    }
}

impl Prepared for Pull {
    fn connection(&self) -> Option<&str> {
        self.arguments.connection.as_deref()
    }

    fn run(mut self: Box<Self>, context: CallContext) -> BoxFuture<'static, Result<ToolResult, ToolError>> {
        self.started.send_modify(|count| *count += 1);
        assert_ne!(self.arguments.r#do, "panic_at_once");
        async move {
            match self.arguments.r#do.as_str() {
                "fail" => {
                    return Err(ToolError::new(Reason::ConnectionUnreachable, "It is down.", "Wait."));
                }
                "panic" => panic!("told to"),
                "wait_for_cancel" => context.cancel.cancelled().await,
                "obey_cancel" => {
                    context.cancel.cancelled().await;
                    return Err(ToolError::new(Reason::Cancelled, "It stopped.", ""));
                }
                "fail_after_cancel" => {
                    context.cancel.cancelled().await;
                    return Err(ToolError::new(Reason::ConnectionUnreachable, "It is down.", ""));
                }
                "panic_after_cancel" => {
                    context.cancel.cancelled().await;
                    panic!("told to");
                }
                "ignore_cancel" => std::future::pending().await,
                "wait_for_go" => {
                    self.go_on.wait_for(|go_on| *go_on).await.unwrap();
                }
                _ => {}
            }
            self.finished.fetch_add(1, Ordering::SeqCst);
            ToolResult::from_serialize(&serde_json::json!({ "secret": "the result" }))
        }
        .boxed()
    }
}

pub(crate) struct Stage {
    _dir: tempfile::TempDir,
    pub(crate) log: Arc<FaultyLog>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) tasks: Tasks,
    started: watch::Receiver<usize>,
    finished: Arc<AtomicUsize>,
    go_on: watch::Sender<bool>,
}

pub(crate) fn stage_with(limits: Limits) -> Stage {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new(dir.path().join("log"), &annals::config::Config::default().log);
    let (engine, _) = EmbeddedLog::open(options, Arc::new(SystemClock)).unwrap();
    let log = Arc::new(FaultyLog::new(engine));
    let lanes = Arc::new(Lanes::new(Arc::clone(&log) as Arc<dyn Log>, Arc::new(SystemClock), "default"));
    let (started_sender, started) = watch::channel(0);
    let (go_on, _) = watch::channel(false);
    let finished = Arc::new(AtomicUsize::new(0));
    let toolbox = Toolbox::default().with(Puppet::new(started_sender, Arc::clone(&finished), go_on.clone()));
    let tasks = Tasks::new();
    let dispatch = Arc::new(Dispatch::new(Arc::clone(&lanes), Arc::new(toolbox), limits, tasks.clone()));
    Stage { _dir: dir, log, lanes, dispatch, tasks, started, finished, go_on }
}

/// A tool of which nobody waits for anything.
pub(crate) fn puppet() -> impl Tool + 'static {
    Puppet::new(watch::channel(0).0, Arc::default(), watch::channel(false).0)
}

pub(crate) fn stage() -> Stage {
    stage_with(Limits::default())
}

fn digest(stage: &Stage, bytes: &[u8]) -> String {
    stage.lanes.draft().redactor.digest(bytes)
}

fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|&item| item.to_owned()).collect()
}

pub(crate) fn request(stage: &Stage, arguments: &str) -> CallRequest {
    request_at(stage.dispatch.clock().now(), arguments)
}

pub(crate) fn request_at(received_at: Timestamp, arguments: &str) -> CallRequest {
    let persona = Persona {
        name: "analyst".into(),
        tools: Globs::new("analyst", &strings(&["*"]), &strings(&["forbidden"])).unwrap(),
        connections: Globs::new("analyst", &strings(&["sales"]), &[]).unwrap(),
        reads_audit: false,
    };
    CallRequest {
        call_id: Uuid::new_v4(),
        received_at,
        principal: Arc::new(Principal {
            subject_id: "sub-1".into(),
            user_name: "ann".into(),
            auth_method: AuthMethod::ApiKey,
            key_id: Some(Uuid::from_u128(9)),
            roles: strings(&["analyst"]),
            no_limit: false,
        }),
        persona: Arc::new(persona),
        tool: "puppet".into(),
        arguments: Some(RawValue::from_string(arguments.into()).unwrap()),
        request_id: "7".into(),
        session_id: None,
        protocol_version: "2026-07-28".into(),
        transport: Transport::Http,
        client: Client {
            ip: Some("127.0.0.1".into()),
            user_agent: Some("test/1".into()),
            ..Client::default()
        },
        cancel: CancellationToken::new(),
    }
}

pub(crate) async fn events(stage: &Stage) -> Vec<Decoded> {
    reading::events(&*stage.log).await
}

pub(crate) async fn kinds(stage: &Stage) -> Vec<Kind> {
    events(stage).await.iter().map(|event| event.kind).collect()
}

pub(crate) async fn until_started(stage: &Stage) {
    tokio::time::timeout(SOON, stage.started.clone().wait_for(|count| *count > 0)).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tool_starts_only_after_its_intent_is_durable() {
    let stage = stage();
    stage.log.set(Fault::Hold(Kind::ToolCallRequested));
    let (dispatch, call) = (Arc::clone(&stage.dispatch), request(&stage, r#"{"do":"answer"}"#));
    let answer = stage.tasks.spawn("call", async move { dispatch.call(call).await });
    stage.log.handed_over(Kind::ToolCallRequested).await;
    let mut started = stage.started.clone();
    let early = tokio::time::timeout(QUIET, started.wait_for(|count| *count > 0)).await;
    assert!(early.is_err(), "the tool ran before its intent was durable");
    stage.log.release();
    assert!(matches!(answer.await.unwrap(), Answer::Completed(_)));
    assert_eq!(*stage.started.borrow(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_result_leaves_before_its_terminal_event_is_durable() {
    let stage = stage();
    stage.log.set(Fault::Hold(Kind::ToolCallCompleted));
    let (dispatch, call) = (Arc::clone(&stage.dispatch), request(&stage, r#"{"do":"answer"}"#));
    let mut answer = stage.tasks.spawn("call", async move { dispatch.call(call).await });
    stage.log.handed_over(Kind::ToolCallCompleted).await;
    let early = tokio::time::timeout(QUIET, &mut answer).await;
    assert!(early.is_err(), "a result left before its terminal event was durable");
    stage.log.release();
    assert!(matches!(answer.await.unwrap(), Answer::Completed(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_intent_runs_nothing() {
    let stage = stage();
    stage.log.set(Fault::Refuse);
    let answer = stage.dispatch.call(request(&stage, r#"{"do":"answer"}"#)).await;
    let Answer::Unavailable { error, retry_after_s } = answer else { panic!("{answer:?}") };
    assert_eq!((error.code(), retry_after_s), ("log_full", 30));
    assert_eq!((*stage.started.borrow(), kinds(&stage).await), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_that_may_be_written_has_its_end() {
    let stage = stage();
    stage.log.set(Fault::LoseAck(Kind::ToolCallRequested));
    let answer = stage.dispatch.call(request(&stage, r#"{"do":"answer"}"#)).await;
    let Answer::Unavailable { error, retry_after_s } = answer else { panic!("{answer:?}") };
    assert_eq!((error.code(), retry_after_s), ("log_unavailable", 2));
    assert_eq!(*stage.started.borrow(), 0);
    // The caller does not wait for that end.
    tokio::time::timeout(SOON, stage.tasks.join()).await.unwrap();
    let events = events(&stage).await;
    let kinds: Vec<Kind> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [Kind::ToolCallRequested, Kind::ToolCallFailed]);
    let Facts::Terminal(_, terminal) = &events[1].facts else { panic!("{events:?}") };
    assert_eq!(terminal.outcome.error.as_ref().map(|error| error.code.as_str()), Some("log_unavailable"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_cannot_be_recorded_is_not_answered_as_one() {
    let stage = stage();
    stage.log.set(Fault::Refuse);
    let answer = stage.dispatch.call(CallRequest { tool: "nope".into(), ..request(&stage, "{}") }).await;
    assert!(matches!(answer, Answer::Unavailable { .. }), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_whose_outcome_may_be_lost_is_withheld() {
    let stage = stage();
    stage.log.set(Fault::LoseAck(Kind::ToolCallCompleted));
    let answer = stage.dispatch.call(request(&stage, r#"{"do":"answer"}"#)).await;
    let Answer::OutcomeUnrecorded(error) = answer else { panic!("{answer:?}") };
    assert_eq!(error.code(), "outcome_unrecorded");
}

/// What a call must leave behind.
struct Expected {
    kinds: &'static [Kind],
    category: Option<Category>,
    code: Option<&'static str>,
}

async fn leaves(stage: &Stage, expected: &Expected) {
    let events = events(stage).await;
    let found: Vec<Kind> = events.iter().map(|event| event.kind).collect();
    assert_eq!(found, expected.kinds);
    let Some(Facts::Terminal(_, terminal)) = events.last().map(|event| &event.facts) else {
        panic!("no terminal event: {found:?}")
    };
    let error = terminal.outcome.error.as_ref();
    assert_eq!(error.map(|error| error.category), expected.category);
    assert_eq!(error.map(|error| error.code.as_str()), expected.code);
    assert_eq!(terminal.authorized, expected.kinds.len() == 2);
    let personal = events.last().unwrap().personal.clone().unwrap();
    assert_eq!(personal.error_message.is_some(), expected.code.is_some());
}

async fn case(tool: &str, arguments: &str, expected: Expected) -> Answer {
    let stage = stage();
    let answer = stage.dispatch.call(CallRequest { tool: tool.into(), ..request(&stage, arguments) }).await;
    leaves(&stage, &expected).await;
    answer
}

const DENIED: &[Kind] = &[Kind::ToolCallDenied];
const FAILED: &[Kind] = &[Kind::ToolCallRequested, Kind::ToolCallFailed];

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_before_the_intent_is_one_denied_event() {
    for (tool, arguments, category, code) in [
        ("pupet", r#"{"do":"x"}"#, Category::Validation, "unknown_tool"),
        ("puppet", r#"{"do":5}"#, Category::Validation, "argument_invalid"),
        ("puppet", r#"{"do":"x","more":1}"#, Category::Validation, "argument_invalid"),
        ("puppet", r#"{"do":"x","purpose":5}"#, Category::Validation, "purpose_not_text"),
        ("puppet", "[1]", Category::Validation, "arguments_not_object"),
        ("puppet", r#"{"do":"panic_in_parse"}"#, Category::Internal, "panic"),
        ("puppet", r#"{"do":"x","connection":"hr"}"#, Category::Authz, "connection_not_allowed"),
    ] {
        let expected = Expected { kinds: DENIED, category: Some(category), code: Some(code) };
        let answer = case(tool, arguments, expected).await;
        let Answer::Denied(error) = answer else { panic!("{code}: {answer:?}") };
        assert_eq!(error.code(), code);
        if code == "unknown_tool" {
            assert!(error.hint.contains("Did you mean puppet?"), "{}", error.hint);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_the_persona_may_not_call_is_denied() {
    let stage = stage();
    let mut call = request(&stage, r#"{"do":"answer"}"#);
    call.persona = Arc::new(Persona { name: "auditor".into(), ..Persona::default() });
    let answer = stage.dispatch.call(call).await;
    assert!(matches!(&answer, Answer::Denied(error) if error.code() == "tool_not_allowed"), "{answer:?}");
    let expected =
        Expected { kinds: DENIED, category: Some(Category::Authz), code: Some("tool_not_allowed") };
    leaves(&stage, &expected).await;
    assert_eq!(*stage.started.borrow(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_call_is_recorded_as_denied() {
    let stage = stage();
    let error = ToolError::new(Reason::ToolNameMissing, "params.name is missing.", "Name the tool.");
    let answer =
        stage.dispatch.refuse(CallRequest { tool: String::new(), ..request(&stage, "{}") }, error).await;
    assert!(matches!(answer, Answer::Denied(_)), "{answer:?}");
    let expected =
        Expected { kinds: DENIED, category: Some(Category::Validation), code: Some("tool_name_missing") };
    leaves(&stage, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_and_a_panicking_tool_are_failed_events() {
    let expected =
        Expected { kinds: FAILED, category: Some(Category::Upstream), code: Some("connection_unreachable") };
    let answer = case("puppet", r#"{"do":"fail"}"#, expected).await;
    assert!(matches!(answer, Answer::Failed(error) if error.code() == "connection_unreachable"));
    for told in ["panic", "panic_at_once"] {
        let expected = Expected { kinds: FAILED, category: Some(Category::Internal), code: Some("panic") };
        let answer = case("puppet", &format!(r#"{{"do":"{told}"}}"#), expected).await;
        assert!(matches!(answer, Answer::Failed(error) if error.code() == "panic"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_over_its_deadline_is_timed_out_even_when_the_tool_does_not_listen() {
    for told in ["obey_cancel", "ignore_cancel"] {
        let stage = stage_with(Limits { call_timeout: Duration::from_millis(200), ..Limits::default() });
        let answer = stage.dispatch.call(request(&stage, &format!(r#"{{"do":"{told}"}}"#))).await;
        assert!(matches!(&answer, Answer::TimedOut(error) if error.code() == "call_timed_out"), "{answer:?}");
        let expected = Expected {
            kinds: &[Kind::ToolCallRequested, Kind::ToolCallTimedOut],
            category: Some(Category::Timeout),
            code: Some("call_timed_out"),
        };
        leaves(&stage, &expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_and_shutdown_are_cancelled_events() {
    for (shutdown, code) in [(false, "cancelled_by_caller"), (true, "cancelled_by_shutdown")] {
        let stage = stage();
        let call = request(&stage, r#"{"do":"obey_cancel"}"#);
        let cancel = call.cancel.clone();
        let dispatch = Arc::clone(&stage.dispatch);
        let answer = Tasks::new().spawn("call", async move { dispatch.call(call).await });
        until_started(&stage).await;
        if shutdown {
            stage.tasks.stop().await;
        } else {
            cancel.cancel();
        }
        let answer = answer.await.unwrap();
        assert!(matches!(&answer, Answer::Cancelled(error) if error.code() == code), "{answer:?}");
        let expected = Expected {
            kinds: &[Kind::ToolCallRequested, Kind::ToolCallCancelled],
            category: Some(Category::Cancelled),
            code: Some(code),
        };
        leaves(&stage, &expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_shutdown_no_call_starts() {
    let stage = stage();
    stage.tasks.stop().await;
    let answer = stage.dispatch.call(request(&stage, r#"{"do":"answer"}"#)).await;
    assert!(
        matches!(&answer, Answer::Unavailable { error, .. } if error.code() == "shutting_down"),
        "{answer:?}"
    );
    assert_eq!((*stage.started.borrow(), kinds(&stage).await), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_caller_does_not_keep_the_outcome_from_being_recorded() {
    let stage = stage();
    let (dispatch, call) = (Arc::clone(&stage.dispatch), request(&stage, r#"{"do":"wait_for_go"}"#));
    let caller = Tasks::new().spawn("call", async move { dispatch.call(call).await });
    until_started(&stage).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    stage.go_on.send_replace(true);
    tokio::time::timeout(SOON, stage.log.handed_over(Kind::ToolCallCompleted)).await.unwrap();
    stage.tasks.join().await;
    assert_eq!(kinds(&stage).await, vec![Kind::ToolCallRequested, Kind::ToolCallCompleted]);
    assert_eq!(stage.finished.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_too_many_is_denied_and_the_place_comes_back() {
    let stage = stage_with(Limits { calls_in_flight_max: 1, ..Limits::default() });
    let (dispatch, call) = (Arc::clone(&stage.dispatch), request(&stage, r#"{"do":"wait_for_go"}"#));
    let first = Tasks::new().spawn("call", async move { dispatch.call(call).await });
    until_started(&stage).await;
    let answer = stage.dispatch.call(request(&stage, r#"{"do":"answer"}"#)).await;
    assert!(matches!(&answer, Answer::Denied(error) if error.code() == "too_many_calls"), "{answer:?}");
    stage.go_on.send_replace(true);
    assert!(matches!(first.await.unwrap(), Answer::Completed(_)));
    let answer = stage.dispatch.call(request(&stage, r#"{"do":"answer"}"#)).await;
    assert!(matches!(answer, Answer::Completed(_)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_event_stands_alone() {
    let stage = stage();
    let mut call = request(&stage, r#"{"do":"answer","connection":"sales","purpose":"to see"}"#);
    call.session_id = Some("session-1".into());
    call.client.asserted =
        Some(RawValue::from_string(r#"{"clientInfo":{"name":"x","y":1}}"#.into()).unwrap());
    let call_id = call.call_id;
    let Answer::Completed(result) = stage.dispatch.call(call).await else { panic!("not completed") };
    let events = events(&stage).await;
    let [Facts::Requested(intent), Facts::Terminal(Kind::ToolCallCompleted, terminal)] =
        [&events[0].facts, &events[1].facts]
    else {
        panic!("{events:?}")
    };
    assert_eq!(intent.call, terminal.call);
    for event in &events {
        let ack = (event.common.ack, event.common.ack_check);
        assert_eq!(ack, (AckClass::Fsync, AckCheck::Verified), "what the embedded log's ack means");
    }
    assert_eq!(intent.deadline, intent.call.received_at.plus_micros(30_000_000));
    assert_eq!(terminal.call.call_id, call_id);
    assert_eq!(terminal.call.connection.as_deref(), Some("sales"));
    assert_eq!(terminal.call.session_id.as_deref(), Some("session-1"));
    let arguments = r#"{"do":"answer","connection":"sales"}"#;
    assert_eq!(terminal.call.arguments_hmac, Some(digest(&stage, arguments.as_bytes())));
    assert_eq!(terminal.outcome.result_hmac, Some(digest(&stage, &result.structured)));
    assert_eq!(terminal.outcome.response_bytes, result.structured.len() as u64);
    let personal = events[1].personal.clone().unwrap();
    assert_eq!(personal.purpose.as_deref(), Some("to see"));
    assert_eq!(personal.arguments.unwrap().get(), arguments);
    assert_eq!(personal.asserted.unwrap().get(), r#"{"clientInfo":{"name":"x","y":1}}"#);
    assert_eq!(
        (personal.user_name.as_deref(), personal.client_ip.as_deref()),
        (Some("ann"), Some("127.0.0.1"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_over_the_limit_leave_digest_and_size() {
    let stage = stage_with(Limits { recorded_arguments_bytes_max: 64, ..Limits::default() });
    let arguments = format!(r#"{{"do":"{}"}}"#, "x".repeat(100));
    assert!(matches!(stage.dispatch.call(request(&stage, &arguments)).await, Answer::Completed(_)));
    let events = events(&stage).await;
    let Facts::Terminal(_, terminal) = &events[1].facts else { panic!("{events:?}") };
    assert_eq!(terminal.call.arguments_bytes, arguments.len() as u64);
    assert_eq!(terminal.call.arguments_hmac, Some(digest(&stage, arguments.as_bytes())));
    assert!(events[1].personal.clone().unwrap().arguments.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_call_still_fits_an_event() {
    let limits = Limits { recorded_arguments_bytes_max: 96 * 1024, ..Limits::default() };
    let stage = stage_with(limits);
    // Every byte of these arguments doubles when JSON stands in JSON.
    let hard = r#"\""#.repeat((96 * 1024 - 100) / 2);
    let purpose = "\\u0000".repeat(1_000);
    let arguments = format!(r#"{{"do":"fail","x":"{hard}"}}"#).replace(r#","x""#, r#","connection""#);
    let arguments = arguments.replace(r#""do":"fail""#, &format!(r#""do":"fail","purpose":"{purpose}""#));
    let answer = stage.dispatch.call(request(&stage, &arguments)).await;
    assert!(
        matches!(&answer, Answer::Denied(error) if error.code() == "connection_not_allowed"),
        "{answer:?}"
    );
    assert_eq!(kinds(&stage).await, vec![Kind::ToolCallDenied]);
    assert!(events(&stage).await[0].personal.clone().unwrap().arguments.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_one_session_keep_their_order_and_chain() {
    let stage = stage();
    for _ in 0..5 {
        let call = CallRequest { session_id: Some("s".into()), ..request(&stage, r#"{"do":"answer"}"#) };
        assert!(matches!(stage.dispatch.call(call).await, Answer::Completed(_)));
    }
    let heads = stage.lanes.heads();
    assert_eq!(heads.iter().map(|head| head.seq).collect::<Vec<_>>(), vec![9], "one lane, ten events");
    let found = events(&stage).await;
    assert_eq!(found.len(), 10, "every event that was recorded is there");
    let times: Vec<Timestamp> = found.iter().map(|event| event.occurred_at).collect();
    assert!(times.is_sorted(), "{times:?}");
}
