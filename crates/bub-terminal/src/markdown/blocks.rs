//! Lines of the source into blocks: where one is certainly over, it is laid out.

use unicode_segmentation::UnicodeSegmentation;

use super::{
    MAX_BLOCK_BYTES, MarkdownStyle,
    inline::InlineText,
    layout::{self, BlockContext, code_close, code_line, code_open},
    start::{BlockStart, Fence, ListItemStart, dedent, indent, is_delimiter_row, is_underline},
};
use crate::{Line, Style};

/// Narrower than this nothing can be laid out.
const MIN_WIDTH: usize = 4;
/// How much of an open block a preview shows, at least.
const PREVIEW_BYTES: usize = 1024;

#[derive(Debug, Clone, Copy)]
enum OpenBlock {
    Nothing,
    /// A paragraph, perhaps with a table or HTML; `head` is where the head of the table begins and its rows do.
    Text {
        head: Option<(usize, usize)>,
    },
    Quote,
    Item {
        offset: usize,
        number: Option<u64>,
        blank: bool,
    },
    /// What goes on in an item after it was cut: laid out on its own, moved to the right.
    Inside {
        offset: usize,
        shift: usize,
        blank: bool,
    },
    Fence(Fence),
    /// Code by indentation, and the blank lines after it that may belong to it.
    Indented {
        blanks: usize,
    },
    Raw(&'static str),
}

#[derive(Debug, Clone)]
pub(super) struct Blocks {
    width: usize,
    look: MarkdownStyle,
    open: OpenBlock,
    /// The source of the open block.
    block: String,
    /// Where the last line of the block begins.
    last: usize,
    /// The list that an item may belong to: its marker and next number.
    list: Option<(char, u64)>,
    /// A blank line of the source came before what is open, or code that only a blank line sets off.
    after_blank: bool,
    /// The next block follows the one before without a blank line.
    tight: bool,
    begun: bool,
    lines: Vec<Line>,
    /// How many bytes were laid out so far.
    #[cfg(test)]
    pub(super) work: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl Blocks {
    pub(super) fn new(width: usize, look: MarkdownStyle) -> Self {
        Self {
            width: width.max(MIN_WIDTH),
            look,
            open: OpenBlock::Nothing,
            block: String::new(),
            last: 0,
            list: None,
            after_blank: false,
            tight: false,
            begun: false,
            lines: Vec::new(),
            #[cfg(test)]
            work: std::sync::Arc::default(),
        }
    }

    pub(super) fn fresh(&self) -> Self {
        Self {
            #[cfg(test)]
            work: self.work.clone(),
            ..Self::new(self.width, self.look)
        }
    }

    pub(super) fn set_width(&mut self, width: usize) {
        self.width = width.max(MIN_WIDTH);
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn is_code(&self) -> bool {
        matches!(self.open, OpenBlock::Fence(_) | OpenBlock::Indented { .. })
    }

    pub(super) fn take_lines(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.lines)
    }

    /// A line of the source; `continued` when it is the rest of one, which begins nothing.
    pub(super) fn line(&mut self, line: &str, continued: bool) {
        let start = if continued {
            BlockStart::Text
        } else {
            BlockStart::parse(line)
        };
        if !self.goes_on(line, start, continued) {
            self.close();
            self.begin(line, start);
        }
    }

    /// A line that has no end yet.
    pub(super) fn preview_line(&mut self, line: &str, continued: bool) {
        // A fence that is not written to its end would flash up as code.
        let closes = matches!(self.open, OpenBlock::Fence(fence) if line.trim().chars().all(|mark| mark == fence.mark));
        if !closes {
            self.line(line, continued);
        }
    }

    /// Adds the line to what is open, if it belongs there.
    fn goes_on(&mut self, line: &str, start: BlockStart, continued: bool) -> bool {
        let blank_line = start == BlockStart::Blank;
        match self.open {
            OpenBlock::Nothing => false,
            OpenBlock::Fence(fence) if fence.is_closed_by(line) => {
                self.end_code();
                true
            }
            OpenBlock::Fence(fence) => {
                self.code(line, fence.indent);
                true
            }
            OpenBlock::Raw(end) => {
                self.raw(line, end);
                true
            }
            OpenBlock::Indented { blanks } => self.indented_goes_on(line, start, blanks, continued),
            OpenBlock::Text { head } => {
                if head.is_none() && !continued && is_underline(line) {
                    self.add(line);
                    self.close();
                    return true;
                }
                if start.interrupts() {
                    return false;
                }
                self.add_row(line, head);
                true
            }
            OpenBlock::Quote => {
                let belongs = start == BlockStart::Quote || !start.interrupts();
                if belongs {
                    self.add(line);
                }
                belongs
            }
            OpenBlock::Item { offset, blank, .. } | OpenBlock::Inside { offset, blank, .. } => {
                let deep = indent(line).0 >= offset || blank_line || continued;
                let lazy = !blank && !start.interrupts() && !matches!(start, BlockStart::Item(_));
                if deep || lazy {
                    self.add(line);
                    if let OpenBlock::Item { blank, .. } | OpenBlock::Inside { blank, .. } =
                        &mut self.open
                    {
                        *blank = blank_line;
                    }
                }
                deep || lazy
            }
        }
    }

    fn indented_goes_on(
        &mut self,
        line: &str,
        start: BlockStart,
        blanks: usize,
        continued: bool,
    ) -> bool {
        let belongs = continued || start == BlockStart::Indented;
        if belongs {
            self.lines
                .extend(std::iter::repeat_n(Line::default(), blanks));
            self.code(line, 4);
            self.open = OpenBlock::Indented { blanks: 0 };
        } else if start == BlockStart::Blank {
            self.open = OpenBlock::Indented { blanks: blanks + 1 };
        }
        belongs || start == BlockStart::Blank
    }

    fn begin(&mut self, line: &str, start: BlockStart) {
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
                let rule = layout::rule(self.look, self.width);
                self.show(vec![rule]);
            }
            BlockStart::Fence(fence) => {
                self.separate();
                let info = line.trim_start().trim_start_matches(fence.mark);
                self.lines.extend(code_open(info, self.look));
                self.open = OpenBlock::Fence(fence);
            }
            BlockStart::Indented => {
                self.separate();
                self.lines.extend(code_open("", self.look));
                self.code(line, 4);
                self.open = OpenBlock::Indented { blanks: 0 };
            }
            BlockStart::Raw(end) => {
                self.separate();
                self.open = OpenBlock::Raw(end);
                self.raw(line, end);
            }
            BlockStart::Blank => {}
        }
        if matches!(self.open, OpenBlock::Text { .. } | OpenBlock::Quote) {
            self.add(line);
        }
        if start == BlockStart::Heading {
            self.close();
        }
    }

