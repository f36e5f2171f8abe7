//! See `src/answer_body.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tandem_fuzz::answer_body::check(data));
