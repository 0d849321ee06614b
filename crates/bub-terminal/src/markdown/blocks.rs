//! Groups source lines into blocks. A block is laid out as soon as it has certainly ended.
//!
//! If a line may start another block, `pulldown-cmark` parses the open block again. Most lines need no parser, and the
//! open block is limited, so the work does not grow with the length of the text.

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};
use unicode_segmentation::UnicodeSegmentation;

use super::{
    MAX_BLOCK_BYTES, MarkdownStyle,
    inline::InlineText,
    layout::{self, BlockContext, code_close_line, code_open_line},
};
use crate::{Line, Style, highlight::Highlighter};

/// Minimum width of the layout in columns.
const MIN_WIDTH: usize = 4;
/// Approximate number of bytes of a long open block that a preview shows: between half and twice this number.
const PREVIEW_BYTES: usize = 1024;

/// The kind of the open block: the block that the next line may belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OpenBlock {
    /// A paragraph, or no block.
    Text,
    Table,
    Quote,
    /// An item of a top-level list. The items of a list are laid out one by one.
    Item,
    IndentedCode,
    /// Fenced code with its info string. Its lines are emitted one by one.
    FencedCode(String),
    /// HTML. Its lines are emitted one by one.
    Html,
    /// A heading or a thematic break, to which no other line can belong.
    Complete,
}

impl OpenBlock {
    fn from_tag(tag: Tag<'_>) -> Self {
        match tag {
            Tag::Table(_) => Self::Table,
            Tag::BlockQuote(_) => Self::Quote,
            Tag::Item => Self::Item,
            Tag::CodeBlock(CodeBlockKind::Indented) => Self::IndentedCode,
            Tag::CodeBlock(CodeBlockKind::Fenced(info)) => Self::FencedCode(info.into_string()),
            Tag::HtmlBlock => Self::Html,
            Tag::Heading { .. } => Self::Complete,
            _ => Self::Text,
        }
    }
}

