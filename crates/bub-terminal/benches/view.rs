//! Measures the cost of one answer delta in the chat: buffering, redaction, layout, and output of finished lines.

use bub_kernel::StreamEvent;
use bub_settings::Redactor;
use bub_terminal::{ColorMode, turn_view::TurnView};
use divan::{Bencher, counter::ItemsCount};

fn main() {
    divan::main();
}

/// Returns about `bytes` bytes of paragraphs, lists and code, in deltas of eight bytes.
fn deltas(bytes: usize) -> Vec<StreamEvent> {
    let part = "Some **bold** text with `code`, which continues for a bit.\n\n- one\n- two\n\n```rust\nlet x = 1;\n```\n\n";
    let text = part.repeat(bytes / part.len());
    text.as_bytes()
        .chunks(8)
        .map(|chunk| StreamEvent::Text(String::from_utf8_lossy(chunk).into_owned()))
        .collect()
}

#[divan::bench(args = [1_000, 10_000, 100_000, 1_000_000], sample_count = 3)]
fn delta(bencher: Bencher<'_, '_>, bytes: usize) {
    let events = deltas(bytes);
    bencher
        .counter(ItemsCount::new(events.len()))
        .bench_local(|| {
            let mut view = TurnView::new(80, ColorMode::Colors, Redactor::new());
            view.begin_turn(None);
            let mut lines = 0;
            for event in &events {
                view.handle_event(event);
                lines += view.take_lines().len();
            }
            view.end_turn(false);
            lines + view.take_lines().len()
        });
}
