//! The line editor: text, keys, history and completion. It does no terminal I/O.
//!
//! `reedline` and its like own the terminal while they read a line. The chat draws answers above the line that the user
//! types, so the editor is part of its screen.

mod buffer;
mod complete;
mod history_navigation;
mod layout;

use self::history_navigation::{HistoryCursor, HistorySearch};
pub use self::{
    buffer::Buffer,
    complete::{CompletionItem, CompletionItems, CompletionMatches, common_prefix},
    layout::{EditorLayout, lay_out},
};
use crate::{
    Line, Style, columns,
    keys::KeyEvent,
    sanitize::{sanitize, sanitize_line},
    split_at_width,
};

/// Extensions of images that a pasted path attaches.
const IMAGE_EXTENSIONS: [&str; 5] = ["png", "jpg", "jpeg", "gif", "webp"];
/// Maximum number of completions shown.
const MAX_MENU_ROWS: usize = 6;

/// The start of the marker of an image from the clipboard.
const MARKER_START: &str = "[image ";

/// Returns the text that stands for an image from the clipboard. Backspace removes it as a whole.
pub fn image_marker(number: u64) -> String {
    format!("{MARKER_START}{number}]")
}

/// Returns the offset of the marker of an image at the end of a text. The space that is inserted after it belongs to it.
fn marker_start(text: &str) -> Option<usize> {
    let text = text.strip_suffix(' ').unwrap_or(text);
    let start = text.rfind(MARKER_START)?;
    let number = text.get(start + MARKER_START.len()..)?.strip_suffix(']')?;
    number.parse::<u64>().is_ok().then_some(start)
}

/// What the chat must do after a key press.
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
    /// Ctrl-O: show the complete output of the latest tool call.
    ShowOutput,
    /// Ctrl-V: attach the image in the clipboard.
    AttachClipboardImage,
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
    /// Whether the editor is in shell mode, where every line is a command.
    pub is_shell: bool,
    /// The text that Ctrl-Y inserts.
    kill_buffer: String,
    /// Whether the last key cut text into the kill buffer.
    was_kill: bool,
    history_cursor: Option<HistoryCursor>,
    menu: Option<Menu>,
    search: Option<HistorySearch>,
}

/// Completions that Tab cycles through.
#[derive(Debug)]
struct Menu {
    choices: CompletionMatches,
    selected: Option<usize>,
}

impl Editor {
    /// Creates an editor that completes the words in `items`.
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

    /// Returns the commands that Tab completes after a comma or a slash.
    pub fn commands(&self) -> &[CompletionItem] {
        &self.items.commands
    }

    /// Returns pasted text. If it is the path of an image, as when a file is dropped on the terminal, an `@` before it
    /// attaches the image.
    pub fn mention_image(&self, text: String) -> String {
        let path = text.trim().trim_matches(['\'', '"']);
        let is_image = IMAGE_EXTENSIONS.iter().any(|extension| {
            let end = path.rsplit_once('.').map(|(_, end)| end);
            end.is_some_and(|end| end.eq_ignore_ascii_case(extension))
        });
        // Nothing separates a path with spaces from the text after it.
        if !is_image || path.contains(char::is_whitespace) || path.starts_with('@') {
            return text;
        }
        if self.items.workspace.join(path).is_file() {
            format!("@{path} ")
        } else {
            text
        }
    }

    /// Returns whether Escape closes something: the completion menu, or the search in the history.
    pub fn has_popup(&self) -> bool {
        self.menu.is_some() || self.search.is_some()
    }

    /// Replaces the text.
    pub fn set_text(&mut self, text: &str) {
        self.buffer.set_text(text);
    }

    /// Removes all occurrences of a part of the text.
    pub fn remove_text(&mut self, part: &str) {
        if self.text().contains(part) {
            self.buffer.set_text(self.text().replace(part, ""));
        }
    }

    /// Sets the session ids to complete after `,resume`.
    pub fn set_session_ids(&mut self, ids: Vec<String>) {
        let word = |text| CompletionItem {
            text,
            ..CompletionItem::default()
        };
        self.items.sessions = ids.into_iter().map(word).collect();
    }

