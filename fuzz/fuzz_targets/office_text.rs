//! Tries any bytes on `checks/office_text.rs`.
#![no_main]

#[path = "../checks/office_text.rs"]
mod office_text;

libfuzzer_sys::fuzz_target!(|input: &[u8]| office_text::check(input));
