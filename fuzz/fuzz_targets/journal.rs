//! Tries any bytes on `checks/journal.rs`.
#![no_main]

#[path = "../checks/journal.rs"]
mod journal;

libfuzzer_sys::fuzz_target!(|input: &[u8]| journal::check(input));
