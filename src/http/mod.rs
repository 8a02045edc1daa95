//! HTTP: routes, the checks before them and the listener. Extracts, makes one call into the domain, maps the answer.
//!
//! Never touches the log or Postgres: whether they are well is told by a closure. The client's address is decided once,
//! in `proxies`; a header has a say in it only where a trusted proxy wrote it.

mod asserted;
mod audit;
mod cors;
mod guard;
mod health;
mod mcp;
mod patience;
mod problem;
mod proxies;
mod refuse;
mod routes;
mod serve;

pub use guard::Guard;
pub use health::{Readiness, StoreState, metrics_router};
pub use problem::Problem;
pub use proxies::{Proxies, network};
pub use routes::{Route, routes};
pub use serve::{ListenerLimits, Peer, serve, serve_within};

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, ORIGIN, USER_AGENT};
use axum::http::{HeaderMap, HeaderName, Method, Uri};
use axum::middleware::{self, Next};
use axum::response::Response;

use crate::auth::{Auth, AuthError, Persona, Presented, Principal};
use crate::base::TraceParent;
use crate::dispatch::{Client, Dispatch};
use crate::query::Query;
use crate::refusal::{Place, Surface};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What the routes need.
pub struct State {
    /// Answers MCP.
    pub mcp: crate::mcp::Server,
    /// Records what is refused to somebody known.
    pub dispatch: Arc<Dispatch>,
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
    let serve = |guarded: bool| {
        let routes = Route::ALL.iter().filter(|route| route.is_guarded() == guarded);
        routes.fold(Router::new(), |router, route| router.route(route.served().path, route.handler()))
    };
    let guarded = serve(true)
        .fallback(routes::no_route)
        .layer(middleware::from_fn_with_state(Arc::clone(&state), guard_request))
        .with_state(Arc::clone(&state));
    serve(false)
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
        Err(problem) => {
            let is_mcp = mcp::is_endpoint(request.uri().path());
            let surface = if is_mcp { Surface::Mcp } else { Surface::Rest };
            routes::refuse_early(&state, surface, request, problem).await
        }
    }
}

/// Method and path, as events carry them.
fn route_of(method: &Method, uri: &Uri) -> String {
    format!("{method} {}", uri.path())
}

/// What is known of the peer before anybody is authenticated.
fn client_of(peer: Option<Peer>, headers: &HeaderMap) -> Client {
    // Whole: it is clipped where it is redacted.
    let user_agent =
        headers.get(USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
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

/// The credentials of a request, each header as one value.
struct Credentials {
    authorization: Option<Vec<u8>>,
    api_key: Option<Vec<u8>>,
}

impl Credentials {
    fn of(headers: &HeaderMap) -> Self {
        Self { authorization: joined(headers, &AUTHORIZATION), api_key: joined(headers, &API_KEY) }
    }

    fn presented<'a>(&'a self, place: Place<'a>, client: &'a Client) -> Presented<'a> {
        let (authorization, api_key) = (self.authorization.as_deref(), self.api_key.as_deref());
        Presented { authorization, api_key, place, client }
    }
}

/// Who calls, or why that cannot be told, which is recorded then.
async fn authenticate(
    state: &State,
    headers: &HeaderMap,
    place: Place<'_>,
    client: &Client,
) -> Result<(Arc<Principal>, Arc<Persona>), Problem> {
    let credentials = Credentials::of(headers);
    let presented = credentials.presented(place, client);
    let is_anonymous = presented.authorization.is_none() && presented.api_key.is_none();
    state.auth.authenticate(presented).await.map_err(|error| match error {
        AuthError::Unauthenticated(refusal) => Problem {
            challenge: Some(if is_anonymous { "Bearer" } else { "Bearer error=\"invalid_token\"" }),
            ..refusal.into()
        },
        AuthError::Unavailable { refusal, retry_after_s } => Problem::retry_after(refusal, retry_after_s),
    })
}

/// A header's values as one, so that a repeated credential is seen as the malformed one it is.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let mut values = headers.get_all(name).iter().map(|value| value.as_bytes().to_vec());
    let first = values.next()?;
    Some(values.fold(first, |joined, value| [joined, value].join(&b", "[..])))
}
