//! Properties of rendering that hold for any text. (W-60)

use std::time::{Duration, Instant};

use bub_telegram::html::{MAX_ENTITIES, MAX_MESSAGE_UNITS, MessagePart, render};
use proptest::prelude::*;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag};

use super::checker::text_of;

/// Checks the properties of every part of a text.
fn check(markdown: &str) -> Vec<MessagePart> {
    let parts = render(markdown);
    for part in &parts {
        let text = text_of(&part.html)
            .unwrap_or_else(|wrong| panic!("{wrong} in {:?} of {markdown:?}", part.html));
        assert_eq!(text, part.plain, "of {markdown:?}");
        assert!(
            part.html.encode_utf16().count() <= MAX_MESSAGE_UNITS,
            "{} of {markdown:?}",
            part.html.len()
        );
        let tags = part.html.matches('<').count() - part.html.matches("</").count();
        let entities = tags - part.html.matches("<pre><code").count();
        assert!(
            entities <= MAX_ENTITIES,
            "{entities} entities of {markdown:?}"
        );
        assert!(
            !part.plain.trim().is_empty(),
            "blank: {part:?} of {markdown:?}"
        );
    }
    // No text and no info string beyond a language name is lost, and the order is kept.
    let text: String = parts.iter().map(|part| part.plain.as_str()).collect();
    let mut shown = text.chars();
    for character in letters(markdown) {
        assert!(
            shown.any(|other| other == character),
            "{character:?} is lost: {text:?} of {markdown:?}"
        );
    }
    parts
}

fn letters(markdown: &str) -> Vec<char> {
    let events = Parser::new_ext(
        markdown,
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH,
    );
    let text: String = events
        .filter_map(|event| match event {
            Event::Text(text) | Event::Code(text) | Event::Html(text) | Event::InlineHtml(text) => {
                Some(text.to_string())
            }
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info)))
                if info.trim().contains(char::is_whitespace) =>
            {
                Some(info.to_string())
            }
            _ => None,
        })
        .collect();
    text.chars()
        .filter(|character| character.is_alphanumeric())
        .collect()
}

/// Words between all kinds of markup, some long enough to be split.
fn marked_up() -> impl Strategy<Value = String> {
    let markup = prop::sample::select(vec![
        "*",
        "**",
        "_",
        "__",
        "~~",
        "`",
        "``",
        "```",
        "\n",
        "\n\n",
        "\n```rust\n",
        "\n~~~\n",
        "\n```pip install foo bar\n",
        "\n~~~py title=x\n",
        "**a** `b` ",
        "\n> ",
        "\n- ",
        "\n  - ",
        "\n1. ",
        "\n    ",
        "\n# ",
        "\n---\n",
        "\n|a|b|\n|-|:-:|\n|c|d|e|\n",
        "|",
        "[",
        "](http://x.org)",
        "](/x \"t\")",
        "![",
        "](<b c>)",
        "<b>",
        "</b>",
        "<!--",
        "-->",
        "<div>",
        "&",
        "&amp;",
        "&#0;",
        "&lt;",
        "\\",
        "<",
        ">",
        "\"",
        "\t",
        " ",
        "  \n",
        "\r\n",
        "\u{0}",
        "\u{7}",
        "\u{200b}",
        "\u{202e}",
        "👨‍👩‍👧",
        "🇩🇪",
        "e\u{301}",
        "\u{301}",
        "\u{feff}",
        "[a]: /b\n",
        "[^1]",
        "$x$",
        "||",
        "<https://x.org>",
        "<a@x.org>",
        "\u{a0}",
        "\u{3000}",
        "\u{2028}",
    ]);
    let word = prop_oneof![
        6 => "[a-z]{1,8}".prop_map(String::from),
        2 => "[ぁ-ん一-三]{1,4}".prop_map(String::from),
        2 => "\\PC{1,6}".prop_map(String::from),
        1 => (1_usize..1500).prop_map(|length| "long ".repeat(length)),
        1 => (1_usize..5000).prop_map(|length| "x".repeat(length)),
        1 => (1_usize..1500).prop_map(|length| "&<".repeat(length)),
        1 => (1_usize..1500).prop_map(|length| "line\n".repeat(length)),
        1 => (1_usize..6000).prop_map(|length| " ".repeat(length)),
    ];
    prop::collection::vec(
        prop_oneof![3 => markup.prop_map(String::from), 2 => word],
        0..60,
    )
    .prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_markdown_becomes_valid_messages(markdown in marked_up()) {
        check(&markdown);
    }

    #[test]
    fn any_text_becomes_valid_messages(text in any::<String>()) {
        check(&text);
    }

    /// Words in known constructs, for which the expected words and their order are known without a parser.
    #[test]
    fn no_word_is_lost(kinds in prop::collection::vec((0_usize..15, 1_usize..200), 1..16)) {
        let mut expected = Vec::new();
        let mut markdown = String::new();
        for (block, (kind, length)) in kinds.into_iter().enumerate() {
            let words: Vec<String> = (0..length).map(|word| format!("w{block}x{word}")).collect();
            let line = words.join(" ");
            let construct = match kind {
                0 => line,
                1 => format!("**{line}**"),
                2 => format!("# {line}"),
                3 => format!("- {}", words.join("\n- ")),
                4 => format!("> {line}"),
                5 => format!("```py\n{}\n```", words.join("\n")),
                6 => format!("~~a~~ [{line}](https://x.org)"),
                7 => format!("|{}|\n|{}\n", words.join("|"), "-|".repeat(length)),
                8 => format!("|a|\n|-|\n|{}|", words.join("|\n|")),
                9 => format!("1. *{}*", words.join("*\n1. *")),
                10 => format!("`{line}` <b>"),
                11 => format!("```{line}\n```"),
                12 => format!("~~~ run {line}\ncode\n~~~"),
                13 => format!("**{}**", words.join("** *a* **")),
                _ => format!("<p>{line}</p>"),
            };
            markdown.push_str(&construct);
            markdown.push_str("\n\n<!-- -->\n\n");
            expected.extend(words);
        }
        let text: String = check(&markdown).into_iter().map(|part| part.plain + "\n").collect();
        let found: Vec<&str> = text
            .split(|character: char| !character.is_ascii_alphanumeric())
            .filter(|word| word.starts_with('w') && word.contains('x'))
            .collect();
        prop_assert_eq!(found, expected);
    }
}

