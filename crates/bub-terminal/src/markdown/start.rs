//! Recognizes the kind of block that a line of Markdown starts. Looks at one line only.

/// The kind of block that a line starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockStart {
    Blank,
    Heading,
    Rule,
    Fence(Fence),
    Quote,
    Item(ListItemStart),
    /// HTML that ends at this text. It may contain blank lines.
    Raw(&'static str),
    Indented,
    Text,
}

/// The opening line of fenced code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fence {
    pub(super) mark: char,
    pub(super) length: usize,
    pub(super) indent: usize,
}

/// The first line of a list item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListItemStart {
    /// The bullet, or the character after the number. A different marker starts another list.
    pub(super) marker: char,
    pub(super) number: Option<u64>,
    /// The column at which the content starts.
    pub(super) offset: usize,
    pub(super) is_empty: bool,
}

impl BlockStart {
    /// Returns the kind of block that a line starts.
    pub(super) fn parse(line: &str) -> Self {
        let (indent, text) = split_indent(line);
        if text.is_empty() {
            return Self::Blank;
        }
        if indent > 3 {
            return Self::Indented;
        }
        let unambiguous = match text.chars().next() {
            Some('#') => is_heading(text).then_some(Self::Heading),
            Some('>') => Some(Self::Quote),
            Some('`' | '~') => Fence::parse(indent, text).map(Self::Fence),
            Some('<') => raw_html_end(text).map(Self::Raw),
            Some('-' | '*' | '_') if is_rule(text) => Some(Self::Rule),
            _ => None,
        };
        unambiguous
            .or_else(|| ListItemStart::parse(indent, text).map(Self::Item))
            .unwrap_or(Self::Text)
    }

    /// Returns whether this block can follow a paragraph without a blank line between them.
    pub(super) fn can_interrupt_paragraph(self) -> bool {
        match self {
            Self::Heading
            | Self::Rule
            | Self::Fence(_)
            | Self::Quote
            | Self::Raw(_)
            | Self::Blank => true,
            Self::Item(item) => !item.is_empty && item.number.is_none_or(|number| number == 1),
            Self::Indented | Self::Text => false,
        }
    }
}

impl Fence {
    /// Parses an opening fence. `text` is the line without its indentation.
    pub(super) fn parse(indent: usize, text: &str) -> Option<Self> {
        let mark = text.chars().next()?;
        let info = text.trim_start_matches(mark);
        let length = text.len() - info.len();
        let is_fence = mark == '~' || (mark == '`' && !info.contains('`'));
        (is_fence && length >= 3).then_some(Self {
            mark,
            length,
            indent,
        })
    }

    /// Returns whether a line closes the code of this fence.
    pub(super) fn is_closed_by(self, line: &str) -> bool {
        let (indent, text) = split_indent(line);
        let rest = text.trim_start_matches(self.mark);
        indent < 4 && text.len() - rest.len() >= self.length && rest.trim().is_empty()
    }
}

impl ListItemStart {
    /// Parses the start of a list item. `text` is the line without its indentation.
    fn parse(indent: usize, text: &str) -> Option<Self> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = text.split_at(digits);
        let mut rest = after.chars();
        let marker = rest.next()?;
        let number = match (marker, digits) {
            ('-' | '+' | '*', 0) => None,
            ('.' | ')', 1..=9) => Some(number.parse().ok()?),
            _ => return None,
        };
        let content = rest.as_str();
        if !content.is_empty() && !content.starts_with([' ', '\t']) {
            return None;
        }
        let begin = indent + digits + 1;
        let (spaces, content) = split_indent_from(begin, content);
        let is_empty = content.is_empty();
        // If more than four spaces follow the marker, the content is indented code after one space.
        let offset = begin + if is_empty || spaces > 4 { 1 } else { spaces };
        Some(Self {
            marker,
            number,
            offset,
            is_empty,
        })
    }
}

/// Returns the width of the leading whitespace in columns, and the rest of the line.
pub(super) fn split_indent(line: &str) -> (usize, &str) {
    split_indent_from(0, line)
}

/// Returns the indentation of a text that starts at column `begin`, and the rest of the text.
fn split_indent_from(begin: usize, line: &str) -> (usize, &str) {
    let text = line.trim_start_matches([' ', '\t']);
    let mut column = begin;
    for space in line.bytes().take(line.len() - text.len()) {
        column = if space == b'\t' {
            column / 4 * 4 + 4
        } else {
            column + 1
        };
    }
    (column - begin, text)
}

/// Removes up to `columns` columns of leading whitespace.
pub(super) fn dedent(line: &str, columns: usize) -> String {
    let (indent, text) = split_indent(line);
    let mut dedented = " ".repeat(indent.saturating_sub(columns));
    dedented.push_str(text);
    dedented
}

/// Returns whether a line is an underline, such as `===`, that makes the line before it a heading.
pub(super) fn is_heading_underline(line: &str) -> bool {
    let (indent, text) = split_indent(line);
    let text = text.trim_end();
    indent < 4
        && !text.is_empty()
        && (text.bytes().all(|b| b == b'=') || text.bytes().all(|b| b == b'-'))
}

/// Returns whether a line is a delimiter row, such as `|---|---|`, that makes the line before it the head of a table.
pub(super) fn is_delimiter_row(line: &str) -> bool {
    let text = line.trim();
    text.contains('-')
        && text.contains(['|', ':'])
        && text
            .bytes()
            .all(|byte| matches!(byte, b'|' | b'-' | b':' | b' ' | b'\t'))
}

fn is_heading(text: &str) -> bool {
    let rest = text.trim_start_matches('#');
    (1..=6).contains(&(text.len() - rest.len()))
        && (rest.is_empty() || rest.starts_with([' ', '\t']))
}

fn is_rule(text: &str) -> bool {
    let marks = || text.bytes().filter(|byte| !matches!(byte, b' ' | b'\t'));
    let first = marks().next();
    marks().all(|mark| Some(mark) == first) && marks().count() >= 3
}

/// Returns the text that ends raw HTML, such as `-->` for a line that starts with `<!--`. Returns `None` if the line
/// does not start raw HTML.
fn raw_html_end(text: &str) -> Option<&'static str> {
    const RAW_HTML_ENDS: [(&str, &str); 8] = [
        ("<!--", "-->"),
        ("<?", "?>"),
        ("<![cdata[", "]]>"),
        ("<!", ">"),
        ("<pre", "</pre>"),
        ("<script", "</script>"),
        ("<style", "</style>"),
        ("<textarea", "</textarea>"),
    ];
    let begin: String = text.chars().take(10).collect();
    let begin = begin.to_ascii_lowercase();
    let (_, end) = RAW_HTML_ENDS.iter().find(|(tag, _)| {
        let is_name = tag.ends_with(char::is_alphabetic);
        let rest = begin.strip_prefix(tag);
        rest.is_some_and(|rest| {
            !is_name || !rest.starts_with(|next: char| next.is_ascii_alphanumeric())
        })
    })?;
    Some(end)
}
