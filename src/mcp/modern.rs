//! MCP 2026-07-28: each request stands alone, and its headers must say what its body says.
//!
//! Knows no sessions; a `Mcp-Session-Id` is ignored. A vanished client has cancelled its call.

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderName, StatusCode};

use super::answer::Asked;
use super::call::{cacheable, call_request, list};
use super::envelope::{Request, is_object, text_of};
use super::headers::{self, decoded, single};
use super::params::{Params, Target, Unreadable};
use super::refuse::{self, NotTaken};
use super::reply::ResultWriter;
use super::{Caller, Era, INSTRUCTIONS, MODERN_VERSION, Reply, SUPPORTED_VERSIONS, Server};
use crate::refusal::Reason;

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
    let (params, checked) = match params {
        Ok(params) => {
            let checked = check(headers, request, &params);
            (params, checked)
        }
        // Nothing can be compared with the headers, but the body may name a call, so its refusal is recorded as one.
        Err(why) => (Params::default(), Err(why.into())),
    };
    let answered = match (checked, &*request.method) {
        (Err(not_taken), _) => Err(not_taken),
        (Ok(()), "server/discover") => Ok(discover(request)),
        (Ok(()), "tools/list") => list(server, ERA, request, &params, &caller),
        (Ok(()), "tools/call") => match target(headers, &params) {
            Ok(target) => return call(server, request, &params, &target, caller).await,
            Err(not_taken) => Err(not_taken),
        },
        (Ok(()), _) => {
            let message = "This server has no such method in MCP 2026-07-28.";
            let hint = "It has server/discover, tools/list and tools/call.";
            Err(NotTaken::new(Reason::MethodNotFound, message, hint))
        }
    };
    match answered {
        Ok(reply) => reply,
        Err(not_taken) => refuse::request(server, ERA, request, &params, None, caller, not_taken).await,
    }
}

/// Takes a notification. This revision defines none of the client over HTTP, and asks nothing of one.
pub(super) async fn notification(
    server: &Server,
    headers: &HeaderMap,
    method: &str,
    params: Result<Params<'_>, Unreadable>,
    caller: Caller,
) -> Reply {
    let params = params.unwrap_or_default();
    let taken = refuse::without_id(method).and_then(|()| check_notification(headers, method, &params));
    match taken {
        Ok(()) => Reply::empty(StatusCode::ACCEPTED),
        Err(not_taken) => refuse::notification(server, ERA, method, &params, None, caller, not_taken).await,
    }
}

/// A notification is ignored, so it may lack what a request must carry; what it carries must agree.
fn check_notification(headers: &HeaderMap, method: &str, params: &Params<'_>) -> Result<(), NotTaken> {
    let given = |name: &HeaderName| match single(headers, name) {
        Ok(value) => Ok(value),
        Err(why) => Err(header(Reason::HeaderUnusable, &format!("{} {}", shown(name), why.why()))),
    };
    let in_meta = params.read_meta().unwrap_or_default().protocol_version.and_then(text_of);
    let version = given(&headers::VERSION)?;
    if let (Some(version), Some(in_meta)) = (version, &in_meta) {
        must_match("MCP-Protocol-Version", version, in_meta)?;
    }
    if let Some(version) = version.or(in_meta.as_deref()).filter(|version| *version != MODERN_VERSION) {
        return Err(NotTaken::version(version));
    }
    given(&headers::METHOD)?.map_or(Ok(()), |value| must_match("Mcp-Method", value, method))
}

/// What every request must carry, and how its headers must agree with it.
fn check(headers: &HeaderMap, request: &Request<'_>, params: &Params<'_>) -> Result<(), NotTaken> {
    let version = required(headers, &headers::VERSION)?;
    let meta = params.read_meta().unwrap_or_default();
    let in_meta = meta.protocol_version.ok_or_else(|| missing_meta(META_VERSION))?;
    let in_meta = text_of(in_meta).ok_or_else(|| missing_meta(META_VERSION))?;
    if !meta.client_capabilities.is_some_and(is_object) {
        return Err(missing_meta(META_CAPABILITIES));
    }
    must_match("MCP-Protocol-Version", version, &in_meta)?;
    if version != MODERN_VERSION {
        return Err(NotTaken::version(version));
    }
    must_match("Mcp-Method", required(headers, &headers::METHOD)?, &request.method)
}

/// What the call asks for, once the headers agree with it.
fn target<'a>(headers: &HeaderMap, params: &Params<'a>) -> Result<Target<'a>, NotTaken> {
    // A body without a usable name has nothing that the header could be compared with.
    if let Some(name) = params.name.and_then(text_of) {
        check_name(headers, &name)?;
    }
    Ok(params.target()?)
}

async fn call(
    server: &Server,
    request: &Request<'_>,
    params: &Params<'_>,
    target: &Target<'_>,
    caller: Caller,
) -> Reply {
    let call = call_request(ERA, request, params, target, caller, None);
    let asked = Asked { era: ERA, id: request.id, call_id: call.call_id };
    // The client's disconnect drops this future; that is how this revision cancels.
    let cancel = call.cancel.clone().drop_guard();
    let answer = server.dispatch.call(call).await;
    cancel.disarm();
    asked.reply(&answer)
}

pub(super) fn discover(request: &Request<'_>) -> Reply {
    let mut writer = ResultWriter::new(ERA, request.id, INSTRUCTIONS.len() + 256);
    writer.member("supportedVersions", &SUPPORTED_VERSIONS);
    writer.raw("capabilities", br#"{"tools":{}}"#);
    writer.member("instructions", INSTRUCTIONS);
    cacheable(&mut writer, ERA);
    writer.finish()
}

fn check_name(headers: &HeaderMap, name: &str) -> Result<(), NotTaken> {
    let value = required(headers, &headers::NAME)?;
    let value =
        decoded(value).map_err(|why| header(Reason::HeaderUnusable, &format!("Mcp-Name {}", why.why())))?;
    must_match("Mcp-Name", &value, name)
}

fn required<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h str, NotTaken> {
    match single(headers, name) {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(header(Reason::HeaderMissing, &format!("{} is missing", shown(name)))),
        Err(why) => Err(header(Reason::HeaderUnusable, &format!("{} {}", shown(name), why.why()))),
    }
}

fn must_match(name: &str, value: &str, in_body: &str) -> Result<(), NotTaken> {
    if value == in_body {
        return Ok(());
    }
    let (value, in_body) = (crate::base::whole(value, 128), crate::base::whole(in_body, 128));
    Err(header(Reason::HeaderMismatch, &format!("{name} is {value:?}, the body says {in_body:?}")))
}

fn header(reason: Reason, what: &str) -> NotTaken {
    let hint = "Send each header of this revision once, saying what the body says.";
    NotTaken::new(reason, format!("Header mismatch: {what}."), hint)
}

pub(super) fn missing_meta(key: &str) -> NotTaken {
    let message = format!("`params._meta` must have {key:?}; without it this revision serves no request.");
    NotTaken::new(Reason::MetaMissing, message, "Send the version and the client's capabilities in `_meta`.")
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
