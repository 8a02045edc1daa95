//! The errors of the REST routes: a closed set of kinds, mapped to HTTP once.
//!
//! Carries public text only; causes are logged where they are handled.

use axum::Json;
use axum::http::header::{ALLOW, CACHE_CONTROL, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::base::Category;

/// What kind of refusal it is; decides status and category.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A parameter is wrong.
    BadRequest,
    /// No or bad credentials.
    Unauthenticated,
    /// Known, but not allowed.
    Forbidden,
    /// A `Host` or `Origin` that is not served.
    Foreign,
    /// Nothing there.
    NotFound,
    /// The path is there, but not for this method.
    MethodNotAllowed,
    /// The client did not send its body in time.
    BodyTimeout,
    /// The body is over the limit.
    TooLarge,
    /// The body's type is not JSON.
    MediaType,
    /// The client does not take JSON.
    NotAcceptable,
    /// The log or the store is away.
    Unavailable,
    /// Ours.
    Internal,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::BadRequest,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::Foreign,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::BodyTimeout,
        Self::TooLarge,
        Self::MediaType,
        Self::NotAcceptable,
        Self::Unavailable,
        Self::Internal,
    ];

    /// The table.
    #[must_use]
    pub const fn table(self) -> (StatusCode, Category) {
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, Category::Validation),
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, Category::Auth),
            Self::Forbidden | Self::Foreign => (StatusCode::FORBIDDEN, Category::Authz),
            Self::NotFound => (StatusCode::NOT_FOUND, Category::Validation),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, Category::Validation),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, Category::Timeout),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, Category::RateLimit),
            Self::MediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, Category::Validation),
            Self::NotAcceptable => (StatusCode::NOT_ACCEPTABLE, Category::Validation),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, Category::Upstream),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, Category::Internal),
        }
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        self.table().0
    }

    /// The category.
    #[must_use]
    pub const fn category(self) -> Category {
        self.table().1
    }
}

/// One refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What kind.
    pub kind: ErrorKind,
    /// The specific reason, in `snake_case`.
    pub code: &'static str,
    /// One sentence.
    pub message: String,
    /// What to do next.
    pub hint: String,
    /// Seconds after which to try again.
    pub retry_after_s: Option<u32>,
    /// The `WWW-Authenticate` challenge, on 401.
    pub challenge: Option<&'static str>,
}

impl Problem {
    /// A refusal.
    #[must_use]
    pub fn new(
        kind: ErrorKind,
        code: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let (message, hint) = (message.into(), hint.into());
        Self { kind, code, message, hint, retry_after_s: None, challenge: None }
    }

    /// Nothing is at this path.
    #[must_use]
    pub fn no_route() -> Self {
        let hint = "MCP is served at /mcp; the audit at /api/v1/admin/audit/events.";
        Self::new(ErrorKind::NotFound, "route_not_found", "There is nothing at this path.", hint)
    }

    /// Nothing is at this path of the metrics listener.
    #[must_use]
    pub fn no_metrics_route() -> Self {
        let hint = "The metrics are at /metrics.";
        Self::new(ErrorKind::NotFound, "route_not_found", "There is nothing at this path.", hint)
    }

    /// As the MCP endpoint says it: a JSON-RPC error without an id.
    #[must_use]
    pub fn into_mcp(self) -> Response {
        let refused = crate::mcp::Refusal {
            code: self.code,
            category: self.kind.category(),
            message: &self.message,
            hint: &self.hint,
        };
        let reply = crate::mcp::refusal(self.kind.status(), &refused);
        self.with_headers(reply.into_response())
    }

    fn with_headers(&self, mut response: Response) -> Response {
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(challenge) = self.challenge {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if self.kind == ErrorKind::MethodNotAllowed {
            headers.insert(ALLOW, HeaderValue::from_static("GET"));
        }
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let error = serde_json::json!({
            "code": self.code,
            "category": self.kind.category(),
            "message": self.message,
            "hint": self.hint,
        });
        let body = Json(serde_json::json!({ "error": error }));
        self.with_headers((self.kind.status(), body).into_response())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_an_error_status() {
        for kind in ErrorKind::ALL {
            assert!(kind.status().is_client_error() || kind.status().is_server_error(), "{kind:?}");
            let ours = matches!(kind.category(), Category::Internal | Category::Upstream);
            assert_eq!(ours, kind.status().is_server_error(), "{kind:?}");
        }
    }
}
