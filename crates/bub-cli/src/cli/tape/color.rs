//! Colors of results. The text is complete without them.

use std::io::IsTerminal;

use bub_settings::Settings;
use bub_tape::EntryKind;

/// Whether results are colored.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColorSupport {
    is_enabled: bool,
}

impl ColorSupport {
    /// Enables colors on a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    pub(super) fn from_settings(settings: &Settings) -> Self {
        let environment = settings.environment();
        let is_disabled = environment
            .get("NO_COLOR")
            .is_some_and(|value| !value.is_empty());
        let is_dumb = environment.get("TERM").is_some_and(|term| term == "dumb");
        Self {
            is_enabled: !is_disabled && !is_dumb && std::io::stdout().is_terminal(),
        }
    }

    /// Formats secondary text.
    pub(super) fn paint_dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Formats the title of an entry by its kind.
    pub(super) fn paint_title(self, kind: &EntryKind, text: &str) -> String {
        let code = match kind {
            EntryKind::Message => "1",
            EntryKind::Anchor => "1;35",
            EntryKind::ToolCall | EntryKind::ToolResult => "36",
            EntryKind::Error => "1;31",
            EntryKind::System | EntryKind::Event | EntryKind::Other(_) => "2",
        };
        self.paint(code, text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.is_enabled {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
