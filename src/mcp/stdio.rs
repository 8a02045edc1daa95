//! MCP over a stream of lines, as a stdio process forwards them: the messages of one client, in both revisions, without
//! headers.
//!
//! A process is one session in the record, whatever revision it speaks. Under 2025-11-25 `initialize` comes first, once;
//! under 2026-07-28 each request says its version in `_meta`. In both, `notifications/cancelled` cancels, and a cancelled
//! request is not answered. That a client writes no more cancels nothing: it still reads, and gets its answers. When the
//! process itself is gone nobody reads any more, which under 2026-07-28 is the cancel that a closed response stream is over
//! HTTP; calls of 2025-11-25 go on to their end, as they do there.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use axum::http::StatusCode;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::answer::Asked;
use super::call::{InSession, call_request, list, target_of_malformed};
use super::envelope::{Message, Request, is_object, plain_id, text_of};
use super::legacy::{client_info, initialized, session_not_opened};
use super::modern::{META_CAPABILITIES, META_VERSION, discover, missing_meta};
use super::params::{Params, Target, Unreadable};
use super::reply::{ResultWriter, plain_error};
use super::session::{BeginError, InFlight};
use super::{Caller, Era, MODERN_VERSION, Reply, Server, code, unreadable_params, unsupported_version};
use crate::auth::Principal;
use crate::base::planted;
use crate::dispatch::{CallRequest, SessionUnrecorded};
use crate::event::{SessionEnd, Transport};
use crate::tools::ToolError;

/// What becomes of one message.
pub enum Step {
    /// Nothing is said.
    Silent,
    /// This is said at once.
    Answer(Bytes),
    /// This is to be run beside the messages that follow, and says something unless it was cancelled.
    Run(BoxFuture<'static, Option<Bytes>>),
}

/// The messages of one stdio process, taken in their order.
pub struct StdioStream {
    server: Server,
    session: OnceLock<Arc<str>>,
    /// What the client said of itself in `initialize`; set once that was answered.
    initialized: OnceLock<Option<Arc<RawValue>>>,
    /// Fires when the process is gone.
    gone: CancellationToken,
}

/// A request whose envelope and parameters were read.
struct Asking<'a> {
    era: Era,
    request: &'a Request<'a>,
    params: Result<Params<'a>, Unreadable>,
    caller: Caller,
}

impl StdioStream {
    /// Nothing was said yet.
    #[must_use]
    pub fn new(server: Server) -> Self {
        let gone = CancellationToken::new();
        Self { server, session: OnceLock::new(), initialized: OnceLock::new(), gone }
    }

    /// Takes one line, without its end. Waits only where a session must be recorded first.
    pub async fn take(&self, line: &[u8], caller: Caller) -> Step {
        let request = match Message::read(line) {
            Err(malformed) => {
                return say(plain_error(StatusCode::BAD_REQUEST, None, malformed.code, malformed.message));
            }
            Ok(Message::Notification { method, params }) => {
                self.notified(&method, Params::read(params), &caller.principal);
                return Step::Silent;
            }
            // The server asks nothing, so this answers nothing.
            Ok(Message::Response) => return Step::Silent,
            Ok(Message::Request(request)) => request,
        };
        let params = Params::read(request.params);
        let in_meta = params.as_ref().ok().and_then(Params::read_meta);
        let is_modern = request.method == "server/discover"
            || in_meta.is_some_and(|meta| meta.protocol_version.is_some());
        let era = if is_modern { Era::Modern } else { Era::Legacy };
        let asking = Asking { era, request: &request, params, caller };
        let id = plain_id(request.id);
        if request.method != "tools/call"
            && self.session.get().is_some_and(|session| self.server.sessions.is_in_flight(session, &id))
        {
            return say(plain_error(StatusCode::OK, Some(request.id), code::INVALID_REQUEST, IN_FLIGHT));
        }
        match era {
            Era::Modern => self.modern(asking).await,
            Era::Legacy => self.legacy(asking).await,
        }
    }

    /// The process is gone: nobody reads answers any more.
    pub fn vanished(&self) {
        self.gone.cancel();
    }

