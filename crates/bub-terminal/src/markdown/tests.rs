//! Tests of the Markdown layout: its appearance, that no word is lost, that the split of the stream does not matter,
//! and its cost.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::*;
use crate::{Style, columns, sanitize::is_unsafe_char};

fn lines(source: &str, width: usize, style: MarkdownStyle) -> Vec<Line> {
    let mut markdown = Markdown::new(width, style);
    let mut lines = markdown.push(source);
    lines.extend(markdown.finish());
    lines
}

fn rendered(source: &str, width: usize) -> Vec<String> {
    lines(source, width, MarkdownStyle::Styled)
        .iter()
        .map(Line::text)
        .collect()
}

#[track_caller]
fn check(source: &str, width: usize, expected: &[&str]) {
    assert_eq!(rendered(source, width), expected, "\n{source}");
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

#[test]
fn paragraphs_are_filled_and_soft_breaks_are_spaces() {
    check(
        "one\ntwo three\n\nfour",
        9,
        &["one two", "three", "", "four"],
    );
    check(
        "hard  \nbreak\\\nagain<br>and",
        40,
        &["hard", "break", "again", "and"],
    );
    check(
        "a-very-long-word-indeed",
        10,
        &["a-very-lon", "g-word-ind", "eed"],
    );
}

#[test]
fn headings_emphasis_code_and_links_have_styles() {
    let line = |source| lines(source, 80, MarkdownStyle::Styled).remove(0);
    let spans = |line: Line| {
        line.spans
            .into_iter()
            .map(|span| (span.text, span.style))
            .collect::<Vec<_>>()
    };
    let rendered = spans(line("a *b* **c** ~~d~~ `e` [f](http://g)"));
    let expected = [
        ("a ", Style::NONE),
        ("b", Style::ITALIC),
        (" ", Style::NONE),
        ("c", Style::BOLD),
        (" ", Style::NONE),
        ("d", Style::STRIKE),
        (" ", Style::NONE),
        ("e", Style::CYAN),
        (" ", Style::NONE),
        ("f", Style::BLUE),
        (" (http://g)", Style::DIM),
    ];
    assert_eq!(
        rendered,
        expected.map(|(text, style)| (text.to_owned(), style))
    );
    assert_eq!(
        line("# Title").spans[0].style,
        Style::BOLD | Style::UNDERLINE
    );
    check("Title\n===\ntext", 80, &["Title", "", "text"]);
    check(
        "<http://a> [http://a](http://a) ![alt](/i.png \"t\")",
        80,
        &["http://a http://a alt (/i.png \"t\")"],
    );
}

#[test]
fn without_styles_the_marks_stay() {
    let plain: Vec<String> = lines(
        "## T\n\n*a* **b** `c`\n\n- x\n\n> q\n\n```rs\nfn\n```\n\n---",
        80,
        MarkdownStyle::Plain,
    )
    .iter()
    .map(Line::text)
    .collect();
    assert_eq!(
        plain,
        [
            "## T",
            "",
            "*a* **b** `c`",
            "",
            "- x",
            "",
            "> q",
            "",
            "```rs",
            "fn",
            "```",
            "",
            "---"
        ]
    );
}

#[test]
fn lists_are_numbered_nested_and_spaced_as_they_are_written() {
    check(
        "- a\n- b\n  - c\n    d\n- [x] e\n- [ ] f",
        40,
        &["• a", "• b", "  • c d", "• [x] e", "• [ ] f"],
    );
    check("3. a\n1. b\n\n1. c", 40, &["3. a", "4. b", "", "5. c"]);
    check("1. a\n\n   b\n2. c", 40, &["1. a", "", "   b", "2. c"]);
    check(
        "- one two three\n* x",
        9,
        &["• one two", "  three", "", "• x"],
    );
    check("text\n- a\n\nafter", 40, &["text", "", "• a", "", "after"]);
    check(
        "1. a\n```sh\nls\n```\n2. b",
        40,
        &["1. a", "", "sh", "ls", "", "2. b"],
    );
    check(
        "- a\n  ```sh\n  ls\n\n  pwd\n  ```\n- b",
        40,
        &["• a", "sh", "ls", "", "pwd", "", "• b"],
    );
    check("-\n- ```\n  x\n  ```", 40, &["•", "•", "x"]);
    check("> - a\n>   > b\n\nc", 40, &["│ • a", "│   │ b", "", "c"]);
}

#[test]
fn code_is_flush_left_and_never_filled() {
    check(
        "```rust\nfn main() {\n\n\tx(); // a very long line\n```\nafter",
        10,
        &[
            "rust",
            "fn main() {",
            "",
            "\tx(); // a very long line",
            "",
            "after",
        ],
    );
    check(
        "1. a\n   ```\n   x\n   ```\n2. b\n3. c",
        20,
        &["1. a", "x", "", "2. b", "3. c"],
    );
    check(
        "- a\n  - b\n    ```\n    x\n    ```\n  - c",
        20,
        &["• a", "  • b", "x", "", "  • c"],
    );
    check("    a\n\n      b\n\nc", 10, &["a", "", "  b", "", "c"]);
    check("````\n```\n````\n~~~\nopen", 10, &["```", "", "open"]);
    check("> ```\n> x\n> ```", 10, &["x"]);
}

#[test]
fn code_comes_out_line_by_line_and_items_one_by_one() {
    let mut markdown = Markdown::new(80, MarkdownStyle::Styled);
    let mut step = |delta: &str| {
        markdown
            .push(delta)
            .iter()
            .map(Line::text)
            .collect::<Vec<_>>()
    };
    assert_eq!(step("```\na"), [""; 0]);
    assert_eq!(step("\nb"), ["a"]);
    assert_eq!(step("\n```\n"), ["b"]);
    assert_eq!(step("1. x\n"), [""; 0]);
    assert_eq!(step("2. y\n3"), ["", "1. x"]);
    assert_eq!(
        markdown
            .unfinished_tail(10)
            .iter()
            .map(Line::text)
            .collect::<Vec<_>>(),
        ["2. y 3"]
    );
}

#[test]
fn tables_fit_or_become_lists() {
    let table = "| Name | Size |\n|:--|--:|\n| a | 1 |\n| long name | 10 |\n\nend";
    check(
        table,
        40,
        &[
            "Name      │ Size",
            "──────────┼─────",
            "a         │    1",
            "long name │   10",
            "",
            "end",
        ],
    );
    check(
        table,
        10,
        &[
            "Name: a",
            "Size: 1",
            "───",
            "Name: long",
            "name",
            "Size: 10",
            "",
            "end",
        ],
    );
    let wide = "|a|b|\n|-|-|\n|x|one two three four five|";
    check(
        wide,
        16,
        &[
            "a │ b",
            "──┼─────────────",
            "x │ one two",
            "  │ three four",
            "  │ five",
        ],
    );
    check(
        "|a|b|\n|-|-|\n|1|2|3|4|\n|5|",
        20,
        &["a │ b", "──┼────────", "1 │ 2 | 3|4", "5 │"],
    );
    check(
        "|你好|b|\n|-|-|\n|x|`y`|",
        20,
        &["你好 │ b", "─────┼──", "x    │ y"],
    );
}

#[test]
fn what_is_not_markdown_is_shown_as_it_is() {
    check(
        "<div>\n*x*\n</div>\n\n<!-- a\n\nb -->\nc",
        40,
        &["<div>", "*x*", "</div>", "", "<!-- a", "", "b -->", "", "c"],
    );
    check(
        "a <kbd>b</kbd>[^1]\n\n[^1]: note",
        40,
        &["a <kbd>b</kbd>[^1]", "", "[^1]: note"],
    );
    check(
        "[a][x] b\n\n[x]: /u\n[x]: /v \"t\"",
        40,
        &["[a][x] b", "", "[x]: /u", "[x]: /v \"t\""],
    );
    check("> [x]: /u\n> [x]", 40, &["│ [x]: /u", "│", "│ x (/u)"]);
}

#[test]
fn control_sequences_do_no_harm() {
    // Entities and code cannot contain control sequences, either.
    check("a\x1b[2J&#27;&#x202e;b", 40, &["a␛[2J␛\\u{202e}b"]);
    check("```\x07\n\x1b]0;x\n```", 40, &["␇", "␛]0;x"]);
    check("a\r\nb\rc\0", 40, &["a b c␀"]);
}

#[test]
fn wide_characters_are_measured_and_broken_between() {
    check("你好世界，再见", 10, &["你好世界，", "再见"]);
    check("你好世界你，再见", 10, &["你好世界", "你，再见"]);
    check("👨‍👩‍👧👨‍👩‍👧 👍🏽 ok", 6, &["👨‍👩‍👧👨‍👩‍👧", "👍🏽 ok"]);
}

#[test]
fn a_new_width_is_for_what_is_not_finished() {
    let mut markdown = Markdown::new(9, MarkdownStyle::Styled);
    let mut all = markdown.push("one two three\n\none two three");
    markdown.set_width(20);
    all.extend(markdown.finish());
    assert_eq!(
        all.iter().map(Line::text).collect::<Vec<_>>(),
        ["one two", "three", "", "one two three"]
    );
}

#[test]
fn a_preview_is_what_would_be_finished_now() {
    let mut markdown = Markdown::new(20, MarkdownStyle::Styled);
    markdown.push("done\n\n```\nsome code that is long\nab``");
    assert_eq!(
        markdown
            .unfinished_tail(9)
            .iter()
            .map(Line::text)
            .collect::<Vec<_>>(),
        ["ab``"]
    );
    markdown.push("\n``");
    assert!(
        markdown.unfinished_tail(9).is_empty(),
        "the fence is being closed"
    );
    markdown.push("`\nlast **w");
    assert_eq!(
        markdown
            .unfinished_tail(9)
            .iter()
            .map(Line::text)
            .collect::<Vec<_>>(),
        ["", "last **w"]
    );
    assert_eq!(markdown.unfinished_tail(1).len(), 1);
}

fn letters(lines: &[Line]) -> String {
    lines.iter().map(|line| letters_of(&line.text())).collect()
}

fn letters_of(text: &str) -> String {
    text.chars()
        .filter(|character| character.is_alphanumeric())
        .collect()
}

fn markdown() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "\n",
        "\n\n",
        "\r\n",
        "  \n",
        "- ",
        "  - ",
        "1. ",
        "7) ",
        "    ",
        "\t",
        "> ",
        "# ",
        "```",
        "```rs\n",
        "~~~",
        "---\n",
        "===\n",
        "***",
        "**",
        "*",
        "_",
        "`",
        "``",
        "[a](b)",
        "[x]: /y\n",
        "[",
        "]",
        "![i](j)",
        "| a | b |\n",
        "|-|-|\n",
        "|",
        "<div>",
        "<!--",
        "-->",
        "<pre>",
        "</pre>",
        "<br>",
        "&#27;",
        "\\",
        "- [ ] ",
        "word ",
        "你好",
        "👨‍👩‍👧",
        "e\u{301}",
        "\u{200d}",
        "\x1b[1m",
        "longerwordthanmost ",
        "a b c d e f g ",
        "https://example.org/path ",
        "0. ",
        "123456789. ",
    ]);
    prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 512 } else { 20_000 }))]

    #[test]
    fn cuts_do_not_matter(source in markdown(), cuts in prop::collection::vec(0..400_usize, 0..20), width in 10..60_usize) {
        let whole = lines(&source, width, MarkdownStyle::Styled);
        prop_assert_eq!(cut_at(&source, width, &cuts), whole);
    }

    #[test]
    fn no_word_is_lost(source in markdown(), width in 10..60_usize) {
        let visible = letters(&lines(&source, width, MarkdownStyle::Styled));
        for word in ["word", "longer", "most", "path", "你好"] {
            prop_assert!(visible.matches(word).count() >= source.matches(word).count(), "{}\n{}", word, visible);
        }
    }

    // Code of an unknown language has one style, by which this test recognizes it. Colors change no layout.
    #[test]
    fn lines_fit_and_are_harmless(source in markdown(), width in 10..60_usize) {
        let highlighted = lines(&source, width, MarkdownStyle::Styled);
        let source = source.replace("```rs", "```qs");
        let plain = lines(&source, width, MarkdownStyle::Styled);
        let texts = |lines: &[Line]| lines.iter().map(|line| line.text().replace('q', "r")).collect::<Vec<_>>();
        prop_assert_eq!(texts(&highlighted), texts(&plain));
        for line in lines(&source, width, MarkdownStyle::Styled) {
            let is_code = line.spans.iter().all(|span| span.style == Style::CYAN);
            // The language line of code is not wrapped, either.
            let is_label = line.spans.iter().all(|span| span.style == Style::DIM);
            prop_assert!(is_code || is_label || line.columns() <= width, "{} > {width}: {:?}", line.columns(), line);
            let harmful = |letter: char| is_unsafe_char(letter) && !(is_code && letter == '\t');
            prop_assert!(!line.text().chars().any(harmful), "{line:?}");
        }
    }
}

