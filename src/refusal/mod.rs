//! Every reason for which something is refused or fails, in one table: HTTP status, JSON-RPC code, category and event.
//!
//! Lies below everybody who refuses, so that no refusal compiles without its row. Records nothing and answers nobody.

mod document;
mod reason;

pub use document::{Served, events_document};
pub use reason::Reason;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::base::{Category, planted};
use crate::event::{Kind, RequestRefused, Transport};

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// As events and answers write the reason, in `snake_case`.
    pub code: &'static str,
    /// What it is counted under.
    pub category: Category,
    /// The HTTP status; a transport without one ignores it.
    pub status: u16,
    /// How MCP says it.
    pub rpc: Rpc,
    /// What is durable before it is said.
    pub recorded: Recorded,
    /// How it can come in.
    pub transports: &'static [Transport],
    /// Where it can be met.
    pub surfaces: &'static [Surface],
    /// What was sent or found.
    pub meaning: &'static str,
}

/// How MCP says a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rpc {
    /// A JSON-RPC error with this code.
    Error(i64),
    /// A tool result with `isError`, which the model reads.
    Result,
    /// It cannot be met there.
    Absent,
}

impl Rpc {
    /// The JSON-RPC code, where it is an error.
    #[must_use]
    pub const fn code(self) -> Option<i64> {
        match self {
            Self::Error(code) => Some(code),
            Self::Result | Self::Absent => None,
        }
    }
}

/// Which surface of the server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// MCP's messages.
    Mcp,
    /// Everything else over HTTP.
    Rest,
}

impl Surface {
    /// As `source` in events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mcp => "mcp",
            Self::Rest => "rest",
        }
    }
}

/// The event that a reason causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// `auth.failed`
    AuthFailed,
    /// `request.refused`, whatever was asked: it is refused before the message is read.
    Request,
    /// `request.refused`; when what is refused is a readable `tools/call`, `tool_call.denied` in its place.
    Message,
    /// `tool_call.denied`
    Denied,
    /// `tool_call.failed`, behind the call's intent.
    Failed,
    /// `tool_call.denied`, or `tool_call.failed` when it shows only while the tool runs.
    DeniedOrFailed,
    /// `tool_call.timed_out`
    TimedOut,
    /// `tool_call.cancelled`
    Cancelled,
    /// `admin.audit_queried`, which was durable before anything was read; where a call reads, it ends as `tool_call.failed` too.
    AuditQueried,
    /// None, and why.
    Nothing(&'static str),
}

impl Recorded {
    /// The events of which exactly one is caused, the usual one first.
    #[must_use]
    pub const fn kinds(self) -> &'static [Kind] {
        match self {
            Self::AuthFailed => &[Kind::AuthFailed],
            Self::Request => &[Kind::RequestRefused],
            Self::Message => &[Kind::RequestRefused, Kind::ToolCallDenied],
            Self::Denied => &[Kind::ToolCallDenied],
            Self::Failed => &[Kind::ToolCallFailed],
            Self::DeniedOrFailed => &[Kind::ToolCallDenied, Kind::ToolCallFailed],
            Self::TimedOut => &[Kind::ToolCallTimedOut],
            Self::Cancelled => &[Kind::ToolCallCancelled],
            Self::AuditQueried => &[Kind::AdminAuditQueried, Kind::ToolCallFailed],
            Self::Nothing(_) => &[],
        }
    }
}

impl Reason {
    /// As events and answers write it.
    #[must_use]
    pub const fn code(self) -> &'static str {
        self.row().code
    }

    /// What it is counted under.
    #[must_use]
    pub const fn category(self) -> Category {
        self.row().category
    }

    /// The facts of `request.refused` as far as the table and the place decide them: one refusal, by nobody known yet.
    #[must_use]
    pub fn request_refused(self, at: &Place<'_>) -> RequestRefused {
        let row = self.row();
        let over_http = at.transport == Transport::Http;
        RequestRefused {
            reason: row.code.to_owned(),
            category: row.category,
            status: over_http.then_some(row.status),
            rpc_code: if at.surface == Surface::Mcp { row.rpc.code() } else { None },
            route: crate::base::clip(at.route, ROUTE_BYTES_MAX).to_owned(),
            source: at.surface.as_str().to_owned(),
            transport: at.transport,
            subject_id: None,
            auth_method: None,
            key_id: None,
            persona: None,
            session_id: None,
            method: None,
            request_id: None,
            count: 1,
            window: None,
        }
    }

    /// Whether an event is due. Whoever records asks, so that the table decides it everywhere.
    #[must_use]
    pub fn is_recorded(self) -> bool {
        let deleted = planted::armed("refusal_row_deleted") && self == Self::Batch;
        !deleted && !self.row().recorded.kinds().is_empty()
    }
}

