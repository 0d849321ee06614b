//! Tests the screen during an answer, in narrow windows, after a resize, and after an interruption.

use std::fmt::Write as _;

use bub_testkit::model::{ModelServer, Pace, Reply};

use super::terminal::TerminalOptions;
use crate::sandbox::{Sandbox, ending_signals, example};

const ANSWER: [&str; 8] = [
    "# Plan\n\nThis is **important**: a paragraph that is longer ",
    "than forty columns, with 你好 and an emoji 🐙 in it.\n\n",
    "- first\n- second\n\n",
    "```rust\nlet x = 1;\n",
    "let y = 2; // a line of code that is longer than forty columns\n",
    "```\n",
    "\nDo",
    "ne.",
];

// H-155, H-158: at 80 columns, step by step.
#[test]
fn an_answer_stays_readable_while_it_grows() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(ANSWER).paced(&pace));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    let first = chat.wait_idle();
    assert!(first.starts_with("Bub "), "{first}");
    assert!(
        first.contains("workspace: ")
            && first.contains("\nmodel: openai:small\nsession: cli_session\n"),
        "{first}"
    );
    assert!(
        first.contains("\nworkspace >\nopenai:small · effort default"),
        "{first}"
    );
    chat.send("hello\r");
    chat.wait_for("Generating");
    pace.allow(2);
    let growing = chat.wait_for("This is important");
    let (_, growing) = growing.split_once("workspace > hello\n").unwrap();
    let lines: Vec<&str> = growing.lines().collect();
    assert_eq!(
        lines[..3],
        ["── Assistant ───────────────────────────", "Plan", ""]
    );
    pace.allow(4);
    chat.wait_for("let x = 1;");
    chat.wait_for("let y = 2; // a line of code that is longer than forty columns");
    pace.release();
    chat.wait_for("Done.");
    let screen = chat.wait_idle();
    let (_, answer) = screen.split_once("workspace > hello\n").unwrap();
    let (answer, _) = answer.split_once("\nworkspace >").unwrap();
    insta::assert_snapshot!("answer_at_80_columns", answer);
}

#[test]
fn at_forty_columns_text_is_wrapped_and_code_is_left_alone() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::deltas(ANSWER));
    let chat = TerminalOptions::new(&sandbox)
        .model(&server)
        .size(40, 30)
        .start();
    chat.wait_idle();
    chat.send("hello\r");
    chat.wait_for("Done.");
    let screen = chat.wait_idle();
    let (_, answer) = screen.split_once("workspace > hello\n").unwrap();
    let (answer, _) = answer.split_once("\nworkspace >").unwrap();
    insta::assert_snapshot!("answer_at_40_columns", answer);
}

#[test]
fn a_resize_in_the_middle_of_an_answer_loses_and_repeats_nothing() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(ANSWER).paced(&pace));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("hello\r");
    pace.allow(3);
    chat.wait_for("emoji");
    for (columns, rows) in [(40, 24), (100, 24), (30, 24), (80, 24)] {
        chat.resize(columns, rows);
        chat.send("x\x7f");
        chat.wait_until(|screen| screen.lines().any(|line| line == "workspace >"));
    }
    pace.release();
    chat.wait_for("Done.");
    chat.wait_idle();
    let text = chat.scrollback();
    for once in [
        "Plan",
        "emoji",
        "• first",
        "• second",
        "let x",
        "let y",
        "Done.",
    ] {
        assert_eq!(text.matches(once).count(), 1, "{once} in\n{text}");
    }
    assert_eq!(
        text.matches("openai:small · effort").count(),
        1,
        "one status line:\n{text}"
    );
}

