//! Tries any bytes on `checks/web_page.rs`.
#![no_main]

#[path = "../checks/web_page.rs"]
mod web_page;

libfuzzer_sys::fuzz_target!(|input: &[u8]| web_page::check(input));
