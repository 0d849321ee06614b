//! Tries any bytes on `checks/skill_file.rs`.
#![no_main]

#[path = "../checks/skill_file.rs"]
mod skill_file;

libfuzzer_sys::fuzz_target!(|input: &[u8]| skill_file::check(input));
