//! `fs.read`, `fs.write`, `fs.edit`: files as the model sees and changes them.
//!
//! * `path`: which file a name means, and whether it may be touched.
//! * `read`: lines of a file of any size.
//! * `write`: all or nothing.
//! * `edit`: exact replacement, byte for byte.

mod edit;
mod path;
mod read;
mod write;

use std::{
    fs::Metadata,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use bub_kernel::{Error, Result, ToolContext, tools};

pub use path::resolve;

use crate::agent::Agent;

/// The tools that read and change files.
#[derive(Debug)]
pub struct FileTools {
    agent: Arc<Agent>,
}

impl FileTools {
    /// File tools under the policy of an agent.
    pub(crate) fn new(agent: Arc<Agent>) -> Self {
        Self { agent }
    }

    /// The file that is meant, without links on the way to it.
    fn find(&self, context: &ToolContext, path: &str) -> Result<PathBuf> {
        let home = self.agent.settings().environment().user_home();
        let workspace = context.state().get_str("_runtime_workspace");
        let workspace = workspace.as_deref().map(Path::new);
        let path = path::absolute(path, workspace, home)?;
        let confine = self.agent.policy().confines_files(context.turn.sender());
        resolve(&path, workspace, confine)
    }
}

#[tools(crate = bub_kernel)]
impl FileTools {
    /// Reads a text file, or some lines of it. Line breaks are shown as `\n`.
    #[tool(name = "fs.read", read_only)]
    fn fs_read(
        &self,
        context: &ToolContext,
        /// The file: absolute, or relative to the workspace.
        path: String,
        /// The first line to read, counted from 0.
        #[default(0)]
        offset: i64,
        /// How many lines to read; all when left out.
        limit: Option<u64>,
    ) -> Result<String> {
        let file = self.find(context, &path)?;
        regular(&file)?;
        let first = u64::try_from(offset).unwrap_or(0);
        read::lines(&file, first, limit, &|| context.cancel.is_cancelled())
    }

    /// Writes a file, whole: what was in it is replaced. Directories on the way are created.
    #[tool(name = "fs.write")]
    fn fs_write(
        &self,
        context: &ToolContext,
        /// The file: absolute, or relative to the workspace.
        path: String,
        /// Everything that shall be in it.
        content: String,
    ) -> Result<String> {
        let file = self.find(context, &path)?;
        write::replace(&file, content.as_bytes())?;
        Ok(format!("wrote: {}", file.display()))
    }

    /// Replaces text in a file and leaves every other byte as it is. `old` must occur exactly once, unless `all` is set.
    #[tool(name = "fs.edit")]
    fn fs_edit(
        &self,
        context: &ToolContext,
        /// The file: absolute, or relative to the workspace.
        path: String,
        /// The text to replace, exactly as it is in the file, with enough around it to be the only one.
        old: String,
        /// The text to put in its place.
        new: String,
        /// Look only from this line on, counted from 0.
        #[default(0)]
        start: i64,
        /// Replace every occurrence.
        #[default(false)]
        all: bool,
    ) -> Result<String> {
        // Two edits of one file at a time must not undo each other.
        static EDIT_LOCK: Mutex<()> = Mutex::new(());
        let file = self.find(context, &path)?;
        let _one_at_a_time = EDIT_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let metadata = regular(&file)?;
        if metadata.len() > edit::MAX_EDIT_BYTES {
            let problem = format!(
                "{path} is too big to edit ({} bytes): use a program",
                metadata.len()
            );
            return Err(Error::invalid_input(problem));
        }
        let bytes = std::fs::read(&file).map_err(|error| failure("read", &file, &error))?;
        let start = usize::try_from(start).unwrap_or(0);
        let edited = edit::edit(
            &bytes,
            &edit::EditRequest {
                path: &path,
                old: &old,
                new: &new,
                start,
                all,
            },
        )?;
        write::replace(&file, &edited.content)?;
        let times = if edited.times > 1 {
            format!(" ({} places)", edited.times)
        } else {
            String::new()
        };
        Ok(format!("edited: {}{times}", file.display()))
    }
}

/// Only what has an end and does not answer back: a pipe or a device could block for ever.
fn regular(file: &Path) -> Result<Metadata> {
    let metadata = std::fs::metadata(file).map_err(|error| failure("read", file, &error))?;
    let what = match metadata.file_type() {
        kind if kind.is_file() => return Ok(metadata),
        kind if kind.is_dir() => "a directory",
        _ => "a pipe, a socket or a device",
    };
    Err(Error::invalid_input(format!(
        "{} is {what}, not a file",
        file.display()
    )))
}

fn failure(action: &str, file: &Path, error: &io::Error) -> Error {
    let text = format!("cannot {action} {}: {error}", file.display());
    match error.kind() {
        ErrorKind::NotFound => Error::not_found(text),
        _ => Error::new(bub_kernel::ErrorKind::Tool, text),
    }
}
