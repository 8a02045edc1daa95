//! One call, from decision to recorded outcome. Everything here runs in the call's own task, so that neither a
//! vanished client nor a panicking tool can keep the terminal event from being written.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::late::{self, Winding};
use super::purpose;
use super::rate::Place;
use super::record::{CallRecord, Ending, Keep};
use super::{Answer, CallRequest, Dispatch, Inner, Limits, UnrecordedCall, UnrecordedRefusal};
use crate::auth::Persona;
use crate::base::{nearest, planted, whole};
use crate::event::TopicPartition;
use crate::log::{Receipt, RecordError, Refusal, Reservation};
use crate::refusal::Reason;
use crate::tools::{CallContext, Prepared, Tool, ToolError, ToolResult, schema};

type Run = BoxFuture<'static, Result<ToolResult, ToolError>>;

pub(super) async fn call(dispatch: &Dispatch, request: CallRequest) -> Answer {
    own_task(dispatch, async move |inner: Arc<Inner>| decide_and_run(inner, request).await).await
}

pub(super) async fn refuse(dispatch: &Dispatch, request: CallRequest, error: ToolError) -> Answer {
    own_task(dispatch, async move |inner: Arc<Inner>| {
        // What can be read of the arguments is recorded, though nobody was asked about them.
        let split = purpose::split(request.arguments.as_deref()).unwrap_or_else(|_| purpose::Split {
            arguments: request.arguments.clone().unwrap_or_default(),
            purpose: None,
        });
        let definition = inner.toolbox.get(&request.tool).map(|tool| tool.definition());
        let keep = keep(&inner, &inner.limits);
        let record = CallRecord::new(&request, &split.arguments, split.purpose, definition, None, &keep);
        deny(&inner, &record, error).await
    })
    .await
}

async fn own_task<F, Fut>(dispatch: &Dispatch, run: F) -> Answer
where
    F: FnOnce(Arc<Inner>) -> Fut,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let future = run(Arc::clone(&dispatch.inner));
    match dispatch.inner.tasks.spawn("tool call", future).await {
        Ok(answer) => answer,
        Err(error) => {
            // Only a bug of this module gets here: tools' panics are caught below.
            tracing::error!(error = %error, "the task of a call ended without an answer");
            Answer::OutcomeUnrecorded(ToolError::internal(Reason::CallTaskLost))
        }
    }
}

/// What the checks before the intent found.
struct Decided {
    record: CallRecord,
    prepared: Box<dyn Prepared>,
    permit: Place,
}

async fn decide_and_run(inner: Arc<Inner>, request: CallRequest) -> Answer {
    match decide(&inner, &request) {
        Ok(decided) => with_intent(inner, request, decided).await,
        Err(refused) => {
            let (record, error) = *refused;
            deny(&inner, &record, error).await
        }
    }
}

fn decide(inner: &Inner, request: &CallRequest) -> Result<Decided, Box<(CallRecord, ToolError)>> {
    let limits = &inner.limits;
    let (split, bad_arguments) = match purpose::split(request.arguments.as_deref()) {
        Ok(split) => (split, None),
        Err(error) => {
            let raw = request.arguments.clone().unwrap_or_default();
            (purpose::Split { arguments: raw, purpose: None }, Some(error))
        }
    };
    let purpose = split.purpose;
    let arguments = split.arguments;
    let tool = inner.toolbox.get(&request.tool);
    let definition = tool.map(|tool| tool.definition());
    let record = |connection: Option<&str>| {
        CallRecord::new(request, &arguments, purpose.clone(), definition, connection, &keep(inner, limits))
    };
    if let Err(error) = inner.rate.take_one(&request.principal) {
        // Digest and size are enough of the arguments: what is refused for its rate must cost little.
        let limits = Limits { recorded_arguments_bytes_max: 0, ..*limits };
        let record = CallRecord::new(request, &arguments, None, definition, None, &keep(inner, &limits));
        return Err(Box::new((record, error)));
    }
    let Some(tool) = tool else {
        return Err(Box::new((record(None), unknown_tool(inner, request))));
    };
    if !request.persona.tools.allows(&request.tool) {
        return Err(Box::new((record(None), tool_not_allowed(request))));
    }
    if let Some(error) = bad_arguments {
        return Err(Box::new((record(None), error)));
    }
    let prepared = parse(tool.as_ref(), &arguments, &request.persona)
        .map_err(|error| Box::new((record(None), error)))?;
    let connection = prepared.connection();
    if let Some(name) = connection
        && !request.persona.connections.allows(name)
    {
        return Err(Box::new((record(connection), connection_not_allowed(name))));
    }
    let record = record(connection);
    match inner.rate.enter(&request.principal) {
        Ok(permit) => Ok(Decided { record, prepared, permit }),
        Err(error) => Err(Box::new((record, error))),
    }
}

