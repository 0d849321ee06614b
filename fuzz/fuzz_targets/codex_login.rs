//! Tries any bytes on `checks/codex_login.rs`.
#![no_main]

#[path = "../checks/codex_login.rs"]
mod codex_login;

libfuzzer_sys::fuzz_target!(|input: &[u8]| codex_login::check(input));
