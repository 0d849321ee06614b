//! Tests that every example is short and works as documented.

use crate::sandbox::{Sandbox, root};

#[test]
fn examples_do_what_they_say() {
    let cases: [(&str, &[&str], &str); 5] = [
        (
            "echo_model",
            &["run", "hello"],
            "[cli:local]\ncli:local said: hello\n",
        ),
        (
            "stream_wrapper",
            &["run", "hello"],
            "[cli:local]\nONE WORD AT A TIME\n",
        ),
        (
            "custom_binary",
            &["greet", "--name", "Ada"],
            "Hello, Ada!\n",
        ),
        (
            "custom_binary",
            &["run", "hello"],
            "[cli:local]\nHello, cli:local!\n",
        ),
        ("custom_binary", &["-w", "..", "greet"], "Hello, world!\n"),
    ];
    for (name, args, expected) in cases {
        assert_eq!(
            Sandbox::new().example(name, args).ok(),
            expected,
            "{name} {args:?}"
        );
    }
    let tool = Sandbox::new()
        .example("tool_plugin", ["run", "What can you do?"])
        .ok();
    let line = "- words_count(text, at_least?, containing?): Count the words of a text\n";
    assert!(
        tool.contains(line) && tool.ends_with("words_count says 1.\n"),
        "{tool}"
    );
    let prompt = Sandbox::new()
        .example("prompt_plugin", ["run", "What is a tape?"])
        .ok();
    assert!(
        prompt.ends_with("What is a tape?\n\nAnswer in one sentence.\n"),
        "{prompt}"
    );
}

#[test]
fn examples_are_at_most_80_lines() {
    for file in std::fs::read_dir(root().join("crates/bub-cli/examples")).unwrap() {
        let path = file.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 80, "{} has {lines} lines", path.display());
    }
}
