//! Parses Markdown into one text with styled ranges.

use std::collections::HashSet;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use super::{
    style::{AttributeValues, Code, HtmlStyle, push_escaped, utf16_length},
    table::TextTable,
};

/// Maximum length of a link address in UTF-16 units. Each part of a split link repeats the address. A longer address is
/// shown as text after the link.
const MAX_LINK_UNITS: usize = 1024;
/// Maximum indentation, in levels of nested lists. Deeper lists are not indented further.
const MAX_INDENT_DEPTH: usize = 8;

/// A text with styles.
#[derive(Default)]
pub(super) struct StyledText {
    pub(super) text: String,
    /// Byte offsets in the text, each with the style that applies from there to the next offset.
    pub(super) spans: Vec<(usize, HtmlStyle)>,
    pub(super) attributes: AttributeValues,
}

impl StyledText {
    /// Creates a text without styles.
    pub(super) fn from_plain_text(text: &str) -> Self {
        let mut document = Self::default();
        document.push_styled(text, HtmlStyle::default());
        document
    }

    fn push_styled(&mut self, text: &str, style: HtmlStyle) {
        if text.is_empty() {
            return;
        }
        if self.spans.last().is_none_or(|(_, last)| *last != style) {
            self.spans.push((self.text.len(), style));
        }
        // The platform drops or rejects other control characters.
        self.text.extend(
            text.chars()
                .filter(|character| !character.is_control() || matches!(character, '\n' | '\t')),
        );
    }

    fn add_attribute(&mut self, value: &str) -> usize {
        let mut escaped = String::new();
        push_escaped(value, &mut escaped);
        self.attributes.push(escaped.replace('"', "&quot;"));
        self.attributes.len() - 1
    }
}

/// Parses Markdown.
pub(super) fn parse_markdown(markdown: &str) -> StyledText {
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
        reader.handle_event(event, range.end);
    }
    // Show link reference definitions that no link uses: they are a list of sources, not markup.
    definitions.sort_unstable_by_key(|(span, _)| span.start);
    for (span, label) in definitions {
        if !reader.used_labels.contains(&label) {
            reader.push_text(markdown.get(span).unwrap_or_default().trim());
            reader.end_block(1);
        }
    }
    reader.document
}

/// An open link or image: its address and the byte offset at which its text starts.
struct Link {
    address: String,
    start: usize,
}

#[derive(Default)]
struct MarkdownReader<'a> {
    source: &'a str,
    document: StyledText,
    style: HtmlStyle,
    /// The style outside of each open tag.
    outer_styles: Vec<HtmlStyle>,
    /// Number of quotations so far.
    quotations: usize,
    /// The next item number of each open list; `None` for bullets.
    lists: Vec<Option<u64>>,
    links: Vec<Link>,
    table: Option<TextTable>,
    /// Byte offset in the Markdown source at which the last table cell ended.
    cell_end: usize,
    /// Number of line breaks before the next text.
    pending_breaks: usize,
    /// Byte offset in the converted text at which the last block started.
    block: usize,
    /// The info string of the open code block.
    info: String,
    /// Labels of the link reference definitions that links use.
    used_labels: HashSet<String>,
}

