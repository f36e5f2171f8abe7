//! See `src/prompt_render.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tandem_fuzz::prompt_render::check(data));
