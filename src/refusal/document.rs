//! `docs/events.md`, written from the table and the event types.

use std::fmt::Write as _;

use super::{Reason, Recorded, Rpc, Surface};
use crate::event::{Kind, Transport};

/// A route of a listener, for the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// The path.
    pub path: &'static str,
    /// The HTTP methods it takes.
    pub methods: &'static str,
    /// Which surface it belongs to.
    pub surface: Surface,
    /// What a request that is taken leaves on the log.
    pub records: &'static str,
}

const HEAD: &str = "# Events and refusals

Written by `annals refusals`; the code decides, and a test fails when this file is not current.

A call that is refused before its intent is one `tool_call.denied` and no intent. What fails behind the intent has two events: its
`tool_call.requested` and its end. What is refused and is no call is one `request.refused`, bad or no credentials one `auth.failed`.
Each is durable before it is answered; when the log does not accept, the answer is 503 with `Retry-After` instead, and nothing was decided.
A request that HTTP itself cannot read (a broken or too long head) is answered 400 or 431 by the listener and has no event: there is nothing in it that could be named.

Tests: `every_row_fires_exactly_the_event_it_promises`, `every_route_of_the_list_is_served_and_guards_its_methods`,
`a_refusal_that_the_log_does_not_take_is_503`, `the_document_of_events_is_what_the_code_generates`, `codes_are_unique_and_in_snake_case`,
`each_row_agrees_with_itself`.
";

const CALL_NOTE: &str = "\
`request.refused` / `tool_call.denied` means: `tool_call.denied` when the message is a `tools/call` that can be read, else `request.refused`.
`isError` is a tool result with `isError: true`; an empty JSON-RPC code means that MCP cannot meet it. On standard input there is no status.
";

/// The whole text of `docs/events.md`; `routes` is what the HTTP listeners serve.
#[must_use]
pub fn events_document(routes: &[Served]) -> String {
    let mut text = HEAD.to_owned();
    text.push_str("\n## Event types\n\n| Event | Topic | Refusals that cause it |\n|---|---|---|\n");
    for &kind in Kind::ALL {
        let causes =
            Reason::ALL.iter().filter(|reason| reason.row().recorded.kinds().contains(&kind)).count();
        let causes = if causes == 0 { String::new() } else { causes.to_string() };
        line(&mut text, &[&format!("`{}`", kind.name()), &format!("`{}`", kind.topic()), &causes]);
    }
    text.push_str("\n## Routes\n\n| Path | Methods | Surface | What a request that is taken records |\n|---|---|---|---|\n");
    for route in routes {
        line(
            &mut text,
            &[&format!("`{}`", route.path), route.methods, route.surface.as_str(), route.records],
        );
    }
    text.push_str("\n## Refusals and failures\n\n");
    text.push_str(CALL_NOTE);
    text.push_str("\n| Input | Reason | Event | HTTP status | JSON-RPC code | Category | Where |\n|---|---|---|---|---|---|---|\n");
    for reason in Reason::ALL {
        let row = reason.row();
        let rpc = match row.rpc {
            Rpc::Error(code) => code.to_string(),
            Rpc::Result => "`isError`".to_owned(),
            Rpc::Absent => String::new(),
        };
        let (code, status) = (format!("`{}`", row.code), row.status.to_string());
        let cells = [
            row.meaning.trim_end_matches('.'),
            &code,
            &event(row.recorded),
            &status,
            &rpc,
            row.category.as_str(),
            &place(row.transports, row.surfaces),
        ];
        line(&mut text, &cells);
    }
    text
}

fn event(recorded: Recorded) -> String {
    if let Recorded::Nothing(why) = recorded {
        return format!("none: {why}");
    }
    let kinds: Vec<String> = recorded.kinds().iter().map(|kind| format!("`{}`", kind.name())).collect();
    kinds.join(" / ")
}

fn place(transports: &[Transport], surfaces: &[Surface]) -> String {
    let transports = transports.iter().map(|transport| transport.as_str());
    let surfaces = surfaces.iter().map(|surface| surface.as_str());
    let (transports, surfaces): (Vec<_>, Vec<_>) = (transports.collect(), surfaces.collect());
    format!("{}; {}", transports.join(", "), surfaces.join(", "))
}

fn line(text: &mut String, cells: &[&str]) {
    for cell in cells {
        write!(text, "| {cell} ").expect("a string takes every byte");
    }
    text.push_str("|\n");
}
