//! See `src/kv_batch.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tandem_fuzz::kv_batch::check(data));
