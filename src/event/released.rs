//! What a released schema may still become: nothing but itself with further optional fields.
//!
//! `schemas/RELEASED` lists what was released, with the digest of a copy that is kept beside it. The rule is Confluent's
//! FULL_TRANSITIVE, less the removal of optional fields: what any released schema describes, every later one describes, and the
//! other way round. docs/adr/0011 says why.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{StoredType, schema};
use crate::base::{planted, sha256_hex};

/// A line of `schemas/RELEASED`: `<release> <type> <SHA-256 of the copy>`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Released {
    release: String,
    stored: StoredType,
    sha256: String,
}

impl Released {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let read = Self {
            release: words.next()?.to_owned(),
            stored: words.next()?.parse().ok()?,
            sha256: words.next()?.to_owned(),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        let release_is_a_name = read.release.chars().all(plain) && !read.release.starts_with('.');
        (words.next().is_none() && release_is_a_name).then_some(read)
    }

    /// Where the copy is, under `schemas/`.
    fn copy(&self) -> String {
        copy_of(&self.release, self.stored)
    }
}

fn copy_of(release: &str, stored: StoredType) -> String {
    format!("released/{release}/{}", file_of(stored))
}

fn file_of(stored: StoredType) -> String {
    format!("{}.v{}.json", stored.kind.name(), stored.version)
}

/// What is wrong with the schemas in regard to what was released; empty when nothing is. `read` gives a file's bytes by its path
/// under `schemas/`.
#[must_use]
pub fn check(read: impl Fn(&str) -> Option<Vec<u8>>) -> Vec<String> {
    let Some(list) = read("RELEASED").and_then(|bytes| String::from_utf8(bytes).ok()) else {
        return vec!["schemas/RELEASED cannot be read".into()];
    };
    let mut found = Vec::new();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match Released::read(line) {
            Some(released) => found.extend(check_one(&released, &read)),
            None => found.push(format!(
                "schemas/RELEASED: {line:?} is not `<release> <type> <SHA-256>` with a type that this version knows"
            )),
        }
    }
    found
}

fn check_one(released: &Released, read: impl Fn(&str) -> Option<Vec<u8>>) -> Vec<String> {
    let (copy, file) = (released.copy(), format!("event/{}", file_of(released.stored)));
    let stored = released.stored;
    let Some(old) = read(&copy) else { return vec![format!("schemas/{copy} is missing")] };
    if sha256_hex(&old) != released.sha256 {
        return vec![format!(
            "schemas/{copy} is not what was released as {} in {}",
            stored, released.release
        )];
    }
    let Some(new) = read(&file) else {
        return vec![format!("schemas/{file} is missing, and {stored} was released in {}", released.release)];
    };
    match (serde_json::from_slice::<Value>(&old), serde_json::from_slice::<Value>(&new)) {
        (Ok(old), Ok(new)) => breaks(&old, &new)
            .into_iter()
            .map(|change| format!("{stored}, released in {}: {change}; make a new version", released.release))
            .collect(),
        _ => vec![format!("schemas/{copy} or schemas/{file} is not JSON")],
    }
}

/// What stands in `schemas/` once `release` is out: the copies, and the lines that `RELEASED` gets. Types whose schema is
/// the same as in the last copy that `list` names are left out.
#[must_use]
pub fn release(release: &str, list: &str) -> (Vec<schema::SchemaFile>, String) {
    let mut last = BTreeMap::new();
    for line in list.lines().filter_map(Released::read) {
        last.insert(line.stored.to_string(), line.sha256);
    }
    let (mut copies, mut lines) = (Vec::new(), String::new());
    for &kind in super::Kind::ALL {
        let stored = StoredType { kind, version: kind.version() };
        let text = schema::text_of(kind);
        let sha256 = sha256_hex(text.as_bytes());
        if last.get(&stored.to_string()) == Some(&sha256) {
            continue;
        }
        lines.push_str(&format!("{release} {stored} {sha256}\n"));
        copies.push(schema::SchemaFile { path: copy_of(release, stored), text });
    }
    (copies, lines)
}

/// How `new` breaks with `old`, each change with the path of what changed. Annotations may change.
#[must_use]
pub fn breaks(old: &Value, new: &Value) -> Vec<String> {
    let mut changes = Vec::new();
    if !planted::armed("released_schema_changed") {
        compare(old, new, "", &mut changes);
    }
    changes
}

