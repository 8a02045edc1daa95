//! See `annals::fuzzing::message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| annals::fuzzing::message(input));
