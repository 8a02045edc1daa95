//! MCP 2025-11-25: a session, opened by `initialize`, in which requests are made and can be cancelled.
//!
//! Opens no streams and makes no requests of its own. A vanished client has not cancelled anything.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::value::RawValue;

use super::answer::Asked;
use super::call::{InSession, call_request, list, refuse, target_of_malformed};
use super::envelope::{Request, plain_id, text_of};
use super::headers::{self, single};
use super::keeper::NotOpened;
use super::params::{Params, Unreadable};
use super::reply::{Refusal, ResultWriter, SERVER_INFO, plain_error};
use super::session::BeginError;
use super::{Caller, Era, INSTRUCTIONS, LEGACY_VERSION, Reply, SUPPORTED_VERSIONS, Server};
use super::{code, unreadable_params, unsupported_version};
use crate::auth::Principal;
use crate::base::Category;
use crate::dispatch::{Answer, SessionUnrecorded};
use crate::event::Transport;
use crate::tools::ToolError;

const ERA: Era = Era::Legacy;

/// What a session keeps of `clientInfo` at most, bytes.
pub(super) const CLIENT_INFO_BYTES_MAX: usize = 1024;

/// A session that the caller may use.
struct Entered<'h> {
    id: &'h str,
    client_info: Option<Arc<RawValue>>,
}

/// Answers a request.
pub(super) async fn request(
    server: &Server,
    headers: &HeaderMap,
    request: &Request<'_>,
    params: Result<Params<'_>, Unreadable>,
    caller: Caller,
) -> Reply {
    if request.method == "initialize" {
        return match params {
            Ok(params) => initialize(server, headers, request, &params, &caller).await,
            Err(why) => unreadable_params(request, why),
        };
    }
    let session = match enter(server, headers, Some(request), &caller.principal) {
        Ok(session) => session,
        Err(reply) => return reply,
    };
    match (&*request.method, params) {
        ("tools/call", params) => call(server, request, params, caller, &session).await,
        (_, Err(why)) => unreadable_params(request, why),
        ("tools/list", Ok(params)) => list(server, ERA, request, &params, &caller),
        ("ping", Ok(_)) => ResultWriter::new(ERA, request.id, 0).finish(),
        _ => {
            let message = "This server has no such method in MCP 2025-11-25.";
            plain_error(StatusCode::OK, Some(request.id), code::METHOD_NOT_FOUND, message)
        }
    }
}

/// Takes a notification.
pub(super) fn notification(
    server: &Server,
    headers: &HeaderMap,
    method: &str,
    params: Result<Params<'_>, Unreadable>,
    caller: &Caller,
) -> Reply {
    let session = match enter(server, headers, None, &caller.principal) {
        Ok(session) => session,
        Err(reply) => return reply,
    };
    if method == "notifications/cancelled"
        && let Ok(Params { request_id: Some(request_id), .. }) = params
    {
        server.sessions.cancel(session.id, &caller.principal, &plain_id(request_id));
    }
    Reply::empty(StatusCode::ACCEPTED)
}

/// Takes a response, to a request that was never made.
pub(super) fn response(server: &Server, headers: &HeaderMap, caller: &Caller) -> Reply {
    match enter(server, headers, None, &caller.principal) {
        Ok(_) => Reply::empty(StatusCode::ACCEPTED),
        Err(reply) => reply,
    }
}

/// Ends a session.
pub(super) async fn delete(server: &Server, headers: &HeaderMap, principal: &Principal) -> Reply {
    let id = match check_version(headers, None).and_then(|()| session_id(headers, None)) {
        Ok(id) => id,
        Err(reply) => return reply,
    };
    let Some(ended) = server.sessions.close(id, principal) else { return session_not_found(None) };
    match server.end_session(ended).await {
        Ok(()) => Reply::empty(StatusCode::NO_CONTENT),
        Err(unrecorded) => session_unrecorded(None, &unrecorded),
    }
}

async fn initialize(
    server: &Server,
    headers: &HeaderMap,
    request: &Request<'_>,
    params: &Params<'_>,
    caller: &Caller,
) -> Reply {
    // Nothing is negotiated yet, so a header may name any revision that is served.
    match single(headers, &headers::VERSION) {
        Ok(None) => {}
        Ok(Some(version)) if SUPPORTED_VERSIONS.contains(&version) => {}
        Ok(Some(version)) => return unsupported_version(Some(request), version),
        Err(why) => return bad_header(Some(request), "MCP-Protocol-Version", why.why()),
    }
    if params.protocol_version.and_then(text_of).is_none() {
        let message = "`params.protocolVersion` must be a string.";
        return plain_error(StatusCode::OK, Some(request.id), code::INVALID_PARAMS, message);
    }
    let opened = server.open_session(caller, Transport::Http, LEGACY_VERSION, client_info(params)).await;
    let session_id = match opened {
        Ok(session_id) => session_id,
        Err(not_opened) => return session_not_opened(request, &not_opened),
    };
    let value = HeaderValue::from_str(&session_id).expect("hexadecimal digits are header characters");
    initialized(request).with(headers::SESSION, value)
}

/// What a client says of itself, where it is short enough to be kept.
pub(super) fn client_info(params: &Params<'_>) -> Option<Arc<RawValue>> {
    let kept = params.client_info.filter(|raw| raw.get().len() <= CLIENT_INFO_BYTES_MAX);
    kept.map(|raw| raw.to_owned().into())
}

