//! Tests what `bub run` shows on a terminal: the answer while it arrives, tool activity, approvals, several widths, no
//! color, and a dumb terminal.

use bub_testkit::model::{ModelServer, Pace, Reply};

use crate::{
    chat::terminal::{Terminal, TerminalOptions},
    sandbox::Sandbox,
};

const ANSWER: [&str; 5] = [
    "# Plan\n\nThis is **important**: a paragraph that is longer ",
    "than forty columns, with 你好 and an emoji 🐙 in it.\n\n- first\n- second\n\n",
    "```rust\nlet x = 1; // one\n",
    "let text = \"a line of code that is longer than forty columns\";\n```\n\n",
    "Done.",
];
const COMMAND: &str =
    r#"{"command":"for i in 1 2 3 4 5 6 7 8 9; do echo line $i of the output; done"}"#;
const EDIT: &str = r#"{"path":"a.txt","old":"one\ntwo","new":"one\n2"}"#;

/// How a terminal differs from the one with 80 columns and colors.
struct Variant {
    name: &'static str,
    columns: u16,
    variables: &'static [(&'static str, &'static str)],
}

const XTERM: (&str, &str) = ("TERM", "xterm-256color");
const VARIANTS: [Variant; 5] = [
    Variant {
        name: "40_columns",
        columns: 40,
        variables: &[XTERM],
    },
    Variant {
        name: "80_columns",
        columns: 80,
        variables: &[XTERM],
    },
    Variant {
        name: "200_columns",
        columns: 200,
        variables: &[XTERM],
    },
    Variant {
        name: "no_color",
        columns: 80,
        variables: &[XTERM, ("NO_COLOR", "1")],
    },
    Variant {
        name: "dumb",
        columns: 80,
        variables: &[("TERM", "dumb")],
    },
];

impl Variant {
    fn start(&self, sandbox: &Sandbox, server: &ModelServer) -> Terminal {
        let options = TerminalOptions::new(sandbox)
            .model(server)
            .command(&["run", "go"])
            .size(self.columns, 50);
        let options = self
            .variables
            .iter()
            .fold(options, |options, (name, value)| options.set(name, value));
        options.start()
    }

    /// Checks the escape sequences of the output: colors only where they are allowed, none on a dumb terminal.
    #[track_caller]
    fn check_escapes(&self, terminal: &Terminal, color: &str) {
        let bytes = String::from_utf8_lossy(&terminal.bytes()).into_owned();
        let has_colors = (30..=37).any(|number| bytes.contains(&format!("\x1b[{number}m")));
        assert_eq!(
            has_colors,
            self.variables == [XTERM],
            "{}: {bytes:?}",
            self.name
        );
        assert!(
            !has_colors || bytes.contains(color),
            "{color:?} in {bytes:?}"
        );
        assert_eq!(bytes.contains('\x1b'), self.name != "dumb", "{bytes:?}");
    }
}

