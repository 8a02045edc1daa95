//! One JSON-RPC message, read from the bytes of a body without copying or interpreting what it carries.
//!
//! Knows nothing of MCP's methods. Never turns `params` into values: they stay the bytes that were received.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::refusal::Reason;

/// Nesting of one body at most: readers behind us stop at this depth, so deeper input is refused at the door.
pub(super) const NESTING_MAX: usize = 128;
/// Bytes of a request id at most, as JSON text.
const ID_BYTES_MAX: usize = 256;

/// What a body holds.
#[derive(Debug)]
pub(super) enum Message<'a> {
    /// Wants an answer.
    Request(Request<'a>),
    /// Wants none.
    Notification {
        /// What happened.
        method: Cow<'a, str>,
        /// As received.
        params: Option<&'a RawValue>,
    },
    /// An answer to a request that the server would have made.
    Response,
}

/// A request.
#[derive(Debug)]
pub(super) struct Request<'a> {
    /// A string or an integer, as received.
    pub(super) id: &'a RawValue,
    /// What is asked for.
    pub(super) method: Cow<'a, str>,
    /// As received.
    pub(super) params: Option<&'a RawValue>,
}

/// A body that holds no message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    /// Which rule it breaks.
    pub(super) reason: Reason,
    /// What is wrong.
    pub(super) message: &'static str,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// For members whose `null` must not be taken for absence.
pub(super) fn present<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl<'a> Message<'a> {
    /// Reads `body`.
    pub(super) fn read(body: &'a [u8]) -> Result<Self, Malformed> {
        let invalid = |reason, message| Malformed { reason, message };
        let whole: &RawValue =
            serde_json::from_slice(body).map_err(|_| invalid(Reason::NotJson, "The body is not JSON."))?;
        let text = whole.get();
        if nesting(text.as_bytes()) > NESTING_MAX {
            return Err(invalid(Reason::TooDeep, "The body is nested deeper than 128 levels."));
        }
        match text.as_bytes().first() {
            Some(b'{') => {}
            Some(b'[') => {
                return Err(invalid(
                    Reason::Batch,
                    "Batches are not supported: send one message per request.",
                ));
            }
            _ => {
                return Err(invalid(
                    Reason::NotObject,
                    "The body is not a JSON-RPC message: it must be an object.",
                ));
            }
        }
        let wire: Wire<'a> = serde_json::from_str(text).map_err(|_| {
            invalid(Reason::MemberRepeated, "The body is not a JSON-RPC message: a member stands twice.")
        })?;
        if wire.jsonrpc.and_then(text_of).as_deref() != Some("2.0") {
            return Err(invalid(Reason::JsonrpcVersion, "`jsonrpc` must be \"2.0\"."));
        }
        let Some(method) = wire.method else {
            let answers = wire.result.is_some() || wire.error.is_some();
            return if answers {
                Ok(Self::Response)
            } else {
                Err(invalid(Reason::MethodMissing, "`method` is missing."))
            };
        };
        let method = text_of(method).ok_or(invalid(Reason::MethodNotString, "`method` must be a string."))?;
        match wire.id {
            None => Ok(Self::Notification { method, params: wire.params }),
            Some(id) if is_id(id.get()) => Ok(Self::Request(Request { id, method, params: wire.params })),
            Some(id) if id.get() == "null" => {
                Err(invalid(Reason::IdNull, "`id` is null: a request needs an id of its own."))
            }
            Some(_) => {
                Err(invalid(Reason::IdInvalid, "`id` must be a string or an integer of at most 256 bytes."))
            }
        }
    }
}

/// The text of a JSON string; `None` when it is another kind of value.
pub(super) fn text_of(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str::<Text<'_>>(raw.get()).ok().map(|text| text.0)
}

/// Whether `raw` is an object.
pub(super) fn is_object(raw: &RawValue) -> bool {
    raw.get().starts_with('{')
}

