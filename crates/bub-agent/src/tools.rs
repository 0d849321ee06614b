//! The tools of the builtin plugin, one file for each family, and how tools are shown and found (`names`).

mod bash;
mod fs;
mod help;
mod names;
mod skill;
mod tape;

pub use bash::{bash, bash_kill, bash_output};
pub use fs::{Files, fs_edit, fs_read, fs_write, resolve as resolve_path};
pub use help::{help, usage};
pub use names::{block, find, resolve};
pub use skill::skill;
pub use tape::{tape_anchors, tape_info, tape_search};
