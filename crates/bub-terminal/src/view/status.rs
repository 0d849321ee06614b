//! The line at the bottom: which model, how long the session, what it cost.

use crate::{Line, Style, fit, harmless::harmless};

/// How the session is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Its id.
    pub session: String,
    /// The model, as far as it is known before a call.
    pub model: String,
    /// Entries on the tape.
    pub entries: u64,
    /// Anchors among them.
    pub anchors: u64,
    /// Tokens of the last call.
    pub last_tokens: Option<u64>,
    /// What the calls of this chat have cost in US dollars, where prices are known.
    pub cost: Option<f64>,
}

/// The line, of at most so many columns.
pub(crate) fn line(status: &Status, is_shell: bool, shows_thinking: bool, width: usize) -> Line {
    let now = jiff::Zoned::now().strftime("%H:%M").to_string();
    let mut parts = vec![
        now,
        format!("mode:{}", if is_shell { "shell" } else { "agent" }),
        format!("thinking:{}", if shows_thinking { "on" } else { "off" }),
        format!("model:{}", if status.model.is_empty() { "auto" } else { &status.model }),
        format!("entries:{} anchors:{}", status.entries, status.anchors),
        format!("last:{}", status.last_tokens.map_or_else(|| "-".to_owned(), |tokens| tokens.to_string())),
    ];
    if let Some(cost) = status.cost {
        parts.push(format!("cost:${cost:.4}"));
    }
    let text = harmless(&parts.join(if width < 100 { " " } else { "  " })).into_owned();
    Line::new(fit(&text, width.saturating_sub(1)).0, Style::DIM)
}
