//! Makes text and JSON fit for Postgres, which knows less Unicode and smaller numbers than JSON does.
//!
//! Total: no input is refused, and what cannot be kept exactly is changed visibly. The exact bytes stay in the body columns.

use std::borrow::Cow;

/// Deepest nesting that goes into a `jsonb` column; deeper values are left out (the raw text is kept elsewhere).
const DEPTH_MAX: usize = 256;

/// Longest number text that goes in as a number; Postgres takes 131,072 digits before the point and 16,383 behind it.
const NUMBER_BYTES_MAX: usize = 1_000;

/// Largest exponent, either sign, that goes in as a number.
const EXPONENT_MAX: u64 = 10_000;

/// `text` with U+0000, which Postgres cannot store, replaced by U+FFFD.
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// JSON text that `jsonb` takes for the valid JSON text `raw`: `\u0000` and lone surrogates become U+FFFD, numbers
/// out of Postgres' range become strings. `None` when it is nested too deeply to be stored as JSON.
#[must_use]
pub fn json_for_postgres(raw: &str) -> Option<String> {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    let mut depth = 0_usize;
    while let Some(at) = rest.find(|c: char| matches!(c, '"' | '[' | ']' | '{' | '}' | '-' | '0'..='9')) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        rest = match from.as_bytes().first() {
            Some(b'"') => string(from, &mut out),
            Some(b'[' | b'{') => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return None;
                }
                one(from, &mut out)
            }
            Some(b']' | b'}') => {
                depth = depth.saturating_sub(1);
                one(from, &mut out)
            }
            _ => number(from, &mut out),
        };
    }
    out.push_str(rest);
    Some(out)
}

fn one<'a>(from: &'a str, out: &mut String) -> &'a str {
    let (head, rest) = from.split_at(1);
    out.push_str(head);
    rest
}

/// Copies the string token at the start of `from` and returns what follows it.
fn string<'a>(from: &'a str, out: &mut String) -> &'a str {
    let mut rest = one(from, out);
    loop {
        let Some(at) = rest.find(['"', '\\', '\0']) else {
            out.push_str(rest);
            return "";
        };
        let (before, special) = rest.split_at(at);
        out.push_str(before);
        rest = match special.as_bytes() {
            [b'"', ..] => return one(special, out),
            [b'\\', b'u', ..] => escape(special, out),
            [b'\\', ..] => {
                let length = special.chars().take(2).map(char::len_utf8).sum();
                let (pair, rest) = special.split_at(length);
                out.push_str(pair);
                rest
            }
            _ => {
                out.push_str("\\ufffd");
                special.strip_prefix('\0').unwrap_or_default()
            }
        };
    }
}

/// Copies one `\uXXXX` escape, or a surrogate pair of two, and returns what follows.
fn escape<'a>(from: &'a str, out: &mut String) -> &'a str {
    match (unit(from), from.get(6..).and_then(unit)) {
        (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => {
            let (pair, rest) = from.split_at(12);
            out.push_str(pair);
            rest
        }
        (Some(0 | 0xd800..=0xdfff), _) => {
            out.push_str("\\ufffd");
            from.get(6..).unwrap_or_default()
        }
        (Some(_), _) => {
            let (escape, rest) = from.split_at(6);
            out.push_str(escape);
            rest
        }
        // Not reachable in valid JSON; copied as it is, so that Postgres reports it.
        (None, _) => one(from, out),
    }
}

fn unit(from: &str) -> Option<u16> {
    let digits = from.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

/// Copies the number at the start of `from`, as a string when it is out of range, and returns what follows.
fn number<'a>(from: &'a str, out: &mut String) -> &'a str {
    let end =
        from.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E')).unwrap_or(from.len());
    let (number, rest) = from.split_at(end);
    let exponent = number
        .split_once(['e', 'E'])
        .map_or(Some(0), |(_, exponent)| exponent.trim_start_matches(['+', '-']).parse::<u64>().ok());
    if number.len() <= NUMBER_BYTES_MAX && exponent.is_some_and(|exponent| exponent <= EXPONENT_MAX) {
        out.push_str(number);
    } else {
        out.push('"');
        out.push_str(number);
        out.push('"');
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nul_becomes_the_replacement_character() {
        assert_eq!(clean("a\0b"), "a\u{fffd}b");
        assert!(matches!(clean("ab"), Cow::Borrowed("ab")));
    }

    #[test]
    fn what_postgres_takes_is_left_alone() {
        let raw = r#" {"a":[1,-2.5e3,"x\"y\\","😀 é",true,null], "b":{}} "#;
        assert_eq!(json_for_postgres(raw).as_deref(), Some(raw));
    }

    #[test]
    fn traps_are_replaced_visibly() {
        let raw = r#"{"\u0000":"\ud800 \udc00\ud83d\ude00 \\u0000 \ud800\u0041","n":1e999999,"m":-1E-20000}"#;
        let want =
            r#"{"\ufffd":"\ufffd \ufffd\ud83d\ude00 \\u0000 \ufffd\u0041","n":"1e999999","m":"-1E-20000"}"#;
        assert_eq!(json_for_postgres(raw).as_deref(), Some(want));
        let long = "9".repeat(200_000);
        assert_eq!(json_for_postgres(&long), Some(format!("\"{long}\"")));
    }

    #[test]
    fn deep_nesting_is_left_out() {
        let raw = |depth| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(json_for_postgres(&raw(DEPTH_MAX)), Some(raw(DEPTH_MAX)));
        assert_eq!(json_for_postgres(&raw(DEPTH_MAX + 1)), None);
    }
}
