//! The builtin part of the system prompt: default instructions, then the workspace's `AGENTS.md`.

use std::{fs::File, io::Read, path::Path};

use bub_kernel::State;
use serde_json::Value;

/// The file in which a workspace tells agents about itself.
const WORKSPACE_FILE: &str = "AGENTS.md";

/// More than this is no note but a mistake.
const MOST_BYTES: u64 = 256 * 1024;

const INSTRUCTIONS: &str = "\
<general_instruction>
You are an agent at work in a real workspace, for the person who writes to you. Look before you act, prefer small \
reversible steps, and say plainly what you did, what you did not do and what went wrong. Use the tools you are given; \
do not claim to have done what no tool result shows.
</general_instruction>
<response_instruction>
The line before a message tells where it comes from; `channel=$name` is the channel. Decide first whether a reply is \
wanted. Your final text is delivered to that channel unless the channel's skill says that you must send it yourself. \
An empty final text sends nothing.
</response_instruction>
<context_contract>
What you see is a view of an append-only tape that starts at its latest anchor. When it grows long, look at it with the \
tape tools and hand off: write an anchor whose summary holds all that the next phase needs.
</context_contract>";

/// The fragment for a turn. A missing or unreadable workspace file is left out.
pub(crate) fn build(state: &State) -> String {
    let workspace =
        state.with("_runtime_workspace", |value| value.and_then(Value::as_str).map(str::to_owned));
    let notes = workspace.map(|workspace| workspace_notes(Path::new(&workspace))).unwrap_or_default();
    if notes.is_empty() { INSTRUCTIONS.to_owned() } else { format!("{INSTRUCTIONS}\n\n{notes}") }
}

fn workspace_notes(workspace: &Path) -> String {
    let mut bytes = Vec::new();
    match open_notes(&workspace.join(WORKSPACE_FILE))
        .map(|file| file.take(MOST_BYTES).read_to_end(&mut bytes))
    {
        Some(Ok(_)) => String::from_utf8_lossy(&bytes).trim().to_owned(),
        Some(Err(_)) | None => String::new(),
    }
}

/// Opens the file if it is one: a workspace may come from anywhere, and a pipe or a device has no end.
fn open_notes(path: &Path) -> Option<File> {
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    if is_file { File::open(path).ok() } else { None }
}
