//! Tries any bytes on `checks/plugin_line.rs`.
#![no_main]

#[path = "../checks/plugin_line.rs"]
mod plugin_line;

libfuzzer_sys::fuzz_target!(|input: &[u8]| plugin_line::check(input));
