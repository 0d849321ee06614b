//! The tools `fs.read`, `fs.write` and `fs.edit`. `FileAccess` decides which files they may use.
//!
//! * `read`: reads lines of a file of any size.
//! * `edit`: replaces exact text. `whitespace` finds text that differs only in whitespace.

mod edit;
mod read;
mod whitespace;

use std::{io::Read as _, path::Path, sync::Arc};

use bub_kernel::{
    Error, ExecutionEnvironment, Result, Role, ToolContext, tool::run_blocking, tools,
};
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
        if context.turn.environment().is_some() {
            return Err(Error::invalid_input(format!(
                "{tool} works only on this machine, and this session has another environment; use bash"
            )));
        }
        let find = |files: &FileAccess, profile, context: &ToolContext, path: &str| {
            files.find_tree(profile, context, path, FileUse::Read)
        };
        self.find_with(context, tool, arguments, find).await
    }

    /// Returns the path of a file in the environment of a session, if the sender may use it.
    fn path_in(
        &self,
        environment: &Arc<dyn ExecutionEnvironment>,
        context: &ToolContext,
        path: &str,
        usage: FileUse,
    ) -> Result<String> {
        let files = &self.agent.files;
        let policy = &self.agent.policy;
        let sender = policy.effective_sender(&context.turn, context.caller);
        let profile = files.profile(context);
        Ok(files.environment_path(environment.workspace(), &sender, profile, (path, usage))?)
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
        let first = u64::try_from(offset).unwrap_or(0);
        if let Some(environment) = context.turn.environment() {
            let path = self.0.path_in(environment, context, &path, FileUse::Read)?;
            let content = environment.read_text(&path).await?;
            self.0.agent.files.check_text(context, &content)?;
            return read::read_lines(content.as_bytes(), Path::new(&path), first, limit, &|| {
                false
            });
        }
        let arguments = json!({"path": path});
        let file = self.0.find(context, "fs.read", arguments, FileUse::Read);
        let (file, cancel) = (file.await?, context.cancel.clone());
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
        if let Some(environment) = context.turn.environment() {
            let path = self
                .0
                .path_in(environment, context, &path, FileUse::Create)?;
            environment.write_text(&path, &content).await?;
            return Ok(format!("wrote: {path}"));
        }
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
        let start = usize::try_from(start).unwrap_or(0);
        let first_edit = edit::EditRequest {
            path: &path,
            old: &old,
            new: &new,
            start,
            all,
        };
        if let Some(environment) = context.turn.environment() {
            // Concurrent edits of one file must not undo each other.
            static EDIT_LOCK: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
            let requests = parse_edits(first_edit, &edits)?;
            let target = self
                .0
                .path_in(environment, context, &path, FileUse::Change)?;
            let _guard = EDIT_LOCK.lock().await;
            let content = environment.read_text(&target).await?;
            self.0.agent.files.check_text(context, &content)?;
            let (content, notes) = apply_edits(content.into_bytes(), &requests)?;
            let content = String::from_utf8_lossy(&content);
            environment.write_text(&target, &content).await?;
            return Ok(format!("edited: {target}{notes}"));
        }
        let file = self.0.find(context, "fs.edit", arguments, FileUse::Change);
        let file = file.await?;
        run_blocking(move || {
            let first_edit = edit::EditRequest {
                path: &path,
                old: &old,
                new: &new,
                start,
                all,
            };
            edit_file(&file, &parse_edits(first_edit, &edits)?)
        })
        .await?
    }
}

/// Returns the edits of a call. The items of the argument `edits` follow the first one.
fn parse_edits<'a>(
    first: edit::EditRequest<'a>,
    edits: &'a [Map<String, Value>],
) -> Result<Vec<edit::EditRequest<'a>>> {
    let path = first.path;
    let further = (2..).zip(edits);
    let further = further.map(|(number, edit)| parse_edit(path, edit, number));
    std::iter::once(Ok(first)).chain(further).collect()
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
    let (content, notes) = apply_edits(content, requests)?;
    file.replace(&content)?;
    Ok(format!("edited: {}{notes}", file.shown_path().display()))
}

/// Returns the content after all edits, and notes about them.
fn apply_edits(
    mut content: Vec<u8>,
    requests: &[edit::EditRequest<'_>],
) -> Result<(Vec<u8>, String)> {
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
    if requests.len() > 1 {
        notes.insert(0, format!("{} edits", requests.len()));
    }
    let notes = if notes.is_empty() {
        String::new()
    } else {
        format!(" ({})", notes.join(", "))
    };
    Ok((content, notes))
}
