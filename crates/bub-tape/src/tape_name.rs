//! Names of tapes, which are also the names of their files.

use std::fmt;

use md5::{Digest, Md5};

use crate::{Result, TapeError};

/// Name of the anchor at the start of every session.
pub const SESSION_START: &str = "session/start";

/// The text between the name of a tape and that of its sidecar, in the name of the sidecar's tape.
pub(crate) const SIDECAR_INFIX: &str = "__sidecar__";
const FORK_INFIX: &str = "__fork__";
const MAX_NAME_BYTES: usize = 200;

/// A valid tape name. It is safe to use as a file name, because it cannot refer to a file in another directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TapeName(String);

impl TapeName {
    /// Validates a name.
    ///
    /// # Errors
    ///
    /// Fails if the name is empty, is longer than 200 bytes, starts with a dot, or contains a path separator, a colon
    /// or a control character.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        match invalid_reason(&name) {
            None => Ok(Self(name)),
            Some(reason) => Err(TapeError::InvalidInput(format!(
                "invalid tape name {name:?}: {reason}"
            ))),
        }
    }

    /// Returns the name of a session's tape: `md5(workspace)[:16] + "__" + md5(session_id)[:16]`.
    ///
    /// `workspace` is the resolved path. A session id names different tapes in different workspaces.
    pub fn for_session(workspace: &str, session_id: &str) -> Self {
        let (workspace, session) = (short_md5(workspace), short_md5(session_id));
        Self(format!("{workspace}__{session}"))
    }

    /// Returns whether this is the tape of a session with this id, in any workspace.
    pub fn is_of_session(&self, session_id: &str) -> bool {
        let (_, session) = self.0.split_once("__").unwrap_or_default();
        session == short_md5(session_id)
    }

    /// Returns the name of a sidecar of this tape: `<tape>__sidecar__<name>`.
    pub fn sidecar(&self, name: &str) -> Result<Self> {
        Self::new(format!("{}{SIDECAR_INFIX}{name}", self.0))
    }

    /// Returns the name of a fork journal of this tape: `<tape>__fork__<id>`. A fork journal is a tape that holds the
    /// entries of a fork until they are merged.
    pub fn fork_journal(&self, id: &str) -> Result<Self> {
        Self::new(format!("{}{FORK_INFIX}{id}", self.0))
    }

    /// Returns the name as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is a session tape: its name has exactly one `__`. Lists show only session tapes to users,
    /// not sidecars or fork journals.
    pub fn is_session(&self) -> bool {
        self.0.matches("__").count() == 1
    }

    /// Splits the name of a sidecar's tape, `<tape>__sidecar__<name>`, into `<tape>` and `<name>`. Returns `None` for
    /// other tapes.
    pub fn as_sidecar(&self) -> Option<(&str, &str)> {
        if self.is_fork() {
            None
        } else {
            self.0.split_once(SIDECAR_INFIX)
        }
    }

    /// Splits the name of a fork journal into the name of the forked tape and the id of the fork. Returns `None` for
    /// other tapes.
    pub fn as_fork(&self) -> Option<(&str, &str)> {
        self.0.rsplit_once(FORK_INFIX)
    }

    /// Returns whether this is the name of a fork journal, a tape that holds the entries of a fork.
    pub fn is_fork(&self) -> bool {
        self.as_fork().is_some()
    }
}

impl fmt::Display for TapeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn invalid_reason(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty");
    }
    if name.len() > MAX_NAME_BYTES {
        return Some("it is longer than 200 bytes");
    }
    if name.starts_with('.') {
        return Some("it starts with a dot");
    }
    if name.contains(['/', '\\', ':']) {
        return Some("it contains a path separator (`/`, `\\` or `:`)");
    }
    name.chars()
        .any(char::is_control)
        .then_some("it contains a control character")
}

fn short_md5(text: &str) -> String {
    let mut hex = format!("{:x}", Md5::digest(text));
    hex.truncate(16);
    hex
}
