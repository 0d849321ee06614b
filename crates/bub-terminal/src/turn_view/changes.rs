//! Shows the changes that a call of `fs.edit` or `fs.write` makes to a file, as a diff.

use std::time::Duration;

use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};

use crate::{Line, Style, sanitize::sanitize};

/// The arguments of calls that a diff replaces.
const CHANGE_ARGUMENTS: [&str; 4] = ["old", "new", "edits", "content"];
/// Unchanged lines shown around a change.
const CONTEXT_LINES: usize = 3;
/// After this time, the rest of a text is shown as removed and added.
const DIFF_TIMEOUT: Duration = Duration::from_millis(50);

/// Returns the diff of a call, or `None` if the tool does not change a file. `replaced` is the text of the file that the
/// call replaces. The arguments that it shows are those for
/// which [`is_change_argument`] returns true.
pub(crate) fn change_lines(
    tool: &str,
    arguments: &Map<String, Value>,
    replaced: Option<&str>,
) -> Option<Vec<Line>> {
    let text = |values: &Map<String, Value>, name: &str| {
        values.get(name).and_then(Value::as_str).map(str::to_owned)
    };
    match tool.replace('.', "_").as_str() {
        "fs_write" => {
            let content = text(arguments, "content")?;
            Some(diff_lines(replaced.unwrap_or_default(), &content))
        }
        "fs_edit" => {
            let mut lines = diff_lines(&text(arguments, "old")?, &text(arguments, "new")?);
            let further = arguments.get("edits").and_then(Value::as_array);
            for edit in further.into_iter().flatten() {
                let edit = edit.as_object()?;
                lines.push(Line::new("…", Style::DIM));
                lines.extend(diff_lines(&text(edit, "old")?, &text(edit, "new")?));
            }
            Some(lines)
        }
        _ => None,
    }
}

/// Returns whether the diff of a call shows this argument.
pub(crate) fn is_change_argument(name: &str) -> bool {
    CHANGE_ARGUMENTS.contains(&name)
}

/// Returns the diff of two texts: `- ` before removed, `+ ` before added and `  ` before unchanged lines.
fn diff_lines(old: &str, new: &str) -> Vec<Line> {
    // Otherwise the last line differs from the same line before another one.
    let ended = |text: &str| match text {
        "" => String::new(),
        text => text.trim_end_matches('\n').to_owned() + "\n",
    };
    let (old, new) = (ended(old), ended(new));
    let diff = TextDiff::configure()
        .timeout(DIFF_TIMEOUT)
        .diff_lines(&old, &new);
    let mut lines = Vec::new();
    for (index, group) in diff.grouped_ops(CONTEXT_LINES).iter().enumerate() {
        if index > 0 {
            lines.push(Line::new("…", Style::DIM));
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let (mark, style) = match change.tag() {
                ChangeTag::Delete => ("- ", Style::RED),
                ChangeTag::Insert => ("+ ", Style::GREEN),
                ChangeTag::Equal => ("  ", Style::DIM),
            };
            let text = change.value().trim_end_matches(['\r', '\n']);
            // A lone carriage return must not start a line that looks like another part of the diff.
            let text = sanitize(text).replace('\n', "␊");
            lines.push(Line::new(format!("{mark}{text}"), style));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(tool: &str, arguments: &Value) -> Option<Vec<String>> {
        let lines = change_lines(tool, arguments.as_object().unwrap(), None)?;
        Some(lines.iter().map(Line::text).collect())
    }

    #[test]
    fn an_edit_is_a_diff_with_a_few_unchanged_lines() {
        let old = "a\nb\nc\nd\nlet x = 1;\ne\n";
        let new = "a\nb\nc\nd\nlet x = 2;\nlet y = 3;\ne\n";
        let edits = json!([{"old": "gone", "new": ""}]);
        assert_eq!(
            shown(
                "fs_edit",
                &json!({"path": "x", "old": old, "new": new, "edits": edits})
            )
            .unwrap(),
            [
                "  b",
                "  c",
                "  d",
                "- let x = 1;",
                "+ let x = 2;",
                "+ let y = 3;",
                "  e",
                "…",
                "- gone"
            ]
        );
        assert_eq!(
            shown("fs.write", &json!({"path": "x", "content": "a\n\x1b[2J"})).unwrap(),
            ["+ a", "+ ␛[2J"]
        );
        assert_eq!(shown("bash", &json!({"command": "ls"})), None);
        assert_eq!(shown("fs_edit", &json!({"path": "x", "old": 3})), None);
    }
}
