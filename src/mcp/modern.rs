//! MCP 2026-07-28: each request stands alone, and its headers must say what its body says.
//!
//! Knows no sessions; a `Mcp-Session-Id` is ignored. A vanished client has cancelled its call.

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderName, StatusCode};

use super::answer::Asked;
use super::call::{cacheable, call_request, list, refuse, target_of_malformed};
use super::envelope::{Request, is_object, text_of};
use super::headers::{self, decoded, single};
use super::params::{Params, Unreadable};
use super::reply::{ResultWriter, plain_error};
use super::{Caller, Era, INSTRUCTIONS, MODERN_VERSION, Reply, SUPPORTED_VERSIONS, Server};
use super::{code, unreadable_params, unsupported_version};
use crate::tools::ToolError;

const ERA: Era = Era::Modern;
pub(super) const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(super) const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Answers a request.
pub(super) async fn request(
    server: &Server,
    headers: &HeaderMap,
    request: &Request<'_>,
    params: Result<Params<'_>, Unreadable>,
    caller: Caller,
) -> Reply {
    let params = match params {
        Ok(params) => params,
        // Nothing can be compared with the headers, but the body does name a call, so its refusal is recorded.
        Err(why) if request.method == "tools/call" => {
            let error =
                ToolError::validation("params_malformed", why.message(), "Send `params` as an object.");
            let params = Params::default();
            return refuse_malformed(server, request, &params, caller, error).await;
        }
        Err(why) => return unreadable_params(request, why),
    };
    if let Err(reply) = check(headers, request, &params) {
        return reply;
    }
    match &*request.method {
        "server/discover" => discover(request),
        "tools/list" => list(server, ERA, request, &params, &caller),
        "tools/call" => call(server, headers, request, &params, caller).await,
        _ => {
            let message = "This server has no such method in MCP 2026-07-28.";
            plain_error(StatusCode::NOT_FOUND, Some(request.id), code::METHOD_NOT_FOUND, message)
        }
    }
}

/// What every request must carry, and how its headers must agree with it.
fn check(headers: &HeaderMap, request: &Request<'_>, params: &Params<'_>) -> Result<(), Reply> {
    let version = required(headers, request, &headers::VERSION)?;
    let meta = params.read_meta().unwrap_or_default();
    let in_meta = meta.protocol_version.ok_or_else(|| missing_meta(request, META_VERSION))?;
    let in_meta = text_of(in_meta).ok_or_else(|| missing_meta(request, META_VERSION))?;
    if !meta.client_capabilities.is_some_and(is_object) {
        return Err(missing_meta(request, META_CAPABILITIES));
    }
    must_match(request, "MCP-Protocol-Version", version, &in_meta)?;
    if version != MODERN_VERSION {
        return Err(unsupported_version(Some(request), version));
    }
    must_match(request, "Mcp-Method", required(headers, request, &headers::METHOD)?, &request.method)
}

async fn call(
    server: &Server,
    headers: &HeaderMap,
    request: &Request<'_>,
    params: &Params<'_>,
    caller: Caller,
) -> Reply {
    // A body without a usable name has nothing that the header could be compared with.
    if let Some(name) = params.name.and_then(text_of)
        && let Err(reply) = check_name(headers, request, &name)
    {
        return reply;
    }
    let target = match params.target() {
        Ok(target) => target,
        Err(error) => return refuse_malformed(server, request, params, caller, error).await,
    };
    let call = call_request(ERA, request, params, &target, caller, None);
    let asked = Asked { era: ERA, id: request.id, call_id: call.call_id };
    // The client's disconnect drops this future; that is how this revision cancels.
    let cancel = call.cancel.clone().drop_guard();
    let answer = server.dispatch.call(call).await;
    cancel.disarm();
    asked.reply(&answer)
}

async fn refuse_malformed(
    server: &Server,
    request: &Request<'_>,
    params: &Params<'_>,
    caller: Caller,
    error: ToolError,
) -> Reply {
    let call = call_request(ERA, request, params, &target_of_malformed(params), caller, None);
    refuse(server, ERA, request, call, error, code::INVALID_PARAMS).await
}

pub(super) fn discover(request: &Request<'_>) -> Reply {
    let mut writer = ResultWriter::new(ERA, request.id, INSTRUCTIONS.len() + 256);
    writer.member("supportedVersions", &SUPPORTED_VERSIONS);
    writer.raw("capabilities", br#"{"tools":{}}"#);
    writer.member("instructions", INSTRUCTIONS);
    cacheable(&mut writer, ERA);
    writer.finish()
}

fn check_name(headers: &HeaderMap, request: &Request<'_>, name: &str) -> Result<(), Reply> {
    let value = required(headers, request, &headers::NAME)?;
    let value = decoded(value).map_err(|why| mismatch(request, &format!("Mcp-Name {}", why.why())))?;
    must_match(request, "Mcp-Name", &value, name)
}

fn required<'h>(headers: &'h HeaderMap, request: &Request<'_>, name: &HeaderName) -> Result<&'h str, Reply> {
    match single(headers, name) {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(mismatch(request, &format!("{} is missing", shown(name)))),
        Err(why) => Err(mismatch(request, &format!("{} {}", shown(name), why.why()))),
    }
}

fn must_match(request: &Request<'_>, name: &str, value: &str, in_body: &str) -> Result<(), Reply> {
    if value == in_body {
        return Ok(());
    }
    let (value, in_body) = (crate::base::clip(value, 64), crate::base::clip(in_body, 64));
    Err(mismatch(request, &format!("{name} is {value:?}, the body says {in_body:?}")))
}

fn mismatch(request: &Request<'_>, what: &str) -> Reply {
    let message = format!("Header mismatch: {what}.");
    plain_error(StatusCode::BAD_REQUEST, Some(request.id), code::HEADER_MISMATCH, &message)
}

pub(super) fn missing_meta(request: &Request<'_>, key: &str) -> Reply {
    let message = format!("`params._meta` must have {key:?}; without it this revision serves no request.");
    plain_error(StatusCode::BAD_REQUEST, Some(request.id), code::INVALID_PARAMS, &message)
}

/// The name as the specification writes it.
fn shown(name: &HeaderName) -> Cow<'static, str> {
    match name.as_str() {
        "mcp-protocol-version" => "MCP-Protocol-Version".into(),
        "mcp-method" => "Mcp-Method".into(),
        "mcp-name" => "Mcp-Name".into(),
        other => other.to_owned().into(),
    }
}
