//! Test support shared by every crate: not part of the product.
//!
//! - [`Faults`] and [`FaultFs`]: files that fail, write short or torn, run out of space, or die at a chosen step.
//! - [`bench_output`]: what benches found, said in one format.
//! - [`model`]: a scripted model server on loopback, for every wire format.
//! - [`picture`]: the picture of a session in the README.
//! - [`program`]: the built program, measured from outside.
//! - [`pty`]: programs in a pseudo-terminal.
//! - [`telegram`]: a Bot API server on loopback, with users who write, limits that hold, and faults.

pub mod bench_output;
mod fault_fs;
mod loopback;
pub mod model;
pub mod picture;
pub mod program;
pub mod pty;
pub mod telegram;

pub use fault_fs::{FaultFs, Faults, PowerLossEffect};
