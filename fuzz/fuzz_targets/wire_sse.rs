//! Tries any bytes on `checks/wire_sse.rs`.
#![no_main]

#[path = "../checks/wire_sse.rs"]
mod wire_sse;

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire_sse::check(input));
