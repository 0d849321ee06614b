//! A list from which the user picks an item with the arrow keys, or by typing a part of its name. On a terminal that
//! cannot redraw its lines, the callers ask with a plain prompt instead.

use std::io::{Read as _, stdin};

use bub::{prompt, signals};
use bub_kernel::Result;
use bub_settings::Settings;
use bub_terminal::{
    ColorMode, Line, Style, columns,
    keys::{KeyDecoder, KeyEvent},
    tty::{self, ModeGuard},
};

use super::terminal_mode::{TerminalMode, color_mode};

/// Maximum items on the screen.
const MAX_ROWS: usize = 10;
/// Rows of the picker without items: the question and the keys.
const FRAME_ROWS: usize = 2;
const KEY_HINTS: &str = "↑↓ move · type to search · Enter choose · Ctrl-C quit";

/// An item of the list.
#[derive(Clone)]
pub(super) struct PickerItem {
    pub(super) name: String,
    /// A few words about the item.
    pub(super) about: String,
    /// Other names of the item.
    pub(super) aliases: Vec<String>,
}

/// The list and what the user typed.
pub(super) struct Picker {
    pub(super) question: String,
    pub(super) items: Vec<PickerItem>,
    /// The item that is selected first.
    pub(super) default: Option<String>,
    /// What to do with typed text that is not an item, such as `add as a custom provider`. With `None`, the user has to
    /// choose an item.
    pub(super) custom: Option<&'static str>,
    /// Finds the item that the user probably means.
    pub(super) suggest: fn(&[PickerItem], &str) -> Option<usize>,
}

/// A row that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PickerRow {
    Item(usize),
    /// The typed text.
    Typed,
}

struct PickerState {
    picker: Picker,
    typed: String,
    selected: usize,
    color_mode: ColorMode,
    drawn_rows: usize,
}

/// Returns whether the terminal can show a picker.
pub(super) fn can_pick(settings: &Settings) -> bool {
    TerminalMode::of_stdout(settings.environment()) == TerminalMode::Screen
        && prompt::has_terminal()
}

/// Shows the list and returns the name of the item, or the text that the user typed.
pub(super) async fn pick(picker: Picker, settings: &Settings) -> Result<String> {
    let color_mode = color_mode(settings.environment());
    prompt::run_interruptible("", move || {
        signals::exit_on_signal();
        let raw = ModeGuard::raw_mode()?;
        let mut state = PickerState::new(picker, color_mode);
        let outcome = state.run();
        prompt::print_stderr(&state.clear());
        drop(raw);
        let name = outcome?;
        prompt::print_stderr(&format!("{}: {name}\n", state.picker.question));
        Ok(name)
    })
    .await
}

impl PickerState {
    fn new(picker: Picker, color_mode: ColorMode) -> Self {
        let mut items = picker.items.iter();
        let is_default = |item: &PickerItem| Some(&item.name) == picker.default.as_ref();
        let selected = items.position(is_default).unwrap_or(0);
        Self {
            picker,
            typed: String::new(),
            selected,
            color_mode,
            drawn_rows: 0,
        }
    }

    fn run(&mut self) -> Result<String> {
        let mut decoder = KeyDecoder::default();
        loop {
            prompt::print_stderr(&self.draw());
            let mut bytes = [0; 1024];
            let count = stdin().lock().read(&mut bytes)?;
            if count == 0 {
                return Err(prompt::interrupted_error());
            }
            let mut keys = decoder.feed(bytes.get(..count).unwrap_or_default());
            keys.extend(decoder.flush());
            for key in keys {
                if let Some(picked) = self.handle_key(&key)? {
                    return Ok(picked);
                }
            }
        }
    }

