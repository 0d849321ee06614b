//! Renders tool calls and their results as lines.

use std::time::Duration;

use bub_kernel::ErrorKind;
use serde_json::{Map, Value};

use super::verbatim;
use crate::{Line, Style, columns, markdown::MarkdownStyle, sanitize::sanitize_line};

/// Maximum width of a call that is shown on one line. Longer calls get one line per argument.
const MAX_SINGLE_LINE_CHARS: usize = 120;
/// Maximum characters of a call's arguments that are shown.
const MAX_CALL_CHARS: usize = 1200;
/// Maximum characters of an error that are shown.
const MAX_ERROR_CHARS: usize = 4000;

/// Returns the lines of a call, such as `● name(argument: value, …)`.
pub(crate) fn call_lines(call: &Value, width: usize, markdown_style: MarkdownStyle) -> Vec<Line> {
    let function = call.get("function").unwrap_or(call);
    let name = call_name(call);
    let raw = function.get("arguments");
    let arguments = match raw {
        Some(Value::String(text)) => serde_json::from_str::<Map<String, Value>>(text).ok(),
        Some(Value::Object(map)) => Some(map.clone()),
        _ => None,
    };
    let parts: Vec<(String, String)> = match (arguments, raw) {
        (Some(map), _) => map
            .iter()
            .map(|(name, value)| (sanitize_line(name), value_text(value)))
            .collect(),
        (None, Some(raw)) => vec![(String::new(), value_text(raw))],
        (None, None) => Vec::new(),
    };
    let joined: Vec<String> = parts
        .iter()
        .map(|(name, value)| format_pair(name, &sanitize_line(value)))
        .collect();
    let short = format!("{name}({})", joined.join(", "));
    let is_multiline = parts
        .iter()
        .any(|(_, value)| value.trim_end().contains('\n'));
    let mut lines = Vec::new();
    if columns(&short) <= MAX_SINGLE_LINE_CHARS && !is_multiline {
        lines.push(call_line(&short, markdown_style));
        return lines;
    }
    let mut remaining = MAX_CALL_CHARS;
    lines.push(call_line(&format!("{name}("), markdown_style));
    for (name, value) in &parts {
        for row in format_pair(name, value).trim_end().split('\n') {
            if remaining == 0 {
                break;
            }
            let cut: String = row.chars().take(remaining).collect();
            remaining -= cut.chars().count();
            let cut = if cut.len() < row.len() {
                format!("{cut}…")
            } else {
                cut
            };
            lines.extend(indented_lines(&cut, 4, Style::NONE, width));
        }
    }
    lines.push(Line::new("  )", Style::NONE));
    lines
}

fn call_line(text: &str, markdown_style: MarkdownStyle) -> Line {
    let mut line = Line::new(
        if markdown_style == MarkdownStyle::Plain {
            "tool "
        } else {
            "● "
        },
        Style::GREEN,
    );
    line.push(text, Style::NONE);
    line
}

/// Formats an argument as `name: value`.
fn format_pair(name: &str, value: &str) -> String {
    if name.is_empty() {
        value.to_owned()
    } else {
        format!("{name}: {value}")
    }
}

fn value_text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the lines of a result: `⎿ completed in N ms`, or `⎿ failed in N ms` and the reason.
pub(crate) fn result_lines(
    failure: Option<&str>,
    duration: Duration,
    width: usize,
    markdown_style: MarkdownStyle,
) -> Vec<Line> {
    let (duration, prefix) = (duration.as_millis(), result_prefix(markdown_style));
    let Some(reason) = failure else {
        return vec![Line::new(
            format!("{prefix}completed in {duration} ms"),
            Style::DIM,
        )];
    };
    let mut lines = vec![Line::new(
        format!("{prefix}failed in {duration} ms"),
        Style::RED,
    )];
    let mut details: String = reason.chars().take(MAX_ERROR_CHARS).collect();
    if details.len() < reason.len() {
        details.push('…');
    }
    lines.extend(indented_lines(details.trim_end(), 4, Style::RED, width));
    lines
}

