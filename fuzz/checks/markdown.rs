//! Any text gives the same lines however it is split; they fit and are safe. The first bytes select
//! splits and width.

use bub_terminal::{
    Line, Style,
    markdown::{Markdown, MarkdownStyle},
    sanitize::is_unsafe_char,
};

pub(crate) fn check(input: &[u8]) {
    let [size, width, text @ ..] = input else {
        return;
    };
    let (size, width) = (usize::from(*size).max(1), usize::from(*width % 64) + 10);
    let text = String::from_utf8_lossy(text);
    let mut whole = Markdown::new(width, MarkdownStyle::Styled);
    let mut expected = whole.push(&text);
    expected.extend(whole.finish());

    let mut pieces = Markdown::new(width, MarkdownStyle::Styled);
    let mut lines: Vec<Line> = Vec::new();
    let mut rest = text.as_ref();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.ceil_char_boundary(size.min(rest.len())));
        lines.extend(pieces.push(piece));
        assert!(
            pieces
                .unfinished_tail(8)
                .iter()
                .all(|line| line.columns() <= width)
        );
        rest = after;
    }
    lines.extend(pieces.finish());
    assert_eq!(lines, expected);
    for line in &lines {
        // Code and its language are not wrapped.
        let broken = line
            .spans
            .iter()
            .any(|span| span.style != Style::CYAN && span.style != Style::DIM);
        assert!(!broken || line.columns() <= width, "{line:?}");
        assert!(!line.text().chars().any(is_unsafe_char), "{line:?}");
    }
}
