//! Test support shared by every crate: not part of the product.
//!
//! - [`Faults`] and [`FaultFs`]: files that fail, write short or torn, run out of space, or die at a chosen step.

mod files;

pub use files::{FaultFs, Faults};
