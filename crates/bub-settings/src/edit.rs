//! Edits a config file and keeps the rest of it unchanged.
//!
//! A change is made in the text at the position that the parser reports, so comments, order and
//! unknown keys stay. The new text is parsed again and must have the old content with exactly this
//! change. If it does not, for example because of a YAML alias, the change is rejected.
//!
//! The YAML crates that keep comments do not read what `PyYAML` reads, and their syntax trees would
//! add more to the program than this module.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::{SettingSource, SettingsError, files, yaml};

mod locate;
mod quote;
mod save;

pub(crate) use save::{lock_directory, write_atomically};

use locate::{KeySpan, ValueShape, ValueSpan};

/// A byte range of the text and its replacement.
type Edit = (Range<usize>, String);

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
    /// The value is written in YAML syntax that cannot be changed safely.
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
/// `Debug` is not implemented, because the text may contain API keys.
pub struct ConfigFile {
    path: PathBuf,
    /// Text of the file when it was read; `None` if it did not exist.
    before: Option<String>,
    text: String,
}

impl ConfigFile {
    /// Reads a file, which may not exist yet.
    pub fn open(path: &Path) -> Result<Self, EditError> {
        let before = files::read_own_file(path)?;
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
        match self.parse_text(&self.text)? {
            Value::Object(map) => Ok(map),
            _ => Ok(Map::new()),
        }
    }

    /// Sets the value at a path of keys.
    pub fn set(&mut self, path: &[&str], value: &Value) -> Result<(), EditError> {
        let mut expected = self.parse_text(&self.text)?;
        if value_at(&expected, path) == Some(value) {
            return Ok(());
        }
        let root = self.locate(path)?;
        set_at(&mut expected, path, value.clone());
        let text = self.splice(&self.edits_to_set(&root, path, value)?);
        match self.parse_text(&text) {
            Ok(parsed) if parsed == expected => self.text = text,
            _ => return Err(self.shape_error(path, &root)),
        }
        Ok(())
    }

    /// Removes the value at a path of keys, and maps that become empty. Returns whether there was a
    /// value.
    pub fn unset(&mut self, path: &[&str]) -> Result<bool, EditError> {
        let mut was_set = false;
        // A key may occur twice; remove both, so that the first one does not take effect.
        loop {
            let mut expected = self.parse_text(&self.text)?;
            if value_at(&expected, path).is_none() {
                return Ok(was_set);
            }
            let root = self.locate(path)?;
            let shape_error = || self.shape_error(path, &root);
            let edits = self.edits_to_unset(&root, path).ok_or_else(shape_error)?;
            let text = self.splice(&edits);
            let after = self.parse_text(&text).map_err(|_| shape_error())?;
            // If the key occurs twice, the other occurrence takes effect now. Expect its value, so
            // that only the other keys are compared.
            match value_at(&after, path) {
                Some(other) => set_at(&mut expected, path, other.clone()),
                None => remove_at(&mut expected, path),
            }
            if after != expected {
                return Err(shape_error());
            }
            self.text = text;
            was_set = true;
        }
    }

    /// Parses a text into a map.
    fn parse_text(&self, text: &str) -> Result<Value, EditError> {
        let document = yaml::parse(text, &|_| SettingSource::Default);
        match document
            .map_err(|error| error.in_file(&self.path))?
            .to_value()
        {
            Value::Null => Ok(Value::Object(Map::new())),
            map @ Value::Object(_) => Ok(map),
            _ => {
                let (file, line, found) = (self.path.clone(), 1, "a single value or a list");
                Err(SettingsError::NotAMap { file, line, found }.into())
            }
        }
    }

    fn locate(&self, path: &[&str]) -> Result<ValueSpan, EditError> {
        locate::locate_values(&self.text).ok_or_else(|| EditError::Shape {
            file: self.path.clone(),
            line: 1,
            key: path.first().copied().unwrap_or("").to_owned(),
        })
    }

    fn shape_error(&self, path: &[&str], root: &ValueSpan) -> EditError {
        let entry = path.first().and_then(|key| root.entry(key));
        EditError::Shape {
            file: self.path.clone(),
            line: self.line_number(entry.map_or(0, |entry| entry.start)),
            key: path.join("."),
        }
    }

    fn line_number(&self, offset: usize) -> usize {
        let before = self.text.bytes().take(offset);
        before.filter(|byte| *byte == b'\n').count() + 1
    }

