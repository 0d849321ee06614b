//! Edits a config file and keeps the rest of it unchanged.
//!
//! A change is made in the text at the position that the parser reports, so comments, order and
//! unknown keys stay. The new text is parsed again and must equal the old content with exactly this
//! change. If it does not (shared anchors, nested text), the change is rejected.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::{SettingSource, SettingsError, display, files, yaml};

mod locate;
mod quote;
mod save;

use locate::{ValueShape, ValueSpan};

/// Error of a config file change. The message never contains the value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The file cannot be read.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A key is to be set below a value that is not a map.
    #[error("{}:{line}: cannot set `{below}`: `{key}` is a single value or a list; unset it first", file.display())]
    NoMap {
        /// The config file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Existing key.
        key: String,
        /// Key to be set below `key`.
        below: String,
    },
    /// The syntax at this position cannot be changed safely.
    #[error("{}:{line}: `{key}` is written in a way that cannot be changed safely; use `bub config edit`", file.display())]
    Shape {
        /// The config file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The key.
        key: String,
    },
    /// The file would become too large to be read.
    #[error("{}: cannot be saved: it would be larger than 1 MiB; shorten the value", file.display())]
    TooLarge {
        /// The config file.
        file: PathBuf,
    },
    /// Another process changed the file.
    #[error("{}: changed by another process; the file was not written, try again", file.display())]
    Changed {
        /// The config file.
        file: PathBuf,
    },
    /// The file cannot be written.
    #[error("{}: cannot be written: {source}; check its permissions and the free space", file.display())]
    Unwritable {
        /// The config file.
        file: PathBuf,
        /// Error from the operating system.
        source: std::io::Error,
    },
}

/// Text of a config file with pending changes.
///
/// `Debug` is not implemented, because the text may contain keys.
pub struct ConfigFile {
    path: PathBuf,
    /// Text of the file when it was read; `None` if it did not exist.
    before: Option<String>,
    text: String,
}

impl ConfigFile {
    /// Reads a file, which may not exist yet.
    pub fn open(path: &Path) -> Result<Self, EditError> {
        let before = files::read_text_file(path)?;
        let text = before.clone().unwrap_or_default();
        Ok(Self {
            path: path.to_owned(),
            before,
            text,
        })
    }

    /// Returns the text with all changes.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the text as it was read.
    pub fn text_on_disk(&self) -> &str {
        self.before.as_deref().unwrap_or_default()
    }

    /// Replaces the complete text, for changes in an editor.
    pub fn set_text(&mut self, text: String) {
        self.text = text;
    }

    /// Returns whether the text has changes.
    pub fn is_changed(&self) -> bool {
        self.text != self.text_on_disk()
    }

    /// Parses the text; the result is empty for an empty file.
    pub fn parse(&self) -> Result<Map<String, Value>, EditError> {
        self.parse_text(&self.text)
    }

    /// Sets the value at a path of keys.
    pub fn set(&mut self, path: &[&str], value: &Value) -> Result<(), EditError> {
        let mut expected = self.parse()?;
        if value_at(&expected, path) == Some(value) {
            return Ok(());
        }
        let span = self.locate(path)?;
        set_at(&mut expected, path, value);
        let text = self.text_with_value(&span, path, value)?;
        self.accept_edit(text, &expected, path, &span)
    }

    /// Removes the value at a path of keys, and maps that become empty. Returns whether there was a
    /// value.
    pub fn unset(&mut self, path: &[&str]) -> Result<bool, EditError> {
        let mut was_set = false;
        // A key may occur twice; remove both, so that the first one does not take effect.
        while value_at(&self.parse()?, path).is_some() {
            let span = self.locate(path)?;
            let mut expected = self.parse()?;
            let text = self.text_without_value(&span, path)?;
            // Without one of two equal keys, the other takes effect: compare only the rest.
            let after = self
                .parse_text(&text)
                .map_err(|_| self.shape_error(path, &span))?;
            match value_at(&after, path).cloned() {
                Some(other) => set_at(&mut expected, path, &other),
                None => remove_at(&mut expected, path),
            }
            self.accept_edit(text, &expected, path, &span)?;
            was_set = true;
        }
        Ok(was_set)
    }

    fn parse_text(&self, text: &str) -> Result<Map<String, Value>, EditError> {
        let file: std::sync::Arc<Path> = self.path.as_path().into();
        let origin = move |line| SettingSource::Config {
            file: file.clone(),
            line,
        };
        let document = yaml::parse(text, &origin).map_err(|problem| SettingsError::Syntax {
            file: self.path.clone(),
            line: problem.line,
            column: problem.column,
            problem: problem.text,
        })?;
        match document.root.as_ref().map(display::undeclared_to_value) {
            None => Ok(Map::new()),
            Some(Value::Object(map)) => Ok(map),
            Some(_) => {
                let (file, line, found) = (self.path.clone(), 1, "a single value or a list");
                Err(SettingsError::NotAMap { file, line, found }.into())
            }
        }
    }

