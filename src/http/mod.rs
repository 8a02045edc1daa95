//! HTTP: routes, the checks before them and the listener. Extracts, makes one call into the domain, maps the answer.
//!
//! Never touches the log or Postgres: whether they are well is told by a closure. The client's address is decided once,
//! in [`proxies`]; a header has a say in it only where a trusted proxy wrote it.

mod asserted;
mod audit;
mod cors;
mod guard;
mod health;
mod mcp;
mod patience;
mod problem;
mod proxies;
mod serve;

pub use guard::Guard;
pub use health::{Readiness, StoreState, metrics_router};
pub use problem::{ErrorKind, Problem};
pub use proxies::{Proxies, network};
pub use serve::{ListenerLimits, Peer, serve, serve_within};

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, ORIGIN, USER_AGENT};
use axum::http::{HeaderMap, HeaderName};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};

use crate::auth::{Auth, AuthError, Persona, Presented, Principal};
use crate::base::TraceParent;
use crate::dispatch::Client;
use crate::query::Query;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const USER_AGENT_BYTES_MAX: usize = 256;

/// What the routes need.
pub struct State {
    /// Answers MCP.
    pub mcp: crate::mcp::Server,
    /// Decides who calls.
    pub auth: Arc<Auth>,
    /// Reads the audit.
    pub query: Arc<Query>,
    /// Whether log and store are well now.
    pub readiness: Box<dyn Fn() -> Readiness + Send + Sync>,
    /// Which hosts and origins are served.
    pub guard: Guard,
    /// Whose word on a client's address is taken.
    pub proxies: Proxies,
    /// Body of one request at most, bytes.
    pub body_bytes_max: usize,
    /// How long a client may take to send a body.
    pub body_timeout: Duration,
}

/// The routes of the main listener. Serve it with [`serve`], which tells the routes who the peer is.
pub fn router(state: State) -> Router {
    let proxies = Arc::new(state.proxies.clone());
    let state = Arc::new(state);
    let guarded = Router::new()
        .route("/", any(mcp::endpoint))
        .route("/mcp", any(mcp::endpoint))
        .route("/api/v1/admin/audit/events", get(audit::events))
        .route("/api/v1/admin/audit/events/{id}", get(audit::event))
        .route("/robots.txt", get(health::robots))
        .fallback(async || Problem::no_route())
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&state), guard_request))
        .with_state(Arc::clone(&state));
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(state)
        .merge(guarded)
        .layer(middleware::from_fn_with_state(proxies, proxies::resolve))
}

async fn guard_request(
    axum::extract::State(state): axum::extract::State<Arc<State>>,
    request: Request,
    next: Next,
) -> Response {
    match state.guard.check(request.headers(), request.uri()) {
        Ok(()) => {
            if let Some(answer) = cors::preflight(request.method(), request.headers()) {
                return answer;
            }
            let origin = request.headers().get(ORIGIN).cloned();
            cors::readable(next.run(request).await, origin.as_ref())
        }
        Err(problem) if mcp::is_endpoint(request.uri().path()) => problem.into_mcp(),
        Err(problem) => problem.into_response(),
    }
}

async fn method_not_allowed() -> Problem {
    let message = "This path does not take this HTTP method.";
    Problem::new(ErrorKind::MethodNotAllowed, "method_not_allowed", message, "Use GET.")
}

/// What is known of the peer before anybody is authenticated.
fn client_of(peer: Option<Peer>, headers: &HeaderMap) -> Client {
    let user_agent = headers.get(USER_AGENT).map(|value| {
        let text = String::from_utf8_lossy(value.as_bytes());
        crate::base::clip(&text, USER_AGENT_BYTES_MAX).to_owned()
    });
    Client {
        ip: peer.map(|peer| peer.0.ip().to_canonical().to_string()),
        user_agent,
        asserted: asserted::asserted(headers),
        trace: trace_of(headers),
    }
}

/// The trace in the header; one that is repeated is none.
fn trace_of(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => TraceParent::parse(value.to_str().ok()?),
        _ => None,
    }
}

/// Who calls, or why that cannot be told. `route` is the method and the path.
async fn authenticate(
    state: &State,
    headers: &HeaderMap,
    route: &str,
    source: &'static str,
    client: &Client,
) -> Result<(Arc<Principal>, Arc<Persona>), Problem> {
    let (authorization, api_key) = (joined(headers, &AUTHORIZATION), joined(headers, &API_KEY));
    let presented = Presented {
        authorization: authorization.as_deref(),
        api_key: api_key.as_deref(),
        route,
        source,
        client,
    };
    let is_anonymous = authorization.is_none() && api_key.is_none();
    state.auth.authenticate(presented).await.map_err(|error| match error {
        AuthError::Unauthenticated { code, message } => {
            let hint = "An operator makes keys with `annals key create`.";
            Problem {
                challenge: Some(if is_anonymous { "Bearer" } else { "Bearer error=\"invalid_token\"" }),
                ..Problem::new(ErrorKind::Unauthenticated, code, message, hint)
            }
        }
        AuthError::Unavailable { code, message, retry_after_s } => unavailable(code, message, retry_after_s),
    })
}

fn unavailable(code: &'static str, message: String, retry_after_s: u32) -> Problem {
    let hint = "Try again later; /readyz says what is not well.";
    Problem {
        retry_after_s: Some(retry_after_s),
        ..Problem::new(ErrorKind::Unavailable, code, message, hint)
    }
}

/// A header's values as one, so that a repeated credential is seen as the malformed one it is.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let mut values = headers.get_all(name).iter().map(|value| value.as_bytes().to_vec());
    let first = values.next()?;
    Some(values.fold(first, |joined, value| [joined, value].join(&b", "[..])))
}