// Ctrl-C cancels the turn and twice leaves; partial text stays; the terminal is restored.
#[test]
fn control_c_ends_the_turn_and_then_the_chat() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Half of a", " sentence", " never said"]).paced(&pace));
    server.script(Reply::text("Second answer."));
    let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("one\r");
    pace.allow(3);
    chat.wait_for("Half of");
    chat.send("\x03");
    let screen = chat.wait_for("(cancelled)");
    assert!(screen.contains("Half of"), "{screen}");
    chat.wait_idle();
    chat.send("two\r");
    chat.wait_for("Second answer.");
    chat.wait_idle();
    chat.send("\x03");
    chat.wait_for("press Ctrl-C again");
    chat.send("\x03");
    let (code, screen) = chat.wait_end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.ends_with("Bye."), "{screen}");
    assert!(chat.is_restored());
    // Only the tape remains after the chat.
    assert_eq!(
        std::fs::read_dir(sandbox.home().join("gateway"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn control_c_twice_in_a_turn_leaves() {
    for (args, name) in [(&[][..], "vt220"), (&["--plain"][..], "xterm")] {
        let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
        server.script(Reply::deltas(["Half of a\n\n", " sentence", " never said"]).paced(&pace));
        let mut chat = TerminalOptions::new(&sandbox)
            .model(&server)
            .set("TERM", name)
            .args(args)
            .start();
        chat.wait_for("workspace >");
        chat.send("one\r");
        pace.allow(3);
        chat.wait_for("Half of");
        chat.send("\x03");
        chat.wait_for("(cancelled)");
        chat.send("\x03");
        let (code, screen) = chat.wait_end();
        assert_eq!(code, Some(0), "{screen}");
        assert!(screen.ends_with("Bye."), "{screen}");
    }
}

#[test]
fn the_terminal_is_restored_whatever_ends_the_chat() {
    for (name, code) in ending_signals() {
        let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
        server.script(Reply::deltas(["Half of it", " rest"]).paced(&pace));
        let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
        chat.wait_idle();
        chat.send("one\r");
        pace.allow(2);
        chat.wait_for("Half");
        let asked = std::time::Instant::now();
        chat.signal(name);
        let (ended, screen) = chat.wait_end();
        assert_eq!(ended, Some(code), "{screen}");
        assert!(
            asked.elapsed() < std::time::Duration::from_secs(10),
            "{:?}",
            asked.elapsed()
        );
        assert!(
            screen.ends_with("\nstopped; unfinished messages resume at the next `bub chat`"),
            "{screen}"
        );
        assert!(
            !screen.contains("cancelled") && !screen.contains("WARN"),
            "{screen}"
        );
        assert!(chat.is_restored(), "{name}");
    }
}

// W-65: logs and errors are visible and do not corrupt the screen.
#[test]
fn warnings_and_failures_are_shown_in_their_place() {
    let sandbox = Sandbox::new();
    let chat = TerminalOptions::new(&sandbox)
        .program(&example("faulty"))
        .set("BUB_API_KEY", "very-secret-key")
        .start();
    chat.wait_idle();
    chat.send("log\r");
    chat.wait_for("logged");
    chat.wait_idle();
    chat.send("panic\r");
    chat.wait_for("── Error");
    let screen = chat.wait_idle();
    assert!(
        screen.contains("the key is ***") || screen.contains("the key is ["),
        "{screen}"
    );
    assert!(screen.contains("on purpose"), "{screen}");
    assert!(!chat.scrollback().contains("very-secret-key"));
    chat.send("still here\r");
    chat.wait_until(|screen| screen.matches("still here").count() > 1);
}

// ,thinking and ,quit work in the middle of an answer.
#[test]
fn thinking_is_confirmed_and_stays_out_of_answers() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Some words ", "and more."]).paced(&pace));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send(",thinking\r");
    chat.wait_for("reasoning is now shown");
    chat.send("go\r");
    pace.allow(2);
    chat.wait_for("Some words");
    chat.send(",thinking\r");
    chat.wait_until(|screen| !screen.contains("thinking shown"));
    pace.release();
    chat.wait_for("Some words and more.");
    let screen = chat.wait_idle();
    assert!(
        screen.contains("── Assistant ───────────────────────────\nSome words and more.\n"),
        "{screen}"
    );
}

// The help fits the window.
#[test]
fn help_is_broken_between_words() {
    let sandbox = Sandbox::new();
    let chat = TerminalOptions::new(&sandbox).size(50, 24).start();
    chat.wait_idle();
    chat.send(",help\r");
    chat.wait_for(",exit  Leave the chat (same as quit)");
    chat.wait_idle();
    let text = chat.scrollback();
    let (_, help) = text.split_once("── Command ,help").unwrap();
    let words: Vec<&str> = help.split_whitespace().collect();
    for word in ["reasoning", "`,name", "session,", "background"] {
        assert!(words.contains(&word), "{word} is broken:\n{help}");
    }
}

// After a panic of the chat, the terminal is restored and shows the error.
#[test]
fn a_panic_restores_the_terminal() {
    let sandbox = Sandbox::new();
    let mut chat = TerminalOptions::new(&sandbox)
        .program(&example("panicking_chat"))
        .start();
    chat.wait_idle();
    chat.send("\x04");
    let (code, screen) = chat.wait_end();
    assert_eq!(code, Some(101), "{screen}");
    assert!(screen.contains("on purpose"), "{screen}");
    assert!(chat.is_restored(), "{screen}");
}

// 20,000 deltas: the screen is never cleared completely, and each update writes only changed rows.
#[test]
fn twenty_thousand_deltas_make_no_flicker_and_lose_nothing() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let words: Vec<String> = (0..20_000)
        .map(|number| {
            if number % 40 == 39 {
                format!("w{number}\n\n")
            } else {
                format!("w{number} ")
            }
        })
        .collect();
    server.script(Reply::deltas(words));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    let before = chat.bytes().len();
    chat.send("go\r");
    chat.wait_for("w19999");
    chat.wait_idle();
    let text = chat.scrollback();
    let mut expected = 0;
    for word in text
        .split_whitespace()
        .filter_map(|word| word.strip_prefix('w')?.parse::<usize>().ok())
    {
        assert_eq!(word, expected, "in its order, once");
        expected += 1;
    }
    assert_eq!(expected, 20_000);
    let bytes = chat.bytes();
    let after = String::from_utf8_lossy(&bytes[before..]).into_owned();
    assert!(
        !after.contains("\x1b[2J") && !after.contains("\x1b[?1049h"),
        "the screen was cleared"
    );
    for frame in after.split("\x1b[?2026h").skip(1) {
        let rows = frame.matches("\x1b[K").count();
        // Finished lines and at most one screen of changed rows.
        assert!(frame.matches("\r\n").count() + 24 >= rows, "{frame:?}");
    }
}

#[test]
fn what_a_model_or_a_tool_says_cannot_play_tricks() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::text(
        "safe \x1b[2J\x1b]0;owned\x07 text \u{202e}gnp.exe\n\n```\n\x1b[31mcode\n```\n",
    ));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("hello\r");
    chat.wait_for("code");
    let screen = chat.wait_idle();
    assert!(
        screen.contains("safe ␛[2J␛]0;owned␇ text \\u{202e}gnp.exe"),
        "{screen}"
    );
    assert!(screen.contains("␛[31mcode"), "{screen}");
    chat.send(",printf 'a\\033[2Jb\\n'\r");
    chat.wait_until(|screen| screen.contains("a␛[2Jb") && screen.contains("── Command"));
}

