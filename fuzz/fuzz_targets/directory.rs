//! See `annals::fuzzing::directory`.
#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// In memory where the system has such a place, for each input is written, synced and read.
static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let dir = tempfile::Builder::new().prefix("annals-fuzz-").tempdir_in(parent).expect("a temporary directory");
    dir.keep()
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| annals::fuzzing::directory(&DIR.join("log"), input));
