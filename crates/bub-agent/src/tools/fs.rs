//! The tools `fs.read`, `fs.write` and `fs.edit`. `FileAccess` decides which files they may use.
//!
//! * `read`: reads lines of a file of any size.
//! * `edit`: replaces exact text. `whitespace` finds text that differs only in whitespace.

mod edit;
mod read;
mod whitespace;

use std::{io::Read as _, sync::Arc};

use bub_kernel::{Error, Result, Role, ToolContext, tool::run_blocking, tools};
use bub_sandbox::SandboxProfile;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::{
    agent::Agent,
    files::{AllowedFile, AllowedTree, FileAccess, FileError, FileUse, file_error},
    policy::{ApprovalOutcome, ask_for_exception},
};

/// The tools that read and change files.
pub struct FileTools(FileFinder);

/// Finds the files that tool calls name.
#[derive(Clone)]
pub(super) struct FileFinder {
    agent: Arc<Agent>,
}

impl FileTools {
    /// Creates the tools of an agent.
    pub(super) fn new(finder: FileFinder) -> Self {
        Self(finder)
    }
}

impl FileFinder {
    pub(super) fn new(agent: Arc<Agent>) -> Self {
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
        let find = move |files: &FileAccess, profile, context: &ToolContext, path: &str| {
            files.find_in(profile, context, path, usage)
        };
        self.find_with(context, tool, arguments, find).await
    }

    /// Finds the file or directory of a call that searches it. If the sandbox does not allow it, asks the owner.
    pub(super) async fn find_tree(
        &self,
        context: &ToolContext,
        tool: &str,
        arguments: Value,
    ) -> Result<AllowedTree> {
        let find = |files: &FileAccess, profile, context: &ToolContext, path: &str| {
            files.find_tree(profile, context, path, FileUse::Read)
        };
        self.find_with(context, tool, arguments, find).await
    }

