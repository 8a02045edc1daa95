//! The audit over REST: who may read it is decided and recorded before anything is read.
//!
//! Knows no SQL and no rows; a store that is away is an error, never an empty list.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, Query as QueryString, State as Extract};
use axum::http::HeaderMap;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use uuid::Uuid;

use super::problem::{ErrorKind, Problem};
use super::{Peer, State, StoreState, authenticate, client_of, unavailable};
use crate::auth::AuditAccess;
use crate::query::{Error, Filter};

/// How soon a client may ask again while the store is away, seconds.
const STORE_RETRY_S: u32 = 5;

/// `GET /api/v1/admin/audit/events`
pub(super) async fn events(
    Extract(state): Extract<Arc<State>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    QueryString(pairs): QueryString<Vec<(String, String)>>,
) -> Result<Response, Problem> {
    let access = Access { state: &state, peer, headers: &headers, route: "GET /api/v1/admin/audit/events" };
    let reader = access.authenticate().await?;
    let filter = Filter::parse(&pairs).map_err(|error| {
        let hint = "Parameters: limit cursor user_id tool_name toolkit_kind connection persona success event_kind \
                    session_id trace_id start_time end_time.";
        Problem::new(ErrorKind::BadRequest, "bad_parameter", error.to_string(), hint)
    })?;
    let asked = pairs.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
    access.record(&reader, "events", &Value::Object(asked)).await?;
    access.current()?;
    Ok(fresh(Json(state.query.events(&filter).await.map_err(problem_of)?)))
}

/// `GET /api/v1/admin/audit/events/{id}`
pub(super) async fn event(
    Extract(state): Extract<Arc<State>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let access =
        Access { state: &state, peer, headers: &headers, route: "GET /api/v1/admin/audit/events/{id}" };
    let reader = access.authenticate().await?;
    let hint = "The list at /api/v1/admin/audit/events has the ids.";
    let id = path.ok().and_then(|Path(id)| Uuid::parse_str(&id).ok());
    let id = id.ok_or_else(|| {
        Problem::new(ErrorKind::BadRequest, "bad_event_id", "The event's id must be a UUID.", hint)
    })?;
    access.record(&reader, "event", &serde_json::json!({ "id": id })).await?;
    access.current()?;
    let event = state.query.event(id).await.map_err(problem_of)?;
    let event = event.ok_or_else(|| {
        let message = format!("There is no event {id} in the store.");
        Problem::new(ErrorKind::NotFound, "event_not_found", message, hint)
    })?;
    Ok(fresh(Json(event)))
}

/// One request to read the audit.
struct Access<'a> {
    state: &'a State,
    peer: Option<Extension<Peer>>,
    headers: &'a HeaderMap,
    route: &'static str,
}

/// Who reads.
struct Reader {
    principal: Arc<crate::auth::Principal>,
    persona: Arc<crate::auth::Persona>,
    client: crate::dispatch::Client,
}

impl Access<'_> {
    async fn authenticate(&self) -> Result<Reader, Problem> {
        let peer = self.peer.as_ref().map(|Extension(peer)| *peer);
        let client = client_of(peer, self.headers);
        let (principal, persona) =
            authenticate(self.state, self.headers, self.route, "rest", &client).await?;
        Ok(Reader { principal, persona, client })
    }

    /// Refuses when the rows stopped following the log: what is there would look like all there is.
    fn current(&self) -> Result<(), Problem> {
        match (self.state.readiness)().store {
            StoreState::LogDiverged | StoreState::LogCorrupt => {
                let message = "The rows do not follow the log any more, so they are not shown.".to_owned();
                Err(unavailable("store_stopped", message, STORE_RETRY_S))
            }
            StoreState::Starting | StoreState::Ok | StoreState::Degraded => Ok(()),
        }
    }

    /// Makes the reading durable, and refuses whoever may not read.
    async fn record(&self, reader: &Reader, view: &'static str, query: &Value) -> Result<(), Problem> {
        let access =
            self.state.auth.audit_access(&reader.principal, &reader.persona, view, query, &reader.client);
        access.await.map_err(|error| match error {
            AuditAccess::Forbidden { message } => {
                let hint = "The operator can set `reads_audit` on a persona of your key's roles.";
                Problem::new(ErrorKind::Forbidden, "audit_not_allowed", message, hint)
            }
            AuditAccess::Unavailable { code, message, retry_after_s } => {
                unavailable(code, message, retry_after_s)
            }
        })
    }
}

fn problem_of(error: Error) -> Problem {
    match error {
        Error::Starting | Error::Unavailable { .. } => {
            tracing::warn!(error = ?error, "the audit could not be read");
            let message = "The audit store is not available. Recording goes on; nothing is lost.".to_owned();
            unavailable("store_unavailable", message, STORE_RETRY_S)
        }
        Error::Cursor(cause) => {
            let hint = "Use `next_cursor` as it was given, with the same filters, or start without one.";
            Problem::new(
                ErrorKind::BadRequest,
                "bad_cursor",
                format!("The cursor is not valid: {cause}."),
                hint,
            )
        }
        Error::Internal { cause } => {
            tracing::error!(error = %cause, "the audit store gave an unexpected answer");
            let hint = "Try again; when it persists, give the operator the time of this request.";
            Problem::new(ErrorKind::Internal, "store_failed", "The audit could not be read.", hint)
        }
    }
}

fn fresh(body: impl IntoResponse) -> Response {
    ([(CACHE_CONTROL, "no-store")], body).into_response()
}