/// Keywords that say nothing about which values are valid.
const ANNOTATIONS: [&str; 9] = [
    "$comment",
    "$id",
    "$schema",
    "contentMediaType",
    "default",
    "deprecated",
    "description",
    "examples",
    "title",
];

fn compare(old: &Value, new: &Value, path: &str, changes: &mut Vec<String>) {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        if old != new {
            changes.push(format!("{} changed from {old} to {new}", shown(path)));
        }
        return;
    };
    compare_fields(old, new, path, changes);
    let keywords: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for keyword in keywords {
        let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let (before, after) = (old.get(keyword), new.get(keyword));
        match (keyword.as_str(), before, after) {
            ("properties" | "required", ..) => {}
            (keyword, ..) if ANNOTATIONS.contains(&keyword) => {}
            ("items" | "additionalProperties", Some(before), Some(after)) => {
                compare(before, after, &at(keyword), changes);
            }
            ("contentSchema", Some(before), Some(after)) => compare(before, after, path, changes),
            (
                "oneOf" | "anyOf" | "allOf" | "prefixItems",
                Some(Value::Array(before)),
                Some(Value::Array(after)),
            ) => {
                compare_alternatives(before, after, path, changes);
            }
            ("enum", Some(Value::Array(before)), Some(Value::Array(after))) => {
                compare_values(before, after, path, changes);
            }
            (_, before, after) if before == after => {}
            (keyword, before, after) => {
                let text = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
                changes.push(format!(
                    "{}: {keyword} changed from {} to {}",
                    shown(path),
                    text(before),
                    text(after)
                ));
            }
        }
    }
}

fn shown(path: &str) -> &str {
    if path.is_empty() { "the event" } else { path }
}

/// The fields of an object: none may go, none may become or cease to be required, and a new one must be optional, in an
/// object that is open.
fn compare_fields(old: &Map<String, Value>, new: &Map<String, Value>, path: &str, changes: &mut Vec<String>) {
    let none = Map::new();
    let fields = |of: &'_ Map<String, Value>| -> Map<String, Value> {
        of.get("properties").and_then(Value::as_object).unwrap_or(&none).clone()
    };
    let required = |of: &Map<String, Value>| -> BTreeSet<String> {
        let names = of.get("required").and_then(Value::as_array);
        names.into_iter().flatten().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
    };
    let (before, after) = (fields(old), fields(new));
    let (must_before, must_after) = (required(old), required(new));
    let is_closed = old.get("additionalProperties").is_some_and(|more| *more != Value::Bool(true));
    let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        changes.push(format!("{} was removed or renamed", at(name)));
    }
    for name in after.keys().filter(|name| !before.contains_key(*name)) {
        if must_after.contains(name) {
            changes.push(format!("{} is new and required", at(name)));
        } else if is_closed {
            changes.push(format!("{} is new, in an object that is closed", at(name)));
        }
    }
    for (name, before) in &before {
        let Some(after) = after.get(name) else { continue };
        match (must_before.contains(name), must_after.contains(name)) {
            (false, true) => changes.push(format!("{} became required", at(name))),
            (true, false) => changes.push(format!("{} is no longer required", at(name))),
            _ => {}
        }
        compare(before, after, &at(name), changes);
    }
}

/// Alternatives that are single values are a set of values; others are compared one by one, in their order.
fn compare_alternatives(old: &[Value], new: &[Value], path: &str, changes: &mut Vec<String>) {
    let values = |all: &[Value]| all.iter().map(|one| one.get("const").cloned()).collect::<Option<Vec<_>>>();
    match (values(old), values(new)) {
        (Some(old), Some(new)) => compare_values(&old, &new, path, changes),
        _ if old.len() == new.len() => {
            for (at, (old, new)) in old.iter().zip(new).enumerate() {
                compare(old, new, &format!("{}[{at}]", shown(path)), changes);
            }
        }
        _ => changes.push(format!("{}: {} alternatives became {}", shown(path), old.len(), new.len())),
    }
}