/// What decides how much of a call is kept.
fn keep<'a>(inner: &'a Inner, limits: &'a Limits) -> Keep<'a> {
    Keep { redactor: &inner.lanes.draft().redactor, recording: &inner.recording, limits }
}

fn parse(
    tool: &dyn Tool,
    arguments: &serde_json::value::RawValue,
    persona: &Persona,
) -> Result<Box<dyn Prepared>, ToolError> {
    let read = || {
        let mut prepared = schema::read(tool, arguments)?;
        prepared.resolve(persona)?;
        Ok(prepared)
    };
    std::panic::catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(ToolError::internal(Reason::Panic)))
}

async fn deny(inner: &Inner, record: &CallRecord, error: ToolError) -> Answer {
    let now = inner.lanes.clock().now();
    let ending = Ending::Denied(&error);
    let Some(event) = record.terminal(inner.lanes.draft(), now, &ending, u64::MAX) else {
        return unavailable(inner, &RecordError::Refused(Refusal::Failed("the event has no form".into())));
    };
    if planted::armed("denial_unrecorded") {
        return Answer::Denied(error);
    }
    match inner.lanes.record(event).await {
        Ok(_) => Answer::Denied(error),
        Err(cause) => unavailable(inner, &cause),
    }
}

async fn with_intent(inner: Arc<Inner>, request: CallRequest, decided: Decided) -> Answer {
    let Decided { record, prepared, permit } = decided;
    if inner.tasks.cancel_token().is_cancelled() {
        return unavailable(&inner, &RecordError::Refused(Refusal::Closed));
    }
    let lanes = &inner.lanes;
    let timeout = i64::try_from(inner.limits.call_timeout.as_micros()).unwrap_or(i64::MAX);
    let deadline = request.received_at.plus_micros(timeout);
    let Some(intent) = record.intent(lanes.draft(), lanes.clock().now(), deadline) else {
        return unavailable(&inner, &RecordError::Refused(Refusal::Failed("the event has no form".into())));
    };
    // Room for the outcome is set aside now: a call that may run can always say how it ended.
    let bytes = intent.body.len() as u64;
    let mut room = match lanes.reserve(2, bytes + bytes + record.outcome_extra_bytes()).await {
        Ok(room) => room,
        Err(cause) => return unavailable(&inner, &cause),
    };
    let Some(for_intent) = room.take(bytes) else {
        return unavailable(&inner, &RecordError::Refused(Refusal::Busy));
    };
    let cancel = CancellationToken::new();
    let context = CallContext {
        call_id: request.call_id,
        principal: Arc::clone(&request.principal),
        persona: Arc::clone(&request.persona),
        client: Arc::new(request.client.clone()),
        cancel: cancel.clone(),
    };
    let recorded = lanes.record_in(for_intent, intent);
    if planted::armed("run_before_intent") {
        drop(recorded);
    } else if let Err(cause) = recorded.await {
        if let RecordError::Uncertain(_) = cause {
            end_unstarted(&inner, &record, room);
        }
        return unavailable(&inner, &cause);
    }
    // Started inside the future, so that a tool that panics at once is caught like one that panics later.
    let run = async move { prepared.run(context).await }.boxed();
    let (ended, winding) = drive(&inner, &request, run, &cancel, permit).await;
    conclude(&inner, record, room, ended, winding).await
}

/// The intent may be written, late: then this end follows it, and nobody needs to wait for that.
fn end_unstarted(inner: &Inner, record: &CallRecord, room: Reservation) {
    if planted::armed("uncertain_intent_left_open") {
        return;
    }
    let error = ToolError::new(
        Reason::LogUnavailable,
        "The audit log did not take the call in time; nothing was run.",
        "Retry later.",
    );
    match send_end(inner, record, room, &Ending::Failed(&error)) {
        Ok(recorded) => {
            inner.tasks.spawn("end of a call that was not started", async move {
                if let Err(cause) = recorded.await {
                    tracing::debug!(cause = %cause, "the end of a call that was not started may be written late");
                }
            });
        }
        Err(cause) => tracing::error!(cause, "a call that was not started has no end on the log"),
    }
}

