//! Messages that are not taken: each refusal is recorded before it is said, as the table wants it.
//!
//! Knows nothing of HTTP: what is wrong with a header comes in as a reason.

use serde_json::value::RawValue;

use super::answer::Asked;
use super::call::{InSession, call_request, target_of_malformed};
use super::envelope::Request;
use super::params::{Params, Unreadable};
use super::reply::{Said, refused};
use super::{Caller, Era, Reply, Server};
use crate::base::planted;
use crate::dispatch::RefusedRequest;
use crate::refusal::{Reason, Refusal};
use crate::tools::ToolError;

const TOOLS_CALL: &str = "tools/call";

/// Why a message is not taken.
#[derive(Debug)]
pub(super) struct NotTaken {
    pub(super) refusal: Refusal,
    /// The revision that was asked for, where it is not served.
    pub(super) requested_version: Option<String>,
}

impl From<Refusal> for NotTaken {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, requested_version: None }
    }
}

impl NotTaken {
    /// For `reason`.
    pub(super) fn new(reason: Reason, message: impl Into<String>, hint: &str) -> Self {
        Refusal::new(reason, message, hint).into()
    }

    /// The revision `requested` is not served.
    pub(super) fn version(requested: &str) -> Self {
        let hint = "Use one of `supported`.";
        let refusal = Refusal::new(Reason::UnsupportedVersion, "Unsupported protocol version", hint);
        Self { refusal, requested_version: Some(crate::base::clip(requested, 64).to_owned()) }
    }
}

impl From<Unreadable> for NotTaken {
    fn from(why: Unreadable) -> Self {
        Self::new(Reason::ParamsMalformed, why.message(), "Send `params` as an object with each member once.")
    }
}

/// What is known of a message that is no call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct About<'a> {
    pub(super) method: Option<&'a str>,
    pub(super) id: Option<&'a RawValue>,
    /// The caller's own session.
    pub(super) session_id: Option<&'a str>,
}

/// Refuses `request`: a call is denied, everything else is `request.refused`.
pub(super) async fn request(
    server: &Server,
    era: Era,
    request: &Request<'_>,
    params: &Params<'_>,
    session: Option<InSession<'_>>,
    caller: Caller,
    not_taken: NotTaken,
) -> Reply {
    if request.method != TOOLS_CALL {
        let session_id = session.map(|session| session.id);
        let about = About { method: Some(&request.method), id: Some(request.id), session_id };
        return message(server, about, &caller, &not_taken).await;
    }
    let target = params.target().unwrap_or_else(|_: ToolError| target_of_malformed(params));
    let call = call_request(era, request, params, &target, caller, session);
    let call_id = call.call_id;
    let answer = server.dispatch.refuse(call, not_taken.refusal).await;
    let requested_version = not_taken.requested_version.as_deref();
    Asked { era, id: request.id, call_id }.reply_refused(&answer, requested_version)
}

/// Refuses a notification. A call without an id is denied as a call; `null` stands for its id.
pub(super) async fn notification(
    server: &Server,
    era: Era,
    method: &str,
    params: &Params<'_>,
    session: Option<InSession<'_>>,
    caller: Caller,
    not_taken: NotTaken,
) -> Reply {
    if method == TOOLS_CALL {
        let call = Request { id: RawValue::NULL, method: method.into(), params: None };
        return request(server, era, &call, params, session, caller, not_taken).await;
    }
    let session_id = session.map(|session| session.id);
    let about = About { method: Some(method), session_id, ..About::default() };
    message(server, about, &caller, &not_taken).await
}

/// What a notification that asks for a call is refused with.
pub(super) fn without_id(method: &str) -> Result<(), NotTaken> {
    if method != TOOLS_CALL || planted::armed("call_without_id_ignored") {
        return Ok(());
    }
    let message = "`tools/call` needs an `id`: without one it is a notification, and is not run.";
    Err(NotTaken::new(Reason::CallWithoutId, message, "Send the call again, with an id of its own."))
}

/// Refuses a message that is no call.
pub(super) async fn message(
    server: &Server,
    about: About<'_>,
    caller: &Caller,
    not_taken: &NotTaken,
) -> Reply {
    let recorded = server.dispatch.refuse_request(RefusedRequest {
        refusal: &not_taken.refusal,
        place: caller.place(),
        principal: &caller.principal,
        persona: &caller.persona,
        client: &caller.client,
        session_id: about.session_id,
        method: about.method,
        request_id: about.id.map(RawValue::get),
    });
    let (refusal, requested_version, retry_after_s) = match recorded.await {
        Ok(()) => (&not_taken.refusal, not_taken.requested_version.as_deref(), None),
        Err(unrecorded) => (&unrecorded.error.clone(), None, Some(unrecorded.retry_after_s)),
    };
    let reply = refused(about.id, &Said { refusal, call_id: None, requested_version });
    retry_after_s.into_iter().fold(reply, Reply::retry_after)
}
