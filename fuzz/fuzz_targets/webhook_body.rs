//! Tries any bytes on `checks/webhook_body.rs`.
#![no_main]

#[path = "../checks/webhook_body.rs"]
mod webhook_body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| webhook_body::check(input));