#[bub_testkit::needs_fixtures]
#[test]
fn every_example_of_commonmark_becomes_valid_messages() {
    let file = bub_testkit::fixtures("markdown").join("commonmark-0.31.2.json");
    let examples: Vec<serde_json::Value> =
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let mut all = String::new();
    let mut silent = Vec::new();
    for example in &examples {
        let markdown = example["markdown"].as_str().unwrap();
        if check(markdown).is_empty() {
            silent.push(markdown);
        }
        all.push_str(markdown);
        all.push_str("\n\n<!-- -->\n\n");
    }
    // Only blank code has no visible text.
    assert_eq!(silent, ["```\n\n  \n```\n", "`\u{a0}`\n`  `\n"]);
    assert!(examples.len() > 600);
    check(&all);
}

#[test]
fn time_is_linear() {
    let many = |piece: &str| piece.repeat(200_000 / piece.len());
    let texts = [
        "word ".repeat(200_000),
        many("a"),
        many(" "),
        many("\n"),
        "**a** `b` [c](http://x.org)\n".repeat(40_000),
        many("*"),
        many("_a"),
        many("["),
        many("[a]("),
        many("`"),
        many("<"),
        many("> "),
        many("- "),
        many("&"),
        many("- a\n  "),
        many("1. "),
        many("\u{301}"),
        many("👨‍👩‍👧"),
        many("~~"),
        many("|"),
        many("a|b\n"),
        format!(
            "|{}\n|{}\n{}",
            "a|".repeat(2000),
            "-|".repeat(2000),
            "|b\n".repeat(60_000)
        ),
        format!(
            "|a|{}|\n|-|-|\n{}",
            "x".repeat(20_000),
            "|b|c|\n".repeat(20_000)
        ),
        format!("```\n{}", many("    x\n")),
        format!("```\n{}", many(" ")),
        format!("```\n{}", many("\n")),
        format!("[x](http://x.org/{}) {}", "y".repeat(990), many("z ")),
        many("[a](/b)\n\n[a]: /c\n\n"),
        many("<b>\n"),
        many("![]("),
        many("a \u{a0}"),
    ];
    for text in texts {
        let start = Instant::now();
        let parts = render(&text);
        let took = start.elapsed();
        let shown: String = text.chars().take(20).collect();
        assert!(
            took < Duration::from_secs(20),
            "{shown:?} took {took:?} for {} parts",
            parts.len()
        );
    }
}