    fn begin_item(&mut self, line: &str, item: ListItemStart, list: Option<(char, u64)>) {
        let sibling = list.filter(|(marker, _)| *marker == item.marker);
        self.tight = sibling.is_some() && !self.after_blank;
        let number = item.number.map(|own| sibling.map_or(own, |(_, next)| next));
        self.list = Some((item.marker, number.unwrap_or(0).saturating_add(1)));
        self.open = OpenBlock::Item {
            offset: item.offset,
            number,
            blank: false,
        };
        self.add(line);
    }

    fn add_row(&mut self, line: &str, head: Option<(usize, usize)>) {
        let above = self.last;
        self.add(line);
        if head.is_none() && self.last > above && is_delimiter_row(line) {
            self.open = OpenBlock::Text {
                head: Some((above, self.block.len())),
            };
        }
    }

    /// Adds a line to the source of the open block; a block that is too long is shown, and goes on as another one.
    fn add(&mut self, line: &str) {
        if !self.block.is_empty() && self.block.len() + line.len() >= MAX_BLOCK_BYTES {
            self.cut_block();
        }
        self.last = self.block.len();
        match self.open {
            OpenBlock::Inside { offset, .. } => self.block.push_str(&dedent(line, offset)),
            _ => self.block.push_str(line),
        }
        self.block.push('\n');
    }

    fn cut_block(&mut self) {
        let open = self.open;
        let carried = self.carried();
        self.flush();
        self.tight = true;
        self.block = carried;
        self.open = match open {
            OpenBlock::Item {
                offset,
                number,
                blank,
            } => {
                let shift = number.map_or(2, |number| number.to_string().len() + 2);
                OpenBlock::Inside {
                    offset,
                    shift: shift.min(self.width / 2),
                    blank,
                }
            }
            OpenBlock::Text {
                head: Some((start, end)),
            } => OpenBlock::Text {
                head: Some((0, end - start)),
            },
            other => other,
        };
    }

    /// What the rest of the open block needs in front of it: the head of its table, the opening of its code.
    fn carried(&self) -> String {
        let carried = match self.open {
            OpenBlock::Text {
                head: Some((start, end)),
            } => self.block.get(start..end).unwrap_or_default().to_owned(),
            OpenBlock::Quote => open_fence(&self.block)
                .map(|fence| format!("> {fence}\n"))
                .unwrap_or_default(),
            OpenBlock::Item { .. } | OpenBlock::Inside { .. } => open_fence(&self.block)
                .map(|fence| format!("{fence}\n"))
                .unwrap_or_default(),
            _ => String::new(),
        };
        if carried.len() > MAX_BLOCK_BYTES / 8 {
            String::new()
        } else {
            carried
        }
    }