/// Groups source lines into blocks and lays out blocks that have ended.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    pub(super) width: usize,
    style: MarkdownStyle,
    open: OpenBlock,
    /// The source of the open block. For code and HTML whose lines are emitted one by one, only the first line.
    block: String,
    /// Highlights the lines of fenced code.
    highlighter: Highlighter,
    /// Whether `block` is the rest of a list item that was split. Its marker is not shown.
    is_rest_of_item: bool,
    /// The list that the next item may belong to: its marker and next number.
    list: Option<(char, u64)>,
    /// Whether a blank line must precede the next list item: the source has one there, or the last block ends with
    /// code.
    after_blank: bool,
    /// Whether the next block follows without a blank line, as the first one does.
    tight: bool,
    lines: Vec<Line>,
    /// Number of bytes laid out so far.
    #[cfg(test)]
    pub(super) laid_out_bytes: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl Blocks {
    pub(super) fn new(width: usize, style: MarkdownStyle) -> Self {
        Self {
            width: width.max(MIN_WIDTH),
            style,
            open: OpenBlock::Text,
            block: String::new(),
            highlighter: Highlighter::default(),
            is_rest_of_item: false,
            list: None,
            after_blank: false,
            tight: true,
            lines: Vec::new(),
            #[cfg(test)]
            laid_out_bytes: std::sync::Arc::default(),
        }
    }

    /// Returns a copy with the width and the style, but without any block or line.
    pub(super) fn empty_copy(&self) -> Self {
        Self {
            #[cfg(test)]
            laid_out_bytes: self.laid_out_bytes.clone(),
            ..Self::new(self.width, self.style)
        }
    }

    pub(super) fn set_width(&mut self, width: usize) {
        self.width = width.max(MIN_WIDTH);
    }

    pub(super) fn is_in_code(&self) -> bool {
        matches!(
            self.open,
            OpenBlock::FencedCode(_) | OpenBlock::IndentedCode
        )
    }

    /// Returns the finished lines. Each line is returned once.
    pub(super) fn take_lines(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.lines)
    }

    /// Adds a source line.
    pub(super) fn push_line(&mut self, line: &str) {
        if matches!(self.open, OpenBlock::FencedCode(_) | OpenBlock::Html) {
            return self.push_verbatim_line(line);
        }
        let is_blank = is_blank(line);
        if is_blank && !matches!(self.open, OpenBlock::Item | OpenBlock::IndentedCode) {
            return self.close_block();
        }
        if self.open == OpenBlock::Item && is_next_bullet(&self.block, line) {
            self.lay_out_block();
            self.block.push_str(line);
            self.block.push('\n');
            return;
        }
        if !self.block.is_empty() && self.block.len() + line.len() >= MAX_BLOCK_BYTES {
            self.split_block(line);
        } else {
            self.block.push_str(line);
            self.block.push('\n');
        }
        if !is_blank && !self.is_continued_by(line) {
            self.find_last_block();
        }
    }

    /// Adds an incomplete line for a preview. Call it only on a copy from [`Self::preview_copy`].
    pub(super) fn push_preview_line(&mut self, line: &str) {
        // Skip an incomplete closing fence; it would appear as code for a moment.
        let fence = self.block.trim_start().chars().next();
        let is_closing_fence = matches!(self.open, OpenBlock::FencedCode(_))
            && line.trim().chars().all(|mark| Some(mark) == fence);
        if !is_closing_fence {
            self.push_line(line);
        }
    }

    /// Lays out the blocks before the last one, which stays open if other lines can belong to it.
    fn find_last_block(&mut self) {
        let (start, open) = last_block(&self.block);
        if start > 0 {
            let rest = self.block.split_off(start);
            self.lay_out_block();
            self.block = rest;
        }
        self.open = open;
        match &self.open {
            OpenBlock::Complete => self.close_block(),
            OpenBlock::FencedCode(info) => {
                let open_line = code_open_line(info, self.style);
                self.highlighter = Highlighter::new(info);
                self.begin_verbatim();
                self.lines.extend(open_line);
            }
            OpenBlock::Html => {
                self.begin_verbatim();
                let line = std::mem::take(&mut self.block);
                self.emit_html_line(&line);
                if verbatim_line("", line.trim_end()).1 {
                    self.block = line;
                } else {
                    self.open = OpenBlock::Text;
                }
            }
            _ => {}
        }
    }

    /// Returns whether a line certainly belongs to the open block, so that the block need not be parsed again.
    fn is_continued_by(&self, line: &str) -> bool {
        let indent = |text: &str| text.len() - text.trim_start_matches(' ').len();
        match self.open {
            OpenBlock::Text => line.starts_with(char::is_alphabetic),
            OpenBlock::Table => line.starts_with('|'),
            OpenBlock::Quote => line.starts_with('>'),
            OpenBlock::Item => {
                let marker = item_marker(&self.block);
                let content = self.block.get(marker.len()..).unwrap_or_default();
                indent(line) >= marker.len() + indent(content).max(1)
            }
            OpenBlock::IndentedCode => indent(line) >= 4,
            _ => false,
        }
    }

    fn begin_verbatim(&mut self) {
        self.list = None;
        self.emit_separator();
    }

    /// Emits a line of fenced code or HTML.
    fn push_verbatim_line(&mut self, line: &str) {
        // Most lines of code need no parser.
        if self.block.starts_with(['`', '~']) && !line.contains(['`', '~']) {
            self.lines.push(self.highlighter.line(line));
            return;
        }
        let (text, is_open) = verbatim_line(&self.block, line);
        match (&self.open, text) {
            (OpenBlock::Html, Some(html)) => self.emit_html_line(&html),
            (_, Some(code)) => self.lines.push(self.highlighter.line(&code)),
            (_, None) => {}
        }
        if !is_open {
            self.close_block();
        }
    }

    /// Lays out the open block, which is too long, and continues it as another block with a line.
    fn split_block(&mut self, line: &str) {
        let rest = self.continued(&format!("{line}\n"));
        self.lay_out_block();
        self.tight = true;
        self.is_rest_of_item = self.open == OpenBlock::Item;
        self.block = rest;
    }

    /// Returns the source of a block that continues the open block with `rest`. It starts with the table head, the list
    /// marker, or the opening code fence.
    fn continued(&self, rest: &str) -> String {
        let fence = unclosed_fence(&self.block);
        let marker = item_marker(&self.block);
        let prefix = match (&self.open, fence) {
            (OpenBlock::Table, _) => self.block.split_inclusive('\n').take(2).collect(),
            (OpenBlock::Quote, Some(fence)) => format!("> {fence}\n"),
            (OpenBlock::Item, Some(fence)) => {
                let indent = " ".repeat(marker.len() + 1);
                format!("{marker}\n{indent}{fence}\n")
            }
            (OpenBlock::Item, None) => format!("{marker}\n"),
            _ => String::new(),
        };
        let is_short = |prefix: &String| prefix.len() <= MAX_BLOCK_BYTES / 8;
        let prefix = Some(prefix).filter(is_short).unwrap_or_default();
        // A blank line after the marker would end the list item.
        prefix
            + if fence.is_none() {
                rest.trim_start_matches('\n')
            } else {
                rest
            }
    }

    /// Ends the open block.
    pub(super) fn close_block(&mut self) {
        match self.open {
            OpenBlock::FencedCode(_) => {
                self.lines.extend(code_close_line(self.style));
                self.block.clear();
            }
            OpenBlock::Html => self.block.clear(),
            _ => self.lay_out_block(),
        }
        self.open = OpenBlock::Text;
    }

    /// Lays out the source of the open block.
    fn lay_out_block(&mut self) {
        if self.block.is_empty() {
            return;
        }
        let number = self.begin_list_item();
        let context = BlockContext {
            width: self.width,
            markdown_style: self.style,
            number,
            is_rest_of_item: std::mem::take(&mut self.is_rest_of_item),
        };
        #[cfg(test)]
        self.laid_out_bytes
            .fetch_add(self.block.len(), std::sync::atomic::Ordering::Relaxed);
        let (lines, after_code) = layout::lay_out_block(&self.block, context);
        if !lines.is_empty() {
            self.emit_separator();
            self.lines.extend(lines);
        }
        self.after_blank = after_code || self.block.lines().next_back().is_some_and(is_blank);
        self.block.clear();
    }

    /// Returns the number of the list item that is laid out next, if the open block is one.
    fn begin_list_item(&mut self) -> Option<u64> {
        if self.is_rest_of_item {
            return None;
        }
        let list = self.list.take();
        if self.open != OpenBlock::Item {
            return None;
        }
        let marker = item_marker(&self.block).trim_start();
        let kind = marker.chars().next_back()?;
        let sibling = list.filter(|(marker, _)| *marker == kind);
        self.tight |= sibling.is_some() && !self.after_blank;
        let written = marker.strip_suffix(kind)?.parse().unwrap_or(0);
        let number = sibling.map_or(written, |(_, next)| next);
        self.list = Some((kind, number.saturating_add(1)));
        Some(number)
    }

    /// Emits the blank line before a block, unless the block is the first one or must follow without a blank line.
    fn emit_separator(&mut self) {
        if !self.tight {
            self.lines.push(Line::default());
        }
        self.tight = false;
    }

    fn emit_html_line(&mut self, html: &str) {
        let mut text = InlineText::default();
        text.push(html.trim_end_matches('\n'), Style::DIM);
        let mut lines = text.wrap(self.width);
        lines.resize_with(lines.len().max(1), Line::default);
        self.lines.append(&mut lines);
    }

    #[cfg(test)]
    pub(super) fn open_bytes(&self) -> usize {
        self.block.len()
    }

    /// Returns a copy with as much of the open block as a preview needs.
    pub(super) fn preview_copy(&self) -> Self {
        let tail = preview_tail(&self.block);
        let is_truncated = tail.len() < self.block.len();
        Self {
            open: self.open.clone(),
            block: if is_truncated {
                self.continued(tail)
            } else {
                tail.to_owned()
            },
            highlighter: self.highlighter.clone(),
            is_rest_of_item: self.is_rest_of_item || (is_truncated && self.open == OpenBlock::Item),
            list: self.list,
            after_blank: self.after_blank,
            tight: self.tight,
            ..self.empty_copy()
        }
    }
}

