//! What `sql_query` answers, and how a row becomes JSON without loss: Postgres writes the JSON, and its text is kept.
//!
//! Never parses a number: `9007199254740993` and a 40-digit numeric arrive as Postgres wrote them.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The structured result.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub(super) connection: String,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Box<RawValue>>,
    pub(super) row_count: usize,
    pub(super) truncated: Truncated,
    pub(super) limit: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    pub(super) duration_ms: u64,
}

/// A column of the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Column {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
}

/// Whether and why rows are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Truncated {
    No,
    Rows,
    Bytes,
}

impl Serialize for Truncated {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::No => serializer.serialize_bool(false),
            Self::Rows => serializer.serialize_str("rows"),
            Self::Bytes => serializer.serialize_str("bytes"),
        }
    }
}

/// The values of one row's JSON object, in its order, as a JSON array.
///
/// # Errors
/// When Postgres did not give a JSON object.
pub(super) fn row_array(object: &str) -> Result<Box<RawValue>, serde_json::Error> {
    let Cells(cells) = serde_json::from_str(object)?;
    let mut text = String::with_capacity(object.len());
    text.push('[');
    for (index, cell) in cells.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        // A `json` column keeps its author's line breaks, which are mere space between tokens.
        text.extend(cell.get().chars().map(|c| if matches!(c, '\n' | '\r') { ' ' } else { c }));
    }
    text.push(']');
    RawValue::from_string(text)
}

struct Cells<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Cells<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ordered;
        impl<'de> Visitor<'de> for Ordered {
            type Value = Cells<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a row as a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut cells = Vec::new();
                while let Some((_, cell)) = map.next_entry::<serde::de::IgnoredAny, &RawValue>()? {
                    cells.push(cell);
                }
                Ok(Cells(cells))
            }
        }
        deserializer.deserialize_map(Ordered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_text_and_order() {
        for (object, array) in [
            (r#"{"c1":9007199254740993,"c2":"a","c3":null}"#, r#"[9007199254740993,"a",null]"#),
            (
                r#"{"c1":1.10000000000000000000000000000000000001}"#,
                "[1.10000000000000000000000000000000000001]",
            ),
            ("{\"c1\":{\"a\":\n[1,\r 2]}}", r#"[{"a": [1,  2]}]"#),
            ("{}", "[]"),
        ] {
            assert_eq!(row_array(object).unwrap().get(), array);
        }
        assert!(row_array("[1]").is_err());
    }
}
