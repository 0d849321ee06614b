//! The builtin part of the system prompt: default instructions, the environment, then `AGENTS.md` of the workspace and
//! of the session.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
    sync::Once,
};

use bub_kernel::Turn;
use bub_settings::{MAX_INSTRUCTIONS_BYTES, Settings};
use sha2::{Digest, Sha256};

/// The file with instructions for agents, in a workspace or in the directory of a session.
const AGENTS_FILE: &str = "AGENTS.md";

const INSTRUCTIONS: &str = "\
<general_instruct>
Help the user in a real workspace. If you need a tool, call it. As soon as you know the answer or the task is done, \
reply in plain text. Prefer small, reversible steps. Claim only what a tool result shows, and say what failed.
</general_instruct>
<response_instruct>
The line before a message says where it comes from. Reply with plain text: it is sent there. An empty text sends nothing.
</response_instruct>
<context_contract>
You see this session since its last anchor. A `<handoff>` block sums up what came before; `tape_search` finds \
details. If the context grows long, call `tape_handoff` with a summary of what you need later.
</context_contract>";

/// Maximum length of the name of a session's directory without a hash. A longer name is truncated to half of this
/// length, and a hash of the session id is appended.
const MAX_DIR_NAME_BYTES: usize = 120;

/// The builtin part of the system prompt.
pub(crate) struct SystemPromptPart {
    pub(crate) text: String,
    /// The `AGENTS.md` of the workspace, if the text contains it and the user did not trust it.
    pub(crate) untrusted_file: Option<PathBuf>,
}

/// Returns the builtin part of the system prompt: the default instructions, the environment, then `AGENTS.md` of the
/// workspace and of the session. Skips files that are missing, empty or cannot be read.
///
/// The text is the same in all turns of a session, so that providers can cache it. The date is part of each message.
pub(crate) fn build_fragment(turn: &Turn, settings: &Settings) -> SystemPromptPart {
    let mut text = INSTRUCTIONS.to_owned();
    let state = turn.state();
    let workspace = crate::workspace(state);
    if let Some(environment) = turn.environment() {
        let directory = environment.workspace().unwrap_or("unknown");
        let _ = write!(
            text,
            "\n<environment>\nWorking directory: {directory}.\n</environment>"
        );
    } else if let Some(workspace) = &workspace {
        let (directory, system) = (workspace.display(), std::env::consts::OS);
        let _ = write!(
            text,
            "\n<environment>\nWorking directory: {directory}. System: {system}. Shell: bash.\n</environment>"
        );
    }
    let mut add = |tag: &str, file: &Path| {
        let bytes = crate::read_head(file, MAX_INSTRUCTIONS_BYTES).ok()?;
        let notes = String::from_utf8_lossy(&bytes).trim().to_owned();
        (!notes.is_empty()).then(|| {
            let _ = write!(text, "\n\n<{tag}>\n{notes}\n</{tag}>");
            bytes
        })
    };
    let workspace = workspace.and_then(|workspace| workspace_agents_file(&workspace));
    let untrusted_file = workspace.filter(|file| {
        let trust = settings.workspace_trust();
        let read = add("workspace_instruction", file);
        read.is_some_and(|bytes| !trust.are_instructions_trusted(file, &bytes))
    });
    let session = state.get_str("session_id");
    let session = session.and_then(|session| session_agents_file(settings.home(), &session));
    if let Some(file) = session {
        add("session_instruction", &file);
    }
    SystemPromptPart {
        text,
        untrusted_file,
    }
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
        // `%h` is not an escaped byte, so the name cannot equal that of a session with a short id.
        let _ = write!(name, "%h{:x}", Sha256::digest(session_id));
    }
    name
}
