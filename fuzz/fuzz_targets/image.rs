//! Tries any bytes on `checks/image.rs`.
#![no_main]

#[path = "../checks/image.rs"]
mod image;

libfuzzer_sys::fuzz_target!(|input: &[u8]| image::check(input));