/// Returns the prefix of a result line.
pub(crate) fn result_prefix(markdown_style: MarkdownStyle) -> &'static str {
    if markdown_style == MarkdownStyle::Plain {
        "tool "
    } else {
        "  ⎿ "
    }
}

/// Returns why a call failed or was not made, or `None` if it succeeded. `end` is the final event of the step.
pub(crate) fn failure_reason(result: &Value, end: Option<&Value>, index: usize) -> Option<String> {
    let not_made = end.and_then(|end| end.get("not_made")?.as_array());
    if not_made.is_some_and(|list| {
        list.iter()
            .any(|at| at.as_u64() == u64::try_from(index).ok())
    }) {
        return Some(value_text(result));
    }
    let kind = result.get("kind")?.as_str()?;
    let message = result.get("message")?;
    (ErrorKind::from_name(kind).name() == kind).then(|| value_text(message))
}

/// Returns one line per failed call of a step.
pub(crate) fn failure_lines(end: &Value) -> Vec<String> {
    let list = |name: &str| {
        end.get(name)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default()
    };
    let pairs = list("tool_calls")
        .iter()
        .zip(list("tool_results"))
        .enumerate();
    let failures = pairs.filter_map(|(index, (call, result))| {
        let reason: String = sanitize_line(&failure_reason(result, Some(end), index)?)
            .chars()
            .take(MAX_CALL_CHARS)
            .collect();
        Some(format!("{} failed: {reason}", call_name(call)))
    });
    failures.collect()
}

fn call_name(call: &Value) -> String {
    let function = call.get("function").unwrap_or(call);
    sanitize_line(
        function
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or("unknown"),
    )
}

/// Splits a text into indented lines.
fn indented_lines(text: &str, indent: usize, style: Style, width: usize) -> Vec<Line> {
    let indent = " ".repeat(indent.min(width / 4));
    verbatim::sanitized_lines(text, style)
        .into_iter()
        .map(|line| Line::new(format!("{indent}{}", line.text()), style))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(lines: &[Line]) -> String {
        lines.iter().map(Line::text).collect::<Vec<_>>().join("\n")
    }

    // H-158
    #[test]
    fn a_call_is_one_line_or_one_for_each_argument() {
        let rendered = |arguments: &str| {
            text(&call_lines(
                &json!({"function": {"name": "fs_read", "arguments": arguments}}),
                80,
                MarkdownStyle::Styled,
            ))
        };
        assert_eq!(
            rendered(r#"{"path": "a b", "limit": 3}"#),
            "● fs_read(path: a b, limit: 3)"
        );
        assert_eq!(rendered("{}"), "● fs_read()");
        assert_eq!(rendered("broken"), "● fs_read(broken)");
        assert_eq!(
            rendered(r#"{"path": "x", "text": "one\ntwo\u001b[2J"}"#),
            "● fs_read(\n    path: x\n    text: one\n    two␛[2J\n  )"
        );
        let long = rendered(&json!({"text": "x".repeat(5000)}).to_string());
        assert!(
            long.chars().count() < 1300 && long.contains("x…\n  )"),
            "{}",
            long.len()
        );
    }

    // H-158: the output of a successful call is hidden, the error of a failed one is shown.
    #[test]
    fn a_result_is_its_time_or_its_reason() {
        let duration = Duration::from_millis(12);
        let rendered = |value: &Value| {
            text(&result_lines(
                failure_reason(value, None, 0).as_deref(),
                duration,
                80,
                MarkdownStyle::Styled,
            ))
        };
        assert_eq!(rendered(&json!("lots of output")), "  ⎿ completed in 12 ms");
        assert_eq!(
            rendered(&json!({"kind": "fun", "message": "x"})),
            "  ⎿ completed in 12 ms"
        );
        let failed = json!({"kind": ErrorKind::Tool.name(), "message": "exit 1\n[/x] no markup"});
        assert_eq!(
            rendered(&failed),
            "  ⎿ failed in 12 ms\n    exit 1\n    [/x] no markup"
        );
        let long = json!({"kind": ErrorKind::Tool.name(), "message": "y".repeat(9000)});
        assert_eq!(rendered(&long).matches('y').count(), 4000);
    }
}
