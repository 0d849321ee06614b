//! Splits a file into prose and identifiers.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use crate::sandbox::root;

/// Directories and files of the repository that are searched.
const SEARCHED: &[&str] = &[
    ".ci", "crates", "docs", "fuzz", "plugins", "scripts", "sdk", "xtask",
];

/// Paths whose content is data: recorded files, inputs for fuzzing, build output.
const DATA: &[&str] = &[
    "/tests/data/",
    "/proptest-regressions/",
    "/target/",
    "/__pycache__/",
    "fuzz/seeds/",
    "fuzz/corpus/",
    "fuzz/artifacts/",
    "docs/images/",
];

/// Endings of the names of text files.
const TEXT_FILES: &[&str] = &[
    ".rs",
    ".md",
    ".py",
    ".toml",
    ".sh",
    ".txt",
    ".yml",
    ".json",
    ".stderr",
    "Containerfile",
    ".ci/run",
    "scripts/fuzz",
    "scripts/mutations",
];

/// What a byte of a file belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Code,
    Comment,
    Literal,
}

/// An identifier in code.
pub(super) struct Name {
    pub(super) offset: usize,
    pub(super) text: String,
    /// Whether it is the name of a test function.
    pub(super) is_test: bool,
}

/// A file with its prose separated from its code.
pub(super) struct Source {
    /// The path relative to the repository.
    pub(super) path: String,
    pub(super) text: String,
    /// The text with code replaced by NUL and comment markers replaced by spaces. Offsets are those of `text`.
    pub(super) prose: Vec<u8>,
    /// The class of each byte.
    pub(super) classes: Vec<Class>,
    pub(super) names: Vec<Name>,
}

impl Source {
    /// Parses a text by the ending of its path.
    pub(super) fn parse(path: &str, text: String) -> Self {
        let mut source = Self {
            path: path.to_owned(),
            prose: text.clone().into_bytes(),
            classes: vec![Class::Comment; text.len()],
            names: Vec::new(),
            text,
        };
        match extension(path) {
            "rs" => source.parse_rust(),
            "py" => source.parse_python(),
            "md" => {}
            _ => source.blank_line_markers(),
        }
        source
    }

    /// The line number of an offset, from 1.
    pub(super) fn line_number(&self, offset: usize) -> usize {
        1 + self.text[..offset].matches('\n').count()
    }

    /// The line that contains an offset.
    pub(super) fn line(&self, offset: usize) -> &str {
        let start = self.text[..offset].rfind('\n').map_or(0, |at| at + 1);
        self.text[start..].lines().next().unwrap_or_default()
    }

    /// Whether the file is production code in Rust.
    pub(super) fn is_production(&self) -> bool {
        extension(&self.path) == "rs"
            && self.path.contains("/src/")
            && !self.path.contains("/tests")
    }

    fn parse_rust(&mut self) {
        let bytes = self.text.clone().into_bytes();
        let mut at = 0;
        let mut in_test = false;
        let mut previous = String::new();
        while at < bytes.len() {
            let rest = &bytes[at..];
            if rest.starts_with(b"//") {
                let end = at + length_until(rest, b"\n");
                let marker = rest
                    .iter()
                    .take_while(|byte| matches!(byte, b'/' | b'!'))
                    .count();
                self.blank(at, at + marker);
                at = end;
            } else if rest.starts_with(b"/*") {
                let end = at + block_comment_length(rest);
                self.blank_bytes(at, end, b"/*!");
                at = end;
            } else if let Some((open, close)) = raw_string(rest, &previous) {
                let end = at + open + length_until(&rest[open..], close.as_bytes());
                self.code(at, at + open);
                self.literal(at + open, end);
                at = (end + close.len()).min(bytes.len());
                self.code(end, at);
                "\"".clone_into(&mut previous);
            } else if rest[0] == b'"' {
                let end = at + 1 + string_length(&rest[1..]);
                self.code(at, at + 1);
                self.literal(at + 1, end);
                self.blank_escapes(at + 1, end);
                at = (end + 1).min(bytes.len());
                self.code(end, at);
                "\"".clone_into(&mut previous);
            } else if rest[0] == b'\'' {
                let length = char_length(rest);
                self.code(at, at + length);
                at += length;
            } else if is_name_start(rest[0]) {
                let name = word_at(rest);
                if name == "test" && matches!(previous.as_str(), "[" | ":") {
                    in_test = true;
                }
                self.names.push(Name {
                    offset: at,
                    text: name.clone(),
                    is_test: in_test && previous == "fn",
                });
                self.code(at, at + name.len());
                at += name.len();
                previous = name;
            } else {
                if matches!(rest[0], b'{' | b'}' | b';') {
                    in_test = false;
                }
                if !rest[0].is_ascii_whitespace() {
                    previous = char::from(rest[0]).to_string();
                }
                self.code(at, at + 1);
                at += 1;
            }
        }
    }

