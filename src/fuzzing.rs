//! What must hold for any bytes, as functions that the fuzz targets in `fuzz/` and the ordinary tests call. Each one
//! panics when it does not hold. No part of the program: behind the feature `fuzzing`.

use sha2::{Digest, Sha256};

use crate::event::{Decoded, Topic};

pub use crate::log::embedded::fuzzing::{directory, segment, small_file};
pub use crate::mcp::read_any as message;

/// The body of an event, behind a byte that chooses its topic. What can be read commits to the personal part that it has.
pub fn event_body(input: &[u8]) {
    let Some((&topic, body)) = input.split_first() else { return };
    let topic = Topic::ALL[usize::from(topic) % Topic::ALL.len()];
    let Ok(decoded) = Decoded::read(topic, body) else { return };
    assert_eq!(decoded.kind.topic(), topic);
    let token = body.get(decoded.token).expect("the token lies in the body");
    let text: String = serde_json::from_slice(token).expect("the token is a JSON string");
    assert_eq!(hex::encode(Sha256::digest(text.as_bytes())), decoded.common.personal_sha256);
    if decoded.version < decoded.kind.version() {
        return;
    }
    assert_eq!(decoded.personal.is_some(), serde_json::from_str::<crate::event::Personal>(&text).is_ok());
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        let entries = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let paths = entries.map(|entry| entry.unwrap().path());
        let inputs: Vec<_> = paths.map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect();
        assert!(inputs.len() >= 5, "{} has only {} inputs", dir.display(), inputs.len());
        inputs
    }

    /// Every input as it is, cut at some places and with some bits flipped: what a short fuzz run begins with.
    fn each(target: &str, check: impl Fn(&[u8])) {
        for (path, input) in inputs(target) {
            let run = |input: &[u8], what: &str| {
                let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(input)));
                assert!(held.is_ok(), "{}, {what}: {}", path.display(), hex::encode(input));
            };
            run(&input, "as it is");
            for cut in (0..input.len()).step_by(input.len() / 8 + 1) {
                run(&input[..cut], "cut");
                let mut flipped = input.clone();
                flipped[cut] ^= 1 << (cut % 8);
                run(&flipped, "with a flipped bit");
            }
        }
    }

    #[test]
    fn the_corpus_of_segments_holds() {
        each("segment", super::segment);
    }

    #[test]
    fn the_corpus_of_directories_holds() {
        let dir = tempfile::tempdir().unwrap();
        each("directory", |input| super::directory(&dir.path().join("log"), input));
    }

    #[test]
    fn the_corpus_of_small_files_holds() {
        each("small_file", super::small_file);
    }

    #[test]
    fn the_corpus_of_event_bodies_holds() {
        each("event_body", super::event_body);
    }

    #[test]
    fn the_corpus_of_messages_holds() {
        each("message", super::message);
    }
}
