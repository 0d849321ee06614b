//! The error type of this crate. Its variants distinguish what the caller can do about an error.

use std::{io, path::Path, sync::Arc};

/// An error of a tape operation.
///
/// It is `Clone` because one write can contain several batches. If the write fails, each batch gets a copy of the
/// error.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TapeError {
    /// The requested item does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The request is invalid.
    #[error("{0}")]
    InvalidInput(String),
    /// Another process or task holds the lease of the tape's session.
    #[error("tape `{tape}` is in use by {holder}; wait for it or start another session")]
    Busy {
        /// The tape whose lease was requested.
        tape: String,
        /// The lease holder, or a placeholder if it is unknown.
        holder: String,
    },
    /// The disk is full. Nothing was changed.
    #[error(
        "cannot write `{path}`: no space left on the disk; free some space and try again, nothing was changed"
    )]
    NoSpace {
        /// The file that could not grow.
        path: String,
    },
    /// The operating system denied access.
    #[error("cannot access `{path}`: permission denied; check its owner and mode")]
    Denied {
        /// The inaccessible file or directory.
        path: String,
    },
    /// An fsync failed, so the data may not be on disk. The entries are not acknowledged.
    #[error("cannot sync `{path}`: {source}; the entries are not recorded, try again")]
    NotDurable {
        /// The file whose fsync failed.
        path: String,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// An append failed, and its entries could not be removed again. They may be on the tape.
    #[error(
        "cannot undo a failed append to `{path}`: {source}; its entries may be on the tape, read it before you try again"
    )]
    UndoFailed {
        /// The file of the tape.
        path: String,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// A file does not contain what was written to it. Restore it from a backup.
    #[error("`{path}` is damaged: {detail}; restore it from a backup")]
    Damaged {
        /// The damaged file.
        path: String,
        /// The kind of damage.
        detail: String,
    },
    /// Another error of the operating system.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// The action that failed, as an imperative verb.
        action: &'static str,
        /// The file of the action.
        path: String,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
}

/// The class of a [`TapeError`]: what the caller can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TapeErrorKind {
    /// The item does not exist; request another one.
    NotFound,
    /// The request is invalid; correct it.
    InvalidInput,
    /// The session is in use; wait or use another one.
    Busy,
    /// A temporary condition; retry when its cause is resolved. Nothing was changed.
    Retry,
    /// A problem of the system that a user must fix.
    Environment,
}

impl TapeError {
    /// Returns the class of the error.
    pub fn kind(&self) -> TapeErrorKind {
        match self {
            Self::NotFound(_) => TapeErrorKind::NotFound,
            Self::InvalidInput(_) => TapeErrorKind::InvalidInput,
            Self::Busy { .. } => TapeErrorKind::Busy,
            Self::NoSpace { .. } | Self::NotDurable { .. } => TapeErrorKind::Retry,
            Self::UndoFailed { .. }
            | Self::Denied { .. }
            | Self::Damaged { .. }
            | Self::Io { .. } => TapeErrorKind::Environment,
        }
    }

    /// Returns whether a file has invalid content.
    pub(crate) fn is_invalid_data(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::InvalidData)
    }

    /// Creates the error `No anchors found in tape.`, with the text of the Python version.
    pub fn no_anchors() -> Self {
        Self::NotFound("No anchors found in tape.".to_owned())
    }

    /// Creates the error `Anchor '<name>' was not found.`, with the text of the Python version.
    pub fn anchor_not_found(name: &str) -> Self {
        Self::NotFound(format!("Anchor '{name}' was not found."))
    }

    /// Creates the error `Invalid ISO date or datetime: '<value>'.`, with the text of the Python version.
    pub fn invalid_date(value: &str) -> Self {
        Self::InvalidInput(format!("Invalid ISO date or datetime: '{value}'."))
    }

    /// Converts an I/O error to the matching variant. `action` is an imperative verb, such as `read`.
    pub fn from_io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.display().to_string();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::Denied { path }
            }
            _ => Self::Io {
                action,
                path,
                source: Arc::new(source),
            },
        }
    }
}