/// Returns the start and the kind of the last block in a source. The items of a list count as blocks.
fn last_block(source: &str) -> (usize, OpenBlock) {
    let mut last = (0, OpenBlock::Text);
    let mut is_first = true;
    let mut depth = 0;
    for (event, range) in Parser::new_ext(source, layout::OPTIONS).into_offset_iter() {
        let open = match event {
            Event::Start(tag) => {
                depth += 1;
                match tag {
                    Tag::Item if depth == 2 => Some(OpenBlock::Item),
                    Tag::List(_) => None,
                    tag => (depth == 1).then(|| OpenBlock::from_tag(tag)),
                }
            }
            Event::End(_) => {
                depth -= 1;
                None
            }
            Event::Rule => (depth == 0).then_some(OpenBlock::Complete),
            _ => None,
        };
        let Some(open) = open else { continue };
        // Link definitions before the first paragraph belong to it.
        let start = match source.get(..range.start).and_then(|text| text.rfind('\n')) {
            Some(end) if !(is_first && open == OpenBlock::Text) => end + 1,
            _ => 0,
        };
        last = (start, open);
        is_first = false;
    }
    last
}

/// Returns the text of a line in the code or HTML that starts with `opener`, and whether the block is still open after
/// the line. The text of the line that closes code is `None`.
fn verbatim_line(opener: &str, line: &str) -> (Option<String>, bool) {
    const NEXT_LINE: &str = "\nx\n";
    let source = format!("{opener}{line}{NEXT_LINE}");
    let mut text = String::new();
    for (event, range) in Parser::new_ext(&source, layout::OPTIONS).into_offset_iter() {
        match event {
            Event::End(TagEnd::CodeBlock | TagEnd::HtmlBlock) => break,
            Event::Text(part) | Event::Html(part) if range.start >= opener.len() => {
                text.push_str(&part);
            }
            _ => {}
        }
    }
    match text.strip_suffix(NEXT_LINE) {
        Some(line) => (Some(line.to_owned()), true),
        None => (text.strip_suffix('\n').map(str::to_owned), false),
    }
}