/// What a route is clipped to in events, bytes.
const ROUTE_BYTES_MAX: usize = 128;

/// Where something was refused.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Method and path; `stdio` on standard input.
    pub route: &'a str,
    /// What was asked.
    pub surface: Surface,
    /// How it came in.
    pub transport: Transport,
}

/// One refusal or failure as its caller sees it: `{code, category, message, hint}`, and
/// `retry_after_s` where it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The row.
    pub reason: Reason,
    /// One sentence for the caller; no internals.
    pub message: String,
    /// What to do next.
    pub hint: String,
    /// When to try again, seconds, where time alone helps.
    pub retry_after_s: Option<u32>,
}

impl Refusal {
    /// For `reason`.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { reason, message: message.into(), hint: hint.into(), retry_after_s: None }
    }

    /// The same with the time after which to try again, seconds.
    #[must_use]
    pub fn retry_after(self, seconds: u32) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    /// Ours, without details: the call id finds them in the log output.
    #[must_use]
    pub fn internal(reason: Reason) -> Self {
        Self::new(
            reason,
            "The platform failed while it ran the tool.",
            "Try again; when it persists, give the operator the call id.",
        )
    }

    /// The specific reason, stable, in `snake_case`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.reason.code()
    }

    /// From the closed set.
    #[must_use]
    pub const fn category(&self) -> Category {
        self.reason.category()
    }

    /// The row.
    #[must_use]
    pub const fn row(&self) -> &'static Row {
        self.reason.row()
    }
}

impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields =
            serializer.serialize_struct("Refusal", if self.retry_after_s.is_some() { 5 } else { 4 })?;
        fields.serialize_field("code", self.code())?;
        fields.serialize_field("category", &self.category())?;
        fields.serialize_field("message", &self.message)?;
        fields.serialize_field("hint", &self.hint)?;
        match self.retry_after_s {
            Some(seconds) => fields.serialize_field("retry_after_s", &seconds)?,
            None => fields.skip_field("retry_after_s")?,
        }
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_unique_and_in_snake_case() {
        let mut seen = BTreeSet::new();
        for reason in Reason::ALL {
            let code = reason.code();
            let plain = code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(plain && !code.starts_with('_') && !code.ends_with('_'), "{code}");
            assert!(seen.insert(code), "{code} stands twice");
        }
    }

    #[test]
    fn each_row_agrees_with_itself() {
        for reason in Reason::ALL {
            let row = reason.row();
            let code = row.code;
            assert!(!row.transports.is_empty() && !row.surfaces.is_empty(), "{code} can occur nowhere");
            assert!(row.meaning.ends_with('.'), "{code}: one sentence");
            let in_mcp = row.surfaces.contains(&Surface::Mcp);
            assert_eq!(in_mcp, row.rpc != Rpc::Absent, "{code}: how MCP says it");
            let handled = row.status == 200;
            assert!(handled || (400..600).contains(&row.status), "{code}: {}", row.status);
            assert!(!handled || in_mcp, "{code}: only MCP says what is wrong within a 200");
            // REST has no result that says it: there the status does.
            if row.rpc == Rpc::Result && !row.surfaces.contains(&Surface::Rest) {
                assert!(handled, "{code}: clients throw the body of any other status away");
            }
            if !handled {
                let ours = matches!(row.category, Category::Internal | Category::Upstream);
                let busy = row.status == 503 && row.category == Category::RateLimit;
                assert_eq!(ours || busy, row.status >= 500, "{code}: {:?} with {}", row.category, row.status);
            }
            if let Recorded::Nothing(why) = row.recorded {
                assert!(why.len() > 20, "{code}: why is nothing recorded?");
            }
        }
    }

    #[test]
    fn codes_of_json_rpc_are_the_protocols_or_those_of_a_status() {
        for reason in Reason::ALL {
            let row = reason.row();
            if let Some(code) = row.rpc.code() {
                let protocol = (-32_768..=-32_000).contains(&code);
                let of_status = code == 1_000 + i64::from(row.status);
                let of_a_call = matches!(code, 1_499 | 1_500);
                assert!(protocol || of_status || of_a_call, "{}: {code}", row.code);
            }
        }
    }

    #[test]
    fn every_category_is_used() {
        let used: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.category().as_str()).collect();
        let all =
            ["auth", "authz", "cancelled", "internal", "rate_limit", "timeout", "upstream", "validation"];
        assert_eq!(used, BTreeSet::from(all));
    }

    #[test]
    fn a_refusal_is_code_category_message_and_hint() {
        let json = serde_json::to_string(&Refusal::new(Reason::Batch, "m", "h")).unwrap();
        assert_eq!(json, r#"{"code":"batch","category":"validation","message":"m","hint":"h"}"#);
    }
}
