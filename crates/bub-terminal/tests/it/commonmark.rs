//! The examples of `CommonMark`: no word is lost, and the lines do not depend on where the stream is split.
//!
//! `BUB_FIXTURES` is the directory that contains `markdown/commonmark-0.31.2.json`. Without it, the tests are ignored.

use bub_terminal::{
    Line,
    markdown::{Markdown, MarkdownStyle},
};
use bub_testkit::{fixtures, needs_fixtures};

/// Returns the number, the source and the HTML of each example.
fn examples() -> Vec<(u64, String, String)> {
    let path = fixtures("markdown").join("commonmark-0.31.2.json");
    let examples: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let examples = examples.as_array().unwrap().iter();
    examples
        .map(|case| {
            (
                case["example"].as_u64().unwrap(),
                text(&case["markdown"]),
                text(&case["html"]),
            )
        })
        .collect()
}

fn lines(source: &str, width: usize, style: MarkdownStyle) -> Vec<Line> {
    let mut markdown = Markdown::new(width, style);
    let mut lines = markdown.push(source);
    lines.extend(markdown.finish());
    lines
}

/// Lays out the source in separate deltas, split at these offsets.
fn cut_at(source: &str, width: usize, cuts: &[usize]) -> Vec<Line> {
    let mut markdown = Markdown::new(width, MarkdownStyle::Styled);
    let mut lines = Vec::new();
    let mut start = 0;
    let mut cuts: Vec<usize> = cuts
        .iter()
        .map(|cut| source.floor_char_boundary(*cut))
        .collect();
    cuts.sort_unstable();
    for cut in cuts.into_iter().chain([source.len()]) {
        lines.extend(markdown.push(&source[start..cut]));
        start = cut;
        for line in markdown.unfinished_tail(5) {
            assert!(
                line.columns() <= width,
                "preview of {source:?} has {line:?}"
            );
        }
    }
    lines.extend(markdown.finish());
    lines
}

/// Returns the words that a browser would show.
fn words_of_html(html: &str) -> Vec<String> {
    let mut text = String::new();
    let mut in_tag = false;
    for character in html.chars() {
        match character {
            '<' => in_tag = true,
            '>' if in_tag => {
                in_tag = false;
                text.push(' ');
            }
            _ if in_tag => {}
            other => text.push(other),
        }
    }
    let text = text
        .replace("&quot;", " ")
        .replace("&amp;", " ")
        .replace("&lt;", " ")
        .replace("&gt;", " ");
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn letters(lines: &[Line]) -> String {
    lines.iter().map(|line| letters_of(&line.text())).collect()
}

fn letters_of(text: &str) -> String {
    text.chars()
        .filter(|character| character.is_alphanumeric())
        .collect()
}

#[needs_fixtures]
#[test]
fn no_example_of_commonmark_loses_a_word() {
    for (number, source, html) in examples() {
        for (width, style) in [
            (10, MarkdownStyle::Styled),
            (40, MarkdownStyle::Styled),
            (80, MarkdownStyle::Styled),
            (40, MarkdownStyle::Plain),
        ] {
            let visible = letters(&lines(&source, width, style));
            for word in words_of_html(&html) {
                assert!(
                    visible.contains(&word),
                    "example {number} at {width} columns lost {word:?}: {source:?}\n{visible}"
                );
            }
        }
    }
}

#[needs_fixtures]
#[test]
fn no_example_of_commonmark_depends_on_where_it_is_cut() {
    for (number, source, _) in examples() {
        let whole = lines(&source, 40, MarkdownStyle::Styled);
        let every: Vec<usize> = (0..source.len()).collect();
        assert_eq!(
            cut_at(&source, 40, &every),
            whole,
            "example {number}, every character: {source:?}"
        );
        for cut in every {
            assert_eq!(
                cut_at(&source, 40, &[cut]),
                whole,
                "example {number}, cut at {cut}: {source:?}"
            );
        }
    }
}

/// Includes text that a browser does not show: targets, titles, definitions, HTML, languages of code.
#[needs_fixtures]
#[test]
fn no_example_of_commonmark_loses_a_word_of_its_source() {
    for (number, source, _) in examples() {
        // Entities are decoded, and item numbers lose leading zeros.
        if source.contains('&') || source.starts_with("003.") {
            continue;
        }
        let visible = letters(&lines(&source, 40, MarkdownStyle::Styled));
        for word in source
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
        {
            let (before, after) = (
                letters_of(&source).matches(word).count(),
                visible.matches(word).count(),
            );
            assert!(
                after >= before,
                "example {number} lost {word:?}: {source:?}\n{visible}"
            );
        }
    }
}
