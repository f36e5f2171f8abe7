//! See `src/mooncake_event.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tandem_fuzz::mooncake_event::check(data));
