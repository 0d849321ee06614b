//! Parsing of comma commands.

use std::sync::Arc;

use bub_agent::command::{self, CommaCommand};
use bub_kernel::{Result, Tool, tool};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Searches.
#[tool(crate = bub_kernel, name = "tape.search")]
fn search(query: String, #[default(20)] limit: i64) -> String {
    format!("{query} {limit}")
}

/// Says nothing.
#[tool(crate = bub_kernel, name = "help", command_only)]
fn help() -> String {
    String::new()
}

fn tools() -> Vec<Arc<dyn Tool>> {
    vec![Arc::new(search()), Arc::new(help())]
}

fn parse(line: &str) -> Result<CommaCommand> {
    command::parse(line, &tools())
}

fn call(name: &str, arguments: Value) -> CommaCommand {
    let Value::Object(arguments) = arguments else {
        panic!("{arguments}")
    };
    CommaCommand::Tool {
        name: name.to_owned(),
        arguments,
    }
}

// H-126, H-128: positional arguments work for every tool.
#[test]
fn words_become_arguments_by_order_or_by_name() {
    for (line, expected) in [
        (",tape.search foo", json!({"query": "foo"})),
        (
            ", tape.search  'two words' 5 ",
            json!({"query": "two words", "limit": "5"}),
        ),
        (",tape.search query=a=b", json!({"query": "a=b"})),
        (
            ",tape.search foo limit=5",
            json!({"query": "foo", "limit": "5"}),
        ),
        (
            ",tape.search limit=5 query=",
            json!({"limit": "5", "query": ""}),
        ),
        (",tape.search other=1", json!({"other": "1"})),
        ("tape.search", json!({})),
    ] {
        assert_eq!(
            parse(line).unwrap(),
            call("tape.search", expected),
            "{line}"
        );
    }
    assert_eq!(parse(",help").unwrap(), call("help", json!({})));
}

// H-126
#[test]
fn what_names_no_tool_is_a_line_for_the_shell() {
    for (line, shell) in [
        (",ls -la | wc", "ls -la | wc"),
        (",  echo a=b c ", "echo a=b c"),
        (",echo 'a  b'", "echo 'a  b'"),
        // Only the exact name is a tool, so that other spellings cannot bypass a rule.
        (",tape_search foo", "tape_search foo"),
        (",Help", "Help"),
        (",,help", ",help"),
        (",\"\"", "\"\""),
    ] {
        assert_eq!(
            parse(line).unwrap(),
            CommaCommand::Shell {
                line: shell.to_owned()
            },
            "{line}"
        );
    }
}

// H-126
#[test]
fn mistakes_are_explained() {
    for (line, message) in [
        (",", "empty command"),
        (", \n", "empty command"),
        ("", "empty command"),
        (",echo 'x", "No closing quotation"),
        (",tape.search \"x", "No closing quotation"),
        (",echo x\\", "No escaped character"),
        (
            ",tape.search query=x y",
            "positional argument 'y' cannot appear after keyword arguments",
        ),
        (
            ",tape.search a 1 z",
            "unexpected argument 'z': tape.search takes query, limit",
        ),
        (
            ",tape.search a query=b",
            "duplicate argument 'query'; pass it once",
        ),
        (
            ",help extra",
            "unexpected argument 'extra': help takes no arguments",
        ),
    ] {
        assert_eq!(parse(line).unwrap_err().message(), message, "{line}");
    }
}

// H-126: the expected values come from Python's `shlex.split`.
#[test]
fn words_are_split_as_the_original_splits_them() {
    let corpus: Vec<(String, Value)> =
        serde_json::from_str(include_str!("../data/shell_words.json")).unwrap();
    assert!(corpus.len() > 150);
    for (line, expected) in corpus {
        let words = command::split_words(&line)
            .map_or_else(|error| json!(error.message()), |words| json!(words));
        assert_eq!(words, expected, "{line:?}");
    }
}

proptest! {
    #[test]
    fn no_line_is_too_odd(line in "\\PC*", odd in "[ ,='\"\\\\a\n\t\u{a0}é]{0,40}") {
        let _ = parse(&line);
        let _ = parse(&format!(",tape.search {odd}"));
        let _ = parse(&odd);
    }

    // A quoted word is returned unchanged.
    #[test]
    fn quoting_hides_everything(word in "\\PC*") {
        let quoted = format!("'{}'", word.replace('\'', "'\\''"));
        prop_assert_eq!(command::split_words(&quoted).unwrap(), [word]);
    }
}
