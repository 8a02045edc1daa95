//! The audit as somebody reads it, over REST or by a tool: the reading is durable and allowed before anything is read, and
//! rows are shown only while they follow the log.
//!
//! Knows neither HTTP nor MCP. A store that is away is a refusal, never an empty answer.

use serde_json::Value;

use crate::auth::{AuditAccess, Auth, Persona, Principal};
use crate::dispatch::Client;
use crate::query::{Error, Query};
use crate::refusal::{Reason, Refusal};

/// How soon a caller may ask again while the store is away, seconds.
const STORE_RETRY_S: u32 = 5;

/// Who reads, and what from.
pub struct Reader<'a> {
    /// Decides and records.
    pub auth: &'a Auth,
    /// Whether the rows follow the log; asked once the reading is recorded.
    pub follows: &'a (dyn Fn() -> bool + Send + Sync),
    /// Who reads.
    pub principal: &'a Principal,
    /// What they may.
    pub persona: &'a Persona,
    /// What is known of the peer.
    pub client: &'a Client,
}

impl Reader<'_> {
    /// Gives the rows of `query`, once `admin.audit_queried` with `view` and `asked` is durable.
    ///
    /// # Errors
    /// `audit_not_allowed`, recorded too; `log_unavailable` when it cannot be recorded; `store_stopped` when the rows
    /// stopped following the log: what is there would look like all there is.
    pub async fn open<'q>(
        &self,
        query: &'q Query,
        view: &'static str,
        asked: &Value,
    ) -> Result<&'q Query, Refusal> {
        let access = self.auth.audit_access(self.principal, self.persona, view, asked, self.client);
        access.await.map_err(|error| match error {
            AuditAccess::Forbidden(refusal) => refusal,
            AuditAccess::Unavailable { refusal, retry_after_s } => refusal.retry_after(retry_after_s),
        })?;
        if (self.follows)() {
            return Ok(query);
        }
        let message = "The rows do not follow the log any more, so they are not shown.";
        Err(unavailable(Reason::StoreStopped, message))
    }
}

/// What a caller is told of an audit that could not be read.
#[must_use]
pub fn refusal_of(error: Error) -> Refusal {
    match error {
        Error::Starting | Error::Unavailable { .. } => {
            tracing::warn!(error = ?error, "the audit could not be read");
            let message = "The audit store is not available. Recording goes on; nothing is lost.";
            unavailable(Reason::StoreUnavailable, message)
        }
        Error::Cursor(cause) => {
            let hint = "Use `next_cursor` as it was given, with the same filters, or start without one.";
            Refusal::new(Reason::BadCursor, format!("The cursor is not valid: {cause}."), hint)
        }
        Error::Internal { cause } => {
            tracing::error!(error = %cause, "the audit store gave an unexpected answer");
            let hint = "Try again; when it persists, give the operator the time of this request.";
            Refusal::new(Reason::StoreFailed, "The audit could not be read.", hint)
        }
    }
}

fn unavailable(reason: Reason, message: &str) -> Refusal {
    Refusal::new(reason, message, "Try again later; /readyz says what is not well.")
        .retry_after(STORE_RETRY_S)
}
