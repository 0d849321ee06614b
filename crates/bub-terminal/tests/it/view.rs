//! Tests that the lines of a turn depend only on its text, not on how the stream was split.

use bub_kernel::StreamEvent;
use bub_settings::Redactor;
use bub_terminal::{ColorMode, Line, turn_view::TurnView};

fn render(text: &str, chunk_chars: usize, command: Option<&str>) -> Vec<String> {
    let mut view = TurnView::new(80, ColorMode::Colors, Redactor::default());
    view.begin_turn(command);
    let letters: Vec<char> = text.chars().collect();
    for part in letters.chunks(chunk_chars) {
        view.handle_event(&StreamEvent::Text(part.iter().collect()));
    }
    view.end_turn(false);
    view.take_lines().iter().map(Line::text).collect()
}

#[test]
fn what_indents_the_first_word_belongs_to_it() {
    for text in [
        "    a simple\n      indented code block",
        "\n \n\n    code\n",
        " \r\n  text",
        "\t- x",
        "  \n",
        "",
    ] {
        let unsplit = render(text, 1000, None);
        for chunk_chars in 1..8 {
            assert_eq!(
                render(text, chunk_chars, None),
                unsplit,
                "{text:?} in pieces of {chunk_chars}"
            );
        }
    }
    let code = render("    a simple\n      indented code block", 3, None);
    assert_eq!(
        code.get(1..3),
        Some(&["a simple".to_owned(), "  indented code block".to_owned()][..])
    );
}

#[test]
fn the_output_of_a_command_keeps_its_first_lines() {
    for chunk_chars in 1..8 {
        assert_eq!(
            render("\n\n  x\n", chunk_chars, Some(",x")).get(1..4),
            Some(&["", "", "  x"].map(String::from)[..])
        );
    }
}
