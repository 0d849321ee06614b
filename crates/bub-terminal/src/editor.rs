//! The line editor: text, keys, history and completion. It does no terminal I/O.

mod buffer;
mod complete;
mod layout;

pub use self::{
    buffer::Buffer,
    complete::{CompletionItem, CompletionItems, CompletionMatches, common_prefix},
    layout::{EditorLayout, lay_out},
};
use crate::{
    Line, Style, fit,
    keys::KeyEvent,
    sanitize::{line as one_line, sanitize},
};

/// Maximum number of completions shown.
const MAX_MENU_ROWS: usize = 6;

/// What the chat does after a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditorAction {
    /// Redraw the editor; the text may have changed.
    Changed,
    /// Send this text. The editor is empty again.
    Submit(String),
    /// Ctrl-C on an empty line. On other lines, Ctrl-C clears the line.
    Interrupt,
    /// Ctrl-D on an empty line.
    End,
    /// Ctrl-X: switch between agent and shell mode.
    ToggleMode,
    /// Ctrl-L: clear the screen.
    ClearScreen,
    /// Ctrl-Z: suspend the program.
    Suspend,
}

/// A line editor with Emacs keys.
#[derive(Debug, Default)]
pub struct Editor {
    buffer: Buffer,
    items: CompletionItems,
    is_shell: bool,
    kill_buffer: String,
    was_kill: bool,
    history_cursor: Option<HistoryCursor>,
    menu: Option<Menu>,
    search: Option<HistorySearch>,
}

/// A position in the history. Up and Down visit only lines that start with `prefix`.
#[derive(Debug)]
struct HistoryCursor {
    prefix: String,
    /// The text before the first Up.
    draft: String,
    index: usize,
}

/// Completions that Tab cycles through.
#[derive(Debug)]
struct Menu {
    choices: CompletionMatches,
    selected: Option<usize>,
}

/// An incremental search through the history.
#[derive(Debug)]
struct HistorySearch {
    query: String,
    index: usize,
    draft: String,
}

impl Editor {
    /// Creates an editor that completes these words.
    pub fn new(items: CompletionItems) -> Self {
        Self {
            items,
            ..Self::default()
        }
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        self.buffer.text()
    }

    /// Replaces the text.
    pub fn set_text(&mut self, text: &str) {
        self.buffer.set(text);
    }

    /// Whether the editor is in shell mode, where every line is a command.
    pub fn is_shell(&self) -> bool {
        self.is_shell
    }

    /// Switches shell mode on or off.
    pub fn set_shell(&mut self, is_shell: bool) {
        self.is_shell = is_shell;
    }

    /// Sets the session ids to complete after `,resume`.
    pub fn set_sessions(&mut self, ids: Vec<String>) {
        let word = |text| CompletionItem {
            text,
            about: String::new(),
            arguments: String::new(),
        };
        self.items.sessions = ids.into_iter().map(word).collect();
    }

    /// Handles a key. `history` has the latest line last.
    pub fn press(&mut self, key: KeyEvent, history: &[String]) -> EditorAction {
        let was_kill = std::mem::take(&mut self.was_kill);
        if self.search.is_some()
            && let Some(edited) = self.press_in_search(&key, history)
        {
            return edited;
        }
        if !matches!(key, KeyEvent::Tab | KeyEvent::BackTab)
            && self.menu.take().is_some()
            && key == KeyEvent::Escape
        {
            return EditorAction::Changed;
        }
        if !matches!(
            key,
            KeyEvent::Up | KeyEvent::Down | KeyEvent::Ctrl('p' | 'n')
        ) {
            self.history_cursor = None;
        }
        match key {
            KeyEvent::Enter => return self.submit(),
            KeyEvent::Char(character) => self.buffer.insert(character.encode_utf8(&mut [0; 4])),
            KeyEvent::Paste(text) => self.buffer.insert(&text),
            KeyEvent::NewLine | KeyEvent::Ctrl('j') => self.buffer.insert("\n"),
            KeyEvent::Tab => self.complete(1),
            KeyEvent::BackTab => self.complete(-1),
            KeyEvent::Up | KeyEvent::Ctrl('p') => self.up(history),
            KeyEvent::Down | KeyEvent::Ctrl('n') => self.down(history),
            KeyEvent::Right | KeyEvent::End | KeyEvent::Ctrl('f' | 'e')
                if self.hint(history).is_some() =>
            {
                if let Some(hint) = self.hint(history) {
                    self.buffer.insert(&hint);
                }
            }
            KeyEvent::Ctrl('c') if self.text().is_empty() => return EditorAction::Interrupt,
            KeyEvent::Ctrl('c' | 'g') => self.buffer.set(""),
            KeyEvent::Ctrl('d') if self.text().is_empty() => return EditorAction::End,
            KeyEvent::Ctrl('x') => return EditorAction::ToggleMode,
            KeyEvent::Ctrl('l') => return EditorAction::ClearScreen,
            KeyEvent::Ctrl('z') => return EditorAction::Suspend,
            KeyEvent::Ctrl('r') => {
                let draft = self.text().to_owned();
                self.search = Some(HistorySearch {
                    query: String::new(),
                    index: history.len(),
                    draft,
                });
            }
            KeyEvent::Ctrl('y') => {
                let kill_buffer = self.kill_buffer.clone();
                self.buffer.insert(&kill_buffer);
            }
            KeyEvent::Ctrl('t') => self.buffer.transpose(),
            key => self.handle_edit_key(&key, was_kill),
        }
        EditorAction::Changed
    }

