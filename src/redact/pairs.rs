//! Secrets that a text names: `key=value`, `Header: value`, `--flag value`, passwords in URLs, elements of XML.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::Rule;
use super::names::Names;

/// The longest name before a separator that is looked at, bytes.
const NAME_BYTES_MAX: usize = 128;

/// Words that stand where a secret could and are none: types, placeholders, the absence of a value.
const NOT_VALUES: &[&str] = &[
    "null",
    "none",
    "nil",
    "undefined",
    "true",
    "false",
    "yes",
    "no",
    "string",
    "str",
    "text",
    "varchar",
    "char",
    "int",
    "integer",
    "number",
    "bool",
    "boolean",
    "bytes",
    "uuid",
    "any",
    "option",
    "optional",
    "required",
    "missing",
    "invalid",
    "expired",
    "unknown",
    "wrong",
    "empty",
    "redacted",
    "hidden",
    "omitted",
];

static ELEMENT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"<([A-Za-z][A-Za-z0-9:._-]{0,63})(?: [^<>]{0,256})?>([^<]+)</").expect("a regular expression")
});

static FORM_FIELD: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"name="([^"\r\n]{1,64})"[^\r\n]{0,128}\r?\n\r?\n([^\r\n]+)"#).expect("a regular expression")
});

static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?i)\\*"(?:name|key|header|field)\\*"\s*:\s*\\*"([^"\\]{1,64})\\*"\s*,\s*\\*"(?:value|val|string_?value)\\*"\s*:\s*\\*"((?:[^"\\]|\\[^"])+)"#)
        .expect("a regular expression")
});

/// An option of a command and the word behind it, as items of a list.
static OPTION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"["']--([A-Za-z][A-Za-z0-9_-]{1,63})["']\s*,\s*["']([^"'\n-][^"'\n]*)["']"#)
        .expect("a regular expression")
});

/// `PASSWORD E'...'`, `U&'...'` and quotes of dollars; plain quotes are those of a pair.
static SQL_PASSWORD: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)\b(?:password|identified\s+by)[\s=:]+(?:e'((?:[^'\\]|\\.|'')+)'|u&'((?:[^']|'')+)'|\$\$((?s:.+?))\$\$)")
        .expect("a regular expression")
});

/// A scheme at the end of its line, and the credential on the next one.
static SCHEME_THEN_LINE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)\bauthorization\b\W{1,4}(?:bearer|basic|token)[ \t]*\r?\n[ \t]*([^\s\x22\x27]{6,})")
        .expect("a regular expression")
});

/// Two items in brackets.
static PAIR: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"[\[(]\s*["']([A-Za-z0-9_-]{3,64})["']\s*,\s*["']([^"'\n]+)["']\s*[\])]"#)
        .expect("a regular expression")
});

/// Gives each secret in `text` that is named as one to `found`.
pub(super) fn find(names: &Names, text: &str, found: &mut impl FnMut(Range<usize>, Rule)) {
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b':' if bytes.get(at + 1..at + 3) == Some(b"//") => in_url(text, at + 3, found),
            b':' | b'=' => pair(names, text, at, found),
            b'-' if bytes.get(at + 1) == Some(&b'-') => flag(names, text, at, found),
            _ => {}
        }
    }
    if text.contains("</") {
        captured(&ELEMENT, names, text, found);
    }
    if text.contains("name=\"") {
        captured(&FORM_FIELD, names, text, found);
    }
    if text.contains('$') || text.contains('\'') {
        all(&SQL_PASSWORD, text, "password", found);
    }
    if text.contains('\n') {
        all(&SCHEME_THEN_LINE, text, "authorization", found);
    }
    if text.contains('"') && text.contains(':') {
        captured(&NAMED, names, text, found);
    }
    if text.contains(['[', '(']) && text.contains(',') {
        captured(&PAIR, names, text, found);
        captured(&OPTION, names, text, found);
    }
}

/// Whatever group of `regex` fits.
fn all(regex: &Regex, text: &str, rule: &'static str, found: &mut impl FnMut(Range<usize>, Rule)) {
    for captures in regex.captures_iter(text) {
        if let Some(value) = captures.iter().skip(1).flatten().next()
            && is_value(value.as_str())
        {
            found(value.range(), Cow::Borrowed(rule));
        }
    }
}

