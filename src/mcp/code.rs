//! The JSON-RPC error codes that this server answers with.
//!
//! The protocol owns everything from -32768 to -32000; our own codes are 1000 + the HTTP status they resemble.

/// The body is not JSON.
pub(super) const PARSE_ERROR: i64 = -32700;
/// JSON, but no message that can be taken.
pub(super) const INVALID_REQUEST: i64 = -32600;
/// No such method in this revision.
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
/// The method's parameters are wrong.
pub(super) const INVALID_PARAMS: i64 = -32602;
/// Ours.
pub(super) const INTERNAL: i64 = -32603;
/// MCP 2026-07-28: a header is missing, unusable or differs from the body.
pub(super) const HEADER_MISMATCH: i64 = -32020;
/// MCP 2026-07-28: a revision that is not served.
pub(super) const UNSUPPORTED_VERSION: i64 = -32022;
/// The call was cancelled.
pub(super) const CANCELLED: i64 = 1_499;
/// The tool may have had an effect, but its outcome is not recorded.
pub(super) const OUTCOME_UNRECORDED: i64 = 1_500;

/// The code of a refusal that is made on the level of HTTP.
pub(super) fn of_status(status: axum::http::StatusCode) -> i64 {
    1_000 + i64::from(status.as_u16())
}
