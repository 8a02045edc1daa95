//! What a caller asks for, from the parameters of the request. Everything that is not understood is refused by name.

use serde::Serialize;

use crate::base::{Category, Timestamp, clip, sha256, whole};
use crate::event::Kind;

/// Events on a page when the caller does not say.
pub const LIMIT_DEFAULT: u32 = 50;
/// Events on a page at most.
pub const LIMIT_MAX: u32 = 1_000;
/// The longest value of a parameter, bytes.
const VALUE_BYTES_MAX: usize = 1_024;

/// Every parameter.
pub const PARAMETERS: [&str; 15] = [
    "user_id",
    "tool_name",
    "toolkit_kind",
    "connection",
    "persona",
    "event_kind",
    "session_id",
    "trace_id",
    "success",
    "error_category",
    "error_code",
    "start_time",
    "end_time",
    "limit",
    "cursor",
];

/// Which events, and how many. Conditions are joined by "and"; a value must match exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Filter {
    /// The principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// The tool as it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// The tool's family.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toolkit_kind: Option<String>,
    /// The connection reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// The persona that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persona: Option<String>,
    /// The event's type, as [`Kind::name`] writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_kind: Option<String>,
    /// The session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The trace that the caller says its call belongs to: 32 lower-case hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// How the call ended. Events that are no calls have none and match neither.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    /// What the refusal or failure is counted under, as [`Category::as_str`] writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_category: Option<String>,
    /// The reason of the refusal or failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Not before this, by the event's `timestamp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    /// Before this, by the event's `timestamp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Timestamp>,
    /// Events on the page at most, 1 to [`LIMIT_MAX`].
    pub limit: u32,
    /// Where the page before ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            user_id: None,
            tool_name: None,
            toolkit_kind: None,
            connection: None,
            persona: None,
            event_kind: None,
            session_id: None,
            trace_id: None,
            success: None,
            error_category: None,
            error_code: None,
            start_time: None,
            end_time: None,
            limit: LIMIT_DEFAULT,
            cursor: None,
        }
    }
}

/// A parameter is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FilterError {
    /// No parameter has this name.
    #[error("{name:?} is not a parameter; accepted are {}", PARAMETERS.join(", "))]
    Unknown {
        /// As given, clipped.
        name: String,
    },
    /// It stands there twice.
    #[error("{parameter} is given more than once; give it once")]
    Repeated {
        /// Its name.
        parameter: &'static str,
    },
    /// It has no value.
    #[error("{parameter} is empty; leave it out or give {accepted}")]
    Empty {
        /// Its name.
        parameter: &'static str,
        /// What it takes.
        accepted: &'static str,
    },
    /// Its value is not one it takes.
    #[error("{parameter} {value:?} is not accepted; give {accepted}")]
    Value {
        /// Its name.
        parameter: &'static str,
        /// As given, clipped.
        value: String,
        /// What it takes.
        accepted: String,
    },
    /// The range ends before it starts.
    #[error("start_time {start} is after end_time {end}; give a start_time that is not after end_time")]
    Range {
        /// The start.
        start: Timestamp,
        /// The end.
        end: Timestamp,
    },
}

impl Filter {
    /// From the parameters of a request, percent-decoded.
    ///
    /// # Errors
    /// [`FilterError`] names the parameter and what it accepts.
    pub fn parse(parameters: &[(String, String)]) -> Result<Self, FilterError> {
        let mut filter = Self::default();
        let mut seen: Vec<&'static str> = Vec::new();
        for (name, value) in parameters {
            let Some(parameter) = PARAMETERS.into_iter().find(|known| known == name) else {
                return Err(FilterError::Unknown { name: whole(name, 128).into_owned() });
            };
            if seen.contains(&parameter) {
                return Err(FilterError::Repeated { parameter });
            }
            seen.push(parameter);
            filter.set(parameter, value)?;
        }
        if let (Some(start), Some(end)) = (filter.start_time, filter.end_time)
            && start > end
        {
            return Err(FilterError::Range { start, end });
        }
        Ok(filter)
    }

