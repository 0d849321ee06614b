//! Measures the cost of one answer delta: one megabyte in deltas of four bytes, for different kinds of text, with and
//! without a preview after each delta.

use std::fmt;

use bub_terminal::markdown::{Markdown, MarkdownStyle};
use divan::{Bencher, counter::ItemsCount};

const ANSWER_BYTES: usize = 1 << 20;
const DELTA_BYTES: usize = 4;

struct Answer {
    name: &'static str,
    prefix: &'static str,
    repeated: &'static str,
}

impl fmt::Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl Answer {
    fn text(&self, size: usize) -> String {
        self.prefix.to_owned() + &self.repeated.repeat(size / self.repeated.len())
    }
}

const ANSWERS: [Answer; 12] = [
    Answer {
        name: "blocks",
        prefix: "",
        repeated: "# Title\n\nSome *text* of a `paragraph`.\n\n```\ncode\n```\n\n- item\n- item\n\n",
    },
    Answer {
        name: "paragraph",
        prefix: "",
        repeated: "some words of *text* and `code`\n",
    },
    Answer {
        name: "line",
        prefix: "",
        repeated: "some words of *text* and `code` ",
    },
    Answer {
        name: "code",
        prefix: "```rust\n",
        repeated: "let x = 1; // a line\n",
    },
    Answer {
        name: "code line",
        prefix: "```\n",
        repeated: "let x = 1;",
    },
    Answer {
        name: "list",
        prefix: "",
        repeated: "- an item with **words**\n",
    },
    Answer {
        name: "nested",
        prefix: "- a\n",
        repeated: "  - nested\n",
    },
    Answer {
        name: "table",
        prefix: "| a | b |\n|---|---|\n",
        repeated: "| one | two |\n",
    },
    Answer {
        name: "wide",
        prefix: "",
        repeated: "你好世界，再见。",
    },
    Answer {
        name: "brackets",
        prefix: "",
        repeated: "[[[[",
    },
    Answer {
        name: "quotes",
        prefix: "",
        repeated: ">",
    },
    Answer {
        name: "stars",
        prefix: "",
        repeated: "*a **b ",
    },
];

fn deltas(text: &str) -> Vec<&str> {
    let mut deltas = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (delta, after) = rest.split_at(rest.ceil_char_boundary(DELTA_BYTES));
        deltas.push(delta);
        rest = after;
    }
    deltas
}

#[divan::bench(args = &ANSWERS, sample_count = 3, sample_size = 1)]
fn push(bencher: Bencher, answer: &Answer) {
    let text = answer.text(ANSWER_BYTES);
    let deltas = deltas(&text);
    bencher
        .counter(ItemsCount::new(deltas.len()))
        .bench_local(|| {
            let mut markdown = Markdown::new(80, MarkdownStyle::Styled);
            let lines: usize = deltas.iter().map(|delta| markdown.push(delta).len()).sum();
            lines + markdown.finish().len()
        });
}

#[divan::bench(args = &ANSWERS[..9], sample_count = 3, sample_size = 1)]
fn push_and_preview(bencher: Bencher, answer: &Answer) {
    let text = answer.text(ANSWER_BYTES / 64);
    let deltas = deltas(&text);
    bencher
        .counter(ItemsCount::new(deltas.len()))
        .bench_local(|| {
            let mut markdown = Markdown::new(80, MarkdownStyle::Styled);
            deltas
                .iter()
                .map(|delta| markdown.push(delta).len() + markdown.unfinished_tail(20).len())
                .sum::<usize>()
        });
}

/// Lines of code in a block, with and without a language that is highlighted.
#[divan::bench(args = ["rust", "unknown"])]
fn code_lines(bencher: Bencher, language: &str) {
    const LINES: usize = 1000;
    const LINE: &str = "    let value = compute(\"text\", 12); // a comment about it\n";
    let text = LINE.repeat(LINES);
    bencher.counter(ItemsCount::new(LINES)).bench_local(|| {
        let mut markdown = Markdown::new(80, MarkdownStyle::Styled);
        let opened = markdown.push(&format!("```{language}\n"));
        opened.len() + markdown.push(&text).len() + markdown.finish().len()
    });
}

fn main() {
    divan::main();
}