    fn locate(&self, path: &[&str]) -> Result<ValueSpan, EditError> {
        let shape = || EditError::Shape {
            file: self.path.clone(),
            line: 1,
            key: path.first().copied().unwrap_or("").to_owned(),
        };
        locate::locate_values(&self.text).ok_or_else(shape)
    }

    fn accept_edit(
        &mut self,
        text: String,
        expected: &Map<String, Value>,
        path: &[&str],
        span: &ValueSpan,
    ) -> Result<(), EditError> {
        match self.parse_text(&text) {
            Ok(parsed) if parsed == *expected => self.text = text,
            _ => return Err(self.shape_error(path, span)),
        }
        Ok(())
    }

    fn shape_error(&self, path: &[&str], span: &ValueSpan) -> EditError {
        let start = path
            .first()
            .and_then(|key| span.entry(key))
            .map_or(0, |entry| entry.start);
        EditError::Shape {
            file: self.path.clone(),
            line: self.line_number(start),
            key: path.join("."),
        }
    }

    fn line_number(&self, offset: usize) -> usize {
        self.text
            .bytes()
            .take(offset)
            .filter(|byte| *byte == b'\n')
            .count()
            + 1
    }

    /// Returns the end of a line, before its line break.
    fn line_end(&self, offset: usize) -> usize {
        let rest = self.text.get(offset..).unwrap_or_default();
        let line = rest.split('\n').next().unwrap_or_default();
        offset + line.trim_end_matches('\r').len()
    }

    fn line_start(&self, offset: usize) -> usize {
        self.text
            .get(..offset)
            .and_then(|head| head.rfind('\n'))
            .map_or(0, |at| at + 1)
    }

