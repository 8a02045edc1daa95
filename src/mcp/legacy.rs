//! MCP 2025-11-25: a session, opened by `initialize`, in which requests are made and can be cancelled.
//!
//! Opens no streams and makes no requests of its own. A vanished client has not cancelled anything.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::value::RawValue;

use super::answer::Asked;
use super::call::{InSession, call_request, list};
use super::envelope::{Request, plain_id, text_of};
use super::headers::{self, single};
use super::keeper::NotOpened;
use super::params::{Params, Target, Unreadable};
use super::refuse::{self, About, NotTaken};
use super::reply::{ResultWriter, SERVER_INFO};
use super::session::{BeginError, InFlight};
use super::{Caller, Era, INSTRUCTIONS, LEGACY_VERSION, Reply, SUPPORTED_VERSIONS, Server};
use crate::auth::Principal;
use crate::dispatch::{Answer, CallRequest, SessionUnrecorded};
use crate::event::Transport;
use crate::refusal::{Reason, Refusal};
use crate::tools::ToolError;

const ERA: Era = Era::Legacy;

/// What a session keeps of `clientInfo` at most, bytes.
pub(super) const CLIENT_INFO_BYTES_MAX: usize = 1024;

/// A session that the caller may use.
struct Entered<'h> {
    id: &'h str,
    client_info: Option<Arc<RawValue>>,
}

impl Entered<'_> {
    fn in_session(&self) -> InSession<'_> {
        InSession { id: self.id, client_info: self.client_info.as_deref() }
    }
}

/// Answers a request.
pub(super) async fn request(
    server: &Server,
    headers: &HeaderMap,
    request: &Request<'_>,
    params: Result<Params<'_>, Unreadable>,
    caller: Caller,
) -> Reply {
    let (params, unreadable) = match params {
        Ok(params) => (params, None),
        Err(why) => (Params::default(), Some(why)),
    };
    if request.method == "initialize" {
        let opened = match unreadable {
            Some(why) => Err(why.into()),
            None => initialize(server, headers, request, &params, &caller).await,
        };
        return match opened {
            Ok(reply) => reply,
            Err(not_taken) => refuse::request(server, ERA, request, &params, None, caller, not_taken).await,
        };
    }
    let session = match enter(server, headers, &caller.principal) {
        Ok(session) => session,
        Err(not_taken) => {
            return refuse::request(server, ERA, request, &params, None, caller, not_taken).await;
        }
    };
    let answered = match (&*request.method, unreadable) {
        (_, Some(why)) => Err(why.into()),
        ("tools/call", None) => match counted(server, &session, &params) {
            Ok(target) => return call(server, request, &params, &target, caller, &session).await,
            Err(error) => Err(error.into()),
        },
        ("tools/list", None) => list(server, ERA, request, &params, &caller),
        ("ping", None) => Ok(ResultWriter::new(ERA, request.id, 0).finish()),
        _ => {
            let message = "This server has no such method in MCP 2025-11-25.";
            let hint = "It has initialize, ping, tools/list and tools/call.";
            Err(NotTaken::new(Reason::MethodNotFoundInSession, message, hint))
        }
    };
    match answered {
        Ok(reply) => reply,
        Err(not_taken) => {
            let in_session = Some(session.in_session());
            refuse::request(server, ERA, request, &params, in_session, caller, not_taken).await
        }
    }
}

/// Takes a notification.
pub(super) async fn notification(
    server: &Server,
    headers: &HeaderMap,
    method: &str,
    params: Result<Params<'_>, Unreadable>,
    caller: Caller,
) -> Reply {
    let params = params.unwrap_or_default();
    let session = match enter(server, headers, &caller.principal) {
        Ok(session) => session,
        Err(not_taken) => {
            return refuse::notification(server, ERA, method, &params, None, caller, not_taken).await;
        }
    };
    if let Err(not_taken) = refuse::without_id(method) {
        let in_session = Some(session.in_session());
        return refuse::notification(server, ERA, method, &params, in_session, caller, not_taken).await;
    }
    if method == "notifications/cancelled"
        && let Some(request_id) = params.request_id
    {
        server.sessions.cancel(session.id, &caller.principal, &plain_id(request_id));
    }
    Reply::empty(StatusCode::ACCEPTED)
}

/// Takes a response, to a request that was never made.
pub(super) async fn response(server: &Server, headers: &HeaderMap, caller: &Caller) -> Reply {
    match enter(server, headers, &caller.principal) {
        Ok(_) => Reply::empty(StatusCode::ACCEPTED),
        Err(not_taken) => refuse::message(server, About::default(), caller, &not_taken).await,
    }
}

/// Ends a session.
pub(super) async fn delete(server: &Server, headers: &HeaderMap, caller: &Caller) -> Reply {
    let id = check_version(headers).and_then(|()| session_id(headers));
    let closed = id.and_then(|id| server.sessions.close(id, &caller.principal).ok_or_else(session_not_found));
    let recorded = match closed {
        Ok(ended) => server.end_session(ended).await.map_err(unrecorded),
        Err(not_taken) => Err(not_taken),
    };
    match recorded {
        Ok(()) => Reply::empty(StatusCode::NO_CONTENT),
        Err(not_taken) => refuse::message(server, About::default(), caller, &not_taken).await,
    }
}

