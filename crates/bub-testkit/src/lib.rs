//! Test support shared by all crates; not part of the product.
//!
//! - [`Faults`] and [`FaultFs`]: a file system with injected failures, short and torn writes, a
//!   full disk, and crashes at a chosen step.
//! - [`needs_fixtures`] and [`fixtures`]: tests with data that is not in the repository.
//! - [`run_process`] and [`run_alone`]: simulated processes, and tests that need a separate process.
//! - [`bench_output`]: output format of benchmarks.
//! - [`gateway`]: a `bub gateway` in a process, a client of its webhook, and a server for callbacks.
//! - [`model`]: a scripted model server on loopback, for every wire format.
//! - [`picture`]: the picture of a session in the README.
//! - [`program`]: the built program, measured from outside.
//! - [`progress`]: a progress bar for long tests.
//! - [`pty`]: programs in a pseudo-terminal.
//! - [`sandbox`]: a temporary home and workspace, and programs that run in it.
//! - [`telegram`]: a Bot API server on loopback with simulated users, rate limits and faults.

pub mod bench_output;
mod environment;
mod fault_fs;
pub mod gateway;
mod loopback;
pub mod model;
pub mod picture;
pub mod program;
pub mod progress;
pub mod pty;
pub mod sandbox;
pub mod telegram;

pub use bub_testkit_macros::needs_fixtures;
pub use environment::{fixtures, has_fixtures, run_alone, run_process};
pub use fault_fs::{FaultFs, Faults, PowerLossEffect};

/// A PNG image of one black pixel.
pub const TINY_PNG: &[u8] =
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0:~\x9bU\0\0\0\nIDATx\x9cc`\0\
    \0\0\x02\0\x01H\xaf\xa4q\0\0\0\0IEND\xaeB`\x82";