    fn newline(&self) -> &'static str {
        if self.text.contains("\r\n") {
            "\r\n"
        } else {
            "\n"
        }
    }

    /// Returns the text with some byte ranges replaced. The edits must be in descending order, so
    /// that the positions of later edits stay valid.
    fn splice(&self, edits: &[(usize, usize, String)]) -> String {
        let mut text = self.text.clone();
        for (start, end, new) in edits {
            if text.is_char_boundary(*start)
                && text.is_char_boundary(*end)
                && start <= end
                && *end <= text.len()
            {
                text.replace_range(*start..*end, new);
            }
        }
        text
    }

    fn text_with_value(
        &self,
        root: &ValueSpan,
        path: &[&str],
        value: &Value,
    ) -> Result<String, EditError> {
        let (mut span, mut depth) = (root, 0);
        while let Some(entry) = path.get(depth).and_then(|key| span.entry(key)) {
            depth += 1;
            if depth == path.len() {
                return Ok(self.splice(
                    &self.value_edits(entry, &quote::format_inline(value, span.is_flow())),
                ));
            }
            match &entry.value.shape {
                ValueShape::Nothing => {
                    return Ok(self.splice(&self.first_key_edits(
                        entry,
                        root_column(span),
                        path.get(depth..).unwrap_or_default(),
                        value,
                    )));
                }
                ValueShape::Single | ValueShape::List => {
                    return Err(EditError::NoMap {
                        file: self.path.clone(),
                        line: self.line_number(entry.start),
                        key: path.get(..depth).unwrap_or_default().join("."),
                        below: path.get(depth..).unwrap_or_default().join("."),
                    });
                }
                ValueShape::Map { .. } => span = &entry.value,
            }
        }
        let rest = path.get(depth..).unwrap_or_default();
        let edit = match &span.shape {
            ValueShape::Map {
                is_flow: true,
                entries,
                ..
            } => {
                let comma = if entries.is_empty() { "" } else { ", " };
                let at = entries
                    .last()
                    .map_or(span.start + 1, |entry| entry.value.end);
                (
                    at,
                    at,
                    format!("{comma}{}", quote::format_nested_inline(rest, value)),
                )
            }
            ValueShape::Map {
                column, entries, ..
            } => {
                let at = self.line_end(entries.last().map_or(span.end, |entry| entry.value.end));
                (
                    at,
                    at,
                    format!(
                        "{}{}",
                        self.newline(),
                        self.format_block(rest, value, *column)
                    ),
                )
            }
            _ => {
                let end = self.text.len();
                let gap = if self.text.is_empty() || self.text.ends_with('\n') {
                    ""
                } else {
                    self.newline()
                };
                (
                    end,
                    end,
                    format!(
                        "{gap}{}{}",
                        self.format_block(rest, value, 0),
                        self.newline()
                    ),
                )
            }
        };
        Ok(self.splice(&[edit]))
    }

    /// Formats a key and its value as separate lines.
    fn format_block(&self, path: &[&str], value: &Value, column: usize) -> String {
        let mut text = String::new();
        for (depth, key) in path.iter().enumerate() {
            let indent = " ".repeat(column + 2 * depth);
            let gap = if depth == 0 { "" } else { self.newline() };
            let _ = write!(text, "{gap}{indent}{}:", quote::quote_text(key, false));
        }
        text + " " + &quote::format_inline(value, false)
    }

    fn value_edits(&self, entry: &locate::KeySpan, new: &str) -> Vec<(usize, usize, String)> {
        let colon = entry.colon;
        let old_value = self
            .text
            .get(colon..entry.value.end.max(colon))
            .unwrap_or_default();
        if old_value.contains('\n') {
            // Keep a comment after the key.
            let end = self.line_end(colon);
            let is_comment = self
                .text
                .get(colon..end)
                .is_some_and(|rest| rest.trim_start().starts_with('#'));
            let from = if is_comment { end } else { colon };
            return vec![
                (from, entry.value.end, String::new()),
                (colon, colon, format!(" {new}")),
            ];
        }
        let blanks = if old_value.trim().is_empty() {
            0
        } else {
            old_value.len() - old_value.trim_start().len()
        };
        let gap = if blanks == 0 { " " } else { "" };
        vec![(
            colon + blanks,
            entry.value.end.max(colon),
            format!("{gap}{new}"),
        )]
    }

    /// Returns the edits that add the first key below a key without a value.
    fn first_key_edits(
        &self,
        entry: &locate::KeySpan,
        column: usize,
        path: &[&str],
        value: &Value,
    ) -> Vec<(usize, usize, String)> {
        let at = self.line_end(entry.value.end.max(entry.colon));
        let below = format!(
            "{}{}",
            self.newline(),
            self.format_block(path, value, column + 2)
        );
        vec![
            (at, at, below),
            (entry.colon, entry.value.end.max(entry.colon), String::new()),
        ]
    }

    fn text_without_value(&self, root: &ValueSpan, path: &[&str]) -> Result<String, EditError> {
        let (mut span, mut chain) = (root, Vec::new());
        for key in path {
            let Some(entry) = span.entry(key) else {
                return Err(self.shape_error(path, root));
            };
            chain.push((span, entry));
            span = &entry.value;
        }
        // Remove a map together with its last key; keep comments in it.
        let mut edits = Vec::new();
        let mut inner_end = None;
        while let Some((map, entry)) = chain.pop() {
            edits.push(self.removal_edit(map, entry, inner_end));
            inner_end = Some(entry.start);
            if map.len() > 1 {
                break;
            }
            if map.is_flow() && !chain.is_empty() {
                // The map is removed with its key.
                edits.clear();
                inner_end = None;
            }
        }
        Ok(self.splice(&edits))
    }

    /// Returns the edit that removes one entry. If other edits remove its content (`inner`), this
    /// edit removes only the line of the key.
    fn removal_edit(
        &self,
        map: &ValueSpan,
        entry: &locate::KeySpan,
        inner: Option<usize>,
    ) -> (usize, usize, String) {
        let end = entry.value.end.max(entry.colon);
        if let ValueShape::Map {
            is_flow: true,
            entries,
            ..
        } = &map.shape
        {
            let next = entries
                .iter()
                .map(|other| other.start)
                .find(|start| *start > entry.start);
            let before = entries
                .iter()
                .filter(|other| other.start < entry.start)
                .map(|other| other.value.end)
                .max();
            return match (next, before) {
                (Some(next), _) => (entry.start, next, String::new()),
                (None, Some(before)) => (before, end, String::new()),
                (None, None) => (entry.start, end, String::new()),
            };
        }
        let start = self.line_start(entry.start);
        let last = self.line_end(if inner.is_some() { entry.colon } else { end });
        let newline = self
            .text
            .get(last..)
            .map_or(0, |rest| rest.find('\n').map_or(rest.len(), |at| at + 1));
        (start, last + newline, String::new())
    }
}

fn root_column(span: &ValueSpan) -> usize {
    if let ValueShape::Map { column, .. } = &span.shape {
        *column
    } else {
        0
    }
}

fn value_at<'a>(map: &'a Map<String, Value>, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter()
        .try_fold(map.get(*first)?, |value, key| value.as_object()?.get(*key))
}

fn set_at(map: &mut Map<String, Value>, path: &[&str], value: &Value) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    if rest.is_empty() {
        map.insert((*first).to_owned(), value.clone());
        return;
    }
    let inner = map.entry(*first).or_insert(Value::Null);
    if !inner.is_object() {
        *inner = Value::Object(Map::new());
    }
    if let Value::Object(inner) = inner {
        set_at(inner, rest, value);
    }
}

fn remove_at(map: &mut Map<String, Value>, path: &[&str]) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    if rest.is_empty() {
        map.remove(*first);
    } else if let Some(Value::Object(inner)) = map.get_mut(*first) {
        remove_at(inner, rest);
        if inner.is_empty() {
            map.remove(*first);
        }
    }
}
