//! Texts that stand inside a text in another form: percent-encoded, escaped, in base64 or hexadecimal, split over lines.
//!
//! Decodes and says where each decoded byte came from; what is secret is decided by the rules for texts.

use std::ops::Range;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Steps of a path that are looked into.
const PATH_STEPS_MAX: usize = 16;
/// The shortest run of base64 that is decoded.
const BASE64_BYTES_MIN: usize = 12;
const HEX_BYTES_MIN: usize = 16;

/// What is in the run's last bits does not matter to a reader.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

/// A decoded text.
pub(super) struct Decoded {
    pub(super) text: String,
    /// Where each byte of `text` came from, and, last, where the text ends.
    at: Vec<usize>,
}

impl Decoded {
    /// What `range` of the decoded text was before.
    pub(super) fn origin(&self, range: &Range<usize>) -> Range<usize> {
        let at = |index: usize| self.at.get(index).copied().unwrap_or_default();
        at(range.start)..at(range.end)
    }

    fn collect(pieces: impl Iterator<Item = (usize, char)>, end: usize) -> Self {
        let mut decoded = Self { text: String::new(), at: Vec::new() };
        for (at, c) in pieces {
            decoded.text.push(c);
            decoded.at.resize(decoded.text.len(), at);
        }
        decoded.at.push(end);
        decoded
    }
}

/// `text` with its percent escapes decoded; none when it has none.
pub(super) fn percent(text: &str) -> Option<Decoded> {
    let bytes = text.as_bytes();
    let code = |at: usize| {
        let pair = bytes.get(at..at + 3).filter(|pair| pair[0] == b'%')?;
        hex::decode(&pair[1..]).ok()?.first().copied()
    };
    if !bytes.iter().enumerate().any(|(at, b)| *b == b'%' && code(at).is_some()) {
        return None;
    }
    let (mut raw, mut places, mut at) = (Vec::with_capacity(bytes.len()), Vec::new(), 0);
    while let Some(&byte) = bytes.get(at) {
        places.push(at);
        if let Some(code) = code(at) {
            raw.push(code);
            at += 3;
        } else {
            raw.push(byte);
            at += 1;
        }
    }
    Some(lossy(&raw, &places, bytes.len()))
}

/// Bytes as text; what is no UTF-8 becomes a mark that no rule fits.
fn lossy(raw: &[u8], places: &[usize], end: usize) -> Decoded {
    let mut decoded = Decoded { text: String::new(), at: Vec::new() };
    let mut index = 0;
    for chunk in raw.utf8_chunks() {
        decoded.text.push_str(chunk.valid());
        decoded.at.extend(&places[index..index + chunk.valid().len()]);
        index += chunk.valid().len();
        if !chunk.invalid().is_empty() {
            decoded.text.push('\u{fffd}');
            decoded.at.resize(decoded.text.len(), places[index]);
            index += chunk.invalid().len();
        }
    }
    decoded.at.push(end);
    decoded
}

/// `text` with `\u0041`, `\x41`, `\n`, `\"` and `\\` decoded; none when it has none.
pub(super) fn escapes(text: &str) -> Option<Decoded> {
    if !text.contains('\\') {
        return None;
    }
    let mut pieces = Vec::new();
    let mut rest = text.char_indices();
    while let Some((at, c)) = rest.next() {
        if c != '\\' {
            pieces.push((at, c));
            continue;
        }
        let behind = rest.as_str();
        let (decoded, taken) = match behind.chars().next() {
            Some('u') => code(behind, 4),
            Some('x') => code(behind, 2),
            Some('n' | 'r') => (Some('\n'), 1),
            Some('t') => (Some('\t'), 1),
            Some(c @ ('"' | '\'' | '\\' | '/')) => (Some(c), 1),
            _ => (None, 0),
        };
        pieces.push((at, decoded.unwrap_or(c)));
        for _ in 0..taken {
            rest.next();
        }
    }
    Some(Decoded::collect(pieces.into_iter(), text.len()))
}

fn code(behind: &str, digits: usize) -> (Option<char>, usize) {
    let code = behind.get(1..=digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    code.map_or((None, 0), |code| (Some(char::from_u32(code).unwrap_or('\u{fffd}')), digits + 1))
}

/// `text` with its line breaks taken out, and the space that indents what follows; none when it has none.
pub(super) fn one_line(text: &str) -> Option<Decoded> {
    if !text.trim().contains('\n') {
        return None;
    }
    let mut indent = false;
    let kept = text.char_indices().filter(|(_, c)| {
        indent = matches!(c, '\n' | '\r') || (indent && matches!(c, ' ' | '\t'));
        !indent
    });
    Some(Decoded::collect(kept.collect::<Vec<_>>().into_iter(), text.len()))
}

/// Whether a range of a text crosses a line break.
pub(super) fn crosses_lines(text: &str, range: &Range<usize>) -> bool {
    text.get(range.clone()).is_some_and(|part| part.contains('\n'))
}

const fn in_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}

