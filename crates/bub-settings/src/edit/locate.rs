//! Finds the positions of keys and values in the text of a config file.

use granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span, StructureStyle};

use crate::node::Atom;
use crate::yaml;

/// A value in the text, from its first byte to the byte after its last.
pub(super) struct ValueSpan {
    pub(super) shape: ValueShape,
    pub(super) start: usize,
    pub(super) end: usize,
}

pub(super) enum ValueShape {
    /// `key:` followed by nothing, `~` or `null`.
    Null,
    /// A single value or a list.
    Other,
    Map {
        is_flow: bool,
        /// Indentation of the keys.
        column: usize,
        entries: Vec<KeySpan>,
    },
}

/// A key with its value.
pub(super) struct KeySpan {
    pub(super) key: String,
    pub(super) start: usize,
    /// Byte offset after the colon.
    pub(super) colon: usize,
    pub(super) value: ValueSpan,
}

impl ValueSpan {
    /// Returns the entry with this key. If the key occurs twice, returns the last one, which is
    /// effective.
    pub(super) fn entry(&self, key: &str) -> Option<&KeySpan> {
        self.entries().iter().rev().find(|entry| entry.key == key)
    }

    pub(super) fn entries(&self) -> &[KeySpan] {
        match &self.shape {
            ValueShape::Map { entries, .. } => entries,
            _ => &[],
        }
    }

    pub(super) fn is_flow(&self) -> bool {
        matches!(self.shape, ValueShape::Map { is_flow: true, .. })
    }

    /// Returns the indentation of the keys of a map.
    pub(super) fn column(&self) -> usize {
        match self.shape {
            ValueShape::Map { column, .. } => column,
            _ => 0,
        }
    }
}

/// Returns the positions of all keys and values in a document; `None` if they cannot be determined.
pub(super) fn locate_values(text: &str) -> Option<ValueSpan> {
    let mut options = Options::default();
    options.emit_comments = false;
    let body = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut walker = Walker {
        events: Parser::new_from_str_with_options(body, options),
        text,
        skipped: text.len() - body.len(),
    };
    loop {
        match walker.next_event()? {
            (Event::StreamStart | Event::DocumentStart(..), _) => {}
            (Event::StreamEnd | Event::DocumentEnd, _) => {
                return Some(ValueSpan {
                    shape: ValueShape::Null,
                    start: text.len(),
                    end: text.len(),
                });
            }
            item => return walker.value_span(item),
        }
    }
}

struct Walker<'t, P> {
    events: P,
    text: &'t str,
    /// Length of a byte order mark, which the parser does not see.
    skipped: usize,
}

impl<'i, P: Iterator<Item = Result<(Event<'i>, Span), ScanError>>> Walker<'_, P> {
    fn next_event(&mut self) -> Option<(Event<'i>, Span)> {
        self.events.next()?.ok()
    }

    fn byte_range(&self, span: &Span) -> Option<(usize, usize)> {
        let start = span.start.byte_offset()? + self.skipped;
        let end = span.end.byte_offset()? + self.skipped;
        // The parser's span of multi-line text extends to the next token.
        let content = self.text.get(start..end)?.trim_end().len();
        Some((start, start + content))
    }

    fn value_span(&mut self, (event, span): (Event<'i>, Span)) -> Option<ValueSpan> {
        let (start, mut end) = self.byte_range(&span)?;
        let shape = match event {
            Event::Scalar(text, ScalarStyle::Plain, ..)
                if yaml::plain_scalar_atom(&text) == Atom::Null =>
            {
                ValueShape::Null
            }
            Event::Scalar(..) | Event::Alias(_) => ValueShape::Other,
            Event::SequenceStart(style, ..) => loop {
                match self.next_event()? {
                    (Event::SequenceEnd, span) => {
                        if style == StructureStyle::Flow {
                            end = self.byte_range(&span)?.1;
                        }
                        break ValueShape::Other;
                    }
                    item => end = end.max(self.value_span(item)?.end),
                }
            },
            Event::MappingStart(style, ..) => {
                let (mut entries, mut column) = (Vec::new(), 0);
                let is_flow = style == StructureStyle::Flow;
                loop {
                    match self.next_event()? {
                        (Event::MappingEnd, span) => {
                            if is_flow {
                                end = self.byte_range(&span)?.1;
                            }
                            break;
                        }
                        (Event::Scalar(key, ..), span) => {
                            if entries.is_empty() {
                                column = span.start.col();
                            }
                            let entry = self.key_span(key.into_owned(), &span)?;
                            end = entry.value.end;
                            entries.push(entry);
                        }
                        _ => return None,
                    }
                }
                ValueShape::Map {
                    is_flow,
                    column,
                    entries,
                }
            }
            _ => return None,
        };
        Some(ValueSpan { shape, start, end })
    }

    /// Reads the value of a key that was read.
    fn key_span(&mut self, key: String, span: &Span) -> Option<KeySpan> {
        let (start, key_end) = self.byte_range(span)?;
        let (gap, _) = self.text.get(key_end..)?.split_once(':')?;
        if !gap.trim().is_empty() {
            return None;
        }
        let colon = key_end + gap.len() + 1;
        let value = self.next_event()?;
        let mut value = self.value_span(value)?;
        // The parser reports an arbitrary position for a missing value.
        if matches!(value.shape, ValueShape::Null) && value.start >= value.end {
            (value.start, value.end) = (colon, colon);
        }
        value.end = value.end.max(colon);
        Some(KeySpan {
            key,
            start,
            colon,
            value,
        })
    }
}