    fn handle_edit_key(&mut self, key: &KeyEvent, was_kill: bool) {
        let buffer = &mut self.buffer;
        match key {
            KeyEvent::Left | KeyEvent::Ctrl('b') => buffer.move_to(buffer.left()),
            KeyEvent::Right | KeyEvent::Ctrl('f') => buffer.move_to(buffer.right()),
            KeyEvent::WordLeft => buffer.move_to(buffer.word_left()),
            KeyEvent::WordRight => buffer.move_to(buffer.word_right()),
            KeyEvent::Home | KeyEvent::Ctrl('a') => buffer.move_to(buffer.line_start()),
            KeyEvent::End | KeyEvent::Ctrl('e') => buffer.move_to(buffer.line_end()),
            KeyEvent::Alt('<') => buffer.move_to(0),
            KeyEvent::Alt('>') => buffer.move_to(buffer.text().len()),
            KeyEvent::Backspace => drop(buffer.cut_to(buffer.left())),
            KeyEvent::Delete | KeyEvent::Ctrl('d') => drop(buffer.cut_to(buffer.right())),
            KeyEvent::Ctrl('k') if buffer.line_end() == buffer.cursor() => {
                self.kill(Buffer::right, was_kill);
            }
            KeyEvent::Ctrl('k') => self.kill(Buffer::line_end, was_kill),
            KeyEvent::Ctrl('u') => self.kill(Buffer::line_start, was_kill),
            KeyEvent::Ctrl('w') => self.kill(Buffer::blank_word_left, was_kill),
            KeyEvent::AltBackspace => self.kill(Buffer::word_left, was_kill),
            KeyEvent::DeleteWord => self.kill(Buffer::word_right, was_kill),
            _ => {}
        }
    }

    /// Cuts the text up to an offset. Consecutive cuts are combined for Ctrl-Y.
    fn kill(&mut self, target: impl Fn(&Buffer) -> usize, was_kill: bool) {
        let target = target(&self.buffer);
        let is_backwards = target < self.buffer.cursor();
        let cut = self.buffer.cut_to(target);
        self.kill_buffer = match (was_kill, is_backwards) {
            (false, _) => cut,
            (true, true) => cut + &self.kill_buffer,
            (true, false) => std::mem::take(&mut self.kill_buffer) + &cut,
        };
        self.was_kill = true;
    }

    fn submit(&mut self) -> EditorAction {
        (self.menu, self.history_cursor) = (None, None);
        let text = self.buffer.text().to_owned();
        self.buffer.set("");
        EditorAction::Submit(text)
    }