    fn set(&mut self, parameter: &'static str, value: &str) -> Result<(), FilterError> {
        if value.is_empty() {
            return Err(FilterError::Empty { parameter, accepted: accepted(parameter) });
        }
        let refuse = |accepted: String| FilterError::Value {
            parameter,
            value: whole(value, 128).into_owned(),
            accepted,
        };
        // Postgres text holds no NUL.
        if value.len() > VALUE_BYTES_MAX || value.contains('\0') {
            return Err(refuse(format!("at most {VALUE_BYTES_MAX} bytes without NUL")));
        }
        let usual = || refuse(accepted(parameter).to_owned());
        let text = Some(value.to_owned());
        match parameter {
            "user_id" => self.user_id = text,
            "tool_name" => self.tool_name = text,
            "toolkit_kind" => self.toolkit_kind = text,
            "connection" => self.connection = text,
            "persona" => self.persona = text,
            "session_id" => self.session_id = text,
            "error_code" => self.error_code = text,
            "error_category" => {
                let known = Category::ALL.iter().any(|category| category.as_str() == value);
                if !known {
                    return Err(refuse(format!("one of {}", Category::ALL.map(Category::as_str).join(", "))));
                }
                self.error_category = text;
            }
            "trace_id" => {
                let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
                if value.len() != 32 || !value.bytes().all(digit) {
                    return Err(usual());
                }
                self.trace_id = text;
            }
            "cursor" => self.cursor = text,
            "event_kind" => {
                let listed = Kind::from_name(value).is_ok_and(|kind| kind != Kind::ToolCallRequested);
                if !listed {
                    return Err(refuse(kinds_near(value)));
                }
                self.event_kind = text;
            }
            "success" => self.success = Some(value.parse().map_err(|_| usual())?),
            "start_time" => self.start_time = Some(value.parse().map_err(|_| usual())?),
            "end_time" => self.end_time = Some(value.parse().map_err(|_| usual())?),
            _ => {
                let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                self.limit = limit.ok_or_else(usual)?;
            }
        }
        Ok(())
    }

    /// The conditions on text columns, by column name.
    pub(super) fn texts(&self) -> [(&'static str, Option<&str>); 10] {
        [
            ("user_id", self.user_id.as_deref()),
            ("tool_name", self.tool_name.as_deref()),
            ("toolkit_kind", self.toolkit_kind.as_deref()),
            ("connection", self.connection.as_deref()),
            ("persona", self.persona.as_deref()),
            ("event_kind", self.event_kind.as_deref()),
            ("session_id", self.session_id.as_deref()),
            ("trace_id", self.trace_id.as_deref()),
            ("error_category", self.error_category.as_deref()),
            ("error_code", self.error_code.as_deref()),
        ]
    }

    /// What binds a cursor to these conditions: everything but the size of the page and the place in the list.
    pub(super) fn digest(&self) -> [u8; 8] {
        let conditions = Self { limit: LIMIT_DEFAULT, cursor: None, ..self.clone() };
        let json = serde_json::to_vec(&conditions).expect("texts, booleans and times have a JSON form");
        let digest = sha256(&json);
        let (head, _) = digest.split_first_chunk::<8>().expect("a SHA-256 has 32 bytes");
        *head
    }
}

fn accepted(parameter: &str) -> &'static str {
    match parameter {
        "success" => "true or false",
        "start_time" | "end_time" => "an RFC 3339 time like 2026-01-31T09:30:00Z",
        "limit" => "a whole number from 1 to 1000",
        "cursor" => "next_cursor of the page before",
        "trace_id" => "32 lower-case hexadecimal digits",
        "event_kind" => "an event type like tool_call.completed",
        _ => "the exact value to match",
    }
}

/// The listed types, those most like `given` first when any is.
fn kinds_near(given: &str) -> String {
    if given == Kind::ToolCallRequested.name() {
        return "another type: intents are not listed, each call is by its terminal event".to_owned();
    }
    let listed = Kind::ALL.iter().filter(|kind| **kind != Kind::ToolCallRequested).map(|kind| kind.name());
    let mut near: Vec<(usize, &str)> = listed.clone().map(|name| (distance(given, name), name)).collect();
    near.sort_unstable();
    let near: Vec<&str> =
        near.into_iter().take_while(|(distance, _)| *distance <= 4).map(|(_, name)| name).take(3).collect();
    if near.is_empty() {
        format!("one of {}", listed.collect::<Vec<_>>().join(", "))
    } else {
        format!("an event type, such as {}", near.join(" or "))
    }
}