async fn initialize(
    server: &Server,
    headers: &HeaderMap,
    request: &Request<'_>,
    params: &Params<'_>,
    caller: &Caller,
) -> Result<Reply, NotTaken> {
    // Nothing is negotiated yet, so a header may name any revision that is served.
    match single(headers, &headers::VERSION) {
        Ok(None) => {}
        Ok(Some(version)) if SUPPORTED_VERSIONS.contains(&version) => {}
        Ok(Some(version)) => return Err(NotTaken::version(version)),
        Err(why) => return Err(bad_header(Reason::VersionHeaderUnusable, why.why())),
    }
    if params.protocol_version.and_then(text_of).is_none() {
        return Err(protocol_version_missing());
    }
    let opened = server.open_session(caller, Transport::Http, LEGACY_VERSION, client_info(params)).await;
    let session_id = opened.map_err(session_not_opened)?;
    let value = HeaderValue::from_str(&session_id).expect("hexadecimal digits are header characters");
    Ok(initialized(request).with(headers::SESSION, value))
}

pub(super) fn protocol_version_missing() -> NotTaken {
    let message = "`params.protocolVersion` must be a string.";
    NotTaken::new(Reason::ProtocolVersionMissing, message, "Name the revision that you speak.")
}

/// What a client says of itself, where it is short enough to be kept.
pub(super) fn client_info(params: &Params<'_>) -> Option<Arc<RawValue>> {
    let kept = params.client_info.filter(|raw| raw.get().len() <= CLIENT_INFO_BYTES_MAX);
    kept.map(|raw| raw.to_owned().into())
}

/// Why there is no session.
pub(super) fn session_not_opened(why: NotOpened) -> NotTaken {
    match why {
        NotOpened::AllBusy => Refusal::new(
            Reason::SessionsExhausted,
            "No further session can be opened now: each open one has a request in flight.",
            "Retry in a moment, and end sessions that are no longer needed.",
        )
        .retry_after(1)
        .into(),
        NotOpened::Unrecorded(why) => unrecorded(why),
    }
}

fn unrecorded(why: SessionUnrecorded) -> NotTaken {
    why.error.retry_after(why.retry_after_s).into()
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

/// What the call asks for. Each counts as one of its session.
fn counted<'a>(server: &Server, session: &Entered<'_>, params: &Params<'a>) -> Result<Target<'a>, ToolError> {
    server.sessions.count_call(session.id);
    params.target()
}

async fn call(
    server: &Server,
    request: &Request<'_>,
    params: &Params<'_>,
    target: &Target<'_>,
    caller: Caller,
    session: &Entered<'_>,
) -> Reply {
    let mut call = call_request(ERA, request, params, target, caller, Some(session.in_session()));
    let asked = Asked { era: ERA, id: request.id, call_id: call.call_id };
    let cancel = call.cancel.clone();
    let begun = server.sessions.begin(session.id, &call.principal, &plain_id(request.id), cancel);
    let not_taken = match begun {
        Ok(in_flight) => return run(server, call, asked, in_flight).await,
        Err(BeginError::NotFound) => {
            call.session_id = None;
            session_not_found()
        }
        Err(BeginError::Duplicate) => NotTaken::new(
            Reason::RequestIdInFlight,
            "A request with this id is in flight in this session.",
            "Give each request an id that the session has not used before.",
        ),
    };
    asked.reply(&server.dispatch.refuse(call, not_taken.refusal).await)
}

async fn run(server: &Server, call: CallRequest, asked: Asked<'_>, in_flight: InFlight) -> Reply {
    // In a task of its own: the id stays taken, and cancellable, when the connection is gone.
    let dispatch = Arc::clone(&server.dispatch);
    let running = server.tasks.spawn("mcp.session_call", async move {
        let answer = dispatch.call(call).await;
        drop(in_flight);
        answer
    });
    let answer = running.await.unwrap_or_else(|_| Answer::Failed(ToolError::internal(Reason::Panic)));
    asked.reply(&answer)
}

fn enter<'h>(
    server: &Server,
    headers: &'h HeaderMap,
    principal: &Principal,
) -> Result<Entered<'h>, NotTaken> {
    check_version(headers)?;
    let id = session_id(headers)?;
    let client_info = server.sessions.enter(id, principal).ok_or_else(session_not_found)?;
    Ok(Entered { id, client_info })
}

fn check_version(headers: &HeaderMap) -> Result<(), NotTaken> {
    match single(headers, &headers::VERSION) {
        Ok(None | Some(LEGACY_VERSION)) => Ok(()),
        Ok(Some(version)) => Err(NotTaken::version(version)),
        Err(why) => Err(bad_header(Reason::VersionHeaderUnusable, why.why())),
    }
}

fn session_id(headers: &HeaderMap) -> Result<&str, NotTaken> {
    match single(headers, &headers::SESSION) {
        Ok(Some(id)) => Ok(id),
        Ok(None) => Err(bad_header(Reason::SessionHeaderMissing, "is missing: send `initialize` first")),
        Err(why) => Err(bad_header(Reason::SessionHeaderUnusable, why.why())),
    }
}

fn bad_header(reason: Reason, why: &str) -> NotTaken {
    let is_version = reason == Reason::VersionHeaderUnusable;
    let name = if is_version { "MCP-Protocol-Version" } else { "Mcp-Session-Id" };
    NotTaken::new(reason, format!("{name} {why}."), "Send the header once, as `initialize` gave it.")
}

/// Unknown, ended, or somebody else's: the caller cannot tell which.
fn session_not_found() -> NotTaken {
    let hint = "Send `initialize` without a session id to open one.";
    NotTaken::new(Reason::SessionNotFound, "There is no such session.", hint)
}
