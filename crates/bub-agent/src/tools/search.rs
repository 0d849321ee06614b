//! The tools `fs.list`, `fs.glob` and `fs.grep`, which look around without a shell.

use std::{
    io::Read as _,
    ops::ControlFlow,
    path::Path,
    time::{Duration, Instant},
};

use bub_kernel::{Error, Result, ToolContext, tool::run_blocking, tools};
use globset::{GlobBuilder, GlobMatcher};
use regex::bytes::{Regex, RegexBuilder};
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{fs::FileFinder, object_schema};
use crate::{
    files::{AllowedTree, TreeEntry, WalkLimits, WalkOutcome, shown_path},
    truncate,
};

/// Maximum paths in a result.
const MAX_PATHS: usize = 500;
/// Maximum matching lines in a result.
const MAX_MATCHES: usize = 200;
/// Maximum lines before and after a match.
const MAX_CONTEXT_LINES: u32 = 20;
/// Maximum characters of a line in a result.
const MAX_LINE_CHARS: usize = 300;
/// Maximum size of a file that is searched.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Number of bytes at the start of a file that are searched for a zero byte. A file with a zero byte is not searched.
const BINARY_PROBE_BYTES: usize = 8 << 10;
const SEARCH_TIMEOUT: Duration = Duration::from_secs(20);

/// The tools that list and search files.
pub(super) struct SearchTools(pub(super) FileFinder);

/// The result of a search.
#[derive(Default, Serialize, Deserialize)]
struct SearchResult {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    paths: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    matches: Vec<LineMatch>,
    /// What the result omits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// A line that matches, or a line around one.
#[derive(Serialize, Deserialize)]
struct LineMatch {
    path: String,
    /// The number of the line, starting at 0 as in `fs.read`.
    line: u64,
    text: String,
}

#[tools(crate = bub_kernel)]
impl SearchTools {
    /// List files and directories, except ignored ones
    #[tool(name = "fs.list", read_only, render = render_result, output = paths_schema)]
    async fn fs_list(
        &self,
        context: &ToolContext,
        #[default(".")] path: String,
        /// Levels to list
        #[default(1)]
        depth: u32,
    ) -> Result<Value> {
        let arguments = json!({"path": path});
        let tree = self.0.find_tree(context, "fs.list", arguments).await?;
        let depth = usize::try_from(depth.max(1)).unwrap_or(usize::MAX);
        self.search(context, tree, depth, move |tree, limits| {
            list_paths(tree, limits, &path, |_| true)
        })
        .await
    }

    /// Find files by name
    #[tool(name = "fs.glob", read_only, render = render_result, output = paths_schema)]
    async fn fs_glob(
        &self,
        context: &ToolContext,
        /// Such as `src/**/*.rs`
        pattern: String,
        #[default(".")] path: String,
    ) -> Result<Value> {
        let glob = parse_glob(&pattern)?;
        let arguments = json!({"path": path, "pattern": pattern});
        let tree = self.0.find_tree(context, "fs.glob", arguments).await?;
        self.search(context, tree, usize::MAX, move |tree, limits| {
            list_paths(tree, limits, &path, |entry| {
                entry.kind == FileType::RegularFile && glob.is_match(entry.path)
            })
        })
        .await
    }

