//! What two equal runs of a conversation do not share: workspace, session, ids of tool calls, and the origin and date of messages.
//!
//! A replay may run in another directory, on another day and in another session than its tape. So requests are compared
//! without these names; see [`Normalizer`].

use std::collections::HashMap;

use bub::{Entry, EntryKind, Turn, tape::TapeName};
use serde_json::Value;

/// What replaces the names of both runs in a comparison.
const WORKSPACE_TEXT: &str = "<workspace>";
const TAPE_TEXT: &str = "<tape>";
const SESSION_TEXT: &str = "<session>";

/// The text before and after the workspace in the system prompt.
const WORKSPACE_START: &str = "\nWorking directory: ";
const WORKSPACE_END: &str = ". System: ";

/// The text before and after the date in the header of a message.
const DATE_START: &str = "\n---Date: ";
const DATE_END: &str = "---\n";
/// Maximum length of a date.
const MAX_DATE_BYTES: usize = 40;

/// The workspace and the session of a run. A tape that was moved or copied has more than one.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    workspaces: Vec<String>,
    sessions: Vec<String>,
}

impl Surroundings {
    /// Creates the surroundings of a session in a workspace.
    pub fn new(workspace: impl Into<String>, session_id: impl Into<String>) -> Self {
        Self {
            workspaces: vec![workspace.into()],
            sessions: vec![session_id.into()],
        }
    }

    /// Returns the surroundings of a turn.
    pub fn of_turn(turn: &Turn) -> Self {
        let mut surroundings = Self::new(turn.framework().workspace_text(), &**turn.session_id());
        let path = turn.framework().workspace().display().to_string();
        add(&mut surroundings.workspaces, &path);
        surroundings
    }

    /// Returns the surroundings in which entries were recorded.
    pub(crate) fn of_entries(entries: &[Entry]) -> Self {
        let mut surroundings = Self::default();
        for entry in entries {
            let info = match entry.name() {
                Some("session.info") => entry.data().and_then(Value::as_object),
                _ => Some(&entry.meta),
            };
            let text = |key: &str| info?.get(key)?.as_str();
            if let Some(session) = text("session_id") {
                add(&mut surroundings.sessions, session);
                add(
                    &mut surroundings.workspaces,
                    text("workspace").unwrap_or_default(),
                );
            }
            if entry.kind == EntryKind::System {
                let prompt = entry.payload.get("content").and_then(Value::as_str);
                let path = prompt.and_then(|prompt| {
                    let (_, rest) = prompt.split_once(WORKSPACE_START)?;
                    Some(rest.split_once(WORKSPACE_END)?.0)
                });
                add(&mut surroundings.workspaces, path.unwrap_or_default());
            }
        }
        surroundings
    }

    /// Returns a value with the workspace of `self` replaced by that of `target`.
    pub(crate) fn translate(&self, target: &Self, value: &Value) -> Value {
        let Some(target) = target.workspaces.first() else {
            return value.clone();
        };
        let names = self.workspaces.iter().map(|path| (&**path, &**target));
        replace_names(value, &longest_first(names.collect()))
    }
}

