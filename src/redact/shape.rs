//! What a tool's JSON Schema calls sensitive: `x-annals-sensitive: true` on a property, at any depth.
//!
//! Follows references inside the schema. What it cannot follow is taken for sensitive.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::base::planted;

const MARK: &str = "x-annals-sensitive";

/// The sensitive places of one schema; empty when it names none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shape {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Node {
    sensitive: bool,
    properties: BTreeMap<String, usize>,
    /// `additionalProperties`, `patternProperties`: any other property may be under these.
    others: Vec<usize>,
    items: Vec<usize>,
    /// What holds for the same value: `$ref`, `allOf`, `anyOf` and so on.
    also: Vec<usize>,
}

/// Where in a schema one is.
pub(super) type Place = Vec<usize>;

impl Shape {
    /// Reads `schema`.
    #[must_use]
    pub fn of(schema: &Value) -> Self {
        if !mentions(schema) {
            return Self::default();
        }
        let mut compile = Compile { root: schema, nodes: Vec::new(), known: BTreeMap::new() };
        compile.node(String::new());
        Self { nodes: compile.nodes }
    }

    pub(super) fn root(&self) -> Place {
        if self.nodes.is_empty() || planted::armed("sensitive_rule_ignored") {
            Vec::new()
        } else {
            self.with_also(vec![0])
        }
    }

    pub(super) fn is_sensitive(&self, place: &[usize]) -> bool {
        place.iter().any(|&at| self.nodes[at].sensitive)
    }

    pub(super) fn property(&self, place: &[usize], name: &str) -> Place {
        let below = place.iter().flat_map(|&at| {
            let node = &self.nodes[at];
            node.properties.get(name).into_iter().chain(&node.others)
        });
        self.with_also(below.copied().collect())
    }

    pub(super) fn item(&self, place: &[usize]) -> Place {
        self.with_also(place.iter().flat_map(|&at| self.nodes[at].items.iter().copied()).collect())
    }

    fn with_also(&self, mut place: Place) -> Place {
        let mut next = 0;
        while let Some(&at) = place.get(next) {
            for also in &self.nodes[at].also {
                if !place.contains(also) {
                    place.push(*also);
                }
            }
            next += 1;
        }
        place
    }
}

fn mentions(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members.contains_key(MARK) || members.values().any(mentions),
        Value::Array(items) => items.iter().any(mentions),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

struct Compile<'a> {
    root: &'a Value,
    nodes: Vec<Node>,
    /// By JSON pointer, so that a schema that refers to itself ends.
    known: BTreeMap<String, usize>,
}

impl Compile<'_> {
    fn node(&mut self, pointer: String) -> usize {
        if let Some(&known) = self.known.get(&pointer) {
            return known;
        }
        let at = self.nodes.len();
        self.nodes.push(Node::default());
        self.known.insert(pointer.clone(), at);
        let root = self.root;
        let Some(schema) = root.pointer(&pointer) else {
            self.nodes[at].sensitive = true;
            return at;
        };
        let Some(members) = schema.as_object() else { return at };
        let mut node = Node {
            sensitive: members.get(MARK).is_some_and(|mark| mark != &Value::Bool(false)),
            ..Node::default()
        };
        for (keyword, value) in members {
            let below = format!("{pointer}/{}", escaped(keyword));
            match (keyword.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    for name in properties.keys() {
                        let property = self.node(format!("{below}/{}", escaped(name)));
                        node.properties.insert(name.clone(), property);
                    }
                }
                ("patternProperties", Value::Object(_)) => node.others.extend(self.each(&below, value)),
                ("additionalProperties" | "unevaluatedProperties", Value::Object(_)) => {
                    node.others.push(self.node(below));
                }
                ("items" | "contains" | "unevaluatedItems", Value::Object(_)) => {
                    node.items.push(self.node(below));
                }
                ("items" | "prefixItems", Value::Array(_)) => node.items.extend(self.each(&below, value)),
                ("allOf" | "anyOf" | "oneOf" | "dependentSchemas", _) => {
                    node.also.extend(self.each(&below, value));
                }
                ("if" | "then" | "else", Value::Object(_)) => node.also.push(self.node(below)),
                ("$ref" | "$dynamicRef", Value::String(reference)) => match reference.strip_prefix('#') {
                    Some(pointer) => node.also.push(self.node(pointer.to_owned())),
                    None => node.sensitive = true,
                },
                _ => {}
            }
        }
        self.nodes[at] = node;
        at
    }

    fn each(&mut self, below: &str, value: &Value) -> Vec<usize> {
        let names: Vec<String> = match value {
            Value::Object(members) => members.keys().map(|name| escaped(name)).collect(),
            Value::Array(items) => (0..items.len()).map(|at| at.to_string()).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        };
        names.into_iter().map(|name| self.node(format!("{below}/{name}"))).collect()
    }
}

/// A name as a JSON pointer holds it.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sensitive(shape: &Shape, path: &[&str]) -> bool {
        let mut place = shape.root();
        for step in path {
            if shape.is_sensitive(&place) {
                return true;
            }
            place = if *step == "[]" { shape.item(&place) } else { shape.property(&place, step) };
        }
        shape.is_sensitive(&place)
    }

    #[test]
    fn marks_are_found_at_any_depth_and_through_references() {
        let shape = Shape::of(&json!({
            "type": "object",
            "properties": {
                "plain": {"type": "string"},
                "diagnosis": {"type": "string", "x-annals-sensitive": true},
                "people": {"type": "array", "items": {"$ref": "#/$defs/person"}},
                "either": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/person"}]}
            },
            "additionalProperties": {"type": "object", "properties": {"note": {"x-annals-sensitive": true}}},
            "$defs": {"person": {"properties": {
                "born/on": {"x-annals-sensitive": true}, "name": {"type": "string"},
                "children": {"items": {"$ref": "#/$defs/person"}}
            }}}
        }));
        for path in [
            &["diagnosis"][..],
            &["people", "[]", "born/on"],
            &["either", "born/on"],
            &["unknown", "note"],
            &["people", "[]", "children", "[]", "children", "[]", "born/on"],
        ] {
            assert!(sensitive(&shape, path), "{path:?}");
        }
        for path in [&["plain"][..], &["people", "[]", "name"], &["people"], &[]] {
            assert!(!sensitive(&shape, path), "{path:?}");
        }
    }

    #[test]
    fn what_cannot_be_followed_is_sensitive() {
        let schema = json!({"properties": {
            "a": {"$ref": "https://example.org/other.json"}, "b": {"$ref": "#/$defs/none"},
            "c": {"x-annals-sensitive": true}, "d": {"x-annals-sensitive": false}
        }});
        let shape = Shape::of(&schema);
        for (name, expected) in [("a", true), ("b", true), ("c", true), ("d", false)] {
            assert_eq!(sensitive(&shape, &[name]), expected, "{name}");
        }
        assert_eq!(Shape::of(&json!({"properties": {"a": {"$ref": "#/$defs/none"}}})), Shape::default());
    }
}
