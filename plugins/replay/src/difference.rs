//! The first difference between two requests or answers, in one line.

use serde_json::Value;

/// Number of characters of a text that a difference shows on each side of the first differing one.
const CONTEXT_CHARS: usize = 30;

/// Returns the first difference between two lists of messages, or `None` if they are equal.
pub(crate) fn first_difference(recorded: &[Value], current: &[Value]) -> Option<String> {
    let mut index = 0;
    loop {
        let (left, right) = (recorded.get(index), current.get(index));
        let role = left.or(right)?.get("role").and_then(Value::as_str);
        let place = match role.unwrap_or_default() {
            "system" if index == 0 => "the system prompt".to_owned(),
            role => format!("message {index} ({role})"),
        };
        match (left, right) {
            (Some(left), Some(right)) if left == right => {}
            (Some(left), Some(right)) => {
                return Some(format!(
                    "{place} differs: {}",
                    compare(&message_text(left), &message_text(right))
                ));
            }
            (Some(left), None) => {
                return Some(format!(
                    "{place} is missing: `{}`",
                    excerpt(&message_text(left), 0)
                ));
            }
            (None, Some(right)) => {
                return Some(format!(
                    "{place} is new: `{}`",
                    excerpt(&message_text(right), 0)
                ));
            }
            (None, None) => return None,
        }
        index += 1;
    }
}

/// Returns where two texts differ, with an excerpt of both.
pub(crate) fn compare(recorded: &str, current: &str) -> String {
    let same = recorded
        .chars()
        .zip(current.chars())
        .take_while(|(left, right)| left == right)
        .count();
    format!(
        "recorded `{}`, now `{}`",
        excerpt(recorded, same),
        excerpt(current, same)
    )
}

/// Returns the text of a message: its content, or the complete message if the content is not all of it.
fn message_text(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) if message.get("tool_calls").is_none() => text.clone(),
        _ => message.to_string(),
    }
}

/// Returns the part of a text around a character, on one line.
fn excerpt(text: &str, at: usize) -> String {
    let start = at.saturating_sub(CONTEXT_CHARS);
    let part: String = text.chars().skip(start).take(2 * CONTEXT_CHARS).collect();
    let before = if start > 0 { "…" } else { "" };
    let after = if text.chars().count() > start + 2 * CONTEXT_CHARS {
        "…"
    } else {
        ""
    };
    format!("{before}{}{after}", part.replace('\n', "⏎"))
}
