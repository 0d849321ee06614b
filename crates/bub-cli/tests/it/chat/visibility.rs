//! Tests what a user sees of a turn: output of tools, diffs, approvals, the last exchange, and the status line.

use bub_testkit::model::{ModelServer, Pace, Reply, ReplyUsage};

use super::terminal::{Terminal, TerminalOptions};
use crate::sandbox::Sandbox;

/// Replaces durations, which differ between runs.
fn stable(screen: &str) -> String {
    let mut text = String::new();
    for line in screen.lines() {
        let line = match line.split_once(" in ") {
            Some((before, rest)) if rest.ends_with(" ms") || rest.ends_with(" s") => {
                format!("{before} in TIME")
            }
            _ => line.to_owned(),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Returns the part of the screen from the message `go` up to the next prompt.
fn turn(screen: &str) -> String {
    let (_, turn) = screen
        .rsplit_once(" > go\n")
        .unwrap_or_else(|| panic!("{screen}"));
    let turn = turn
        .rsplit_once("\nworkspace >")
        .map_or(turn, |(turn, _)| turn);
    stable(turn)
}

fn ask_about(sandbox: &Sandbox, tools: &str) {
    let rules = format!("policy:\n  rules:\n    - {{tools: [{tools}], action: ask}}\n");
    sandbox.write("home/config.yml", &rules);
}

// The first lines of the output are shown, and Ctrl-O shows the rest.
#[test]
fn a_call_shows_the_first_lines_of_its_output_and_a_key_shows_all() {
    for (columns, color) in [(40, true), (80, true), (200, false)] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        let command = r#"{"command":"for i in 1 2 3 4 5 6 7 8 9; do echo line $i of the output, which is longer than forty columns; done"}"#;
        server.script(Reply::new().call("c1", "bash", command));
        server.script(Reply::text("All done."));
        let mut options = TerminalOptions::new(&sandbox)
            .model(&server)
            .size(columns, 40);
        if !color {
            options = options.set("NO_COLOR", "1");
        }
        let chat = options.start();
        chat.wait_idle();
        chat.send("go\r");
        chat.wait_for("All done.");
        let screen = chat.wait_idle();
        insta::assert_snapshot!(format!("output_at_{columns}_columns"), turn(&screen));
        assert!(!screen.contains("line 9"), "{screen}");
        chat.send("\x0f");
        let screen = chat.wait_for("line 9");
        assert!(screen.contains("line 1 of the output"), "{screen}");
        chat.send("\x0f");
        chat.wait_for("no output is hidden");
    }
}

#[test]
fn a_dumb_terminal_shows_the_output_and_the_command_for_the_rest() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::new().call("c1", "bash", r#"{"command":"seq 9"}"#));
    server.script(Reply::text("All done."));
    let chat = TerminalOptions::new(&sandbox)
        .model(&server)
        .set("TERM", "dumb")
        .start();
    chat.wait_for("workspace >");
    chat.send("go\n");
    chat.wait_for("All done.");
    let screen = chat.wait_until(|screen| screen.ends_with("workspace >"));
    insta::assert_snapshot!("output_on_a_dumb_terminal", turn(&screen));
    chat.send(",output\n");
    let screen = chat.wait_for("\n    9\n");
    assert!(!chat.bytes().contains(&0x1b), "{screen}");
}

// The output of a command is seen while the command runs.
#[test]
fn a_long_command_shows_its_output_while_it_runs() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let command =
        r#"{"command":"echo building; until [ -e finish ]; do sleep 0.1; done; echo built"}"#;
    server.script(Reply::new().call("c1", "bash", command));
    server.script(Reply::text("All done."));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("go\r");
    let screen = chat.wait_for("\n    building\n");
    assert!(!screen.contains("completed in"), "{screen}");
    sandbox.write("workspace/finish", "");
    chat.wait_for("    built");
    chat.wait_for("All done.");
}

#[test]
fn an_edit_is_shown_as_a_colored_diff() {
    for columns in [40, 80, 200] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        sandbox.write("workspace/a.txt", "one\ntwo\nthree\n");
        sandbox.write("workspace/c.txt", "1\n2\n3\n4\nold\n6\n7\n8\n9\n");
        let edit = r#"{"path":"a.txt","old":"one\ntwo\nthree","new":"one\n2\nthree\nfour"}"#;
        server.script(Reply::new().call("c1", "fs_edit", edit));
        let write = r#"{"path":"b.txt","content":"first\nsecond\n"}"#;
        server.script(Reply::new().call("c2", "fs_write", write));
        // Over an existing file, the diff shows what changes.
        let write = r#"{"path":"c.txt","content":"1\n2\n3\n4\nnew\n6\n7\n8\n9\n"}"#;
        server.script(Reply::new().call("c3", "fs_write", write));
        server.script(Reply::text("All done."));
        let chat = TerminalOptions::new(&sandbox)
            .model(&server)
            .set("TERM", "xterm-256color")
            .size(columns, 40)
            .start();
        chat.wait_idle();
        chat.send("go\r");
        chat.wait_for("All done.");
        let screen = chat.wait_idle();
        insta::assert_snapshot!(format!("diff_at_{columns}_columns"), turn(&screen));
        let bytes = String::from_utf8_lossy(&chat.bytes()).into_owned();
        assert!(bytes.contains("\x1b[31m- two\x1b[0m"), "{bytes:?}");
        assert!(bytes.contains("\x1b[32m+ 2\x1b[0m"), "{bytes:?}");
        assert!(bytes.contains("\x1b[31m- old\x1b[0m"), "{bytes:?}");
    }
}

