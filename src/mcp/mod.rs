//! MCP over one request at a time: JSON-RPC messages in, answers out, for the revisions 2026-07-28 and 2025-11-25, over HTTP
//! and, in `stdio`, over a stream of lines.
//!
//! The era is chosen per request: a message with 2026-07-28's `_meta` is served without any state, everything else
//! within a session. Never touches the log: a call is handed to dispatch, which answers once its end is recorded.
//! Never interprets arguments or results; they pass as the bytes they are.

mod answer;
mod call;
mod envelope;
mod headers;
mod keeper;
mod legacy;
mod modern;
mod params;
mod refuse;
mod reply;
mod session;
mod stdio;

pub use reply::{Reply, refusal, refusal_of};
pub use session::SessionLimits;
pub use stdio::{Outline, StdioStream, Step, answered_id, server_gone};

use std::sync::Arc;

use axum::http::HeaderMap;

use crate::auth::{Persona, Principal};
use crate::base::{Tasks, Timestamp};
use crate::dispatch::{Client, Dispatch};
use crate::event::Transport;
use crate::refusal::{Place, Reason, Surface};
use envelope::Message;
use params::Params;
use refuse::{About, NotTaken};
use session::Sessions;

/// Reads `body` as the parts of a message that come before anything is known of it. Never panics.
#[cfg(any(test, feature = "fuzzing"))]
pub fn read_any(body: &[u8]) {
    let Ok(Message::Request(envelope::Request { params, .. }) | Message::Notification { params, .. }) =
        Message::read(body)
    else {
        return;
    };
    if let Ok(params) = Params::read(params) {
        let meta = params.read_meta();
        let target = params.target();
        let asserted = params.asserted(None, None).map(|json| json.get().len());
        assert!(meta.is_none() || asserted.is_some());
        drop((target, params.trace()));
    }
}

/// The revision without sessions.
pub const MODERN_VERSION: &str = "2026-07-28";
/// The revision with sessions.
pub const LEGACY_VERSION: &str = "2025-11-25";
/// What is served, the preferred one first.
const SUPPORTED_VERSIONS: [&str; 2] = [MODERN_VERSION, LEGACY_VERSION];

/// Told to every client, for its model.
pub const INSTRUCTIONS: &str = include_str!("instructions.md");

/// Under which rules a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    /// 2025-11-25
    Legacy,
    /// 2026-07-28
    Modern,
}

impl Era {
    const fn version(self) -> &'static str {
        match self {
            Self::Legacy => LEGACY_VERSION,
            Self::Modern => MODERN_VERSION,
        }
    }
}

/// An authenticated caller and when its request came in.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Who calls.
    pub principal: Arc<Principal>,
    /// What they may reach.
    pub persona: Arc<Persona>,
    /// What is known of the peer; what it asserts is added here.
    pub client: Client,
    /// When the request was received.
    pub received_at: Timestamp,
    /// How it came in.
    pub transport: Transport,
    /// Method and path; `stdio` on standard input.
    pub route: String,
}

impl Caller {
    fn place(&self) -> Place<'_> {
        Place { route: &self.route, surface: Surface::Mcp, transport: self.transport }
    }
}

/// Answers MCP messages. Clones share everything.
#[derive(Clone)]
pub struct Server {
    dispatch: Arc<Dispatch>,
    sessions: Arc<Sessions>,
    lists: Arc<call::Lists>,
    tasks: Tasks,
}

impl Server {
    /// Answers with the tools of `dispatch`. Calls made within a session are tasks of `tasks`, since they outlive
    /// the connection that asked for them.
    #[must_use]
    pub fn new(dispatch: Arc<Dispatch>, limits: SessionLimits, tasks: Tasks) -> Self {
        let sessions = Arc::new(Sessions::new(Arc::clone(dispatch.clock()), limits));
        Self { dispatch, sessions, lists: Arc::default(), tasks }
    }

    /// The clock that stamps calls.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.dispatch.clock().now()
    }

    /// Runs `future` among the calls, which a stop of the server waits for.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(name, future);
    }

    /// How many sessions of 2025-11-25 there are.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.count()
    }

    /// Answers the message in `body`. Dropping the future cancels a call of 2026-07-28, and none of 2025-11-25.
    pub async fn post(&self, headers: &HeaderMap, body: &[u8], caller: Caller) -> Reply {
        let message = match Message::read(body) {
            Ok(message) => message,
            Err(malformed) => {
                let hint = "Send one JSON-RPC 2.0 message.";
                let not_taken = NotTaken::new(malformed.reason, malformed.message, hint);
                return refuse::message(self, About::default(), &caller, &not_taken).await;
            }
        };
        match message {
            Message::Request(request) => {
                let params = Params::read(request.params);
                match era_of(headers, &request.method, params.as_ref().ok()) {
                    Era::Modern => modern::request(self, headers, &request, params, caller).await,
                    Era::Legacy => legacy::request(self, headers, &request, params, caller).await,
                }
            }
            Message::Notification { method, params } => {
                let params = Params::read(params);
                match era_of(headers, &method, params.as_ref().ok()) {
                    Era::Modern => modern::notification(self, headers, &method, params, caller).await,
                    Era::Legacy => legacy::notification(self, headers, &method, params, caller).await,
                }
            }
            Message::Response => match era_of(headers, "", None) {
                Era::Modern => {
                    let message =
                        "This revision has no requests of the server, so there is nothing to respond to.";
                    let hint = "Send a request or a notification.";
                    let not_taken = NotTaken::new(Reason::ResponseUnexpected, message, hint);
                    refuse::message(self, About::default(), &caller, &not_taken).await
                }
                Era::Legacy => legacy::response(self, headers, &caller).await,
            },
        }
    }

    /// Ends the caller's session that the headers name, once that is durable.
    pub async fn delete(&self, headers: &HeaderMap, caller: &Caller) -> Reply {
        legacy::delete(self, headers, caller).await
    }
}

/// The HTTP methods that the revision in the headers takes, and what to do about another one.
#[must_use]
pub fn allowed_methods(headers: &HeaderMap) -> (&'static str, &'static str) {
    if names_modern(headers) {
        ("POST", "Send each message as a POST.")
    } else {
        ("POST, DELETE", "Send each message as a POST; this server opens no stream for GET.")
    }
}

/// Whether the headers name a revision without sessions; unknown later ones are of that kind too.
#[must_use]
pub fn names_modern(headers: &HeaderMap) -> bool {
    // Revisions are dates, so their order is the order of the text.
    headers.get_all(headers::VERSION).iter().any(|value| {
        let date = value.as_bytes().trim_ascii();
        date.len() == MODERN_VERSION.len() && date.first() == Some(&b'2') && date >= MODERN_VERSION.as_bytes()
    })
}

fn era_of(headers: &HeaderMap, method: &str, params: Option<&Params<'_>>) -> Era {
    // A version key in `_meta` is looked for even where `_meta` is otherwise unusable, so that its error is modern.
    let in_meta = params.and_then(Params::read_meta).is_some_and(|meta| meta.protocol_version.is_some());
    let modern = match method {
        "initialize" => in_meta,
        "server/discover" => true,
        _ => in_meta || names_modern(headers),
    };
    if modern { Era::Modern } else { Era::Legacy }
}
