//! Names of tapes and of the files they live in.

use std::fmt;

use md5::{Digest, Md5};

use crate::{Result, TapeError};

/// The anchor every session starts with.
pub const SESSION_START: &str = "session/start";

const SIDECAR_INFIX: &str = "__sidecar__";
const FORK_INFIX: &str = "__fork__";
const MAX_NAME_BYTES: usize = 200;

/// A checked tape name: it can be a file name and cannot leave its directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TapeName(String);

impl TapeName {
    /// Checks a name.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        match validation_error(&name) {
            None => Ok(Self(name)),
            Some(reason) => Err(TapeError::InvalidInput(format!(
                "Invalid tape name {name:?}: {reason}."
            ))),
        }
    }

    /// The tape of a session: `md5(workspace)[:16] + "__" + md5(session_id)[:16]`.
    ///
    /// `workspace` is the resolved path as text; the same session id in another workspace is another tape.
    pub fn for_session(workspace: &str, session_id: &str) -> Self {
        Self(format!(
            "{}__{}",
            short_md5(workspace),
            short_md5(session_id)
        ))
    }

    /// The tape of a sidecar: `<tape>__sidecar__<name>`.
    pub fn sidecar(&self, name: &str) -> Result<Self> {
        Self::new(format!("{}{SIDECAR_INFIX}{name}", self.0))
    }

    /// The journal of a fork: `<tape>__fork__<id>`.
    pub fn fork(&self, id: &str) -> Result<Self> {
        Self::new(format!("{}{FORK_INFIX}{id}", self.0))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Session tapes have exactly one `__`; sidecars and fork journals are not listed to people.
    pub fn is_session(&self) -> bool {
        self.0.matches("__").count() == 1
    }

    /// The tape and sidecar name, when this is a sidecar.
    pub fn as_sidecar(&self) -> Option<(&str, &str)> {
        if self.is_fork() {
            None
        } else {
            self.0.split_once(SIDECAR_INFIX)
        }
    }

    /// The tape and fork id, when this is a fork's journal.
    pub fn as_fork(&self) -> Option<(&str, &str)> {
        self.0.rsplit_once(FORK_INFIX)
    }

    /// Whether this is a fork's journal.
    pub fn is_fork(&self) -> bool {
        self.as_fork().is_some()
    }
}

impl fmt::Display for TapeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn validation_error(name: &str) -> Option<&'static str> {
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
        return Some("it contains a path separator");
    }
    name.chars()
        .any(char::is_control)
        .then_some("it contains a control character")
}

fn short_md5(text: &str) -> String {
    let mut hex = hex(&Md5::digest(text.as_bytes()));
    hex.truncate(16);
    hex
}

/// Lowercase hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
