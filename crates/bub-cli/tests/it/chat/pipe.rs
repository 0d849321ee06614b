//! Tests the chat without cursor movement: pipes, dumb terminals, `--plain`.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use bub_testkit::model::{ModelServer, Pace, Reply};

use super::terminal::TerminalOptions;
use crate::sandbox::{Run, Sandbox, bub};

pub(super) fn piped(command: &mut Command, input: &[u8]) -> Run {
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    Run::from_output(child.wait_with_output().unwrap())
}

fn ask(server: &ModelServer, input: &[u8]) -> Run {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&bub());
    let base = format!("{}/v1", server.url());
    command.envs([
        ("BUB_MODEL", "openai:small"),
        ("BUB_API_BASE", &base),
        ("BUB_API_KEY", "key-of-the-tests"),
    ]);
    piped(command.arg("chat"), input)
}

#[test]
fn the_answer_and_nothing_else_is_printed() {
    let server = ModelServer::start();
    server.script(Reply::deltas(["**Hel", "lo**\n\n", "you"]));
    let run = ask(&server, b"hi\n");
    assert_eq!(run.stderr, "");
    assert_eq!(run.ok(), "**Hello**\n\nyou\n");
}

// However the stream is cut, an emoji stays whole.
#[test]
fn control_sequences_are_shown_unless_raw_is_given() {
    let text = "\x1b[2J❤\u{fe0f} x\u{e0041}\u{e0042}\n";
    let shown = "␛[2J❤\u{fe0f} x\\u{e0041}\\u{e0042}\n";
    for (args, expected) in [(&[][..], shown), (&["--raw"], text)] {
        let server = ModelServer::start();
        server.script(Reply::deltas(text.chars().map(String::from)));
        let sandbox = Sandbox::new();
        let mut command = sandbox.command(&bub());
        let base = format!("{}/v1", server.url());
        command.envs([
            ("BUB_MODEL", "openai:small"),
            ("BUB_API_BASE", &base),
            ("BUB_API_KEY", "key-of-the-tests"),
        ]);
        assert_eq!(
            piped(command.arg("chat").args(args), b"hi\n").ok(),
            expected
        );
    }
}

#[test]
fn how_the_stream_is_cut_does_not_matter() {
    let text = "    let x = 1;\n\n  two\n";
    for size in [1, 3, 4, 5, 100] {
        let server = ModelServer::start();
        server.script(Reply::deltas(
            text.as_bytes()
                .chunks(size)
                .map(|part| String::from_utf8_lossy(part)),
        ));
        assert_eq!(ask(&server, b"hi\n").ok(), text, "{size}");
    }
}

// P-47: white space before the comma does not matter; other text does.
#[test]
fn only_a_line_that_starts_with_the_comma_leaves_the_chat() {
    for (line, answers) in [
        ("please ,quit\n", 2),
        ("quit\n", 2),
        (" ,quit\n", 0),
        ("\t,exit\n", 0),
        (", quit\n", 0),
        (",exit \n", 0),
    ] {
        let server = ModelServer::start();
        server.otherwise(Reply::text("Go on."));
        let input = format!("{line}after\n");
        assert_eq!(
            ask(&server, input.as_bytes()).ok(),
            "Go on.\n".repeat(answers),
            "{line:?}"
        );
    }
}

