//! Tests that every example is short and works as documented.

use crate::sandbox::{Sandbox, root};

#[test]
fn examples_do_what_they_say() {
    let cases: [(&str, &[&str], &str); 5] = [
        ("echo_model", &["run", "hello"], "cli:local said: hello\n"),
        ("stream_wrapper", &["run", "hello"], "ONE WORD AT A TIME\n"),
        (
            "custom_binary",
            &["greet", "--name", "Ada"],
            "Hello, Ada!\n",
        ),
        ("custom_binary", &["run", "hello"], "Hello, cli:local!\n"),
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
    let shown = "words_count: Count the words of a text\nwords_count says 1.\n";
    assert!(tool.ends_with(shown), "{tool}");
    let prompt = Sandbox::new()
        .example("prompt_plugin", ["run", "What is a tape?"])
        .ok();
    assert!(
        prompt.ends_with("What is a tape?\n\nAnswer in one sentence.\n"),
        "{prompt}"
    );
}

// The test at the end of an example does not count. A channel and a store need more than a screen.
#[test]
fn examples_are_short() {
    for file in std::fs::read_dir(root().join("crates/bub-cli/examples")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let program = text.split("#[cfg(test)]").next().unwrap();
        let lines = program.lines().count();
        let limit = match path.file_stem().and_then(|name| name.to_str()) {
            Some("line_channel") => 130,
            Some("tape_store") => 290,
            _ => 90,
        };
        assert!(lines <= limit, "{} has {lines} lines", path.display());
    }
}
