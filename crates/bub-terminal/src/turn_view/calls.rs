//! Tool calls as lines: what is called with what, and how it ended.

use std::time::Duration;

use bub_kernel::ErrorKind;
use serde_json::{Map, Value};

use super::verbatim;
use crate::{Line, Style, columns, markdown::MarkdownStyle, sanitize::line as one_line};

/// Longer calls get a line for each argument.
const MAX_SINGLE_LINE_CHARS: usize = 120;
/// So much of a call is shown.
const MAX_CALL_CHARS: usize = 1200;
/// So much of a failure is shown.
const MAX_ERROR_CHARS: usize = 4000;

/// `● name(argument: value, …)`
pub(crate) fn call(call: &Value, width: usize, look: MarkdownStyle) -> Vec<Line> {
    let function = call.get("function").unwrap_or(call);
    let name = called(call);
    let raw = function.get("arguments");
    let arguments = match raw {
        Some(Value::String(text)) => serde_json::from_str::<Map<String, Value>>(text).ok(),
        Some(Value::Object(map)) => Some(map.clone()),
        _ => None,
    };
    let parts: Vec<(String, String)> = match (arguments, raw) {
        (Some(map), _) => map
            .iter()
            .map(|(name, value)| (one_line(name), plain(value)))
            .collect(),
        (None, Some(raw)) => vec![(String::new(), plain(raw))],
        (None, None) => Vec::new(),
    };
    let joined: Vec<String> = parts
        .iter()
        .map(|(name, value)| pair(name, &one_line(value)))
        .collect();
    let short = format!("{name}({})", joined.join(", "));
    let is_multiline = parts
        .iter()
        .any(|(_, value)| value.trim_end().contains('\n'));
    let mut lines = Vec::new();
    if columns(&short) <= MAX_SINGLE_LINE_CHARS && !is_multiline {
        lines.push(headed(&short, look));
        return lines;
    }
    let mut left = MAX_CALL_CHARS;
    lines.push(headed(&format!("{name}("), look));
    for (name, value) in &parts {
        for row in pair(name, value).trim_end().split('\n') {
            if left == 0 {
                break;
            }
            let cut: String = row.chars().take(left).collect();
            left -= cut.chars().count();
            let cut = if cut.len() < row.len() {
                format!("{cut}…")
            } else {
                cut
            };
            lines.extend(indented(&cut, 4, Style::NONE, width));
        }
    }
    lines.push(Line::new("  )", Style::NONE));
    lines
}

fn headed(text: &str, look: MarkdownStyle) -> Line {
    let mut line = Line::new(
        if look == MarkdownStyle::Plain {
            "tool "
        } else {
            "● "
        },
        Style::GREEN,
    );
    line.push(text, Style::NONE);
    line
}

fn pair(name: &str, value: &str) -> String {
    if name.is_empty() {
        value.to_owned()
    } else {
        format!("{name}: {value}")
    }
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// `⎿ completed in N ms`, or `failed` with the reason.
pub(crate) fn result(
    failure: Option<&str>,
    took: Duration,
    width: usize,
    look: MarkdownStyle,
) -> Vec<Line> {
    let (took, sign) = (took.as_millis(), ending(look));
    let Some(reason) = failure else {
        return vec![Line::new(
            format!("{sign}completed in {took} ms"),
            Style::DIM,
        )];
    };
    let mut lines = vec![Line::new(format!("{sign}failed in {took} ms"), Style::RED)];
    let mut details: String = reason.chars().take(MAX_ERROR_CHARS).collect();
    if details.len() < reason.len() {
        details.push('…');
    }
    lines.extend(indented(details.trim_end(), 4, Style::RED, width));
    lines
}

/// What stands before the word about the end of a call.
pub(crate) fn ending(look: MarkdownStyle) -> &'static str {
    if look == MarkdownStyle::Plain {
        "tool "
    } else {
        "  ⎿ "
    }
}

/// The reason, when a result is an error, or says why the call was not made. `end` is what the step ended with.
pub(crate) fn failure(result: &Value, end: Option<&Value>, index: usize) -> Option<String> {
    let not_made = end.and_then(|end| end.get("not_made")?.as_array());
    if not_made.is_some_and(|list| {
        list.iter()
            .any(|at| at.as_u64() == u64::try_from(index).ok())
    }) {
        return Some(plain(result));
    }
    let kind = result.get("kind")?.as_str()?;
    let message = result.get("message")?;
    (ErrorKind::from_name(kind).name() == kind).then(|| plain(message))
}

/// The calls of a step that failed, each in one line.
pub(crate) fn failures(end: &Value) -> Vec<String> {
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
    let told = pairs.filter_map(|(index, (call, result))| {
        let reason: String = one_line(&failure(result, Some(end), index)?)
            .chars()
            .take(MAX_CALL_CHARS)
            .collect();
        Some(format!("{} failed: {reason}", called(call)))
    });
    told.collect()
}

fn called(call: &Value) -> String {
    let function = call.get("function").unwrap_or(call);
    one_line(
        function
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or("unknown"),
    )
}

fn indented(text: &str, indent: usize, style: Style, width: usize) -> Vec<Line> {
    let indent = " ".repeat(indent.min(width / 4));
    verbatim::lines(text, style)
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
        let shown = |arguments: &str| {
            text(&call(
                &json!({"function": {"name": "fs_read", "arguments": arguments}}),
                80,
                MarkdownStyle::Styled,
            ))
        };
        assert_eq!(
            shown(r#"{"path": "a b", "limit": 3}"#),
            "● fs_read(path: a b, limit: 3)"
        );
        assert_eq!(shown("{}"), "● fs_read()");
        assert_eq!(shown("broken"), "● fs_read(broken)");
        assert_eq!(
            shown(r#"{"path": "x", "text": "one\ntwo\u001b[2J"}"#),
            "● fs_read(\n    path: x\n    text: one\n    two␛[2J\n  )"
        );
        let long = shown(&json!({"text": "x".repeat(5000)}).to_string());
        assert!(
            long.chars().count() < 1300 && long.contains("x…\n  )"),
            "{}",
            long.len()
        );
    }

    // H-158: success hides its output, a failure does not
    #[test]
    fn a_result_is_its_time_or_its_reason() {
        let took = Duration::from_millis(12);
        let shown = |value: &Value| {
            text(&result(
                failure(value, None, 0).as_deref(),
                took,
                80,
                MarkdownStyle::Styled,
            ))
        };
        assert_eq!(shown(&json!("lots of output")), "  ⎿ completed in 12 ms");
        assert_eq!(
            shown(&json!({"kind": "fun", "message": "x"})),
            "  ⎿ completed in 12 ms"
        );
        let failed = json!({"kind": ErrorKind::Tool.name(), "message": "exit 1\n[/x] no markup"});
        assert_eq!(
            shown(&failed),
            "  ⎿ failed in 12 ms\n    exit 1\n    [/x] no markup"
        );
        let long = json!({"kind": ErrorKind::Tool.name(), "message": "y".repeat(9000)});
        assert_eq!(shown(&long).matches('y').count(), 4000);
    }
}