/// Replaces durations, which differ between runs.
fn stable(screen: &str) -> String {
    let lines = screen.lines().map(|line| match line.split_once(" in ") {
        Some((before, time)) if time.ends_with(" ms") || time.ends_with(" s") => {
            format!("{before} in TIME")
        }
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn an_answer_is_rendered_at_every_width_without_color_and_on_a_dumb_terminal() {
    for variant in &VARIANTS {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        server.script(Reply::deltas(ANSWER));
        let mut terminal = variant.start(&sandbox, &server);
        let (code, screen) = terminal.wait_end();
        assert_eq!(code, Some(0), "{screen}");
        insta::assert_snapshot!(format!("answer_{}", variant.name), screen);
        // A keyword.
        variant.check_escapes(&terminal, "\x1b[35mlet\x1b[0m");
    }
}

// Nothing waits for the end of the turn.
#[test]
fn the_screen_shows_the_answer_while_it_grows() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(ANSWER).paced(&pace));
    let mut terminal = VARIANTS[1].start(&sandbox, &server);
    terminal.wait_for("Generating");
    pace.allow(2);
    let screen = terminal.wait_for("This is important");
    assert!(screen.contains("Ctrl-C: cancel"), "{screen}");
    assert!(!screen.contains("emoji"), "{screen}");
    pace.allow(2);
    let screen = terminal.wait_for("let x = 1; // one");
    assert!(!screen.contains("Done."), "{screen}");
    pace.release();
    let (code, screen) = terminal.wait_end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(!screen.contains("Ctrl-C"), "{screen}");
}

#[test]
fn tool_calls_show_their_output_and_their_diff() {
    for variant in &VARIANTS {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        sandbox.write("workspace/a.txt", "one\ntwo\n");
        server.script(Reply::new().call("c1", "bash", COMMAND));
        server.script(Reply::new().call("c2", "fs_edit", EDIT));
        server.script(Reply::new().call("c3", "bash", r#"{"command":"exit 3"}"#));
        server.script(Reply::text("All **done**."));
        let mut terminal = variant.start(&sandbox, &server);
        let (code, screen) = terminal.wait_end();
        assert_eq!(code, Some(0), "{screen}");
        insta::assert_snapshot!(format!("tools_{}", variant.name), stable(&screen));
        variant.check_escapes(&terminal, "\x1b[31m- two\x1b[0m");
    }
}

#[test]
fn a_long_command_shows_its_output_while_it_runs() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let command =
        r#"{"command":"echo building; until [ -e finish ]; do sleep 0.1; done; echo built"}"#;
    server.script(Reply::new().call("c1", "bash", command));
    server.script(Reply::text("All done."));
    let mut terminal = VARIANTS[1].start(&sandbox, &server);
    let screen = terminal.wait_for("    building\n");
    assert!(!screen.contains("completed in"), "{screen}");
    sandbox.write("workspace/finish", "");
    let (code, screen) = terminal.wait_end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.contains("    built"), "{screen}");
}

#[test]
fn an_approval_shows_the_command_or_the_diff_and_the_answers() {
    for variant in &VARIANTS {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        let rules = "policy:\n  rules:\n    - {tools: [bash, fs.write], action: ask}\n";
        sandbox.write("home/config.yml", rules);
        sandbox.write("workspace/a.txt", "one\ntwo\n");
        server.script(Reply::new().call("c1", "bash", r#"{"command":"echo one &&\necho two"}"#));
        let write = r#"{"path":"a.txt","content":"one\n2\n"}"#;
        server.script(Reply::new().call("c2", "fs_write", write));
        server.script(Reply::text("All done."));
        let mut terminal = variant.start(&sandbox, &server);
        terminal.wait_for("or `n REASON`:");
        terminal.send("y\r");
        terminal.wait_for("allow fs.write?");
        terminal.wait_until(|screen| screen.matches("or `n REASON`:").count() == 2);
        terminal.send("n leave it as it is\r");
        let (code, screen) = terminal.wait_end();
        assert_eq!(code, Some(0), "{screen}");
        insta::assert_snapshot!(format!("approval_{}", variant.name), stable(&screen));
        let results = server.requests().pop().unwrap().json().to_string();
        assert!(results.contains("leave it as it is"), "{results}");
        let file = std::fs::read_to_string(sandbox.workspace().join("a.txt")).unwrap();
        assert_eq!(file, "one\ntwo\n");
    }
}

#[test]
fn control_c_keeps_the_part_of_the_answer_that_arrived() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Half of a", " sentence", " never said"]).paced(&pace));
    let mut terminal = VARIANTS[1].start(&sandbox, &server);
    pace.allow(3);
    terminal.wait_for("Half of a sentence");
    terminal.send("\x03");
    let (code, screen) = terminal.wait_end();
    assert_eq!(code, Some(130), "{screen}");
    assert!(screen.contains("Half of a sentence"), "{screen}");
    assert!(screen.contains("(cancelled)"), "{screen}");
}

#[test]
fn a_retry_is_shown_in_words() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server
        .script(Reply::status(503).message("overloaded"))
        .script(Reply::text("At last."));
    for variant in [&VARIANTS[1], &VARIANTS[4]] {
        let mut terminal = variant.start(&sandbox, &server);
        let (code, screen) = terminal.wait_end();
        assert_eq!(code, Some(0), "{screen}");
        assert!(screen.contains("At last."), "{screen}");
        assert!(
            screen.contains("retrying in 1 s: ") && screen.contains("overloaded"),
            "{screen}"
        );
        assert!(!screen.contains("WARN"), "{screen}");
        server
            .script(Reply::status(503).message("overloaded"))
            .script(Reply::text("At last."));
    }
}

// L4: a session runs one turn at a time, across processes.
#[test]
fn a_turn_that_waits_for_another_process_says_so_in_words() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let pace = Pace::stopped();
    server.script(Reply::deltas(["The first part\n\n", "is here."]).paced(&pace));
    server.script(Reply::text("The second answer."));
    let first = VARIANTS[1].start(&sandbox, &server);
    pace.allow(3);
    first.wait_for("The first part");
    for variant in [&VARIANTS[1], &VARIANTS[4]] {
        let second = variant.start(&sandbox, &server);
        let screen = second.wait_for("waiting for another turn of this session (process ");
        assert!(!screen.contains("WARN"), "{screen}");
    }
    pace.release();
    first.wait_for("is here.");
}

