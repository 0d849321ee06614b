//! The text buffer of the editor and its cursor.

use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation as _};

/// A text and a cursor. The cursor is always on a grapheme cluster boundary. All offsets are in bytes.
#[derive(Debug, Clone, Default)]
pub struct Buffer {
    text: String,
    cursor: usize,
}

impl Buffer {
    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the byte offset of the cursor.
    pub fn cursor(&self) -> usize {
        self.cursor
    }

    /// Returns the text before the cursor.
    pub fn text_before_cursor(&self) -> &str {
        self.text.get(..self.cursor).unwrap_or_default()
    }

    /// Returns the text after the cursor.
    pub fn text_after_cursor(&self) -> &str {
        self.text.get(self.cursor..).unwrap_or_default()
    }

    /// Replaces the text and moves the cursor to its end.
    pub fn set_text(&mut self, text: impl Into<String>) {
        self.text = text.into();
        self.cursor = self.text.len();
    }

    /// Inserts text at the cursor.
    pub fn insert(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
        // The inserted text may have formed a cluster with the character that follows.
        self.cursor = self.boundary_at_or_after(self.cursor);
    }

    /// Returns the text without the buffer.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Replaces the text between an offset and the cursor. Does nothing if the range is invalid.
    pub fn replace_from(&mut self, from: usize, text: &str) {
        if self.text.get(from..self.cursor).is_some() {
            self.text.replace_range(from..self.cursor, text);
            self.cursor = from + text.len();
        }
    }

    /// Removes the text between the cursor and an offset, and returns it.
    pub fn cut_to(&mut self, offset: usize) -> String {
        let (from, to) = (self.cursor.min(offset), self.cursor.max(offset));
        let Some(cut) = self.text.get(from..to).map(str::to_owned) else {
            return String::new();
        };
        self.text.replace_range(from..to, "");
        self.cursor = from;
        cut
    }

    /// Moves the cursor to an offset, or to the next cluster boundary after it.
    pub fn move_to(&mut self, offset: usize) {
        self.cursor = self.boundary_at_or_after(offset.min(self.text.len()));
    }

    /// Swaps the characters before and after the cursor. At the end of the text, swaps the last two characters.
    pub fn transpose_chars(&mut self) {
        let at = match self.text_after_cursor() {
            "" => self.left_offset(),
            _ => self.cursor,
        };
        if let Some(start) = previous_boundary(&self.text, at)
            && let Some(end) = next_boundary(&self.text, at)
            && let (Some(left), Some(right)) = (self.text.get(start..at), self.text.get(at..end))
        {
            let swapped = format!("{right}{left}");
            self.cursor = end;
            self.replace_from(start, &swapped);
        }
    }

    /// Returns the offset one character to the left of the cursor.
    pub fn left_offset(&self) -> usize {
        previous_boundary(&self.text, self.cursor).unwrap_or(0)
    }

    /// Returns the offset one character to the right of the cursor.
    pub fn right_offset(&self) -> usize {
        next_boundary(&self.text, self.cursor).unwrap_or(self.text.len())
    }

    /// Returns the offset at which the word to the left of the cursor starts.
    pub fn word_start(&self) -> usize {
        let mut words = self.text_before_cursor().unicode_word_indices();
        words.next_back().map_or(0, |(start, _)| start)
    }

    /// Returns the offset at which the word to the right of the cursor ends.
    pub fn word_end(&self) -> usize {
        let mut words = self.text_after_cursor().unicode_word_indices();
        words.next().map_or(self.text.len(), |(start, word)| {
            self.cursor + start + word.len()
        })
    }

    /// Returns the offset at which the whitespace-delimited word to the left of the cursor starts. Ctrl-W removes this
    /// word.
    pub fn blank_word_start(&self) -> usize {
        let word = self.text_before_cursor().trim_end();
        word.trim_end_matches(|letter: char| !letter.is_whitespace())
            .len()
    }

    /// Returns the offset at which the line of the cursor starts.
    pub fn line_start(&self) -> usize {
        self.text_before_cursor().rfind('\n').map_or(0, |at| at + 1)
    }

    /// Returns the offset at which the line of the cursor ends.
    pub fn line_end(&self) -> usize {
        self.text_after_cursor()
            .find('\n')
            .map_or(self.text.len(), |at| self.cursor + at)
    }

    fn boundary_at_or_after(&self, offset: usize) -> usize {
        let mut cursor = GraphemeCursor::new(offset, self.text.len(), true);
        if cursor.is_boundary(&self.text, 0).unwrap_or(true) {
            return offset;
        }
        next_boundary(&self.text, offset).unwrap_or(self.text.len())
    }
}

fn previous_boundary(text: &str, offset: usize) -> Option<usize> {
    let mut cursor = GraphemeCursor::new(offset, text.len(), true);
    cursor.prev_boundary(text, 0).ok()?
}

fn next_boundary(text: &str, offset: usize) -> Option<usize> {
    let mut cursor = GraphemeCursor::new(offset, text.len(), true);
    cursor.next_boundary(text, 0).ok()?
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
        let mut offsets = vec![buffer.cursor()];
        while buffer.cursor() > 0 {
            buffer.move_to(buffer.left_offset());
            offsets.push(buffer.cursor());
        }
        let clusters: Vec<&str> = offsets
            .windows(2)
            .map(|pair| &buffer.text()[pair[1]..pair[0]])
            .collect();
        assert_eq!(clusters, ["你", "🇩🇪", "👨‍👩‍👧", "e\u{301}"]);
        buffer.move_to(1);
        assert_eq!(
            buffer.text_before_cursor(),
            "e\u{301}",
            "an offset inside a cluster moves behind it"
        );
    }

    #[test]
    fn words_and_lines_are_found() {
        let mut buffer = Buffer::default();
        buffer.set_text("one two-three\nfour, five");
        buffer.move_to(buffer.word_start());
        assert_eq!(buffer.text_after_cursor(), "five");
        buffer.move_to(buffer.blank_word_start());
        assert_eq!(buffer.text_after_cursor(), "four, five");
        assert_eq!(buffer.line_start(), buffer.cursor());
        buffer.move_to(0);
        assert_eq!(&buffer.text()[..buffer.line_end()], "one two-three");
        buffer.move_to(buffer.word_end());
        assert_eq!(buffer.text_before_cursor(), "one");
        assert_eq!(buffer.cut_to(buffer.line_end()), " two-three");
        assert_eq!(buffer.text(), "one\nfour, five");
    }

    #[test]
    fn characters_change_places() {
        let mut buffer = Buffer::default();
        buffer.set_text("ab你");
        buffer.transpose_chars();
        assert_eq!(buffer.text(), "a你b");
        buffer.move_to(0);
        buffer.transpose_chars();
        assert_eq!(buffer.text(), "a你b");
    }
}