/// Hands over how the call ended, in the room that was set aside for it. Its place in the lane is fixed when this returns;
/// it is durable when the result is awaited.
fn send_end(
    inner: &Inner,
    record: &CallRecord,
    mut room: Reservation,
    ending: &Ending<'_>,
) -> Result<impl Future<Output = Result<Receipt, RecordError>> + Send + use<>, &'static str> {
    let now = inner.lanes.clock().now();
    let event = record.terminal(inner.lanes.draft(), now, ending, room.bytes());
    let event = event.ok_or("the event has no form")?;
    let reserved = room.take(event.body.len() as u64);
    let reserved = reserved.ok_or("the room set aside for the outcome is too small")?;
    Ok(inner.lanes.record_in(reserved, event))
}

/// What became of the tool.
enum Ended {
    Completed(ToolResult),
    Failed(ToolError),
    TimedOut(ToolError),
    Cancelled(ToolError),
}

async fn drive(
    inner: &Inner,
    request: &CallRequest,
    run: Run,
    cancel: &CancellationToken,
    permit: Place,
) -> (Ended, Option<Winding>) {
    let mut run = AssertUnwindSafe(run).catch_unwind().boxed();
    let spent = inner.lanes.clock().now().millis_since(request.received_at);
    let left = inner.limits.call_timeout.saturating_sub(Duration::from_millis(spent));
    let ended = tokio::select! {
        biased;
        result = &mut run => {
            let ended = match result {
                Ok(Ok(result)) => Ended::Completed(result),
                Ok(Err(error)) => Ended::Failed(error),
                Err(_) => {
                    tracing::error!(tool.name = %request.tool, call.id = %request.call_id, "a tool panicked");
                    Ended::Failed(ToolError::internal(Reason::Panic))
                }
            };
            return (ended, None);
        }
        () = request.cancel.cancelled() => Ended::Cancelled(cancelled(Reason::CancelledByCaller)),
        () = inner.tasks.cancel_token().cancelled() => Ended::Cancelled(cancelled(Reason::CancelledByShutdown)),
        () = tokio::time::sleep(left) => Ended::TimedOut(timed_out(inner.limits.call_timeout)),
    };
    cancel.cancel();
    (ended, Some(Winding { run, permit }))
}

/// Records how the call ended. Until that is durable nothing of the result leaves.
async fn conclude(
    inner: &Arc<Inner>,
    record: CallRecord,
    room: Reservation,
    ended: Ended,
    winding: Option<Winding>,
) -> Answer {
    let ending = match &ended {
        Ended::Completed(result) => Ending::Completed(result),
        Ended::Failed(error) => Ending::Failed(error),
        Ended::TimedOut(error) => Ending::TimedOut(error),
        Ended::Cancelled(error) => Ending::Cancelled(error),
    };
    let (call_id, target) = (record.call_id(), record.target());
    let recorded = match send_end(inner, &record, room, &ending) {
        Ok(recorded) => recorded,
        Err(cause) => {
            if let Some(winding) = winding {
                late::spawn_unheard(inner, winding);
            }
            return unrecorded(inner, call_id, target, cause);
        }
    };
    // Only now: what the tool gives later comes later in the lane.
    if let Some(winding) = winding {
        late::spawn(inner, record, winding);
    }
    if planted::armed("answer_before_outcome") {
        drop(recorded);
    } else if let Err(cause) = recorded.await {
        return unrecorded(inner, call_id, target, &cause.to_string());
    }
    match ended {
        Ended::Completed(result) => Answer::Completed(result),
        Ended::Failed(error) => Answer::Failed(error),
        Ended::TimedOut(error) => Answer::TimedOut(error),
        Ended::Cancelled(error) => Answer::Cancelled(error),
    }
}

/// The call is left to the closer, which looks whether its end stands on the log after all.
fn unrecorded(inner: &Inner, call_id: Uuid, target: TopicPartition, cause: &str) -> Answer {
    tracing::error!(
        cause,
        call.id = %call_id,
        "the outcome of a call could not be recorded; its result is withheld"
    );
    let heads = inner.lanes.heads();
    let head = heads.iter().find(|head| (head.topic, head.partition) == (target.topic, target.partition));
    let call = UnrecordedCall { call_id, target, through_seq: head.map(|head| head.seq) };
    if !inner.outcomes.unrecorded.add(call) {
        tracing::warn!(call.id = %call_id, "too many such calls; this one is closed at the next start");
    }
    Answer::OutcomeUnrecorded(ToolError::new(
        Reason::OutcomeUnrecorded,
        "The tool ran, but its outcome could not be recorded, so its result is withheld. It may have had an effect.",
        "Check the effect before you repeat the call; give the operator the call id.",
    ))
}