/// A value more is one that readers of the older schema do not know; one less is one that readers of the newer do not.
fn compare_values(old: &[Value], new: &[Value], path: &str, changes: &mut Vec<String>) {
    for value in old.iter().filter(|value| !new.contains(value)) {
        changes.push(format!("{}: the value {value} was removed", shown(path)));
    }
    for value in new.iter().filter(|value| !old.contains(value)) {
        changes.push(format!("{}: the value {value} is new", shown(path)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Kind;
    use serde_json::json;

    fn gap() -> Value {
        schema::of(Kind::SystemGap)
    }

    /// What is found when `change` is made to the facts of a gap.
    fn changed(change: impl FnOnce(&mut Map<String, Value>)) -> Vec<String> {
        let mut new = gap();
        change(new["properties"]["data"]["properties"]["facts"].as_object_mut().unwrap());
        breaks(&gap(), &new)
    }

    fn field<'a>(facts: &'a mut Map<String, Value>, name: &str) -> &'a mut Value {
        &mut facts["properties"][name]
    }

    #[test]
    fn a_new_optional_field_and_other_words_are_accepted() {
        assert_eq!(changed(|_| ()), Vec::<String>::new());
        let found = changed(|facts| {
            *field(facts, "trace") = json!({ "type": ["string", "null"] });
            field(facts, "detail")["description"] = "Other words.".into();
            facts.insert("title".into(), "A title".into());
        });
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn every_other_change_is_rejected_by_its_name() {
        type Change = fn(&mut Map<String, Value>);
        let cases: [(&str, Change, &[&str]); 12] = [
            (
                "rename",
                |facts| {
                    let field = facts["properties"].as_object_mut().unwrap().remove("detail").unwrap();
                    facts["properties"]["details"] = field;
                    let required = facts["required"].as_array_mut().unwrap();
                    required.retain(|name| name != "detail");
                    required.push("details".into());
                },
                &["data.facts.detail was removed or renamed", "data.facts.details is new and required"],
            ),
            (
                "removal of an optional field",
                |facts| drop(facts["properties"].as_object_mut().unwrap().remove("once")),
                &["data.facts.once was removed or renamed"],
            ),
            (
                "a new required field",
                |facts| {
                    facts["properties"]["disk"] = json!({ "type": "string" });
                    facts["required"].as_array_mut().unwrap().push("disk".into());
                },
                &["data.facts.disk is new and required"],
            ),
            (
                "an optional field becomes required",
                |facts| facts["required"].as_array_mut().unwrap().push("once".into()),
                &["data.facts.once became required"],
            ),
            (
                "a required field becomes optional",
                |facts| facts["required"].as_array_mut().unwrap().retain(|name| name != "detail"),
                &["data.facts.detail is no longer required"],
            ),
            (
                "another type",
                |facts| field(facts, "detail")["type"] = "integer".into(),
                &[r#"data.facts.detail: type changed from "string" to "integer""#],
            ),
            (
                "a type more",
                |facts| field(facts, "detail")["type"] = json!(["string", "null"]),
                &[r#"data.facts.detail: type changed from "string" to ["string","null"]"#],
            ),
            (
                "another format",
                |facts| field(facts, "began_at")["format"] = "date".into(),
                &[r#"data.facts.began_at: format changed from "date-time" to "date""#],
            ),
            (
                "a bound",
                |facts| field(facts, "detail")["maxLength"] = 9.into(),
                &["data.facts.detail: maxLength changed from nothing to 9"],
            ),
            (
                "a value more",
                |facts| {
                    let values = field(facts, "cause")["oneOf"].as_array_mut().unwrap();
                    values.push(json!({ "const": "fire", "type": "string" }));
                },
                &[r#"data.facts.cause: the value "fire" is new"#],
            ),
            (
                "a value less",
                |facts| {
                    field(facts, "cause")["oneOf"].as_array_mut().unwrap().remove(0);
                },
                &[r#"data.facts.cause: the value "io" was removed"#],
            ),
            (
                "an object is closed",
                |facts| facts.extend([("additionalProperties".to_owned(), false.into())]),
                &["data.facts: additionalProperties changed from nothing to false"],
            ),
        ];
        for (what, change, expected) in cases {
            assert_eq!(changed(change), expected, "{what}");
        }
    }

    #[test]
    fn the_personal_part_is_compared_too_and_closed_objects_take_nothing() {
        let closed = |fields: Value| json!({ "properties": fields, "additionalProperties": false });
        let (old, new) = (closed(json!({ "a": {} })), closed(json!({ "a": {}, "b": {} })));
        assert_eq!(breaks(&old, &new), ["b is new, in an object that is closed"]);
        let mut new = gap();
        let bytes = &mut new["properties"]["data"]["properties"]["personal"]["properties"]["bytes"];
        bytes["contentSchema"]["properties"]["user_name"]["type"] = "integer".into();
        let found = breaks(&gap(), &new);
        assert!(
            matches!(found.as_slice(), [one] if one.starts_with("data.personal.bytes.user_name: type changed")),
            "{found:?}"
        );
    }

    /// A directory of schemas in which everything of this version is released as 1.0.0.
    fn released() -> BTreeMap<String, Vec<u8>> {
        let (copies, lines) = release("1.0.0", "");
        assert_eq!(lines.lines().count(), Kind::ALL.len());
        let mut files: BTreeMap<String, Vec<u8>> = schema::files()
            .into_iter()
            .chain(copies)
            .map(|file| (file.path, file.text.into_bytes()))
            .collect();
        files.insert("RELEASED".into(), format!("# Released.\n\n{lines}").into_bytes());
        files
    }

    fn checked(files: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
        check(|path| files.get(path).cloned())
    }

    #[test]
    fn what_was_released_is_held_against_every_copy() {
        let mut files = released();
        assert_eq!(checked(&files), Vec::<String>::new());
        // Nothing changed, so the next release adds nothing.
        let list = String::from_utf8(files["RELEASED"].clone()).unwrap();
        assert_eq!(release("1.1.0", &list), (vec![], String::new()));

        let mut grown = gap();
        grown["properties"]["data"]["properties"]["facts"]["properties"]["disk"] =
            json!({ "type": "string" });
        files.insert("event/system.gap.v1.json".into(), serde_json::to_vec(&grown).unwrap());
        assert_eq!(checked(&files), Vec::<String>::new(), "an optional field more");
        // The grown one is released too; going back is a removal for that release, and not for the first.
        let copy = serde_json::to_vec(&grown).unwrap();
        let line = format!("1.1.0 annals.system.gap.v1 {}\n", sha256_hex(&copy));
        files.insert("RELEASED".into(), format!("{list}{line}").into_bytes());
        files.insert("released/1.1.0/system.gap.v1.json".into(), copy);
        assert_eq!(checked(&files), Vec::<String>::new());
        files.insert("event/system.gap.v1.json".into(), serde_json::to_vec(&gap()).unwrap());
        let found = "annals.system.gap.v1, released in 1.1.0: data.facts.disk was removed or renamed; make a new version";
        assert_eq!(checked(&files), [found]);
    }

    #[test]
    fn a_copy_that_was_touched_and_a_line_that_says_nothing_are_found() {
        let gone = |path: &str| {
            let mut files = released();
            files.remove(path).unwrap();
            checked(&files)
        };
        assert_eq!(
            gone("released/1.0.0/auth.failed.v1.json"),
            ["schemas/released/1.0.0/auth.failed.v1.json is missing"]
        );
        assert_eq!(
            gone("event/auth.failed.v1.json"),
            ["schemas/event/auth.failed.v1.json is missing, and annals.auth.failed.v1 was released in 1.0.0"]
        );
        assert_eq!(gone("RELEASED"), ["schemas/RELEASED cannot be read"]);
        let mut files = released();
        files.get_mut("released/1.0.0/auth.failed.v1.json").unwrap().push(b' ');
        assert_eq!(
            checked(&files),
            [
                "schemas/released/1.0.0/auth.failed.v1.json is not what was released as annals.auth.failed.v1 in 1.0.0"
            ]
        );
        for line in [
            "annals.auth.failed.v1",
            "1.0.0 annals.nothing.v1 00",
            "../x annals.auth.failed.v1 00",
            "1 annals.auth.failed.v1 0 0",
        ] {
            let found = check(|path| (path == "RELEASED").then(|| line.as_bytes().to_vec()));
            assert!(
                found.len() == 1 && found[0].contains("is not `<release> <type> <SHA-256>`"),
                "{found:?}"
            );
        }
    }
}
