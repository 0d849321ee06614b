//! The live area of a chat, from top to bottom: unfinished output, queued lines, the activity line with its spinner,
//! the editor with its prompt, completions, and the status line.

use super::{ChatScreen, QueuedLine};
use crate::{
    Line, Style, sanitize::sanitize_line, screen::LiveArea, spinner::activity_text, turn_view,
};

/// Maximum number of rows for queued lines.
const MAX_QUEUED_ROWS: usize = 4;

impl ChatScreen {
    /// Lays out the live area. In a small window, the status line and the unfinished output are omitted first.
    pub(super) fn build_live_area(&self) -> LiveArea {
        let size = self.screen.size();
        let (width, budget) = (size.columns, size.rows.saturating_sub(1).max(1));
        // In a small window, neither the status line nor a hint is shown.
        let mut status = self.hint_or_status_rows(width);
        status.truncate(if budget >= 3 { budget / 3 } else { 0 });
        let prompt = match self.state.questions.front() {
            None => self.prompt(),
            Some(question) => {
                let style = Style::BOLD | Style::YELLOW;
                Line::fitting(&question.prompt(), width.saturating_sub(1), style)
            }
        };
        let max_text_rows = (budget / 2).max(1);
        let (layout, mut menu) =
            self.editor
                .lay_out(&prompt, self.state.history.lines(), width, max_text_rows);
        let mut rows_left = budget.saturating_sub(layout.rows.len() + status.len());
        menu.truncate(rows_left);
        rows_left -= menu.len();
        let activity = self.activity_line(width).filter(|_| rows_left > 0);
        rows_left -= usize::from(activity.is_some());
        let mut queued = self.queued_rows(width);
        queued.truncate(rows_left);
        rows_left -= queued.len();
        let mut rows = self.state.view.unfinished_tail(rows_left);
        rows.truncate(rows_left);
        rows.append(&mut queued);
        rows.extend(activity);
        let cursor = (rows.len() + layout.cursor.0, layout.cursor.1);
        rows.extend(layout.rows);
        rows.append(&mut menu);
        rows.append(&mut status);
        LiveArea { rows, cursor }
    }

    /// Returns the hint, wrapped between words, or else the status line.
    fn hint_or_status_rows(&self, width: usize) -> Vec<Line> {
        let fit = |row: &Line| Line::fitting(&row.text(), width, Style::YELLOW);
        if let Some((hint, _)) = &self.hint {
            let line = Line::new(sanitize_line(hint), Style::YELLOW);
            let rows = turn_view::wrap_line(&line, width.saturating_sub(1));
            return rows.iter().map(fit).collect();
        }
        let is_thinking_shown = self.state.view.is_thinking_shown();
        let is_shell = self.editor.is_shell;
        vec![turn_view::status_line(
            &self.status,
            is_shell,
            is_thinking_shown,
            width,
        )]
    }

    /// Returns the line with the spinner, or `None` if the chat is idle.
    fn activity_line(&self, width: usize) -> Option<Line> {
        let since = match &self.state.running {
            Some(running) => running.since,
            None if self.state.open.is_empty() => return None,
            None => return Some(Line::fitting("… waiting", width, Style::DIM)),
        };
        let up_hint = if self.can_withdraw() {
            ", Up: edit the last queued line"
        } else {
            ""
        };
        let ctrl_c_hint = if self.state.should_leave_on_interrupt() {
            "Ctrl-C again: leave"
        } else {
            "Esc or Ctrl-C: cancel"
        };
        let activity = self.state.view.activity_word();
        let hint = format!("{ctrl_c_hint}{up_hint}");
        let waited = self.state.view.approval_wait();
        let text = activity_text(activity, since.elapsed().saturating_sub(waited), &hint);
        Some(Line::fitting(&text, width, Style::DIM))
    }

    /// Returns one row per queued line, at most `MAX_QUEUED_ROWS`. If lines are omitted, the first row says how many.
    fn queued_rows(&self, width: usize) -> Vec<Line> {
        let skipped = match self.queued.len() {
            ..=MAX_QUEUED_ROWS => 0,
            count => count + 1 - MAX_QUEUED_ROWS,
        };
        let dim = |text: &str| Line::fitting(text, width, Style::DIM);
        let row = |queued: &QueuedLine| {
            // A line that is not on disk yet is not marked as queued, because a kill would lose it (L1 in `docs/spec`).
            let mark = match (queued.is_accepted, queued.steers) {
                (false, _) => "…",
                (true, true) => "(steering)",
                (true, false) => "(queued)",
            };
            dim(&format!("  {mark} {}", sanitize_line(&queued.text)))
        };
        let before = (skipped > 0).then(|| dim(&format!("  ({skipped} more queued)")));
        let shown = self.queued.iter().skip(skipped);
        before.into_iter().chain(shown.map(row)).collect()
    }
}
