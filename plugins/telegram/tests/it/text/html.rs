//! Tests of the HTML of each Markdown construct, and of the splitting of long texts. (W-60)

use bub_telegram::html::{MAX_MESSAGE_UNITS, MessagePart, render};

use super::checker::text_of;

/// Returns the only part of a text.
fn one(markdown: &str) -> MessagePart {
    let mut parts = render(markdown);
    assert_eq!(parts.len(), 1, "{markdown:?}: {parts:?}");
    parts.remove(0)
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn each_construct_has_its_markup() {
    let rows = [
        // Inline.
        (
            "a **b** _c_ ~~d~~ `e`",
            "a <b>b</b> <i>c</i> <s>d</s> <code>e</code>",
        ),
        ("*a **b** c*", "<i>a </i><b><i>b</i></b><i> c</i>"),
        ("***a***", "<b><i>a</i></b>"),
        ("**a `b` c**", "<b>a </b><code>b</code><b> c</b>"),
        ("1 < 2 && 3 > 2 \"q\"", "1 &lt; 2 &amp;&amp; 3 &gt; 2 \"q\""),
        ("&lt;b&gt; &copy; \\*x\\*", "&lt;b&gt; © *x*"),
        ("a\nb  \nc", "a\nb\nc"),
        (
            "<b>x</b> <script>y</script>",
            "&lt;b&gt;x&lt;/b&gt; &lt;script&gt;y&lt;/script&gt;",
        ),
        ("<div>\nx\n</div>\n\ny", "&lt;div&gt;\nx\n&lt;/div&gt;\n\ny"),
        (
            "2 * 3 * 4 _ snake_case_name **",
            "2 * 3 * 4 _ snake_case_name **",
        ),
        // Links.
        (
            "[a](https://x.org/?a=1&b=\"2\")",
            "<a href=\"https://x.org/?a=1&amp;b=&quot;2&quot;\">a</a>",
        ),
        (
            "[**a** `b`](http://x.org)",
            "<a href=\"http://x.org\"><b>a</b> b</a>",
        ),
        (
            "[a](tg://user?id=1) [b](mailto:a@x.org)",
            "<a href=\"tg://user?id=1\">a</a> <a href=\"mailto:a@x.org\">b</a>",
        ),
        (
            "[a](javascript:b) [c](/d) [e](file:///f)",
            "a (javascript:b) c (/d) e (file:///f)",
        ),
        ("[a](<http://x y>)", "a (http://x y)"),
        (
            "[](http://x.org) [a]()",
            "<a href=\"http://x.org\">http://x.org</a> a",
        ),
        (
            "<https://x.org> <a@x.org>",
            "<a href=\"https://x.org\">https://x.org</a> a@x.org",
        ),
        (
            "![alt](http://x.org/i.png) ![](http://x.org)",
            "<a href=\"http://x.org/i.png\">alt</a> <a href=\"http://x.org\">http://x.org</a>",
        ),
        (
            "[![alt](http://x.org/i.png)](http://y.org)",
            "<a href=\"http://y.org\">alt</a>",
        ),
        (
            "see [1]\n\n[1]: http://x.org",
            "see <a href=\"http://x.org\">1</a>",
        ),
        (
            "sources\n\n[1]: http://x.org\n[2]: http://y.org",
            "sources\n\n[1]: http://x.org\n[2]: http://y.org",
        ),
        // Blocks.
        (
            "# A *b*\n\nc\n\nD\n===",
            "<b>A <i>b</i></b>\n\nc\n\n<b>D</b>",
        ),
        ("a\n\n---\n\nb", "a\n\n———\n\nb"),
        (
            "> a\n> **b**\n>\n> c\n\nd",
            "<blockquote>a\n<b>b</b>\n\nc</blockquote>\n\nd",
        ),
        ("> a\n> > b\n> >> c", "<blockquote>a\n\nb\n\nc</blockquote>"),
        (
            "> a\n\n<!-- -->\n\n> b",
            "<blockquote>a</blockquote>\n\n&lt;!-- --&gt;\n\n<blockquote>b</blockquote>",
        ),
        (
            "> ```rs\n> x\n> ```",
            "<blockquote><pre><code class=\"language-rs\">x</code></pre></blockquote>",
        ),
        ("```\n  a\n\n<b>\n```", "<pre>  a\n\n&lt;b&gt;</pre>"),
        (
            "```rust ignore\nfn a() {}\n```\nb",
            "rust ignore\n<pre><code class=\"language-rust\">fn a() {}</code></pre>\n\nb",
        ),
        (
            "Run:\n```pip install foo bar\n```\nthen go",
            "Run:\n\npip install foo bar\n\nthen go",
        ),
        (
            "```sh\n```\na",
            "<pre><code class=\"language-sh\">sh</code></pre>\n\na",
        ),
        (
            "```c++\nx\n```\n```\ny\n```\n```\nz\n```",
            "<pre><code class=\"language-c++\">x</code></pre>\n\n<pre>y</pre>\n\n<pre>z</pre>",
        ),
        ("```\"><b>\nx\n```", "\"&gt;&lt;b&gt;\n<pre>x</pre>"),
        ("    a\n      b", "<pre>a\n  b</pre>"),
        (
            "```python\nunfinished",
            "<pre><code class=\"language-python\">unfinished</code></pre>",
        ),
        ("- a\n- b\n  - c\n    d\n- e", "• a\n• b\n  • c\n    d\n• e"),
        ("3. a\n4. b\n\nc", "3. a\n4. b\n\nc"),
        ("- a\n\n  b\n\n- c", "• a\n\n  b\n\n• c"),
        (
            "1. a\n   ```sh\n   ls\n   ```\n2. b",
            "1. a\n<pre><code class=\"language-sh\">ls</code></pre>\n\n2. b",
        ),
        // Tables.
        (
            "|a|bb|\n|-|-:|\n|ccc|d|\n|e|",
            "<pre>a   | bb\n----+---\nccc |  d\ne</pre>",
        ),
        (
            "|名前|x|\n|:-:|-|\n|a|**b**|",
            "<pre>名前 | x\n-----+--\n a   | b</pre>",
        ),
        (
            "|a|\n|-|\n|[b](http://x.org) & `c`|",
            "<pre>a\n--------------------\nb (http://x.org) &amp; c</pre>",
        ),
        // Surplus cells are kept, although the parser drops them.
        ("|a|\n|-|\n|b|more|", "<pre>a\n--+-----\nb | more</pre>"),
        // A text that is only markup is shown verbatim.
        ("[a]: http://x.org", "[a]: http://x.org"),
        ("#", "#"),
        ("```\n```", "```\n```"),
    ];
    for (markdown, html) in rows {
        let part = one(markdown);
        assert_eq!(part.html, html, "{markdown:?}");
        assert_eq!(
            text_of(&part.html).as_ref(),
            Ok(&part.plain),
            "{markdown:?}"
        );
    }
}

#[test]
fn what_cannot_be_seen_is_no_message() {
    for markdown in [
        "",
        "  \n\t\n",
        "\u{200b}\u{feff}\u{a0}",
        "&nbsp;",
        "\u{0}\u{1}",
        "\u{2800}",
    ] {
        assert_eq!(render(markdown), [], "{markdown:?}");
    }
}

/// Returns the number of UTF-16 units, counted independently of the code under test.
fn units(text: &str) -> usize {
    text.encode_utf16().count()
}

fn texts(markdown: &str) -> Vec<String> {
    render(markdown)
        .into_iter()
        .map(|part| {
            assert_eq!(text_of(&part.html).as_ref(), Ok(&part.plain));
            assert!(units(&part.html) <= MAX_MESSAGE_UNITS);
            part.plain
        })
        .collect()
}

#[test]
fn cuts_are_at_paragraphs_else_lines_else_words() {
    let (half, most) = ("a".repeat(2500), "b".repeat(1400));
    assert_eq!(
        texts(&format!("{half}\n\n{half}")),
        [half.clone(), half.clone()]
    );
    assert_eq!(
        texts(&format!("{half}\n\n{most}\n{most}")),
        [half.clone(), format!("{most}\n{most}")]
    );
    assert_eq!(
        texts(&format!("{half}\n{most} {most}")),
        [half.clone(), format!("{most} {most}")]
    );
    assert_eq!(
        texts(&format!("{half} {most} {most}")),
        [format!("{half} {most}"), most.clone()]
    );
    // A word that fits into one message is not split; a longer one fills the message.
    assert_eq!(
        texts(&format!("{most} {}", "c".repeat(4000))),
        [most.clone(), "c".repeat(4000)]
    );
    assert_eq!(
        texts(&format!("x {}", "c".repeat(5000))),
        [format!("x {}", "c".repeat(4094)), "c".repeat(906)]
    );
}

#[test]
fn a_fence_is_closed_and_opened_again_with_its_language() {
    let lines = "    let x = 1 < 2;\n".repeat(400);
    let parts = render(&format!("intro\n\n```rust\n{lines}```\n\n**end**"));
    assert!(parts.len() > 2);
    for part in &parts {
        assert!(
            part.html
                .contains("<pre><code class=\"language-rust\">    let"),
            "{}",
            part.html
        );
        assert!(
            part.plain
                .lines()
                .all(|line| ["", "intro", "end", "    let x = 1 < 2;"].contains(&line))
        );
    }
    let all: usize = parts
        .iter()
        .map(|part| part.plain.matches("let x").count())
        .sum();
    assert_eq!(all, 400);
}

#[test]
fn styles_links_and_quotations_go_on_in_the_next_part() {
    let words = "word ".repeat(1500);
    let parts = render(&format!(
        "> **{words}[{words}](http://x.org/{})**",
        "y".repeat(900)
    ));
    assert!(parts.len() > 3);
    for part in &parts {
        assert!(part.html.starts_with("<blockquote>") && part.html.ends_with("</blockquote>"));
        assert!(part.html.contains("<b>word"));
        assert_eq!(text_of(&part.html).as_ref(), Ok(&part.plain));
    }
}

#[test]
fn characters_as_people_see_them_are_never_cut() {
    // A family (zero-width joiners), a flag (two regional indicators), a letter with marks, a skin tone.
    for cluster in ["👨‍👩‍👧‍👦", "🇩🇪", "e\u{301}\u{323}", "👍🏽", "한", "각"]
    {
        let shift = "x".repeat(5);
        let parts = texts(&format!("{shift}{}", cluster.repeat(4096)));
        assert!(parts.len() >= 2);
        for part in &parts {
            let clusters = part.strip_prefix(&shift).unwrap_or(part);
            assert_eq!(
                clusters,
                cluster.repeat(clusters.len() / cluster.len()),
                "{cluster}"
            );
        }
        assert_eq!(parts.concat(), format!("{shift}{}", cluster.repeat(4096)));
    }
    // A cluster that is too long for a message is split.
    let monster = format!("a{}", "\u{301}".repeat(10_000));
    assert_eq!(texts(&monster).concat(), monster);
}

// The platform ignores entities beyond the first hundred.
#[test]
fn many_marked_words_come_in_several_messages() {
    let parts = render(&"**a** `b` ".repeat(120));
    assert_eq!(parts.len(), 3);
    for part in &parts {
        assert!(part.html.matches("</").count() <= 100, "{}", part.html);
    }
    let words: String = parts
        .iter()
        .map(|part| part.plain.as_str())
        .collect::<Vec<_>>()
        .join(" ");
    assert_eq!(words.split_whitespace().count(), 240);
}

#[test]
fn markup_counts_towards_the_limit() {
    let parts = texts(&"<&>".repeat(2000));
    assert_eq!(parts.concat(), "<&>".repeat(2000));
    let parts = render(&format!("**{}** ", "a".repeat(60)).repeat(300));
    assert!(
        parts
            .iter()
            .all(|part| units(&part.html) <= MAX_MESSAGE_UNITS
                && units(&part.html) > MAX_MESSAGE_UNITS / 2)
    );
}
