//! Parses a finished block and lays it out.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::{MarkdownStyle, inline::InlineText, table::TableBlock};
use crate::{
    Line, Style, columns,
    highlight::{CODE_STYLE, Highlighter},
    sanitize::sanitize_line,
};

const LINK_STYLE: Style = Style::BLUE;

/// How a block is shown: the width, the style, the indentation, and the number of a list item.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockContext {
    pub(super) width: usize,
    pub(super) markdown_style: MarkdownStyle,
    /// The number of the list item, if the block is one.
    pub(super) number: Option<u64>,
    /// Whether the block is the rest of a list item that was split. Its marker is not shown.
    pub(super) is_rest_of_item: bool,
}

/// The extensions of Markdown that are recognized.
pub(super) const OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_STRIKETHROUGH)
    .union(Options::ENABLE_TASKLISTS);

/// Returns the line for a thematic break (a horizontal rule).
fn rule_line(markdown_style: MarkdownStyle, width: usize) -> Line {
    match markdown_style {
        MarkdownStyle::Styled => Line::new("─".repeat(width), Style::DIM),
        MarkdownStyle::Plain => Line::new("---", Style::NONE),
    }
}

/// Returns the lines of a block, and whether the last lines are code.
pub(super) fn lay_out_block(source: &str, context: BlockContext) -> (Vec<Line>, bool) {
    let mut layout = BlockRenderer {
        source,
        context,
        lines: Vec::new(),
        containers: Vec::new(),
        inline_text: InlineText::default(),
        styles: Vec::new(),
        targets: Vec::new(),
        code: None,
        table: None,
        cell_end: 0,
        blank: false,
        after_code: false,
        shown_until: 0,
    };
    for (event, range) in Parser::new_ext(source, OPTIONS).into_offset_iter() {
        layout.show_skipped_definitions(&event, &range);
        layout.handle_event(event);
    }
    layout.end_inline_text();
    layout.show_definitions_until(source.len());
    (layout.lines, layout.after_code)
}

/// An open block that contains other blocks.
#[derive(Debug)]
enum Container {
    Quote,
    List {
        next: Option<u64>,
        loose: bool,
    },
    Item {
        marker: String,
        indent: usize,
        loose: bool,
    },
}

/// Renders the parser's events of one block as lines.
struct BlockRenderer<'a> {
    source: &'a str,
    context: BlockContext,
    lines: Vec<Line>,
    containers: Vec<Container>,
    inline_text: InlineText,
    styles: Vec<Style>,
    /// Open links and images: for each, the index of its first piece in `inline_text`, and its address.
    targets: Vec<(usize, String)>,
    /// The code block that is being parsed: its info string, which names the language, and its text so far.
    code: Option<(String, String)>,
    table: Option<TableBlock>,
    /// Source offset at which the last table cell ended.
    cell_end: usize,
    /// Whether a blank line must precede the next block.
    blank: bool,
    /// Whether the last lines are code. A blank line must follow them.
    after_code: bool,
    /// Source offset up to which link definitions were searched.
    shown_until: usize,
}