impl MarkdownReader<'_> {
    fn handle_event(&mut self, event: Event<'_>, end: usize) {
        match event {
            Event::Start(tag) => {
                self.outer_styles.push(self.style);
                self.start_tag(tag);
            }
            Event::End(tag) => {
                self.end_tag(tag, end);
                self.style = self.outer_styles.pop().unwrap_or_default();
            }
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => {
                self.push_text(&text);
            }
            Event::Code(text) => {
                self.style.code = Code::Inline;
                self.push_text(&text);
                self.style.code = Code::No;
            }
            Event::SoftBreak | Event::HardBreak => self.push_line_break(),
            Event::Rule => {
                self.begin_block();
                self.push_text("———");
                self.end_block(2);
            }
            // These extensions are not enabled.
            Event::InlineMath(_)
            | Event::DisplayMath(_)
            | Event::FootnoteReference(_)
            | Event::TaskListMarker(_) => {}
        }
    }

    fn start_tag(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { .. } | Tag::Strong => self.style.bold = true,
            Tag::Emphasis => self.style.italic = true,
            Tag::Strikethrough => self.style.strike = true,
            Tag::BlockQuote(_) => {
                self.begin_block();
                self.quotations += 1;
                // The platform does not allow nested quotations.
                self.style.quote = self.style.quote.or(Some(self.quotations));
            }
            Tag::CodeBlock(kind) => {
                self.begin_block();
                let info = match &kind {
                    CodeBlockKind::Fenced(info) => info.trim(),
                    CodeBlockKind::Indented => "",
                };
                let language = fence_language(info);
                // Show an info string that is more than a language name as text.
                if language.is_none_or(|name| name != info) {
                    self.push_text(info);
                    self.begin_block();
                }
                info.clone_into(&mut self.info);
                self.style.code = language.map_or(Code::Block, |name| {
                    Code::Named(self.document.add_attribute(name))
                });
            }
            Tag::List(first) => {
                self.begin_block();
                self.lists.push(first);
            }
            Tag::Item => self.begin_item(),
            Tag::Table(alignments) => {
                self.begin_block();
                self.table = Some(TextTable::new(alignments));
            }
            Tag::TableHead | Tag::TableRow => self.table.iter_mut().for_each(TextTable::begin_row),
            Tag::TableCell => self.table.iter_mut().for_each(TextTable::begin_cell),
            Tag::Link { dest_url, id, .. } | Tag::Image { dest_url, id, .. } => {
                self.used_labels.insert(id.to_lowercase());
                self.begin_link(&dest_url);
            }
            _ => {}
        }
    }

    fn end_tag(&mut self, tag: TagEnd, end: usize) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock | TagEnd::Heading(_) | TagEnd::BlockQuote(_) => {
                self.end_block(2);
            }
            TagEnd::CodeBlock => {
                let info = std::mem::take(&mut self.info);
                if self.document.text.len() == self.block && fence_language(&info) == Some(&info) {
                    self.push_text(&info);
                }
                self.end_block(2);
            }
            TagEnd::List(_) => {
                self.lists.pop();
                self.end_block(if self.lists.is_empty() { 2 } else { 1 });
            }
            TagEnd::Item => self.end_block(1),
            TagEnd::TableCell => self.cell_end = end,
            TagEnd::TableHead | TagEnd::TableRow => self.push_surplus_cells(end),
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    self.style.code = Code::Block;
                    self.push_text(&table.to_text());
                }
                self.end_block(2);
            }
            TagEnd::Link | TagEnd::Image => self.end_link(),
            _ => {}
        }
    }

    /// Starts a block on a new line.
    fn begin_block(&mut self) {
        self.end_block(1);
        self.block = self.document.text.len();
    }

    fn end_block(&mut self, breaks: usize) {
        if !self.document.text.is_empty() {
            self.pending_breaks = self.pending_breaks.max(breaks);
        }
    }

    fn begin_item(&mut self) {
        let depth = self.lists.len().saturating_sub(1);
        let marker = match self.lists.last_mut() {
            Some(Some(number)) => {
                let marker = format!("{number}. ");
                *number = number.saturating_add(1);
                marker
            }
            _ => "• ".to_owned(),
        };
        self.push_pending_breaks(depth);
        self.push_unstyled(&marker);
    }

    /// Appends text, after pending line breaks.
    fn push_text(&mut self, text: &str) {
        if let Some(table) = &mut self.table {
            return table.push_text(text);
        }
        // Line breaks at the end of a block separate it from the next one; they are not part of its last line.
        let trimmed = text.trim_end_matches('\n');
        if !trimmed.is_empty() {
            self.push_pending_breaks(if self.style.is_block() {
                0
            } else {
                self.lists.len()
            });
            let style = self.style;
            self.document.push_styled(trimmed, style);
        }
        self.pending_breaks += text.len() - trimmed.len();
    }

    fn push_line_break(&mut self) {
        if self.table.is_some() {
            return self.push_text(" ");
        }
        let line = format!("\n{}", indentation(self.lists.len()));
        let style = self.style;
        self.document.push_styled(&line, style);
    }

    /// Appends text without a style. Inside a quotation, the text is still part of the quotation.
    fn push_unstyled(&mut self, text: &str) {
        let style = HtmlStyle {
            quote: self.style.quote,
            ..HtmlStyle::default()
        };
        self.document.push_styled(text, style);
    }

    /// Appends pending line breaks and the indentation of the next line. Breaks inside a code block have its code
    /// style; breaks between blocks have no code style.
    fn push_pending_breaks(&mut self, depth: usize) {
        let breaks = std::mem::take(&mut self.pending_breaks);
        if breaks == 0 {
            return;
        }
        let last = self
            .document
            .spans
            .last()
            .map_or_else(HtmlStyle::default, |(_, style)| *style);
        let is_inside_block = self.style.is_block() && self.document.text.len() > self.block;
        let style = HtmlStyle {
            quote: self.style.quote.filter(|_| last.quote == self.style.quote),
            code: if is_inside_block {
                self.style.code
            } else {
                Code::No
            },
            ..HtmlStyle::default()
        };
        self.document.push_styled(&"\n".repeat(breaks), style);
        self.push_unstyled(&indentation(depth));
    }

    fn begin_link(&mut self, address: &str) {
        let is_known_scheme = ["http://", "https://", "tg://", "mailto:"]
            .iter()
            .any(|scheme| {
                address
                    .get(..scheme.len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
            });
        let is_clean = !address
            .contains(|character: char| character.is_whitespace() || character.is_control());
        if is_known_scheme
            && is_clean
            && utf16_length(address) <= MAX_LINK_UNITS
            && self.style.link.is_none()
        {
            self.style.link = Some(self.document.add_attribute(address));
        }
        self.links.push(Link {
            address: address.to_owned(),
            start: self.text_length(),
        });
    }

    /// Ends a link. If the platform would not make it a link, the address is appended as text.
    fn end_link(&mut self) {
        let Some(Link { address, start }) = self.links.pop() else {
            return;
        };
        let is_followed = self.style.link.is_some() && self.table.is_none();
        let is_address_shown =
            is_followed || address.is_empty() || self.is_link_text_address(start, &address);
        if self.text_length() == start {
            self.push_text(&address);
        } else if !is_address_shown {
            self.push_text(&format!(" ({address})"));
        }
    }

    /// Returns the length of the text, or of the current table cell, in bytes.
    fn text_length(&self) -> usize {
        self.table.as_ref().map_or(
            self.document.text.len() + self.pending_breaks,
            TextTable::last_cell_length,
        )
    }

    /// Whether the text from `start` on equals the address.
    fn is_link_text_address(&self, start: usize, address: &str) -> bool {
        let text = match &self.table {
            Some(table) => table.last_cell_from(start),
            None => self.document.text.get(start..),
        };
        text.is_some_and(|text| text.trim() == address)
    }

    /// Adds the cells at the end of a row that have no column in the header. The parser emits no events for them.
    fn push_surplus_cells(&mut self, end: usize) {
        let rest = self.source.get(self.cell_end..end).unwrap_or_default();
        let rest =
            rest.trim_matches(|character: char| character == '|' || character.is_whitespace());
        if let Some(table) = self.table.as_mut().filter(|_| !rest.is_empty()) {
            table.begin_cell();
            table.push_text(rest);
        }
    }
}

fn indentation(depth: usize) -> String {
    "  ".repeat(depth.min(MAX_INDENT_DEPTH))
}

/// Returns the language in the info string of a fence.
fn fence_language(info: &str) -> Option<&str> {
    let word = info.split([' ', ',', '{', '\t']).next().unwrap_or_default();
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+-#._".contains(&byte);
    (!word.is_empty() && word.len() <= 32 && word.bytes().all(is_allowed)).then_some(word)
}
