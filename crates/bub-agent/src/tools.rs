//! The tools of the builtin plugin, one file for each family, and how tools are shown and found (`names`).

mod bash;
mod fs;
mod help;
mod names;
mod session;
mod skill;
mod spill;
mod subagent;
mod tape;
mod web;

use bub_kernel::PluginContext;

pub use bash::{bash, bash_kill, bash_output};
pub use fs::{Files, fs_edit, fs_read, fs_write, resolve as resolve_path};
pub use help::{help, usage};
pub use names::{block, find, resolve};
pub use skill::skill;
pub use tape::{tape_anchors, tape_info, tape_search};
pub use web::web_fetch;

/// Registers the builtin tools. The model sees them in this order.
pub(crate) fn register(context: &PluginContext<'_>) {
    context.add_tool(spill::spill_read());
    context.add_tool(bash());
    context.add_tool(bash_output());
    context.add_tool(bash_kill());
    context.add_tool(fs_read());
    context.add_tool(fs_write());
    context.add_tool(fs_edit());
    context.add_tool(skill());
    context.add_tool(tape_info());
    context.add_tool(tape_search());
    context.add_tool(session::tape_reset());
    context.add_tool(session::tape_handoff());
    context.add_tool(tape_anchors());
    context.add_tool(web_fetch());
    context.add_tool(subagent::SubagentTool::default());
    context.add_tool(help());
    context.add_tool(session::quit());
    context.add_tool(session::model());
    context.add_tool(session::reasoning_effort());
    context.add_tool(session::new());
    context.add_tool(session::sessions());
    context.add_tool(session::resume());
}
