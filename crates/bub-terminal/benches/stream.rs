//! Measures the CPU time to lay out one answer delta as Markdown. It must not depend on the length of the answer.
#![allow(clippy::unwrap_used, reason = "a bench that fails stops")]

use bub_terminal::markdown::{Markdown, MarkdownStyle};
use bub_testkit::bench_output::{is_quick, measure_minimum, print_time};

const PART: &str =
    "# Title\n\nSome *text* of a `paragraph`.\n\n```\ncode\n```\n\n- item\n- item\n\n";
const DELTA_BYTES: usize = 4;

fn main() {
    for size in [1_000, 10_000, 100_000, 1_000_000]
        .into_iter()
        .filter(|size| !is_quick() || *size <= 100_000)
    {
        let text = PART.repeat(size / PART.len());
        let deltas: Vec<&str> = text
            .as_bytes()
            .chunks(DELTA_BYTES)
            .map(|bytes| str::from_utf8(bytes).unwrap())
            .collect();
        let cost = measure_minimum(20, || {
            let mut markdown = Markdown::new(80, MarkdownStyle::Styled);
            let lines: usize = deltas.iter().map(|delta| markdown.push(delta).len()).sum();
            assert!(lines + markdown.finish().len() > 0);
        });
        let each = cost.cpu / u32::try_from(deltas.len()).unwrap();
        print_time(&format!("markdown_cpu_of_a_delta_by_bytes/{size}"), each);
    }
}
