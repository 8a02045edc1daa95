//! `tools/call` and `tools/list`, as far as both revisions agree.

use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::envelope::{Request, text_of};
use super::params::{Params, Target};
use super::refuse::NotTaken;
use super::reply::ResultWriter;
use super::{Caller, Era, Reply, Server};
use crate::base::{planted, uuid_v7};
use crate::dispatch::CallRequest;
use crate::refusal::Reason;

/// How long a client may keep what it was told about tools, milliseconds.
const LIST_TTL_MS: u32 = 60_000;

/// The session that a call is made in.
#[derive(Debug, Clone, Copy)]
pub(super) struct InSession<'a> {
    pub(super) id: &'a str,
    /// What the client said of itself when it opened the session.
    pub(super) client_info: Option<&'a RawValue>,
}

/// The call as dispatch takes it, with its id minted.
pub(super) fn call_request(
    era: Era,
    request: &Request<'_>,
    params: &Params<'_>,
    target: &Target<'_>,
    mut caller: Caller,
    session: Option<InSession<'_>>,
) -> CallRequest {
    let client_info = session.and_then(|session| session.client_info);
    caller.client.asserted = params.asserted(client_info, caller.client.asserted.as_deref());
    caller.client.trace = match params.trace() {
        _ if planted::armed("traceparent_dropped") => None,
        None => caller.client.trace,
        named => named,
    };
    let mut session_id = session.map(|session| session.id.to_owned());
    if planted::armed("asserted_decides") {
        session_id = session_id.or_else(|| caller.client.trace.map(|trace| trace.trace_id()));
    }
    CallRequest {
        call_id: uuid_v7(caller.received_at),
        received_at: caller.received_at,
        principal: caller.principal,
        persona: caller.persona,
        tool: target.name.clone().into_owned(),
        arguments: target.arguments.map(ToOwned::to_owned),
        request_id: request.id.get().to_owned(),
        session_id,
        protocol_version: era.version().to_owned(),
        transport: caller.transport,
        client: caller.client,
        cancel: CancellationToken::new(),
    }
}

/// What a malformed call asked for, as far as it can be told.
pub(super) fn target_of_malformed<'a>(params: &Params<'a>) -> Target<'a> {
    Target { name: params.name.and_then(text_of).unwrap_or_default(), arguments: None }
}

/// The tools that the caller may reach, by name; the same bytes each time.
pub(super) fn list(
    server: &Server,
    era: Era,
    request: &Request<'_>,
    params: &Params<'_>,
    caller: &Caller,
) -> Result<Reply, NotTaken> {
    if params.cursor.is_some() {
        let message = "`cursor` is unknown: the list has one page.";
        return Err(NotTaken::new(Reason::CursorUnknown, message, "Ask without a cursor."));
    }
    let definitions = || {
        let tools = server.dispatch.toolbox().iter().map(|tool| tool.definition());
        tools.filter(|definition| caller.persona.tools.allows(definition.name))
    };
    let size = definitions().map(|definition| definition.json.get().len() + 1).sum();
    let mut writer = ResultWriter::new(era, request.id, size);
    writer.raw_array("tools", definitions().map(|definition| definition.json.get().as_bytes()));
    cacheable(&mut writer, era);
    Ok(writer.finish())
}

/// What 2026-07-28 wants beside a result that may be kept: it depends on the caller, so only the caller may keep it.
pub(super) fn cacheable(writer: &mut ResultWriter, era: Era) {
    if era == Era::Modern {
        writer.member("ttlMs", &LIST_TTL_MS);
        writer.member("cacheScope", "private");
    }
}
