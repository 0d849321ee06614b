//! Renders tool calls and their results as lines.

use std::time::Duration;

use bub_kernel::ErrorKind;
use serde_json::{Map, Value};

use crate::{
    Line, Style, columns,
    markdown::MarkdownStyle,
    sanitize::{sanitize, sanitize_line},
};

use super::changes::{change_lines, is_change_argument};

/// Maximum width of a tool call that is shown on one line. Longer calls get one line per argument.
const MAX_SINGLE_LINE_CHARS: usize = 120;
/// Maximum characters that are shown of the arguments of a tool call, or of the reason in a failure line.
const MAX_CALL_CHARS: usize = 1200;
/// Maximum characters of an error that are shown.
const MAX_ERROR_CHARS: usize = 4000;

/// Returns the arguments of a tool call as written, and as a map if they are one.
pub(crate) fn call_arguments(call: &Value) -> (Option<&Value>, Option<Map<String, Value>>) {
    let raw = call.get("function").unwrap_or(call).get("arguments");
    let arguments = match raw {
        Some(Value::String(text)) => serde_json::from_str::<Map<String, Value>>(text).ok(),
        Some(Value::Object(map)) => Some(map.clone()),
        _ => None,
    };
    (raw, arguments)
}

/// Returns the diff of a tool call that changes a file, indented, or `None` for other calls. `replaced` is the text of
/// the file that the call replaces.
pub(crate) fn call_changes(
    call: &Value,
    replaced: Option<&str>,
    width: usize,
) -> Option<Vec<Line>> {
    let changes = change_lines(&call_name(call), &call_arguments(call).1?, replaced)?;
    let indented = |line: &Line| {
        let mut indented = Line::new(indent(width), Style::NONE);
        indented.append(line);
        indented
    };
    Some(changes.iter().map(indented).collect())
}

/// Returns the lines of a tool call, such as `● name(argument: value, …)`. What a diff shows is omitted.
pub(crate) fn call_lines(call: &Value, width: usize, markdown_style: MarkdownStyle) -> Vec<Line> {
    let name = call_name(call);
    let (raw, arguments) = call_arguments(call);
    let parts: Vec<(String, String)> = match (arguments, raw) {
        (Some(map), _) => {
            let has_diff = change_lines(&name, &map, None).is_some();
            let pairs = map.iter();
            let pairs = pairs.filter(|(name, _)| !has_diff || !is_change_argument(name));
            let pairs = pairs.map(|(name, value)| (sanitize_line(name), value_text(value)));
            pairs.collect()
        }
        (None, Some(raw)) => vec![(String::new(), value_text(raw))],
        (None, None) => Vec::new(),
    };
    let joined = parts.iter();
    let joined = joined.map(|(name, value)| format_pair(name, &sanitize_line(value)));
    let short = format!("{name}({})", joined.collect::<Vec<_>>().join(", "));
    let mut values = parts.iter().map(|(_, value)| value.trim_end());
    let is_multiline = values.any(|value| value.contains('\n'));
    if columns(&short) <= MAX_SINGLE_LINE_CHARS && !is_multiline {
        return vec![call_line(&short, markdown_style)];
    }
    let mut remaining = MAX_CALL_CHARS;
    let mut lines = vec![call_line(&format!("{name}("), markdown_style)];
    for (name, value) in &parts {
        for row in format_pair(name, value).trim_end().split('\n') {
            if remaining == 0 {
                break;
            }
            let cut = truncate_chars(row, remaining);
            remaining = remaining.saturating_sub(row.chars().count());
            lines.extend(indented_lines(&cut, Style::NONE, width));
        }
    }
    lines.push(Line::new("  )", Style::NONE));
    lines
}

/// Returns a tool call in one line, such as `tool name(argument: value, …)`.
pub(crate) fn call_summary(call: &Value) -> String {
    let lines = call_lines(call, MAX_SINGLE_LINE_CHARS, MarkdownStyle::Plain);
    let text: Vec<_> = lines
        .iter()
        .map(|line| sanitize_line(&line.text()))
        .collect();
    truncate_chars(&text.join(" "), MAX_SINGLE_LINE_CHARS)
}

fn call_line(text: &str, markdown_style: MarkdownStyle) -> Line {
    let marker = match markdown_style {
        MarkdownStyle::Plain => "tool ",
        MarkdownStyle::Styled => "● ",
    };
    let mut line = Line::new(marker, Style::GREEN);
    line.push(text, Style::NONE);
    line
}

/// Returns the first `max_chars` characters of a text, with a `…` if it is longer.
fn truncate_chars(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => text.get(..end).unwrap_or(text).to_owned() + "…",
        None => text.to_owned(),
    }
}

/// Formats an argument as `name: value`.
fn format_pair(name: &str, value: &str) -> String {
    if name.is_empty() {
        value.to_owned()
    } else {
        format!("{name}: {value}")
    }
}

/// Returns the text of a value. A list of sentences, such as a todo list, has one line per item.
fn value_text(value: &Value) -> String {
    let items = value
        .as_array()
        .map(|items| items.iter().map(Value::as_str));
    let items: Option<Vec<&str>> = items.and_then(Iterator::collect);
    match (value, items) {
        (Value::String(text), _) => text.clone(),
        (_, Some(items)) if items.iter().any(|item| item.contains(' ')) => {
            format!("\n{}", items.join("\n"))
        }
        _ => value.to_string(),
    }
}