fn start_run(sandbox: &Sandbox, server: &ModelServer, args: &[&str]) -> Terminal {
    let options = TerminalOptions::new(sandbox).model(server);
    options.command(args).size(80, 50).start()
}

#[test]
fn a_question_is_asked_again_until_the_answer_is_clear() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::new().call("c1", "bash", r#"{"command":"touch made"}"#));
    server.script(Reply::text("All done."));
    let mut terminal = start_run(&sandbox, &server, &["run", "go", "--ask", "bash"]);
    terminal.wait_for("answer [y/s/a/N] or `n REASON`:");
    for wrong in ["maybe\r", "yes, but later\r"] {
        terminal.send(wrong);
        terminal.wait_for(wrong.trim_end());
    }
    terminal.wait_until(|screen| screen.matches("not an answer; answer [").count() == 2);
    assert!(!sandbox.workspace().join("made").exists());
    terminal.send("y\r");
    let (code, screen) = terminal.wait_end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.contains("allowed once"), "{screen}");
    assert!(sandbox.workspace().join("made").exists());
}

// `s` holds until bub exits, and `a` also in later runs with the same option.
#[test]
fn an_answer_for_longer_holds_in_spite_of_the_option_that_asks() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let again = r#"{"command":"echo again >> log"}"#;
    let script = || {
        server.script(Reply::new().call("c1", "bash", again));
        server.script(Reply::new().call("c2", "bash", again));
        server.script(Reply::text("All done."));
    };
    let lines = || {
        let log = std::fs::read_to_string(sandbox.workspace().join("log"));
        log.unwrap_or_default().lines().count()
    };
    let rows = [
        ("s\r", "allowed in this session until bub exits", 2),
        ("a\r", "adding the rule to the config file: allow: bash", 4),
        ("", "All done.", 6),
    ];
    for (answer, shown, count) in rows {
        script();
        let mut terminal = start_run(&sandbox, &server, &["run", "go", "--ask", "bash"]);
        if !answer.is_empty() {
            terminal.wait_for("or `n REASON`:");
            terminal.send(answer);
        }
        let (code, screen) = terminal.wait_end();
        assert_eq!(code, Some(0), "{screen}");
        assert!(screen.contains(shown), "{screen}");
        let questions = screen.matches("allow bash?").count();
        assert_eq!(questions, usize::from(!answer.is_empty()), "{screen}");
        assert_eq!(lines(), count, "{screen}");
    }
    // `--deny` still denies what is allowed always.
    script();
    let mut terminal = start_run(&sandbox, &server, &["run", "go", "--deny", "bash"]);
    let (_, screen) = terminal.wait_end();
    assert_eq!(lines(), 6, "{screen}");
}

#[test]
fn always_says_if_the_rule_cannot_be_added() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::new().call("c1", "bash", r#"{"command":"touch made"}"#));
    server.script(Reply::text("All done."));
    let mut terminal = start_run(&sandbox, &server, &["run", "go", "--ask", "bash"]);
    terminal.wait_for("or `n REASON`:");
    sandbox.write("home/config.yml", "policy: [");
    terminal.send("a\r");
    let (code, screen) = terminal.wait_end();
    assert_eq!(code, Some(0), "{screen}");
    let words: Vec<&str> = screen.split_whitespace().collect();
    let words = words.join(" ");
    let notice = "allowed once; the rule could not be added: ";
    assert!(words.contains(notice), "{screen}");
    assert!(!words.contains("rule_not_added"), "{screen}");
    assert!(sandbox.workspace().join("made").exists());
}

