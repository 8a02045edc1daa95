//! The rules for texts: finds the spans of secrets in all forms, and puts markers in their place.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::value::RawValue;

use super::{NESTED_MAX, Redactor, Rule, Scope, Secrets, TEXT_BYTES_MAX, UNREADABLE, Unreadable};
use super::{card, hidden, json, pairs, sql};

/// How often one form may stand in another.
const LAYERS_MAX: usize = 3;

static MARKER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\[redacted:([a-z0-9_]{1,32}):hmac:[0-9a-f]{16}\]|\[redacted:unreadable\]")
        .expect("a regular expression")
});

/// How a text is looked at.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Look {
    /// In how many strings of JSON it stands.
    pub(super) nested: usize,
    /// Whether it is a SQL statement whose string literals are secrets.
    pub(super) sql: bool,
    /// Whether string literals of SQL in JSON inside it are secrets.
    pub(super) sql_literals: bool,
}

/// A secret in a text.
#[derive(Debug, Clone)]
struct Span {
    range: Range<usize>,
    rule: Rule,
    /// The secret itself, where that is not what stands there.
    secret: Option<String>,
}

impl Redactor {
    /// `text` without secrets; none when it has none.
    pub(super) fn cleaned(
        &self,
        text: &str,
        secrets: &mut Secrets,
        look: &Look,
    ) -> Result<Option<String>, Unreadable> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Unreadable);
        }
        if let Some(inner) = json_of(text) {
            return self.cleaned_json(text, inner, secrets, look);
        }
        let mut spans = Vec::new();
        if look.sql {
            spans.extend(sql::literals(text).into_iter().map(|range| Span {
                range,
                rule: Cow::Borrowed("sql_literal"),
                secret: None,
            }));
        }
        self.spans(text, secrets, 0, &mut spans);
        let spans = merged(self.without_markers(text, spans));
        if spans.is_empty() {
            return Ok(None);
        }
        let mut cleaned = String::with_capacity(text.len());
        let mut end = 0;
        for span in spans {
            cleaned.push_str(text.get(end..span.range.start).ok_or(Unreadable)?);
            let stands = text.get(span.range.clone()).ok_or(Unreadable)?;
            let secret = span.secret.as_deref().unwrap_or(stands);
            cleaned.push_str(&self.marker(&span.rule, secret.as_bytes()));
            secrets.add(&span.rule, secret);
            end = span.range.end;
        }
        cleaned.push_str(text.get(end..).ok_or(Unreadable)?);
        Ok(Some(cleaned))
    }

    fn cleaned_json(
        &self,
        text: &str,
        inner: &str,
        secrets: &mut Secrets,
        look: &Look,
    ) -> Result<Option<String>, Unreadable> {
        if look.nested >= NESTED_MAX {
            return Err(Unreadable);
        }
        let scope = Scope { shape: None, sql_literals: look.sql_literals };
        let pass = json::Pass { redactor: self, scope, keys: true, nested: look.nested + 1 };
        let cleaned = pass.run(inner, secrets)?;
        Ok((cleaned != inner).then(|| text.replacen(inner, &cleaned, 1)))
    }

    /// What stands in the place of a secret.
    pub(super) fn marker(&self, rule: &str, secret: &[u8]) -> String {
        let digest = self.digest(secret);
        format!("[redacted:{rule}:hmac:{}]", digest.get(..16).unwrap_or_default())
    }

    /// Whether `text` is a marker and nothing else.
    pub(super) fn is_marker(&self, text: &str) -> bool {
        text.starts_with("[redacted:")
            && MARKER.captures(text).is_some_and(|found| found[0].len() == text.len() && self.known(&found))
    }

    /// A marker names a rule that exists: else anybody could write a secret where its name stands.
    fn known(&self, marker: &regex::Captures<'_>) -> bool {
        marker.get(1).is_none_or(|rule| RULES.contains(&rule.as_str()) || self.values.knows(rule.as_str()))
    }

    fn spans(&self, text: &str, secrets: &Secrets, layer: usize, spans: &mut Vec<Span>) {
        let mut add = |range: Range<usize>, rule: Rule| spans.push(Span { range, rule, secret: None });
        self.values.find(text, &mut add);
        pairs::find(&self.names, text, &mut add);
        secrets.find(text, &mut add);
        for range in card::find(text) {
            add(range, Cow::Borrowed("card"));
        }
        if layer >= LAYERS_MAX {
            return;
        }
        for decoded in [hidden::percent(text), hidden::escapes(text)].into_iter().flatten() {
            let mut inner = Vec::new();
            self.spans(&decoded.text, secrets, layer + 1, &mut inner);
            spans.extend(inner.into_iter().map(|span| translated(span, &decoded)));
        }
        self.over_lines(text, secrets, spans);
        let runs = hidden::base64(text, layer == 0).into_iter().chain(hidden::hexadecimal(text));
        for (range, decoded) in runs {
            let mut inner = Vec::new();
            self.spans(&decoded, secrets, layer + 1, &mut inner);
            let inner = merged(self.without_markers(&decoded, inner));
            let Some(first) = inner.first() else { continue };
            let secret = first.secret.clone().or_else(|| decoded.get(first.range.clone()).map(str::to_owned));
            let padded =
                text.get(range.end..).map_or(0, |rest| rest.len() - rest.trim_start_matches('=').len());
            spans.push(Span { range: range.start..range.end + padded, rule: first.rule.clone(), secret });
        }
    }

    /// Secrets that a line break cuts in two.
    fn over_lines(&self, text: &str, secrets: &Secrets, spans: &mut Vec<Span>) {
        let Some(one_line) = hidden::one_line(text) else { return };
        let mut inner = Vec::new();
        let mut add = |range: Range<usize>, rule: Rule| inner.push(Span { range, rule, secret: None });
        self.values.find(&one_line.text, &mut add);
        secrets.find(&one_line.text, &mut add);
        for span in inner {
            let span = translated(span, &one_line);
            // The next line's first word is no part of a secret that ends with its own line.
            let seen = spans
                .iter()
                .any(|known| known.range.start < span.range.end && span.range.start < known.range.end);
            if !seen && hidden::crosses_lines(text, &span.range) {
                spans.push(span);
            }
        }
    }

    /// What is a marker already stays.
    fn without_markers(&self, text: &str, mut spans: Vec<Span>) -> Vec<Span> {
        if !spans.is_empty() && text.contains("[redacted:") {
            let markers: Vec<Range<usize>> = MARKER
                .captures_iter(text)
                .filter(|found| self.known(found))
                .filter_map(|found| found.get(0).map(|whole| whole.range()))
                .collect();
            spans.retain(|span| {
                let rest = text.get(span.range.clone()).unwrap_or_default();
                let bare = rest.trim().trim_end_matches([',', ';', '.', ')', '}', ']', '\\']);
                let start = span.range.start;
                // What begins inside a marker is made of its own words.
                !markers.iter().any(|marker| {
                    let whole = text.get(marker.clone()).unwrap_or_default();
                    (marker.start < start && start < marker.end)
                        || (marker.start == start && span.range.end <= marker.end)
                        || bare == whole.trim_end_matches(']')
                })
            });
        }
        spans.retain(|span| !span.range.is_empty());
        spans
    }
}

