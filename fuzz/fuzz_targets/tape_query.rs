//! Tries any bytes on `checks/tape_query.rs`.
#![no_main]

#[path = "../checks/tape_query.rs"]
mod tape_query;

libfuzzer_sys::fuzz_target!(|input: &[u8]| tape_query::check(input));