fn captured(regex: &Regex, names: &Names, text: &str, found: &mut impl FnMut(Range<usize>, Rule)) {
    for captures in regex.captures_iter(text) {
        let (Some(name), Some(value)) = (captures.get(1), captures.get(2)) else { continue };
        if let Some(rule) = names.rule(name.as_str())
            && is_value(value.as_str())
        {
            found(value.range(), rule);
        }
    }
}

fn pair(names: &Names, text: &str, at: usize, found: &mut impl FnMut(Range<usize>, Rule)) {
    let bytes = text.as_bytes();
    // The second half of `::`, `==`, `:=`, `=>` belongs to the first.
    if at.checked_sub(1).is_some_and(|before| matches!(bytes[before], b':' | b'=')) {
        return;
    }
    if bytes.get(at..at + 2) == Some(b"::") {
        return;
    }
    let Some((name, before)) = name_before(text, at) else { return };
    let written = text.get(name.clone()).unwrap_or_default();
    let rule = names
        .rule(written)
        .or_else(|| names.rule(&unescaped(written)))
        .or_else(|| names.phrase(text.get(before?)?, written));
    let Some(rule) = rule else { return };
    let value = value_after(text, at, &name, rule == "cookie" || rule == "authorization");
    if let Some(value) = value
        && text.get(value.clone()).is_some_and(is_value)
    {
        found(value, rule);
    }
}

/// `%70assword` in a query is `password`.
fn unescaped(name: &str) -> String {
    if !name.contains('%') {
        return String::new();
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.get(..2).filter(|_| first == b'%').and_then(|hex| hex::decode(hex).ok());
        match code.as_deref() {
            Some([byte]) => {
                bytes.push(*byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '%' | '$' | '[' | ']' | '\u{200b}' | '\u{ad}')
}

/// The name before the separator at `at`, and the word before that when one space is between them.
fn name_before(text: &str, at: usize) -> Option<(Range<usize>, Option<Range<usize>>)> {
    let mut low = at.saturating_sub(NAME_BYTES_MAX);
    while !text.is_char_boundary(low) {
        low += 1;
    }
    let head = text.get(low..at)?;
    let around = |c: char| matches!(c, ' ' | '\t' | '"' | '\'' | '`' | '\\' | ')' | '!' | '+');
    let end = without_colour(head.trim_end_matches(around)).trim_end_matches(around);
    let start = end.trim_end_matches(is_name);
    if start.len() == end.len() {
        return None;
    }
    let name = low + start.len()..low + end.len();
    let first = start.strip_suffix(' ').map(|first| {
        let word = first.trim_end_matches(|c: char| c.is_ascii_alphanumeric());
        low + word.len()..low + first.len()
    });
    Some((name, first.filter(|first| !first.is_empty())))
}

/// Without the escape sequence of a terminal's colour at its end.
fn without_colour(mut text: &str) -> &str {
    while let Some(start) = text.rfind('\u{1b}') {
        let tail = text.get(start + 1..).unwrap_or_default();
        let colour = tail.strip_prefix('[').and_then(|tail| tail.strip_suffix('m'));
        if !colour.is_some_and(|codes| codes.bytes().all(|b| b.is_ascii_digit() || b == b';')) {
            return text;
        }
        text = text.get(..start).unwrap_or_default();
    }
    text
}

/// The value behind the separator at `at`.
fn value_after(text: &str, at: usize, name: &Range<usize>, header: bool) -> Option<Range<usize>> {
    let (mut start, mut quoted, mut lines) = (at, None, 0_u8);
    let mut escapes = 0;
    for (offset, c) in text.get(at..)?.char_indices() {
        start = at + offset;
        match c {
            ':' | '=' | '>' | '~' | ' ' | '\t' | '(' if quoted.is_none() => {}
            '\r' => {}
            '\n' if lines == 0 => lines = 1,
            '\\' => escapes += 1,
            '\u{1b}' => return value_after_colour(text, start),
            '"' | '\'' | '`' => {
                quoted = Some(c);
                start += 1;
                break;
            }
            _ => break,
        }
        start += c.len_utf8();
    }
    let rest = text.get(start..)?;
    // `://` is a URL, whose parts have rules of their own; so has the text behind it.
    if rest.starts_with("//") {
        return None;
    }
    let length = match quoted {
        Some(quote) => closing(rest, quote, escapes),
        None if header
            || (text.as_bytes().get(at) == Some(&b':') && lines == 0 && starts_line(text, name.start)) =>
        {
            rest.find(['\n', '\r']).unwrap_or(rest.len())
        }
        None => rest
            .find(|c: char| c.is_whitespace() || matches!(c, '&' | ';' | '"' | '\'' | '`'))
            .unwrap_or(rest.len()),
    };
    let value = rest.get(..length)?;
    let scheme = if header { scheme(value) } else { 0 };
    Some(start + scheme..start + length)
}

fn value_after_colour(text: &str, at: usize) -> Option<Range<usize>> {
    let mut start = at;
    while text.as_bytes().get(start) == Some(&0x1b) {
        start += text.get(start..)?.find('m')? + 1;
    }
    let rest = text.get(start..)?;
    let start = start + (rest.len() - rest.trim_start_matches(['"', '=']).len());
    let rest = text.get(start..)?;
    let length = rest.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\u{1b}')).unwrap_or(rest.len());
    Some(start..start + length)
}

/// The length up to the quote that ends the value: the one with as many backslashes before it as the first has.
fn closing(rest: &str, quote: char, escapes: usize) -> usize {
    let mut before = 0;
    for (at, c) in rest.char_indices() {
        if c == '\\' {
            before += 1;
        } else if c == quote && before <= escapes {
            return at - before;
        } else {
            before = 0;
        }
    }
    rest.len()
}

/// Whether only what marks a list, a quote or a log line's start stands before `at` on its line.
fn starts_line(text: &str, at: usize) -> bool {
    let head = text.get(..at).unwrap_or_default();
    let line = head.rsplit(['\n', '\r']).next().unwrap_or_default();
    line.bytes().all(|b| matches!(b, b' ' | b'\t' | b'-' | b'>' | b'<' | b'*' | b'#' | b'\'' | b'"'))
}

/// `Bearer `, `Basic `: what is secret comes behind, and is the same wherever it stands.
fn scheme(value: &str) -> usize {
    const SCHEMES: &[&str] = &["bearer", "basic", "token", "apikey", "negotiate"];
    let Some((word, _)) = value.split_once(' ') else { return 0 };
    if SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme)) { word.len() + 1 } else { 0 }
}

fn is_value(value: &str) -> bool {
    let bare = value.trim().trim_end_matches([',', ';', '.', ')', '}', ']', '|']);
    let blank =
        bare.chars().all(|c| matches!(c, '*' | '.' | 'x' | 'X' | '?' | '_' | '-' | '{' | '[' | '|' | '%'));
    let parameter = bare.strip_prefix('$').is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()));
    let environment = ["process.env.", "os.environ", "std::env::", "env::var", "import.meta.env."];
    !(blank
        || is_placeholder(value.trim().trim_end_matches([',', ';', '.', ')']))
        || parameter
        || bare == "%s"
        || NOT_VALUES.iter().any(|word| bare.eq_ignore_ascii_case(word))
        || environment.iter().any(|start| bare.starts_with(start)))
}

