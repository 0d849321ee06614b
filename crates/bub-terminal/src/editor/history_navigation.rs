//! The history in the editor: Up and Down, the hint that completes the text, and the incremental search.

use super::{Editor, EditorAction};
use crate::keys::KeyEvent;

/// A position in the history. Up and Down visit only lines that start with `prefix`.
#[derive(Debug)]
pub(super) struct HistoryCursor {
    prefix: String,
    /// The text that was in the editor before the first press of Up.
    draft: String,
    index: usize,
}

/// An incremental search through the history, started with Ctrl-R.
#[derive(Debug)]
pub(super) struct HistorySearch {
    pub(super) query: String,
    pub(super) index: usize,
    pub(super) draft: String,
}

impl Editor {
    /// Moves the cursor up in a text of several lines. On the first line, loads the previous history line that starts
    /// with the text before the cursor. If Up is pressed again, it searches for the same prefix.
    pub(super) fn move_up(&mut self, history: &[String]) {
        if self.history_cursor.is_none() && self.buffer.text_before_cursor().contains('\n') {
            return self.move_line(-1);
        }
        let current = self.buffer.text();
        let mut history_cursor = self.history_cursor.take().unwrap_or_else(|| HistoryCursor {
            prefix: self.buffer.text_before_cursor().to_owned(),
            draft: current.to_owned(),
            index: history.len(),
        });
        let is_match = |line: &String| line.starts_with(&history_cursor.prefix) && line != current;
        let mut earlier = history.iter().take(history_cursor.index);
        if let Some(index) = earlier.rposition(is_match) {
            history_cursor.index = index;
            self.load_history_line(history, index);
        }
        self.history_cursor = Some(history_cursor).filter(|cursor| cursor.index < history.len());
    }

    /// Moves the cursor down in a text of several lines. If Up has loaded a history line, loads the next one with the
    /// prefix of the [`HistoryCursor`]. If there is no next one, restores the draft.
    pub(super) fn move_down(&mut self, history: &[String]) {
        if self.history_cursor.is_none() && self.buffer.text_after_cursor().contains('\n') {
            return self.move_line(1);
        }
        let Some(mut history_cursor) = self.history_cursor.take() else {
            return;
        };
        let mut later = history.iter().enumerate().skip(history_cursor.index + 1);
        let current = self.buffer.text();
        let is_match = |line: &str| line.starts_with(&history_cursor.prefix) && line != current;
        match later.find(|(_, line)| is_match(line)) {
            Some((index, _)) => {
                history_cursor.index = index;
                self.history_cursor = Some(history_cursor);
                self.load_history_line(history, index);
            }
            None => self.buffer.set_text(history_cursor.draft),
        }
    }

    fn load_history_line(&mut self, history: &[String], index: usize) {
        if let Some(line) = history.get(index) {
            self.buffer.set_text(line.clone());
        }
    }

    /// Returns the hint: the rest of the latest history line that starts with the current text, up to a line break.
    /// Returns `None` if the cursor is not at the end of the text or the menu is open.
    pub(super) fn history_hint<'h>(&self, history: &'h [String]) -> Option<&'h str> {
        let text = self.buffer.text();
        if text.is_empty() || !self.buffer.text_after_cursor().is_empty() || self.menu.is_some() {
            return None;
        }
        let mut rests = history
            .iter()
            .rev()
            .filter_map(|line| line.strip_prefix(text));
        let rest = rests.find(|rest| !rest.is_empty())?;
        rest.split('\n').next().filter(|rest| !rest.is_empty())
    }

    /// Handles a key during an incremental search. Returns `None` if the key ends the search and must still be handled.
    pub(super) fn handle_search_key(
        &mut self,
        key: &KeyEvent,
        history: &[String],
    ) -> Option<EditorAction> {
        let search = self.search.as_mut()?;
        match key {
            KeyEvent::Ctrl('r') => {}
            KeyEvent::Char(character) => {
                search.query.push(*character);
                search.index = (search.index + 1).min(history.len());
            }
            KeyEvent::Backspace => {
                search.query.pop();
                search.index = history.len();
            }
            KeyEvent::Escape | KeyEvent::Ctrl('g' | 'c') => {
                let draft = std::mem::take(&mut search.draft);
                self.search = None;
                self.buffer.set_text(draft);
                return Some(EditorAction::Changed);
            }
            _ => {
                self.search = None;
                // Enter accepts the match without submitting it, so that the user can check it.
                return (*key == KeyEvent::Enter).then_some(EditorAction::Changed);
            }
        }
        let query = search.query.to_lowercase();
        let mut earlier = history.iter().take(search.index);
        let match_index = earlier.rposition(|line| line.to_lowercase().contains(&query));
        if let Some(index) = match_index.filter(|_| !query.is_empty()) {
            search.index = index;
            self.load_history_line(history, index);
        }
        Some(EditorAction::Changed)
    }
}
