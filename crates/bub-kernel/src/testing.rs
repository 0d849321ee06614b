//! A fake channel and captured logs, for the tests of this crate and of crates that use it. The feature `testing` enables
//! this module.
#![expect(
    clippy::unwrap_used,
    reason = "a test stops at the first surprise; test code for other crates"
)]

mod channel;
mod log;

pub use channel::{FakeChannel, SentReply};
pub use log::LogCapture;
