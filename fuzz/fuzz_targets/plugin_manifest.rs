//! Tries any bytes on `checks/plugin_manifest.rs`.
#![no_main]

#[path = "../checks/plugin_manifest.rs"]
mod plugin_manifest;

libfuzzer_sys::fuzz_target!(|input: &[u8]| plugin_manifest::check(input));