/// Returns answers of one megabyte (a quarter of it in debug builds), each of one kind of text.
fn huge() -> Vec<(&'static str, String)> {
    const SIZE: usize = if cfg!(debug_assertions) {
        1 << 18
    } else {
        1 << 20
    };
    let fill = |start: &str, part: &str| start.to_owned() + &part.repeat(SIZE / part.len());
    vec![
        (
            "one paragraph",
            fill("", "some words of *text* and `code`\n"),
        ),
        ("one line", fill("", "some words of *text* and `code` ")),
        ("one word", fill("", "word")),
        (
            "one code block",
            fill("```rust\n", "let x = 1; // a line\n"),
        ),
        ("one line of code", fill("```\n", "let x = 1;")),
        ("one list", fill("", "- an item with **words**\n")),
        ("one item", fill("- a\n", "  - nested\n")),
        (
            "code in one item",
            fill("1. a\n   ```\n", "   let x = 1;\n"),
        ),
        (
            "one table",
            fill("| a | b |\n|---|---|\n", "| one | two |\n"),
        ),
        ("one quote", fill("", "> quoted text\n")),
        (
            "blocks",
            fill(
                "",
                "# Title\n\nA paragraph.\n\n```\ncode\n```\n\n- item\n- item\n\n",
            ),
        ),
        ("blank lines", fill("", "\n")),
        ("brackets", fill("", "[[[[")),
        ("stars", fill("", "*a **b ")),
        ("quotes", fill("", ">")),
        ("backticks", fill("a", "`a``")),
    ]
}