fn is_blank(line: &str) -> bool {
    line.trim_matches([' ', '\t']).is_empty()
}

/// Returns the marker of a list item with its indentation, such as `-` or ` 2.`.
fn item_marker(source: &str) -> &str {
    let indent = source.len() - source.trim_start_matches(' ').len();
    let is_marker_end =
        |(offset, character): &(usize, char)| *offset >= indent && character.is_whitespace();
    let end = source.char_indices().find(is_marker_end);
    let end = end.map_or(source.len(), |(offset, _)| offset);
    source.get(..end).unwrap_or_default()
}

/// Returns whether a line certainly starts the next item of the bullet list whose last item is `item`, so that the item
/// need not be parsed again.
fn is_next_bullet(item: &str, line: &str) -> bool {
    let marker = item_marker(item);
    let Some(content) = line.strip_prefix(marker) else {
        return false;
    };
    // A line of marks and spaces may be a thematic break.
    marker.ends_with(['-', '*', '+'])
        && content.starts_with(' ')
        && content.contains(char::is_alphabetic)
}

/// Returns the end of a text, starting at a line or word. The start moves in steps, so that the preview of a growing
/// text does not scroll constantly.
pub(super) fn preview_tail(text: &str) -> &str {
    let begin = text.len().saturating_sub(PREVIEW_BYTES) / PREVIEW_BYTES * PREVIEW_BYTES;
    let tail = text.get(text.floor_char_boundary(begin)..).unwrap_or(text);
    if begin == 0 {
        return tail;
    }
    let after =
        |end: char| Some(tail.split_once(end)?.1).filter(|rest| rest.len() > PREVIEW_BYTES / 2);
    after('\n').or_else(|| after(' ')).unwrap_or(tail)
}

/// Returns the offset at which a line that is too long is split: after a space near [`MAX_BLOCK_BYTES`], or between
/// grapheme clusters.
pub(super) fn split_offset(line: &str) -> usize {
    let end = line.floor_char_boundary(MAX_BLOCK_BYTES);
    let begin = line.floor_char_boundary(MAX_BLOCK_BYTES - 1024);
    let window = line.get(begin..end).unwrap_or_default();
    let cluster = || {
        let (start, _) = window.grapheme_indices(true).next_back()?;
        Some(start).filter(|start| *start > 0)
    };
    let space = window.rfind(' ').map(|space| space + 1);
    space.or_else(cluster).map_or(end, |offset| begin + offset)
}

/// Returns the opening line of fenced code that is not closed in the text. The code may be inside quotes or list items.
fn unclosed_fence(text: &str) -> Option<&str> {
    let is_closed_by = |fence: &str, line: &str| {
        let mark = fence.chars().next().unwrap_or('`');
        let length = fence.len() - fence.trim_start_matches(mark).len();
        line.len() >= length && line.chars().all(|character| character == mark)
    };
    let mut open: Option<&str> = None;
    for line in text.lines() {
        let line = line.trim_matches([' ', '\t', '>']);
        open = match open {
            Some(fence) if is_closed_by(fence, line) => None,
            None if line.starts_with("```") || line.starts_with("~~~") => Some(line),
            open => open,
        };
    }
    open
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        // The parser would find the same item.
        #[test]
        fn a_bullet_that_is_not_parsed_starts_an_item(
            indent in 0..4_usize,
            mark in "[-*+]",
            content in "[ ]{1,6}([a#>`~|*_+-]{0,4} ?){0,3}",
            more in "(\n|[ ]{2,8}([-+*] |> |```|[a#-]){0,2}\n|[a#>`~|*_=-]{1,4}\n){0,3}",
            next in "[ ]{1,6}([-*+] |> |# |```|~~~|[|]|1[.] )?[*_]{0,2}[a-c]{1,3}[ *_=-]{0,3}",
        ) {
            let marker = format!("{}{mark}", " ".repeat(indent));
            let item = format!("{marker}{content}\n{more}");
            let line = format!("{marker}{next}");
            prop_assume!(last_block(&item) == (0, OpenBlock::Item));
            prop_assert!(is_next_bullet(&item, &line));
            let found = last_block(&format!("{item}{line}\n"));
            prop_assert_eq!(found, (item.len(), OpenBlock::Item));
        }
    }
}
