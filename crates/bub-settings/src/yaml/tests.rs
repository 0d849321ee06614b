//! Tests for each row of the table in the module documentation.

use serde_json::{Value, json};

use super::*;
use crate::node::{Atom, Scalar};

fn value(node: &Node) -> Value {
    match &node.data {
        NodeData::Scalar(Scalar { text, atom }) => match atom {
            Atom::Null => Value::Null,
            Atom::Bool(flag) => json!(flag),
            Atom::Int(number) => json!(number),
            Atom::Float(number) => json!(number),
            Atom::Text => json!(text),
        },
        NodeData::List(items) => items.iter().map(value).collect(),
        NodeData::Map(map) => Value::Object(
            map.entries
                .iter()
                .map(|(k, v)| (k.to_owned(), value(v)))
                .collect(),
        ),
    }
}

fn line(line: usize) -> SettingSource {
    SettingSource::Flag(line.to_string().into())
}

fn load(text: &str) -> Result<Option<Value>, String> {
    parse(text, &line)
        .map(|document| document.root.as_ref().map(value))
        .map_err(|p| format!("{}:{}: {}", p.line, p.column, p.problem))
}

// C.4: cases in which YAML libraries disagree
#[test]
fn unquoted_words_mean_what_the_original_reads_except_where_the_table_says_so() {
    let rows = [
        ("yes", json!(true)),
        ("Off", json!(false)),
        ("y", json!("y")),
        ("N", json!("N")),
        ("~", json!(null)),
        ("", json!(null)),
        ("NULL", json!(null)),
        ("1_000", json!(1000)),
        ("017", json!(15)),
        ("0o17", json!("0o17")),
        ("09", json!("09")),
        ("0x1F", json!(31)),
        ("0b101", json!(5)),
        ("-12", json!(-12)),
        ("+12", json!(12)),
        ("0", json!(0)),
        ("9223372036854775807", json!(i64::MAX)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("1.5", json!(1.5)),
        (".5", json!(0.5)),
        ("1.", json!(1.0)),
        ("-.5", json!(-0.5)),
        ("1e3", json!(1000.0)),
        ("1.5e+3", json!(1500.0)),
        ("12:30:45", json!("12:30:45")),
        ("2024-01-02", json!("2024-01-02")),
        (".inf", json!(".inf")),
        (".nan", json!(".nan")),
        ("1.2.3", json!("1.2.3")),
        ("'yes'", json!("yes")),
        ("\"1\"", json!("1")),
        ("!!str 12", json!("12")),
        ("!!int \"12\"", json!(12)),
        ("!!float 12", json!(12.0)),
        ("! 12", json!("12")),
        ("a#b", json!("a#b")),
        ("a # b", json!("a")),
        (
            "openrouter:openrouter/free",
            json!("openrouter:openrouter/free"),
        ),
        ("{a: 1, b: [x, y]}", json!({"a": 1, "b": ["x", "y"]})),
    ];
    for (written, meant) in rows {
        assert_eq!(
            load(&format!("k: {written}\n")),
            Ok(Some(json!({"k": meant}))),
            "{written}"
        );
    }
}

#[test]
fn block_texts_keep_their_lines() {
    assert_eq!(load("k: |\n  a\n  b\n"), Ok(Some(json!({"k": "a\nb\n"}))));
    assert_eq!(load("k: >-\n  a\n  b\n"), Ok(Some(json!({"k": "a b"}))));
}

#[test]
fn merge_keys_bring_in_what_is_not_written_beside_them() {
    let text =
        "base: &base {a: 1, b: 1}\nmore: &more {b: 2, c: 2}\nk:\n  <<: [*base, *more]\n  a: 0\n";
    let loaded = load(text).unwrap().unwrap();
    assert_eq!(loaded["k"], json!({"a": 0, "b": 1, "c": 2}));
    assert_eq!(load("'<<': 1"), Ok(Some(json!({"<<": 1}))));
    assert_eq!(
        load("k: 1\n<<: 2"),
        Err("2:1: `<<` needs a map or a list of maps".into())
    );
}

#[test]
fn the_last_of_two_equal_keys_counts_and_is_reported() {
    let document = parse("a: 1\nb: 2\na: 3\n", &line).ok().unwrap();
    assert_eq!(
        document.root.as_ref().map(value),
        Some(json!({"a": 3, "b": 2}))
    );
    assert_eq!(document.duplicates, [("a".to_owned(), line(3))]);
}

#[test]
fn every_value_knows_its_line() {
    let document = parse("a: 1\n\nb:\n  # note\n  c: x\n  d:\n    - y\n", &line)
        .ok()
        .unwrap();
    let root = document.root.unwrap();
    let at = |path: &[&str]| {
        root.descend(path.iter().copied())
            .map(|node| node.origin.clone())
    };
    assert_eq!(at(&["a"]), Some(line(1)));
    assert_eq!(at(&["b", "c"]), Some(line(5)));
    assert_eq!(at(&["b", "d"]), Some(line(7)));
}

#[test]
fn empty_files_and_comments_are_no_settings() {
    for text in [
        "",
        "\n",
        "# nothing\n",
        "---\n",
        "~\n",
        "\u{feff}",
        "---\n...\n",
    ] {
        assert_eq!(load(text), Ok(None), "{text:?}");
    }
    assert_eq!(load("\u{feff}a: 1"), Ok(Some(json!({"a": 1}))));
}

// H-20: the Python version crashes
#[test]
fn what_is_not_yaml_is_an_error_with_its_place() {
    for (text, place) in [
        ("a: [1, 2\n", "1:4"),
        ("a: 1\n  b: 2\n", "2:4"),
        ("a: 'x\n", "2:1"),
        ("a: *nowhere\n", "1:4"),
        ("a: 1\n---\nb: 2\n", "2:1"),
        ("? [a]\n: 1\n", "1:3"),
        ("a: !secret x\n", "1:12"),
        ("a: !cli\n", "1:8"),
        ("a: !!int x\n", "1:10"),
        ("a: !!python/object:os.system x\n", "1:30"),
        ("a: &x [*x]\n", "1:8"),
        ("a: \0\n", "1:4"),
    ] {
        let error = load(text).unwrap_err();
        assert!(error.starts_with(place), "{text:?}: {error}");
    }
}

#[test]
fn aliases_that_multiply_are_refused_at_once() {
    for first in ["[x, x, x, x, x, x, x, x, x, x]", "[]", "{}"] {
        refuses_multiplied(first);
    }
    assert!(load(&"[".repeat(100_000)).is_err());
}

fn refuses_multiplied(first: &str) {
    let first = format!("a0: &a0 {first}\n");
    let levels = (1..9).map(|level| {
        format!(
            "a{level}: &a{level} [{}]\n",
            format!("*a{}, ", level - 1).repeat(10)
        )
    });
    let text: Vec<String> = std::iter::once(first).chain(levels).collect();
    assert!(
        load(&text.concat())
            .unwrap_err()
            .ends_with("more than 20000 values; shorten the file")
    );
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[-a-c:?&*!|>'\"%@`{}\\[\\],#~<. \n\t0-9]{0,60}") {
        let _ = load(&text);
    }
}

// C.4: `PyYAML` lets quoted text continue at the start of a line, at any depth.
#[test]
fn quoted_text_may_go_on_at_the_start_of_a_line() {
    assert_eq!(
        load("a: \"x\ny\n\nz\"\nb: 1"),
        Ok(Some(json!({"a": "x y\nz", "b": 1})))
    );
    assert_eq!(
        load("a:\n  - b: 'x\ny'\n    c: 2"),
        Ok(Some(json!({"a": [{"b": "x y", "c": 2}]})))
    );
    let long = format!("a: \"{}\"", "x\n".repeat(1000));
    assert!(
        load(&long).unwrap_err().starts_with("102:1: "),
        "{:?}",
        load(&long)
    );
}

// H-136: a document without declarations has the types of the Python version.
#[test]
fn a_bare_document_is_plain_data() {
    let rows = [
        ("", json!(null)),
        (
            "a: [1, 1.5, 1.5e+3, yes, ~, x]",
            json!({"a": [1, 1.5, 1500.0, true, null, "x"]}),
        ),
        (
            "[1e3, 1.5e3, 1e+3, 2024-01-01, '1']",
            json!(["1e3", "1.5e3", "1e+3", "2024-01-01", "1"]),
        ),
    ];
    for (text, expected) in rows {
        assert_eq!(parse_yaml(text), Ok(expected), "{text}");
    }
    let error = parse_yaml("a: 1\nb: [secret-word").unwrap_err().to_string();
    assert!(
        error.starts_with("line ") && error.contains("not valid YAML") && !error.contains("secret"),
        "{error}"
    );
}