/// The rules beside those of values, for markers.
const RULES: &[&str] = &[
    "password",
    "api_key",
    "client_secret",
    "connection_string",
    "private_key",
    "access_key",
    "secret",
    "credential",
    "authorization",
    "cookie",
    "token",
    "card_code",
    "configured_key",
    "url_password",
    "card",
    "sql_literal",
    "sensitive",
    "unreadable",
];

fn translated(span: Span, decoded: &hidden::Decoded) -> Span {
    let secret = span.secret.or_else(|| decoded.text.get(span.range.clone()).map(str::to_owned));
    Span { range: decoded.origin(&span.range), secret, ..span }
}

/// Ordered, and each place once: where two overlap, all that either covers goes.
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by(|a, b| a.range.start.cmp(&b.range.start).then(b.range.end.cmp(&a.range.end)));
    let mut merged: Vec<Span> = Vec::new();
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.range.start < last.range.end => {
                if span.range.end > last.range.end {
                    last.range.end = span.range.end;
                    last.secret = None;
                }
            }
            _ => merged.push(span),
        }
    }
    merged
}

/// The JSON object or array that `text` is, if it is one.
fn json_of(text: &str) -> Option<&str> {
    let inner = text.trim();
    let opens =
        inner.starts_with('{') && inner.ends_with('}') || inner.starts_with('[') && inner.ends_with(']');
    (opens && !inner.starts_with(UNREADABLE) && serde_json::from_str::<&RawValue>(inner).is_ok())
        .then_some(inner)
}