/// The runs of base64 in `text`, decoded: each line of one, and, when `wrapped`, lines that follow each other as one.
pub(super) fn base64(text: &str, wrapped: bool) -> Vec<(Range<usize>, String)> {
    let mut found = Vec::new();
    let mut group: Vec<Range<usize>> = Vec::new();
    for run in runs(text.as_bytes(), in_base64) {
        let follows = group.last().is_some_and(|last| {
            let between = text.get(last.end..run.start).unwrap_or_default();
            between.contains('\n') && between.chars().all(|c| c.is_ascii_whitespace() || c == '=')
        });
        if !follows {
            joined(text, &group, wrapped, &mut found);
            group.clear();
        }
        group.push(run);
    }
    joined(text, &group, wrapped, &mut found);
    found
}

fn joined(text: &str, group: &[Range<usize>], wrapped: bool, found: &mut Vec<(Range<usize>, String)>) {
    let part = |range: &Range<usize>| text.get(range.clone()).unwrap_or_default();
    for run in group.iter().filter(|run| run.len() >= BASE64_BYTES_MIN) {
        found.extend(decoded_steps(text, run));
    }
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
    if !wrapped || group.len() < 2 {
        return;
    }
    let all: String = group.iter().map(part).collect();
    // Words before it on lines of their own move where its groups of four begin.
    for skip in 0..4 {
        found.extend(all.get(skip..).and_then(decode).map(|decoded| (first.start..last.end, decoded)));
    }
}

/// `run` decoded as a whole, and from each of its slashes on to the next one and to its end: a slash is a digit of base64 and
/// the end of a step in a path, too.
fn decoded_steps(text: &str, run: &Range<usize>) -> Vec<(Range<usize>, String)> {
    let whole = text.get(run.clone()).unwrap_or_default();
    let behind_slashes = whole.match_indices('/').map(|(slash, _)| run.start + slash + 1);
    let starts = std::iter::once(run.start).chain(behind_slashes.take(PATH_STEPS_MAX));
    let ranges = starts.flat_map(|start| {
        let step = text.get(start..run.end).and_then(|rest| rest.find('/'));
        [Some(start..run.end), step.map(|length| start..start + length)].into_iter().flatten()
    });
    ranges
        .filter(|range| range.len() >= BASE64_BYTES_MIN)
        .filter_map(|range| Some((range.clone(), decode(text.get(range)?)?)))
        .collect()
}

fn decode(run: &str) -> Option<String> {
    let mut standard = run.replace('-', "+").replace('_', "/");
    if standard.len() % 4 == 1 {
        standard.pop();
    }
    let bytes = LENIENT.decode(standard).ok()?;
    let readable = bytes.iter().filter(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()).count();
    // A hash or a picture is not text; a text with some words around it still is.
    (readable * 3 >= bytes.len() * 2).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The runs of hexadecimal digits in `text`, decoded.
pub(super) fn hexadecimal(text: &str) -> Vec<(Range<usize>, String)> {
    let decoded = runs(text.as_bytes(), |b| b.is_ascii_hexdigit()).into_iter().filter_map(|run| {
        let digits =
            text.get(run.clone()).filter(|digits| digits.len() >= HEX_BYTES_MIN && digits.len() % 2 == 0)?;
        Some((run, String::from_utf8(hex::decode(digits).ok()?).ok()?))
    });
    decoded.collect()
}

fn runs(bytes: &[u8], belongs: impl Fn(u8) -> bool) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut start = None;
    for (at, &byte) in bytes.iter().chain([&b'\0']).enumerate() {
        match (belongs(byte), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                runs.push(from..at);
                start = None;
            }
            _ => {}
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_decoded_with_its_places() {
        let text = "a%20b%C3%A9%zz";
        let decoded = percent(text).unwrap();
        assert_eq!(decoded.text, "a bé%zz");
        assert_eq!(text.get(decoded.origin(&(1..5))), Some("%20b%C3%A9"));
        let text = r"\u0061\x62\nc\q";
        let decoded = escapes(text).unwrap();
        assert_eq!(decoded.text, "ab\nc\\q");
        assert_eq!(text.get(decoded.origin(&(0..2))), Some(r"\u0061\x62"));
        let text = "ab\r\n  cd e";
        let decoded = one_line(text).unwrap();
        assert_eq!(decoded.text, "abcd e");
        assert_eq!(text.get(decoded.origin(&(1..3))), Some("b\r\n  c"));
        assert!(percent("100%").is_none() && escapes("a/b").is_none() && one_line("a\n").is_none());
    }

    #[test]
    fn base64_is_decoded_whole_and_over_lines() {
        let found = base64("x aGVsbG8gd29ybGQ= y", true);
        assert_eq!(found, [(2..17, "hello world".into())]);
        let text = "key\naGVsbG8g\nd29ybGQ=\nend";
        assert!(base64(text, true).iter().any(|(_, decoded)| decoded.contains("hello world")));
        assert!(base64(text, false).is_empty());
        assert!(base64("d0f631ca1ddba8db3bcfcb9e057cdc98d0379f1bee00e75a545147a27dadd982", true).is_empty());
        assert_eq!(hexadecimal("x68656c6c6f20776f726c64 "), [(1..23, "hello world".into())]);
    }
}
