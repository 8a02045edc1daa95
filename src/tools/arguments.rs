//! Reads a tool's arguments: unknown names are refused with the nearest accepted one.
//!
//! Knows no tool.

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::ToolError;
use crate::base::{clip_words, nearest, whole};
use crate::refusal::Reason;

/// Reads `arguments` as `T`, which may have the fields `accepted` and no others.
///
/// # Errors
/// `argument_unknown`, `argument_missing` or `argument_invalid`, of category `validation`.
pub(super) fn read<T: DeserializeOwned>(
    tool: &str,
    accepted: &[&str],
    arguments: &RawValue,
) -> Result<T, ToolError> {
    let Once(object, repeated) = serde_json::from_str(arguments.get()).map_err(|_| {
        ToolError::new(
            Reason::ArgumentInvalid,
            "The arguments are not a JSON object of text and of numbers that fit.",
            "Send an object, without lone surrogates and numbers beyond 64 bits.",
        )
    })?;
    if let Some(name) = repeated {
        // The record holds both, and its readers could take the other one for what was run.
        return Err(ToolError::new(
            Reason::ArgumentRepeated,
            format!("{tool}: argument {:?} is given twice.", whole(&name, 128)),
            "Give it once.",
        ));
    }
    if let Some(unknown) = object.keys().find(|key| !accepted.contains(&key.as_str())) {
        return Err(unknown_argument(tool, unknown, accepted));
    }
    // A null is an argument that was not given.
    let given: Map<String, Value> = object.into_iter().filter(|(_, value)| !value.is_null()).collect();
    serde_path(given).map_err(|cause| {
        let missing = cause.starts_with("missing field");
        let reason = if missing { Reason::ArgumentMissing } else { Reason::ArgumentInvalid };
        ToolError::new(reason, format!("{tool}: {cause}."), "See the tool's input schema.")
    })
}

/// The `limit` of a list, `max` at most; `default` when none is given.
///
/// # Errors
/// `argument_invalid`.
pub(super) fn limit(asked: Option<usize>, default: usize, max: usize) -> Result<usize, ToolError> {
    match asked.unwrap_or(default) {
        limit if (1..=max).contains(&limit) => Ok(limit),
        limit => Err(ToolError::new(
            Reason::ArgumentInvalid,
            format!("limit is {limit}; it must be from 1 to {max}."),
            format!("Leave it out for {default}."),
        )),
    }
}

/// An object, and a name that stands in it more than once.
struct Once(Map<String, Value>, Option<String>);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Once;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Once, A::Error> {
                let mut once = Once(Map::new(), None);
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if once.0.insert(name.clone(), value).is_some() {
                        once.1 = Some(name);
                    }
                }
                Ok(once)
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// Names the argument whose type is wrong, which serde's own message does not.
fn serde_path<T: DeserializeOwned>(given: Map<String, Value>) -> Result<T, String> {
    let whole = Value::Object(given.clone());
    T::deserialize(&whole).map_err(|error| {
        let cause = error.to_string();
        let culprit = given.keys().find(|key| {
            let mut without = given.clone();
            without.remove(*key);
            T::deserialize(&Value::Object(without)).err().is_none_or(|other| other.to_string() != cause)
        });
        let text = match culprit {
            Some(key) if !cause.starts_with("missing field") => format!("argument {key:?}: {cause}"),
            _ => cause,
        };
        clip_words(&text, 300).to_owned()
    })
}

fn unknown_argument(tool: &str, unknown: &str, accepted: &[&str]) -> ToolError {
    let takes = if accepted.is_empty() { "none".to_owned() } else { accepted.join(", ") };
    let hint = nearest(unknown, accepted.iter().copied()).map_or_else(
        || format!("Accepted: {takes} (and purpose)."),
        |near| format!("Did you mean {near:?}?"),
    );
    ToolError::new(
        Reason::ArgumentUnknown,
        format!("{tool} has no argument {:?}; it accepts {takes} (and purpose).", whole(unknown, 128)),
        hint,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Sample {
        sql: String,
        limit: Option<u64>,
    }

    fn error(json: &str) -> ToolError {
        let raw = RawValue::from_string(json.to_owned()).unwrap();
        read::<Sample>("t", &["sql", "limit"], &raw).unwrap_err()
    }

    #[test]
    fn an_unknown_argument_is_named_with_the_nearest() {
        let unknown = error(r#"{"sqll":"x"}"#);
        assert_eq!((unknown.code(), unknown.hint.as_str()), ("argument_unknown", "Did you mean \"sql\"?"));
        let far = error(r#"{"zzzzzzzzz":"x"}"#);
        assert_eq!(far.message, "t has no argument \"zzzzzzzzz\"; it accepts sql, limit (and purpose).");
    }

    #[test]
    fn a_wrong_type_and_a_missing_argument_are_named() {
        let wrong = error(r#"{"sql":"x","limit":"many"}"#);
        assert_eq!(wrong.code(), "argument_invalid");
        assert!(wrong.message.contains("\"limit\""), "{}", wrong.message);
        let missing = error(r#"{"limit":3}"#);
        assert_eq!(
            (missing.code(), missing.message.as_str()),
            ("argument_missing", "t: missing field `sql`.")
        );
    }

    #[test]
    fn an_argument_given_twice_is_refused_however_it_is_written() {
        for json in [
            r#"{"sql":"x","sql":"y"}"#,
            r#"{"sql":"x","s\u0071l":"y"}"#,
            r#"{"sql":"x","sql":null}"#,
            r#"{"sql":null,"sql":"x"}"#,
        ] {
            let error = error(json);
            let expected = ("argument_repeated", "t: argument \"sql\" is given twice.");
            assert_eq!((error.code(), error.message.as_str()), expected, "{json}");
        }
    }

    #[test]
    fn null_is_not_given() {
        let raw = RawValue::from_string(r#"{"sql":"x","limit":null}"#.to_owned()).unwrap();
        let sample = read::<Sample>("t", &["sql", "limit"], &raw).unwrap();
        assert_eq!((sample.sql.as_str(), sample.limit), ("x", None));
    }
}
