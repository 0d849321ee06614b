//! Tests of the builtin plugin in a framework.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod approvals;
mod attachments;
mod bash;
mod code_mode;
mod command;
mod defaults;
mod deferred_tools;
mod fs_access;
mod fs_search;
mod fs_tools;
mod handoff;
mod handoff_recall;
mod harness;
mod injections;
mod memory;
mod model;
mod policy;
mod prompt;
mod python_requests;
mod python_sessions;
mod recording;
mod sandbox;
mod session_notes;
mod shell;
mod skills;
mod skills_fixtures;
mod skills_secrets;
mod tape_tools;
mod tool_block;
mod turn_commands;
mod turn_context;
mod turn_crash;
mod turn_loop;
mod turn_replaced;
mod turn_subagent;
mod usage;
