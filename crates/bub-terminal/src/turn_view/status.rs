//! The status line at the bottom of the chat.

use crate::{Line, Style, columns, sanitize::sanitize};

/// The text between two parts of the status line.
const SEPARATOR: &str = " · ";

/// The values that the status line shows about the session of a chat.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatusLine {
    /// The session id.
    pub session: String,
    /// The model of the session. Empty if it is not known before the next model call.
    pub model: String,
    /// The reasoning effort of the session. `None` if the provider decides.
    pub effort: Option<String>,
    /// Number of entries on the tape.
    pub entries: u64,
    /// Token count of the last model call.
    pub last_tokens: Option<u64>,
    /// How much of the model's context window is left, in percent, if the window is known.
    pub context_left: Option<u64>,
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
    let context = match (status.context_left, status.last_tokens) {
        (Some(percent), _) => Some(format!("{percent}% context left")),
        (None, Some(tokens)) => Some(format!("{tokens} tokens in context")),
        (None, None) => None,
    };
    let model = Some(status.model.as_str()).filter(|model| !model.is_empty());
    let effort = status.effort.as_deref().unwrap_or("default");
    // The parts, each with its rank: in a narrow window, those with the highest rank are omitted first.
    let parts = [
        (0, is_shell.then(|| "shell mode".to_owned())),
        (1, Some(model.unwrap_or("model not chosen yet").to_owned())),
        (4, Some(format!("effort {effort}"))),
        (2, context),
        (3, status.cost.map(|cost| format!("${cost:.4}"))),
        (5, is_thinking_shown.then(|| "thinking shown".to_owned())),
    ];
    let joined = |max_rank: usize| {
        let shown = parts.iter().filter(|(rank, _)| *rank <= max_rank);
        let shown: Vec<&str> = shown.filter_map(|(_, text)| text.as_deref()).collect();
        sanitize(&shown.join(SEPARATOR)).into_owned()
    };
    let fits = |rank: &usize| columns(&joined(*rank)) < width;
    let max_rank = (1..=5).rev().find(fits).unwrap_or(1);
    Line::fitting(&joined(max_rank), width, Style::DIM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_window_keeps_the_model_and_the_context() {
        let status = StatusLine {
            model: "openai:small".to_owned(),
            effort: Some("high".to_owned()),
            last_tokens: Some(1200),
            context_left: Some(87),
            cost: Some(0.0123),
            ..StatusLine::default()
        };
        let rows = [
            (
                200,
                "openai:small · effort high · 87% context left · $0.0123 · thinking shown",
            ),
            (
                70,
                "openai:small · effort high · 87% context left · $0.0123",
            ),
            (50, "openai:small · 87% context left · $0.0123"),
            (40, "openai:small · 87% context left"),
            (20, "openai:small"),
            (10, "openai:sm"),
        ];
        for (width, text) in rows {
            assert_eq!(status_line(&status, false, true, width).text(), text);
        }
        let unknown = StatusLine {
            context_left: None,
            ..status
        };
        assert_eq!(
            status_line(&unknown, true, false, 80).text(),
            "shell mode · openai:small · effort high · 1200 tokens in context · $0.0123"
        );
    }
}