    /// Handles a key. Returns what the user chose with it.
    fn handle_key(&mut self, key: &KeyEvent) -> Result<Option<String>> {
        let rows = self.rows();
        match key {
            KeyEvent::Ctrl('c' | 'd') => return Err(prompt::interrupted_error()),
            KeyEvent::Enter => {
                return Ok(rows.get(self.selected).map(|row| match row {
                    PickerRow::Item(index) => self.item_name(*index),
                    PickerRow::Typed => self.typed.trim().to_owned(),
                }));
            }
            KeyEvent::Up | KeyEvent::BackTab => self.selected = self.selected.saturating_sub(1),
            KeyEvent::Down | KeyEvent::Tab if self.selected + 1 < rows.len() => self.selected += 1,
            KeyEvent::Home => self.selected = 0,
            KeyEvent::End => self.selected = rows.len().saturating_sub(1),
            KeyEvent::Char(character) if !character.is_control() => {
                self.typed.push(*character);
                self.selected = 0;
            }
            KeyEvent::Paste(text) => {
                self.typed.extend(text.chars().filter(|c| !c.is_control()));
                self.selected = 0;
            }
            KeyEvent::Backspace => {
                self.typed.pop();
                self.selected = 0;
            }
            KeyEvent::Escape | KeyEvent::Ctrl('u') => {
                self.typed.clear();
                self.selected = 0;
            }
            _ => {}
        }
        Ok(None)
    }

    fn item_name(&self, index: usize) -> String {
        let item = self.picker.items.get(index);
        item.map(|item| item.name.clone()).unwrap_or_default()
    }

    /// Returns the rows that match what the user typed: items whose name starts with it, then others. If no item
    /// matches, the probable item comes first.
    fn rows(&self) -> Vec<PickerRow> {
        let typed = self.typed.trim().to_lowercase();
        let items = &self.picker.items;
        let rank = |item: &PickerItem| {
            let name = item.name.to_lowercase();
            let is_alias = |test: fn(&str, &str) -> bool| {
                let mut aliases = item.aliases.iter();
                aliases.any(|alias| test(&alias.to_lowercase(), &typed))
            };
            match () {
                () if name == typed || is_alias(|alias, typed| alias == typed) => Some(0),
                () if name.starts_with(&typed) => Some(1),
                () if name.contains(&typed) => Some(2),
                () if is_alias(|alias, typed| alias.starts_with(typed)) => Some(2),
                () if item.about.to_lowercase().contains(&typed) => Some(3),
                () => None,
            }
        };
        let mut ranked: Vec<_> = items
            .iter()
            .enumerate()
            .filter_map(|(index, item)| {
                Some((if typed.is_empty() { 0 } else { rank(item)? }, index))
            })
            .collect();
        ranked.sort_unstable();
        let is_item = !typed.is_empty() && ranked.first().is_some_and(|(rank, _)| *rank == 0);
        let mut rows: Vec<_> = ranked
            .into_iter()
            .map(|(_, index)| PickerRow::Item(index))
            .collect();
        if rows.is_empty() {
            rows.extend((self.picker.suggest)(items, &typed).map(PickerRow::Item));
        }
        if self.picker.custom.is_some() && !typed.is_empty() && !is_item {
            rows.push(PickerRow::Typed);
        }
        rows
    }

    /// Returns the sequence that removes the picker from the screen.
    fn clear(&self) -> String {
        match self.drawn_rows {
            0 => "\r\x1b[J".to_owned(),
            rows => format!("\x1b[{rows}A\r\x1b[J"),
        }
    }

    fn draw(&mut self) -> String {
        let size = tty::size();
        let mut text = self.clear();
        let lines = self.lines(size.columns, size.rows);
        self.drawn_rows = lines.len();
        for line in lines {
            line.paint(self.color_mode, &mut text);
            text.push_str("\r\n");
        }
        text
    }