#[test]
fn calls_that_fail_are_reported_on_stderr() {
    let server = ModelServer::start();
    let call = Reply::new().call("c1", "no_such_tool", "{}").call(
        "c2",
        "bash",
        r#"{"command":"echo fine"}"#,
    );
    server.script(call.call("c3", "fs_read", r#"{"path":"missing.txt"}"#));
    server.script(Reply::text("Done."));
    let run = ask(&server, b"hi\n");
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{run:?}");
    assert!(
        lines[0].starts_with("tool no_such_tool failed: "),
        "{run:?}"
    );
    assert!(
        lines[1].starts_with("tool fs_read failed: cannot read "),
        "{run:?}"
    );
    assert_eq!(run.ok(), "Done.\n");
}

#[test]
fn each_line_is_a_message_and_the_last_needs_no_end() {
    let server = ModelServer::start();
    server.script(Reply::text("one"));
    server.script(Reply::text("two"));
    let run = ask(&server, b"first\n\n  \n,echo command\nsecond");
    assert_eq!(run.ok(), "one\ncommand\ntwo\n");
    assert!(
        String::from_utf8_lossy(&server.requests()[1].body).contains("first"),
        "one session"
    );
}

#[test]
fn the_exit_code_is_that_of_the_turn() {
    let server = ModelServer::start();
    server.otherwise(Reply::status(400).message("no such thing"));
    let run = ask(&server, b"hi\n");
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{run:?}");
    assert!(run.stderr.contains("no such thing"), "{run:?}");
    let failed = piped(Sandbox::new().command(&bub()).arg("chat"), b",exit 3\n");
    assert_eq!(failed.code, Some(1), "{failed:?}");
    let late = b",bash cmd='echo so far; sleep 9' timeout_seconds=1\n";
    let late = piped(Sandbox::new().command(&bub()).arg("chat"), late);
    let status = "so far\ncommand timed out after 1 seconds; continuing in background\nshell_id: ";
    assert!(late.stdout.starts_with(status), "{late:?}");
    assert_eq!(late.code, Some(0), "{late:?}");
    let unconfigured = piped(Sandbox::new().command(&bub()).arg("chat"), b"hi\n");
    assert_eq!(unconfigured.code, Some(2), "{unconfigured:?}");
    // A program must not take the guide for an answer.
    assert_eq!(unconfigured.stdout, "", "{unconfigured:?}");
    assert!(
        unconfigured.stderr.contains("No model is configured"),
        "{unconfigured:?}"
    );
    assert_eq!(
        piped(Sandbox::new().command(&bub()).arg("chat"), b"").code,
        Some(0)
    );
}

#[test]
fn what_is_not_utf8_is_replaced_with_a_word_about_it() {
    let server = ModelServer::start();
    server.script(Reply::text("fine"));
    let run = ask(&server, b"h\xff\xfei\n");
    assert!(run.stderr.contains("not valid UTF-8"), "{run:?}");
    assert_eq!(run.stdout, "fine\n");
}

// --plain and a dumb terminal: no cursor movement, and words instead of symbols.
#[test]
fn in_plain_mode_lines_are_only_added() {
    for (args, name) in [(&["--plain"][..], "xterm-256color"), (&[][..], "dumb")] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        server.script(
            Reply::new()
                .reasoning("hm")
                .call("c1", "bash", r#"{"command":"echo one"}"#),
        );
        server.script(Reply::text("Some **bold** text."));
        let mut chat = TerminalOptions::new(&sandbox)
            .model(&server)
            .set("TERM", name)
            .args(args)
            .start();
        chat.wait_for("workspace >");
        assert!(String::from_utf8_lossy(&chat.bytes()).ends_with("workspace > "));
        chat.send("hello\n");
        let screen = chat.wait_for("Some **bold** text.");
        assert!(
            screen.contains("tool bash(command: echo one)\ntool completed in "),
            "{screen}"
        );
        assert!(screen.contains("Assistant:\n"), "{screen}");
        chat.wait_until(|screen| screen.ends_with("workspace >"));
        chat.send("\x03");
        chat.wait_for("press Ctrl-C again");
        chat.wait_until(|screen| screen.ends_with("workspace >"));
        chat.send(",quit\n");
        let (code, screen) = chat.wait_end();
        assert_eq!(code, Some(0));
        assert!(screen.ends_with("Bye."), "{screen}");
        let bytes = chat.bytes();
        assert!(
            !bytes.contains(&0x1b),
            "{}",
            String::from_utf8_lossy(&bytes)
        );
    }
}

// In a plain chat, only yes approves a call, typed text is not lost, and the user can leave at a question.
#[test]
fn a_plain_chat_can_be_left_at_a_question_and_keeps_what_was_typed_there() {
    for (keys, hint) in [
        (",quit\n", None),
        ("\x04", Some("leaving after this turn")),
        ("please look\n,quit\n", None),
    ] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        server.script(Reply::new().call("c1", "bash", r#"{"command":"touch never"}"#));
        server.otherwise(Reply::text("Then not."));
        sandbox.write(
            "home/config.yml",
            "policy:\n  rules:\n    - {tools: [bash], action: ask}\n",
        );
        let mut chat = TerminalOptions::new(&sandbox)
            .model(&server)
            .args(&["--plain"])
            .start();
        chat.wait_for("workspace >");
        chat.send("go\n");
        let screen = chat.wait_for("allow? [y/s/a/N]");
        assert!(
            screen.contains("allow bash?\n  │ $ touch never\n"),
            "{screen}"
        );
        chat.send(keys);
        let (code, screen) = chat.wait_end();
        assert_eq!(code, Some(0), "{screen}");
        assert!(hint.is_none_or(|hint| screen.contains(hint)), "{screen}");
        assert!(!sandbox.workspace().join("never").exists());
        if keys.starts_with("please") {
            assert!(screen.contains("answer the question first"), "{screen}");
            let file = std::fs::read_dir(sandbox.home().join("history"))
                .unwrap()
                .next()
                .unwrap()
                .unwrap();
            assert!(
                std::fs::read_to_string(file.path())
                    .unwrap()
                    .contains("+please look\n")
            );
        }
    }
}

// Ctrl-D leaves after the running turn, and immediately if it is pressed again.
#[test]
fn a_plain_chat_is_left_at_the_second_end_of_input() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["never", " ends"]).paced(&pace));
    let mut chat = TerminalOptions::new(&sandbox)
        .model(&server)
        .args(&["--plain"])
        .start();
    chat.wait_for("workspace >");
    chat.send("go\n");
    pace.allow(1);
    chat.wait_for("go");
    chat.send("\x04");
    chat.wait_for("leaving after this turn; press Ctrl-D again to leave now");
    chat.send("\x04");
    let (code, screen) = chat.wait_end();
    assert_eq!(code, Some(0), "{screen}");
}
