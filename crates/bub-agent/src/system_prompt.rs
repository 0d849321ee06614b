//! The builtin part of the system prompt: default instructions, then `AGENTS.md` of the workspace and of the session.

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

/// The file with instructions for agents, in a workspace or in the directory of a session.
const AGENTS_FILE: &str = "AGENTS.md";

/// Maximum bytes read from `AGENTS.md`; the rest is ignored.
const MAX_AGENTS_FILE_BYTES: u64 = 256 * 1024;

const INSTRUCTIONS: &str = "\
<general_instruction>
You are an agent that works in a real workspace for the user who writes to you. Inspect before you act, prefer small \
reversible steps, and say plainly what you did, what you did not do and what went wrong. Use the tools you are given; \
do not claim to have done anything that no tool result shows.
</general_instruction>
<response_instruction>
The line before a message says where it comes from; `channel=$name` is the channel. First decide whether a reply is \
needed. Your final text is delivered to that channel unless the channel's skill says that you must send it yourself. \
An empty final text sends nothing.
</response_instruction>
<context_contract>
You see a view of an append-only tape, starting at its latest anchor. When it grows long, inspect it with the tape \
tools and hand off: write an anchor with a summary of everything that you need after it.
</context_contract>";

/// Maximum length of a directory name. A longer name is truncated and gets a hash of the session id.
const MAX_DIR_NAME_BYTES: usize = 120;

/// Returns the builtin part of the system prompt: the default instructions, then `AGENTS.md` of the workspace and of the
/// session. Skips files that are missing or cannot be read.
pub(crate) fn build_fragment(state: &State, home: &Path) -> String {
    let text = |name| {
        state.with_value(name, |value: Option<&Value>| {
            value.and_then(Value::as_str).map(str::to_owned)
        })
    };
    let workspace = text("_runtime_workspace")
        .and_then(|workspace| workspace_agents_file(Path::new(&workspace)));
    let session = text("session_id").and_then(|session| session_agents_file(home, &session));
    let mut fragment = INSTRUCTIONS.to_owned();
    for notes in workspace
        .into_iter()
        .chain(session)
        .map(|file| read_agents_file(&file))
        .filter(|notes| !notes.is_empty())
    {
        fragment.push_str("\n\n");
        fragment.push_str(&notes);
    }
    fragment
}

/// Returns the path of the `AGENTS.md` of a workspace. Returns `None` if it links to a file outside the workspace:
/// otherwise an untrusted workspace could send other files of the user to the model.
fn workspace_agents_file(workspace: &Path) -> Option<PathBuf> {
    static WARNED: Once = Once::new();
    let target = workspace.join(AGENTS_FILE).canonicalize().ok()?;
    if workspace
        .canonicalize()
        .is_ok_and(|workspace| target.starts_with(workspace))
    {
        return Some(target);
    }
    let file = workspace.join(AGENTS_FILE);
    WARNED.call_once(|| {
        tracing::warn!(
            file = %file.display(),
            error = "the file links to a file outside the workspace",
            "prompt.file_not_read"
        );
    });
    None
}

/// Returns the path of the `AGENTS.md` of a session. The file may not exist.
pub(crate) fn session_agents_file(home: &Path, session_id: &str) -> Option<PathBuf> {
    (!session_id.is_empty()).then(|| {
        home.join("sessions")
            .join(session_directory_name(session_id))
            .join(AGENTS_FILE)
    })
}

/// Returns the directory name of a session. Lower-case letters, digits, `-` and `_` stay; other bytes are escaped, such
/// as `%3a`. So names are unique, also on case-insensitive file systems, and cannot contain path separators.
fn session_directory_name(session_id: &str) -> String {
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
        // `%h` is not an escaped byte, so the name cannot collide with that of a short id.
        let _ = write!(name, "%h{:x}", Sha256::digest(session_id));
    }
    name
}

/// Returns the text of an `AGENTS.md`, or an empty text if the file cannot be read.
fn read_agents_file(file: &Path) -> String {
    let mut bytes = Vec::new();
    match open_agents_file(file)
        .map(|file| file.take(MAX_AGENTS_FILE_BYTES).read_to_end(&mut bytes))
    {
        Some(Ok(_)) => String::from_utf8_lossy(&bytes).trim().to_owned(),
        Some(Err(_)) | None => String::new(),
    }
}

/// Opens a regular file. Returns `None` for a pipe or a device, which may have no end.
fn open_agents_file(path: &Path) -> Option<File> {
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    if is_file { File::open(path).ok() } else { None }
}
