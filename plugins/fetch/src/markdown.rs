//! Converts an HTML page to Markdown: the visible text in page order.

use reqwest::Url;

use crate::html::{HtmlTokenizer, Token, attribute_value, decode_entities};

/// Elements that are omitted with their content.
const SKIPPED_ELEMENTS: [&str; 12] = [
    "script", "style", "template", "svg", "iframe", "object", "canvas", "audio", "video", "select",
    "textarea", "math",
];
/// Maximum number of indentation levels of nested lists and quotes.
const MAX_INDENT_DEPTH: usize = 12;

/// Converts a page to Markdown. Links become absolute.
pub fn html_to_markdown(page: &str, base: &Url) -> String {
    let mut writer = Writer {
        base: Some(base),
        ..Writer::default()
    };
    let mut skipped: Option<(String, usize)> = None;
    let tokens = HtmlTokenizer {
        rest: page,
        raw: None,
    };
    for token in tokens {
        if let Some((name, depth)) = &mut skipped {
            match token {
                Token::Open(tag, attributes) if tag == *name && !attributes.ends_with('/') => {
                    *depth += 1;
                }
                Token::Close(tag) if tag == *name => *depth -= 1,
                _ => {}
            }
            if *depth == 0 {
                skipped = None;
            }
            continue;
        }
        match token {
            Token::Open(name, attributes) if SKIPPED_ELEMENTS.contains(&name.as_str()) => {
                if !attributes.ends_with('/') {
                    skipped = Some((name, 1));
                }
            }
            Token::Open(name, attributes) => writer.open_tag(&name, attributes),
            Token::Close(name) => writer.close_tag(&name),
            Token::Text(text) => writer.write_text(&decode_entities(text)),
        }
    }
    writer.finish()
}

/// Writes Markdown from the tokens of a page.
#[derive(Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent flags of the position in the page"
)]
struct Writer<'a> {
    /// The URL of the page, for relative links.
    base: Option<&'a Url>,
    out: String,
    /// Pending line breaks before the next text.
    breaks: usize,
    /// Whether a space is pending before the next text.
    space: bool,
    /// Number of open `blockquote` elements.
    quotes: usize,
    /// The next item numbers of open lists; `None` for a bullet list.
    lists: Vec<Option<u64>>,
    /// The list marker to write before the next text, such as `- `.
    marker: Option<String>,
    /// The open link: the byte offset in `out` where its text starts (`None` while it has no text), and its URL.
    link: Option<(Option<usize>, String)>,
    /// Open emphasis marks, each with the byte offset in `out` where its text starts.
    marks: Vec<(&'static str, usize)>,
    preformatted: bool,
    /// Number of cells in the open table row; `None` outside a row.
    row: Option<usize>,
    /// Whether the next row is the first of its table.
    is_first_row: bool,
    title: Option<String>,
    in_title: bool,
    has_heading: bool,
}