/// Why there is no session.
pub(super) fn session_not_opened(request: &Request<'_>, why: &NotOpened) -> Reply {
    match why {
        NotOpened::AllBusy => {
            let refused = Refusal {
                code: "sessions_exhausted",
                category: Category::RateLimit,
                message: "No further session can be opened now: each open one has a request in flight.",
                hint: "Retry in a moment, and end sessions that are no longer needed.",
            };
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let (id, code) = (Some(request.id), code::of_status(status));
            super::reply::error(status, id, code, refused.message, &refused).retry_after(1)
        }
        NotOpened::Unrecorded(unrecorded) => session_unrecorded(Some(request), unrecorded),
    }
}

fn session_unrecorded(request: Option<&Request<'_>>, why: &SessionUnrecorded) -> Reply {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let (id, code) = (request.map(|request| request.id), code::of_status(status));
    super::reply::error(status, id, code, &why.error.message, &why.error).retry_after(why.retry_after_s)
}

/// The answer to `initialize`.
pub(super) fn initialized(request: &Request<'_>) -> Reply {
    let mut writer = ResultWriter::new(ERA, request.id, INSTRUCTIONS.len() + 256);
    writer.member("protocolVersion", LEGACY_VERSION);
    writer.raw("capabilities", br#"{"tools":{}}"#);
    writer.member("serverInfo", &SERVER_INFO);
    writer.member("instructions", INSTRUCTIONS);
    writer.finish()
}

async fn call(
    server: &Server,
    request: &Request<'_>,
    params: Result<Params<'_>, Unreadable>,
    caller: Caller,
    session: &Entered<'_>,
) -> Reply {
    server.sessions.count_call(session.id);
    let in_session = Some(InSession { id: session.id, client_info: session.client_info.as_deref() });
    let (params, target) = match params {
        Ok(params) => {
            let target = params.target();
            (params, target)
        }
        Err(why) => {
            let error =
                ToolError::validation("params_malformed", why.message(), "Send `params` as an object.");
            (Params::default(), Err(error))
        }
    };
    let target = match target {
        Ok(target) => target,
        Err(error) => {
            let target = target_of_malformed(&params);
            let call = call_request(ERA, request, &params, &target, caller, in_session);
            return refuse(server, ERA, request, call, error, code::INVALID_PARAMS).await;
        }
    };
    let principal = Arc::clone(&caller.principal);
    let call = call_request(ERA, request, &params, &target, caller, in_session);
    let asked = Asked { era: ERA, id: request.id, call_id: call.call_id };
    let begun = server.sessions.begin(session.id, &principal, &plain_id(request.id), call.cancel.clone());
    let in_flight = match begun {
        Ok(in_flight) => in_flight,
        Err(BeginError::NotFound) => return session_not_found(Some(request)),
        Err(BeginError::Duplicate) => {
            let error = ToolError::validation(
                "request_id_in_flight",
                "A request with this id is in flight in this session.",
                "Give each request an id that the session has not used before.",
            );
            return refuse(server, ERA, request, call, error, code::INVALID_REQUEST).await;
        }
    };
    // In a task of its own: the id stays taken, and cancellable, when the connection is gone.
    let dispatch = Arc::clone(&server.dispatch);
    let running = server.tasks.spawn("mcp.session_call", async move {
        let answer = dispatch.call(call).await;
        drop(in_flight);
        answer
    });
    let answer = running.await.unwrap_or_else(|_| Answer::Failed(ToolError::internal("panic")));
    asked.reply(&answer)
}

fn enter<'h>(
    server: &Server,
    headers: &'h HeaderMap,
    request: Option<&Request<'_>>,
    principal: &Principal,
) -> Result<Entered<'h>, Reply> {
    check_version(headers, request)?;
    let id = session_id(headers, request)?;
    let client_info = server.sessions.enter(id, principal).ok_or_else(|| session_not_found(request))?;
    Ok(Entered { id, client_info })
}

fn check_version(headers: &HeaderMap, request: Option<&Request<'_>>) -> Result<(), Reply> {
    match single(headers, &headers::VERSION) {
        Ok(None | Some(LEGACY_VERSION)) => Ok(()),
        Ok(Some(version)) => Err(unsupported_version(request, version)),
        Err(why) => Err(bad_header(request, "MCP-Protocol-Version", why.why())),
    }
}

fn session_id<'h>(headers: &'h HeaderMap, request: Option<&Request<'_>>) -> Result<&'h str, Reply> {
    match single(headers, &headers::SESSION) {
        Ok(Some(id)) => Ok(id),
        Ok(None) => Err(bad_header(request, "Mcp-Session-Id", "is missing: send `initialize` first")),
        Err(why) => Err(bad_header(request, "Mcp-Session-Id", why.why())),
    }
}

fn bad_header(request: Option<&Request<'_>>, name: &str, why: &str) -> Reply {
    let id = request.map(|request| request.id);
    plain_error(StatusCode::BAD_REQUEST, id, code::INVALID_REQUEST, &format!("{name} {why}."))
}

/// Unknown, ended, or somebody else's: the caller cannot tell which.
fn session_not_found(request: Option<&Request<'_>>) -> Reply {
    let status = StatusCode::NOT_FOUND;
    let id = request.map(|request| request.id);
    let data = Refusal {
        code: "session_not_found",
        category: Category::Validation,
        message: "There is no such session.",
        hint: "Send `initialize` without a session id to open one.",
    };
    super::reply::error(status, id, code::of_status(status), data.message, &data)
}
