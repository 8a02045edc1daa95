//! The path of one call: decide, record the intent, run the tool, record the outcome, and only then answer.
//!
//! Knows nothing of HTTP or JSON-RPC. No result leaves [`Dispatch::call`] before its terminal event is durable.

mod late;
mod limits;
mod metrics;
mod purpose;
mod rate;
mod record;
mod recording;
mod refusals;
mod refuse;
mod run;
mod session;
mod unrecorded;

pub use limits::Limits;
pub use metrics::Metrics;
pub use recording::{GlobError, Recording};
pub(crate) use refusals::Refusals;
pub use refuse::{RefusedRequest, UnrecordedRefusal};
pub use session::SessionUnrecorded;
pub use unrecorded::{Unrecorded, UnrecordedCall};

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use uuid::Uuid;

use crate::auth::{Persona, Principal};
use crate::base::{Tasks, Timestamp, TraceParent};
use crate::event::Transport;
use crate::log::Lanes;
use crate::tools::{ToolError, ToolResult, Toolbox};

/// A tool call as a transport hands it over: authenticated, not yet decided.
#[derive(Debug, Clone)]
pub struct CallRequest {
    /// Minted before anything else.
    pub call_id: Uuid,
    /// When the request was received.
    pub received_at: Timestamp,
    /// Who calls.
    pub principal: Arc<Principal>,
    /// What they may reach.
    pub persona: Arc<Persona>,
    /// The tool's name as asked for.
    pub tool: String,
    /// The arguments as received, a JSON object; `None` when absent.
    pub arguments: Option<Box<RawValue>>,
    /// The JSON-RPC id as received, as JSON text.
    pub request_id: String,
    /// The transport session, when there is one.
    pub session_id: Option<String>,
    /// The MCP revision.
    pub protocol_version: String,
    /// How it came in.
    pub transport: Transport,
    /// What is known of the peer.
    pub client: Client,
    /// Fired by the transport when the caller cancels, or vanishes where that is a cancel.
    pub cancel: CancellationToken,
}

/// What is known of a peer; everything in it but the address could be forged.
#[derive(Debug, Clone, Default)]
pub struct Client {
    /// The peer's address.
    pub ip: Option<String>,
    /// The `User-Agent` header.
    pub user_agent: Option<String>,
    /// What the caller claims, as a JSON object: the claims in its `headers` and, once a message was read, `clientInfo` and
    /// `_meta`.
    pub asserted: Option<Box<RawValue>>,
    /// The trace that the caller says its request belongs to.
    pub trace: Option<TraceParent>,
}

/// How a call ended. Each but [`Answer::Unavailable`] and [`Answer::OutcomeUnrecorded`] has a durable terminal event.
#[derive(Debug, Clone)]
pub enum Answer {
    /// The tool's result.
    Completed(ToolResult),
    /// The tool ran and failed, or a panic was caught (category `internal`).
    Failed(ToolError),
    /// Refused before the tool was asked.
    Denied(ToolError),
    /// The deadline passed.
    TimedOut(ToolError),
    /// The caller cancelled; nobody may be listening.
    Cancelled(ToolError),
    /// The log did not take the intent (or the denial): nothing ran. Retry after `retry_after_s`.
    Unavailable {
        /// The public error.
        error: ToolError,
        /// Seconds.
        retry_after_s: u32,
    },
    /// The tool may have had an effect, but its outcome could not be recorded; the result is withheld.
    /// The call is closed later, once the log takes that.
    OutcomeUnrecorded(ToolError),
}

/// Runs calls.
pub struct Dispatch {
    inner: Arc<Inner>,
}

struct Inner {
    lanes: Arc<Lanes>,
    toolbox: Arc<Toolbox>,
    limits: Limits,
    recording: Recording,
    rate: rate::Limiter,
    tasks: Tasks,
    refusals: Refusals,
    outcomes: Outcomes,
}

/// What others see of how calls end. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Outcomes {
    /// Calls whose end could not be recorded.
    pub unrecorded: Arc<Unrecorded>,
    /// What is counted.
    pub metrics: Metrics,
}

impl Dispatch {
    /// Runs calls of `toolbox`, recorded in `lanes`; each call is a task of `tasks`. Once `tasks` is asked to stop,
    /// running calls end as cancelled and new ones are refused.
    #[must_use]
    pub fn new(lanes: Arc<Lanes>, toolbox: Arc<Toolbox>, limits: Limits, tasks: Tasks) -> Self {
        Self::recording(lanes, toolbox, limits, Recording::default(), tasks, Outcomes::default())
    }

    /// As [`Dispatch::new`], seen by others through `outcomes`.
    #[must_use]
    pub fn with_outcomes(
        lanes: Arc<Lanes>,
        toolbox: Arc<Toolbox>,
        limits: Limits,
        tasks: Tasks,
        outcomes: Outcomes,
    ) -> Self {
        Self::recording(lanes, toolbox, limits, Recording::default(), tasks, outcomes)
    }

    /// The same, which keeps in the record what `recording` says.
    #[must_use]
    pub fn recording(
        lanes: Arc<Lanes>,
        toolbox: Arc<Toolbox>,
        limits: Limits,
        recording: Recording,
        tasks: Tasks,
        outcomes: Outcomes,
    ) -> Self {
        let rate = rate::Limiter::new(limits, Arc::clone(lanes.clock()));
        let refusals = Refusals::default();
        Self { inner: Arc::new(Inner { lanes, toolbox, limits, recording, rate, tasks, refusals, outcomes }) }
    }

    /// Registers what dispatch counts.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.inner.rate.register(registry);
    }

    /// The tools, for listing.
    #[must_use]
    pub fn toolbox(&self) -> &Arc<Toolbox> {
        &self.inner.toolbox
    }

    /// The clock that stamps calls.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn crate::base::Clock> {
        self.inner.lanes.clock()
    }

    /// Runs one call to its recorded end. The call goes on when this future is dropped; only `request.cancel` stops it.
    pub async fn call(&self, request: CallRequest) -> Answer {
        let span = span_of(self, &request);
        run::call(self, request).instrument(span).await
    }

    /// Records that a request which names a call was refused before it could be one (its parameters are malformed).
    pub async fn refuse(&self, request: CallRequest, error: ToolError) -> Answer {
        let span = span_of(self, &request);
        run::refuse(self, request, error).instrument(span).await
    }
}

/// What log lines within a call carry. Names that a caller made up stay out of it. It is an error's span, so that no
/// filter takes it from the lines it lets through.
fn span_of(dispatch: &Dispatch, request: &CallRequest) -> tracing::Span {
    let tool = dispatch.inner.toolbox.get(&request.tool).map_or("unknown", |tool| tool.definition().name);
    tracing::error_span!(
        "tool_call",
        call.id = %request.call_id,
        tool.name = tool,
        trace.id = request.client.trace.map(|trace| trace.trace_id()),
        trace.parent_id = request.client.trace.map(|trace| trace.parent_id()),
    )
}
