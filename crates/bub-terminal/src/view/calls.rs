//! Tool calls as lines: what is called with what, and how it ended.

use std::time::Duration;

use bub_kernel::ErrorKind;
use serde_json::{Map, Value};

use super::verbatim;
use crate::{Line, Style, columns, harmless::line as one_line, markdown::Look};

/// Longer calls get a line for each argument.
const ONE_LINE: usize = 120;
/// So much of a call is shown.
const MOST_CALL: usize = 1200;
/// So much of a failure is shown.
const MOST_DETAILS: usize = 4000;

/// `● name(argument: value, …)`
pub(crate) fn call(call: &Value, width: usize, look: Look) -> Vec<Line> {
    let function = call.get("function").unwrap_or(call);
    let name = one_line(function.get("name").and_then(Value::as_str).unwrap_or("unknown"));
    let raw = function.get("arguments");
    let arguments = match raw {
        Some(Value::String(text)) => serde_json::from_str::<Map<String, Value>>(text).ok(),
        Some(Value::Object(map)) => Some(map.clone()),
        _ => None,
    };
    let parts: Vec<(String, String)> = match (arguments, raw) {
        (Some(map), _) => map.iter().map(|(name, value)| (one_line(name), plain(value))).collect(),
        (None, Some(raw)) => vec![(String::new(), plain(raw))],
        (None, None) => Vec::new(),
    };
    let joined: Vec<String> = parts.iter().map(|(name, value)| pair(name, &one_line(value))).collect();
    let short = format!("{name}({})", joined.join(", "));
    let is_multiline = parts.iter().any(|(_, value)| value.trim_end().contains('\n'));
    let mut lines = Vec::new();
    if columns(&short) <= ONE_LINE && !is_multiline {
        lines.push(headed(&short, look));
        return lines;
    }
    let mut left = MOST_CALL;
    lines.push(headed(&format!("{name}("), look));
    for (name, value) in &parts {
        for row in pair(name, value).trim_end().split('\n') {
            if left == 0 {
                break;
            }
            let cut: String = row.chars().take(left).collect();
            left -= cut.chars().count();
            let cut = if cut.len() < row.len() { format!("{cut}…") } else { cut };
            lines.extend(indented(&cut, 4, Style::NONE, width));
        }
    }
    lines.push(Line::new("  )", Style::NONE));
    lines
}

fn headed(text: &str, look: Look) -> Line {
    let mut line = Line::new(if look == Look::Plain { "tool " } else { "● " }, Style::GREEN);
    line.push(text, Style::NONE);
    line
}

fn pair(name: &str, value: &str) -> String {
    if name.is_empty() { value.to_owned() } else { format!("{name}: {value}") }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `⎿ completed in N ms`, or `failed` with the reason.
pub(crate) fn result(result: &Value, took: Duration, width: usize, look: Look) -> Vec<Line> {
    let (took, sign) = (took.as_millis(), ending(look));
    let Some(reason) = failure(result) else {
        return vec![Line::new(format!("{sign}completed in {took} ms"), Style::DIM)];
    };
    let mut lines = vec![Line::new(format!("{sign}failed in {took} ms"), Style::RED)];
    let mut details: String = reason.chars().take(MOST_DETAILS).collect();
    if details.len() < reason.len() {
        details.push('…');
    }
    lines.extend(indented(details.trim_end(), 4, Style::RED, width));
    lines
}

/// What stands before the word about the end of a call.
pub(crate) fn ending(look: Look) -> &'static str {
    if look == Look::Plain { "tool " } else { "  ⎿ " }
}

/// The reason, when a result is an error.
pub(crate) fn failure(result: &Value) -> Option<String> {
    let kind = result.get("kind")?.as_str()?;
    let message = result.get("message")?;
    (ErrorKind::from_name(kind).name() == kind).then(|| plain(message))
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
            text(&call(&json!({"function": {"name": "fs_read", "arguments": arguments}}), 80, Look::Styled))
        };
        assert_eq!(shown(r#"{"path": "a b", "limit": 3}"#), "● fs_read(path: a b, limit: 3)");
        assert_eq!(shown("{}"), "● fs_read()");
        assert_eq!(shown("broken"), "● fs_read(broken)");
        assert_eq!(
            shown(r#"{"path": "x", "text": "one\ntwo\u001b[2J"}"#),
            "● fs_read(\n    path: x\n    text: one\n    two␛[2J\n  )"
        );
        let long = shown(&json!({"text": "x".repeat(5000)}).to_string());
        assert!(long.chars().count() < 1300 && long.contains("x…\n  )"), "{}", long.len());
    }

    // H-158: success hides its output, a failure does not
    #[test]
    fn a_result_is_its_time_or_its_reason() {
        let took = Duration::from_millis(12);
        assert_eq!(text(&result(&json!("lots of output"), took, 80, Look::Styled)), "  ⎿ completed in 12 ms");
        assert_eq!(
            text(&result(&json!({"kind": "fun", "message": "x"}), took, 80, Look::Styled)),
            "  ⎿ completed in 12 ms"
        );
        let failed = json!({"kind": ErrorKind::Tool.name(), "message": "exit 1\n[/x] no markup"});
        assert_eq!(
            text(&result(&failed, took, 80, Look::Styled)),
            "  ⎿ failed in 12 ms\n    exit 1\n    [/x] no markup"
        );
        let long = json!({"kind": ErrorKind::Tool.name(), "message": "y".repeat(9000)});
        assert_eq!(text(&result(&long, took, 80, Look::Styled)).matches('y').count(), 4000);
    }
}