    fn up(&mut self, history: &[String]) {
        if self.history_cursor.is_none() && self.buffer.before().contains('\n') {
            return self.move_line(-1);
        }
        let prefix = match &self.history_cursor {
            Some(history_cursor) => history_cursor.prefix.clone(),
            None => self.buffer.before().to_owned(),
        };
        let from = self
            .history_cursor
            .as_ref()
            .map_or(history.len(), |history_cursor| history_cursor.index);
        let current = self.buffer.text();
        let found = history
            .iter()
            .take(from)
            .rposition(|line| line.starts_with(&prefix) && line != current);
        if let Some(index) = found {
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

    fn down(&mut self, history: &[String]) {
        if self.history_cursor.is_none() && self.buffer.after().contains('\n') {
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
            None => self.buffer.set(history_cursor.draft),
        }
    }

    fn load_history_line(&mut self, history: &[String], index: usize) {
        if let Some(line) = history.get(index) {
            self.buffer.set(line.clone());
        }
    }

    /// Moves the cursor to the same column of the line above or below.
    fn move_line(&mut self, direction: isize) {
        let start = self.buffer.line_start();
        let column = self
            .buffer
            .text()
            .get(start..self.buffer.cursor())
            .map_or(0, |text| text.chars().count());
        let target = if direction < 0 {
            start.saturating_sub(1)
        } else {
            self.buffer.line_end() + 1
        };
        self.buffer.move_to(target);
        let start = self.buffer.line_start();
        let line = self
            .buffer
            .text()
            .get(start..self.buffer.line_end())
            .unwrap_or_default();
        let offset = line
            .char_indices()
            .nth(column)
            .map_or(line.len(), |(at, _)| at);
        self.buffer.move_to(start + offset);
    }

    fn complete(&mut self, step: isize) {
        if let Some(menu) = &mut self.menu {
            let count = menu.choices.items.len();
            let at = match menu.selected {
                Some(selected) => selected
                    .checked_add_signed(step)
                    .map_or(count - 1, |next| next % count),
                None if step < 0 => count - 1,
                None => 0,
            };
            menu.selected = Some(at);
            if let Some(word) = menu.choices.items.get(at) {
                let from = menu.choices.from;
                self.buffer.replace(from, self.buffer.cursor(), &word.text);
            }
            return;
        }
        let Some(choices) = self.items.complete(self.buffer.before(), self.is_shell) else {
            return;
        };
        let typed_bytes = self.buffer.cursor() - choices.from;
        let common_prefix = common_prefix(&choices.items).to_owned();
        if let [only] = choices.items.as_slice() {
            let text = format!("{} ", only.text);
            self.buffer
                .replace(choices.from, self.buffer.cursor(), &text);
        } else {
            if common_prefix.len() >= typed_bytes {
                self.buffer
                    .replace(choices.from, self.buffer.cursor(), &common_prefix);
            }
            self.menu = Some(Menu {
                choices,
                selected: None,
            });
        }
    }

    /// Returns the rest of the latest history line that starts with the text.
    fn hint(&self, history: &[String]) -> Option<String> {
        let text = self.buffer.text();
        if text.is_empty() || !self.buffer.after().is_empty() || self.menu.is_some() {
            return None;
        }
        let line = history
            .iter()
            .rev()
            .find(|line| line.len() > text.len() && line.starts_with(text))?;
        let rest = line.get(text.len()..)?;
        Some(rest.split('\n').next().unwrap_or_default().to_owned()).filter(|rest| !rest.is_empty())
    }

    fn press_in_search(&mut self, key: &KeyEvent, history: &[String]) -> Option<EditorAction> {
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
                self.buffer.set(draft);
                return Some(EditorAction::Changed);
            }
            _ => {
                self.search = None;
                // Enter accepts the match without submitting it, so that the user can check it.
                return (*key == KeyEvent::Enter).then_some(EditorAction::Changed);
            }
        }
        let query = search.query.to_lowercase();
        let found = history
            .iter()
            .take(search.index)
            .rposition(|line| line.to_lowercase().contains(&query));
        if let Some(index) = found.filter(|_| !query.is_empty()) {
            search.index = index;
            self.load_history_line(history, index);
        }
        Some(EditorAction::Changed)
    }

    /// Lays out the editor: at most `max_rows` rows of text with the cursor, and the rows of the completion menu.
    pub fn rows(
        &self,
        prompt: &Line,
        history: &[String],
        width: usize,
        max_rows: usize,
    ) -> (EditorLayout, Vec<Line>) {
        let search_prompt = self.search.as_ref().map(|search| {
            Line::new(
                format!("(search `{}') ", one_line(&search.query)),
                Style::DIM,
            )
        });
        let prompt = search_prompt.as_ref().unwrap_or(prompt);
        let layout = lay_out(prompt, self.buffer.text(), self.buffer.cursor(), width);
        let mut layout = layout.window(max_rows.max(1));
        let arguments = || {
            self.items
                .arguments(self.buffer.text(), self.is_shell)
                .map(str::to_owned)
        };
        if let (Some(hint), Some(row)) = (
            self.hint(history).or_else(arguments),
            layout.rows.last_mut(),
        ) {
            let room = width.saturating_sub(1).saturating_sub(row.columns());
            let hint = sanitize(&hint).replace('\t', " ");
            row.push(fit(&hint, room).0, Style::DIM);
        }
        (layout, self.menu_rows(width))
    }

