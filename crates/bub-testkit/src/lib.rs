//! Test support shared by every crate.
