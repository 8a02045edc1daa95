//! A tool's arguments against the input schema that it publishes (JSON Schema 2020-12), compiled once.
//!
//! Never dereferences anything, and never repeats a caller's value: only names and places. What is checked is bounded by
//! the limit of a body and by the nesting that JSON is read with, 128 levels.

use std::fmt;
use std::sync::Arc;

use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Prepared, Tool, ToolError};
use crate::base::{clip_words, nearest, planted, whole};
use crate::refusal::Reason;

/// What a place in the arguments is clipped to, bytes.
const PLACE_BYTES_MAX: usize = 128;
const CAUSE_BYTES_MAX: usize = 300;

/// A compiled input schema.
#[derive(Clone)]
pub struct InputSchema {
    validator: Arc<Validator>,
    /// The arguments that the schema names.
    names: Arc<[String]>,
}

impl fmt::Debug for InputSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputSchema").field("names", &self.names).finish_non_exhaustive()
    }
}

/// Reads `arguments` as `tool` does, and holds them against its schema. What the tool itself says of them is told, unless
/// it is only that they are invalid: then the schema names the place.
///
/// # Errors
/// [`ToolError`] of category `validation`.
pub fn read(tool: &dyn Tool, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
    let parsed = tool.parse(arguments);
    if planted::armed("schema_check_skipped") {
        return parsed;
    }
    let definition = tool.definition();
    match (parsed, definition.input.check(definition.name, arguments)) {
        (Err(own), _) if own.reason != Reason::ArgumentInvalid => Err(own),
        (_, Err(found)) => Err(found),
        (parsed, Ok(())) => parsed,
    }
}

impl InputSchema {
    /// Compiles `schema`.
    ///
    /// # Panics
    /// When `schema` is none: schemas are constants of the code.
    #[must_use]
    pub(super) fn compile(schema: &Value) -> Self {
        let validator = jsonschema::draft202012::new(schema).expect("a tool's input schema is a JSON Schema");
        let properties = schema.get("properties").and_then(Value::as_object);
        let names = properties.into_iter().flat_map(|properties| properties.keys().cloned()).collect();
        Self { validator: Arc::new(validator), names }
    }

    fn check(&self, tool: &str, arguments: &RawValue) -> Result<(), ToolError> {
        let mut value: Value = serde_json::from_str(arguments.get()).map_err(|_| {
            let message = format!("{tool}: the arguments are not JSON that can be read.");
            ToolError::new(Reason::ArgumentInvalid, message, "Send an object of at most 128 levels.")
        })?;
        // A null is an argument that was not given.
        if let Some(given) = value.as_object_mut() {
            given.retain(|_, value| !value.is_null());
        }
        self.validator.iter_errors(&value).next().map_or(Ok(()), |error| {
            let pointer = error.instance_path().to_string();
            let place =
                if pointer.is_empty() { "the arguments".into() } else { whole(&pointer, PLACE_BYTES_MAX) };
            Err(match error.kind() {
                ValidationErrorKind::AdditionalProperties { unexpected }
                | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                    self.unknown(tool, &place, unexpected.first().map_or("", String::as_str))
                }
                ValidationErrorKind::Required { property } => {
                    let message = format!("{tool}: {place} must have {property}.");
                    ToolError::new(Reason::ArgumentMissing, message, HINT)
                }
                _ => {
                    let cause = error.masked_with("the value").to_string();
                    let message = format!("{tool}: at {place}, {}.", clip_words(&cause, CAUSE_BYTES_MAX));
                    ToolError::new(Reason::ArgumentInvalid, message, HINT)
                }
            })
        })
    }

    fn unknown(&self, tool: &str, place: &str, name: &str) -> ToolError {
        let near = nearest(name, self.names.iter().map(String::as_str));
        let hint = near.map_or_else(
            || format!("Accepted: {}.", self.names.join(", ")),
            |near| format!("Did you mean {near:?}?"),
        );
        let message = format!("{tool}: {place} may not have {:?}.", whole(name, 128));
        ToolError::new(Reason::ArgumentUnknown, message, hint)
    }
}

const HINT: &str = "See the tool's input schema in tools/list.";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(arguments: &str) -> Option<(&'static str, String, String)> {
        let schema = InputSchema::compile(&json!({
            "type": "object",
            "properties": {
                "sql": {"type": "string", "minLength": 1},
                "limit": {"type": "integer", "minimum": 1},
                "deep": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "boolean"}}}}
            },
            "required": ["sql"],
            "additionalProperties": false
        }));
        let raw = RawValue::from_string(arguments.to_owned()).unwrap();
        schema.check("t", &raw).err().map(|error| (error.code(), error.message, error.hint))
    }

    #[test]
    fn the_place_is_named_and_the_value_is_not() {
        assert_eq!(refused(r#"{"sql":"x","limit":2,"deep":[{"n":true}]}"#), None);
        assert_eq!(refused(r#"{"sql":"x","limit":null}"#), None, "a null is not given");
        for (arguments, code, message) in [
            (
                r#"{"sql":"x","limit":"s3cret"}"#,
                "argument_invalid",
                "t: at /limit, the value is not of type \"integer\".",
            ),
            (
                r#"{"sql":"x","limit":0}"#,
                "argument_invalid",
                "t: at /limit, the value is less than the minimum of 1.",
            ),
            (r#"{"sql":""}"#, "argument_invalid", "t: at /sql, the value is shorter than 1 character."),
            (
                r#"{"sql":"x","deep":[{},{"n":"s3cret"}]}"#,
                "argument_invalid",
                "t: at /deep/1/n, the value is not of type \"boolean\".",
            ),
            ("{}", "argument_missing", "t: the arguments must have \"sql\"."),
            (r#"{"sql":"x","limt":1}"#, "argument_unknown", "t: the arguments may not have \"limt\"."),
        ] {
            let (found, told, hint) = refused(arguments).unwrap();
            assert_eq!((found, told.as_str()), (code, message), "{arguments}");
            assert_eq!(hint == "Did you mean \"limit\"?", code == "argument_unknown", "{hint}");
        }
        let deep = format!(r#"{{"sql":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
        assert_eq!(refused(&deep).unwrap().0, "argument_invalid");
    }
}
