//! The builtin part of the system prompt: default instructions, then the `AGENTS.md` of the workspace and of the session.

use std::{
    fmt::Write,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Once,
};

use bub_kernel::State;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The file in which a workspace tells agents about itself, and a person about one session.
const AGENTS_FILE: &str = "AGENTS.md";

/// More than this is no note but a mistake.
const MAX_NOTES_BYTES: u64 = 256 * 1024;

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

/// Longer names of directories are cut, with a hash of the whole behind them.
const MAX_DIR_NAME_BYTES: usize = 120;

/// The fragment for a turn: the instructions, the workspace's notes and those of the session. A file that is missing or
/// cannot be read is left out.
pub(crate) fn build(state: &State, home: &Path) -> String {
    let text = |name| {
        state.with(name, |value: Option<&Value>| {
            value.and_then(Value::as_str).map(str::to_owned)
        })
    };
    let workspace =
        text("_runtime_workspace").and_then(|workspace| workspace_file(Path::new(&workspace)));
    let session = text("session_id").and_then(|session| session_file(home, &session));
    let mut fragment = INSTRUCTIONS.to_owned();
    for notes in workspace
        .into_iter()
        .chain(session)
        .map(|file| notes(&file))
        .filter(|notes| !notes.is_empty())
    {
        fragment.push_str("\n\n");
        fragment.push_str(&notes);
    }
    fragment
}

/// The notes of a workspace. It may come from anywhere: a link in it must not lead to files of its owner, which would
/// then be read to the model.
fn workspace_file(workspace: &Path) -> Option<PathBuf> {
    static WARNED: Once = Once::new();
    let found = workspace.join(AGENTS_FILE).canonicalize().ok()?;
    if workspace
        .canonicalize()
        .is_ok_and(|workspace| found.starts_with(workspace))
    {
        return Some(found);
    }
    let file = workspace.join(AGENTS_FILE);
    WARNED.call_once(|| {
        tracing::warn!(
            file = %file.display(),
            error = "the link links to a file outside the workspace",
            "prompt.file_not_read"
        );
    });
    None
}

/// The file with the instructions for one session, whether it is there or not.
pub(crate) fn session_file(home: &Path, session_id: &str) -> Option<PathBuf> {
    (!session_id.is_empty()).then(|| {
        home.join("sessions")
            .join(directory_name(session_id))
            .join(AGENTS_FILE)
    })
}

/// A session id as the name of a directory: no two ids share one, also where case does not count, and none leads
/// elsewhere. Small letters, digits, `-` and `_` stand for themselves, any other byte as `%3a`.
fn directory_name(session_id: &str) -> String {
    let mut name = String::with_capacity(session_id.len());
    for byte in session_id.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            _ => {
                let _ = write!(name, "%{byte:02x}");
            }
        }
    }
    if name.len() > MAX_DIR_NAME_BYTES {
        name.truncate(MAX_DIR_NAME_BYTES / 2);
        // No byte is written like this, so no short id has such a name.
        let _ = write!(name, "%h{:x}", Sha256::digest(session_id));
    }
    name
}

fn notes(file: &Path) -> String {
    let mut bytes = Vec::new();
    match open_notes(file).map(|file| file.take(MAX_NOTES_BYTES).read_to_end(&mut bytes)) {
        Some(Ok(_)) => String::from_utf8_lossy(&bytes).trim().to_owned(),
        Some(Err(_)) | None => String::new(),
    }
}

/// Opens the file if it is one: a workspace may come from anywhere, and a pipe or a device has no end.
fn open_notes(path: &Path) -> Option<File> {
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    if is_file { File::open(path).ok() } else { None }
}
