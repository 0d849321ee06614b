//! The live area of a chat, from top to bottom: unfinished output, queued lines, the activity, the prompt or question,
//! completions, and the status.

use super::ChatScreen;
use crate::{
    Line, Style, channel::UserQuestion, sanitize::sanitize_line, screen::LiveArea, split_at_width,
    turn_view,
};

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Maximum number of rows for queued lines.
const MAX_QUEUED_ROWS: usize = 4;

impl ChatScreen {
    /// Lays out the live area. In a small window, the status line and the preview are omitted first.
    pub(super) fn build_live_area(&self) -> LiveArea {
        let size = self.screen.size();
        let (width, budget) = (size.columns, size.rows.saturating_sub(1).max(1));
        let has_status = budget >= 3;
        let question_prompt = |text| {
            Line::new(
                split_at_width(text, width.saturating_sub(2)).0,
                Style::BOLD | Style::YELLOW,
            )
        };
        let prompt = match self.questions.front() {
            None => self.prompt(),
            Some(UserQuestion::Call(..)) => question_prompt("allow? [y/N] "),
            Some(UserQuestion::Line(..)) => question_prompt("answer: "),
        };
        let max_text_rows = (budget / 2).max(1);
        let (layout, mut menu) =
            self.editor
                .lay_out(&prompt, self.history.lines(), width, max_text_rows);
        let mut rows_left = budget.saturating_sub(layout.rows.len() + usize::from(has_status));
        menu.truncate(rows_left);
        rows_left -= menu.len();
        let activity = self.activity_line(width).filter(|_| rows_left > 0);
        rows_left -= usize::from(activity.is_some());
        let mut queued = self.queued_rows(width);
        queued.truncate(rows_left);
        rows_left -= queued.len();
        let mut rows = self.view.unfinished_tail(rows_left);
        rows.truncate(rows_left);
        rows.append(&mut queued);
        rows.extend(activity);
        let cursor = (rows.len() + layout.cursor.0, layout.cursor.1);
        rows.extend(layout.rows);
        rows.append(&mut menu);
        if has_status {
            rows.push(self.hint_or_status_line(width));
        }
        LiveArea { rows, cursor }
    }

    fn hint_or_status_line(&self, width: usize) -> Line {
        match &self.hint {
            Some(hint) => Line::new(
                split_at_width(&sanitize_line(hint), width.saturating_sub(1)).0,
                Style::YELLOW,
            ),
            None => turn_view::status_line(
                &self.status,
                self.editor.is_shell(),
                self.view.is_thinking_shown(),
                width,
            ),
        }
    }

    /// Returns the line with the spinner, or `None` if the chat is idle.
    fn activity_line(&self, width: usize) -> Option<Line> {
        let since = match &self.running {
            Some(running) => running.since,
            None if self.open.is_empty() => return None,
            None => {
                return Some(Line::new(
                    split_at_width("… waiting", width - 1).0,
                    Style::DIM,
                ));
            }
        };
        let elapsed = since.elapsed();
        let frame =
            usize::try_from(elapsed.as_millis() / super::SPINNER_INTERVAL.as_millis()).unwrap_or(0);
        let spinner = SPINNER.get(frame % SPINNER.len()).unwrap_or(&"*");
        let up_hint = if self.can_withdraw() {
            ", Up: edit the last queued line"
        } else {
            ""
        };
        let ctrl_c_hint = if self.should_leave_on_interrupt() {
            "Ctrl-C again: leave"
        } else {
            "Ctrl-C: cancel"
        };
        let text = format!(
            "{spinner} {} {} s ({ctrl_c_hint}{up_hint})",
            self.view.activity_word(),
            elapsed.as_secs()
        );
        Some(Line::new(
            split_at_width(&text, width.saturating_sub(1)).0,
            Style::DIM,
        ))
    }

    /// Returns one row per queued line.
    fn queued_rows(&self, width: usize) -> Vec<Line> {
        let is_long = self.queued.len() > MAX_QUEUED_ROWS;
        let skipped = if is_long {
            self.queued.len() + 1 - MAX_QUEUED_ROWS
        } else {
            0
        };
        let dim =
            |text: &str| Line::new(split_at_width(text, width.saturating_sub(1)).0, Style::DIM);
        let row = |queued: &super::QueuedLine| {
            // L1: a line that is not on disk yet is not marked as queued, because a kill would lose it.
            let mark = match queued {
                super::QueuedLine {
                    is_accepted: false, ..
                } => "…",
                super::QueuedLine { steers: true, .. } => "(steering)",
                super::QueuedLine { .. } => "(queued)",
            };
            dim(&format!("  {mark} {}", sanitize_line(&queued.text)))
        };
        let before = is_long.then(|| dim(&format!("  ({skipped} more queued)")));
        before
            .into_iter()
            .chain(self.queued.iter().skip(skipped).map(row))
            .collect()
    }
}