fn approval(sandbox: &Sandbox, server: &ModelServer, columns: u16, dumb: bool) -> Terminal {
    ask_about(sandbox, "bash, fs.edit");
    let options = TerminalOptions::new(sandbox)
        .model(server)
        .size(columns, 40);
    let chat = if dumb {
        options.set("TERM", "dumb").start()
    } else {
        options.start()
    };
    chat.wait_for("workspace >");
    chat.send("go\r");
    chat
}

// The exact command or the diff is shown, with every answer.
#[test]
fn an_approval_shows_the_command_or_the_diff_and_the_answers() {
    for (columns, dumb) in [(40, false), (80, false), (200, false), (80, true)] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        sandbox.write("workspace/a.txt", "one\n");
        let call = Reply::new().call(
            "c1",
            "bash",
            r#"{"command":"echo one &&\necho two","timeout_seconds":5}"#,
        );
        server.script(call.call("c2", "fs_edit", r#"{"path":"a.txt","old":"one","new":"1"}"#));
        server.script(Reply::text("All done."));
        let chat = approval(&sandbox, &server, columns, dumb);
        chat.wait_for("allow? [y/s/a/N]");
        chat.send("y\r");
        chat.wait_for("allow fs.edit?");
        let screen = chat
            .wait_until(|screen| screen.matches("allow? [y/s/a/N]").count() > usize::from(dumb));
        let (screen, _) = screen.rsplit_once("\nallow? [").unwrap();
        let shown = screen.replace("allow? [y/s/a/N] ", "");
        // Without the running calls in the live area.
        let shown = shown.split("\n● ").next().unwrap_or(&shown);
        let name = if dumb {
            "dumb".to_owned()
        } else {
            columns.to_string()
        };
        insta::assert_snapshot!(format!("approval_{name}"), turn(shown));
        chat.send("n leave it as it is\r");
        chat.wait_for("All done.");
        let results = server.requests().pop().unwrap().json().to_string();
        assert!(results.contains("leave it as it is"), "{results}");
    }
}

// The question shows what the file has now.
#[test]
fn an_approval_shows_what_a_written_file_replaces() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    ask_about(&sandbox, "fs.write");
    sandbox.write("workspace/a.txt", "one\ntwo\n");
    let write = r#"{"path":"a.txt","content":"one\n2\n"}"#;
    server.script(Reply::new().call("c1", "fs_write", write));
    server.script(Reply::text("All done."));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_for("workspace >");
    chat.send("go\r");
    let screen = chat.wait_for("allow? [y/s/a/N]");
    let diff = "  │ path: a.txt\n  │   one\n  │ - two\n  │ + 2\n";
    assert!(screen.contains(diff), "{screen}");
    chat.send("y\r");
    chat.wait_for("All done.");
}