    async fn find_with<T: Send + 'static>(
        &self,
        context: &ToolContext,
        tool: &str,
        arguments: Value,
        find: impl Fn(&FileAccess, SandboxProfile, &ToolContext, &str) -> Result<T, FileError>
        + Clone
        + Send
        + 'static,
    ) -> Result<T> {
        let arguments = match arguments {
            Value::Object(arguments) => arguments,
            _ => Map::new(),
        };
        let path = arguments.get("path").and_then(Value::as_str);
        let path = path.unwrap_or_default().to_owned();
        let find_in = |profile: SandboxProfile| {
            let files = Arc::clone(&self.agent.files);
            let (context, path, find) = (context.clone(), path.clone(), find.clone());
            run_blocking(move || find(&files, profile, &context, &path))
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
                ask_for_exception(&self.agent, context, tool, &arguments, (&question, false))
                    .await?;
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
    /// Read a text file or a range of its lines
    #[tool(name = "fs.read", read_only, direct)]
    async fn fs_read(
        &self,
        context: &ToolContext,
        path: String,
        /// First line, starting at 0
        #[default(0)]
        offset: i64,
        /// Number of lines
        limit: Option<u64>,
    ) -> Result<String> {
        let arguments = json!({"path": path});
        let file = self.0.find(context, "fs.read", arguments, FileUse::Read);
        let (file, cancel) = (file.await?, context.cancel.clone());
        let first = u64::try_from(offset).unwrap_or(0);
        run_blocking(move || {
            let is_cancelled = || cancel.is_cancelled();
            read::read_lines(file.open()?, file.shown_path(), first, limit, &is_cancelled)
        })
        .await?
    }

    /// Write a file. Replaces its content and creates missing directories.
    #[tool(name = "fs.write", direct)]
    async fn fs_write(
        &self,
        context: &ToolContext,
        path: String,
        content: String,
    ) -> Result<String> {
        let arguments = json!({"path": path, "content": content});
        let file = self.0.find(context, "fs.write", arguments, FileUse::Create);
        let file = file.await?;
        run_blocking(move || {
            file.replace(content.as_bytes())?;
            Ok(format!("wrote: {}", file.shown_path().display()))
        })
        .await?
    }

    /// Replace text in a file. `old` must occur exactly once, unless `all` is set.
    #[tool(name = "fs.edit", direct)]
    async fn fs_edit(
        &self,
        context: &ToolContext,
        path: String,
        old: String,
        new: String,
        /// First line to search
        #[default(0)]
        start: i64,
        #[default(false)] all: bool,
        /// Further edits, each with `old` and `new`
        edits: Option<Vec<Map<String, Value>>>,
    ) -> Result<String> {
        let edits = edits.unwrap_or_default();
        let mut arguments =
            json!({"path": path, "old": old, "new": new, "start": start, "all": all});
        if let (false, Some(arguments)) = (edits.is_empty(), arguments.as_object_mut()) {
            arguments.insert("edits".to_owned(), json!(edits));
        }
        let file = self.0.find(context, "fs.edit", arguments, FileUse::Change);
        let file = file.await?;
        let start = usize::try_from(start).unwrap_or(0);
        run_blocking(move || {
            let mut requests = vec![edit::EditRequest {
                path: &path,
                old: &old,
                new: &new,
                start,
                all,
            }];
            for (number, edit) in (2..).zip(&edits) {
                requests.push(parse_edit(&path, edit, number)?);
            }
            edit_file(&file, &requests)
        })
        .await?
    }
}

/// Parses an item of the argument `edits`.
fn parse_edit<'a>(
    path: &'a str,
    edit: &'a Map<String, Value>,
    number: usize,
) -> Result<edit::EditRequest<'a>> {
    let text = |name: &str| edit.get(name).and_then(Value::as_str);
    let (Some(old), Some(new)) = (text("old"), text("new")) else {
        let problem = format!("invalid edit {number}: expected an object with `old` and `new`");
        return Err(Error::invalid_input(problem));
    };
    Ok(edit::EditRequest {
        path,
        old,
        new,
        start: 0,
        all: edit.get("all") == Some(&Value::Bool(true)),
    })
}

/// Makes all edits, or none. Each one sees the result of the one before it.
fn edit_file(file: &AllowedFile, requests: &[edit::EditRequest<'_>]) -> Result<String> {
    // Concurrent edits of one file must not undo each other.
    static EDIT_LOCK: Mutex<()> = Mutex::new(());
    let _guard = EDIT_LOCK.lock();
    let read_error = |error| file_error("read", file.shown_path(), &error);
    let mut opened = file.open()?;
    let size = opened.metadata().map_err(read_error)?.len();
    if size > edit::MAX_EDIT_BYTES {
        let path = requests.first().map_or("the file", |request| request.path);
        let problem =
            format!("{path} is too large to edit ({size} bytes); use a program such as sed");
        return Err(Error::invalid_input(problem));
    }
    let mut content = Vec::new();
    opened.read_to_end(&mut content).map_err(read_error)?;
    let mut notes = Vec::new();
    for (number, request) in (1..).zip(requests) {
        let outcome =
            edit::apply_edit(&content, request).map_err(|error| match requests.len() {
                1 => error,
                _ => Error::invalid_input(format!("edit {number}: {error}; no edit was made")),
            })?;
        content = outcome.content;
        if outcome.count > 1 {
            notes.push(format!("{} replacements", outcome.count));
        }
        if let Some(line) = outcome.similar_line {
            notes.push(format!("line {line} matched with other whitespace"));
        }
    }
    file.replace(&content)?;
    if requests.len() > 1 {
        notes.insert(0, format!("{} edits", requests.len()));
    }
    let notes = if notes.is_empty() {
        String::new()
    } else {
        format!(" ({})", notes.join(", "))
    };
    Ok(format!("edited: {}{notes}", file.shown_path().display()))
}
