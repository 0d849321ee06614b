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
    Nothing,
    Single,
    List,
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
    /// Position after the colon.
    pub(super) colon: usize,
    pub(super) value: ValueSpan,
}

impl ValueSpan {
    /// Returns the entry with this key. If the key occurs twice, returns the last one, which is
    /// effective.
    pub(super) fn entry(&self, key: &str) -> Option<&KeySpan> {
        match &self.shape {
            ValueShape::Map { entries, .. } => entries.iter().rev().find(|entry| entry.key == key),
            _ => None,
        }
    }

    pub(super) fn len(&self) -> usize {
        if let ValueShape::Map { entries, .. } = &self.shape {
            entries.len()
        } else {
            0
        }
    }

    pub(super) fn is_flow(&self) -> bool {
        matches!(self.shape, ValueShape::Map { is_flow: true, .. })
    }
}

/// Returns the positions of all keys and values in a document; `None` if they cannot be determined.
pub(super) fn locate_values(text: &str) -> Option<ValueSpan> {
    let mut options = Options::default();
    options.emit_comments = false;
    let skipped = if text.starts_with('\u{feff}') {
        '\u{feff}'.len_utf8()
    } else {
        0
    };
    let body = text.get(skipped..)?;
    let mut walker = Walker {
        events: Parser::new_from_str_with_options(body, options),
        text,
        skipped,
    };
    loop {
        match walker.next_event()? {
            (Event::StreamStart | Event::DocumentStart(..), _) => {}
            (Event::StreamEnd | Event::DocumentEnd, _) => {
                return Some(ValueSpan {
                    shape: ValueShape::Nothing,
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
        let (start, end) = self.byte_range(&span)?;
        match event {
            Event::Scalar(text, style, ..) => {
                let is_null =
                    style == ScalarStyle::Plain && yaml::plain_scalar_atom(&text) == Atom::Null;
                Some(ValueSpan {
                    shape: if is_null {
                        ValueShape::Nothing
                    } else {
                        ValueShape::Single
                    },
                    start,
                    end,
                })
            }
            Event::Alias(_) => Some(ValueSpan {
                shape: ValueShape::Single,
                start,
                end,
            }),
            Event::SequenceStart(style, ..) => {
                let mut last = end;
                loop {
                    match self.next_event()? {
                        (Event::SequenceEnd, span) => {
                            let close = self.byte_range(&span)?.1;
                            let end = if style == StructureStyle::Flow {
                                close
                            } else {
                                last
                            };
                            return Some(ValueSpan {
                                shape: ValueShape::List,
                                start,
                                end,
                            });
                        }
                        item => last = last.max(self.value_span(item)?.end),
                    }
                }
            }
            Event::MappingStart(style, ..) => self.map_span(start, style == StructureStyle::Flow),
            _ => None,
        }
    }

    fn map_span(&mut self, start: usize, is_flow: bool) -> Option<ValueSpan> {
        let (mut entries, mut column) = (Vec::<KeySpan>::new(), 0);
        loop {
            let (key, span) = match self.next_event()? {
                (Event::MappingEnd, span) => {
                    let last = entries
                        .last()
                        .map_or(start, |entry| entry.value.end.max(entry.colon));
                    let end = if is_flow {
                        self.byte_range(&span)?.1
                    } else {
                        last
                    };
                    return Some(ValueSpan {
                        shape: ValueShape::Map {
                            is_flow,
                            column,
                            entries,
                        },
                        start,
                        end,
                    });
                }
                (Event::Scalar(key, ..), span) => (key.into_owned(), span),
                _ => return None,
            };
            let (start, key_end) = self.byte_range(&span)?;
            if entries.is_empty() {
                column = span.start.col();
            }
            let gap = self.text.get(key_end..)?.find(':')?;
            self.text
                .get(key_end..key_end + gap)
                .filter(|gap| gap.trim().is_empty())?;
            let colon = key_end + gap + 1;
            let value = self.next_event()?;
            let mut value = self.value_span(value)?;
            // The parser reports an arbitrary position for a missing value.
            if matches!(value.shape, ValueShape::Nothing) && value.start >= value.end {
                (value.start, value.end) = (colon, colon);
            }
            entries.push(KeySpan {
                key,
                start,
                colon,
                value,
            });
        }
    }
}
