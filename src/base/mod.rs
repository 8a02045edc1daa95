//! What every module may use: time, ids, supervised tasks and the closed set of error categories.
//!
//! Nothing in here knows of events, HTTP, Postgres or the log.

mod category;
mod clock;
pub mod planted;
mod tasks;
mod trace;

pub use category::Category;
pub use clock::{Clock, SystemClock, Timestamp, TimestampError};
pub use tasks::Tasks;
pub use trace::TraceParent;

use std::borrow::Cow;

use sha2::{Digest, Sha256};
use uuid::{NoContext, Uuid};

/// SHA-256 of `bytes`.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// SHA-256 of `bytes` as 64 lower-case hexadecimal digits.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(sha256(bytes))
}

/// A UUID version 7: sortable by the millisecond of `at`, the rest random.
#[must_use]
pub fn uuid_v7(at: Timestamp) -> Uuid {
    let micros = at.as_micros().max(0).unsigned_abs();
    let nanos = u32::try_from(micros % 1_000_000).expect("a remainder below one million fits u32") * 1_000;
    Uuid::new_v7(uuid::Timestamp::from_unix(NoContext, micros / 1_000_000, nanos))
}

/// `N` bytes from the operating system's random source.
///
/// # Panics
/// When the operating system has no randomness to give: nothing that needs a secret may go on then.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives randomness");
    bytes
}

/// At most `bytes_max` bytes of `text`, cut at a character boundary.
#[must_use]
pub fn clip(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    let end = (0..=bytes_max).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

/// `text` where it has at most `bytes_max` bytes, else only how many it has: for texts that quote what a caller wrote.
/// Half of a secret is found by no rule of redaction, so nothing is quoted in part.
#[must_use]
pub fn whole(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max { Cow::Borrowed(text) } else { Cow::Owned(format!("({} bytes)", text.len())) }
}

/// At most `bytes_max` bytes of `text`, cut where white space is, for the same reason.
#[must_use]
pub fn clip_words(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    let cut = clip(text, bytes_max);
    cut.rfind(char::is_whitespace).and_then(|end| cut.get(..end)).unwrap_or_default()
}

/// The one of `names` that is most like `name`, when one is like it at all.
#[must_use]
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    names
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clip_keeps_whole_characters() {
        assert_eq!(clip("héllo", 2), "h");
        assert_eq!(clip("héllo", 3), "hé");
        assert_eq!(clip("abc", 9), "abc");
        assert_eq!((&*whole("abc", 3), &*whole("abcd", 3)), ("abc", "(4 bytes)"));
        let cut = |text| clip_words(text, 7);
        assert_eq!((cut("a b"), cut("a bc defg"), cut("abcdefgh")), ("a b", "a bc", ""));
    }

    #[test]
    fn v7_ids_carry_the_given_millisecond() {
        let id = uuid_v7(Timestamp::from_micros(1_700_000_000_123_456));
        let (seconds, nanos) = id.get_timestamp().unwrap().to_unix();
        assert_eq!((id.get_version_num(), seconds, nanos / 1_000_000), (7, 1_700_000_000, 123));
    }
}