    /// The session ends because the client wrote its last message or is gone.
    ///
    /// # Errors
    /// [`SessionUnrecorded`]: its end is recorded later.
    pub async fn end(&self, principal: &Principal) -> Result<(), SessionUnrecorded> {
        let ended = self.session.get().and_then(|id| self.server.sessions.close(id, principal));
        match ended {
            Some(ended) => self.server.end_session(ended).await,
            None => Ok(()),
        }
    }

    /// The session ends because its key is over: `code` is the gate's.
    pub fn refused(&self, code: &str, principal: &Principal) {
        let reason = match code {
            "revoked" => SessionEnd::Revoked,
            "expired" => SessionEnd::Expired,
            _ => SessionEnd::ClientDelete,
        };
        if let Some(id) = self.session.get() {
            self.server.sessions.end_for(id, principal, reason);
        }
    }

    fn notified(&self, method: &str, params: Result<Params<'_>, Unreadable>, principal: &Principal) {
        if method == "notifications/cancelled"
            && let Ok(Params { request_id: Some(request_id), .. }) = params
            && let Some(session) = self.session.get()
            && !planted::armed("stdio_cancel_ignored")
        {
            self.server.sessions.cancel(session, principal, &plain_id(request_id));
        }
    }

    async fn modern(&self, asking: Asking<'_>) -> Step {
        let Asking { era, request, params, caller } = asking;
        let params = match params {
            Ok(params) => params,
            Err(why) => return say(unreadable_params(request, why)),
        };
        if let Err(reply) = check_meta(request, &params) {
            return say(reply);
        }
        if let Err(reply) = self.enter(&caller, request, era, None).await {
            return say(reply);
        }
        match &*request.method {
            "server/discover" => say(discover(request)),
            "tools/list" => say(list(&self.server, era, request, &params, &caller)),
            "tools/call" => self.call(Asking { era, request, params: Ok(params), caller }),
            _ => say(no_such_method(request, "This server has no such method in MCP 2026-07-28.")),
        }
    }

    async fn legacy(&self, asking: Asking<'_>) -> Step {
        let Asking { era, request, params, caller } = asking;
        if request.method == "initialize" {
            return match params {
                Ok(params) => self.initialize(request, &params, &caller).await,
                Err(why) => say(unreadable_params(request, why)),
            };
        }
        // A client may ask whether the server is alive before it does anything else.
        if self.initialized.get().is_none() && request.method != "ping" {
            return match &*request.method {
                "tools/call" => {
                    let error = ToolError::validation("session_missing", UNINITIALIZED, HOW_TO_START);
                    let target = params.as_ref().map(target_of_malformed);
                    let target = target.unwrap_or(Target { name: Cow::Borrowed(""), arguments: None });
                    let params = params.as_ref().ok();
                    let call =
                        self.request(era, request, params.unwrap_or(&Params::default()), &target, caller);
                    self.refuse(era, request, call, error, code::INVALID_REQUEST)
                }
                _ => say(plain_error(StatusCode::OK, Some(request.id), code::INVALID_REQUEST, UNINITIALIZED)),
            };
        }
        match (&*request.method, params) {
            ("tools/call", params) => self.call(Asking { era, request, params, caller }),
            (_, Err(why)) => say(unreadable_params(request, why)),
            ("tools/list", Ok(params)) => say(list(&self.server, era, request, &params, &caller)),
            ("ping", Ok(_)) => say(ResultWriter::new(era, request.id, 0).finish()),
            _ => say(no_such_method(request, "This server has no such method in MCP 2025-11-25.")),
        }
    }

    async fn initialize(&self, request: &Request<'_>, params: &Params<'_>, caller: &Caller) -> Step {
        if self.initialized.get().is_some() {
            let message = "This process is initialized already.";
            return say(plain_error(StatusCode::OK, Some(request.id), code::INVALID_REQUEST, message));
        }
        if params.protocol_version.and_then(text_of).is_none() {
            let message = "`params.protocolVersion` must be a string.";
            return say(plain_error(StatusCode::OK, Some(request.id), code::INVALID_PARAMS, message));
        }
        let client_info = client_info(params);
        if let Err(reply) = self.enter(caller, request, Era::Legacy, client_info.clone()).await {
            return say(reply);
        }
        self.initialized.get_or_init(|| client_info);
        say(initialized(request))
    }

