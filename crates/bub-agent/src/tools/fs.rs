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

use bub_kernel::{Error, Result, ToolContext, tool};
use bub_settings::{Settings, core};

pub use path::resolve;

use crate::policy;

/// Where file tools may go; found in a slot of the state. Without one, they stay in the workspace.
#[derive(Clone, Debug)]
pub struct Files {
    /// What `~` means.
    pub home: Option<PathBuf>,
    /// Whether only files in the workspace may be touched.
    pub confine: bool,
}

impl Files {
    /// As the settings say.
    pub fn new(settings: &Arc<Settings>) -> Self {
        let home = settings.environment().user_home().map(Path::to_owned);
        Self {
            home,
            confine: settings.get(&core::FS_CONFINE),
        }
    }

    /// The same, confined to the workspace.
    #[must_use]
    pub fn confined(self) -> Self {
        Self {
            confine: true,
            ..self
        }
    }

    /// The file that is meant, without links on the way to it.
    fn find(context: &ToolContext, path: &str) -> Result<PathBuf> {
        let files = context.state.slot::<Self>();
        let home = files.as_ref().and_then(|files| files.home.as_deref());
        let workspace = context.state.get_str("_runtime_workspace");
        let path = path::absolute(path, workspace.as_deref().map(Path::new), home)?;
        let confine = files.is_none_or(|files| files.confine) || policy::confined(&context.state);
        resolve(&path, workspace.as_deref().map(Path::new), confine)
    }
}

/// Reads a text file, or some lines of it. Line breaks are shown as `\n`.
#[tool(crate = bub_kernel, name = "fs.read", read_only)]
pub fn fs_read(
    context: &ToolContext,
    /// The file: absolute, or relative to the workspace.
    path: String,
    /// The first line to read, counted from 0.
    #[default(0)]
    offset: i64,
    /// How many lines to read; all when left out.
    limit: Option<u64>,
) -> Result<String> {
    let file = Files::find(context, &path)?;
    regular(&file)?;
    let first = u64::try_from(offset).unwrap_or(0);
    read::lines(&file, first, limit, &|| context.cancel.is_cancelled())
}

/// Writes a file, whole: what was in it is replaced. Directories on the way are created.
#[tool(crate = bub_kernel, name = "fs.write")]
pub fn fs_write(
    context: &ToolContext,
    /// The file: absolute, or relative to the workspace.
    path: String,
    /// Everything that shall be in it.
    content: String,
) -> Result<String> {
    let file = Files::find(context, &path)?;
    write::replace(&file, content.as_bytes())?;
    Ok(format!("wrote: {}", file.display()))
}

/// Replaces text in a file and leaves every other byte as it is. `old` must occur exactly once, unless `all` is set.
#[tool(crate = bub_kernel, name = "fs.edit")]
pub fn fs_edit(
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
    static EDITING: Mutex<()> = Mutex::new(());
    let file = Files::find(context, &path)?;
    let _one_at_a_time = EDITING.lock().unwrap_or_else(PoisonError::into_inner);
    let metadata = regular(&file)?;
    if metadata.len() > edit::MOST_BYTES {
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
        &edit::Change {
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
