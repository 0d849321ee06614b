//! Splits a document into parts: between paragraphs, else lines, else words, else grapheme clusters.

use unicode_segmentation::UnicodeSegmentation as _;

use super::{
    MAX_ENTITIES, MAX_MESSAGE_UNITS, MessagePart,
    document::StyledText,
    style::{HtmlStyle, push_escaped, utf16_length},
};

/// Maximum size of a grapheme cluster that is kept together. Longer clusters are not readable and may be split.
const MAX_CLUSTER_BYTES: usize = 256;

/// What starts after a possible split point.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BreakKind {
    Word,
    Line,
    Paragraph,
}

/// Splits a document into parts. Parts without visible characters are omitted.
pub(super) fn split_document(document: &StyledText) -> Vec<MessagePart> {
    let mut parts = Vec::new();
    let mut start = next_part_start(document, 0);
    while start < document.text.len() {
        let mut builder = PartBuilder::new(document, start);
        let end = builder.fill_part();
        let plain = document.text.get(start..end).unwrap_or_default();
        if plain.chars().any(is_visible) {
            parts.push(MessagePart {
                html: builder.html,
                plain: plain.to_owned(),
            });
        }
        start = next_part_start(document, end);
    }
    parts
}

/// A position at which the current part can end, and the size of the part up to there.
#[derive(Clone, Copy)]
struct SplitPoint {
    /// Byte offset in the text of the document.
    at: usize,
    /// Length of the HTML of the part in bytes.
    html: usize,
    /// Length of the HTML of the part in UTF-16 units.
    units: usize,
    /// Number of tags that the part has opened so far, which must not exceed [`MAX_ENTITIES`].
    entities: usize,
    style: HtmlStyle,
    /// Length in UTF-16 units of the tags that close `style`.
    closing: usize,
}

struct PartBuilder<'a> {
    document: &'a StyledText,
    html: String,
    position: SplitPoint,
    /// The last possible split points before a word, a line, and a paragraph.
    breaks: [Option<SplitPoint>; 3],
}

impl<'a> PartBuilder<'a> {
    fn new(document: &'a StyledText, at: usize) -> Self {
        let position = SplitPoint {
            at,
            html: 0,
            units: 0,
            entities: 0,
            style: HtmlStyle::default(),
            closing: 0,
        };
        Self {
            document,
            html: String::new(),
            position,
            breaks: [None; 3],
        }
    }

    /// Adds as much text as fits. Returns the byte offset at which the next part starts.
    fn fill_part(&mut self) -> usize {
        let text = self
            .document
            .text
            .get(self.position.at..)
            .unwrap_or_default();
        let mut span = self
            .document
            .spans
            .partition_point(|(start, _)| *start <= self.position.at);
        let mut style = style_before_span(self.document, span);
        // Do not split before the first character.
        let mut in_space = true;
        for cluster in grapheme_clusters(text) {
            while self
                .document
                .spans
                .get(span)
                .is_some_and(|(start, _)| *start <= self.position.at)
            {
                span += 1;
                style = style_before_span(self.document, span);
            }
            let space = cluster.chars().all(is_space);
            if space && !in_space {
                self.record_break();
            }
            if !self.push_cluster(cluster, style) {
                let split_point = self.choose_split_point(space);
                return self.finish_part(split_point);
            }
            in_space = space;
        }
        let [word, ..] = self.breaks;
        self.finish_part(word.filter(|_| in_space).unwrap_or(self.position))
    }

    /// Appends a grapheme cluster to the part if it fits. Returns whether it fits.
    fn push_cluster(&mut self, cluster: &str, style: HtmlStyle) -> bool {
        let before = self.position;
        if style != before.style {
            let attributes = &self.document.attributes;
            let mut closing = String::new();
            style.write_transition(HtmlStyle::default(), attributes, &mut closing);
            let opened = before
                .style
                .write_transition(style, attributes, &mut self.html);
            let entities = before.entities + opened;
            self.position = SplitPoint {
                style,
                closing: closing.len(),
                entities,
                ..before
            };
        }
        push_escaped(cluster, &mut self.html);
        self.position.at += cluster.len();
        self.position.units += utf16_length(self.html.get(before.html..).unwrap_or_default());
        self.position.html = self.html.len();
        let fits = self.position.units + self.position.closing <= MAX_MESSAGE_UNITS
            && self.position.entities <= MAX_ENTITIES;
        if !fits {
            self.position = before;
        }
        fits
    }

