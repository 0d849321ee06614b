//! Attempts to leave the confinement, with real processes, as the current user and, if that is root, as another user.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod escapes;
mod harness;
mod planted;
mod repositories;
mod work;
mod workspace;
