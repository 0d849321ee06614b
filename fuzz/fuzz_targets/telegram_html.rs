//! Tries any bytes on `checks/telegram_html.rs`.
#![no_main]

#[path = "../checks/telegram_html.rs"]
mod telegram_html;

libfuzzer_sys::fuzz_target!(|input: &[u8]| telegram_html::check(input));