    fn menu_rows(&self, width: usize) -> Vec<Line> {
        let Some(menu) = &self.menu else {
            return Vec::new();
        };
        let items = &menu.choices.items;
        let selected = menu.selected.unwrap_or(0);
        let first = selected.saturating_sub(MAX_MENU_ROWS - 1);
        let widest = items
            .iter()
            .map(|word| crate::columns(&word.text))
            .max()
            .unwrap_or(0);
        let row = |(index, word): (usize, &CompletionItem)| {
            let style = if menu.selected == Some(index) {
                Style::REVERSE
            } else {
                Style::NONE
            };
            let name = format!(
                "  {}{}",
                word.text,
                " ".repeat(widest - crate::columns(&word.text))
            );
            let mut row = Line::new(fit(&name, width - 1).0, style);
            let room = width.saturating_sub(1).saturating_sub(row.columns());
            row.push(
                &truncate_at_word(&format!("  {}", one_line(&word.about)), room),
                Style::DIM,
            );
            row
        };
        items
            .iter()
            .enumerate()
            .skip(first)
            .take(MAX_MENU_ROWS)
            .map(row)
            .collect()
    }
}

/// Returns as many complete words of a text as fit into `room` columns.
fn truncate_at_word(text: &str, room: usize) -> String {
    if crate::columns(text) <= room {
        return text.to_owned();
    }
    let short = fit(text, room.saturating_sub(2)).0;
    short
        .rsplit_once(' ')
        .map_or_else(String::new, |(words, _)| format!("{} …", words.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn editor() -> Editor {
        let word = |text: &str| CompletionItem {
            text: text.to_owned(),
            about: format!("about {text}"),
            arguments: if text == "help" {
                "topic".to_owned()
            } else {
                String::new()
            },
        };
        Editor::new(CompletionItems {
            commands: ["tape.info", "tape.anchors", "help"].map(word).to_vec(),
            skills: vec![word("notes")],
            sessions: Vec::new(),
        })
    }

    fn press(
        editor: &mut Editor,
        keys: impl IntoIterator<Item = KeyEvent>,
        history: &[&str],
    ) -> EditorAction {
        let history: Vec<String> = history.iter().map(|line| (*line).to_owned()).collect();
        let mut last = EditorAction::Changed;
        for key in keys {
            last = editor.press(key, &history);
        }
        last
    }

    fn chars(text: &str) -> impl Iterator<Item = KeyEvent> {
        text.chars()
            .map(KeyEvent::Char)
            .collect::<Vec<_>>()
            .into_iter()
    }

    #[test]
    fn keys_of_emacs_move_and_cut() {
        use KeyEvent::{Backspace, Char, Ctrl, Home, WordLeft};
        let rows: &[(&str, &[KeyEvent], &str, usize)] = &[
            ("one two", &[Ctrl('a'), Char('x')], "xone two", 1),
            ("one two", &[Home, Ctrl('e'), Char('x')], "one twox", 8),
            ("one two", &[WordLeft, Ctrl('k')], "one ", 4),
            ("one two", &[WordLeft, Ctrl('u')], "two", 0),
            ("one two", &[Ctrl('w')], "one ", 4),
            ("one two", &[Ctrl('w'), Ctrl('w'), Ctrl('y')], "one two", 7),
            (
                "one two",
                &[Ctrl('a'), Ctrl('k'), Ctrl('y'), Ctrl('y')],
                "one twoone two",
                14,
            ),
            ("one two", &[KeyEvent::AltBackspace, Char('x')], "one x", 5),
            ("ab", &[Ctrl('t')], "ba", 2),
            ("é🐙", &[Backspace], "é", 2),
            ("ab", &[Ctrl('b'), Ctrl('d')], "a", 1),
            (
                "ab",
                &[KeyEvent::NewLine, Char('c'), Ctrl('j')],
                "ab\nc\n",
                5,
            ),
            ("a\nb", &[KeyEvent::Up, Char('x')], "ax\nb", 2),
            ("gone", &[Ctrl('c')], "", 0),
        ];
        for (text, keys, expected, cursor) in rows {
            let mut editor = editor();
            editor.set_text(text);
            press(&mut editor, keys.iter().cloned(), &[]);
            assert_eq!(
                (editor.text(), editor.buffer.cursor()),
                (*expected, *cursor),
                "{text:?} {keys:?}"
            );
        }
    }

    #[test]
    fn a_pasted_text_keeps_its_lines_until_enter() {
        let mut editor = editor();
        press(&mut editor, [KeyEvent::Paste("one\ntwo".to_owned())], &[]);
        assert_eq!(
            press(&mut editor, [KeyEvent::Enter], &[]),
            EditorAction::Submit("one\ntwo".to_owned())
        );
        assert_eq!(editor.text(), "");
    }

    #[test]
    fn control_c_and_d_mean_something_on_an_empty_line_only() {
        let mut editor = editor();
        assert_eq!(
            press(&mut editor, [KeyEvent::Ctrl('c')], &[]),
            EditorAction::Interrupt
        );
        assert_eq!(
            press(&mut editor, [KeyEvent::Ctrl('d')], &[]),
            EditorAction::End
        );
        assert_eq!(
            press(&mut editor, [KeyEvent::Char('a'), KeyEvent::Ctrl('d')], &[]),
            EditorAction::Changed
        );
    }

    #[test]
    fn the_history_is_walked_by_prefix_and_the_draft_comes_back() {
        let history = ["deploy a", "test", "deploy b"];
        let mut editor = editor();
        press(&mut editor, chars("de"), &history);
        for (key, expected) in [
            (KeyEvent::Up, "deploy b"),
            (KeyEvent::Up, "deploy a"),
            (KeyEvent::Up, "deploy a"),
            (KeyEvent::Down, "deploy b"),
            (KeyEvent::Down, "de"),
            (KeyEvent::Down, "de"),
        ] {
            press(&mut editor, [key], &history);
            assert_eq!(editor.text(), expected);
        }
        editor.set_text("");
        press(&mut editor, [KeyEvent::Up, KeyEvent::Up], &history);
        assert_eq!(editor.text(), "test");
    }

    #[test]
    fn a_line_is_found_by_a_part_of_it() {
        let history = ["deploy a", "test", "deploy b"];
        let mut editor = editor();
        press(
            &mut editor,
            [KeyEvent::Ctrl('r')].into_iter().chain(chars("PLOY")),
            &history,
        );
        assert_eq!(editor.text(), "deploy b");
        press(&mut editor, [KeyEvent::Ctrl('r')], &history);
        assert_eq!(editor.text(), "deploy a");
        assert_eq!(
            press(&mut editor, [KeyEvent::Enter], &history),
            EditorAction::Changed
        );
        assert_eq!(editor.text(), "deploy a");
        press(
            &mut editor,
            [KeyEvent::Ctrl('r'), KeyEvent::Char('t'), KeyEvent::Escape],
            &history,
        );
        assert_eq!(editor.text(), "deploy a", "the draft is back");
    }

    #[test]
    fn tab_completes_as_far_as_it_is_clear_and_then_offers() {
        let mut editor = editor();
        press(&mut editor, chars(",he").chain([KeyEvent::Tab]), &[]);
        assert_eq!(editor.text(), ",help ");
        let (layout, _) = editor.rows(&Line::new("> ", Style::NONE), &[], 40, 5);
        assert_eq!(layout.rows[0].text(), "> ,help topic");
        editor.set_text("");
        press(&mut editor, chars(",t").chain([KeyEvent::Tab]), &[]);
        assert_eq!(editor.text(), ",tape.");
        let menu = |editor: &Editor| {
            let (_, menu) = editor.rows(&Line::default(), &[], 40, 5);
            menu.iter().map(Line::text).collect::<Vec<_>>()
        };
        assert_eq!(
            menu(&editor),
            [
                "  tape.info     about tape.info",
                "  tape.anchors  about tape.anchors"
            ]
        );
        press(&mut editor, [KeyEvent::Tab], &[]);
        assert_eq!(editor.text(), ",tape.info");
        press(&mut editor, [KeyEvent::Tab], &[]);
        assert_eq!(editor.text(), ",tape.anchors");
        press(&mut editor, [KeyEvent::BackTab], &[]);
        assert_eq!(editor.text(), ",tape.info");
        press(&mut editor, [KeyEvent::Char(' ')], &[]);
        assert!(menu(&editor).is_empty());
        editor.set_text("use $n");
        press(&mut editor, [KeyEvent::Tab], &[]);
        assert_eq!(editor.text(), "use $notes ");
    }

    #[test]
    fn what_was_typed_before_is_offered() {
        let history = ["deploy to staging"];
        let mut editor = editor();
        press(&mut editor, chars("dep"), &history);
        let lines: Vec<String> = history.iter().map(|line| (*line).to_owned()).collect();
        let (layout, _) = editor.rows(&Line::new("> ", Style::NONE), &lines, 14, 5);
        assert_eq!(layout.rows[0].text(), "> deploy to s");
        assert_eq!(layout.cursor, (0, 5));
        press(&mut editor, [KeyEvent::Right], &history);
        assert_eq!(editor.text(), "deploy to staging");
    }
}