    /// Records the current position, before a space, as a possible split point.
    fn record_break(&mut self) {
        let rest = self
            .document
            .text
            .get(self.position.at..)
            .unwrap_or_default();
        let mut kind = BreakKind::Word;
        for character in rest.chars().take_while(|character| is_space(*character)) {
            if character == '\n' {
                kind = if kind == BreakKind::Word {
                    BreakKind::Line
                } else {
                    BreakKind::Paragraph
                };
            }
        }
        for (index, point) in self.breaks.iter_mut().enumerate() {
            if index <= kind as usize {
                *point = Some(self.position);
            }
        }
    }

    /// Returns the split point for text that does not fit. Prefers the last paragraph, then the last line, then the
    /// last word, if the part is at least half full there.
    fn choose_split_point(&self, in_space: bool) -> SplitPoint {
        let [word, line, paragraph] = self.breaks;
        let at_least = |units: usize| move |point: &SplitPoint| point.units >= units;
        let late = [paragraph, line, word]
            .into_iter()
            .flatten()
            .find(at_least(self.position.units / 2));
        let early = word.filter(|point| in_space || point.units >= self.position.units / 4);
        late.or(early).unwrap_or(self.position)
    }

    /// Ends the part at the split point `end`. Returns the byte offset of `end` in the text of the document.
    fn finish_part(&mut self, end: SplitPoint) -> usize {
        self.html.truncate(end.html);
        end.style.write_transition(
            HtmlStyle::default(),
            &self.document.attributes,
            &mut self.html,
        );
        end.at
    }
}

/// Returns the style of the span before the span with the index `next`.
fn style_before_span(document: &StyledText, next: usize) -> HtmlStyle {
    let span = next
        .checked_sub(1)
        .and_then(|index| document.spans.get(index));
    span.map_or_else(HtmlStyle::default, |(_, style)| *style)
}

/// Splits a text into grapheme clusters. Clusters that are too long are split.
fn grapheme_clusters(text: &str) -> impl Iterator<Item = &str> {
    let mut remaining = text;
    std::iter::from_fn(move || {
        let length = match remaining.as_bytes() {
            // Fast path: two ASCII characters never form a cluster. The text contains no carriage returns.
            [first, next, ..] if first.is_ascii() && next.is_ascii() => 1,
            _ => remaining
                .get(..remaining.floor_char_boundary(MAX_CLUSTER_BYTES))?
                .graphemes(true)
                .next()?
                .len(),
        };
        let (cluster, tail) = remaining.split_at_checked(length)?;
        remaining = tail;
        Some(cluster)
    })
}

/// Returns the start of the next part: after whitespace, but before the indentation of a code line.
fn next_part_start(document: &StyledText, from: usize) -> usize {
    let rest = document.text.get(from..).unwrap_or_default();
    let visible_start = from
        + rest
            .find(|character| !is_space(character))
            .unwrap_or(rest.len());
    let space = document.text.get(from..visible_start).unwrap_or_default();
    let line = space
        .rfind('\n')
        .map_or(if from == 0 { 0 } else { visible_start }, |index| {
            from + index + 1
        });
    let style = style_before_span(
        document,
        document.spans.partition_point(|(start, _)| *start <= line),
    );
    if style.is_block() && visible_start < document.text.len() {
        line
    } else {
        visible_start
    }
}

/// Whether a text can be split at this character: whitespace, except non-breaking spaces.
fn is_space(character: char) -> bool {
    character.is_whitespace() && !matches!(character, '\u{a0}' | '\u{2007}' | '\u{202f}')
}

/// Whether a character is visible. The platform rejects messages without visible characters.
fn is_visible(character: char) -> bool {
    let is_invisible = character.is_whitespace()
        || character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}'
        );
    !is_invisible
}
