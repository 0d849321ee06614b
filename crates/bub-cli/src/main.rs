//! The `bub` program, without further plugins.

use std::process::ExitCode;

/// A busy gateway spends a third of its time in the allocator of the C library: many small things are made on one thread
/// and dropped on another. With this one a message costs two fifths less, and the most memory used is a fifth less; a
/// program that links musl, whose allocator has one lock, gains most. It adds a little to the memory of an idle process,
/// which the budgets watch. Programs built on the library choose for themselves.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    bub_cli::app().main()
}