    fn parse_python(&mut self) {
        let bytes = self.text.clone().into_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let quote = ["\"\"\"", "'''", "\"", "'"]
                .into_iter()
                .find(|quote| rest.starts_with(quote.as_bytes()));
            if rest[0] == b'#' {
                self.blank(at, at + 1);
                at += length_until(rest, b"\n");
            } else if let Some(quote) = quote {
                let start = at + quote.len();
                let mut end = start;
                while end < bytes.len() && !bytes[end..].starts_with(quote.as_bytes()) {
                    end += if bytes[end] == b'\\' { 2 } else { 1 };
                }
                let end = end.min(bytes.len());
                self.code(at, start);
                self.literal(start, end);
                at = (end + quote.len()).min(bytes.len());
                self.code(end, at);
            } else if is_name_start(rest[0]) {
                let name = word_at(rest);
                self.code(at, at + name.len());
                self.names.push(Name {
                    offset: at,
                    is_test: name.starts_with("test_"),
                    text: name.clone(),
                });
                at += name.len();
            } else {
                self.code(at, at + 1);
                at += 1;
            }
        }
    }

    /// Removes the `#` at the start of lines, so that phrases match across the lines of a comment.
    fn blank_line_markers(&mut self) {
        let mut is_line_start = true;
        for byte in &mut self.prose {
            match byte {
                b'\n' => is_line_start = true,
                b'#' if is_line_start => *byte = b' ',
                byte if byte.is_ascii_whitespace() => {}
                _ => is_line_start = false,
            }
        }
    }

    fn code(&mut self, start: usize, end: usize) {
        self.classes[start..end].fill(Class::Code);
        for byte in &mut self.prose[start..end] {
            if !byte.is_ascii_whitespace() {
                *byte = 0;
            }
        }
    }

    fn literal(&mut self, start: usize, end: usize) {
        self.classes[start..end].fill(Class::Literal);
    }

    fn blank(&mut self, start: usize, end: usize) {
        self.prose[start..end].fill(b' ');
    }

    fn blank_bytes(&mut self, start: usize, end: usize, bytes: &[u8]) {
        for byte in &mut self.prose[start..end] {
            if bytes.contains(byte) {
                *byte = b' ';
            }
        }
    }

    /// Replaces `\n` and the like by spaces; a backslash at the end of a line keeps its newline.
    fn blank_escapes(&mut self, start: usize, end: usize) {
        let mut at = start;
        while at < end {
            if self.prose[at] == b'\\' {
                let last = (at + 2).min(end);
                self.blank(at, last);
                at = last;
            } else {
                at += 1;
            }
        }
    }
}

/// All text files of the repository, in order of their paths.
pub(super) fn files() -> Vec<Source> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    for directory in SEARCHED {
        collect(&root().join(directory), &mut paths);
    }
    let relative = |path: &PathBuf| {
        let path = path.strip_prefix(root()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mut paths: Vec<String> = paths.iter().map(relative).collect();
    paths.retain(|path| {
        TEXT_FILES.iter().any(|ending| path.ends_with(ending))
            && !DATA.iter().any(|part| path.contains(part))
    });
    paths.sort();
    let sources = paths.into_iter().filter_map(|path| {
        let text = std::fs::read_to_string(root().join(&path)).ok()?;
        Some(Source::parse(&path, text))
    });
    sources.collect()
}

/// The names of all test functions.
pub(super) fn test_names(files: &[Source]) -> HashSet<String> {
    let names = files.iter().flat_map(|file| &file.names);
    names
        .filter(|name| name.is_test)
        .map(|name| name.text.clone())
        .collect()
}

/// The extension of a path. `a.rs.txt` is a template for a file in Rust.
pub(super) fn extension(path: &str) -> &str {
    let path = path.strip_suffix(".txt").unwrap_or(path);
    path.rsplit_once('.').map_or("", |(_, extension)| extension)
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    for entry in entries {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && entry.file_name() != "target" {
            collect(&entry.path(), paths);
        } else if kind.is_file() {
            paths.push(entry.path());
        }
    }
}

fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

/// The run of letters, digits and underscores that a text starts with.
fn word_at(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
        .map(|byte| char::from(*byte))
        .collect()
}

fn length_until(bytes: &[u8], end: &[u8]) -> usize {
    bytes
        .windows(end.len())
        .position(|window| window == end)
        .unwrap_or(bytes.len())
}

fn block_comment_length(bytes: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at.min(bytes.len())
}

/// The length of `r#"` and its closing `"#`, if a raw string starts here.
fn raw_string(bytes: &[u8], previous: &str) -> Option<(usize, String)> {
    let prefix = ["br", "cr", "r"]
        .into_iter()
        .find(|prefix| bytes.starts_with(prefix.as_bytes()))?;
    let hashes = bytes[prefix.len()..]
        .iter()
        .take_while(|byte| **byte == b'#')
        .count();
    let open = prefix.len() + hashes;
    let is_string = bytes.get(open) == Some(&b'"') && previous != "'";
    is_string.then(|| (open + 1, format!("\"{}", "#".repeat(hashes))))
}

/// The length of a string up to its closing quote.
fn string_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}

/// The length of a character literal, or 1 for the quote of a lifetime.
fn char_length(bytes: &[u8]) -> usize {
    if bytes.get(1) == Some(&b'\\') {
        return 3 + length_until(&bytes[3.min(bytes.len())..], b"'") + 1;
    }
    let text = String::from_utf8_lossy(&bytes[1..bytes.len().min(6)]);
    let first = text.chars().next().map_or(0, char::len_utf8);
    if bytes.get(1 + first) == Some(&b'\'') {
        first + 2
    } else {
        1
    }
}
