//! The MCP endpoint: everything about a request that is HTTP's, before its body is looked into.
//!
//! Order: host and origin (before this), method, announced size, credentials, media types; only then the body is
//! taken, so that nobody unknown makes the server hold one, and MCP reads the message.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State as Extract};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::{Peer, Problem, Route, State, authenticate, client_of, refuse, route_of};
use crate::event::Transport;
use crate::mcp::{Caller, allowed_methods, names_modern};
use crate::refusal::{Place, Reason, Surface};

/// Whether MCP is served at `path`.
pub(super) fn is_endpoint(path: &str) -> bool {
    let mut routes = Route::ALL.iter().map(|route| route.served());
    routes.any(|served| served.surface == Surface::Mcp && served.path == path)
}

/// Takes one request.
pub(super) async fn endpoint(
    Extract(state): Extract<Arc<State>>,
    peer: Option<Extension<Peer>>,
    request: Request,
) -> Response {
    let received_at = state.mcp.now();
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    let is_post = parts.method == Method::POST;
    let route = route_of(&parts.method, &parts.uri);
    let place = Place { route: &route, surface: Surface::Mcp, transport: Transport::Http };
    let client = client_of(peer.map(|Extension(peer)| peer), headers);
    if let Err(problem) =
        check_method(&parts.method, headers).and_then(|()| check_announced_size(&state, headers))
    {
        return refuse::early(&state, place, headers, &client, problem).await;
    }
    let (principal, persona) = match authenticate(&state, headers, place, &client).await {
        Ok(known) => known,
        Err(problem) => return problem.say(Surface::Mcp),
    };
    let transport = Transport::Http;
    let caller = Caller { principal, persona, client, received_at, transport, route: route.clone() };
    if !is_post {
        return state.mcp.delete(headers, &caller).await.into_response();
    }
    let body = match check_media_types(headers) {
        Ok(()) => read(&state, body).await,
        Err(problem) => Err(problem),
    };
    match body {
        Ok(body) => state.mcp.post(headers, &body, caller).await.into_response(),
        Err(problem) => {
            let (principal, persona) = (&caller.principal, &caller.persona);
            refuse::known(&state, place, principal, persona, &caller.client, problem).await
        }
    }
}

fn check_method(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    // A revision without sessions has nothing to delete.
    if method == Method::POST || (method == Method::DELETE && !names_modern(headers)) {
        return Ok(());
    }
    let (allow, hint) = allowed_methods(headers);
    Err(Problem::method_not_allowed(allow, hint))
}

fn check_announced_size(state: &State, headers: &HeaderMap) -> Result<(), Problem> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > state.body_bytes_max) {
        return Err(too_large(state.body_bytes_max));
    }
    Ok(())
}

fn too_large(bytes_max: usize) -> Problem {
    let message = format!("The body is over the limit of {bytes_max} bytes.");
    Problem::new(Reason::BodyTooLarge, message, "Send less at once.")
}

async fn read(state: &State, body: Body) -> Result<Bytes, Problem> {
    let bytes_max = state.body_bytes_max;
    match tokio::time::timeout(state.body_timeout, to_bytes(body, bytes_max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_over_limit(&error) => Err(too_large(bytes_max)),
        Ok(Err(_)) => {
            let message = "The body ended before it was whole.";
            Err(Problem::new(Reason::BodyCut, message, "Send the request again."))
        }
        Err(_) => {
            let message = "The body did not arrive in time.";
            Err(Problem::new(Reason::BodyTimeout, message, "Send the request again."))
        }
    }
}

fn is_over_limit(error: &axum::Error) -> bool {
    std::error::Error::source(error)
        .is_some_and(<dyn std::error::Error>::is::<http_body_util::LengthLimitError>)
}

fn check_media_types(headers: &HeaderMap) -> Result<(), Problem> {
    let is_json = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| essence(value).eq_ignore_ascii_case("application/json"));
    if !is_json {
        let message = "The body's Content-Type must be application/json.";
        return Err(Problem::new(Reason::ContentType, message, "Send JSON and say so."));
    }
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
    if accepted.peek().is_none() {
        return Ok(());
    }
    let takes_json = accepted.flat_map(|value| value.split(',')).any(|range| {
        let range = essence(range).to_ascii_lowercase();
        matches!(range.as_str(), "application/json" | "application/*" | "*/*")
    });
    if takes_json {
        return Ok(());
    }
    let hint = "Send Accept: application/json, text/event-stream.";
    Err(Problem::new(Reason::Accept, "Answers are JSON, which Accept rules out.", hint))
}

/// A media type or range without its parameters.
fn essence(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn check(content_type: Option<&'static str>, accept: &[&'static str]) -> Option<&'static str> {
        let mut headers = HeaderMap::new();
        if let Some(value) = content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
        }
        for value in accept {
            headers.append(ACCEPT, HeaderValue::from_static(value));
        }
        check_media_types(&headers).err().map(|problem| problem.refusal.code())
    }

    #[test]
    fn json_is_asked_for_and_given() {
        assert_eq!(check(Some("application/json"), &["application/json, text/event-stream"]), None);
        assert_eq!(check(Some("Application/JSON; charset=utf-8"), &[]), None);
        assert_eq!(check(Some("application/json"), &["text/event-stream", "*/*;q=0.1"]), None);
        for content_type in
            [None, Some("text/plain"), Some("application/jsonp"), Some("application/x-www-form-urlencoded")]
        {
            assert_eq!(check(content_type, &[]), Some("content_type"), "{content_type:?}");
        }
        assert_eq!(check(Some("application/json"), &["text/event-stream"]), Some("accept"));
    }
}
