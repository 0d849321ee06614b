//! The status line at the bottom of the chat.

use crate::{Line, Style, columns, sanitize::sanitize};

/// The values that the status line shows about the session of a chat.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatusLine {
    /// The session id.
    pub session: String,
    /// The model of the session. Empty if it is not known before the next model call.
    pub model: String,
    /// Number of entries on the tape.
    pub entries: u64,
    /// Number of anchors on the tape.
    pub anchors: u64,
    /// Token count of the last model call.
    pub last_tokens: Option<u64>,
    /// Cost of the model calls of this chat in US dollars, if prices are known.
    pub cost: Option<f64>,
}

/// Returns the status line, which fits into `width` columns.
pub(crate) fn status_line(
    status: &StatusLine,
    is_shell: bool,
    is_thinking_shown: bool,
    width: usize,
) -> Line {
    let time = jiff::Zoned::now().strftime("%H:%M").to_string();
    let model = Some(status.model.as_str()).filter(|model| !model.is_empty());
    let last_tokens = status.last_tokens.map(|tokens| tokens.to_string());
    let mut parts = vec![
        time,
        format!("mode:{}", if is_shell { "shell" } else { "agent" }),
        format!("thinking:{}", if is_thinking_shown { "on" } else { "off" }),
        format!("model:{}", model.unwrap_or("auto")),
        format!("entries:{}", status.entries),
        format!("anchors:{}", status.anchors),
        format!("last:{}", last_tokens.as_deref().unwrap_or("-")),
    ];
    if let Some(cost) = status.cost {
        parts.push(format!("cost:${cost:.4}"));
    }
    let joined =
        |parts: &[String]| sanitize(&parts.join(if width < 100 { " " } else { "  " })).into_owned();
    // In a narrow window, keep the most useful parts: the model, the entries and the tokens.
    for prefix in ["", "mode:", "thinking:", "anchors:"] {
        if columns(&joined(&parts)) < width {
            break;
        }
        let at = parts.iter().position(|part| part.starts_with(prefix));
        at.map(|at| parts.remove(at));
    }
    let text = joined(&parts);
    Line::fitting(&text, width, Style::DIM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_window_keeps_the_model_the_entries_and_the_tokens() {
        let status = StatusLine {
            model: "openai:small".to_owned(),
            entries: 19,
            last_tokens: Some(1200),
            ..StatusLine::default()
        };
        assert_eq!(
            status_line(&status, false, false, 40).text(),
            "model:openai:small entries:19 last:1200"
        );
        assert!(
            status_line(&status, false, false, 75)
                .text()
                .starts_with("mode:agent thinking:off model:")
        );
        assert!(
            status_line(&status, false, false, 90)
                .text()
                .contains(" mode:agent thinking:off model:")
        );
    }
}