/// How many characters to insert, remove or change to come from `a` to `b`; `a` is clipped first.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in clip(a, 64).chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, &to) in row.iter_mut().skip(1).zip(&b) {
            let changed = diagonal + usize::from(from != to);
            diagonal = *cell;
            left = changed.min(left + 1).min(*cell + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(parameters: &[(&str, &str)]) -> Result<Filter, FilterError> {
        let owned: Vec<_> =
            parameters.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Filter::parse(&owned)
    }

    #[test]
    fn every_parameter_is_read() {
        let time = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let filter = parse(&[
            ("user_id", "u"),
            ("tool_name", "t"),
            ("toolkit_kind", "k"),
            ("connection", "c"),
            ("persona", "p"),
            ("event_kind", "tool_call.denied"),
            ("session_id", "s"),
            ("trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"),
            ("success", "false"),
            ("error_category", "authz"),
            ("error_code", "tool_not_allowed"),
            ("start_time", "2026-01-31T09:30:00Z"),
            ("end_time", "2026-01-31T10:30:00+01:00"),
            ("limit", "1000"),
            ("cursor", "x"),
        ]);
        let expected = Filter {
            user_id: Some("u".into()),
            tool_name: Some("t".into()),
            toolkit_kind: Some("k".into()),
            connection: Some("c".into()),
            persona: Some("p".into()),
            event_kind: Some("tool_call.denied".into()),
            session_id: Some("s".into()),
            trace_id: Some("4bf92f3577b34da6a3ce929d0e0e4736".into()),
            success: Some(false),
            error_category: Some("authz".into()),
            error_code: Some("tool_not_allowed".into()),
            start_time: time("2026-01-31T09:30:00Z"),
            end_time: time("2026-01-31T09:30:00Z"),
            limit: 1000,
            cursor: Some("x".into()),
        };
        assert_eq!(filter, Ok(expected));
        assert_eq!(parse(&[]), Ok(Filter::default()));
    }

    #[test]
    fn each_refusal_says_what_is_accepted() {
        let long = "x".repeat(1_025);
        for (parameters, text) in [
            (
                &[("user", "u")][..],
                "\"user\" is not a parameter; accepted are user_id, tool_name, toolkit_kind, connection, persona, \
                 event_kind, session_id, trace_id, success, error_category, error_code, start_time, end_time, limit, \
                 cursor",
            ),
            (&[("limit", "1"), ("limit", "1")], "limit is given more than once; give it once"),
            (&[("user_id", "")], "user_id is empty; leave it out or give the exact value to match"),
            (&[("limit", "0")], "limit \"0\" is not accepted; give a whole number from 1 to 1000"),
            (&[("limit", "1001")], "limit \"1001\" is not accepted; give a whole number from 1 to 1000"),
            (&[("limit", "ten")], "limit \"ten\" is not accepted; give a whole number from 1 to 1000"),
            (
                &[("trace_id", "ABC")],
                "trace_id \"ABC\" is not accepted; give 32 lower-case hexadecimal digits",
            ),
            (
                &[("error_category", "auths")],
                "error_category \"auths\" is not accepted; give one of auth, authz, validation, rate_limit, \
                 upstream, timeout, cancelled, internal",
            ),
            (&[("success", "yes")], "success \"yes\" is not accepted; give true or false"),
            (
                &[("start_time", "yesterday")],
                "start_time \"yesterday\" is not accepted; give an RFC 3339 time like 2026-01-31T09:30:00Z",
            ),
            (
                &[("start_time", "2026-01-02T00:00:00Z"), ("end_time", "2026-01-01T00:00:00Z")],
                "start_time 2026-01-02T00:00:00.000000Z is after end_time 2026-01-01T00:00:00.000000Z; give a \
                 start_time that is not after end_time",
            ),
            (
                &[("event_kind", "tool_call.complete")],
                "event_kind \"tool_call.complete\" is not accepted; give an event type, such as tool_call.completed",
            ),
            (
                &[("event_kind", "tool_call.requested")],
                "event_kind \"tool_call.requested\" is not accepted; give another type: intents are not listed, each \
                 call is by its terminal event",
            ),
            (
                &[("persona", &long)],
                "persona \"(1025 bytes)\" is not accepted; give at most 1024 bytes without NUL",
            ),
            (&[("persona", "a\0")], "persona \"a\\0\" is not accepted; give at most 1024 bytes without NUL"),
        ] {
            assert_eq!(parse(parameters).unwrap_err().to_string(), text);
        }
        let all = parse(&[("event_kind", "mcp")]).unwrap_err().to_string();
        assert!(all.contains("one of tool_call.completed, tool_call.failed"), "{all}");
    }

    #[test]
    fn a_cursor_is_bound_to_conditions_but_not_to_the_page() {
        let with = |parameters: &[(&str, &str)]| parse(parameters).unwrap().digest();
        assert_eq!(with(&[("user_id", "u")]), with(&[("user_id", "u"), ("limit", "7"), ("cursor", "c")]));
        assert_ne!(with(&[("user_id", "u")]), with(&[("tool_name", "u")]));
        assert_ne!(with(&[("success", "true")]), with(&[("success", "false")]));
        assert_ne!(with(&[]), with(&[("success", "false")]));
    }

    #[test]
    fn distances_count_single_changes() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }
}
