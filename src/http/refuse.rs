//! Refusals of HTTP requests: recorded by those who may record, then answered.

use axum::http::HeaderMap;
use axum::response::Response;

use super::{Credentials, Problem, State};
use crate::auth::{AuthError, Persona, Principal, Unauthenticated};
use crate::dispatch::{Client, RefusedRequest};
use crate::refusal::Place;

/// Refuses a request for what comes before its credentials. Whoever sent good ones is named, and has an event for each
/// refusal; others may be counted in a flood.
pub(super) async fn early(
    state: &State,
    place: Place<'_>,
    headers: &HeaderMap,
    client: &Client,
    problem: Problem,
) -> Response {
    match state.auth.known(Credentials::of(headers).presented(place, client)) {
        Some((principal, persona)) => known(state, place, &principal, &persona, client, problem).await,
        None => unknown(state, place, client, problem).await,
    }
}

/// Refuses somebody of whom nothing but the peer is known.
async fn unknown(state: &State, place: Place<'_>, client: &Client, problem: Problem) -> Response {
    let refused = Unauthenticated { refusal: &problem.refusal, place, client, key: None };
    let recorded = state.auth.refuse_unauthenticated(refused).await;
    let said = match recorded {
        Ok(()) => problem,
        Err(AuthError::Unavailable { refusal, retry_after_s }) => {
            Problem::retry_after(refusal, retry_after_s)
        }
        Err(AuthError::Unauthenticated(refusal)) => refusal.into(),
    };
    said.say(place.surface)
}

/// Refuses somebody who is known.
pub(super) async fn known(
    state: &State,
    place: Place<'_>,
    principal: &Principal,
    persona: &Persona,
    client: &Client,
    problem: Problem,
) -> Response {
    let recorded = state.dispatch.refuse_request(RefusedRequest {
        refusal: &problem.refusal,
        place,
        principal,
        persona,
        client,
        session_id: None,
        method: None,
        request_id: None,
    });
    let said = match recorded.await {
        Ok(()) => problem,
        Err(unrecorded) => Problem::retry_after(unrecorded.error, unrecorded.retry_after_s),
    };
    said.say(place.surface)
}