    /// Search the text of files
    #[tool(name = "fs.grep", read_only, render = render_result, output = matches_schema)]
    async fn fs_grep(
        &self,
        context: &ToolContext,
        /// Regular expression
        pattern: String,
        #[default(".")] path: String,
        /// Only files such as `*.rs`
        glob: Option<String>,
        #[default(false)] ignore_case: bool,
        /// Lines around a match
        #[default(0)]
        context_lines: u32,
    ) -> Result<Value> {
        let regex = RegexBuilder::new(&pattern)
            .case_insensitive(ignore_case)
            .multi_line(true)
            .crlf(true)
            .build();
        let regex = regex.map_err(|error| {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default();
            Error::invalid_input(format!("invalid `pattern`: {reason}"))
        })?;
        let glob = glob.filter(|glob| !glob.is_empty());
        let glob = glob.as_deref().map(parse_glob).transpose()?;
        let arguments = json!({"path": path, "pattern": pattern});
        let tree = self.0.find_tree(context, "fs.grep", arguments).await?;
        self.search(context, tree, usize::MAX, move |tree, limits| {
            let mut search = LineSearch {
                regex,
                context: u64::from(context_lines.min(MAX_CONTEXT_LINES)),
                result: SearchResult::default(),
                count: 0,
                skipped: 0,
            };
            let outcome = tree.walk(limits, &mut |entry| {
                let is_named = |glob: &GlobMatcher| {
                    entry.path.as_os_str().is_empty() || glob.is_match(entry.path)
                };
                if entry.kind != FileType::RegularFile || !glob.as_ref().is_none_or(is_named) {
                    return ControlFlow::Continue(());
                }
                search.search_file(entry, &shown_path(&path, entry.path))
            })?;
            Ok(search.into_result(outcome))
        })
        .await
    }
}

impl SearchTools {
    /// Runs a search on a thread where it may block.
    async fn search(
        &self,
        context: &ToolContext,
        tree: AllowedTree,
        max_depth: usize,
        search: impl FnOnce(&AllowedTree, &WalkLimits<'_>) -> Result<SearchResult> + Send + 'static,
    ) -> Result<Value> {
        let cancel = context.cancel.clone();
        let result = run_blocking(move || {
            let limits = WalkLimits {
                max_depth,
                deadline: Instant::now() + SEARCH_TIMEOUT,
                is_cancelled: &|| cancel.is_cancelled(),
            };
            search(&tree, &limits)
        });
        bub_kernel::tool::result_to_value(result.await??)
    }
}

/// Parses a pattern for paths. Without a slash, it applies to the name, as in an ignore file.
fn parse_glob(pattern: &str) -> Result<GlobMatcher> {
    let pattern = pattern.trim_start_matches("./");
    let pattern = if pattern.contains('/') {
        pattern.trim_start_matches('/').to_owned()
    } else {
        format!("**/{pattern}")
    };
    let glob = GlobBuilder::new(&pattern).literal_separator(true).build();
    let glob = glob.map_err(|error| Error::invalid_input(format!("invalid pattern: {error}")))?;
    Ok(glob.compile_matcher())
}

fn list_paths(
    tree: &AllowedTree,
    limits: &WalkLimits<'_>,
    root: &str,
    is_match: impl Fn(&TreeEntry<'_>) -> bool,
) -> Result<SearchResult> {
    let mut paths = Vec::new();
    let outcome = tree.walk(limits, &mut |entry| {
        if !is_match(entry) {
            return ControlFlow::Continue(());
        }
        if paths.len() == MAX_PATHS {
            return ControlFlow::Break(());
        }
        let path = shown_path(root, entry.path);
        let end = match entry.kind {
            FileType::Directory => "/",
            FileType::Symlink => "@",
            _ => "",
        };
        paths.push(format!("{}{end}", path.display()));
        ControlFlow::Continue(())
    })?;
    let advice = format!("only the first {MAX_PATHS} are listed; use a narrower path or pattern");
    Ok(SearchResult {
        paths,
        note: outcome_note(outcome, &advice),
        ..SearchResult::default()
    })
}

/// A search in progress.
struct LineSearch {
    regex: Regex,
    /// Lines to show before and after a match.
    context: u64,
    result: SearchResult,
    /// The number of matching lines.
    count: usize,
    /// The number of files that were too large to search.
    skipped: usize,
}

impl LineSearch {
    /// Searches a file. Files that are binary or cannot be read have no matches.
    fn search_file(&mut self, entry: &TreeEntry<'_>, path: &Path) -> ControlFlow<()> {
        let Ok(file) = entry.open() else {
            return ControlFlow::Continue(());
        };
        if file
            .metadata()
            .is_ok_and(|found| found.len() > MAX_FILE_BYTES)
        {
            self.skipped += 1;
            return ControlFlow::Continue(());
        }
        let mut text = Vec::new();
        let head = |text: &[u8]| text.iter().take(BINARY_PROBE_BYTES).any(|byte| *byte == 0);
        if file.take(MAX_FILE_BYTES).read_to_end(&mut text).is_err() || head(&text) {
            return ControlFlow::Continue(());
        }
        let numbers = self.matching_lines(&text);
        let Some(last) = numbers.last() else {
            return ControlFlow::Continue(());
        };
        let end = last + self.context;
        let lines = text.split(|byte| *byte == b'\n');
        let mut remaining = numbers.as_slice();
        for (line, number) in lines.zip(0..=end) {
            while let [first, rest @ ..] = remaining
                && first + self.context < number
            {
                remaining = rest;
            }
            if remaining
                .first()
                .is_some_and(|first| number + self.context >= *first)
            {
                let text = String::from_utf8_lossy(line);
                self.result.matches.push(LineMatch {
                    path: path.display().to_string(),
                    line: number,
                    text: truncate(text.trim_end(), MAX_LINE_CHARS),
                });
            }
        }
        if self.count >= MAX_MATCHES {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Returns the numbers of the matching lines, and counts them.
    fn matching_lines(&mut self, text: &[u8]) -> Vec<u64> {
        let mut numbers: Vec<u64> = Vec::new();
        let (mut counted, mut number) = (0, 0);
        for found in self.regex.find_iter(text) {
            let before = text.get(counted..found.start()).unwrap_or_default();
            number += memchr::memchr_iter(b'\n', before).count() as u64;
            counted = found.start();
            // An empty match after the last line break is not on a line.
            if found.start() == text.len() && text.last() == Some(&b'\n') {
                break;
            }
            if numbers.last() != Some(&number) {
                if self.count == MAX_MATCHES {
                    break;
                }
                numbers.push(number);
                self.count += 1;
            }
        }
        numbers
    }

    fn into_result(mut self, outcome: WalkOutcome) -> SearchResult {
        let advice = format!(
            "only the first {MAX_MATCHES} matches are shown; use a narrower pattern or path"
        );
        let mut notes: Vec<_> = outcome_note(outcome, &advice).into_iter().collect();
        if self.skipped > 0 {
            notes.push(format!(
                "{} files are too large and were not searched",
                self.skipped
            ));
        }
        self.result.note = (!notes.is_empty()).then(|| notes.join("; "));
        self.result
    }
}

fn outcome_note(outcome: WalkOutcome, advice: &str) -> Option<String> {
    match outcome {
        WalkOutcome::Complete => None,
        WalkOutcome::Stopped => Some(advice.to_owned()),
        WalkOutcome::TimedOut => {
            let seconds = SEARCH_TIMEOUT.as_secs();
            Some(format!(
                "stopped after {seconds} seconds; use a narrower path"
            ))
        }
    }
}

/// Returns the paths, or the matching lines below the path of their file.
fn render_result(result: &Value) -> Option<String> {
    let result = SearchResult::deserialize(result).ok()?;
    let mut lines = result.paths;
    let mut last: Option<(String, u64)> = None;
    for LineMatch { path, line, text } in result.matches {
        match &last {
            Some((file, number)) if *file == path && number + 1 == line => {}
            Some((file, _)) if *file == path => lines.push("…".to_owned()),
            _ => lines.push(path.clone()),
        }
        lines.push(format!("{line}: {text}"));
        last = Some((path, line));
    }
    if lines.is_empty() {
        lines.push("(nothing found)".to_owned());
    }
    lines.extend(result.note.map(|note| format!("[{note}]")));
    Some(lines.join("\n"))
}

fn paths_schema() -> Value {
    result_schema("paths", &json!({"type": "string"}))
}

fn matches_schema() -> Value {
    let text = json!({"type": "string"});
    let line = json!({"path": text, "line": {"type": "integer"}, "text": text});
    result_schema("matches", &object_schema(&line))
}

fn result_schema(name: &str, items: &Value) -> Value {
    json!({
        "type": "object",
        "properties": {(name): {"type": "array", "items": items}, "note": {"type": "string"}},
    })
}
