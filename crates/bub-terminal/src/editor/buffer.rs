//! A text that is being written, and the place in it.

use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation as _};

/// The text and the cursor, which stands between characters as people see them.
#[derive(Debug, Clone, Default)]
pub struct Buffer {
    text: String,
    cursor: usize,
}

impl Buffer {
    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The place of the cursor in bytes.
    pub fn cursor(&self) -> usize {
        self.cursor
    }

    /// What stands before the cursor.
    pub fn before(&self) -> &str {
        self.text.get(..self.cursor).unwrap_or_default()
    }

    /// What stands after the cursor.
    pub fn after(&self) -> &str {
        self.text.get(self.cursor..).unwrap_or_default()
    }

    /// Another text, with the cursor at its end.
    pub fn set(&mut self, text: impl Into<String>) {
        self.text = text.into();
        self.cursor = self.text.len();
    }

    /// Puts text in at the cursor.
    pub fn insert(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
        // A mark may have joined the character that follows it.
        self.cursor = self.boundary_at_or_after(self.cursor);
    }

    /// Replaces what stands between two places; the cursor goes behind it.
    pub fn replace(&mut self, from: usize, to: usize, text: &str) {
        if self.text.get(from..to).is_some() {
            self.text.replace_range(from..to, text);
            self.cursor = from + text.len();
        }
    }

    /// Removes what stands between the cursor and another place, and returns it.
    pub fn cut_to(&mut self, place: usize) -> String {
        let (from, to) = (self.cursor.min(place), self.cursor.max(place));
        let Some(cut) = self.text.get(from..to).map(str::to_owned) else {
            return String::new();
        };
        self.text.replace_range(from..to, "");
        self.cursor = from;
        cut
    }

    /// Puts the cursor somewhere.
    pub fn go(&mut self, place: usize) {
        self.cursor = self.boundary_at_or_after(place.min(self.text.len()));
    }

    /// Exchanges the characters around the cursor.
    pub fn transpose(&mut self) {
        let at = if self.cursor == self.text.len() {
            self.left()
        } else {
            self.cursor
        };
        let Some(start) = before_place(&self.text, at) else {
            return;
        };
        let Some(end) = after_place(&self.text, at) else {
            return;
        };
        let (Some(one), Some(two)) = (self.text.get(start..at), self.text.get(at..end)) else {
            return;
        };
        let swapped = format!("{two}{one}");
        self.replace(start, end, &swapped);
    }

    /// The place one character to the left.
    pub fn left(&self) -> usize {
        before_place(&self.text, self.cursor).unwrap_or(0)
    }

    /// The place one character to the right.
    pub fn right(&self) -> usize {
        after_place(&self.text, self.cursor).unwrap_or(self.text.len())
    }

    /// The beginning of the word to the left.
    pub fn word_left(&self) -> usize {
        let mut words = self.before().unicode_word_indices();
        words.next_back().map_or(0, |(start, _)| start)
    }

    /// The end of the word to the right.
    pub fn word_right(&self) -> usize {
        let mut words = self.after().unicode_word_indices();
        words.next().map_or(self.text.len(), |(start, word)| {
            self.cursor + start + word.len()
        })
    }

    /// The beginning of what is not blank to the left: what Ctrl-W removes.
    pub fn blank_left(&self) -> usize {
        let word = self.before().trim_end();
        let start = word
            .char_indices()
            .rev()
            .find(|(_, letter)| letter.is_whitespace());
        start.map_or(0, |(at, blank)| at + blank.len_utf8())
    }

    /// The beginning of the line.
    pub fn line_start(&self) -> usize {
        self.before().rfind('\n').map_or(0, |at| at + 1)
    }

    /// The end of the line.
    pub fn line_end(&self) -> usize {
        self.after()
            .find('\n')
            .map_or(self.text.len(), |at| self.cursor + at)
    }

    fn boundary_at_or_after(&self, place: usize) -> usize {
        let mut cursor = GraphemeCursor::new(place, self.text.len(), true);
        if cursor.is_boundary(&self.text, 0).unwrap_or(true) {
            return place;
        }
        after_place(&self.text, place).unwrap_or(self.text.len())
    }
}

fn before_place(text: &str, place: usize) -> Option<usize> {
    GraphemeCursor::new(place, text.len(), true)
        .prev_boundary(text, 0)
        .ok()
        .flatten()
}

fn after_place(text: &str, place: usize) -> Option<usize> {
    GraphemeCursor::new(place, text.len(), true)
        .next_boundary(text, 0)
        .ok()
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_never_stands_inside_a_character_as_seen() {
        let mut buffer = Buffer::default();
        for part in ["e", "\u{301}", "👨‍👩‍👧", "🇩", "🇪", "你"] {
            buffer.insert(part);
        }
        let mut places = vec![buffer.cursor()];
        while buffer.cursor() > 0 {
            buffer.go(buffer.left());
            places.push(buffer.cursor());
        }
        let seen: Vec<&str> = places
            .windows(2)
            .map(|pair| &buffer.text()[pair[1]..pair[0]])
            .collect();
        assert_eq!(seen, ["你", "🇩🇪", "👨‍👩‍👧", "e\u{301}"]);
        buffer.go(1);
        assert_eq!(
            buffer.before(),
            "e\u{301}",
            "a place within is moved behind"
        );
    }

    #[test]
    fn words_and_lines_are_found() {
        let mut buffer = Buffer::default();
        buffer.set("one two-three\nfour, five");
        buffer.go(buffer.word_left());
        assert_eq!(buffer.after(), "five");
        buffer.go(buffer.blank_left());
        assert_eq!(buffer.after(), "four, five");
        assert_eq!(buffer.line_start(), buffer.cursor());
        buffer.go(0);
        assert_eq!(&buffer.text()[..buffer.line_end()], "one two-three");
        buffer.go(buffer.word_right());
        assert_eq!(buffer.before(), "one");
        assert_eq!(buffer.cut_to(buffer.line_end()), " two-three");
        assert_eq!(buffer.text(), "one\nfour, five");
    }

    #[test]
    fn characters_change_places() {
        let mut buffer = Buffer::default();
        buffer.set("ab你");
        buffer.transpose();
        assert_eq!(buffer.text(), "a你b");
        buffer.go(0);
        buffer.transpose();
        assert_eq!(buffer.text(), "a你b");
    }
}
