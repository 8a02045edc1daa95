//! MCP over a stream of lines, as a stdio process forwards them: the messages of one client, in both revisions, without
//! headers.
//!
//! A process is one session in the record, whatever revision it speaks. Under 2025-11-25 `initialize` comes first, once;
//! under 2026-07-28 each request says its version in `_meta`. In both, `notifications/cancelled` cancels, and a cancelled
//! request is not answered. That a client writes no more cancels nothing: it still reads, and gets its answers. When the
//! process itself is gone nobody reads any more, which under 2026-07-28 is the cancel that a closed response stream is over
//! HTTP; calls of 2025-11-25 go on to their end, as they do there.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::answer::Asked;
use super::call::{InSession, call_request, list};
use super::envelope::{Message, Request, is_object, plain_id, text_of};
use super::legacy::{client_info, initialized, protocol_version_missing, session_not_opened};
use super::modern::{META_CAPABILITIES, META_VERSION, discover, missing_meta};
use super::params::{Params, Target, Unreadable};
use super::refuse::{self, About, NotTaken};
use super::reply::{ResultWriter, refusal_of};
use super::session::{BeginError, InFlight};
use super::{Caller, Era, MODERN_VERSION, Reply, Server};
use crate::auth::Principal;
use crate::base::planted;
use crate::dispatch::{CallRequest, SessionUnrecorded};
use crate::event::{SessionEnd, Transport};
use crate::refusal::{Reason, Refusal};

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

    /// Takes one line, without its end. Waits only where something must be recorded first.
    pub async fn take(&self, line: &[u8], caller: Caller) -> Step {
        let request = match Message::read(line) {
            Err(malformed) => {
                let not_taken = NotTaken::new(malformed.reason, malformed.message, ONE_MESSAGE);
                return self.refuse_message(&caller, &not_taken).await;
            }
            Ok(Message::Notification { method, params }) => {
                return self.notified(&method, Params::read(params), caller).await;
            }
            // The server asks nothing, so this answers nothing.
            Ok(Message::Response) => return Step::Silent,
            Ok(Message::Request(request)) => request,
        };
        let params = Params::read(request.params);
        let era = era_of(&request.method, params.as_ref().ok());
        let asking = Asking { era, request: &request, params, caller };
        let id = plain_id(request.id);
        if request.method != "tools/call"
            && self.session.get().is_some_and(|session| self.server.sessions.is_in_flight(session, &id))
        {
            return self.refuse(asking, in_flight()).await;
        }
        match era {
            Era::Modern => self.modern(asking).await,
            Era::Legacy => self.legacy(asking).await,
        }
    }

    /// Refuses a line over the limit of `bytes_max` bytes, of which nothing was read.
    pub async fn too_long(&self, bytes_max: usize, caller: &Caller) -> Step {
        let message = format!("The line is over the limit of {bytes_max} bytes.");
        let not_taken = NotTaken::new(Reason::BodyTooLarge, message, "Send less at once.");
        self.refuse_message(caller, &not_taken).await
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

    /// The session ends because its key is over: `why` is the gate's.
    pub fn refused(&self, why: Reason, principal: &Principal) {
        let reason = match why {
            Reason::KeyRevoked => SessionEnd::Revoked,
            Reason::KeyExpired => SessionEnd::Expired,
            _ => SessionEnd::ClientDelete,
        };
        if let Some(id) = self.session.get() {
            self.server.sessions.end_for(id, principal, reason);
        }
    }

    /// Takes a notification, to which nothing is ever said.
    async fn notified(&self, method: &str, params: Result<Params<'_>, Unreadable>, caller: Caller) -> Step {
        let params = params.unwrap_or_default();
        if method == "notifications/cancelled"
            && let Some(request_id) = params.request_id
            && let Some(session) = self.session.get()
            && !planted::armed("stdio_cancel_ignored")
        {
            self.server.sessions.cancel(session, &caller.principal, &plain_id(request_id));
        }
        if let Err(not_taken) = refuse::without_id(method) {
            let era = era_of(method, Some(&params));
            let session = self.in_session(era);
            refuse::notification(&self.server, era, method, &params, session, caller, not_taken).await;
        }
        Step::Silent
    }

    async fn modern(&self, asking: Asking<'_>) -> Step {
        let checked = match &asking.params {
            Ok(params) => check_meta(params),
            Err(why) => Err((*why).into()),
        };
        let entered = match checked {
            Ok(()) => self.enter(&asking, None).await,
            Err(not_taken) => Err(not_taken),
        };
        let answered = match (entered, &asking.params, &*asking.request.method) {
            (Err(not_taken), ..) => Err(not_taken),
            (Ok(()), _, "tools/call") => return self.call(asking).await,
            (Ok(()), _, "server/discover") => Ok(discover(asking.request)),
            (Ok(()), Ok(params), "tools/list") => {
                list(&self.server, asking.era, asking.request, params, &asking.caller)
            }
            _ => {
                let message = "This server has no such method in MCP 2026-07-28.";
                let hint = "It has server/discover, tools/list and tools/call.";
                Err(NotTaken::new(Reason::MethodNotFound, message, hint))
            }
        };
        self.answer(asking, answered).await
    }

    async fn legacy(&self, asking: Asking<'_>) -> Step {
        let is_initialized = self.initialized.get().is_some();
        let answered = match (&*asking.request.method, &asking.params) {
            ("initialize", Ok(params)) => self.initialize(&asking, params).await,
            // A client may ask whether the server is alive before it does anything else.
            ("ping", Ok(_)) => Ok(ResultWriter::new(asking.era, asking.request.id, 0).finish()),
            (method, _) if !is_initialized && method != "initialize" => {
                Err(NotTaken::new(Reason::NotInitialized, UNINITIALIZED, HOW_TO_START))
            }
            ("tools/call", _) => return self.call(asking).await,
            (_, Err(why)) => Err((*why).into()),
            ("tools/list", Ok(params)) => {
                list(&self.server, asking.era, asking.request, params, &asking.caller)
            }
            _ => {
                let message = "This server has no such method in MCP 2025-11-25.";
                let hint = "It has initialize, ping, tools/list and tools/call.";
                Err(NotTaken::new(Reason::MethodNotFoundInSession, message, hint))
            }
        };
        self.answer(asking, answered).await
    }

    async fn initialize(&self, asking: &Asking<'_>, params: &Params<'_>) -> Result<Reply, NotTaken> {
        if self.initialized.get().is_some() {
            let message = "This process is initialized already.";
            return Err(NotTaken::new(Reason::AlreadyInitialized, message, "Go on with other requests."));
        }
        if params.protocol_version.and_then(text_of).is_none() {
            return Err(protocol_version_missing());
        }
        let client_info = client_info(params);
        self.enter(asking, client_info.clone()).await?;
        self.initialized.get_or_init(|| client_info);
        Ok(initialized(asking.request))
    }

    /// The process has its session once the first request is served; `era` is that of this request.
    async fn enter(&self, asking: &Asking<'_>, client_info: Option<Arc<RawValue>>) -> Result<(), NotTaken> {
        if self.session.get().is_some() {
            return Ok(());
        }
        let (caller, version) = (&asking.caller, asking.era.version());
        let opened = self.server.open_session(caller, Transport::Stdio, version, client_info).await;
        let id = opened.map_err(session_not_opened)?;
        self.session.get_or_init(|| id);
        Ok(())
    }

    async fn call(&self, asking: Asking<'_>) -> Step {
        if let Some(session) = self.session.get() {
            self.server.sessions.count_call(session);
        }
        let target = match &asking.params {
            Ok(params) => params.target().map_err(NotTaken::from),
            Err(why) => Err((*why).into()),
        };
        let target = match target {
            Ok(target) => target,
            Err(not_taken) => return self.refuse(asking, not_taken).await,
        };
        let empty = Params::default();
        let params = asking.params.as_ref().unwrap_or(&empty);
        let Asking { era, request, ref caller, .. } = asking;
        let call = self.request(era, request, params, &target, caller.clone());
        match self.begin(request, &call, &caller.principal) {
            Ok(in_flight) => self.run(era, request, call, in_flight),
            Err(BeginError::Duplicate) if planted::armed("stdio_duplicate_id_accepted") => {
                self.run(era, request, call, None)
            }
            Err(BeginError::Duplicate) => self.refuse(asking, in_flight()).await,
            Err(BeginError::NotFound) => {
                let hint = "Start the process again.";
                let ended = NotTaken::new(Reason::SessionNotFound, "The session has ended.", hint);
                self.refuse(asking, ended).await
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

    fn in_session(&self, era: Era) -> Option<InSession<'_>> {
        let client_info = match era {
            Era::Modern => None,
            Era::Legacy => self.initialized.get().and_then(Option::as_deref),
        };
        self.session.get().map(|id| InSession { id, client_info })
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
        let mut call = call_request(era, request, params, target, caller, self.in_session(era));
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

    async fn answer(&self, asking: Asking<'_>, answered: Result<Reply, NotTaken>) -> Step {
        match answered {
            Ok(reply) => say(reply),
            Err(not_taken) => self.refuse(asking, not_taken).await,
        }
    }

    /// Records that a request is not taken, and says so.
    async fn refuse(&self, asking: Asking<'_>, not_taken: NotTaken) -> Step {
        let Asking { era, request, params, caller } = asking;
        let params = params.unwrap_or_default();
        let session = self.in_session(era);
        say(refuse::request(&self.server, era, request, &params, session, caller, not_taken).await)
    }

    /// Records that a message of which no request is known is not taken, and says so.
    async fn refuse_message(&self, caller: &Caller, not_taken: &NotTaken) -> Step {
        let session_id = self.session.get().map(|id| &**id);
        let about = About { session_id, ..About::default() };
        say(refuse::message(&self.server, about, caller, not_taken).await)
    }
}

const IN_FLIGHT: &str = "A request with this id is in flight in this process.";
const UNINITIALIZED: &str =
    "Nothing was agreed on yet: the request names no protocol version, and there was no `initialize`.";
const HOW_TO_START: &str = "Send `initialize` first (2025-11-25), or the version in `_meta` (2026-07-28).";

const ONE_MESSAGE: &str = "Send one JSON-RPC 2.0 message on each line.";

/// The revision of a message without headers.
fn era_of(method: &str, params: Option<&Params<'_>>) -> Era {
    let in_meta = params.and_then(Params::read_meta).is_some_and(|meta| meta.protocol_version.is_some());
    if method == "server/discover" || in_meta { Era::Modern } else { Era::Legacy }
}

/// What 2026-07-28 wants in each request.
fn check_meta(params: &Params<'_>) -> Result<(), NotTaken> {
    let meta = params.read_meta().unwrap_or_default();
    let version = meta.protocol_version.and_then(text_of);
    let version = version.ok_or_else(|| missing_meta(META_VERSION))?;
    if !meta.client_capabilities.is_some_and(is_object) {
        return Err(missing_meta(META_CAPABILITIES));
    }
    if version == MODERN_VERSION { Ok(()) } else { Err(NotTaken::version(&version)) }
}

fn in_flight() -> NotTaken {
    let hint = "Give each request an id that this process has not used before.";
    NotTaken::new(Reason::RequestIdInFlight, IN_FLIGHT, hint)
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
    let gone = Refusal::new(
        Reason::ServerGone,
        "The server went away before it answered; what became of the call is in the audit.",
        "Look the call up in the audit before you repeat it: it may have had its effect.",
    );
    refusal_of(id, &gone)
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
