//! Tries any bytes on `checks/config_edit.rs`.
#![no_main]

#[path = "../checks/config_edit.rs"]
mod config_edit;

libfuzzer_sys::fuzz_target!(|input: &[u8]| config_edit::check(input));
