//! See `annals::fuzzing::small_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| annals::fuzzing::small_file(input));
