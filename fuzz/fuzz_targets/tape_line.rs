//! Tries any bytes on `checks/tape_line.rs`.
#![no_main]

#[path = "../checks/tape_line.rs"]
mod tape_line;

libfuzzer_sys::fuzz_target!(|input: &[u8]| tape_line::check(input));
