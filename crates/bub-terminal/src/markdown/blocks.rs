//! Groups source lines into blocks. A block is laid out as soon as it has certainly ended.
//!
//! The lines are recognized here and not by `pulldown-cmark`, because it parses only whole blocks: to ask it after every
//! line whether a block has ended would take time that grows with the square of the block.

use unicode_segmentation::UnicodeSegmentation;

use super::{
    MAX_BLOCK_BYTES, MarkdownStyle,
    inline::InlineText,
    layout::{self, BlockContext, code_close_line, code_line, code_open_line},
    start::{
        BlockStart, Fence, ListItemStart, dedent, is_delimiter_row, is_heading_underline,
        split_indent,
    },
};
use crate::{Line, Style};

/// Minimum width of the layout in columns.
const MIN_WIDTH: usize = 4;
/// Approximate number of bytes of a long open block that a preview shows: between half and twice this number.
const PREVIEW_BYTES: usize = 1024;

/// The kind of the open block: the block that the next line may belong to.
#[derive(Debug, Clone, Copy)]
enum OpenBlock {
    /// No block is open.
    Nothing,
    /// A paragraph, possibly with a table or HTML. For a table, `head` is a range of byte offsets in the source of the
    /// block: from the table head to the end of the delimiter row.
    Text {
        head: Option<(usize, usize)>,
    },
    Quote,
    /// A list item. If it was split, its rest is laid out separately and indented by `shift` columns, which is 0 for
    /// the first part.
    Item {
        offset: usize,
        number: Option<u64>,
        shift: usize,
        blank: bool,
    },
    Fence(Fence),
    /// Indented code, and the number of blank lines after it that may belong to it.
    Indented {
        blanks: usize,
    },
    /// HTML that ends at this text.
    Raw(&'static str),
}

impl OpenBlock {
    /// Returns the rest of a block whose first part is laid out separately.
    fn rest(self, width: usize) -> Self {
        match self {
            Self::Item {
                offset,
                number,
                shift: 0,
                blank,
            } => {
                let shift = number.map_or(2, |number| number.to_string().len() + 2);
                Self::Item {
                    offset,
                    number: None,
                    shift: shift.min(width / 2),
                    blank,
                }
            }
            other => other,
        }
    }
}

/// Groups source lines into blocks and lays out blocks that have ended.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    pub(super) width: usize,
    style: MarkdownStyle,
    open: OpenBlock,
    /// The source of the open block.
    block: String,
    /// Byte offset in `block` at which its last line starts.
    last: usize,
    /// The list that the next item may belong to: its marker and next number.
    list: Option<(char, u64)>,
    /// Whether a blank line must precede the next list item: the source has one there, or the last block ends with
    /// code.
    after_blank: bool,
    /// Whether the next block follows without a blank line.
    tight: bool,
    has_output: bool,
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
            open: OpenBlock::Nothing,
            block: String::new(),
            last: 0,
            list: None,
            after_blank: false,
            tight: false,
            has_output: false,
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
        matches!(self.open, OpenBlock::Fence(_) | OpenBlock::Indented { .. })
    }

    /// Returns the finished lines. Each line is returned once.
    pub(super) fn take_lines(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.lines)
    }

    /// Adds a source line. With `is_continuation`, the line is the rest of a line that was split, and starts no block.
    pub(super) fn push_line(&mut self, line: &str, is_continuation: bool) {
        let start = if is_continuation {
            BlockStart::Text
        } else {
            BlockStart::parse(line)
        };
        if !self.try_continue(line, start, is_continuation) {
            self.close_block();
            self.begin_block(line, start);
        }
    }

    /// Adds an incomplete line for a preview. Call it only on a copy from [`Self::preview_copy`].
    pub(super) fn push_preview_line(&mut self, line: &str, is_continuation: bool) {
        // Skip an incomplete closing fence; it would appear as code for a moment.
        let is_closing_fence = matches!(self.open, OpenBlock::Fence(fence) if line.trim().chars().all(|mark| mark == fence.mark));
        if !is_closing_fence {
            self.push_line(line, is_continuation);
        }
    }

    /// Adds the line to the open block if the line belongs to it. Returns whether it was added.
    fn try_continue(&mut self, line: &str, start: BlockStart, is_continuation: bool) -> bool {
        let blank_line = start == BlockStart::Blank;
        match self.open {
            OpenBlock::Nothing => false,
            OpenBlock::Fence(fence) if fence.is_closed_by(line) => {
                self.end_code();
                true
            }
            OpenBlock::Fence(fence) => {
                self.emit_code_line(line, fence.indent);
                true
            }
            OpenBlock::Raw(end) => {
                self.emit_raw_line(line, end);
                true
            }
            OpenBlock::Indented { blanks } => {
                self.try_continue_indented(line, start, blanks, is_continuation)
            }
            OpenBlock::Text { head } => {
                if head.is_none() && !is_continuation && is_heading_underline(line) {
                    self.append_source(line);
                    self.close_block();
                    return true;
                }
                if start.can_interrupt_paragraph() {
                    return false;
                }
                self.append_text_line(line, head);
                true
            }
            OpenBlock::Quote => {
                let belongs = start == BlockStart::Quote || !start.can_interrupt_paragraph();
                if belongs {
                    self.append_source(line);
                }
                belongs
            }
            OpenBlock::Item { offset, blank, .. } => {
                let is_nested = split_indent(line).0 >= offset || blank_line || is_continuation;
                let is_lazy = !blank
                    && !start.can_interrupt_paragraph()
                    && !matches!(start, BlockStart::Item(_));
                if is_nested || is_lazy {
                    self.append_source(line);
                    if let OpenBlock::Item { blank, .. } = &mut self.open {
                        *blank = blank_line;
                    }
                }
                is_nested || is_lazy
            }
        }
    }

    fn try_continue_indented(
        &mut self,
        line: &str,
        start: BlockStart,
        blanks: usize,
        is_continuation: bool,
    ) -> bool {
        match start {
            _ if is_continuation || start == BlockStart::Indented => {
                let blank_lines = std::iter::repeat_n(Line::default(), blanks);
                self.lines.extend(blank_lines);
                self.emit_code_line(line, 4);
                self.open = OpenBlock::Indented { blanks: 0 };
            }
            BlockStart::Blank => self.open = OpenBlock::Indented { blanks: blanks + 1 },
            _ => return false,
        }
        true
    }

    /// Opens the block that a line starts.
    fn begin_block(&mut self, line: &str, start: BlockStart) {
        if start == BlockStart::Blank {
            self.after_blank = true;
            return;
        }
        self.tight = false;
        let list = self.list.take();
        match start {
            BlockStart::Item(item) => return self.begin_item(line, item, list),
            BlockStart::Text | BlockStart::Heading => self.open = OpenBlock::Text { head: None },
            BlockStart::Quote => self.open = OpenBlock::Quote,
            BlockStart::Rule => {
                let rule = layout::rule_line(self.style, self.width);
                self.emit_lines(vec![rule]);
            }
            BlockStart::Fence(fence) => {
                self.emit_separator();
                let info = line.trim_start().trim_start_matches(fence.mark);
                self.lines.extend(code_open_line(info, self.style));
                self.open = OpenBlock::Fence(fence);
            }
            BlockStart::Indented => {
                self.emit_separator();
                self.lines.extend(code_open_line("", self.style));
                self.emit_code_line(line, 4);
                self.open = OpenBlock::Indented { blanks: 0 };
            }
            BlockStart::Raw(end) => {
                self.emit_separator();
                self.open = OpenBlock::Raw(end);
                self.emit_raw_line(line, end);
            }
            BlockStart::Blank => {}
        }
        if matches!(self.open, OpenBlock::Text { .. } | OpenBlock::Quote) {
            self.append_source(line);
        }
        if start == BlockStart::Heading {
            self.close_block();
        }
    }

    fn begin_item(&mut self, line: &str, item: ListItemStart, list: Option<(char, u64)>) {
        let sibling = list.filter(|(marker, _)| *marker == item.marker);
        self.tight = sibling.is_some() && !self.after_blank;
        let next = sibling.map(|(_, next)| next);
        let number = item.number.map(|number| next.unwrap_or(number));
        self.list = Some((item.marker, number.unwrap_or(0).saturating_add(1)));
        self.open = OpenBlock::Item {
            offset: item.offset,
            number,
            shift: 0,
            blank: false,
        };
        self.append_source(line);
    }

    /// Adds a line to a paragraph. Recognizes the delimiter row of a table.
    fn append_text_line(&mut self, line: &str, head: Option<(usize, usize)>) {
        let above = self.last;
        self.append_source(line);
        if head.is_none() && self.last > above && is_delimiter_row(line) {
            self.open = OpenBlock::Text {
                head: Some((above, self.block.len())),
            };
        }
    }

    /// Adds a line to the source of the open block. A block that is too long is laid out and continues as another
    /// block.
    fn append_source(&mut self, line: &str) {
        if !self.block.is_empty() && self.block.len() + line.len() >= MAX_BLOCK_BYTES {
            self.split_block();
        }
        self.last = self.block.len();
        match self.open {
            OpenBlock::Item {
                offset, shift: 1.., ..
            } => self.block.push_str(&dedent(line, offset)),
            _ => self.block.push_str(line),
        }
        self.block.push('\n');
    }

    /// Lays out the open block and continues it as another block.
    fn split_block(&mut self) {
        let open = self.open;
        let carried_prefix = self.carried_prefix();
        self.lay_out_block();
        self.tight = true;
        self.block = carried_prefix;
        self.open = match open {
            OpenBlock::Text {
                head: Some((start, end)),
            } => OpenBlock::Text {
                head: Some((0, end - start)),
            },
            other => other.rest(self.width),
        };
    }

    /// Returns the text that the rest of a split block must start with: the table head or the opening code fence.
    /// Returns an empty text if the block has neither, or if the text would be too long.
    fn carried_prefix(&self) -> String {
        let fence = |prefix: &str| Some(format!("{prefix}{}\n", unclosed_fence(&self.block)?));
        let carried_prefix = match self.open {
            OpenBlock::Text {
                head: Some((start, end)),
            } => self.block.get(start..end).map(str::to_owned),
            OpenBlock::Quote => fence("> "),
            OpenBlock::Item { .. } => fence(""),
            _ => None,
        };
        let is_short = |prefix: &String| prefix.len() <= MAX_BLOCK_BYTES / 8;
        carried_prefix.filter(is_short).unwrap_or_default()
    }

    /// Ends the open block.
    pub(super) fn close_block(&mut self) {
        match self.open {
            OpenBlock::Nothing => {}
            OpenBlock::Fence(_) | OpenBlock::Indented { .. } => {
                self.after_blank = matches!(self.open, OpenBlock::Indented { blanks: 1.. });
                self.end_code();
            }
            OpenBlock::Raw(_) => self.open = OpenBlock::Nothing,
            OpenBlock::Text { .. } | OpenBlock::Quote => drop(self.lay_out_block()),
            OpenBlock::Item { blank, .. } => {
                self.after_blank = self.lay_out_block() || blank;
            }
        }
        self.open = OpenBlock::Nothing;
    }

    /// Lays out the source of the open block. Returns whether it ends with code.
    fn lay_out_block(&mut self) -> bool {
        let (indent, number) = match self.open {
            OpenBlock::Item { shift, number, .. } => (shift, number),
            _ => (0, None),
        };
        let context = BlockContext {
            width: self.width,
            markdown_style: self.style,
            indent,
            number,
        };
        #[cfg(test)]
        self.laid_out_bytes
            .fetch_add(self.block.len(), std::sync::atomic::Ordering::Relaxed);
        let (lines, after_code) = layout::lay_out_block(&self.block, context);
        self.block.clear();
        self.last = 0;
        self.emit_lines(lines);
        after_code
    }

    /// Emits the lines of a block, after a blank line if one must separate the block from the block before it.
    fn emit_lines(&mut self, lines: Vec<Line>) {
        if !lines.is_empty() {
            self.emit_separator();
            self.lines.extend(lines);
        }
    }

    /// Emits the blank line before a block, unless the block is the first one or must follow without a blank line.
    fn emit_separator(&mut self) {
        if self.has_output && !self.tight {
            self.lines.push(Line::default());
        }
        self.has_output = true;
        self.tight = false;
        self.after_blank = false;
    }

    /// Emits a line of code without its first `columns` columns of indentation.
    fn emit_code_line(&mut self, line: &str, columns: usize) {
        self.lines.push(match columns {
            0 => code_line(line),
            _ => code_line(&dedent(line, columns)),
        });
    }

    fn end_code(&mut self) {
        self.lines.extend(code_close_line(self.style));
        self.open = OpenBlock::Nothing;
    }

    /// Emits a line of HTML verbatim. Closes the block if the line contains `end`.
    fn emit_raw_line(&mut self, line: &str, end: &str) {
        let mut flow = InlineText::default();
        flow.push(line, Style::DIM);
        let mut lines = flow.wrap(self.width);
        lines.resize_with(lines.len().max(1), Line::default);
        self.lines.append(&mut lines);
        if line.to_ascii_lowercase().contains(end) {
            self.open = OpenBlock::Nothing;
        }
    }

    #[cfg(test)]
    pub(super) fn open_bytes(&self) -> usize {
        self.block.len()
    }

    /// Returns a copy with as much of the open block as a preview needs.
    pub(super) fn preview_copy(&self) -> Self {
        let preview_tail = preview_tail(&self.block);
        let is_truncated = preview_tail.len() < self.block.len();
        let mut tail = Self {
            open: self.open,
            last: self.last,
            list: self.list,
            after_blank: self.after_blank,
            tight: self.tight,
            has_output: self.has_output,
            ..self.empty_copy()
        };
        tail.block = match self.open {
            _ if !is_truncated => preview_tail.to_owned(),
            OpenBlock::Text { head: Some(_) } => self.carried_prefix() + preview_tail,
            OpenBlock::Item {
                offset, shift: 0, ..
            } => {
                tail.open = self.open.rest(self.width);
                let lines = preview_tail.lines();
                lines.map(|line| dedent(line, offset) + "\n").collect()
            }
            _ => preview_tail.to_owned(),
        };
        tail
    }
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
    let mut open: Option<(Fence, &str)> = None;
    for line in text.lines() {
        let inner = line.trim_start_matches([' ', '\t', '>']);
        open = match open {
            Some((fence, _)) if fence.is_closed_by(inner) => None,
            None => Fence::parse(0, inner).map(|fence| (fence, inner)),
            open => open,
        };
    }
    open.map(|(_, line)| line)
}