fn add(names: &mut Vec<String>, name: &str) {
    // The root directory is part of every path.
    if name.len() > 1 && !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

/// Removes from messages what differs between two equal runs.
///
/// Both sides of a comparison lose the names of both runs, so that equal messages stay equal.
#[derive(Debug)]
pub(crate) struct Normalizer {
    names: Vec<(String, &'static str)>,
}

impl Normalizer {
    pub(crate) fn new(recorded: &Surroundings, current: &Surroundings) -> Self {
        let mut names = Vec::new();
        for surroundings in [recorded, current] {
            for workspace in &surroundings.workspaces {
                for session in &surroundings.sessions {
                    let tape = TapeName::for_session(workspace, session);
                    names.push((tape.to_string(), TAPE_TEXT));
                }
                names.push((workspace.clone(), WORKSPACE_TEXT));
            }
            let sessions = surroundings.sessions.iter();
            names.extend(sessions.map(|session| (session.clone(), SESSION_TEXT)));
        }
        Self {
            names: longest_first(names),
        }
    }

    /// Returns messages without names of the runs, ids of tool calls, headers, and data of the provider such as signatures.
    pub(crate) fn messages<'a>(&self, messages: impl IntoIterator<Item = &'a Value>) -> Vec<Value> {
        let messages = messages.into_iter();
        let mut messages: Vec<Value> = messages.map(|message| self.message(message)).collect();
        number_tool_calls(&mut messages);
        messages
    }

    fn message(&self, message: &Value) -> Value {
        let mut message = replace_names(message, &self.names);
        let Some(fields) = message.as_object_mut() else {
            return message;
        };
        fields.remove("provider_state");
        match fields.get_mut("content") {
            Some(Value::String(text)) if text.starts_with("<handoff") => {
                *text = without_entry_ids(text);
            }
            Some(Value::String(text)) => *text = without_headers(text),
            Some(Value::Array(parts)) => {
                for part in parts {
                    if let Some(Value::String(text)) = part.get_mut("text") {
                        *text = without_headers(text);
                    }
                }
            }
            _ => {}
        }
        message
    }
}

/// Returns the text of a handoff without the ids of entries, which differ between runs.
fn without_entry_ids(text: &str) -> String {
    let is_digit = |letter: char| letter.is_ascii_digit();
    let lines = text.lines().map(|line| {
        if line.starts_with("[Entries ") || line.starts_with("[… ") {
            return line.replace(is_digit, "");
        }
        match line.strip_prefix("- #") {
            Some(item) => format!("- {}", item.trim_start_matches(is_digit)),
            None => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Replaces the ids of tool calls by their numbers. Each provider has its own ids, and some use an id again.
fn number_tool_calls(messages: &mut [Value]) {
    let (mut numbers, mut count) = (HashMap::new(), 0);
    for message in messages {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for id in calls
            .into_iter()
            .flatten()
            .filter_map(|call| call.get_mut("id"))
        {
            count += 1;
            numbers.insert(std::mem::replace(id, count.into()), count);
        }
        if let Some(id) = message.get_mut("tool_call_id")
            && let Some(number) = numbers.get(id)
        {
            *id = (*number).into();
        }
    }
}

/// Returns a text without the headers of messages: the line with the sender and the chat, and the line with the date.
fn without_headers(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, dated)) = rest.split_once(DATE_START) {
        match dated.split_once(DATE_END) {
            Some((date, body)) if date.len() <= MAX_DATE_BYTES => {
                let context = before.rfind('\n').map_or(0, |newline| newline + 1);
                out.push_str(before.get(..context).unwrap_or_default());
                rest = body;
            }
            _ => {
                out.push_str(before);
                out.push_str(DATE_START);
                rest = dated;
            }
        }
    }
    out + rest
}

/// Sorts names, so that a name is replaced before another one that is part of it.
fn longest_first<N: AsRef<str>, T>(mut names: Vec<(N, T)>) -> Vec<(N, T)> {
    names.sort_by_key(|(name, _)| std::cmp::Reverse(name.as_ref().len()));
    names
}

/// Returns a value with names replaced in all texts.
fn replace_names<N: AsRef<str>, T: AsRef<str>>(value: &Value, names: &[(N, T)]) -> Value {
    match value {
        Value::String(text) => {
            let mut text = text.clone();
            for (name, replacement) in names {
                text = replace_name(text, name.as_ref(), replacement.as_ref());
            }
            Value::String(text)
        }
        Value::Array(items) => items
            .iter()
            .map(|item| replace_names(item, names))
            .collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|(key, value)| (key.clone(), replace_names(value, names)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

/// Replaces a name where it is not part of a longer name.
fn replace_name(text: String, name: &str, replacement: &str) -> String {
    if !text.contains(name) {
        return text;
    }
    let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-');
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for (start, found) in text.match_indices(name) {
        let end = start + found.len();
        let before = text.get(..start).unwrap_or_default().chars().next_back();
        let mut after = text.get(end..).unwrap_or_default().chars();
        let continues = match after.next() {
            // The end of a sentence, or of a file name?
            Some('.') => after.next().is_some_and(is_part),
            letter => letter.is_some_and(is_part),
        };
        if !before.is_some_and(is_part) && !continues {
            out.push_str(text.get(copied..start).unwrap_or_default());
            out.push_str(replacement);
            copied = end;
        }
    }
    out + text.get(copied..).unwrap_or_default()
}
