//! See `src/trace_reader.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tandem_fuzz::trace_reader::check(data));
