//! See `src/replay_answer.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tandem_fuzz::replay_answer::check(data));
