//! The headers in which a caller claims something: who it is, whom it asks for, what it belongs to. They decide nothing.

use std::fmt::Write;

use axum::http::header::HeaderMap;
use serde_json::value::RawValue;

use crate::base::whole;

/// Bounds of what is kept.
const HEADERS_MAX: usize = 32;
const VALUE_BYTES_MAX: usize = 256;
const BYTES_MAX: usize = 1536;

/// Claims that do not begin with `x-`.
const NAMES: [&str; 8] = [
    "baggage",
    "traceparent",
    "tracestate",
    "forwarded",
    "true-client-ip",
    "client-ip",
    "cf-connecting-ip",
    "from",
];

/// What stands in the name of a header that holds a secret rather than a claim.
const SECRETS: [&str; 10] =
    ["key", "token", "secret", "password", "passwd", "cookie", "credential", "signature", "assertion", "jwt"];

/// The claims in `headers`, as `{"headers": {"<name>": "<value>", ...}}`; a name that is repeated stands there once, its
/// values joined by `, `. What is over the bounds is only counted, as `"omitted_headers": <n>`.
/// `None` when there are none. Headers that hold secrets by their name are left out altogether.
pub(super) fn asserted(headers: &HeaderMap) -> Option<Box<RawValue>> {
    let mut json = String::from("{\"headers\":{");
    let (mut kept, mut omitted) = (0, 0);
    for name in headers.keys().filter(|name| is_claim(name.as_str())) {
        let values = headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
        let value = values.fold(String::new(), |mut all, value| {
            if !all.is_empty() {
                all.push_str(", ");
            }
            all.push_str(&value);
            all
        });
        let value = serde_json::to_string(&*whole(&value, VALUE_BYTES_MAX)).expect("a text has a JSON form");
        if kept == HEADERS_MAX || json.len() + name.as_str().len() + value.len() > BYTES_MAX {
            omitted += 1;
            continue;
        }
        let comma = if kept == 0 { "" } else { "," };
        write!(json, "{comma}\"{name}\":{value}").expect("a String takes everything");
        kept += 1;
    }
    if omitted > 0 {
        let comma = if kept == 0 { "" } else { "," };
        write!(json, "{comma}\"omitted_headers\":{omitted}").expect("a String takes everything");
    }
    json.push_str("}}");
    if kept + omitted == 0 { None } else { RawValue::from_string(json).ok() }
}

fn is_claim(name: &str) -> bool {
    let claims = NAMES.contains(&name) || name.starts_with("x-");
    claims && !SECRETS.iter().any(|secret| name.contains(secret))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn kept(headers: &[(&str, &[u8])]) -> Option<serde_json::Value> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = name.parse::<HeaderName>().unwrap();
            map.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        asserted(&map).map(|raw| {
            assert!(raw.get().len() <= BYTES_MAX + 32);
            let all: serde_json::Value = serde_json::from_str(raw.get()).unwrap();
            all["headers"].clone()
        })
    }

    #[test]
    fn claims_are_kept_and_secrets_are_not() {
        let all = kept(&[
            ("baggage", b"user=root"),
            ("tracestate", b"a=1"),
            ("tracestate", b"b=2"),
            ("x-user", b"r\xffoot \"q\""),
            ("x-forwarded-for", b"1.1.1.1"),
            ("forwarded", b"for=1.1.1.1"),
            ("x-api-key", b"hunter2"),
            ("x-auth-token", b"hunter2"),
            ("x-amz-security-token", b"hunter2"),
            ("authorization", b"Bearer hunter2"),
            ("cookie", b"a=hunter2"),
            ("accept", b"*/*"),
            ("content-type", b"application/json"),
        ]);
        let expected = serde_json::json!({
            "baggage": "user=root", "tracestate": "a=1, b=2", "x-user": "r\u{fffd}oot \"q\"",
            "x-forwarded-for": "1.1.1.1", "forwarded": "for=1.1.1.1",
        });
        assert_eq!(all, Some(expected));
        assert_eq!(kept(&[("accept", b"*/*"), ("x-api-key", b"k")]), None);
    }

    #[test]
    fn count_and_bytes_are_bounded() {
        let names: Vec<String> = (0..40).map(|n| format!("x-{n}")).collect();
        let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"v"[..])).collect();
        let all = kept(&many).unwrap();
        assert_eq!((all.as_object().unwrap().len(), &all["omitted_headers"]), (33, &8.into()));
        let long = "é".repeat(5_000);
        let all = kept(&[("x-long", long.as_bytes()), ("x-short", b"s")]).unwrap();
        assert_eq!(all["x-long"], "(10000 bytes)");
        assert_eq!(all["x-short"], "s");
        let large = "v".repeat(250);
        let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), large.as_bytes())).collect();
        let all = kept(&many).unwrap();
        assert_eq!((all.as_object().unwrap().len(), &all["omitted_headers"]), (6, &35.into()));
    }
}
