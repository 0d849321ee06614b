//! Tries any bytes on `checks/search_text.rs`.
#![no_main]

#[path = "../checks/search_text.rs"]
mod search_text;

libfuzzer_sys::fuzz_target!(|input: &[u8]| search_text::check(input));