    /// The process has its session once the first request is served; `era` is that of this request.
    async fn enter(
        &self,
        caller: &Caller,
        request: &Request<'_>,
        era: Era,
        client_info: Option<Arc<RawValue>>,
    ) -> Result<(), Reply> {
        if self.session.get().is_some() {
            return Ok(());
        }
        let opened = self.server.open_session(caller, Transport::Stdio, era.version(), client_info).await;
        let id = opened.map_err(|why| session_not_opened(request, &why))?;
        self.session.get_or_init(|| id);
        Ok(())
    }

    fn call(&self, asking: Asking<'_>) -> Step {
        let Asking { era, request, params, caller } = asking;
        if let Some(session) = self.session.get() {
            self.server.sessions.count_call(session);
        }
        let params = match params {
            Ok(params) => params,
            Err(why) => {
                let error =
                    ToolError::validation("params_malformed", why.message(), "Send `params` as an object.");
                let (params, target) = (Params::default(), Target { name: "".into(), arguments: None });
                let call = self.request(era, request, &params, &target, caller);
                return self.refuse(era, request, call, error, code::INVALID_PARAMS);
            }
        };
        let target = match params.target() {
            Ok(target) => target,
            Err(error) => {
                let call = self.request(era, request, &params, &target_of_malformed(&params), caller);
                return self.refuse(era, request, call, error, code::INVALID_PARAMS);
            }
        };
        let principal = Arc::clone(&caller.principal);
        let call = self.request(era, request, &params, &target, caller);
        match self.begin(request, &call, &principal) {
            Ok(in_flight) => self.run(era, request, call, in_flight),
            Err(BeginError::Duplicate) if planted::armed("stdio_duplicate_id_accepted") => {
                self.run(era, request, call, None)
            }
            Err(BeginError::Duplicate) => {
                let hint = "Give each request an id that this process has not used before.";
                let error = ToolError::validation("request_id_in_flight", IN_FLIGHT, hint);
                self.refuse(era, request, call, error, code::INVALID_REQUEST)
            }
            Err(BeginError::NotFound) => {
                let hint = "Start the process again.";
                let error = ToolError::validation("session_not_found", "The session has ended.", hint);
                self.refuse(era, request, call, error, code::INVALID_REQUEST)
            }
        }
    }

    fn begin(
        &self,
        request: &Request<'_>,
        call: &CallRequest,
        principal: &Principal,
    ) -> Result<Option<InFlight>, BeginError> {
        let session = self.session.get().ok_or(BeginError::NotFound)?;
        let id = plain_id(request.id);
        self.server.sessions.begin(session, principal, &id, call.cancel.clone()).map(Some)
    }

    /// The call as dispatch takes it.
    fn request(
        &self,
        era: Era,
        request: &Request<'_>,
        params: &Params<'_>,
        target: &Target<'_>,
        caller: Caller,
    ) -> CallRequest {
        let client_info = match era {
            Era::Modern => None,
            Era::Legacy => self.initialized.get().and_then(Option::as_deref),
        };
        let session = self.session.get().map(|id| InSession { id, client_info });
        let mut call = call_request(era, request, params, target, caller, session);
        call.transport = Transport::Stdio;
        if era == Era::Modern {
            call.cancel = self.gone.child_token();
        }
        call
    }

    fn run(&self, era: Era, request: &Request<'_>, call: CallRequest, in_flight: Option<InFlight>) -> Step {
        let (dispatch, id) = (Arc::clone(&self.server.dispatch), request.id.to_owned());
        let (call_id, cancel) = (call.call_id, call.cancel.clone());
        Step::Run(
            async move {
                let answer = dispatch.call(call).await;
                drop(in_flight);
                // Who cancelled waits for nothing, and may not be sent anything.
                let is_wanted = !cancel.is_cancelled();
                is_wanted.then(|| Asked { era, id: &id, call_id }.reply(&answer).body).flatten()
            }
            .boxed(),
        )
    }

    fn refuse(
        &self,
        era: Era,
        request: &Request<'_>,
        call: CallRequest,
        error: ToolError,
        code: i64,
    ) -> Step {
        let (dispatch, id) = (Arc::clone(&self.server.dispatch), request.id.to_owned());
        let call_id = call.call_id;
        Step::Run(
            async move {
                let answer = dispatch.refuse(call, error).await;
                Asked { era, id: &id, call_id }.reply_refused(code, &answer).body
            }
            .boxed(),
        )
    }
}

