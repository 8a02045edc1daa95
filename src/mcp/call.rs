//! `tools/call` and `tools/list`, as far as both revisions agree.

use std::sync::{Arc, PoisonError, RwLock};

use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::envelope::{Request, text_of};
use super::params::{Params, Target};
use super::refuse::NotTaken;
use super::reply::{Kept, ResultWriter};
use super::{Caller, Era, Reply, Server};
use crate::auth::Persona;
use crate::base::{planted, uuid_v7};
use crate::dispatch::CallRequest;
use crate::refusal::Reason;
use crate::tools::Toolbox;

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
    let toolbox = server.dispatch.toolbox();
    Ok(server.lists.of(&caller.persona, era, || listing(toolbox, &caller.persona, era)).reply(request.id))
}

fn listing(toolbox: &Toolbox, persona: &Persona, era: Era) -> Kept {
    let definitions = || {
        let tools = toolbox.iter().map(|tool| tool.definition());
        tools.filter(|definition| persona.tools.allows(definition.name))
    };
    let size = definitions().map(|definition| definition.json.get().len() + 1).sum();
    let mut writer = ResultWriter::kept(era, size);
    writer.raw_array("tools", definitions().map(|definition| definition.json.get().as_bytes()));
    cacheable(&mut writer, era);
    writer.keep()
}

/// The lists that were written, by persona and era. Personas are those of the config, the same for as long as the process lives.
#[derive(Default)]
pub(super) struct Lists {
    kept: RwLock<Vec<(Arc<Persona>, Era, Kept)>>,
}

/// Lists that are kept; a config with more personas has its lists written anew now and then.
const LISTS_MAX: usize = 256;

impl Lists {
    /// The list of `persona`, which `write` writes the first time.
    fn of(&self, persona: &Arc<Persona>, era: Era, write: impl FnOnce() -> Kept) -> Kept {
        let find = |kept: &[(Arc<Persona>, Era, Kept)]| {
            let same = |(of, in_era, _): &&(Arc<Persona>, Era, Kept)| {
                (Arc::ptr_eq(of, persona) || planted::armed("list_of_any_persona")) && *in_era == era
            };
            kept.iter().find(same).map(|(_, _, list)| list.clone())
        };
        if let Some(list) = find(&self.kept.read().unwrap_or_else(PoisonError::into_inner)) {
            return list;
        }
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = find(&kept) {
            return list;
        }
        if kept.len() >= LISTS_MAX {
            kept.clear();
        }
        let list = write();
        kept.push((Arc::clone(persona), era, list.clone()));
        list
    }
}

/// What 2026-07-28 wants beside a result that may be kept: it depends on the caller, so only the caller may keep it.
pub(super) fn cacheable(writer: &mut ResultWriter, era: Era) {
    if era == Era::Modern {
        writer.member("ttlMs", &LIST_TTL_MS);
        writer.member("cacheScope", "private");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_written_once_for_each_persona_and_era() {
        let lists = Lists::default();
        let (ada, bob) = (Arc::new(Persona::default()), Arc::new(Persona::default()));
        let mut written = 0;
        for _ in 0..3 {
            for (persona, name) in [(&ada, "ada"), (&bob, "bob")] {
                for era in [Era::Legacy, Era::Modern] {
                    let list = lists.of(persona, era, || {
                        written += 1;
                        let mut writer = ResultWriter::kept(era, 0);
                        writer.member("tools", name);
                        cacheable(&mut writer, era);
                        writer.keep()
                    });
                    let id = RawValue::from_string("\"a\"".into()).unwrap();
                    let mut body = None;
                    let allocated = allocation_counter::measure(|| body = list.reply(&id).body);
                    let text = String::from_utf8(body.unwrap().to_vec()).unwrap();
                    let said = format!("\"tools\":\"{name}\"");
                    assert!(
                        text.starts_with(r#"{"jsonrpc":"2.0","id":"a","result":{"#) && text.contains(&said),
                        "{text}"
                    );
                    assert_eq!(text.contains("ttlMs"), era == Era::Modern);
                    // The answer's own bytes and what shares them.
                    assert!(allocated.count_total <= 2, "{}", allocated.count_total);
                }
            }
        }
        assert_eq!(written, 4);
    }
}