#[test]
fn work_grows_with_the_text_only() {
    for (name, source) in huge() {
        let mut markdown = Markdown::new(80, MarkdownStyle::Styled);
        let mut worst = 0;
        for start in (0..source.len()).step_by(4) {
            markdown.push(&source[start..source.len().min(start + 4)]);
            worst = worst.max(markdown.blocks.open_bytes());
        }
        let laid_out_bytes = markdown.blocks.laid_out_bytes.load(Ordering::Relaxed);
        assert!(
            laid_out_bytes * 2 <= source.len() * 3,
            "{name}: {laid_out_bytes} bytes laid out for {}",
            source.len()
        );
        assert!(
            worst <= MAX_BLOCK_BYTES + MAX_BLOCK_BYTES / 8,
            "{name}: {worst} bytes open"
        );
    }
}

#[test]
fn a_preview_costs_the_same_however_much_is_open() {
    for (name, source) in huge() {
        let mut markdown = Markdown::new(80, MarkdownStyle::Styled);
        for (index, start) in (0..source.len()).step_by(997).enumerate() {
            markdown.push(&source[start..source.len().min(start + 997)]);
            if index % 29 == 0 {
                let before = markdown.blocks.laid_out_bytes.load(Ordering::Relaxed);
                let lines = markdown.unfinished_tail(20);
                let laid_out_bytes =
                    markdown.blocks.laid_out_bytes.load(Ordering::Relaxed) - before;
                assert!(
                    laid_out_bytes <= 6 * 1024,
                    "{name}: {laid_out_bytes} bytes for a preview"
                );
                assert!(lines.iter().all(|line| line.columns() <= 80), "{name}");
            }
        }
    }
}

#[test]
fn code_in_a_long_item_stays_code() {
    let (_, source) = huge()
        .into_iter()
        .find(|(name, _)| *name == "code in one item")
        .unwrap();
    let rendered = lines(&source, 80, MarkdownStyle::Styled);
    assert_eq!(
        rendered
            .iter()
            .filter(|line| line.text() == "let x = 1;")
            .count(),
        rendered.len() - 1
    );
    assert_eq!(columns(&rendered[0].text()), 4);
}
