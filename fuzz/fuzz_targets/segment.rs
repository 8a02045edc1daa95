//! See `annals::fuzzing::segment`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| annals::fuzzing::segment(input));
