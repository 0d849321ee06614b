//! The history in the editor: Up and Down, the hint after the text, and the incremental search.

use super::{Editor, EditorAction};
use crate::keys::KeyEvent;

/// A position in the history. Up and Down visit only lines that start with `prefix`.
#[derive(Debug)]
pub(super) struct HistoryCursor {
    prefix: String,
    /// The text before the first Up.
    draft: String,
    index: usize,
}

/// An incremental search through the history.
#[derive(Debug)]
pub(super) struct HistorySearch {
    pub(super) query: String,
    pub(super) index: usize,
    pub(super) draft: String,
}

impl Editor {
    /// Moves the cursor up in a text of several lines. On the first line, loads the previous history line with the same
    /// prefix.
    pub(super) fn move_up(&mut self, history: &[String]) {
        if self.history_cursor.is_none() && self.buffer.text_before_cursor().contains('\n') {
            return self.move_line(-1);
        }
        let prefix = match &self.history_cursor {
            Some(history_cursor) => history_cursor.prefix.clone(),
            None => self.buffer.text_before_cursor().to_owned(),
        };
        let from = self
            .history_cursor
            .as_ref()
            .map_or(history.len(), |history_cursor| history_cursor.index);
        let current = self.buffer.text();
        let match_index = history
            .iter()
            .take(from)
            .rposition(|line| line.starts_with(&prefix) && line != current);
        if let Some(index) = match_index {
            let draft = self.history_cursor.take().map_or_else(
                || self.buffer.text().to_owned(),
                |history_cursor| history_cursor.draft,
            );
            self.history_cursor = Some(HistoryCursor {
                prefix,
                draft,
                index,
            });
            self.load_history_line(history, index);
        }
    }

    /// Moves the cursor down in a text of several lines. On the last line, loads the next history line with the same
    /// prefix, or the draft.
    pub(super) fn move_down(&mut self, history: &[String]) {
        if self.history_cursor.is_none() && self.buffer.text_after_cursor().contains('\n') {
            return self.move_line(1);
        }
        let Some(mut history_cursor) = self.history_cursor.take() else {
            return;
        };
        let later = history.iter().enumerate().skip(history_cursor.index + 1);
        let current = self.buffer.text();
        match later
            .into_iter()
            .find(|(_, line)| line.starts_with(&history_cursor.prefix) && *line != current)
        {
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

    /// Returns the text that completes the current text to the latest history line that starts with it.
    pub(super) fn history_hint(&self, history: &[String]) -> Option<String> {
        let text = self.buffer.text();
        if text.is_empty() || !self.buffer.text_after_cursor().is_empty() || self.menu.is_some() {
            return None;
        }
        let line = history
            .iter()
            .rev()
            .find(|line| line.len() > text.len() && line.starts_with(text))?;
        let rest = line.get(text.len()..)?;
        Some(rest.split('\n').next().unwrap_or_default().to_owned()).filter(|rest| !rest.is_empty())
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
        let match_index = history
            .iter()
            .take(search.index)
            .rposition(|line| line.to_lowercase().contains(&query));
        if let Some(index) = match_index.filter(|_| !query.is_empty()) {
            search.index = index;
            self.load_history_line(history, index);
        }
        Some(EditorAction::Changed)
    }
}
