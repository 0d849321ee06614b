//! Tries any bytes on `checks/wire_decode.rs`.
#![no_main]

#[path = "../checks/wire_decode.rs"]
mod wire_decode;

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire_decode::check(input));
