//! What the terminal of the process can do.

use std::{ffi::OsStr, io::IsTerminal as _};

use bub_settings::Environment;
use bub_terminal::ColorMode;

/// What stdout can show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TerminalMode {
    /// Colors and cursor movement.
    Screen,
    /// Plain lines.
    Lines,
    /// Stdout is not a terminal.
    Pipe,
}

impl TerminalMode {
    pub(super) fn of_stdout(environment: &Environment) -> Self {
        if !std::io::stdout().is_terminal() {
            Self::Pipe
        } else if is_dumb(environment) {
            Self::Lines
        } else {
            Self::Screen
        }
    }
}

/// Returns whether the terminal can neither show colors nor move the cursor.
pub(super) fn is_dumb(environment: &Environment) -> bool {
    let is_dumb = |name: &OsStr| name == "dumb" || name.is_empty();
    environment.get("TERM").is_none_or(is_dumb)
}

/// Returns which escape sequences the user wants.
pub(super) fn color_mode(environment: &Environment) -> ColorMode {
    let no_color = environment.get("NO_COLOR").unwrap_or_default();
    if no_color.is_empty() {
        ColorMode::Colors
    } else {
        ColorMode::Attributes
    }
}

/// Returns whether the terminal rewraps its lines when it becomes narrower. Only the terminals listed here do not.
pub(super) fn rewraps_lines(environment: &Environment) -> bool {
    let name = environment.get("TERM").and_then(OsStr::to_str);
    let name = name.unwrap_or_default();
    let is_screen = name.starts_with("screen") && environment.get("TMUX").is_none();
    let is_old =
        name == "linux" || name.starts_with("vt") || environment.get("XTERM_VERSION").is_some();
    !is_screen && !is_old
}
