//! The tools of the builtin plugin, one file for each family.

mod bash;

pub use bash::{bash, bash_kill, bash_output};