const IN_FLIGHT: &str = "A request with this id is in flight in this process.";
const UNINITIALIZED: &str =
    "Nothing was agreed on yet: the request names no protocol version, and there was no `initialize`.";
const HOW_TO_START: &str = "Send `initialize` first (2025-11-25), or the version in `_meta` (2026-07-28).";

/// What 2026-07-28 wants in each request.
fn check_meta(request: &Request<'_>, params: &Params<'_>) -> Result<(), Reply> {
    let meta = params.read_meta().unwrap_or_default();
    let version = meta.protocol_version.and_then(text_of);
    let version = version.ok_or_else(|| missing_meta(request, META_VERSION))?;
    if !meta.client_capabilities.is_some_and(is_object) {
        return Err(missing_meta(request, META_CAPABILITIES));
    }
    if version == MODERN_VERSION { Ok(()) } else { Err(unsupported_version(Some(request), &version)) }
}

fn no_such_method(request: &Request<'_>, message: &str) -> Reply {
    plain_error(StatusCode::OK, Some(request.id), code::METHOD_NOT_FOUND, message)
}

fn say(reply: Reply) -> Step {
    reply.body.map_or(Step::Silent, Step::Answer)
}

/// What the forwarding process must know of a message, to tell its client what it lost when the server goes away. Ids are
/// in one form, however they are spelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outline {
    /// A request with this id, as received and in its one form.
    Request {
        /// As received.
        id: Box<str>,
        /// In its one form.
        plain: Box<str>,
    },
    /// The request with this id is not to be answered any more.
    Cancel(Box<str>),
    /// Nothing that is answered.
    Other,
}

impl Outline {
    /// Reads a client's line. Never fails: what cannot be read is answered without an id.
    #[must_use]
    pub fn read(line: &[u8]) -> Self {
        match Message::read(line) {
            Ok(Message::Request(request)) => {
                Self::Request { id: request.id.get().into(), plain: plain_id(request.id).into() }
            }
            Ok(Message::Notification { method, params }) if method == "notifications/cancelled" => {
                let id = Params::read(params).ok().and_then(|params| params.request_id);
                id.map_or(Self::Other, |id| Self::Cancel(plain_id(id).into()))
            }
            _ => Self::Other,
        }
    }
}

/// The id that a server's line answers, in its one form.
#[must_use]
pub fn answered_id(line: &[u8]) -> Option<Box<str>> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
    }
    let answer: Answer<'_> = serde_json::from_slice(line).ok()?;
    (answer.id.get() != "null").then(|| plain_id(answer.id).into())
}

/// What the forwarding process answers to the request `id` when the server went away.
#[must_use]
pub fn server_gone(id: &str) -> Option<Bytes> {
    let id: &RawValue = serde_json::from_str(id).ok()?;
    let error = ToolError::new(
        crate::base::Category::Internal,
        "server_gone",
        "The server went away before it answered; what became of the call is in the audit.",
        "Look the call up in the audit before you repeat it: it may have had its effect.",
    );
    super::reply::error(StatusCode::OK, Some(id), code::INTERNAL, &error.message, &error).body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_outlined_with_one_form_of_each_id() {
        let of = |line: &str| Outline::read(line.as_bytes());
        let request = |id: &str, plain: &str| Outline::Request { id: id.into(), plain: plain.into() };
        assert_eq!(of(r#"{"jsonrpc":"2.0","id":"\u0041","method":"m"}"#), request(r#""\u0041""#, r#""A""#));
        assert_eq!(of(r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{}}"#), request("7", "7"));
        let cancelled =
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u0041"}}"#;
        assert_eq!(of(cancelled), Outline::Cancel(r#""A""#.into()));
        for other in ["", "nonsense", "[]", r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#] {
            assert_eq!(of(other), Outline::Other, "{other}");
        }
        assert_eq!(answered_id(br#"{"jsonrpc":"2.0","id":"\u0041","result":{}}"#), Some(r#""A""#.into()));
        assert_eq!(answered_id(br#"{"jsonrpc":"2.0","id":null,"error":{}}"#), None);
        let gone: serde_json::Value = serde_json::from_slice(&server_gone("7").unwrap()).unwrap();
        assert_eq!((&gone["id"], &gone["error"]["code"]), (&7.into(), &(-32603).into()));
    }
}
