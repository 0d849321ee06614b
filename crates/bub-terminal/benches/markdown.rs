//! What a delta of an answer costs: a megabyte in deltas of four bytes, by kinds of text; and with a preview after each.

use std::fmt;

use bub_terminal::markdown::{Markdown, MarkdownStyle};
use divan::{Bencher, counter::ItemsCount};

const SIZE: usize = 1 << 20;
const DELTA: usize = 4;

struct Answer {
    name: &'static str,
    begin: &'static str,
    part: &'static str,
}

impl fmt::Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl Answer {
    fn text(&self, size: usize) -> String {
        self.begin.to_owned() + &self.part.repeat(size / self.part.len())
    }
}

const ANSWERS: [Answer; 12] = [
    Answer {
        name: "blocks",
        begin: "",
        part: "# Title\n\nSome *text* of a `paragraph`.\n\n```\ncode\n```\n\n- item\n- item\n\n",
    },
    Answer {
        name: "paragraph",
        begin: "",
        part: "some words of *text* and `code`\n",
    },
    Answer {
        name: "line",
        begin: "",
        part: "some words of *text* and `code` ",
    },
    Answer {
        name: "code",
        begin: "```rust\n",
        part: "let x = 1; // a line\n",
    },
    Answer {
        name: "code line",
        begin: "```\n",
        part: "let x = 1;",
    },
    Answer {
        name: "list",
        begin: "",
        part: "- an item with **words**\n",
    },
    Answer {
        name: "nested",
        begin: "- a\n",
        part: "  - nested\n",
    },
    Answer {
        name: "table",
        begin: "| a | b |\n|---|---|\n",
        part: "| one | two |\n",
    },
    Answer {
        name: "wide",
        begin: "",
        part: "你好世界，再见。",
    },
    Answer {
        name: "brackets",
        begin: "",
        part: "[[[[",
    },
    Answer {
        name: "quotes",
        begin: "",
        part: ">",
    },
    Answer {
        name: "stars",
        begin: "",
        part: "*a **b ",
    },
];

fn deltas(text: &str) -> Vec<&str> {
    let mut deltas = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (delta, after) = rest.split_at(rest.ceil_char_boundary(DELTA));
        deltas.push(delta);
        rest = after;
    }
    deltas
}

#[divan::bench(args = &ANSWERS, sample_count = 3, sample_size = 1)]
fn push(bencher: Bencher, answer: &Answer) {
    let text = answer.text(SIZE);
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
    let text = answer.text(SIZE / 64);
    let deltas = deltas(&text);
    bencher
        .counter(ItemsCount::new(deltas.len()))
        .bench_local(|| {
            let mut markdown = Markdown::new(80, MarkdownStyle::Styled);
            deltas
                .iter()
                .map(|delta| markdown.push(delta).len() + markdown.preview(20).len())
                .sum::<usize>()
        });
}

fn main() {
    divan::main();
}