// W-63, W-64: command output keeps its lines, and markup in it is plain text.
#[test]
fn the_output_of_a_command_is_printed_as_it_is() {
    let sandbox = Sandbox::new();
    let chat = TerminalOptions::new(&sandbox).size(80, 50).start();
    chat.wait_idle();
    chat.send(",printf '# no title\\n* no list\\n  indented [/x] [red]\\n'\r");
    chat.wait_for("\n# no title\n* no list\n  indented [/x] [red]\n");
    chat.wait_idle();
    chat.send(",help\r");
    chat.wait_for("\n  ,tape.info  ");
    chat.wait_idle();
    chat.send(",nonsense-command --x\r");
    chat.wait_for("── Error");
    let screen = chat.wait_for("\ncommand exited with code 127\n");
    assert_eq!(screen.matches("command not found").count(), 1, "{screen}");
    chat.wait_idle();
    chat.send(",resume\r");
    chat.wait_for("\n,resume: argument 'session_id' is missing\n");
}

// Long operations are visible while they run.
#[test]
fn the_output_of_a_command_is_seen_as_it_comes() {
    let sandbox = Sandbox::new();
    let chat = TerminalOptions::new(&sandbox).start();
    chat.wait_idle();
    chat.send(",echo fi''rst; echo se''cond; until [ -e go ]; do sleep 0.05; done; echo th''ird; exit 3\r");
    let screen = chat.wait_for("\nfirst\nsecond\n");
    assert!(screen.contains("Running"), "{screen}");
    std::fs::write(sandbox.workspace().join("go"), "").unwrap();
    chat.wait_for("\nfirst\nsecond\nthird\n");
    chat.wait_for("\ncommand exited with code 3\n");
    let screen = chat.wait_idle();
    assert_eq!(screen.matches("second\n").count(), 1, "{screen}");
}