#[test]
fn the_output_of_an_interrupted_command_stays() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let command = r#"{"command":"echo building; echo linking; sleep 600"}"#;
    server.script(Reply::new().call("c1", "bash", command));
    let mut terminal = start_run(&sandbox, &server, &["run", "go"]);
    terminal.wait_for("    linking\n");
    terminal.send("\x03");
    let (code, screen) = terminal.wait_end();
    assert_eq!(code, Some(130), "{screen}");
    let shown = "  ⎿ interrupted, outcome unknown\n    building\n    linking\n(cancelled)";
    assert!(screen.contains(shown), "{screen}");
    let tape = sandbox.only_tape();
    assert!(
        tape.contains(r"output until then:\nbuilding\nlinking"),
        "{tape}"
    );
}

#[test]
fn control_c_at_a_question_interrupts_all_of_them() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let calls = Reply::new().call("c1", "fs_read", r#"{"path":"a"}"#);
    server.script(calls.call("c2", "fs_read", r#"{"path":"b"}"#));
    let mut terminal = start_run(&sandbox, &server, &["run", "go", "--ask", "fs.*"]);
    terminal.wait_for("or `n REASON`:");
    terminal.send("\x03");
    let (code, screen) = terminal.wait_end();
    assert_eq!(code, Some(130), "{screen}");
    assert_eq!(screen.matches("allow fs.read?").count(), 1, "{screen}");
    assert_eq!(screen.matches("⎿ not run").count(), 2, "{screen}");
    assert!(!screen.contains("outcome unknown"), "{screen}");
    let tape = sandbox.only_tape();
    assert_eq!(tape.matches("[not run]").count(), 2, "{tape}");
}

// The screen says about each call what the tape says.
#[test]
fn a_call_that_ended_before_the_interruption_is_completed() {
    for (options, code) in [(&[][..], 130), (&["--timeout", "4"], 124)] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        let calls = Reply::new().call("c1", "bash", r#"{"command":"echo fi''rst"}"#);
        server.script(calls.call("c2", "fs_edit", EDIT));
        let args = [&["run", "go", "--ask", "fs.edit"], options].concat();
        let mut terminal = start_run(&sandbox, &server, &args);
        terminal.wait_for("or `n REASON`:");
        if options.is_empty() {
            terminal.send("\x03");
        }
        let (ended, screen) = terminal.wait_end();
        assert_eq!(ended, Some(code), "{screen}");
        assert!(screen.contains("⎿ completed\n    first\n"), "{screen}");
        assert!(screen.contains("⎿ not run\n"), "{screen}");
        assert!(!screen.contains("outcome unknown"), "{screen}");
    }
}

#[test]
fn quiet_prints_only_the_answer() {
    for name in ["xterm-256color", "dumb"] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        server.script(Reply::new().call("c1", "bash", COMMAND));
        server.script(Reply::text("All done."));
        let options = TerminalOptions::new(&sandbox).model(&server);
        let options = options.command(&["run", "go", "-q"]).set("TERM", name);
        let (code, screen) = options.start().wait_end();
        assert_eq!((code, screen.trim()), (Some(0), "All done."), "{name}");
    }
}

#[test]
fn a_file_that_the_model_cannot_read_is_named_in_words() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("fine"));
    std::fs::write(sandbox.workspace().join("x.bin"), [0, 159, 146, 150]).unwrap();
    let mut terminal = start_run(&sandbox, &server, &["run", "go", "--file", "x.bin"]);
    let (code, screen) = terminal.wait_end();
    assert_eq!(code, Some(0), "{screen}");
    let said = "the model cannot read x.bin and gets only its path: unsupported file type";
    assert!(screen.contains(said), "{screen}");
    assert!(!screen.contains("WARN"), "{screen}");
}

#[test]
fn help_is_wrapped_between_words_on_a_terminal_and_not_in_a_pipe() {
    let sandbox = Sandbox::new();
    let piped = sandbox.bub(["run", "--help"]);
    let about = "Send one message and print the answer; short: bub \"MESSAGE\"\n";
    assert!(piped.stdout.starts_with(about), "{piped:?}");
    assert!(
        piped.stdout.lines().any(|line| line.len() > 100),
        "{piped:?}"
    );
    let options = TerminalOptions::new(&sandbox).command(&["run", "--help"]);
    let mut terminal = options.size(40, 200).start();
    let (code, screen) = terminal.wait_end();
    assert_eq!(code, Some(0), "{screen}");
    let words: Vec<&str> = piped.stdout.split_whitespace().collect();
    let shown: Vec<&str> = screen.split_whitespace().collect();
    assert_eq!(shown, words, "no word is split");
}