/// Returns the lines of a tool result: `⎿ completed in N ms`, `⎿ failed in N ms` and the reason, or `⎿ denied` and the
/// reason. The time is omitted if it is unknown.
pub(crate) fn result_lines(
    failure: Option<&str>,
    duration: Option<Duration>,
    width: usize,
    markdown_style: MarkdownStyle,
) -> Vec<Line> {
    let time = duration.map(|duration| format!(" in {}", format_duration(duration)));
    let (time, prefix) = (time.unwrap_or_default(), result_prefix(markdown_style));
    let Some(reason) = failure else {
        let text = format!("{prefix}completed{time}");
        return vec![Line::new(text, Style::DIM)];
    };
    let text = if is_denial(reason) {
        format!("{prefix}denied")
    } else {
        format!("{prefix}failed{time}")
    };
    let mut lines = vec![Line::new(text, Style::RED)];
    let details = truncate_chars(reason, MAX_ERROR_CHARS);
    lines.extend(indented_lines(details.trim_end(), Style::RED, width));
    lines
}

/// Returns whether the reason of a failure is that the policy or a user denied the call.
fn is_denial(reason: &str) -> bool {
    let tool = reason.strip_prefix("Tool '");
    tool.and_then(|rest| rest.split_once('\''))
        .is_some_and(|(_, rest)| rest.starts_with(" denied by "))
}

/// Returns the lines of the output of a successful call.
pub(crate) fn output_lines(result: &Value, width: usize) -> Vec<Line> {
    let text = value_text(result);
    match text.trim() {
        "" | "(no output)" => Vec::new(),
        _ => indented_lines(text.trim_end(), Style::DIM, width),
    }
}

/// Formats a duration: `12 ms`, `3.4 s` or `2 min 5 s`.
fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    match duration.as_secs() {
        0 => format!("{millis} ms"),
        seconds @ 1..60 => format!("{seconds}.{} s", millis % 1000 / 100),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

/// Returns the prefix of a result line.
pub(crate) fn result_prefix(markdown_style: MarkdownStyle) -> &'static str {
    match markdown_style {
        MarkdownStyle::Plain => "tool ",
        MarkdownStyle::Styled => "  ⎿ ",
    }
}

/// Returns why a tool call failed or was not made, or `None` if it succeeded. `end` is the data of the event
/// `StreamEvent::Final`, which ends the step. `index` is the index of the call in the step.
pub(crate) fn failure_reason(result: &Value, end: Option<&Value>, index: usize) -> Option<String> {
    let not_made = end.and_then(|end| end.get("not_made")?.as_array());
    if not_made.is_some_and(|list| list.contains(&Value::from(index))) {
        return Some(value_text(result));
    }
    let kind = result.get("kind")?.as_str()?;
    let message = result.get("message")?;
    (ErrorKind::from_name(kind).name() == kind).then(|| value_text(message))
}

/// Returns one line per failed tool call of a step. `end` is the data of the event `StreamEvent::Final`, which ends the
/// step.
pub(crate) fn failure_lines(end: &Value) -> Vec<String> {
    let list = |name: &str| {
        end.get(name)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let pairs = list("tool_calls").zip(list("tool_results")).enumerate();
    let failures = pairs.filter_map(|(index, (call, result))| {
        let reason = sanitize_line(&failure_reason(result, Some(end), index)?);
        let reason: String = reason.chars().take(MAX_CALL_CHARS).collect();
        let outcome = if is_denial(&reason) {
            "denied"
        } else {
            "failed"
        };
        Some(format!("{} {outcome}: {reason}", call_name(call)))
    });
    failures.collect()
}

pub(crate) fn call_name(call: &Value) -> String {
    let function = call.get("function").unwrap_or(call);
    let name = function.get("name").and_then(Value::as_str);
    sanitize_line(name.unwrap_or("unknown"))
}

/// Splits a text into indented lines.
fn indented_lines(text: &str, style: Style, width: usize) -> Vec<Line> {
    let (indent, text) = (indent(width), sanitize(text));
    let lines = text
        .split('\n')
        .map(|line| Line::new(indent.clone() + line, style));
    lines.collect()
}

fn indent(width: usize) -> String {
    " ".repeat(4.min(width / 4))
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
        assert_eq!(
            rendered(r#"{"items": ["[x] read it", "[ ] fix it"]}"#),
            "● fs_read(\n    items: \n    [x] read it\n    [ ] fix it\n  )"
        );
        assert_eq!(
            rendered(r#"{"names": ["a", "b"]}"#),
            r#"● fs_read(names: ["a","b"])"#
        );
        let long = rendered(&json!({"text": "x".repeat(5000)}).to_string());
        assert!(
            long.chars().count() < 1300 && long.contains("x…\n  )"),
            "{}",
            long.len()
        );
    }

    // H-158: the time of a call, and the error of a failed one.
    #[test]
    fn a_result_is_its_time_or_its_reason() {
        let duration = Duration::from_millis(12);
        let rendered = |value: &Value| {
            text(&result_lines(
                failure_reason(value, None, 0).as_deref(),
                Some(duration),
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
        let times = [999, 1000, 59_950, 125_000].map(Duration::from_millis);
        assert_eq!(
            times.map(format_duration),
            ["999 ms", "1.0 s", "59.9 s", "2 min 5 s"]
        );
        let long = json!({"kind": ErrorKind::Tool.name(), "message": "y".repeat(9000)});
        assert_eq!(rendered(&long).matches('y').count(), 4000);
    }
}
