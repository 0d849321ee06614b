//! Tries any bytes on `checks/telegram_inbound.rs`.
#![no_main]

#[path = "../checks/telegram_inbound.rs"]
mod telegram_inbound;

libfuzzer_sys::fuzz_target!(|input: &[u8]| telegram_inbound::check(input));