#[test]
fn always_writes_a_rule_and_shows_it() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::new().call("c1", "bash", r#"{"command":"echo one"}"#));
    server.script(Reply::text("All done."));
    let chat = approval(&sandbox, &server, 100, false);
    chat.wait_for("allow? [y/s/a/N]");
    chat.send("a\r");
    let screen = chat.wait_for("allowed; adding the rule to the config file: ");
    assert!(screen.contains("echo one"), "{screen}");
    chat.wait_for("All done.");
    let config = std::fs::read_to_string(sandbox.home().join("config.yml")).unwrap();
    assert!(config.contains(r#""action":"allow""#), "{config}");
}

// The answer is still valid for the call.
#[test]
fn always_says_if_the_rule_cannot_be_added() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::new().call("c1", "bash", r#"{"command":"echo one"}"#));
    server.script(Reply::text("All done."));
    let chat = approval(&sandbox, &server, 200, false);
    chat.wait_for("allow? [y/s/a/N]");
    sandbox.write("home/config.yml", "policy: [");
    chat.send("a\r");
    let screen = chat.wait_for("All done.");
    assert!(
        screen.contains("allowed once; the rule could not be added: "),
        "{screen}"
    );
    for wrong in ["rule added", "rule_not_added"] {
        assert!(!screen.contains(wrong), "{screen}");
    }
}

// A call that waits for an answer has not run, and the wait is not its time.
#[test]
fn a_call_that_was_never_approved_is_recorded_as_not_run() {
    for key in ["\x03", "\x1b"] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        server.script(Reply::new().call("c1", "bash", r#"{"command":"echo one"}"#));
        let chat = approval(&sandbox, &server, 80, false);
        chat.wait_for("allow? [y/s/a/N]");
        chat.send(key);
        let screen = chat.wait_for("(cancelled)");
        assert!(screen.contains("⎿ not run"), "{screen}");
        chat.wait_idle();
        let tape = sandbox.only_tape();
        assert!(tape.contains("[not run]"), "{tape}");
        assert!(!tape.contains("outcome unknown"), "{tape}");
    }
}

// The screen says about each call what the tape says.
#[test]
fn each_of_several_calls_is_completed_or_not_run() {
    for (answer, completed) in [("", 0), ("y\r", 1)] {
        for key in ["\x03", "\x1b"] {
            let (sandbox, server) = (Sandbox::new(), ModelServer::start());
            let calls = Reply::new().call("c1", "bash", r#"{"command":"echo one"}"#);
            server.script(calls.call("c2", "bash", r#"{"command":"echo two"}"#));
            let chat = approval(&sandbox, &server, 80, false);
            let screen = chat.wait_for("allow? [y/s/a/N]");
            assert!(screen.contains("echo one"), "{screen}");
            if !answer.is_empty() {
                chat.send(answer);
                chat.wait_until(|screen| {
                    let mut lines = screen.lines();
                    lines.any(|line| line.contains("│") && line.contains("echo two"))
                });
                chat.wait_for("allow? [y/s/a/N]");
            }
            chat.send(key);
            let screen = chat.wait_for("(cancelled)");
            assert_eq!(
                screen.matches("⎿ completed\n").count(),
                completed,
                "{screen}"
            );
            assert_eq!(
                screen.matches("⎿ not run").count(),
                2 - completed,
                "{screen}"
            );
            assert!(!screen.contains("outcome unknown"), "{screen}");
        }
    }
}

// A rule that is long or hard to read would push the call off the screen, so it is not offered.
#[test]
fn always_is_offered_only_for_short_and_plain_arguments() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    ask_about(&sandbox, "bash");
    let chat = TerminalOptions::new(&sandbox).model(&server).size(80, 24);
    let chat = chat.start();
    chat.wait_for("workspace >");
    let commands = [
        ("echo one".to_owned(), true),
        (format!("echo {}", "x".repeat(195)), true),
        (format!("echo {}", "x".repeat(196)), false),
        ("a\nb\nc\nd".to_owned(), true),
        ("a\nb\nc\nd\ne".to_owned(), false),
        ("a\n\nb".to_owned(), false),
        ("a\tb".to_owned(), false),
        ("a   b".to_owned(), false),
        ("a\u{200b}b".to_owned(), false),
        ("rm *".to_owned(), false),
    ];
    for (command, is_offered) in commands {
        let arguments = serde_json::json!({"command": command}).to_string();
        server.script(Reply::new().call("c1", "bash", &arguments));
        server.script(Reply::text("All done."));
        chat.send("\u{c}go\r");
        let screen = chat.wait_until(|screen| screen.contains("allow? [y/s/"));
        let choices = if is_offered { "[y/s/a/N]" } else { "[y/s/N]" };
        assert!(
            screen.contains(&format!("allow? {choices}")),
            "{command:?}: {screen}"
        );
        let rule = screen.contains("  a  allow it always, with the policy rule: ");
        assert_eq!(rule, is_offered, "{command:?}: {screen}");
        let start = command.split(['\n', '\t', '\u{200b}']).next().unwrap();
        let start: String = start.chars().take(40).collect();
        let start = start.split("   ").next().unwrap();
        assert!(
            screen.contains(&format!("allow bash?\n  │ $ {start}")),
            "{command:?}: {screen}"
        );
        chat.send("n\r");
        chat.wait_until(|screen| screen.contains("All done.") && !screen.contains("Working"));
        chat.wait_idle();
    }
}

/// Starts a chat, and waits for the question about the first of two calls.
fn question_about_two_calls(sandbox: &Sandbox, server: &ModelServer, dumb: bool) -> Terminal {
    let calls = Reply::new().call("c1", "bash", r#"{"command":"echo one"}"#);
    server.script(calls.call("c2", "bash", r#"{"command":"echo two"}"#));
    let chat = approval(sandbox, server, 80, dumb);
    chat.wait_for("allow? [y/s/a/N]");
    chat
}

// The screen says what the tape says.
#[test]
fn calls_that_wait_for_an_answer_are_not_run_if_the_user_leaves() {
    for dumb in [false, true] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        let mut chat = question_about_two_calls(&sandbox, &server, dumb);
        chat.send(",quit\r");
        let (code, screen) = chat.wait_end();
        assert_eq!(code, Some(0), "{screen}");
        assert_eq!(screen.matches("not run").count(), 2, "{screen}");
        assert!(!screen.contains("outcome unknown"), "{screen}");
        let tape = sandbox.only_tape();
        assert!(tape.contains(r#"["[not run]", "[not run]"]"#), "{tape}");
    }
}

// The tape shows before the question that the calls have not started.
#[test]
fn calls_that_wait_for_an_answer_are_not_run_if_bub_is_killed() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let mut chat = question_about_two_calls(&sandbox, &server, false);
    chat.signal("KILL");
    chat.wait_end();
    server.otherwise(Reply::text("All done."));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    let screen = chat.wait_for("All done.");
    assert!(screen.contains("  not run, because it waited"), "{screen}");
    assert!(!screen.contains("turn.interrupted"), "{screen}");
    chat.wait_idle();
    let request = server.requests().pop().unwrap().json().to_string();
    assert_eq!(request.matches("[not run]").count(), 2, "{request}");
    let tape = sandbox.only_tape();
    assert!(tape.contains(r#"["[not run]", "[not run]"]"#), "{tape}");
    assert!(!tape.contains("outcome unknown"), "{tape}");
}

// A call that was approved may have run, and the other one has not.
#[test]
fn a_call_that_was_approved_has_an_unknown_outcome_if_bub_is_killed() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let calls = r#"{"command":"touch started; until [ -e finish ]; do sleep 0.1; done"}"#;
    server.script(Reply::new().call("c1", "bash", calls));
    let mut chat = approval(&sandbox, &server, 80, false);
    chat.wait_for("allow? [y/s/a/N]");
    chat.send("y\r");
    let started = sandbox.workspace().join("started");
    crate::sandbox::wait_until("the command", || started.exists());
    chat.signal("KILL");
    chat.wait_end();
    sandbox.write("workspace/finish", "");
    server.otherwise(Reply::text("All done."));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_for("All done.");
    let request = server.requests().pop().unwrap().json().to_string();
    assert!(request.contains("outcome unknown"), "{request}");
}

// A closed window is no answer.
#[test]
fn calls_that_wait_for_an_answer_are_not_denied_if_the_window_is_closed() {
    for dumb in [false, true] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        let chat = question_about_two_calls(&sandbox, &server, dumb);
        chat.close();
        let tape = sandbox.only_tape();
        assert!(!tape.contains("denied"), "{tape}");
        server.otherwise(Reply::text("All done."));
        let chat = TerminalOptions::new(&sandbox).model(&server).start();
        chat.wait_for("workspace >");
        chat.send("next\r");
        chat.wait_for("All done.");
        let request = server.requests().pop().unwrap().json().to_string();
        assert_eq!(request.matches("[not run]").count(), 2, "{request}");
        assert!(!request.contains("denied by the user"), "{request}");
    }
}

// `bub run` asks at the terminal, too.
#[test]
fn a_run_whose_window_is_closed_denies_nothing() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    ask_about(&sandbox, "bash");
    server.script(Reply::new().call("c1", "bash", r#"{"command":"echo one"}"#));
    server.otherwise(Reply::text("All done."));
    let options = TerminalOptions::new(&sandbox).model(&server);
    let run = options.command(&["run", "go"]).start();
    run.wait_for("answer [y/s/a/N]");
    run.close();
    let tape = sandbox.only_tape();
    assert!(!tape.contains("denied"), "{tape}");
    assert!(tape.contains("[not run]"), "{tape}");
    assert_eq!(server.requests().len(), 1);
}

// Without a live area, the line of a call is the only sign that it runs.
#[test]
fn a_dumb_terminal_shows_a_call_when_it_starts() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let command = r#"{"command":"until [ -e finish ]; do sleep 0.1; done"}"#;
    server.script(Reply::new().call("c1", "bash", command));
    server.script(Reply::text("All done."));
    let options = TerminalOptions::new(&sandbox).model(&server);
    let chat = options.set("TERM", "dumb").start();
    chat.wait_for("workspace >");
    chat.send("go\n");
    chat.wait_for("tool bash(command: until");
    sandbox.write("workspace/finish", "");
    let screen = chat.wait_for("All done.");
    assert_eq!(screen.matches("tool bash(").count(), 1, "{screen}");
}

#[test]
fn the_time_of_a_call_does_not_include_the_question() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::new().call("c1", "bash", r#"{"command":"true"}"#));
    server.script(Reply::text("All done."));
    let chat = approval(&sandbox, &server, 80, false);
    let asked = std::time::Instant::now();
    chat.wait_for("allow? [y/s/a/N]");
    // Neither the activity line nor the result counts the time of the question.
    let screen = chat.wait_until(|_| asked.elapsed().as_secs_f64() > 3.5);
    assert!(!screen.contains(" 3 s ("), "{screen}");
    chat.send("y\r");
    let screen = chat.wait_for("completed in");
    chat.wait_for("All done.");
    let (_, time) = screen.split_once("completed in ").unwrap();
    let time = time.lines().next().unwrap();
    let seconds = match time.split_once(' ') {
        Some((number, "ms")) => number.parse::<f64>().unwrap() / 1000.0,
        Some((number, "s")) => number.parse().unwrap(),
        _ => panic!("{screen}"),
    };
    assert!(asked.elapsed().as_secs_f64() - seconds > 3.0, "{time}");
}

// Ctrl-C belongs to the turn that runs now; its hint goes with the moment; Escape cancels and never leaves.
#[test]
fn escape_and_control_c_cancel_the_turn_that_runs_now() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    for text in ["First part", "Second part", "Third part", "Fourth part"] {
        server.script(Reply::deltas([text, " never"]).paced(&pace));
    }
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    for (text, key, count) in [
        ("First", "\x03", 1),
        // Within two seconds, but in another turn.
        ("Second", "\x03", 2),
        ("Third", "\x1b", 3),
        ("Fourth", "\x1b", 4),
    ] {
        chat.send("again\r");
        pace.allow(2);
        chat.wait_for(text);
        chat.send(key);
        chat.wait_until(|screen| screen.matches("(cancelled)").count() == count);
        let screen = chat.wait_idle();
        let has_hint = screen.contains("press Ctrl-C again to leave");
        assert!(key == "\x03" || !has_hint, "{screen}");
    }
    // Without another key, both hints go with the time in which a second Ctrl-C leaves.
    server.script(Reply::deltas(["Fifth part", " never"]).paced(&pace));
    chat.send("again\r");
    pace.allow(2);
    chat.wait_for("Fifth");
    chat.send("\x03");
    chat.wait_for("cancelled; press Ctrl-C again to leave");
    chat.wait_until(|screen| !screen.contains("press Ctrl-C again"));
    chat.send("\x03");
    chat.wait_for("press Ctrl-C again or type ,quit to leave");
    let screen = chat.wait_until(|screen| !screen.contains("press Ctrl-C again"));
    assert!(screen.contains("openai:small · "), "{screen}");
}

#[test]
fn a_chat_that_continues_shows_the_last_exchange_and_how_to_start_fresh() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::text("The **first** answer."));
    let start = |columns| {
        let options = TerminalOptions::new(&sandbox).model(&server);
        options.size(columns, 30).start()
    };
    let mut chat = start(80);
    assert!(!chat.wait_idle().contains("continued"));
    chat.send("a question\r");
    chat.wait_for("The first answer.");
    chat.wait_idle();
    chat.send(",quit\r");
    chat.wait_end();
    for columns in [40, 80, 200] {
        let mut chat = start(columns);
        let screen = chat.wait_idle();
        let shown: Vec<_> = screen
            .lines()
            .filter(|line| !line.starts_with("workspace: ") && !line.starts_with("Bub "))
            .collect();
        insta::assert_snapshot!(format!("resumed_at_{columns}_columns"), shown.join("\n"));
        chat.send(",quit\r");
        chat.wait_end();
    }
    let chat = TerminalOptions::new(&sandbox)
        .model(&server)
        .args(&["--plain"])
        .start();
    let screen = chat.wait_for("workspace >");
    assert!(
        screen.contains("(continued; ,new starts a fresh one)")
            && screen.contains("you (earlier): a question\nAssistant:\nThe **first** answer."),
        "{screen}"
    );
}

#[test]
fn the_status_line_says_how_much_context_and_money_is_left() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let usage = ReplyUsage {
        input: 100_000,
        output: 0,
        ..ReplyUsage::default()
    };
    server.otherwise(Reply::text("Well.").usage(usage));
    sandbox.write(
        "home/config.yml",
        "providers:\n  openai:\n    context_window: {small: 400000}\n    prices: {small: {input: 1, output: 2}}\n",
    );
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_for("openai:small · effort default · 100% context left");
    chat.send(",reasoning_effort high\r");
    chat.wait_for("effort high");
    chat.send("hello\r");
    chat.wait_for("openai:small · effort high · 75% context left · $0.1000");
}

// What was visible while a command ran stays visible and is recorded, for calls of the model and for commands of the
// user.
#[test]
fn the_output_of_an_interrupted_command_stays() {
    let running = "echo building; echo linking; sleep 600";
    for (typed, shown, recorded) in [
        (
            "go",
            "  ⎿ interrupted, outcome unknown\n    building\n    linking\n(cancelled)",
            r"output until then:\nbuilding\nlinking",
        ),
        (
            ",echo building; echo linking; sleep 600",
            "building\nlinking\n\n(cancelled)",
            r"the turn was cancelled\noutput until then:\nbuilding\nlinking",
        ),
    ] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        let arguments = serde_json::json!({"command": running}).to_string();
        server.script(Reply::new().call("c1", "bash", &arguments));
        let chat = TerminalOptions::new(&sandbox).model(&server).start();
        chat.wait_idle();
        chat.send(format!("{typed}\r"));
        chat.wait_until(|screen| {
            let mut lines = screen.lines();
            lines.any(|line| line.trim() == "linking")
        });
        chat.send("\x1b");
        let screen = chat.wait_for("(cancelled)");
        assert!(screen.contains(shown), "{screen}");
        chat.wait_idle();
        let tape = sandbox.only_tape();
        assert!(tape.contains(recorded), "{tape}");
    }
}

// The hint about leaving is shown as long as a second Ctrl-C leaves, without a further key.
#[test]
fn the_hint_about_leaving_goes_with_the_moment() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let command = r#"{"command":"sleep 600"}"#;
    server.script(Reply::new().call("c1", "bash", command));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("go\r");
    chat.wait_for("bash(command: sleep 600)");
    chat.send("\x03");
    chat.wait_for("cancelled; press Ctrl-C again to leave");
    chat.wait_until(|screen| !screen.contains("again to leave"));
    chat.send("\x03");
    chat.wait_for("press Ctrl-C again or type ,quit to leave");
    chat.wait_until(|screen| !screen.contains("again or type"));
}
