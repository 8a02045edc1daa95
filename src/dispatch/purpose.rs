//! Takes `purpose` out of the arguments, without touching a byte of the rest.

use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::base::planted;
use crate::refusal::Reason;
use crate::tools::ToolError;

/// The most characters a purpose may have.
pub(super) const PURPOSE_CHARS_MAX: usize = 1_000;

/// The arguments for the tool, and the purpose.
#[derive(Debug)]
pub(super) struct Split {
    pub(super) arguments: Box<RawValue>,
    pub(super) purpose: Option<String>,
}

/// Splits `arguments`, a JSON object or nothing.
pub(super) fn split(arguments: Option<&RawValue>) -> Result<Split, ToolError> {
    let Some(arguments) = arguments else {
        return Ok(Split { arguments: empty(), purpose: None });
    };
    let Entries(entries) = serde_json::from_str(arguments.get()).map_err(|_| unreadable(arguments))?;
    let Some(at) = entries.iter().position(|(key, _)| key == "purpose") else {
        return Ok(Split { arguments: arguments.to_owned(), purpose: None });
    };
    // A null is an argument that was not given, as for every other one.
    let raw = entries[at].1;
    let purpose = if raw.get() == "null" { None } else { Some(read(raw)?) };
    if entries.iter().skip(at + 1).any(|(key, _)| key == "purpose") {
        return Err(ToolError::new(Reason::PurposeTwice, "\"purpose\" is given twice.", "Give it once."));
    }
    Ok(Split { arguments: join(entries.iter().filter(|(key, _)| key != "purpose")), purpose })
}

/// Valid JSON that gives no entries: another kind of value, or an object with a name that no text can hold.
fn unreadable(arguments: &RawValue) -> ToolError {
    if arguments.get().starts_with('{') && !planted::armed("surrogate_name_is_no_object") {
        return ToolError::new(
            Reason::ArgumentInvalid,
            "The name of an argument is not text: it has a lone surrogate.",
            "Write names as the tool's input schema has them.",
        );
    }
    ToolError::new(
        Reason::ArgumentsNotObject,
        "The arguments are not a JSON object.",
        "Send \"arguments\" as an object, {} when there are none.",
    )
}

fn read(raw: &RawValue) -> Result<String, ToolError> {
    let purpose: String = serde_json::from_str(raw.get()).map_err(|_| {
        ToolError::new(Reason::PurposeNotText, "\"purpose\" is not a string.", "Give one sentence of text.")
    })?;
    if purpose.chars().count() > PURPOSE_CHARS_MAX {
        return Err(ToolError::new(
            Reason::PurposeTooLong,
            format!("\"purpose\" has over {PURPOSE_CHARS_MAX} characters."),
            "Give one sentence.",
        ));
    }
    Ok(purpose)
}

fn empty() -> Box<RawValue> {
    RawValue::from_string("{}".into()).expect("{} is JSON")
}

fn join<'a>(entries: impl Iterator<Item = &'a (String, &'a RawValue)>) -> Box<RawValue> {
    let mut text = String::from("{");
    for (key, value) in entries {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&serde_json::to_string(key).expect("a string has a JSON form"));
        text.push(':');
        text.push_str(value.get());
    }
    text.push('}');
    RawValue::from_string(text).expect("entries of an object make an object")
}

/// The entries of an object in their order, repeated keys and all.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> serde::Deserialize<'de> for Entries<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Read).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.into()).unwrap()
    }

    #[test]
    fn without_purpose_the_bytes_are_the_same() {
        let text = r#"{ "b" : 123456789012345678901234567890 , "a":[1,  2]}"#;
        let split = split(Some(&raw(text))).unwrap();
        assert_eq!((split.arguments.get(), split.purpose), (text, None));
    }

    #[test]
    fn purpose_is_taken_out_and_the_rest_keeps_order_and_bytes() {
        let split = split(Some(&raw(r#"{"b":1.0e5,"purpose":"because \u00e9","a":[1,  2],"b":2}"#))).unwrap();
        assert_eq!(split.arguments.get(), r#"{"b":1.0e5,"a":[1,  2],"b":2}"#);
        assert_eq!(split.purpose.as_deref(), Some("because é"));
    }

    #[test]
    fn a_null_purpose_is_none() {
        let split = split(Some(&raw(r#"{"a":null,"purpose": null}"#))).unwrap();
        assert_eq!((split.arguments.get(), split.purpose), (r#"{"a":null}"#, None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let code = |text: &str| split(Some(&raw(text))).unwrap_err().code();
        assert_eq!(code("[1]"), "arguments_not_object");
        assert_eq!(code(r#"{"\ud800":1}"#), "argument_invalid");
        assert_eq!(code(r#"{"purpose":5}"#), "purpose_not_text");
        assert_eq!(code(r#"{"purpose":"a","purpose":"b"}"#), "purpose_twice");
        assert_eq!(code(&format!(r#"{{"purpose":"{}"}}"#, "x".repeat(1_001))), "purpose_too_long");
        assert_eq!(split(None).unwrap().arguments.get(), "{}");
    }
}
