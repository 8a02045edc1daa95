//! See `annals::fuzzing::directory`. Logs are written below the system's place for temporary files (`TMPDIR`), which is
//! best in memory: each input is written, synced and read.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

static DIR: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("annals-fuzz-{}", std::process::id())));

libfuzzer_sys::fuzz_target!(|input: &[u8]| annals::fuzzing::directory(&DIR, input));
