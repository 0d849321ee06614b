//! Markdown read into one text, with a style for each stretch of it.

use std::collections::HashSet;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use super::{
    style::{AttributeValues, Code, HtmlStyle, escape, units},
    table::TextTable,
};

/// The longest address that becomes a link; it is opened again in each part.
const MAX_LINK_CHARS: usize = 1024;
/// Lists deeper than this are not indented further.
const MAX_INDENT_DEPTH: usize = 8;

/// A text and how it looks.
#[derive(Default)]
pub(super) struct StyledText {
    pub(super) text: String,
    /// From which byte on which style holds.
    pub(super) spans: Vec<(usize, HtmlStyle)>,
    pub(super) names: AttributeValues,
}

impl StyledText {
    /// A text without any style.
    pub(super) fn plain(text: &str) -> Self {
        let mut document = Self::default();
        document.push(text, HtmlStyle::default());
        document
    }

    fn push(&mut self, text: &str, style: HtmlStyle) {
        if text.is_empty() {
            return;
        }
        if self.spans.last().is_none_or(|(_, last)| *last != style) {
            self.spans.push((self.text.len(), style));
        }
        // The platform drops other control characters, or takes them amiss.
        self.text.extend(
            text.chars()
                .filter(|character| !character.is_control() || matches!(character, '\n' | '\t')),
        );
    }

    fn name(&mut self, name: &str) -> usize {
        let mut escaped = String::new();
        escape(name, &mut escaped);
        self.names.push(escaped.replace('"', "&quot;"));
        self.names.len() - 1
    }
}

/// Reads Markdown.
pub(super) fn read(markdown: &str) -> StyledText {
    let parser = Parser::new_ext(
        markdown,
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH,
    );
    let mut definitions: Vec<_> = parser
        .reference_definitions()
        .iter()
        .map(|(label, definition)| (definition.span.clone(), label.to_lowercase()))
        .collect();
    let mut reader = MarkdownReader {
        source: markdown,
        ..MarkdownReader::default()
    };
    for (event, range) in parser.into_offset_iter() {
        reader.event(event, range.end);
    }
    // A definition that nothing refers to is a list of sources, not markup.
    definitions.sort_unstable_by_key(|(span, _)| span.start);
    for (span, label) in definitions {
        if !reader.referred.contains(&label) {
            reader.text(markdown.get(span).unwrap_or_default().trim());
            reader.end_block(1);
        }
    }
    reader.document
}

/// A link or an image that is being read: its address, and where its text starts.
struct Link {
    address: String,
    start: usize,
}

#[derive(Default)]
struct MarkdownReader<'a> {
    source: &'a str,
    document: StyledText,
    style: HtmlStyle,
    /// What held outside of each open tag.
    outer: Vec<HtmlStyle>,
    /// How many quotations there were.
    quotations: usize,
    /// The number of the next item of each open list, none for bullets.
    lists: Vec<Option<u64>>,
    links: Vec<Link>,
    table: Option<TextTable>,
    /// The byte of the source at which the last cell ended.
    cell_end: usize,
    /// Line breaks due before the next text.
    pending: usize,
    /// Where the last block started.
    block: usize,
    /// What the fence of the code that is being read says.
    info: String,
    /// Labels of definitions that were used.
    referred: HashSet<String>,
}

