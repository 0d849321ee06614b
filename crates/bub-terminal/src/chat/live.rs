//! The live area of a chat, from top to bottom: what is not finished, what waits, a question, the prompt, the status.

use super::ChatScreen;
use crate::{
    Line, Style, channel::UserQuestion, fit, sanitize::line as one_line, screen::LiveArea,
    turn_view,
};

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// So many rows are for lines that wait.
const MAX_QUEUED_ROWS: usize = 4;

impl ChatScreen {
    pub(super) fn live(&self) -> LiveArea {
        let size = self.screen.size();
        let (width, budget) = (size.columns, size.rows.saturating_sub(1).max(1));
        let has_status = budget >= 3;
        let asking = |text| {
            Line::new(
                fit(text, width.saturating_sub(2)).0,
                Style::BOLD | Style::YELLOW,
            )
        };
        let prompt = match self.questions.front() {
            None => self.prompt(),
            Some(UserQuestion::Call(..)) => asking("allow? [y/N] "),
            Some(UserQuestion::Line(..)) => asking("answer: "),
        };
        let most_text = (budget / 2).max(1);
        let (layout, mut menu) = self
            .editor
            .rows(&prompt, self.history.lines(), width, most_text);
        let mut left = budget.saturating_sub(layout.rows.len() + usize::from(has_status));
        menu.truncate(left);
        left -= menu.len();
        let activity = self.activity(width).filter(|_| left > 0);
        left -= usize::from(activity.is_some());
        let mut waiting = self.waiting_rows(width);
        waiting.truncate(left);
        left -= waiting.len();
        let mut rows = self.view.preview(left);
        rows.truncate(left);
        rows.append(&mut waiting);
        rows.extend(activity);
        let cursor = (rows.len() + layout.cursor.0, layout.cursor.1);
        rows.extend(layout.rows);
        rows.append(&mut menu);
        if has_status {
            rows.push(self.bottom(width));
        }
        LiveArea { rows, cursor }
    }

    fn bottom(&self, width: usize) -> Line {
        match &self.hint {
            Some(hint) => Line::new(
                fit(&one_line(hint), width.saturating_sub(1)).0,
                Style::YELLOW,
            ),
            None => turn_view::status_line(
                &self.status,
                self.editor.is_shell(),
                self.view.shows_thinking(),
                width,
            ),
        }
    }

    fn activity(&self, width: usize) -> Option<Line> {
        let since = match &self.running {
            Some(running) => running.since,
            None if self.open.is_empty() => return None,
            None => return Some(Line::new(fit("… waiting", width - 1).0, Style::DIM)),
        };
        let elapsed = since.elapsed();
        let turns =
            usize::try_from(elapsed.as_millis() / super::SPINNER_INTERVAL.as_millis()).unwrap_or(0);
        let sign = SPINNER.get(turns % SPINNER.len()).unwrap_or(&"*");
        let back = if self.can_take_back() {
            ", Up takes back what waits"
        } else {
            ""
        };
        let keys = if self.leaves_at_interrupt() {
            "Ctrl-C again leaves"
        } else {
            "Ctrl-C cancels"
        };
        let text = format!(
            "{sign} {} {} s ({keys}{back})",
            self.view.activity(),
            elapsed.as_secs()
        );
        Some(Line::new(fit(&text, width.saturating_sub(1)).0, Style::DIM))
    }

    fn waiting_rows(&self, width: usize) -> Vec<Line> {
        let is_long = self.waiting.len() > MAX_QUEUED_ROWS;
        let skipped = if is_long {
            self.waiting.len() + 1 - MAX_QUEUED_ROWS
        } else {
            0
        };
        let dim = |text: &str| Line::new(fit(text, width.saturating_sub(1)).0, Style::DIM);
        let row = |waiting: &super::QueuedLine| {
            // L1: nothing is said of a line that a kill would lose.
            let mark = match waiting {
                super::QueuedLine {
                    is_taken: false, ..
                } => "…",
                super::QueuedLine { steers: true, .. } => "(steering)",
                super::QueuedLine { .. } => "(queued)",
            };
            dim(&format!("  {mark} {}", one_line(&waiting.text)))
        };
        let before = is_long.then(|| dim(&format!("  ({skipped} more wait before these)")));
        before
            .into_iter()
            .chain(self.waiting.iter().skip(skipped).map(row))
            .collect()
    }
}