    /// The open block is over.
    pub(super) fn close(&mut self) {
        match self.open {
            OpenBlock::Nothing => {}
            OpenBlock::Fence(_) | OpenBlock::Indented { .. } => {
                self.after_blank = matches!(self.open, OpenBlock::Indented { blanks: 1.. });
                self.end_code();
            }
            OpenBlock::Raw(_) => self.open = OpenBlock::Nothing,
            OpenBlock::Text { .. } | OpenBlock::Quote => drop(self.flush()),
            OpenBlock::Item { blank, .. } | OpenBlock::Inside { blank, .. } => {
                self.after_blank = self.flush() || blank;
            }
        }
        self.open = OpenBlock::Nothing;
    }

    /// Lays the source of the open block out; whether it ends with code.
    fn flush(&mut self) -> bool {
        let (indent, number) = match self.open {
            OpenBlock::Inside { shift, .. } => (shift, None),
            OpenBlock::Item { number, .. } => (0, number),
            _ => (0, None),
        };
        let place = BlockContext {
            width: self.width,
            look: self.look,
            indent,
            number,
        };
        #[cfg(test)]
        self.work
            .fetch_add(self.block.len(), std::sync::atomic::Ordering::Relaxed);
        let (lines, after_code) = layout::lay_out(&self.block, place);
        self.block.clear();
        self.last = 0;
        self.show(lines);
        after_code
    }

    fn show(&mut self, lines: Vec<Line>) {
        if !lines.is_empty() {
            self.separate();
            self.lines.extend(lines);
        }
    }

    /// Before the first line of a block.
    fn separate(&mut self) {
        if self.begun && !self.tight {
            self.lines.push(Line::default());
        }
        self.begun = true;
        self.tight = false;
        self.after_blank = false;
    }

    fn code(&mut self, line: &str, columns: usize) {
        let line = if columns == 0 {
            code_line(line)
        } else {
            code_line(&dedent(line, columns))
        };
        self.lines.push(line);
    }

    fn end_code(&mut self) {
        self.lines.extend(code_close(self.look));
        self.open = OpenBlock::Nothing;
    }

    fn raw(&mut self, line: &str, end: &str) {
        let mut flow = InlineText::default();
        flow.push(line, Style::DIM);
        let lines = flow.wrap(self.width);
        if lines.is_empty() {
            self.lines.push(Line::default());
        } else {
            self.lines.extend(lines);
        }
        if line.to_ascii_lowercase().contains(end) {
            self.open = OpenBlock::Nothing;
        }
    }

    #[cfg(test)]
    pub(super) fn open_bytes(&self) -> usize {
        self.block.len()
    }

    /// The same with as much of the open block as a preview needs.
    pub(super) fn tail(&self) -> Self {
        let recent = recent(&self.block);
        let shortened = recent.len() < self.block.len();
        let mut tail = Self {
            block: String::new(),
            lines: Vec::new(),
            ..self.clone_small()
        };
        tail.block = match self.open {
            _ if !shortened => recent.to_owned(),
            OpenBlock::Text { head: Some(_) } => self.carried() + recent,
            OpenBlock::Item {
                offset,
                number,
                blank,
            } => {
                tail.open = OpenBlock::Inside {
                    offset,
                    shift: number.map_or(2, |n| n.to_string().len() + 2),
                    blank,
                };
                recent
                    .lines()
                    .map(|line| dedent(line, offset) + "\n")
                    .collect()
            }
            _ => recent.to_owned(),
        };
        tail
    }

    fn clone_small(&self) -> Self {
        let mut small = self.fresh();
        (small.open, small.list, small.last) = (self.open, self.list, self.last);
        (small.after_blank, small.tight, small.begun) = (self.after_blank, self.tight, self.begun);
        small
    }
}

/// The end of a text, from the beginning of a line or word on. Where it begins moves in steps, so that what is shown
/// of a growing text does not run.
pub(super) fn recent(text: &str) -> &str {
    let begin = text.len().saturating_sub(PREVIEW_BYTES) / PREVIEW_BYTES * PREVIEW_BYTES;
    let tail = text.get(text.floor_char_boundary(begin)..).unwrap_or(text);
    if begin == 0 {
        return tail;
    }
    let after = |end: char| {
        tail.split_once(end)
            .map(|(_, rest)| rest)
            .filter(|rest| rest.len() > PREVIEW_BYTES / 2)
    };
    after('\n').or_else(|| after(' ')).unwrap_or(tail)
}

/// Where a line that is too long is cut: behind a space near the limit, else between clusters.
pub(super) fn cut(line: &str) -> usize {
    let end = line.floor_char_boundary(MAX_BLOCK_BYTES);
    let begin = line.floor_char_boundary(MAX_BLOCK_BYTES - 1024);
    let window = line.get(begin..end).unwrap_or_default();
    let cluster = || {
        window
            .grapheme_indices(true)
            .next_back()
            .map(|(start, _)| start)
            .filter(|start| *start > 0)
    };
    window
        .rfind(' ')
        .map(|space| space + 1)
        .or_else(cluster)
        .map_or(end, |offset| begin + offset)
}

/// The opening of code that is not closed in this text, whatever it is nested in.
fn open_fence(text: &str) -> Option<&str> {
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
