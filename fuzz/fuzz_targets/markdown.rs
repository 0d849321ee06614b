//! Tries any bytes on `checks/markdown.rs`.
#![no_main]

#[path = "../checks/markdown.rs"]
mod markdown;

libfuzzer_sys::fuzz_target!(|input: &[u8]| markdown::check(input));
