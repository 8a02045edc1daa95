//! The parameters of MCP's methods, each member as received; and what `tools/call` asks for.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::envelope::{is_object, present, text_of};
use crate::base::TraceParent;
use crate::refusal::Reason;
use crate::tools::ToolError;

/// What a caller claims about itself is kept up to this size, bytes.
const ASSERTED_BYTES_MAX: usize = 4 * 1024;

/// The members that any method here reads.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Params<'a> {
    #[serde(rename = "_meta", borrow, default, deserialize_with = "present")]
    pub(super) meta: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) name: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) arguments: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) cursor: Option<&'a RawValue>,
    #[serde(rename = "protocolVersion", borrow, default, deserialize_with = "present")]
    pub(super) protocol_version: Option<&'a RawValue>,
    #[serde(rename = "clientInfo", borrow, default, deserialize_with = "present")]
    pub(super) client_info: Option<&'a RawValue>,
    #[serde(rename = "requestId", borrow, default, deserialize_with = "present")]
    pub(super) request_id: Option<&'a RawValue>,
}

/// What 2026-07-28 wants in `_meta`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Meta<'a> {
    #[serde(
        rename = "io.modelcontextprotocol/protocolVersion",
        borrow,
        default,
        deserialize_with = "present"
    )]
    pub(super) protocol_version: Option<&'a RawValue>,
    #[serde(
        rename = "io.modelcontextprotocol/clientCapabilities",
        borrow,
        default,
        deserialize_with = "present"
    )]
    pub(super) client_capabilities: Option<&'a RawValue>,
}

/// The trace that a request says it belongs to.
#[derive(Debug, Default, Deserialize)]
struct TraceMeta<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    traceparent: Option<&'a RawValue>,
}

/// Why parameters cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Not an object.
    NotObject,
    /// A member stands twice, so that readers could disagree.
    Repeated,
}

impl Unreadable {
    /// One sentence.
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::NotObject => "`params` must be an object.",
            Self::Repeated => "A member of `params` stands twice.",
        }
    }
}

impl<'a> Params<'a> {
    /// Reads `params`; absent parameters are empty ones.
    pub(super) fn read(raw: Option<&'a RawValue>) -> Result<Self, Unreadable> {
        let Some(raw) = raw else { return Ok(Self::default()) };
        if !is_object(raw) {
            return Err(Unreadable::NotObject);
        }
        serde_json::from_str(raw.get()).map_err(|_| Unreadable::Repeated)
    }

    /// Reads `_meta`. `None` when there is none, or it is not an object with each of the members once.
    pub(super) fn read_meta(&self) -> Option<Meta<'a>> {
        self.meta.filter(|raw| is_object(raw)).and_then(|raw| serde_json::from_str(raw.get()).ok())
    }

    /// What `tools/call` asks for.
    ///
    /// # Errors
    /// [`ToolError`] of category `validation` says which parameter is wrong.
    pub(super) fn target(&self) -> Result<Target<'a>, ToolError> {
        let hint = "Send `params` as {\"name\": \"<tool>\", \"arguments\": {...}}; tools/list has the names.";
        let name = self
            .name
            .ok_or_else(|| ToolError::new(Reason::ToolNameMissing, "`params.name` is missing.", hint))?;
        let name = text_of(name).ok_or_else(|| {
            ToolError::new(Reason::ToolNameNotString, "`params.name` must be a string.", hint)
        })?;
        let arguments = self.arguments.filter(|raw| raw.get() != "null");
        if arguments.is_some_and(|raw| !is_object(raw)) {
            let message = "`params.arguments` must be an object.";
            return Err(ToolError::new(Reason::ArgumentsNotObject, message, hint));
        }
        Ok(Target { name, arguments })
    }

    /// The trace that `_meta` names, when it names one by the rules.
    pub(super) fn trace(&self) -> Option<TraceParent> {
        let meta = self.meta.filter(|raw| is_object(raw))?;
        let meta: TraceMeta<'_> = serde_json::from_str(meta.get()).ok()?;
        TraceParent::parse(&text_of(meta.traceparent?)?)
    }

    /// What the caller says of itself in this request and, under 2025-11-25, said when it opened the session; with
    /// the members of `claims`, which are bounded already.
    pub(super) fn asserted(
        &self,
        client_info: Option<&RawValue>,
        claims: Option<&RawValue>,
    ) -> Option<Box<RawValue>> {
        let members = joined(&[("clientInfo", client_info), ("_meta", self.meta)]);
        let claims =
            claims.and_then(|raw| raw.get().strip_prefix('{')?.strip_suffix('}')).unwrap_or_default();
        let bytes = members.len() + 2;
        let members = if bytes + claims.len() < ASSERTED_BYTES_MAX {
            members
        } else {
            format!("\"omitted_bytes\":{bytes}")
        };
        let comma = if members.is_empty() || claims.is_empty() { "" } else { "," };
        if members.is_empty() && claims.is_empty() {
            return None;
        }
        RawValue::from_string(format!("{{{members}{comma}{claims}}}")).ok()
    }
}

