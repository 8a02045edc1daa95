//! See `annals::fuzzing::event_body`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| annals::fuzzing::event_body(input));
