//! Colour, where it is wanted: everything reads the same without it.

use std::io::IsTerminal;

use bub_settings::Settings;
use bub_tape::EntryKind;

/// Whether results are coloured.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColorSupport {
    coloured: bool,
}

impl ColorSupport {
    /// As the terminal and the user want it.
    pub(super) fn from_settings(settings: &Settings) -> Self {
        let environment = settings.environment();
        let refused = environment
            .get("NO_COLOR")
            .is_some_and(|value| !value.is_empty());
        let dumb = environment.get("TERM").is_some_and(|term| term == "dumb");
        Self {
            coloured: !refused && !dumb && std::io::stdout().is_terminal(),
        }
    }

    /// Text that matters less.
    pub(super) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// The title of an entry, by its kind.
    pub(super) fn title(self, kind: &EntryKind, text: &str) -> String {
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
        if self.coloured {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
