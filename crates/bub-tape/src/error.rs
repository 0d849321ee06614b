//! What can go wrong, named by what the caller can do about it.

use std::{io, path::Path, sync::Arc};

/// An error of a tape operation.
///
/// It is `Clone` because one failed write answers every caller whose batch was in it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TapeError {
    /// What was asked for does not exist: ask for something else.
    #[error("{0}")]
    NotFound(String),
    /// The request itself is wrong: correct it.
    #[error("{0}")]
    InvalidInput(String),
    /// Somebody else holds the session: wait, or take another one.
    #[error("tape `{tape}` is in use by {holder}; wait for it or start another session")]
    Busy {
        /// The tape whose lease was asked for.
        tape: String,
        /// Who holds it, as far as is known.
        holder: String,
    },
    /// The disk is full; nothing was changed: make room and repeat.
    #[error("no space left to write `{path}`; nothing was changed, make room and try again")]
    NoSpace {
        /// The file that could not grow.
        path: String,
    },
    /// The system refused access: correct the permissions.
    #[error("no permission for `{path}`; check its owner and mode")]
    Denied {
        /// The file or directory that was refused.
        path: String,
    },
    /// The data did not reach the disk (failed fsync); it is not acknowledged: repeat.
    #[error(
        "`{path}` could not be made durable ({source}); the entries are not recorded, try again"
    )]
    NotDurable {
        /// The file whose fsync failed.
        path: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Stored bytes are not what was stored: restore them from a copy.
    #[error("`{path}` is damaged: {detail}")]
    Damaged {
        /// The damaged file.
        path: String,
        /// What is wrong with it.
        detail: String,
    },
    /// Anything else the system reports.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
}

/// The class of a [`TapeError`], for callers that only decide what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TapeErrorKind {
    /// Ask for something else.
    NotFound,
    /// Correct the request.
    InvalidInput,
    /// Wait, or go elsewhere.
    Busy,
    /// Repeat once the cause is gone; nothing was changed.
    Retry,
    /// A person has to look at the system.
    Environment,
}

impl TapeError {
    /// What to do about it.
    pub fn kind(&self) -> TapeErrorKind {
        match self {
            Self::NotFound(_) => TapeErrorKind::NotFound,
            Self::InvalidInput(_) => TapeErrorKind::InvalidInput,
            Self::Busy { .. } => TapeErrorKind::Busy,
            Self::NoSpace { .. } | Self::NotDurable { .. } => TapeErrorKind::Retry,
            Self::Denied { .. } | Self::Damaged { .. } | Self::Io { .. } => {
                TapeErrorKind::Environment
            }
        }
    }

    /// `No anchors found in tape.`
    pub fn no_anchors() -> Self {
        Self::NotFound("No anchors found in tape.".to_owned())
    }

    /// `Anchor '<name>' was not found.`
    pub fn no_anchor(name: &str) -> Self {
        Self::NotFound(format!("Anchor '{name}' was not found."))
    }

    /// `Invalid ISO date or datetime: '<value>'.`
    pub fn bad_date(value: &str) -> Self {
        Self::InvalidInput(format!("Invalid ISO date or datetime: '{value}'."))
    }

    /// Sorts an error of the system by what can be done about it.
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
