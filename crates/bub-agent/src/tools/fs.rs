//! The tools `fs.read`, `fs.write` and `fs.edit`. `FileAccess` decides which files they may use.
//!
//! * `read`: reads lines of a file of any size.
//! * `edit`: replaces exact text.

mod edit;
mod read;

use std::{io::Read as _, sync::Arc};

use bub_kernel::{Error, Result, Role, ToolContext, tool::run_blocking, tools};
use bub_sandbox::SandboxProfile;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::{
    agent::Agent,
    files::{AllowedFile, FileError, FileUse, file_error},
    policy::{ApprovalOutcome, ask_for_exception},
};

/// The tools that read and change files.
pub struct FileTools {
    agent: Arc<Agent>,
}

impl FileTools {
    /// Creates the tools of an agent.
    pub(crate) fn new(agent: Arc<Agent>) -> Self {
        Self { agent }
    }

    /// Finds the file of a call. If the sandbox does not allow it, asks the owner.
    async fn find(
        &self,
        context: &ToolContext,
        tool: &str,
        arguments: Value,
        usage: FileUse,
    ) -> Result<AllowedFile> {
        let arguments = match arguments {
            Value::Object(arguments) => arguments,
            _ => Map::new(),
        };
        let path = arguments.get("path").and_then(Value::as_str);
        let path = path.unwrap_or_default().to_owned();
        let find_in = |profile: SandboxProfile| {
            let files = Arc::clone(&self.agent.files);
            let (context, path) = (context.clone(), path.clone());
            run_blocking(move || files.find_in(profile, &context, &path, usage))
        };
        let refusal = match find_in(self.agent.files.profile(context)).await? {
            Err(FileError::Refused(refusal)) => refusal,
            found => return Ok(found?),
        };
        let policy = &self.agent.policy;
        let sender = policy.effective_sender(&context.turn, context.caller);
        if refusal.can_ask() && sender.role == Role::Owner {
            let question = format!("{refusal}; allow it once?");
            let approval =
                ask_for_exception(&self.agent, context, tool, &arguments, &question).await?;
            if approval.decision == ApprovalOutcome::Approved {
                approval.consume(tool, &arguments)?;
                return Ok(find_in(SandboxProfile::Off).await??);
            }
        }
        Err(FileError::Refused(refusal).into())
    }
}

#[tools(crate = bub_kernel)]
impl FileTools {
    /// Read a text file or a range of its lines. Line breaks are returned as `\n`.
    #[tool(name = "fs.read", read_only)]
    async fn fs_read(
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
        let arguments = json!({"path": path});
        let file = self.find(context, "fs.read", arguments, FileUse::Read);
        let (file, cancel) = (file.await?, context.cancel.clone());
        let first = u64::try_from(offset).unwrap_or(0);
        run_blocking(move || {
            let is_cancelled = || cancel.is_cancelled();
            read::read_lines(file.open()?, file.shown_path(), first, limit, &is_cancelled)
        })
        .await?
    }

    /// Write a file, replacing its content. Creates missing directories.
    #[tool(name = "fs.write")]
    async fn fs_write(
        &self,
        context: &ToolContext,
        /// Path of the file, absolute or relative to the workspace
        path: String,
        /// Complete new content
        content: String,
    ) -> Result<String> {
        let arguments = json!({"path": path, "content": content});
        let file = self.find(context, "fs.write", arguments, FileUse::Create);
        let file = file.await?;
        run_blocking(move || {
            file.replace(content.as_bytes())?;
            Ok(format!("wrote: {}", file.shown_path().display()))
        })
        .await?
    }

    /// Replace text in a file. All other bytes stay unchanged. `old` must occur exactly once, unless `all` is set.
    #[tool(name = "fs.edit")]
    async fn fs_edit(
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
        let arguments = json!({"path": path, "old": old, "new": new, "start": start, "all": all});
        let file = self.find(context, "fs.edit", arguments, FileUse::Change);
        let file = file.await?;
        let start = usize::try_from(start).unwrap_or(0);
        run_blocking(move || {
            let request = edit::EditRequest {
                path: &path,
                old: &old,
                new: &new,
                start,
                all,
            };
            edit_file(&file, &request)
        })
        .await?
    }
}

fn edit_file(file: &AllowedFile, request: &edit::EditRequest<'_>) -> Result<String> {
    // Concurrent edits of one file must not undo each other.
    static EDIT_LOCK: Mutex<()> = Mutex::new(());
    let _guard = EDIT_LOCK.lock();
    let read_error = |error| file_error("read", file.shown_path(), &error);
    let mut content = file.open()?;
    let size = content.metadata().map_err(read_error)?.len();
    if size > edit::MAX_EDIT_BYTES {
        let path = request.path;
        let problem =
            format!("{path} is too large to edit ({size} bytes); use a program such as sed");
        return Err(Error::invalid_input(problem));
    }
    let mut bytes = Vec::new();
    content.read_to_end(&mut bytes).map_err(read_error)?;
    let (content, count) = edit::apply_edit(&bytes, request)?;
    file.replace(&content)?;
    let count = if count > 1 {
        format!(" ({count} replacements)")
    } else {
        String::new()
    };
    Ok(format!("edited: {}{count}", file.shown_path().display()))
}
