//! Plugins in other processes, through the kernel.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

mod conformance;
mod world;
