//! The audit over REST: who may read it is decided and recorded before anything is read.
//!
//! Knows no SQL and no rows; a store that is away is an error, never an empty list.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query as QueryString, State as Extract};
use axum::http::HeaderMap;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use uuid::Uuid;

use super::{Peer, Problem, State, StoreState, authenticate, client_of, refuse};
use crate::audit;
use crate::auth::{Persona, Principal};
use crate::dispatch::Client;
use crate::event::Transport;
use crate::query::{Error, Filter, PARAMETERS, Query};
use crate::refusal::{Place, Reason, Refusal, Surface};

/// `GET /api/v1/admin/audit/events`
pub(super) async fn events(
    Extract(state): Extract<Arc<State>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    pairs: Result<QueryString<Vec<(String, String)>>, QueryRejection>,
) -> Response {
    let route = "GET /api/v1/admin/audit/events";
    answer(&state, peer, &headers, route, async |reader: &Reader<'_>| reader.events(pairs).await).await
}

/// `GET /api/v1/admin/audit/events/count`
pub(super) async fn count(
    Extract(state): Extract<Arc<State>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    pairs: Result<QueryString<Vec<(String, String)>>, QueryRejection>,
) -> Response {
    let route = "GET /api/v1/admin/audit/events/count";
    answer(&state, peer, &headers, route, async |reader: &Reader<'_>| reader.count(pairs).await).await
}

/// `GET /api/v1/admin/audit/events/{id}`
pub(super) async fn event(
    Extract(state): Extract<Arc<State>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    path: Result<Path<String>, PathRejection>,
) -> Response {
    let route = "GET /api/v1/admin/audit/events/{id}";
    answer(&state, peer, &headers, route, async |reader: &Reader<'_>| reader.event(path).await).await
}

/// Authenticates, reads, and refuses what cannot be read.
async fn answer(
    state: &State,
    peer: Option<Extension<Peer>>,
    headers: &HeaderMap,
    route: &str,
    read: impl AsyncFnOnce(&Reader<'_>) -> Result<Response, Problem>,
) -> Response {
    let client = client_of(peer.map(|Extension(peer)| peer), headers);
    let place = Place { route, surface: Surface::Rest, transport: Transport::Http };
    let (principal, persona) = match authenticate(state, headers, place, &client).await {
        Ok(known) => known,
        Err(problem) => return problem.say(Surface::Rest),
    };
    let reader = Reader { state, principal: &principal, persona: &persona, client: &client };
    match read(&reader).await {
        Ok(response) => response,
        Err(problem) => refuse::known(state, place, &principal, &persona, &client, problem).await,
    }
}

/// What the parameters of a request ask for.
struct Asked {
    filter: Filter,
    /// The parameters as given, for the record.
    query: Value,
}

impl Asked {
    fn read(pairs: Result<QueryString<Vec<(String, String)>>, QueryRejection>) -> Result<Self, Problem> {
        let QueryString(pairs) = pairs.map_err(|rejected| bad(rejected.body_text()))?;
        let filter = Filter::parse(&pairs).map_err(|error| bad(error.to_string()))?;
        let query = pairs.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        Ok(Self { filter, query: Value::Object(query) })
    }
}

fn bad(cause: String) -> Problem {
    Problem::new(Reason::BadParameter, cause, format!("Parameters: {}.", PARAMETERS.join(" ")))
}

/// Who reads.
struct Reader<'a> {
    state: &'a State,
    principal: &'a Principal,
    persona: &'a Persona,
    client: &'a Client,
}

impl Reader<'_> {
    async fn events(
        &self,
        pairs: Result<QueryString<Vec<(String, String)>>, QueryRejection>,
    ) -> Result<Response, Problem> {
        let Asked { filter, query } = Asked::read(pairs)?;
        let rows = self.open("events", &query).await?;
        Ok(fresh(Json(rows.events(&filter).await.map_err(problem_of)?)))
    }

    async fn count(
        &self,
        pairs: Result<QueryString<Vec<(String, String)>>, QueryRejection>,
    ) -> Result<Response, Problem> {
        let Asked { filter, query } = Asked::read(pairs)?;
        if let Some(name) = ["limit", "cursor"].into_iter().find(|name| query.get(name).is_some()) {
            return Err(bad(format!("{name} is of pages, and a count has none; leave it out")));
        }
        let rows = self.open("count", &query).await?;
        Ok(fresh(Json(rows.count(&filter, None).await.map_err(problem_of)?)))
    }

    async fn event(&self, path: Result<Path<String>, PathRejection>) -> Result<Response, Problem> {
        let hint = "The list at /api/v1/admin/audit/events has the ids.";
        let id = path.ok().and_then(|Path(id)| Uuid::parse_str(&id).ok());
        let message = "The event's id must be a UUID.";
        let id = id.ok_or_else(|| Problem::new(Reason::BadEventId, message, hint))?;
        let rows = self.open("event", &serde_json::json!({ "id": id })).await?;
        let event = rows.event(id).await.map_err(problem_of)?;
        let event = event.ok_or_else(|| {
            let message = format!("There is no event {id} in the store.");
            Problem::new(Reason::EventNotFound, message, hint)
        })?;
        Ok(fresh(Json(event)))
    }

    /// The rows, once the reading is recorded and allowed.
    async fn open(&self, view: &'static str, asked: &Value) -> Result<&Query, Problem> {
        let follows = || match (self.state.readiness)().store {
            StoreState::LogDiverged | StoreState::LogCorrupt => false,
            StoreState::Starting | StoreState::Ok | StoreState::Degraded => true,
        };
        let reader = audit::Reader {
            auth: &self.state.auth,
            follows: &follows,
            principal: self.principal,
            persona: self.persona,
            client: self.client,
        };
        reader.open(&self.state.query, view, asked).await.map_err(problem)
    }
}

/// Over REST the time to try again stands in a header.
fn problem(refusal: Refusal) -> Problem {
    match refusal.retry_after_s {
        Some(seconds) => Problem::retry_after(Refusal { retry_after_s: None, ..refusal }, seconds),
        None => refusal.into(),
    }
}

fn problem_of(error: Error) -> Problem {
    problem(audit::refusal_of(error))
}

fn fresh(body: impl IntoResponse) -> Response {
    ([(CACHE_CONTROL, "no-store")], body).into_response()
}