fn unavailable(inner: &Inner, cause: &RecordError) -> Answer {
    let UnrecordedRefusal { error, retry_after_s } = unrecorded_refusal(inner, cause, Undone::Call);
    Answer::Unavailable { error, retry_after_s }
}

/// What was asked for and did not come about, since the log did not take its event.
#[derive(Debug, Clone, Copy)]
pub(super) enum Undone {
    /// A call.
    Call,
    /// A session's start.
    SessionStart,
    /// A session's end: it is over all the same, and recorded later.
    SessionEnd,
    /// A refusal of what is no call.
    Refusal,
}

impl Undone {
    /// How it is said, and what to know about it.
    const fn said(self) -> (&'static str, &'static str) {
        match self {
            Self::Call => ("nothing was run", "No call runs without its record."),
            Self::SessionStart => ("no session was opened", "No session opens without its record."),
            Self::SessionEnd => ("the end of the session is recorded later", "The session is over."),
            Self::Refusal => ("nothing was decided", "Nothing is refused without its record."),
        }
    }
}

/// What a caller is told instead of a decision or an event that the log did not take.
pub(super) fn unrecorded_refusal(inner: &Inner, cause: &RecordError, undone: Undone) -> UnrecordedRefusal {
    if let Some(refused) = inner.refusals.one_more(inner.lanes.clock().monotonic()) {
        tracing::warn!(cause = %cause, refused, "calls are refused because the log does not accept");
    }
    let (reason, what, retry_after_s) = match cause {
        RecordError::Refused(Refusal::Busy) => (Reason::LogBusy, "The audit log is busy", 1),
        RecordError::Refused(Refusal::Full(_)) => (Reason::LogFull, "The audit log has no room", 30),
        RecordError::Refused(Refusal::Closed) => (Reason::ShuttingDown, "The server is stopping", 5),
        RecordError::Refused(Refusal::Suspended(_)) | RecordError::Uncertain(_) => {
            (Reason::LogUnavailable, "The audit log cannot write now", 2)
        }
        RecordError::Refused(Refusal::Failed(_)) => {
            (Reason::LogUnavailable, "The audit log does not accept", 30)
        }
    };
    let undone = if planted::armed("unrecorded_is_always_a_call") { Undone::Call } else { undone };
    let (consequence, rule) = undone.said();
    let hint = format!("{rule} Retry later; the operator finds the cause in /readyz and the logs.");
    let error = ToolError::new(reason, format!("{what}; {consequence}."), hint);
    UnrecordedRefusal { error, retry_after_s }
}

fn cancelled(reason: Reason) -> ToolError {
    ToolError::new(reason, "The call was cancelled.", "Call again when you still need the answer.")
}

fn timed_out(timeout: Duration) -> ToolError {
    ToolError::new(
        Reason::CallTimedOut,
        format!("The call took longer than {} ms.", timeout.as_millis()),
        "Ask for less at once, or have the operator raise limits.call_timeout_ms.",
    )
}

fn unknown_tool(inner: &Inner, request: &CallRequest) -> ToolError {
    let allowed = inner
        .toolbox
        .iter()
        .map(|tool| tool.definition().name)
        .filter(|name| request.persona.tools.allows(name));
    let hint = match nearest(&request.tool, allowed) {
        Some(name) => format!("Did you mean {name}? tools/list has all tools that you may call."),
        None => "tools/list has all tools that you may call.".to_owned(),
    };
    let name = whole(&request.tool, 128);
    ToolError::new(Reason::UnknownTool, format!("There is no tool {name:?}."), hint)
}

fn tool_not_allowed(request: &CallRequest) -> ToolError {
    ToolError::new(
        Reason::ToolNotAllowed,
        format!("Persona {:?} may not call {:?}.", request.persona.name, request.tool),
        "tools/list has all tools that you may call; the operator can change the persona.",
    )
}

fn connection_not_allowed(name: &str) -> ToolError {
    ToolError::new(
        Reason::ConnectionNotAllowed,
        format!("Your persona may not reach connection {name:?}."),
        "list_connections has all that you may reach.",
    )
}