    /// Handles a key. `history` has the latest line last.
    pub fn handle_key(&mut self, key: KeyEvent, history: &[String]) -> EditorAction {
        let was_kill = std::mem::take(&mut self.was_kill);
        if self.search.is_some()
            && let Some(edited) = self.handle_search_key(&key, history)
        {
            return edited;
        }
        if !matches!(key, KeyEvent::Tab | KeyEvent::BackTab)
            && self.menu.take().is_some()
            && key == KeyEvent::Escape
        {
            return EditorAction::Changed;
        }
        let moves = matches!(
            key,
            KeyEvent::Up | KeyEvent::Down | KeyEvent::Ctrl('p' | 'n')
        );
        if !moves {
            self.history_cursor = None;
        }
        match key {
            KeyEvent::Enter => return self.submit(),
            KeyEvent::Char(character) => self.buffer.insert(character.encode_utf8(&mut [0; 4])),
            KeyEvent::Paste(text) => self.buffer.insert(&text),
            KeyEvent::NewLine | KeyEvent::Ctrl('j') => self.buffer.insert("\n"),
            KeyEvent::Tab => self.complete_word(1),
            KeyEvent::BackTab => self.complete_word(-1),
            KeyEvent::Up | KeyEvent::Ctrl('p') => self.move_up(history),
            KeyEvent::Down | KeyEvent::Ctrl('n') => self.move_down(history),
            KeyEvent::Right | KeyEvent::End | KeyEvent::Ctrl('f' | 'e')
                if let Some(hint) = self.history_hint(history) =>
            {
                self.buffer.insert(hint);
            }
            KeyEvent::Ctrl('c') if self.text().is_empty() => return EditorAction::Interrupt,
            KeyEvent::Ctrl('c' | 'g') => self.buffer.set_text(""),
            KeyEvent::Ctrl('d') if self.text().is_empty() => return EditorAction::End,
            KeyEvent::Ctrl('x') => return EditorAction::ToggleMode,
            KeyEvent::Ctrl('o') => return EditorAction::ShowOutput,
            KeyEvent::Ctrl('v') => return EditorAction::AttachClipboardImage,
            KeyEvent::Ctrl('l') => return EditorAction::ClearScreen,
            KeyEvent::Ctrl('z') => return EditorAction::Suspend,
            KeyEvent::Ctrl('r') => {
                self.search = Some(HistorySearch {
                    query: String::new(),
                    index: history.len(),
                    draft: self.text().to_owned(),
                });
            }
            KeyEvent::Ctrl('y') => self.buffer.insert(&self.kill_buffer),
            KeyEvent::Ctrl('t') => self.buffer.transpose_chars(),
            key => self.handle_edit_key(&key, was_kill),
        }
        EditorAction::Changed
    }

    /// Handles keys that move the cursor or cut text.
    fn handle_edit_key(&mut self, key: &KeyEvent, was_kill: bool) {
        let buffer = &mut self.buffer;
        match key {
            KeyEvent::Left | KeyEvent::Ctrl('b') => buffer.move_to(buffer.left_offset()),
            KeyEvent::Right | KeyEvent::Ctrl('f') => buffer.move_to(buffer.right_offset()),
            KeyEvent::WordLeft => buffer.move_to(buffer.word_start()),
            KeyEvent::WordRight => buffer.move_to(buffer.word_end()),
            KeyEvent::Home | KeyEvent::Ctrl('a') => buffer.move_to(buffer.line_start()),
            KeyEvent::End | KeyEvent::Ctrl('e') => buffer.move_to(buffer.line_end()),
            KeyEvent::Alt('<') => buffer.move_to(0),
            KeyEvent::Alt('>') => buffer.move_to(buffer.text().len()),
            KeyEvent::Backspace => {
                let marker = marker_start(buffer.text_before_cursor());
                drop(buffer.cut_to(marker.unwrap_or_else(|| buffer.left_offset())));
            }
            KeyEvent::Delete | KeyEvent::Ctrl('d') => drop(buffer.cut_to(buffer.right_offset())),
            KeyEvent::Ctrl('k') if buffer.line_end() == buffer.cursor() => {
                self.kill_to(Buffer::right_offset, was_kill);
            }
            KeyEvent::Ctrl('k') => self.kill_to(Buffer::line_end, was_kill),
            KeyEvent::Ctrl('u') => self.kill_to(Buffer::line_start, was_kill),
            KeyEvent::Ctrl('w') => self.kill_to(Buffer::blank_word_start, was_kill),
            KeyEvent::AltBackspace => self.kill_to(Buffer::word_start, was_kill),
            KeyEvent::DeleteWord => self.kill_to(Buffer::word_end, was_kill),
            _ => {}
        }
    }