// Tabs stay tabs in copied text and have the correct width.
#[test]
fn code_keeps_its_tabs() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    let code = [
        "```make\nall:\n\tcc -o a",
        " a.c\nlong:\n\tabcdefghijklmnopqrs\tx\n",
        "```\nDone.",
    ];
    server.script(Reply::deltas(code).paced(&pace));
    let chat = TerminalOptions::new(&sandbox)
        .model(&server)
        .size(36, 24)
        .start();
    chat.wait_idle();
    chat.send("hello\r");
    pace.allow(2);
    chat.wait_for("\n        cc -o");
    chat.resize(34, 24);
    chat.send("x\x7f");
    chat.wait_until(|screen| screen.lines().any(|line| line == "workspace >"));
    pace.release();
    chat.wait_for("Done.");
    let screen = chat.wait_idle();
    assert!(
        screen.contains(
            "make\nall:\n        cc -o a a.c\nlong:\n        abcdefghijklmnopqrs     x\n\nDone."
        ),
        "{screen}"
    );
    let bytes = String::from_utf8_lossy(&chat.bytes()).into_owned();
    assert!(bytes.contains("\tcc -o a a.c"), "{bytes:?}");
}

// H-156, H-158
#[test]
fn tools_and_reasoning_have_their_lines() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let call =
        Reply::new()
            .reasoning("hmm, let me see")
            .call("c1", "bash", r#"{"command":"echo one"}"#);
    server.script(call.call("c2", "fs_read", r#"{"path":"missing.txt"}"#));
    server.script(Reply::text("All done."));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("work\r");
    chat.wait_for("All done.");
    let screen = chat.wait_idle();
    let mut shown = String::new();
    let (_, turn) = screen.split_once("workspace > work\n").unwrap();
    for line in turn.lines().take(7) {
        let digits = |c: char| if c.is_ascii_digit() { 'N' } else { c };
        let line: String = line.chars().map(digits).collect();
        let _ = writeln!(shown, "{}", line.replace("NN", "N").replace("NN", "N"));
    }
    assert!(
        shown.starts_with(
            "[+] Thinking (N chars hidden)\n● bash(command: echo one)\n  ⎿ completed in N ms\n    one\n\
             ● fs_read(path: missing.txt)\n  ⎿ failed in N ms\n    cannot read "
        ),
        "{shown}"
    );
    chat.send(",thinking\r");
    let screen = chat.wait_for("[-] Thinking");
    assert!(screen.contains("hmm, let me see"), "{screen}");
    assert!(screen.contains("thinking shown"), "{screen}");
}

#[test]
fn a_call_of_a_tool_that_does_not_exist_has_failed() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::new().call("c1", "no_such_tool", "{}"));
    server.script(Reply::text("All done."));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("work\r");
    chat.wait_for("All done.");
    let screen = chat.wait_idle();
    let (_, after) = screen
        .split_once("● no_such_tool()\n  ⎿ failed in ")
        .unwrap_or_else(|| panic!("{screen}"));
    assert!(
        after
            .lines()
            .nth(1)
            .is_some_and(|reason| reason.contains("no_such_tool")),
        "{screen}"
    );
}

#[test]
fn ten_columns_are_enough_to_write_and_to_read() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::text("A few words and 你好."));
    let mut chat = TerminalOptions::new(&sandbox)
        .model(&server)
        .size(10, 8)
        .start();
    chat.wait_until(|screen| screen.contains(" >"));
    chat.send("a long line\r");
    chat.wait_until(|screen| screen.contains("你好."));
    chat.wait_idle();
    let text = chat.scrollback().replace('\n', "");
    assert!(text.contains("words"), "{text}");
    chat.send("\x04");
    assert_eq!(chat.wait_end().0, Some(0));
    assert!(chat.is_restored());
}

#[test]
fn one_can_leave_in_the_middle_of_a_flood() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    let flood = Reply::deltas((0..50_000).map(|number| format!("w{number} ")));
    server.script(flood.paced(&pace));
    // It has no end, so that the chat cannot wait for it.
    pace.allow(49_000);
    let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("go\r");
    chat.wait_until(|screen| screen.contains("Generating") && screen.contains("w1"));
    chat.send(",quit\r");
    let (code, screen) = chat.wait_end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(chat.is_restored() && screen.ends_with("Bye."), "{screen}");
}