    /// Returns the byte offset of the end of the line that contains `offset`, before its line
    /// break.
    fn line_end(&self, offset: usize) -> usize {
        let rest = self.text.get(offset..).unwrap_or_default();
        offset + rest.lines().next().unwrap_or_default().len()
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
    fn splice(&self, edits: &[Edit]) -> String {
        let mut text = self.text.clone();
        for (range, new) in edits {
            if text.get(range.clone()).is_some() {
                text.replace_range(range.clone(), new);
            }
        }
        text
    }

    fn edits_to_set(
        &self,
        root: &ValueSpan,
        path: &[&str],
        value: &Value,
    ) -> Result<Vec<Edit>, EditError> {
        let (mut map, mut rest) = (root, path);
        while let [key, below @ ..] = rest
            && let Some(entry) = map.entry(key)
        {
            if below.is_empty() {
                let new = quote::format_inline(value, map.is_flow());
                return Ok(self.value_edits(entry, &new));
            }
            match entry.value.shape {
                // Add the first key below a key without a value.
                ValueShape::Null => {
                    let at = self.line_end(entry.value.end);
                    let block = self.format_block(below, value, map.column() + 2);
                    let without_null = (entry.colon..entry.value.end, String::new());
                    return Ok(vec![
                        (at..at, self.newline().to_owned() + &block),
                        without_null,
                    ]);
                }
                ValueShape::Other => {
                    let above = path.len() - below.len();
                    return Err(EditError::NoMap {
                        file: self.path.clone(),
                        line: self.line_number(entry.start),
                        key: path.get(..above).unwrap_or_default().join("."),
                        below: below.join("."),
                    });
                }
                ValueShape::Map { .. } => (map, rest) = (&entry.value, below),
            }
        }
        let newline = self.newline();
        let (at, new) = match &map.shape {
            ValueShape::Map {
                is_flow: true,
                entries,
                ..
            } => {
                let new = quote::format_nested_inline(rest, value);
                match entries.last() {
                    Some(last) => (last.value.end, format!(", {new}")),
                    None => (map.start + 1, new),
                }
            }
            ValueShape::Map { column, .. } => {
                let block = self.format_block(rest, value, *column);
                (self.line_end(map.end), format!("{newline}{block}"))
            }
            _ => {
                let is_line_end = self.text.is_empty() || self.text.ends_with('\n');
                let gap = if is_line_end { "" } else { newline };
                let block = self.format_block(rest, value, 0);
                (self.text.len(), format!("{gap}{block}{newline}"))
            }
        };
        Ok(vec![(at..at, new)])
    }

    /// Formats nested keys and a value as YAML lines; the first key is indented by `column` blanks.
    fn format_block(&self, path: &[&str], value: &Value, column: usize) -> String {
        let keys = path.iter().enumerate().map(|(depth, key)| {
            let indent = " ".repeat(column + 2 * depth);
            format!("{indent}{}:", quote::quote_text(key, false))
        });
        let keys: Vec<_> = keys.collect();
        keys.join(self.newline()) + " " + &quote::format_inline(value, false)
    }

    fn value_edits(&self, entry: &KeySpan, new: &str) -> Vec<Edit> {
        let (colon, end) = (entry.colon, entry.value.end);
        let old = self.text.get(colon..end).unwrap_or_default();
        if old.contains('\n') {
            // Keep a comment after the key.
            let first_line = old.lines().next().unwrap_or_default();
            let is_comment = first_line.trim_start().starts_with('#');
            let from = if is_comment {
                colon + first_line.len()
            } else {
                colon
            };
            return vec![
                (from..end, String::new()),
                (colon..colon, format!(" {new}")),
            ];
        }
        let blanks = old.len() - old.trim_start().len();
        if blanks == 0 || old.trim().is_empty() {
            return vec![(colon..end, format!(" {new}"))];
        }
        vec![(colon + blanks..end, new.to_owned())]
    }

    fn edits_to_unset(&self, root: &ValueSpan, path: &[&str]) -> Option<Vec<Edit>> {
        let (mut map, mut chain) = (root, Vec::new());
        for key in path {
            let entry = map.entry(key)?;
            chain.push((map, entry));
            map = &entry.value;
        }
        // Remove a map together with its only key; keep the comments in the map.
        let mut edits = Vec::new();
        while let Some((map, entry)) = chain.pop() {
            let range = self.entry_range(map, entry, !edits.is_empty());
            edits.push((range, String::new()));
            if map.entries().len() > 1 {
                break;
            }
            if map.is_flow() && !chain.is_empty() {
                // The edit for the key of this map removes the whole map, so discard the inner
                // edits.
                edits.clear();
            }
        }
        Some(edits)
    }

    /// Returns the byte range to remove for one entry. If other edits remove its content
    /// (`is_emptied`), it is only the line of the key.
    fn entry_range(&self, map: &ValueSpan, entry: &KeySpan, is_emptied: bool) -> Range<usize> {
        let end = entry.value.end;
        if map.is_flow() {
            let mut others = map.entries().iter();
            let before = others.clone().rfind(|other| other.start < entry.start);
            let next = others.find(|other| other.start > entry.start);
            return match (next, before) {
                (Some(next), _) => entry.start..next.start,
                (None, Some(before)) => before.value.end..end,
                (None, None) => entry.start..end,
            };
        }
        let above = self.text.get(..entry.start).unwrap_or_default();
        let last = self.line_end(if is_emptied { entry.colon } else { end });
        let below = self.text.get(last..).unwrap_or_default();
        let line_break = below.find('\n').map_or(below.len(), |at| at + 1);
        above.rfind('\n').map_or(0, |at| at + 1)..last + line_break
    }
}

fn value_at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

fn set_at(mut value: &mut Value, path: &[&str], new: Value) {
    for key in path {
        if !value.is_object() {
            *value = Value::Null;
        }
        // Indexing turns null into a map and inserts a missing key.
        value = &mut value[*key];
    }
    *value = new;
}

fn remove_at(value: &mut Value, path: &[&str]) {
    let (Some((first, rest)), Some(map)) = (path.split_first(), value.as_object_mut()) else {
        return;
    };
    if !rest.is_empty()
        && let Some(inner) = map.get_mut(*first)
    {
        remove_at(inner, rest);
        if inner.as_object().is_none_or(|inner| !inner.is_empty()) {
            return;
        }
    }
    map.remove(*first);
}