/// One form for all spellings of an id: `"\u0041"` is `"A"`.
pub(super) fn plain_id(raw: &RawValue) -> Cow<'_, str> {
    let text = if raw.get().contains('\\') { text_of(raw) } else { None };
    // A lone surrogate has no text; it stays as it was written.
    text.map_or(Cow::Borrowed(raw.get()), |text| Cow::Owned(format!("\"{text}\"")))
}

fn is_id(json: &str) -> bool {
    if json.len() > ID_BYTES_MAX {
        return false;
    }
    let digits = json.strip_prefix('-').unwrap_or(json);
    json.starts_with('"') || (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The deepest nesting of arrays and objects in valid JSON.
fn nesting(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    let (mut in_string, mut escaped) = (false, false);
    for &byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(body: &str) -> i64 {
        Message::read(body.as_bytes()).unwrap_err().reason.row().rpc.code().unwrap()
    }

    #[test]
    fn what_is_no_message_is_told_apart() {
        for (body, code) in [
            ("", -32700),
            ("{", -32700),
            ("{} {}", -32700),
            ("[]", -32600),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
            ("1", -32600),
            ("null", -32600),
            (r#""ping""#, -32600),
            ("{}", -32600),
            (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, -32600),
            (r#"{"id":1,"method":"ping"}"#, -32600),
            (r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":1}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":1,"method":null}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":1e3,"method":"ping"}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":1,"method":"a","\u006dethod":"b"}"#, -32600),
        ] {
            assert_eq!(code_of(body), code, "{body}");
        }
        assert_eq!(
            Message::read(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}").unwrap_err().reason,
            Reason::NotJson
        );
        let long = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(255));
        assert_eq!(code_of(&long), -32600);
    }

    #[test]
    fn one_id_is_one_however_it_is_spelled() {
        let plain = |id: &str| plain_id(&RawValue::from_string(id.into()).unwrap()).into_owned();
        for (id, expected) in [
            (r#""\u0041\/é""#, r#""A/é""#),
            (r#""\u00e9""#, r#""é""#),
            (r#""A""#, r#""A""#),
            ("1", "1"),
            (r#""1""#, r#""1""#),
            (r#""\ud800""#, r#""\ud800""#),
        ] {
            assert_eq!(plain(id), expected, "{id}");
        }
    }

    #[test]
    fn ids_and_params_stay_as_received() {
        for id in ["\"\"", "\"\\u0041\"", "-7", "123456789012345678901234567890"] {
            let body = format!(r#"{{"method":"m","params":{{"a": 1e2 }},"id": {id},"jsonrpc":"2.0","x":1}}"#);
            let Ok(Message::Request(request)) = Message::read(body.as_bytes()) else { panic!("{body}") };
            assert_eq!((request.id.get(), &*request.method), (id, "m"));
            assert_eq!(request.params.unwrap().get(), r#"{"a": 1e2 }"#);
        }
    }

    #[test]
    fn notifications_and_responses_are_known() {
        let notification = Message::read(br#"{"jsonrpc":"2.0","method":"n"}"#).unwrap();
        assert!(matches!(notification, Message::Notification { method, params: None } if method == "n"));
        for body in [r#"{"jsonrpc":"2.0","id":1,"result":null}"#, r#"{"jsonrpc":"2.0","id":1,"error":{}}"#] {
            assert!(matches!(Message::read(body.as_bytes()), Ok(Message::Response)), "{body}");
        }
    }

    #[test]
    fn nesting_is_bounded_and_strings_do_not_count() {
        let nested = |depth: usize| {
            let inner = depth - 1;
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{}{}}}"#,
                "[".repeat(inner),
                "]".repeat(inner)
            )
        };
        assert!(Message::read(nested(NESTING_MAX).as_bytes()).is_ok());
        assert_eq!(code_of(&nested(NESTING_MAX + 1)), -32600);
        assert_eq!(nesting(br#"{"a":"[[[\"[[","b":"\\"}"#), 1);
    }
}