/// `${NAME}`, `{{ .Name }}`, `<name>`: where a value is to be put.
fn is_placeholder(value: &str) -> bool {
    let inside = |open: &str, close: &str, belongs: fn(char) -> bool| {
        let inside = value.strip_prefix(open).and_then(|value| value.strip_suffix(close));
        inside.is_some_and(|inside| inside.chars().all(belongs))
    };
    inside("${", "}", |c| c.is_ascii_alphanumeric() || c == '_')
        || inside("{{", "}}", |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ' ' | '$' | '-'))
        || inside("<", ">", |c| c.is_ascii_lowercase() || matches!(c, ' ' | '_' | '-'))
}

/// `--password hunter2`; with `=` it is a pair.
fn flag(names: &Names, text: &str, at: usize, found: &mut impl FnMut(Range<usize>, Rule)) {
    let Some(rest) = text.get(at + 2..) else { return };
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_')).unwrap_or(rest.len());
    let Some(name) = rest.get(..end.min(NAME_BYTES_MAX)) else { return };
    let Some(behind) = rest.get(end..).filter(|behind| behind.starts_with([' ', '\t'])) else { return };
    let value = behind.trim_start_matches([' ', '\t', '"', '\'']);
    let start = at + 2 + end + (behind.len() - value.len());
    let length = value.find(|c: char| c.is_whitespace() || c == '"' || c == '\'').unwrap_or(value.len());
    if value.starts_with('-') || name.is_empty() {
        return;
    }
    if let Some(rule) = names.rule(name)
        && value.get(..length).is_some_and(is_value)
    {
        found(start..start + length, rule);
    }
}

