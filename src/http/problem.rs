//! A refusal on its way to an HTTP client, as REST or as MCP says it.
//!
//! Carries public text only; causes are logged where they are handled. Only `refuse` answers with one, once it is recorded.

use axum::Json;
use axum::http::header::{ALLOW, CACHE_CONTROL, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::refusal::{Reason, Refusal, Surface};

/// One refusal and the headers that go with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is refused and why; its row decides the status.
    pub refusal: Refusal,
    /// Seconds after which to try again.
    pub retry_after_s: Option<u32>,
    /// The `WWW-Authenticate` challenge, on 401.
    pub challenge: Option<&'static str>,
    /// The methods that the path takes, on 405.
    pub allow: Option<&'static str>,
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, retry_after_s: None, challenge: None, allow: None }
    }
}

impl Problem {
    /// A refusal for `reason`.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Refusal::new(reason, message, hint).into()
    }

    /// The same with `Retry-After`.
    #[must_use]
    pub fn retry_after(refusal: Refusal, seconds: u32) -> Self {
        Self { retry_after_s: Some(seconds), ..refusal.into() }
    }

    /// An HTTP method that the path does not take.
    #[must_use]
    pub fn method_not_allowed(allow: &'static str, hint: &str) -> Self {
        let message = "This path does not take this HTTP method.";
        Self { allow: Some(allow), ..Self::new(Reason::MethodNotAllowed, message, hint) }
    }

    /// The answer. Whoever calls this has made sure that the refusal is recorded, where its row says so.
    pub(super) fn say(self, surface: Surface) -> Response {
        let mut response = match surface {
            Surface::Mcp => crate::mcp::refusal(&self.refusal).into_response(),
            Surface::Rest => {
                let status = StatusCode::from_u16(self.refusal.row().status);
                let body = Json(serde_json::json!({ "error": self.refusal }));
                (status.expect("the table holds HTTP statuses"), body).into_response()
            }
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(challenge) = self.challenge {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}