/// Members of a JSON object, without its braces.
fn joined(members: &[(&str, Option<&RawValue>)]) -> String {
    let members = members.iter().filter_map(|(name, raw)| raw.map(|raw| format!("\"{name}\":{}", raw.get())));
    members.collect::<Vec<_>>().join(",")
}

/// The tool and its arguments.
#[derive(Debug)]
pub(super) struct Target<'a> {
    /// As asked for.
    pub(super) name: Cow<'a, str>,
    /// A JSON object, as received.
    pub(super) arguments: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.into()).unwrap()
    }

    fn refused(json: &str) -> &'static str {
        let raw = raw(json);
        Params::read(Some(&raw)).unwrap().target().unwrap_err().code()
    }

    #[test]
    fn malformed_calls_are_told_apart() {
        assert_eq!(refused("{}"), "tool_name_missing");
        for name in ["null", "1", "[]", "{}", r#""\ud800""#] {
            assert_eq!(refused(&format!(r#"{{"name":{name}}}"#)), "tool_name_not_string", "{name}");
        }
        for arguments in ["[1]", "1", "\"{}\"", "true"] {
            let json = format!(r#"{{"name":"t","arguments":{arguments}}}"#);
            assert_eq!(refused(&json), "arguments_not_object", "{arguments}");
        }
        for (json, why) in
            [("[1]", Unreadable::NotObject), (r#"{"name":"a","name":"b"}"#, Unreadable::Repeated)]
        {
            assert_eq!(Params::read(Some(&raw(json))).unwrap_err(), why);
        }
    }

    #[test]
    fn arguments_stay_as_received() {
        let json = raw(r#"{"_meta":{"x":1},"name":"t","arguments":{"b":1e2, "a":123456789012345678901}}"#);
        let params = Params::read(Some(&json)).unwrap();
        let target = params.target().unwrap();
        assert_eq!(target.arguments.unwrap().get(), r#"{"b":1e2, "a":123456789012345678901}"#);
        assert_eq!(Params::read(None).unwrap().target().unwrap_err().code(), "tool_name_missing");
        let json = raw(r#"{"name":"t","arguments":null}"#);
        assert!(Params::read(Some(&json)).unwrap().target().unwrap().arguments.is_none());
    }

    #[test]
    fn what_is_asserted_is_kept_whole_or_as_its_size() {
        let json = raw(r#"{"_meta":{"a/b": [1e2]}}"#);
        let params = Params::read(Some(&json)).unwrap();
        let info = raw(r#"{"name":"c","odd":true}"#);
        let kept = params.asserted(Some(&info), None).unwrap();
        assert_eq!(kept.get(), r#"{"clientInfo":{"name":"c","odd":true},"_meta":{"a/b": [1e2]}}"#);
        assert!(Params::default().asserted(None, None).is_none());
        let claims = raw(r#"{"headers":{"x-user":"root"}}"#);
        let kept = Params::default().asserted(None, Some(&claims)).unwrap();
        assert_eq!(kept.get(), claims.get());
        let kept = Params::default().asserted(Some(&info), Some(&claims)).unwrap();
        assert_eq!(kept.get(), r#"{"clientInfo":{"name":"c","odd":true},"headers":{"x-user":"root"}}"#);
        let json = raw(&format!(r#"{{"_meta":{{"a":"{}"}}}}"#, "x".repeat(ASSERTED_BYTES_MAX)));
        let kept = Params::read(Some(&json)).unwrap().asserted(None, Some(&claims)).unwrap();
        assert_eq!(
            kept.get(),
            format!(r#"{{"omitted_bytes":{},"headers":{{"x-user":"root"}}}}"#, ASSERTED_BYTES_MAX + 18)
        );
        let kept = Params::read(Some(&json)).unwrap().asserted(None, None).unwrap();
        assert_eq!(kept.get(), format!(r#"{{"omitted_bytes":{}}}"#, ASSERTED_BYTES_MAX + 18));
    }
}
