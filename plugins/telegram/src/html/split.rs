//! A document cut into parts: at paragraphs, else lines, else words, else between characters as people see them.

use unicode_segmentation::UnicodeSegmentation as _;

use super::{
    MAX_ENTITIES, MAX_MESSAGE_UNITS, MessagePart,
    document::StyledText,
    style::{HtmlStyle, escape, units},
};

/// A longer cluster is no character that anybody could read: it may be cut.
const MAX_CLUSTER_BYTES: usize = 256;

/// What follows a place at which a text can be cut.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BreakKind {
    Word,
    Line,
    Paragraph,
}

/// The parts. Those in which nothing can be seen are left out.
pub(super) fn split(document: &StyledText) -> Vec<MessagePart> {
    let mut parts = Vec::new();
    let mut start = skip_space(document, 0);
    while start < document.text.len() {
        let mut builder = PartBuilder::new(document, start);
        let end = builder.fill();
        let plain = document.text.get(start..end).unwrap_or_default();
        if plain.chars().any(is_visible) {
            parts.push(MessagePart {
                html: builder.html,
                plain: plain.to_owned(),
            });
        }
        start = skip_space(document, end);
    }
    parts
}

/// A place in the part that is being built.
#[derive(Clone, Copy)]
struct SplitPoint {
    /// In the text.
    at: usize,
    /// In the HTML.
    html: usize,
    units: usize,
    /// How many tags were opened.
    entities: usize,
    style: HtmlStyle,
    /// The units of the tags that close the style.
    closing: usize,
}

struct PartBuilder<'a> {
    document: &'a StyledText,
    html: String,
    here: SplitPoint,
    /// The last places before a space, a line break, a paragraph.
    breaks: [Option<SplitPoint>; 3],
}

impl<'a> PartBuilder<'a> {
    fn new(document: &'a StyledText, at: usize) -> Self {
        let here = SplitPoint {
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
            here,
            breaks: [None; 3],
        }
    }

    /// Takes as much text as fits; the byte at which the next part goes on.
    fn fill(&mut self) -> usize {
        let text = self.document.text.get(self.here.at..).unwrap_or_default();
        let mut span = self
            .document
            .spans
            .partition_point(|(start, _)| *start <= self.here.at);
        let mut style = span_style(self.document, span);
        // A cut before the first character would be none.
        let mut in_space = true;
        for piece in pieces(text) {
            while self
                .document
                .spans
                .get(span)
                .is_some_and(|(start, _)| *start <= self.here.at)
            {
                span += 1;
                style = span_style(self.document, span);
            }
            let space = piece.chars().all(is_space);
            if space && !in_space {
                self.note_break();
            }
            if !self.push(piece, style) {
                let cut = self.cut(space);
                return self.finish(cut);
            }
            in_space = space;
        }
        let [word, ..] = self.breaks;
        self.finish(word.filter(|_| in_space).unwrap_or(self.here))
    }

    /// Appends a piece, unless it does not fit.
    fn push(&mut self, piece: &str, style: HtmlStyle) -> bool {
        let before = self.here;
        if style != before.style {
            let names = &self.document.names;
            let mut closing = String::new();
            style.write_transition(HtmlStyle::default(), names, &mut closing);
            let opened = before.style.write_transition(style, names, &mut self.html);
            let entities = before.entities + opened;
            self.here = SplitPoint {
                style,
                closing: closing.len(),
                entities,
                ..before
            };
        }
        escape(piece, &mut self.html);
        self.here.at += piece.len();
        self.here.units += units(self.html.get(before.html..).unwrap_or_default());
        self.here.html = self.html.len();
        let fits = self.here.units + self.here.closing <= MAX_MESSAGE_UNITS
            && self.here.entities <= MAX_ENTITIES;
        if !fits {
            self.here = before;
        }
        fits
    }

    /// Notes that the text can be cut here, before a space.
    fn note_break(&mut self) {
        let rest = self.document.text.get(self.here.at..).unwrap_or_default();
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
        for (index, place) in self.breaks.iter_mut().enumerate() {
            if index <= kind as usize {
                *place = Some(self.here);
            }
        }
    }

    /// Where to cut what does not fit: as late as makes sense, so that parts are neither torn nor tiny.
    fn cut(&self, in_space: bool) -> SplitPoint {
        let [word, line, paragraph] = self.breaks;
        let at_least = |units: usize| move |place: &SplitPoint| place.units >= units;
        let late = [paragraph, line, word]
            .into_iter()
            .flatten()
            .find(at_least(self.here.units / 2));
        let early = word.filter(|place| in_space || place.units >= self.here.units / 4);
        late.or(early).unwrap_or(self.here)
    }

    /// Ends the part at a place.
    fn finish(&mut self, end: SplitPoint) -> usize {
        self.html.truncate(end.html);
        end.style
            .write_transition(HtmlStyle::default(), &self.document.names, &mut self.html);
        end.at
    }
}

/// The style of the span before `next`.
fn span_style(document: &StyledText, next: usize) -> HtmlStyle {
    let span = next
        .checked_sub(1)
        .and_then(|index| document.spans.get(index));
    span.map_or_else(HtmlStyle::default, |(_, style)| *style)
}

/// A text as the characters that people see; what is too long to be one is cut into pieces.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let length = match rest.as_bytes() {
            // Nothing joins two of these, and most texts have no others. (There is no carriage return.)
            [first, next, ..] if first.is_ascii() && next.is_ascii() => 1,
            _ => rest
                .get(..rest.floor_char_boundary(MAX_CLUSTER_BYTES))?
                .graphemes(true)
                .next()?
                .len(),
        };
        let (piece, left) = rest.split_at_checked(length)?;
        rest = left;
        Some(piece)
    })
}

/// Where the next part starts: after the space, but with the indentation of its first line if that is code.
fn skip_space(document: &StyledText, from: usize) -> usize {
    let rest = document.text.get(from..).unwrap_or_default();
    let ink = from
        + rest
            .find(|character| !is_space(character))
            .unwrap_or(rest.len());
    let space = document.text.get(from..ink).unwrap_or_default();
    let line = space
        .rfind('\n')
        .map_or(if from == 0 { 0 } else { ink }, |index| from + index + 1);
    let style = span_style(
        document,
        document.spans.partition_point(|(start, _)| *start <= line),
    );
    if style.is_block() && ink < document.text.len() {
        line
    } else {
        ink
    }
}

/// A space at which a line can be cut.
fn is_space(character: char) -> bool {
    character.is_whitespace() && !matches!(character, '\u{a0}' | '\u{2007}' | '\u{202f}')
}

/// Whether a character leaves a mark: the platform refuses messages without any.
fn is_visible(character: char) -> bool {
    let invisible = character.is_whitespace()
        || character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}'
        );
    !invisible
}