impl BlockRenderer<'_> {
    fn handle_event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start_tag(tag),
            Event::End(tag) => self.end_tag(tag),
            Event::Text(text) => match &mut self.code {
                Some((_, code)) => code.push_str(&text),
                None => self.push_text(&text),
            },
            Event::Code(text) => self.push_inline_code(&text),
            Event::InlineHtml(html) if is_line_break(&html) => {
                self.inline_text.push("\n", Style::NONE);
            }
            Event::Html(html) | Event::InlineHtml(html) => self.inline_text.push(&html, Style::DIM),
            Event::SoftBreak => self.push_text(" "),
            Event::HardBreak => self.inline_text.push("\n", Style::NONE),
            Event::Rule => {
                self.begin_block();
                let line = rule_line(self.context.markdown_style, self.available_width());
                self.push_lines(vec![line]);
            }
            Event::TaskListMarker(done) => self.push_text(if done { "[x] " } else { "[ ] " }),
            // These extensions are not enabled; show the text verbatim.
            Event::InlineMath(text) | Event::DisplayMath(text) | Event::FootnoteReference(text) => {
                self.push_text(&text);
            }
        }
    }

    fn start_tag(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Emphasis => self.open_style(Style::ITALIC, "*"),
            Tag::Strong => self.open_style(Style::BOLD, "**"),
            Tag::Strikethrough => self.open_style(Style::STRIKE, "~~"),
            Tag::Link {
                dest_url, title, ..
            } => self.open_target(LINK_STYLE, &dest_url, &title),
            Tag::Image {
                dest_url, title, ..
            } => self.open_target(Style::ITALIC, &dest_url, &title),
            Tag::Paragraph => {
                self.begin_block();
                self.mark_loose();
            }
            Tag::Heading { level, .. } => {
                self.begin_block();
                self.styles.push(match level {
                    HeadingLevel::H1 => Style::BOLD | Style::UNDERLINE,
                    HeadingLevel::H2 => Style::BOLD,
                    _ => Style::BOLD | Style::ITALIC,
                });
                if self.context.markdown_style == MarkdownStyle::Plain {
                    self.push_text(&("#".repeat(level as usize) + " "));
                }
            }
            Tag::CodeBlock(kind) => {
                self.begin_block();
                self.code = Some(match kind {
                    CodeBlockKind::Fenced(info) => (info.to_string(), String::new()),
                    CodeBlockKind::Indented => Default::default(),
                });
            }
            Tag::BlockQuote(_) => {
                self.begin_block();
                self.containers.push(Container::Quote);
            }
            Tag::List(first) => {
                self.begin_block();
                let number = self.context.number.filter(|_| self.containers.is_empty());
                self.containers.push(Container::List {
                    next: first.map(|first| number.unwrap_or(first)),
                    loose: false,
                });
            }
            Tag::Item => self.start_item(),
            Tag::Table(alignments) => {
                self.begin_block();
                self.table = Some(TableBlock {
                    alignments,
                    ..TableBlock::default()
                });
            }
            Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
            }
            _ => self.begin_block(),
        }
    }

    fn end_tag(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Emphasis => self.close_style("*"),
            TagEnd::Strong => self.close_style("**"),
            TagEnd::Strikethrough => self.close_style("~~"),
            TagEnd::Link | TagEnd::Image => self.close_target(),
            TagEnd::Heading(_) => {
                self.end_inline_text();
                self.styles.pop();
            }
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::BlockQuote(_) | TagEnd::List(_) => {
                self.end_inline_text();
                self.containers.pop();
                self.blank = self.is_loose();
            }
            TagEnd::Item => {
                self.end_inline_text();
                self.flush_markers();
                self.containers.pop();
                self.blank = self.is_loose() || self.after_code;
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.inline_text);
                if let Some(table) = &mut self.table {
                    table.rows.last_mut().unwrap_or(&mut table.head).push(cell);
                }
            }
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    let lines = table.lay_out(self.available_width(), self.context.markdown_style);
                    self.push_lines(lines);
                }
            }
            TagEnd::TableHead | TagEnd::TableRow => {}
            _ => self.end_inline_text(),
        }
    }

    fn push_text(&mut self, text: &str) {
        let styles = self.styles.iter();
        let style = styles.fold(Style::NONE, |all, style| all | *style);
        self.inline_text.push(text, style);
    }

    fn push_inline_code(&mut self, text: &str) {
        self.styles.push(CODE_STYLE);
        match self.context.markdown_style {
            MarkdownStyle::Styled => self.push_text(text),
            MarkdownStyle::Plain => self.push_text(&format!("`{text}`")),
        }
        self.styles.pop();
    }

    fn open_style(&mut self, style: Style, mark: &str) {
        self.styles.push(style);
        if self.context.markdown_style == MarkdownStyle::Plain {
            self.push_text(mark);
        }
    }

    fn close_style(&mut self, mark: &str) {
        if self.context.markdown_style == MarkdownStyle::Plain {
            self.push_text(mark);
        }
        self.styles.pop();
    }

    /// Starts a link or an image.
    fn open_target(&mut self, style: Style, url: &str, title: &str) {
        self.styles.push(style);
        let mut target = sanitize_line(url);
        if !title.is_empty() {
            target = format!("{target} \"{}\"", sanitize_line(title));
        }
        self.targets.push((self.inline_text.piece_count(), target));
    }

    /// Ends a link or an image: appends its address after the text, unless the text is the address.
    fn close_target(&mut self) {
        self.styles.pop();
        let Some((mark, target)) = self.targets.pop() else {
            return;
        };
        let text = self.inline_text.text_from(mark);
        if target.is_empty() || target == text || target.strip_prefix("mailto:") == Some(&text) {
            return;
        }
        if text.is_empty() {
            self.inline_text.push(&target, Style::DIM);
        } else {
            self.inline_text.push(&format!(" ({target})"), Style::DIM);
        }
    }

    /// Starts a list item with its bullet or number.
    fn start_item(&mut self) {
        self.begin_block();
        let markdown_style = self.context.markdown_style;
        let marker = match self.containers.last_mut() {
            Some(Container::List {
                next: Some(number), ..
            }) => {
                let marker = format!("{number}. ");
                *number = number.saturating_add(1);
                marker
            }
            _ => markdown_style.bullet_marker().to_owned(),
        };
        let indent = columns(&marker);
        let is_hidden = self.context.is_rest_of_item && self.containers.len() == 1;
        let marker = if is_hidden {
            String::new()
        } else if indent > self.context.width / 2 {
            // If the number takes more than half of the line, show it as text.
            self.inline_text.push(&marker, Style::NONE);
            String::new()
        } else {
            marker
        };
        self.containers.push(Container::Item {
            marker,
            indent,
            loose: false,
        });
    }

    /// Marks the current list and item as loose: blank lines separate their blocks.
    fn mark_loose(&mut self) {
        if let [
            ..,
            Container::List { loose: list, .. },
            Container::Item { loose, .. },
        ] = self.containers.as_mut_slice()
        {
            (*list, *loose) = (true, true);
        }
    }

    /// Returns whether blank lines separate blocks in the current container.
    fn is_loose(&self) -> bool {
        match self.containers.last() {
            None | Some(Container::Quote) => true,
            Some(Container::Item { loose, .. } | Container::List { loose, .. }) => *loose,
        }
    }

    /// Ends the inline text before a block. Adds a blank line if one must separate the text and the block.
    fn begin_block(&mut self) {
        self.end_inline_text();
        if std::mem::take(&mut self.blank) && !self.lines.is_empty() {
            self.push_prefixed(&Line::default());
        }
    }

    fn end_inline_text(&mut self) {
        let inline_text = std::mem::take(&mut self.inline_text);
        if !inline_text.is_empty() {
            self.push_lines(inline_text.wrap(self.available_width()));
        }
    }

    /// Adds the lines of the open code block.
    fn end_code(&mut self) {
        let Some((info, code)) = self.code.take() else {
            return;
        };
        self.flush_markers();
        let markdown_style = self.context.markdown_style;
        self.lines.extend(code_open_line(&info, markdown_style));
        let mut highlighter = Highlighter::new(&info);
        self.lines
            .extend(code.lines().map(|line| highlighter.line(line)));
        self.lines.extend(code_close_line(markdown_style));
        (self.blank, self.after_code) = (true, true);
    }

    /// Adds lines with the prefix of their containers.
    fn push_lines(&mut self, lines: Vec<Line>) {
        self.after_code = false;
        for line in lines {
            self.push_prefixed(&line);
        }
        self.blank = self.is_loose();
    }

    /// Adds a line with the list markers that were not written yet, if there are any.
    fn flush_markers(&mut self) {
        let is_pending = |container: &Container| matches!(container, Container::Item { marker, .. } if !marker.is_empty());
        if self.containers.iter().any(is_pending) {
            self.push_prefixed(&Line::default());
        }
    }

    /// Adds a line with the prefix of its containers.
    fn push_prefixed(&mut self, line: &Line) {
        let mut prefixed = self.take_line_prefix();
        prefixed.append(line);
        prefixed.trim_end();
        self.lines.push(prefixed);
    }

    /// Returns the prefix of the next line: quote bars, list markers and indentation. Each marker is returned once. If
    /// the containers take more than half of the width, only the inner containers are shown.
    fn take_line_prefix(&mut self) -> Line {
        let first = self.first_shown_container();
        let mut line = Line::default();
        for (index, container) in self.containers.iter_mut().enumerate() {
            match container {
                Container::Quote if index >= first => {
                    line.push(self.context.markdown_style.quote_prefix(), Style::DIM);
                }
                Container::Item { marker, indent, .. } => {
                    let marker = std::mem::take(marker);
                    if index >= first {
                        line.push(&marker, Style::NONE);
                        line.push(&" ".repeat(*indent - columns(&marker)), Style::NONE);
                    }
                }
                Container::Quote | Container::List { .. } => {}
            }
        }
        line
    }

    /// Returns the index of the outermost container that is shown.
    fn first_shown_container(&self) -> usize {
        let mut remaining = self.context.width / 2;
        for (index, container) in self.containers.iter().enumerate().rev() {
            match remaining.checked_sub(container.columns()) {
                Some(rest) => remaining = rest,
                None => return index + 1,
            }
        }
        0
    }

    /// Returns the width in columns that remains after the prefix.
    fn available_width(&self) -> usize {
        let shown = self.containers.iter().skip(self.first_shown_container());
        self.context.width - shown.map(Container::columns).sum::<usize>()
    }

    /// Shows the link definitions before an event verbatim. The parser emits no events for definitions; they are in the
    /// gaps between blocks.
    fn show_skipped_definitions(&mut self, event: &Event<'_>, range: &Range<usize>) {
        let is_container =
            |tag: &TagEnd| matches!(tag, TagEnd::BlockQuote(_) | TagEnd::List(_) | TagEnd::Item);
        match event {
            Event::Start(tag) if is_container(&tag.to_end()) => {
                self.show_definitions_until(range.start);
                self.shown_until = self.shown_until.max(range.start);
            }
            Event::End(tag) if is_container(tag) => self.show_definitions_until(range.end),
            Event::End(TagEnd::TableCell) => self.cell_end = range.end,
            Event::End(TagEnd::TableRow) => self.keep_surplus_cells(range.end),
            Event::End(_) => {}
            _ => {
                self.show_definitions_until(range.start);
                self.shown_until = self.shown_until.max(range.end);
            }
        }
    }

    /// Appends surplus cells of a table row to its last cell. The parser emits no events for them: a row with more
    /// cells than the head is truncated.
    fn keep_surplus_cells(&mut self, until: usize) {
        let rest = self.source.get(self.cell_end..until).unwrap_or_default();
        let rest =
            rest.trim_matches(|character: char| character == '|' || character.is_whitespace());
        let row = self.table.as_mut().and_then(|table| table.rows.last_mut());
        if let Some(cell) = row
            .and_then(|row| row.last_mut())
            .filter(|_| !rest.is_empty())
        {
            cell.push(&format!(" | {rest}"), Style::NONE);
        }
    }

    /// Shows the link definitions in the source up to an offset.
    fn show_definitions_until(&mut self, until: usize) {
        let Some(gap) = self.source.get(self.shown_until..until) else {
            return;
        };
        self.shown_until = until;
        let Some((_, gap)) = gap.split_once('[') else {
            return;
        };
        self.begin_block();
        for (index, line) in gap.trim_end().lines().enumerate() {
            let line = line.trim_start_matches([' ', '\t', '>']);
            self.inline_text
                .push(if index == 0 { "[" } else { "\n" }, Style::DIM);
            self.inline_text.push(line, Style::DIM);
        }
        self.end_inline_text();
    }
}

impl Container {
    fn columns(&self) -> usize {
        match self {
            Self::Quote => 2,
            Self::List { .. } => 0,
            Self::Item { indent, .. } => *indent,
        }
    }
}

/// Returns the line above code with the info string, which names the language. Returns `None` if code has no such line
/// in this style.
pub(super) fn code_open_line(info: &str, markdown_style: MarkdownStyle) -> Option<Line> {
    let info = sanitize_line(info);
    match markdown_style {
        MarkdownStyle::Styled => (!info.is_empty()).then(|| Line::new(info, Style::DIM)),
        MarkdownStyle::Plain => Some(Line::new(format!("```{info}"), Style::NONE)),
    }
}

/// Returns the line below code, or `None` if code has no such line in this style.
pub(super) fn code_close_line(markdown_style: MarkdownStyle) -> Option<Line> {
    (markdown_style == MarkdownStyle::Plain).then(|| Line::new("```", Style::NONE))
}

fn is_line_break(html: &str) -> bool {
    let name = html.trim_matches(['<', '>', '/', ' ']);
    name.eq_ignore_ascii_case("br")
}