    /// Cuts the text between the cursor and the offset that `target` returns into the kill buffer. Consecutive cuts are
    /// combined.
    fn kill_to(&mut self, target: impl Fn(&Buffer) -> usize, was_kill: bool) {
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

    /// Returns the action that submits the text, and clears the editor.
    fn submit(&mut self) -> EditorAction {
        (self.menu, self.history_cursor) = (None, None);
        EditorAction::Submit(std::mem::take(&mut self.buffer).into_text())
    }

    /// Moves the cursor to the same column of the line above (`direction` -1) or below (1).
    fn move_line(&mut self, direction: isize) {
        let buffer = &mut self.buffer;
        let start = buffer.line_start();
        let before = buffer.text().get(start..buffer.cursor());
        let column = before.map_or(0, |text| text.chars().count());
        buffer.move_to(match direction {
            ..0 => start.saturating_sub(1),
            0.. => buffer.line_end() + 1,
        });
        let start = buffer.line_start();
        let line = buffer
            .text()
            .get(start..buffer.line_end())
            .unwrap_or_default();
        let target = line.char_indices().nth(column);
        buffer.move_to(start + target.map_or(line.len(), |(at, _)| at));
    }

    /// Completes the word at the cursor, or selects the next (`step` 1) or previous (-1) completion of the menu.
    fn complete_word(&mut self, step: isize) {
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
                self.buffer.replace_from(menu.choices.from, &word.text);
            }
            return;
        }
        let before = self.buffer.text_before_cursor();
        let Some(choices) = self.items.find_matches(before, self.is_shell) else {
            return;
        };
        if let [only] = choices.items.as_slice() {
            // A directory is followed by the name of a file in it.
            let end = if only.text.ends_with('/') { "" } else { " " };
            let text = format!("{}{end}", only.text);
            self.buffer.replace_from(choices.from, &text);
            return;
        }
        let common_prefix = common_prefix(&choices.items);
        if common_prefix.len() >= before.len() - choices.from {
            self.buffer.replace_from(choices.from, common_prefix);
        }
        self.menu = Some(Menu {
            choices,
            selected: None,
        });
    }

    /// Lays out the editor: at most `max_rows` rows of text with the cursor, and the rows of the completion menu.
    pub fn lay_out(
        &self,
        prompt: &Line,
        history: &[String],
        width: usize,
        max_rows: usize,
    ) -> (EditorLayout, Vec<Line>) {
        let search_prompt = self.search.as_ref().map(|search| {
            let text = format!("(search `{}') ", sanitize_line(&search.query));
            Line::new(text, Style::DIM)
        });
        let prompt = search_prompt.as_ref().unwrap_or(prompt);
        let layout = lay_out(prompt, self.buffer.text(), self.buffer.cursor(), width);
        let mut layout = layout.limit_rows(max_rows.max(1));
        let arguments = || self.items.arguments_hint(self.buffer.text(), self.is_shell);
        if let Some(hint) = self.history_hint(history).or_else(arguments)
            && let Some(row) = layout.rows.last_mut()
        {
            let available_width = width.saturating_sub(1).saturating_sub(row.columns());
            let hint = sanitize(hint).replace('\t', " ");
            row.push(split_at_width(&hint, available_width).0, Style::DIM);
        }
        (layout, self.menu_rows(width))
    }

    /// Returns the rows of the completion menu.
    fn menu_rows(&self, width: usize) -> Vec<Line> {
        let Some(menu) = &self.menu else {
            return Vec::new();
        };
        let items = &menu.choices.items;
        let selected = menu.selected.unwrap_or(0);
        let first = selected.saturating_sub(MAX_MENU_ROWS - 1);
        let widest = items.iter().map(|word| columns(&word.text)).max();
        let row = |(index, word): (usize, &CompletionItem)| {
            let style = match menu.selected {
                Some(selected) if selected == index => Style::REVERSE,
                _ => Style::NONE,
            };
            let padding = " ".repeat(widest.unwrap_or(0) - columns(&word.text));
            let name = format!("  {}{padding}", word.text);
            let mut row = Line::new(split_at_width(&name, width - 1).0, style);
            let available_width = width.saturating_sub(1).saturating_sub(row.columns());
            let about = format!("  {}", sanitize_line(&word.about));
            row.push(&truncate_at_word(&about, available_width), Style::DIM);
            row
        };
        let shown = items.iter().enumerate().skip(first).take(MAX_MENU_ROWS);
        shown.map(row).collect()
    }
}

/// Returns as many complete words of a text as fit into `available_width` columns. A ` …` replaces omitted words.
fn truncate_at_word(text: &str, available_width: usize) -> String {
    if columns(text) <= available_width {
        return text.to_owned();
    }
    let short = split_at_width(text, available_width.saturating_sub(2)).0;
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
            ..CompletionItems::default()
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
            last = editor.handle_key(key, &history);
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
        let (layout, _) = editor.lay_out(&Line::new("> ", Style::NONE), &[], 40, 5);
        assert_eq!(layout.rows[0].text(), "> ,help topic");
        editor.set_text("");
        press(&mut editor, chars(",t").chain([KeyEvent::Tab]), &[]);
        assert_eq!(editor.text(), ",tape.");
        let menu = |editor: &Editor| {
            let (_, menu) = editor.lay_out(&Line::default(), &[], 40, 5);
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
        let (layout, _) = editor.lay_out(&Line::new("> ", Style::NONE), &lines, 14, 5);
        assert_eq!(layout.rows[0].text(), "> deploy to s");
        assert_eq!(layout.cursor, (0, 5));
        press(&mut editor, [KeyEvent::Right], &history);
        assert_eq!(editor.text(), "deploy to staging");
    }
}
