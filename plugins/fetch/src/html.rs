//! Splits HTML into tags and text in one pass. It accepts any input, builds no tree, and takes time linear in the size
//! of the page.
//!
//! There is no crate here on purpose: `htmd` builds a tree and recurses over it, so a hostile page could overflow the
//! stack, and the tables of a tokenizer such as `html5gum` are 300 KB in the program.

use pulldown_cmark::{Event, Parser};

/// A token of a page.
#[derive(Debug, PartialEq)]
pub(crate) enum Token<'a> {
    /// Text in which entities are not decoded.
    Text(&'a str),
    /// An opening tag: the name in lower case, and the unparsed attributes.
    Open(String, &'a str),
    /// A closing tag: the name in lower case.
    Close(String),
}

/// The longest entity is `&CounterClockwiseContourIntegral;`.
const MAX_ENTITY_BYTES: usize = 33;

/// Elements whose content is not markup.
const RAW_TEXT_ELEMENTS: [&str; 5] = ["script", "style", "textarea", "title", "xmp"];

/// Splits a page into tokens.
pub(crate) struct HtmlTokenizer<'a> {
    /// The part of the page that is not read yet.
    pub(crate) rest: &'a str,
    /// The name of the open raw text element, such as `script`. Everything up to its closing tag is text.
    pub(crate) raw: Option<String>,
}

impl<'a> HtmlTokenizer<'a> {
    /// Consumes `length` bytes and returns them.
    fn advance(&mut self, length: usize) -> &'a str {
        let (consumed, rest) = self
            .rest
            .split_at_checked(length)
            .unwrap_or((self.rest, ""));
        self.rest = rest;
        consumed
    }

    /// Skips up to and including `end`, or to the end of the page.
    fn skip_past(&mut self, end: &str) {
        let found = self.rest.find(end).map(|at| at + end.len());
        self.advance(found.unwrap_or(self.rest.len()));
    }

    /// Returns the content of a tag. If the page ends within the tag, drops the rest and returns `None`.
    fn read_tag(&mut self) -> Option<&'a str> {
        let mut quote = None;
        let mut after_equals = false;
        let end = self.rest.bytes().position(|byte| {
            match quote {
                Some(open) if open == byte => quote = None,
                None if byte == b'>' => return true,
                None if after_equals && matches!(byte, b'"' | b'\'') => quote = Some(byte),
                _ => {}
            }
            if !byte.is_ascii_whitespace() {
                after_equals = byte == b'=' && quote.is_none();
            }
            false
        });
        let Some(end) = end else {
            self.rest = "";
            return None;
        };
        let inside = self.advance(end);
        self.advance(1);
        Some(inside)
    }

    /// Returns the content of a raw text element.
    fn read_raw_text(&mut self, name: &str) -> &'a str {
        let closes = |at: &usize| {
            let after = self.rest.as_bytes().get(at + 2..at + 2 + name.len());
            self.rest.as_bytes().get(at + 1) == Some(&b'/')
                && after.is_some_and(|after| after.eq_ignore_ascii_case(name.as_bytes()))
        };
        let end = memchr::memchr_iter(b'<', self.rest.as_bytes()).find(closes);
        self.advance(end.unwrap_or(self.rest.len()))
    }
}

impl<'a> Iterator for HtmlTokenizer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        if let Some(name) = self.raw.take() {
            return Some(Token::Text(self.read_raw_text(&name)));
        }
        loop {
            let mut after = self.rest.strip_prefix('<').map(|after| after.bytes());
            let next_byte = after.as_mut().and_then(Iterator::next);
            match next_byte {
                Some(b'!') if self.rest.starts_with("<!--") => {
                    self.advance(4);
                    self.skip_past("-->");
                }
                Some(b'!') if self.rest.starts_with("<![CDATA[") => {
                    self.advance(9);
                    let length = self.rest.find("]]>").unwrap_or(self.rest.len());
                    return Some(Token::Text(self.advance(length)));
                }
                Some(b'!' | b'?') => self.skip_past(">"),
                Some(b'/') => {
                    self.advance(2);
                    return Some(Token::Close(split_tag_name(self.read_tag()?).0));
                }
                Some(byte) if byte.is_ascii_alphabetic() => {
                    self.advance(1);
                    let (name, attributes) = split_tag_name(self.read_tag()?);
                    if RAW_TEXT_ELEMENTS.contains(&name.as_str()) && !attributes.ends_with('/') {
                        self.raw = Some(name.clone());
                    }
                    return Some(Token::Open(name, attributes));
                }
                _ if self.rest.is_empty() => return None,
                _ => {
                    let start = usize::from(self.rest.starts_with('<'));
                    let bytes = self.rest.as_bytes().get(start..).unwrap_or_default();
                    let length =
                        memchr::memchr(b'<', bytes).map_or(self.rest.len(), |at| at + start);
                    return Some(Token::Text(self.advance(length)));
                }
            }
        }
    }
}

/// Splits the content of a tag into its name in lower case and its attributes.
fn split_tag_name(tag: &str) -> (String, &str) {
    let end = tag
        .find(|c: char| c.is_ascii_whitespace() || c == '/')
        .unwrap_or(tag.len());
    let (name, attributes) = tag.split_at_checked(end).unwrap_or((tag, ""));
    (name.to_ascii_lowercase(), attributes)
}

/// Returns the value of an attribute, with entities decoded.
pub(crate) fn attribute_value(attributes: &str, attribute_name: &str) -> Option<String> {
    let mut rest = attributes;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '/');
        let end = rest.find(|c: char| c.is_ascii_whitespace() || c == '=')?;
        let (name, after) = rest.split_at_checked(end)?;
        let Some(value) = after.trim_start().strip_prefix('=').map(str::trim_start) else {
            rest = after;
            continue;
        };
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
        let inside = value.get(quote.map_or(0, char::len_utf8)..)?;
        let end = match quote {
            Some(quote) => inside.find(quote),
            None => inside.find(|c: char| c.is_ascii_whitespace()),
        };
        let length = end.unwrap_or(inside.len());
        if name.eq_ignore_ascii_case(attribute_name) {
            return Some(decode_entities(inside.get(..length)?));
        }
        rest = inside.get(length + usize::from(quote.is_some())..)?;
    }
}

/// Replaces HTML entities by their characters. Unknown entities stay.
pub(crate) fn decode_entities(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'&', rest.as_bytes()) {
        let (before, from) = rest.split_at_checked(at).unwrap_or((rest, ""));
        plain.push_str(before);
        // The limit keeps pages full of ampersands cheap.
        let end = from
            .bytes()
            .take(MAX_ENTITY_BYTES)
            .position(|byte| byte == b';');
        let (entity, after) = from.split_at(end.map_or(1, |end| end + 1));
        if let Some(text) = entity_text(entity) {
            plain.push_str(&text);
            rest = after;
        } else {
            plain.push('&');
            rest = from.get(1..).unwrap_or_default();
        }
    }
    plain.push_str(rest);
    plain
}

/// Returns the text of an entity such as `&amp;`, or `None` if it is unknown.
///
/// Entities are the same in HTML and Markdown, so the Markdown parser decodes them: it has the complete table, and other
/// parts of bub need it anyway.
fn entity_text(entity: &str) -> Option<String> {
    let name = entity.strip_prefix('&')?.strip_suffix(';')?;
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'#')
    {
        return None;
    }
    let texts = Parser::new(entity).filter_map(|event| match event {
        Event::Text(text) => Some(text.into_string()),
        _ => None,
    });
    let text: String = texts.collect();
    (text != entity).then(|| text.replace('\u{a0}', " "))
}
