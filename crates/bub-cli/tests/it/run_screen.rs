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