    fn lines(&self, width: usize, height: usize) -> Vec<Line> {
        let question = format!("{}: {}", self.picker.question, self.typed);
        let mut lines = vec![Line::fitting(&question, width, Style::BOLD)];
        let rows = self.rows();
        let visible = height.saturating_sub(FRAME_ROWS + 1).clamp(1, MAX_ROWS);
        let first = (self.selected + 1).saturating_sub(visible);
        let names = self.picker.items.iter().map(|item| columns(&item.name));
        let name_width = names.max().unwrap_or(0).min(width / 2);
        for (index, row) in rows.iter().enumerate().skip(first).take(visible) {
            let is_selected = index == self.selected;
            let (name, about) = match row {
                PickerRow::Item(item) => {
                    let item = self.picker.items.get(*item);
                    item.map_or(("", ""), |item| (&*item.name, &*item.about))
                }
                PickerRow::Typed => (self.typed.trim(), self.picker.custom.unwrap_or_default()),
            };
            let gap = " ".repeat(name_width.saturating_sub(columns(name)) + 2);
            let mark = if is_selected { "› " } else { "  " };
            let row = format!("{mark}{name}{gap}{about}");
            let style = if is_selected {
                Style::BOLD | Style::CYAN
            } else {
                Style::NONE
            };
            lines.push(Line::fitting(row.trim_end(), width, style));
        }
        if rows.is_empty() {
            lines.push(Line::fitting("  no match", width, Style::DIM));
        }
        let more = rows.len().saturating_sub(visible);
        let hints = match more {
            0 => KEY_HINTS.to_owned(),
            more => format!("{more} more · {KEY_HINTS}"),
        };
        lines.push(Line::fitting(&hints, width, Style::DIM));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> PickerState {
        let item = |name: &str, about: &str| PickerItem {
            name: name.to_owned(),
            about: about.to_owned(),
            aliases: Vec::new(),
        };
        let picker = Picker {
            question: "provider".to_owned(),
            items: vec![
                item("openai", "set OPENAI_API_KEY"),
                item("anthropic", "alias claude"),
                item("azureanthropic", ""),
            ],
            default: Some("anthropic".to_owned()),
            custom: Some("add as a custom provider"),
            suggest: |items, typed| {
                let same = |item: &PickerItem| item.name.starts_with(typed.chars().next().unwrap());
                items.iter().position(same)
            },
        };
        PickerState::new(picker, ColorMode::None)
    }

    fn press(state: &mut PickerState, keys: &str) -> Option<String> {
        let keys = KeyDecoder::default().feed(keys.as_bytes());
        keys.iter().find_map(|key| state.handle_key(key).unwrap())
    }

    #[test]
    fn enter_takes_the_selected_item() {
        assert_eq!(press(&mut state(), "\r").as_deref(), Some("anthropic"));
        assert_eq!(press(&mut state(), "\x1b[A\r").as_deref(), Some("openai"));
        assert_eq!(
            press(&mut state(), "\x1b[B\x1b[B\r").as_deref(),
            Some("azureanthropic")
        );
    }

    #[test]
    fn typing_searches_names_and_descriptions() {
        assert_eq!(press(&mut state(), "anth\r").as_deref(), Some("anthropic"));
        assert_eq!(
            press(&mut state(), "claude\r").as_deref(),
            Some("anthropic")
        );
        assert_eq!(
            press(&mut state(), "zure\x7f\r").as_deref(),
            Some("azureanthropic")
        );
        assert_eq!(
            press(&mut state(), "zz\x1b[27~\x15\r").as_deref(),
            Some("openai")
        );
    }

    // An alias is not a new name.
    #[test]
    fn an_alias_finds_its_item() {
        let mut state = state();
        state.picker.items[2].aliases.push("qwen".to_owned());
        assert_eq!(press(&mut state, "qw"), None);
        assert_eq!(state.rows(), [PickerRow::Item(2), PickerRow::Typed]);
        assert_eq!(press(&mut state, "EN"), None);
        assert_eq!(state.rows(), [PickerRow::Item(2)]);
        assert_eq!(press(&mut state, "\r").as_deref(), Some("azureanthropic"));
    }

    // The correction comes before the new name.
    #[test]
    fn a_typing_error_is_corrected_first() {
        let mut state = state();
        assert_eq!(press(&mut state, "antropic"), None);
        let lines = state.lines(60, 24);
        let lines: Vec<_> = lines.iter().map(Line::text).collect();
        assert_eq!(
            lines,
            [
                "provider: antropic",
                "› anthropic       alias claude",
                "  antropic        add as a custom provider",
                KEY_HINTS
            ]
        );
        assert_eq!(press(&mut state, "\x1b[B\r").as_deref(), Some("antropic"));
    }

    #[test]
    fn rows_fit_into_a_narrow_terminal() {
        let lines = state().lines(20, 5);
        assert!(lines.iter().all(|line| line.columns() < 20));
        assert_eq!(lines.len(), 1 + 2 + 1);
    }

    #[test]
    fn control_c_leaves() {
        let left = state().handle_key(&KeyEvent::Ctrl('c'));
        assert!(left.is_err_and(|error| prompt::is_interruption(&error)));
    }
}
