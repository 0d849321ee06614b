//! The tools `fs.read`, `fs.write` and `fs.edit`.
//!
//! * `path`: resolves paths and checks whether they may be used.
//! * `read`: reads lines of a file of any size.
//! * `write`: replaces a file, atomically if possible.
//! * `edit`: replaces exact text.

mod edit;
mod path;
mod read;
mod write;

use std::{
    fs::Metadata,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
};

use bub_kernel::{Error, Result, ToolContext, tools};
use parking_lot::Mutex;

pub use path::resolve_path;

use crate::{agent::Agent, workspace};

/// The tools that read and change files.
pub struct FileTools {
    /// The agent, whose policy decides which files may be used.
    pub(crate) agent: Arc<Agent>,
}

impl FileTools {
    /// Returns the absolute path of a file with symbolic links resolved. Fails if the policy does not allow the path.
    fn resolve_file(&self, context: &ToolContext, path: &str) -> Result<PathBuf> {
        let home = self.agent.settings.environment().user_home();
        let workspace = workspace(context.state());
        let path = path::absolute_path(path, workspace.as_deref(), home)?;
        let policy = &self.agent.policy;
        let confine = policy.should_confine_files(context.turn.sender());
        resolve_path(&path, workspace.as_deref(), confine)
    }
}

#[tools(crate = bub_kernel)]
impl FileTools {
    /// Read a text file or a range of its lines. Line breaks are returned as `\n`.
    #[tool(name = "fs.read", read_only)]
    fn fs_read(
        &self,
        context: &ToolContext,
        /// Path of the file, absolute or relative to the workspace
        path: String,
        /// First line to read, starting at 0
        #[default(0)]
        offset: i64,
        /// Number of lines to read; all by default
        limit: Option<u64>,
    ) -> Result<String> {
        let file = self.resolve_file(context, &path)?;
        check_regular_file(&file)?;
        let first = u64::try_from(offset).unwrap_or(0);
        read::read_lines(&file, first, limit, &|| context.cancel.is_cancelled())
    }

    /// Write a file, replacing its content. Creates missing directories.
    #[tool(name = "fs.write")]
    fn fs_write(
        &self,
        context: &ToolContext,
        /// Path of the file, absolute or relative to the workspace
        path: String,
        /// Complete new content
        content: String,
    ) -> Result<String> {
        let file = self.resolve_file(context, &path)?;
        write::replace_file(&file, content.as_bytes())?;
        Ok(format!("wrote: {}", file.display()))
    }

    /// Replace text in a file. All other bytes stay unchanged. `old` must occur exactly once, unless `all` is set.
    #[tool(name = "fs.edit")]
    fn fs_edit(
        &self,
        context: &ToolContext,
        /// Path of the file, absolute or relative to the workspace
        path: String,
        /// Text to replace, exactly as in the file, with enough context to be unique
        old: String,
        /// Replacement text
        new: String,
        /// First line to search, starting at 0
        #[default(0)]
        start: i64,
        /// Replace every occurrence
        #[default(false)]
        all: bool,
    ) -> Result<String> {
        // Concurrent edits of one file must not undo each other.
        static EDIT_LOCK: Mutex<()> = Mutex::new(());
        let file = self.resolve_file(context, &path)?;
        let _guard = EDIT_LOCK.lock();
        let metadata = check_regular_file(&file)?;
        if metadata.len() > edit::MAX_EDIT_BYTES {
            let problem = format!(
                "{path} is too large to edit ({} bytes); use a program such as sed",
                metadata.len()
            );
            return Err(Error::invalid_input(problem));
        }
        let bytes = std::fs::read(&file).map_err(|error| file_error("read", &file, &error))?;
        let start = usize::try_from(start).unwrap_or(0);
        let request = edit::EditRequest {
            path: &path,
            old: &old,
            new: &new,
            start,
            all,
        };
        let (content, count) = edit::apply_edit(&bytes, &request)?;
        write::replace_file(&file, &content)?;
        let count = if count > 1 {
            format!(" ({count} replacements)")
        } else {
            String::new()
        };
        Ok(format!("edited: {}{count}", file.display()))
    }
}

/// Returns the metadata of a regular file. Fails for pipes and devices, because reading them could block forever.
fn check_regular_file(file: &Path) -> Result<Metadata> {
    let metadata = std::fs::metadata(file).map_err(|error| file_error("read", file, &error))?;
    let file_kind = match metadata.file_type() {
        kind if kind.is_file() => return Ok(metadata),
        kind if kind.is_dir() => "a directory",
        _ => "a pipe, a socket or a device",
    };
    Err(Error::invalid_input(format!(
        "{} is {file_kind}, not a file",
        file.display()
    )))
}

/// Returns the error for a file operation that failed: `cannot read PATH: reason`.
fn file_error(action: &str, file: &Path, error: &io::Error) -> Error {
    let text = format!("cannot {action} {}: {error}", file.display());
    match error.kind() {
        ErrorKind::NotFound => Error::not_found(text),
        _ => Error::new(bub_kernel::ErrorKind::Tool, text),
    }
}
