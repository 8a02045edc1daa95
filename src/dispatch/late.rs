//! What a tool gives after its call has ended without it: the wind-down, and the `tool_call.late` event.
//!
//! The call's end stands already; nothing in here changes it. A tool that obeys, by giving an error of the category
//! `cancelled`, leaves no event.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::rate::Place;
use futures::future::BoxFuture;

use super::Inner;
use super::record::{CallRecord, Ending};
use crate::base::{Category, planted};
use crate::log::{RecordError, Refusal};
use crate::refusal::Reason;
use crate::tools::{ToolError, ToolResult};

/// How long a tool may take to wind down after it was told to stop; then it is dropped.
const WIND_DOWN: Duration = Duration::from_secs(5);

/// The same while the process stops, which waits for it no longer than a second.
const WIND_DOWN_STOPPING: Duration = Duration::from_millis(400);

/// How long a log that refuses is left alone before it is asked again.
const RETRY: Duration = Duration::from_millis(250);

/// A tool at work, whose panics are caught.
pub(super) type Caught = BoxFuture<'static, Result<Result<ToolResult, ToolError>, Box<dyn Any + Send>>>;

/// A tool that was told to stop, in its place among the running calls.
pub(super) struct Winding {
    pub(super) run: Caught,
    pub(super) permit: Place,
}

/// What came after the end.
#[derive(Debug)]
pub(super) enum After {
    /// A result.
    Completed(ToolResult),
    /// An error, or a caught panic.
    Failed(ToolError),
    /// Nothing: it was dropped, and what it did by then is not known.
    Dropped(ToolError),
}

/// Lets the tool wind down and records what it gives. The call's end must be in its lane already. The answer does not wait
/// for this; the tool's place among the running calls stays taken until then, which bounds how many wait for a log.
pub(super) fn spawn(inner: &Arc<Inner>, record: CallRecord, winding: Winding) {
    let of_task = Arc::clone(inner);
    inner.tasks.spawn("tool wind-down", async move {
        let Winding { run, permit } = winding;
        if let Some(after) = wind_down(&of_task, run).await {
            record_late(&of_task, &record, &after).await;
        }
        drop(permit);
    });
}

/// As [`spawn`], of a call whose end has no place in its lane: then nothing may stand behind it.
pub(super) fn spawn_unheard(inner: &Arc<Inner>, winding: Winding) {
    let of_task = Arc::clone(inner);
    inner.tasks.spawn("tool wind-down", async move {
        let Winding { run, permit } = winding;
        drop(wind_down(&of_task, run).await);
        drop(permit);
    });
}

async fn wind_down(inner: &Inner, run: Caught) -> Option<After> {
    let stopping = async {
        inner.tasks.cancel_token().cancelled().await;
        tokio::time::sleep(WIND_DOWN_STOPPING).await;
    };
    tokio::select! {
        biased;
        given = run => of(given),
        () = tokio::time::sleep(WIND_DOWN) => Some(After::Dropped(dropped())),
        () = stopping => Some(After::Dropped(dropped())),
    }
}

/// `None`: it did as it was told.
fn of(given: Result<Result<ToolResult, ToolError>, Box<dyn Any + Send>>) -> Option<After> {
    match given {
        Ok(Ok(result)) => Some(After::Completed(result)),
        Ok(Err(error)) if error.category() == Category::Cancelled => None,
        Ok(Err(error)) => Some(After::Failed(error)),
        Err(_) => Some(After::Failed(ToolError::internal(Reason::Panic))),
    }
}

fn dropped() -> ToolError {
    ToolError::new(
        Reason::ToolDropped,
        "The tool did not stop when it was told to, and was dropped; it may have had an effect.",
        "Check the effect before you repeat the call.",
    )
}

/// Records it, and waits for a log that does not take it now. What cannot be recorded is said in the server's own log.
async fn record_late(inner: &Inner, record: &CallRecord, after: &After) {
    if planted::armed("late_unrecorded") {
        return;
    }
    let call_id = record.call_id();
    if let After::Dropped(_) = after {
        tracing::warn!(call.id = %call_id, "a cancelled tool did not stop in time and was dropped");
    }
    let ending = Ending::Late(after);
    let Some(event) = record.terminal(inner.lanes.draft(), inner.lanes.clock().now(), &ending, u64::MAX)
    else {
        return;
    };
    let mut told = false;
    loop {
        match inner.lanes.record(event.clone()).await {
            Ok(_) => break,
            Err(RecordError::Uncertain(cause)) => {
                tracing::debug!(cause, call.id = %call_id, "what a tool gave late may be written later");
                break;
            }
            Err(RecordError::Refused(cause @ (Refusal::Closed | Refusal::Failed(_)))) => {
                tracing::error!(cause = %cause, call.id = %call_id, "what a tool gave late is not on the log");
                return;
            }
            Err(RecordError::Refused(cause)) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(cause = %cause, call.id = %call_id, "what a tool gave late waits for the log");
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
    inner.outcomes.metrics.late.inc();
}
