//! Tests of the highlighter: what is colored, and that it never changes the text.

use proptest::prelude::*;

use super::*;
use crate::ColorMode;

/// Returns the code with a mark around each token: `k` keyword, `s` string, `n` number, `c` comment.
fn marked(info: &str, code: &str) -> String {
    let mut highlighter = Highlighter::new(info);
    let mark = |style: Style| match style {
        KEYWORD_STYLE => "k",
        STRING_STYLE => "s",
        NUMBER_STYLE => "n",
        COMMENT_STYLE => "c",
        _ => "",
    };
    let lines = code.lines().map(|text| {
        let line = highlighter.line(text);
        let spans = line.spans.iter().map(|span| match mark(span.style) {
            "" => span.text.clone(),
            mark => format!("{mark}⟨{}⟩", span.text),
        });
        spans.collect::<String>()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_usual_language_has_its_colors() {
    let samples = [
        (
            "rust",
            "/* a\n * b */ pub fn f<'a>(x: &'a str) -> char { // c\n    let y = r#\"raw \\\"#; '\\'' + 'x' \
             + \"two\nlines \\\" end\" + 1_000.5f64 + 0..10\n}",
        ),
        (
            "python",
            "def f(x):  # it's\n    \"\"\"Doc 'of'\n    f.\"\"\"\n    return f'{x}' + \"a\" * 0x1F",
        ),
        (
            "ts",
            "const a: string = `one ${b}\n two`; // c\nif (a !== null) { return 'x'; }",
        ),
        (
            "go",
            "func f(r rune) string { return `raw \\` + \"a\" /* c */ }\nvar x = 'a'",
        ),
        (
            "cpp",
            "#include <a>\nint x = 'a'; // c\nconst char* s = \"\\\"\";",
        ),
        ("java", "public class A { String s = \"a\"; char c = 'b'; }"),
        ("ruby", "def f # c\n  \"a#{1}b\" if true\nend"),
        (
            "bash",
            "# c\nfor x in \"$@\"; do echo $# 'it\\'; done # end",
        ),
        (
            "sql",
            "SELECT a, 'it''s' FROM t -- c\nwhere b = 1 /* c\n d */ limit 2",
        ),
        ("lua", "local x = 1 -- c\n--[[ a\nb ]] return nil"),
        ("json", "{\"a\": [1, -2.5e3, true, null]}"),
        ("yaml", "a: true # c\nb: don't\nc: \"x#y\"\nurl: http://a#b"),
        ("html", "<a href=\"x\">don't</a> <!-- c\n d --> 1"),
    ];
    let shown = samples.map(|(info, code)| format!("{info}\n{}", marked(info, code)));
    insta::assert_snapshot!("languages", shown.join("\n\n"));
    let covered = samples.map(|(info, _)| Highlighter::new(info).rules);
    for language in LANGUAGES {
        let rules = Rules::Language(language);
        assert!(covered.contains(&rules), "no sample: {:?}", language.names);
    }
}

#[test]
fn the_first_word_of_the_info_string_names_the_language() {
    for info in ["rust", "Rust", " rust,ignore", "rust {1-3}", "rs"] {
        assert_eq!(marked(info, "fn"), "k⟨fn⟩", "{info}");
    }
    for info in ["", "unknown", "rustic"] {
        let line = Highlighter::new(info).line("fn 1");
        assert_eq!(line, Line::new("fn 1", CODE_STYLE), "{info}");
    }
    let mut diff = Highlighter::new("diff");
    assert_eq!(diff.line("+ added"), Line::new("+ added", Style::GREEN));
}

/// Removes the escape sequences that start and end styles.
fn without_styles(painted: &str) -> String {
    let mut parts = painted.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.split_once('m').map_or(part, |(_, rest)| rest)
    })
}

proptest! {
    // Colors are added; nothing is removed, added or moved.
    #[test]
    fn without_its_colors_the_code_is_the_same(
        language in 0..LANGUAGES.len(),
        code in prop::collection::vec("([a-z]{1,6}|fn|0x1|[\"'`#/*\\\\-]{1,3}|<!--|-->|[ \t]|é|\u{301}|你|\u{1f}|.){0,20}", 0..8),
    ) {
        let mut highlighter = Highlighter::new(LANGUAGES[language].names);
        for text in code {
            let line = highlighter.line(&text);
            let expected = sanitize(&text).into_owned();
            prop_assert_eq!(line.text(), expected.clone());
            for color_mode in [ColorMode::None, ColorMode::Attributes, ColorMode::Colors] {
                let mut painted = String::new();
                line.paint(color_mode, &mut painted);
                prop_assert_eq!(without_styles(&painted), expected.clone());
            }
            prop_assert_eq!(line.columns(), crate::columns(&expected));
        }
    }
}

// The work grows with the length of a line, not with its square: a line of 200 times the length takes less than 2000
// times the time.
#[test]
fn long_lines_are_scanned_once() {
    let time = |count: usize| {
        let text = "a1 \"b\\\"\" /* ' */ r#\" 'x ".repeat(count);
        let runs = (0..5).map(|_| {
            let started = std::time::Instant::now();
            let line = Highlighter::new("rust").line(&text);
            assert!(!line.spans.is_empty());
            started.elapsed()
        });
        runs.min().unwrap()
    };
    let (short, long) = (time(50), time(10_000));
    assert!(long < short * 2000, "{short:?} and {long:?}");
}
