//! Test support shared by all crates; not part of the product.
//!
//! - [`Faults`] and [`FaultFs`]: a file system with injected failures, short and torn writes, a
//!   full disk, and crashes at a chosen step.
//! - [`fixtures`] and [`run_process`]: fixture data, and simulated processes.
//! - [`bench_output`]: output format of benchmarks.
//! - [`run_fixture_tests`]: tests with data that is not in the repository.
//! - [`model`]: a scripted model server on loopback, for every wire format.
//! - [`picture`]: the picture of a session in the README.
//! - [`program`]: the built program, measured from outside.
//! - [`pty`]: programs in a pseudo-terminal.
//! - [`telegram`]: a Bot API server on loopback with simulated users, rate limits and faults.

pub mod bench_output;
mod environment;
mod fault_fs;
mod fixtures;
mod loopback;
pub mod model;
pub mod picture;
pub mod program;
pub mod pty;
pub mod telegram;

pub use environment::{fixtures, run_process};
pub use fault_fs::{FaultFs, Faults, PowerLossEffect};
pub use fixtures::{FixtureTest, run_fixture_tests};