/// The password of a URL whose authority begins at `start`; a user alone when it looks like a token.
fn in_url(text: &str, start: usize, found: &mut impl FnMut(Range<usize>, Rule)) {
    let Some(rest) = text.get(start..) else { return };
    let end = rest
        .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`'))
        .unwrap_or(rest.len());
    let whole = rest.get(..end).unwrap_or_default();
    let authority = whole.split(['/', '?', '#']).next().unwrap_or_default();
    let rule = || Cow::Borrowed("url_password");
    if let Some((user_info, _)) = authority.rsplit_once('@') {
        match user_info.split_once(':') {
            Some((user, password)) if !password.is_empty() && is_value(password) => {
                let from = start + user.len() + 1;
                found(from..from + password.len(), rule());
            }
            None if user_info.len() >= 16 && user_info.bytes().any(|b| b.is_ascii_digit()) => {
                found(start..start + user_info.len(), rule());
            }
            Some(_) | None => {}
        }
        return;
    }
    // A password with `/`, `?` or `#` in it, which should have been escaped: `postgres://u:a/b@host/db`.
    let Some((user, behind)) = authority.split_once(':') else { return };
    let port = behind.is_empty() || behind.bytes().all(|b| b.is_ascii_digit());
    if port || user.starts_with('[') {
        return;
    }
    if let Some(at) = whole.rfind('@') {
        found(start + user.len() + 1..start + at, rule());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(text: &str) -> Vec<&str> {
        let mut found = Vec::new();
        find(&Names::default(), text, &mut |range, _| found.push(text.get(range).unwrap()));
        found
    }

    #[test]
    fn a_named_secret_is_found_with_its_whole_value() {
        for (text, expected) in [
            ("password=hunter2", "hunter2"),
            ("host=db Password = hunter2; x=1", "hunter2"),
            ("password: correct horse battery\nuser: ann", "correct horse battery"),
            ("  - api_key: 'ab cd'", "ab cd"),
            (r#"{"user":"a","password":"hun\"ter2","x":1}"#, r#"hun\"ter2"#),
            (r#"body: {\"password\":\"hunter2\",\"x\":1}"#, "hunter2"),
            ("the api key: k123 is bad", "k123"),
            ("Authorization: Digest username=a, nonce=b", "Digest username=a, nonce=b"),
            ("Authorization: Bearer abc.def", "abc.def"),
            ("Set-Cookie: sid=abc; Path=/", "sid=abc; Path=/"),
            ("curl --password hunter2 -v", "hunter2"),
            ("run --api-key=\"k 1\" now", "k 1"),
            ("DETAIL:  Key (password)=(hunter2) already exists.", "hunter2)"),
            ("https://h/cb?code=1&access_token=abc&x=2", "abc"),
            ("https://h/?%70assword=abc", "abc"),
            ("postgres://ann:hun:ter2@db:5432/x", "hun:ter2"),
            ("postgres://ann:a/b?c@db/x", "a/b?c"),
            ("https://x0123456789abcdef@github.com/o/r", "x0123456789abcdef"),
            ("<Password>hunter2</Password>", "hunter2"),
            ("name=\"password\"\r\n\r\nhunter2\r\n--b", "hunter2"),
            ("WHERE password = 'hunter2'", "hunter2"),
            ("password:\n  hunter2\n", "hunter2"),
            ("secret => 'x1'", "x1"),
            ("\u{1b}[3mtoken\u{1b}[0m\u{1b}[2m=\u{1b}[0mabc x", "abc"),
        ] {
            assert_eq!(secrets(text), [expected], "{text}");
        }
    }

    #[test]
    fn what_names_no_value_stays() {
        for text in [
            "password: string",
            "token: null",
            "let token = None;",
            "password=$1",
            "password=${PASSWORD}",
            "pass <password>",
            "std::token::Kind",
            "secret = ****",
            "http://localhost:8080/a@b",
            "mailto:a@b.c",
            "ssh://git@github.com/o/r",
            "max_tokens=4096",
            "secretary: Ann Lee",
            "see token_type=bearer",
            "https://h:443/x?y=1",
            "--token-count 5",
            "password = process.env.DB_PASSWORD",
        ] {
            assert_eq!(secrets(text), [""; 0], "{text}");
        }
    }
}