impl Writer<'_> {
    /// Handles an opening tag.
    fn open_tag(&mut self, name: &str, attributes: &str) {
        match name {
            "title" => self.in_title = true,
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.require_breaks(2);
                let level = name
                    .bytes()
                    .last()
                    .map_or(1, |digit| usize::from(digit - b'0'));
                if self.row.is_none() {
                    self.write(&"#".repeat(level));
                    self.space = true;
                }
                self.has_heading |= level == 1;
            }
            "br" => self.require_breaks(1),
            "hr" => {
                self.require_breaks(2);
                self.write("---");
                self.require_breaks(2);
            }
            "ul" | "ol" | "menu" => {
                self.require_breaks(if self.lists.is_empty() { 2 } else { 1 });
                let start = attribute_value(attributes, "start")
                    .and_then(|start| start.parse().ok())
                    .unwrap_or(1);
                self.lists.push((name == "ol").then_some(start));
            }
            "li" => self.begin_item(),
            "blockquote" => {
                self.require_breaks(2);
                self.quotes += 1;
            }
            "pre" => {
                self.require_breaks(2);
                if self.row.is_none() {
                    self.preformatted = true;
                    let language = code_language(attributes).unwrap_or_default();
                    self.write(&format!("```{language}"));
                    self.breaks = 1;
                }
            }
            "a" => {
                // Links do not nest.
                self.end_link();
                let link = self.link_attribute(attributes, "href");
                self.link = link.filter(|_| !self.preformatted).map(|link| (None, link));
            }
            "img" => self.write_image(attributes),
            "table" => {
                self.require_breaks(2);
                self.is_first_row = true;
            }
            "tr" => {
                self.row = None;
                self.require_breaks(1);
                self.row = Some(0);
            }
            "td" | "th" => {
                if let Some(cells) = &mut self.row {
                    *cells += 1;
                    self.space = !self.out.is_empty() && self.breaks == 0;
                    self.write("|");
                    self.space = true;
                }
            }
            _ => {
                if let Some(mark) = emphasis_mark(name).filter(|_| !self.preformatted) {
                    self.write(mark);
                    self.marks.push((mark, self.out.len()));
                }
                self.require_breaks(block_breaks(name));
            }
        }
    }

    /// Handles a closing tag.
    fn close_tag(&mut self, name: &str) {
        match name {
            "title" => self.in_title = false,
            "ul" | "ol" | "menu" => {
                self.lists.pop();
                self.marker = None;
                self.require_breaks(if self.lists.is_empty() { 2 } else { 1 });
            }
            "blockquote" => {
                self.quotes = self.quotes.saturating_sub(1);
                self.require_breaks(2);
            }
            "pre" if self.preformatted => {
                self.breaks = self.breaks.clamp(1, 1);
                self.write("```");
                self.preformatted = false;
                self.require_breaks(2);
            }
            "a" => self.end_link(),
            "tr" => self.end_row(),
            "table" => {
                self.end_row();
                self.require_breaks(2);
            }
            _ => {
                if let Some(mark) = emphasis_mark(name).filter(|_| !self.preformatted) {
                    self.close_mark(mark);
                }
                self.require_breaks(block_breaks(name));
            }
        }
    }

    fn write_text(&mut self, text: &str) {
        if self.in_title {
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            self.title.get_or_insert(words);
            return;
        }
        if self.preformatted {
            for (index, line) in text.split('\n').enumerate() {
                self.breaks += usize::from(index > 0);
                if !line.is_empty() {
                    self.write(line.trim_end_matches('\r'));
                }
            }
            return;
        }
        if text.starts_with(|c: char| c.is_whitespace()) {
            self.space = true;
        }
        for word in text.split_whitespace() {
            if self.row.is_some() && word.contains('|') {
                self.write(&word.replace('|', "\\|"));
            } else {
                self.write(word);
            }
            self.space = true;
        }
        self.space =
            text.ends_with(|c: char| c.is_whitespace()) && (self.space || !text.trim().is_empty());
    }

    /// Writes pending line breaks or a pending space, then the text.
    fn write(&mut self, text: &str) {
        if self.out.is_empty() {
            self.breaks = 0;
            self.write_line_prefix();
        } else if self.breaks > 0 {
            for index in 0..self.breaks {
                self.out.push('\n');
                // An empty line inside a quote is part of the quote.
                if index + 1 < self.breaks {
                    self.write_quote_prefix();
                }
            }
            self.breaks = 0;
            self.write_line_prefix();
        } else if self.space {
            self.out.push(' ');
        }
        self.space = false;
        if let Some((start, _)) = &mut self.link {
            start.get_or_insert(self.out.len());
        }
        self.out.push_str(text);
    }

    fn write_line_prefix(&mut self) {
        let depth = self.lists.len().min(MAX_INDENT_DEPTH);
        self.write_quote_prefix();
        if let Some(marker) = self.marker.take() {
            self.out.push_str(&"  ".repeat(depth.saturating_sub(1)));
            self.out.push_str(&marker);
        } else {
            self.out.push_str(&"  ".repeat(depth));
        }
    }

    fn write_quote_prefix(&mut self) {
        self.out
            .push_str(&"> ".repeat(self.quotes.min(MAX_INDENT_DEPTH)));
    }

    /// Requires at least this many line breaks before the next text: 1 for a new line, 2 for an empty line.
    fn require_breaks(&mut self, breaks: usize) {
        if self.preformatted || breaks == 0 {
            return;
        }
        if self.row.is_some() {
            // A table cell has one line.
            self.space = true;
            return;
        }
        // Text follows its list marker on the same line.
        if self.marker.is_none() {
            // No empty lines between the items of a list.
            let max_breaks = if self.lists.is_empty() { 2 } else { 1 };
            self.breaks = self.breaks.max(breaks.min(max_breaks.max(self.breaks)));
        }
        self.space = false;
    }

    fn begin_item(&mut self) {
        self.marker = None;
        self.require_breaks(1);
        if self.row.is_some() {
            return;
        }
        let marker = match self.lists.last_mut() {
            Some(Some(number)) => {
                *number = number.saturating_add(1);
                format!("{}. ", *number - 1)
            }
            _ => "- ".to_owned(),
        };
        self.marker = Some(marker);
    }

    /// Closes an emphasis mark. A mark without text is removed.
    fn close_mark(&mut self, mark: &str) {
        let Some((_, start)) = self.marks.pop_if(|(open, _)| *open == mark) else {
            return;
        };
        if self.out.len() == start {
            self.out.truncate(start - mark.len());
        } else {
            // A pending space or line break is written after the mark.
            self.out.push_str(mark);
        }
    }

    fn write_image(&mut self, attributes: &str) {
        let alt = attribute_value(attributes, "alt").unwrap_or_default();
        let alt = alt.split_whitespace().collect::<Vec<_>>().join(" ");
        let source = self.link_attribute(attributes, "src");
        if let Some(source) = source.filter(|_| !alt.is_empty() && !self.preformatted) {
            self.write(&format!("![{alt}]({source})"));
        }
    }

    /// Writes the open link around its text. Drops a link without text.
    fn end_link(&mut self) {
        let Some((Some(start), link)) = self.link.take() else {
            return;
        };
        let Some(text) = self.out.get(start..).map(str::trim) else {
            return;
        };
        if !text.is_empty() && !text.contains("\n\n") {
            self.out.insert(start, '[');
            self.out.push_str("](");
            self.out.push_str(&link);
            self.out.push(')');
        }
    }

    /// Ends the open table row. Writes the delimiter row after the first row.
    fn end_row(&mut self) {
        let Some(cells) = self.row.take().filter(|cells| *cells > 0) else {
            return;
        };
        self.out.push_str(" |");
        self.space = false;
        if std::mem::take(&mut self.is_first_row) {
            self.breaks = 1;
            self.write(&format!("|{}", "---|".repeat(cells)));
        }
        self.breaks = 1;
    }

    /// Returns the absolute URL in an attribute. Returns `None` for fragments and for schemes such as `javascript:`.
    fn link_attribute(&self, attributes: &str, name: &str) -> Option<String> {
        let link = attribute_value(attributes, name)?;
        let link = link.trim();
        if link.is_empty() || link.starts_with('#') {
            return None;
        }
        let url = self.base?.join(link).ok()?;
        matches!(url.scheme(), "http" | "https" | "mailto" | "ftp").then(|| url.to_string())
    }

    fn finish(mut self) -> String {
        if self.preformatted {
            self.close_tag("pre");
        }
        let text = self.out.trim_end();
        match self.title {
            Some(title) if !title.is_empty() && !self.has_heading => {
                format!("# {title}\n\n{text}").trim_end().to_owned()
            }
            _ => text.to_owned(),
        }
    }
}

/// Returns the Markdown mark of an element.
fn emphasis_mark(name: &str) -> Option<&'static str> {
    match name {
        "code" | "kbd" | "samp" | "tt" => Some("`"),
        "strong" | "b" => Some("**"),
        "em" | "i" => Some("*"),
        _ => None,
    }
}

/// Returns the number of line breaks before and after an element.
fn block_breaks(name: &str) -> usize {
    match name {
        "dt" | "dd" | "summary" | "li" => 1,
        "p" | "div" | "section" | "article" | "main" | "header" | "footer" | "nav" | "aside"
        | "figure" | "figcaption" | "form" | "fieldset" | "address" | "details" | "dl" | "body"
        | "html" | "center" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => 2,
        _ => 0,
    }
}

/// Returns the language of a code block from classes such as `language-rust`.
fn code_language(attributes: &str) -> Option<String> {
    let classes = attribute_value(attributes, "class")?;
    let language = |class: &'_ str| -> Option<String> {
        let name = class
            .strip_prefix("language-")
            .or(class.strip_prefix("lang-"));
        name.map(str::to_owned)
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'-';
    let name = classes.split_whitespace().find_map(language)?;
    name.bytes().all(is_plain).then_some(name)
}