impl MarkdownReader<'_> {
    fn event(&mut self, event: Event<'_>, end: usize) {
        match event {
            Event::Start(tag) => {
                self.outer.push(self.style);
                self.start(tag);
            }
            Event::End(tag) => {
                self.end(tag, end);
                self.style = self.outer.pop().unwrap_or_default();
            }
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => self.text(&text),
            Event::Code(text) => {
                self.style.code = Code::Inline;
                self.text(&text);
                self.style.code = Code::No;
            }
            Event::SoftBreak | Event::HardBreak => self.line_break(),
            Event::Rule => {
                self.begin_block();
                self.text("———");
                self.end_block(2);
            }
            // Extensions that are not switched on.
            Event::InlineMath(_)
            | Event::DisplayMath(_)
            | Event::FootnoteReference(_)
            | Event::TaskListMarker(_) => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { .. } | Tag::Strong => self.style.bold = true,
            Tag::Emphasis => self.style.italic = true,
            Tag::Strikethrough => self.style.strike = true,
            Tag::BlockQuote(_) => {
                self.begin_block();
                self.quotations += 1;
                // Quotations do not nest.
                self.style.quote = self.style.quote.or(Some(self.quotations));
            }
            Tag::CodeBlock(kind) => {
                self.begin_block();
                let info = match &kind {
                    CodeBlockKind::Fenced(info) => info.trim(),
                    CodeBlockKind::Indented => "",
                };
                let language = language(info);
                // Somebody wrote more than the name of a language: that is text.
                if language.is_none_or(|name| name != info) {
                    self.text(info);
                    self.begin_block();
                }
                info.clone_into(&mut self.info);
                self.style.code =
                    language.map_or(Code::Block, |name| Code::Named(self.document.name(name)));
            }
            Tag::List(first) => {
                self.begin_block();
                self.lists.push(first);
            }
            Tag::Item => self.item(),
            Tag::Table(alignments) => {
                self.begin_block();
                self.table = Some(TextTable::new(alignments));
            }
            Tag::TableHead | Tag::TableRow => self.table.iter_mut().for_each(TextTable::row),
            Tag::TableCell => self.table.iter_mut().for_each(TextTable::cell),
            Tag::Link { dest_url, id, .. } | Tag::Image { dest_url, id, .. } => {
                self.referred.insert(id.to_lowercase());
                self.link(&dest_url);
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd, end: usize) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock | TagEnd::Heading(_) | TagEnd::BlockQuote(_) => {
                self.end_block(2);
            }
            TagEnd::CodeBlock => {
                let info = std::mem::take(&mut self.info);
                if self.document.text.len() == self.block && language(&info) == Some(&info) {
                    self.text(&info);
                }
                self.end_block(2);
            }
            TagEnd::List(_) => {
                self.lists.pop();
                self.end_block(if self.lists.is_empty() { 2 } else { 1 });
            }
            TagEnd::Item => self.end_block(1),
            TagEnd::TableCell => self.cell_end = end,
            TagEnd::TableHead | TagEnd::TableRow => self.surplus(end),
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    self.style.code = Code::Block;
                    self.text(&table.draw());
                }
                self.end_block(2);
            }
            TagEnd::Link | TagEnd::Image => self.end_link(),
            _ => {}
        }
    }

    /// A block that does not go on in the line of what is before it.
    fn begin_block(&mut self) {
        self.end_block(1);
        self.block = self.document.text.len();
    }

    fn end_block(&mut self, breaks: usize) {
        if !self.document.text.is_empty() {
            self.pending = self.pending.max(breaks);
        }
    }

    fn item(&mut self) {
        let depth = self.lists.len().saturating_sub(1);
        let marker = match self.lists.last_mut() {
            Some(Some(number)) => {
                let marker = format!("{number}. ");
                *number = number.saturating_add(1);
                marker
            }
            _ => "• ".to_owned(),
        };
        self.break_lines(depth);
        self.write(&marker);
    }

    /// Text of the document, after the line breaks that are due.
    fn text(&mut self, text: &str) {
        if let Some(table) = &mut self.table {
            return table.text(text);
        }
        // What ends a block are its line breaks, not those of its last line.
        let trimmed = text.trim_end_matches('\n');
        if !trimmed.is_empty() {
            self.break_lines(if self.style.is_block() {
                0
            } else {
                self.lists.len()
            });
            let style = self.style;
            self.document.push(trimmed, style);
        }
        self.pending += text.len() - trimmed.len();
    }

    fn line_break(&mut self) {
        if self.table.is_some() {
            return self.text(" ");
        }
        let line = format!("\n{}", indent(self.lists.len()));
        let style = self.style;
        self.document.push(&line, style);
    }

    /// Text without any style but that of the block around it.
    fn write(&mut self, text: &str) {
        let style = HtmlStyle {
            quote: self.style.quote,
            ..HtmlStyle::default()
        };
        self.document.push(text, style);
    }

    /// Breaks the line as often as is due. Breaks within a block belong to it, those between blocks to none.
    fn break_lines(&mut self, depth: usize) {
        let breaks = std::mem::take(&mut self.pending);
        if breaks == 0 {
            return;
        }
        let last = self
            .document
            .spans
            .last()
            .map_or_else(HtmlStyle::default, |(_, style)| *style);
        let inside = self.style.is_block() && self.document.text.len() > self.block;
        let style = HtmlStyle {
            quote: self.style.quote.filter(|_| last.quote == self.style.quote),
            code: if inside { self.style.code } else { Code::No },
            ..HtmlStyle::default()
        };
        self.document.push(&"\n".repeat(breaks), style);
        self.write(&indent(depth));
    }

    fn link(&mut self, address: &str) {
        let known = ["http://", "https://", "tg://", "mailto:"]
            .iter()
            .any(|scheme| {
                address
                    .get(..scheme.len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
            });
        let clean = !address
            .contains(|character: char| character.is_whitespace() || character.is_control());
        if known && clean && units(address) <= MAX_LINK_CHARS && self.style.link.is_none() {
            self.style.link = Some(self.document.name(address));
        }
        self.links.push(Link {
            address: address.to_owned(),
            start: self.length(),
        });
    }

    /// Ends a link. An address that the reader could not follow otherwise becomes text.
    fn end_link(&mut self) {
        let Some(Link { address, start }) = self.links.pop() else {
            return;
        };
        let followed = self.style.link.is_some() && self.table.is_none();
        let shown = followed
            || address.is_empty()
            || units(&address) > MAX_LINK_CHARS
            || self.says(start, &address);
        if self.length() == start {
            self.text(&address);
        } else if !shown {
            self.text(&format!(" ({address})"));
        }
    }

    /// How much text there is.
    fn length(&self) -> usize {
        self.table
            .as_ref()
            .map_or(self.document.text.len() + self.pending, TextTable::length)
    }

    /// Whether the text from `start` on is the address.
    fn says(&self, start: usize, address: &str) -> bool {
        let said = match &self.table {
            Some(table) => table.since(start),
            None => self.document.text.get(start..),
        };
        said.is_some_and(|said| said.trim() == address)
    }

    /// Cells beyond the columns of the header are not read, yet somebody wrote them.
    fn surplus(&mut self, end: usize) {
        let rest = self.source.get(self.cell_end..end).unwrap_or_default();
        let rest =
            rest.trim_matches(|character: char| character == '|' || character.is_whitespace());
        if let Some(table) = self.table.as_mut().filter(|_| !rest.is_empty()) {
            table.cell();
            table.text(rest);
        }
    }
}

fn indent(depth: usize) -> String {
    "  ".repeat(depth.min(MAX_INDENT_DEPTH))
}

/// The language that a fence names.
fn language(info: &str) -> Option<&str> {
    let word = info.split([' ', ',', '{', '\t']).next().unwrap_or_default();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+-#._".contains(&byte);
    (!word.is_empty() && word.len() <= 32 && word.bytes().all(fits)).then_some(word)
}
