//! Tests input: the line editor, lines during a turn, and answers to questions.

use bub_testkit::model::{ModelServer, Pace, Reply};

use super::terminal::TerminalOptions;
use crate::sandbox::Sandbox;

/// Returns the texts of user messages in the last request.
fn user_texts(server: &ModelServer) -> String {
    server
        .requests()
        .last()
        .map(|request| String::from_utf8_lossy(&request.body).into_owned())
        .unwrap_or_default()
}

// C.6, L6: the history file has the format of the Python version; multi-line paste; completion.
#[test]
fn lines_are_edited_completed_pasted_and_remembered() {
    let sandbox = Sandbox::new();
    let mut chat = TerminalOptions::new(&sandbox).start();
    chat.wait_idle();
    chat.send(",tape.i\t");
    chat.wait_for("workspace > ,tape.info");
    chat.send("\r");
    chat.wait_for("last_anchor");
    chat.wait_idle();
    chat.send("\x1b[200~,printf '%s.' one\ntwo\x1b[201~");
    let screen = chat.wait_for("            two");
    assert!(!screen.contains("one."), "pasted, not sent:\n{screen}");
    chat.send("\x7f\x7f\x7fzwei");
    chat.wait_for("            zwei");
    chat.send("\x15\x7f\r");
    chat.wait_until(|screen| screen.contains("\none.\n"));
    chat.wait_idle();
    chat.send("\x1b[A");
    chat.wait_for("workspace > ,printf '%s.' one\nopenai:small");
    chat.send("\x15,ta");
    let hinted = chat.wait_for("workspace > ,tape.info");
    assert!(
        hinted.contains(",tape.info"),
        "the history offers how to go on:\n{hinted}"
    );
    chat.send("\x15\x04");
    assert_eq!(chat.wait_end().0, Some(0));
    let directory = std::fs::read_dir(sandbox.home().join("history")).unwrap();
    let files: Vec<_> = directory.map(|file| file.unwrap().path()).collect();
    let [file] = files.as_slice() else {
        panic!("{files:?}")
    };
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(
        name.len() == 32 + ".history".len() && name.ends_with(".history"),
        "{name}"
    );
    let text = std::fs::read_to_string(file).unwrap();
    let records: Vec<&str> = text.lines().filter(|line| line.starts_with('+')).collect();
    assert_eq!(records.first(), Some(&"+,tape.info"));
    assert!(text.starts_with("\n# 20"), "{text}");
    // The next chat has the history, too.
    let chat = TerminalOptions::new(&sandbox).start();
    chat.wait_idle();
    chat.send("\x1b[A\x1b[A");
    chat.wait_for("workspace > ,tape.info");
}

// H-155: Ctrl-X, and commands without their comma.
#[test]
fn in_shell_mode_lines_are_commands() {
    let sandbox = Sandbox::new();
    let chat = TerminalOptions::new(&sandbox).start();
    chat.wait_idle();
    chat.send("\x18");
    chat.wait_for("shell mode ·");
    chat.send("echo $((20 + 3))\r");
    chat.wait_until(|screen| screen.lines().any(|line| line == "23"));
    chat.send("\x18");
    chat.wait_until(|screen| !screen.contains("\nshell mode"));
    let text = chat.scrollback();
    assert!(!text.contains(", ,"), "{text}");
}

// H-157, W-47: text steers the running turn, a command is queued for its own turn, and both are shown as such.
#[test]
fn text_steers_and_commands_wait() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    let call = Reply::new()
        .say("Let me look.")
        .call("c1", "bash", r#"{"command":"echo one"}"#);
    server.script(call.paced(&pace));
    server.script(Reply::text("I heard you."));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("start\r");
    pace.allow(1);
    chat.wait_for("Generating");
    chat.send("turn left\r");
    chat.wait_for("(steering) turn left");
    chat.send(",echo com''mand\r");
    let screen = chat.wait_for("(queued) ,echo com''mand");
    assert!(!screen.contains("\ncommand\n"), "{screen}");
    pace.release();
    chat.wait_for("I heard you.");
    chat.wait_until(|screen| screen.contains("\ncommand"));
    let screen = chat.wait_idle();
    assert!(user_texts(&server).contains("turn left"));
    assert!(
        !user_texts(&server).contains("com''mand"),
        "a command is not said to the model"
    );
    let order = [
        "> start",
        "● bash",
        "> turn left (steering)",
        "I heard you.",
        "── Command ,echo",
    ];
    let places: Vec<_> = order
        .map(|text| {
            screen
                .find(text)
                .unwrap_or_else(|| panic!("{text}\n{screen}"))
        })
        .into();
    assert!(places.is_sorted(), "{screen}");
}

// W-14: a line typed while a command runs is answered, also if the user leaves immediately.
#[test]
fn what_was_typed_is_answered_before_the_chat_ends() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::text("Answered."));
    let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    std::fs::write(sandbox.workspace().join("wait"), "").unwrap();
    chat.send(",while [ -e wait ]; do sleep 0.05; done; echo over\r");
    chat.wait_for("Running");
    chat.send("a question\r");
    chat.wait_for("(queued) a question");
    chat.send("\x04");
    chat.wait_for("leaving after this turn");
    std::fs::remove_file(sandbox.workspace().join("wait")).unwrap();
    let (code, screen) = chat.wait_end();
    assert_eq!(code, Some(0), "{screen}");
    let text = chat.scrollback();
    assert!(
        text.contains("Answered.") && text.ends_with("Bye."),
        "{text}"
    );
}

// ,quit cancels the line whose session is being resolved and the lines behind it. The model gets none of them.
#[test]
fn quit_cancels_lines_that_are_not_in_the_session_yet() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("Answered."));
    let program = crate::sandbox::example("failing_stage");
    let options = TerminalOptions::new(&sandbox).model(&server);
    let mut chat = options.program(&program).start();
    chat.wait_idle();
    sandbox.write("workspace/fault", "resolve_session hang");
    chat.send("one\r");
    while !sandbox.workspace().join("reached").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for line in ["two", "three"] {
        chat.send(format!("{line}\r"));
        chat.wait_for(&format!("… {line}"));
    }
    chat.send(",quit\r");
    let (code, screen) = chat.wait_end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(server.requests().is_empty(), "{screen}");
}

// ,quit works immediately, also while a turn runs.
#[test]
fn quit_does_not_wait() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["one", "two"]).paced(&pace));
    let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("go\r");
    chat.wait_for("Generating");
    chat.send(",quit\r");
    let (code, screen) = chat.wait_end();
    assert_eq!(code, Some(0));
    assert!(screen.ends_with("Bye."), "{screen}");
    assert!(chat.is_restored());
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    let screen = chat.wait_idle();
    assert!(
        !screen.contains("from an earlier chat"),
        "it was ended, not put off:\n{screen}"
    );
}

#[test]
fn a_question_is_answered_in_the_prompt_and_a_draft_is_kept() {
    for (answer, expected) in [
        ("y\r", "completed in"),
        ("s\r", "completed in"),
        ("n\r", "⎿ denied"),
        ("n use another file\r", "use another file"),
        ("\r", "⎿ denied"),
    ] {
        let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
        let call = Reply::new().call("c1", "bash", r#"{"command":"echo dangerous"}"#);
        server.script(call.paced(&pace));
        server.script(Reply::text("So be it."));
        sandbox.write(
            "home/config.yml",
            "policy:\n  rules:\n    - {tools: [bash], action: ask}\n",
        );
        let chat = TerminalOptions::new(&sandbox).model(&server).start();
        chat.wait_idle();
        chat.send("do it\r");
        chat.wait_for("Generating");
        chat.send("my dra");
        chat.wait_for("workspace > my dra");
        pace.release();
        let screen = chat.wait_for("allow? [y/s/a/N]");
        assert!(
            screen.contains("allow bash?\n  │ $ echo dangerous\n  y  allow it once\n"),
            "{screen}"
        );
        for text in ["something else", ",status"] {
            chat.send(format!("{text}\r"));
            chat.wait_for("answer the question first");
        }
        chat.wait_until(|screen| screen.lines().any(|line| line == "allow? [y/s/a/N]"));
        chat.send(answer);
        chat.wait_for(expected);
        chat.wait_for("So be it.");
        chat.wait_until(|screen| {
            screen.contains("workspace > my dra\n") && !screen.contains("Ctrl-C: cancel")
        });
    }
}

#[test]
fn a_history_that_cannot_be_written_is_reported_once_and_stops_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write("home/history", "in the way");
    let chat = TerminalOptions::new(&sandbox).size(240, 24).start();
    chat.wait_idle();
    chat.send(",echo o''ne\r");
    chat.wait_until(|screen| screen.contains("\none\n"));
    chat.wait_idle();
    chat.send(",echo t''wo\r");
    chat.wait_until(|screen| screen.contains("\ntwo\n"));
    let text = chat.scrollback();
    assert_eq!(
        text.matches("lines are kept until you leave").count(),
        1,
        "{text}"
    );
    chat.wait_idle();
    chat.send("\x1b[A\x1b[A");
    chat.wait_for("workspace > ,echo o''ne");
}

#[test]
fn bytes_that_are_no_text_do_no_harm() {
    let sandbox = Sandbox::new();
    let chat = TerminalOptions::new(&sandbox).start();
    chat.wait_idle();
    chat.send(b"\xff\xfe\x1b[99~\x1b[<0;1;1M,echo fi\xc3\xbcr\r");
    chat.send("\x15\x1b[H,echo a''live\r");
    chat.wait_until(|screen| screen.contains("alive"));
}

// Lines are processed one by one, so that text stays text and commands stay commands.
#[test]
fn what_waits_can_be_taken_back() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::text("The answer.").paced(&pace));
    let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("go\r");
    chat.wait_for("Generating");
    chat.send("aside\rsteer\r,touch never\rmore\r");
    chat.wait_until(|screen| {
        screen.contains("(steering) steer") && screen.contains("(queued) more")
    });
    chat.wait_for("Up: edit the last queued line");
    chat.send("\x1b[A\x1b[A");
    chat.wait_until(|screen| {
        screen.contains("workspace > more\n") && !screen.contains("(queued) more")
    });
    let screen = chat.wait_until(|screen| !screen.contains("Up: edit"));
    assert!(
        screen.contains("(queued) ,touch never"),
        "one at a time:\n{screen}"
    );
    chat.send("\x15\x1b[A");
    chat.wait_until(|screen| {
        screen.contains("workspace > ,touch never\n") && !screen.contains("(queued)")
    });
    chat.send("\x15\x18\x1b[A");
    // It is not a command, also in shell mode.
    let screen = chat.wait_until(|screen| {
        screen.contains("workspace > steer\n") && screen.contains("openai:small · ")
    });
    assert!(
        screen.contains("(steering) aside") && !screen.contains("(steering) steer"),
        "{screen}"
    );
    chat.send("\x15,touch ne''ver\r");
    chat.wait_for("(queued) ,touch ne''ver");
    chat.send("\x18\x1b[A");
    chat.wait_until(|screen| screen.contains("\n, touch ne''ver\n"));
    chat.send("\x15\x18");
    chat.wait_for("(steering) aside");
    server.script(Reply::text("And aside."));
    pace.release();
    chat.wait_for("And aside.");
    chat.wait_idle();
    assert!(
        user_texts(&server).contains("aside") && !user_texts(&server).contains("steer\""),
        "{}",
        user_texts(&server)
    );
    chat.send("\x04");
    assert_eq!(chat.wait_end().0, Some(0));
    assert_eq!(server.requests().len(), 2);
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    let screen = chat.wait_idle();
    assert!(!screen.contains("from an earlier chat"), "{screen}");
    assert!(!sandbox.workspace().join("never").exists());
}

#[test]
fn at_a_question_up_is_not_promised_to_take_anything_back() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(
        Reply::new()
            .call("c1", "bash", r#"{"command":"true"}"#)
            .paced(&pace),
    );
    sandbox.write(
        "home/config.yml",
        "policy:\n  rules:\n    - {tools: [bash], action: ask}\n",
    );
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("go\r");
    chat.wait_for("Generating");
    chat.send(",echo later\r");
    chat.wait_for("Up: edit the last queued line");
    pace.release();
    let screen = chat.wait_for("allow? [y/s/a/N]");
    assert!(
        screen.contains("(queued) ,echo later") && !screen.contains("Up: edit"),
        "{screen}"
    );
}

// The disk is full, or a file has reached its size limit.
#[test]
fn a_history_that_cannot_grow_is_reported_and_stops_nothing() {
    let sandbox = Sandbox::new();
    let mut chat = TerminalOptions::new(&sandbox).start();
    chat.wait_idle();
    chat.send(",true\r");
    chat.wait_for("(no output)");
    chat.wait_idle();
    chat.send("\x04");
    chat.wait_end();
    let file = std::fs::read_dir(sandbox.home().join("history"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let before = "\n# 2026-01-01 00:00:00.000000\n+,echo o''ld\n".repeat(60_000);
    std::fs::write(&file, &before).unwrap();
    let script = without_xfsz(&sandbox, "ulimit -f 1024");
    let chat = TerminalOptions::new(&sandbox)
        .program(&script)
        .size(240, 24)
        .start();
    chat.wait_idle();
    chat.send(",echo o''ne\r");
    chat.wait_until(|screen| screen.contains("\none\n"));
    let screen = chat.wait_idle();
    assert!(
        screen.contains("too large") && screen.contains("lines are kept until you leave"),
        "{screen}"
    );
    chat.send("\x1b[A");
    chat.wait_for("workspace > ,echo o''ne");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
}

// Queued lines are counted if there is no room to show them; a second Ctrl-C leaves also if the next turn already runs;
// a line that steered a cancelled turn is answered separately.
#[test]
fn many_lines_wait_and_each_is_seen_with_its_answer() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Half", " of it"]).paced(&pace));
    for number in 1..=6 {
        server.script(Reply::text(format!("Answer {number}.")));
    }
    let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("go\r");
    pace.allow(1);
    chat.wait_for("Generating");
    for number in 1..=6 {
        chat.send(format!("line {number}\r"));
        chat.wait_for(&format!("(steering) line {number}"));
    }
    chat.wait_for("(3 more queued)");
    chat.send("\x03");
    chat.wait_for("Answer 6.");
    chat.wait_idle();
    let screen = chat.scrollback();
    let places: Vec<_> = (1..=6)
        .flat_map(|number| {
            [
                format!("workspace > line {number}\n"),
                format!("Answer {number}."),
            ]
        })
        .map(|text| {
            screen
                .find(&text)
                .unwrap_or_else(|| panic!("{text}\n{screen}"))
        })
        .collect();
    assert!(places.is_sorted(), "{screen}");

    chat.send(",while true; do sleep 0.05; done\r");
    chat.wait_for("Running");
    chat.send(",while : second; do sleep 0.05; done\r");
    chat.wait_for("(queued) ,while : second");
    chat.send("\x03");
    // Ctrl-C belongs to the turn that runs now.
    chat.wait_until(|screen| {
        screen.contains("workspace > ,while : second") && screen.contains("(Esc or Ctrl-C: cancel)")
    });
    chat.send("\x03");
    let screen = chat.wait_until(|screen| screen.matches("(cancelled)").count() >= 2);
    assert!(!screen.contains("not answered"), "{screen}");
    chat.send("\x03");
    let (code, screen) = chat.wait_end();
    assert_eq!(code, Some(0), "{screen}");
}

// L1: a line is shown as queued only after it is on disk.
#[test]
fn a_line_that_cannot_be_written_is_never_shown_as_waiting() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Half", " of it"]).paced(&pace));
    let script = without_xfsz(&sandbox, "");
    let chat = TerminalOptions::new(&sandbox)
        .program(&script)
        .model(&server)
        .size(120, 24)
        .start();
    chat.wait_idle();
    chat.send("a question\r");
    pace.allow(1);
    chat.wait_for("Generating");
    chat.limit_files(Some(1));
    chat.send(",touch ne''ver\r");
    chat.wait_for("not answered");
    chat.limit_files(None);
    chat.send(",touch o''nce\r");
    chat.wait_for("(queued) ,touch o''nce");
    pace.release();
    chat.wait_for("(no output)");
    chat.wait_idle();
    let written = String::from_utf8_lossy(&chat.bytes()).into_owned();
    assert!(
        written.contains("… ,touch ne''ver") && !written.contains("(queued) ,touch ne''ver"),
        "{written}"
    );
    assert!(
        sandbox.workspace().join("once").exists() && !sandbox.workspace().join("never").exists()
    );
}

/// Starts a program that gets an error, and no signal, if a file is too large.
fn without_xfsz(sandbox: &Sandbox, before: &str) -> std::path::PathBuf {
    let script = sandbox.workspace().join("limited");
    let text = format!(
        "#!/bin/sh\ntrap '' XFSZ\n{before}\nexec {} \"$@\"\n",
        crate::sandbox::bub().display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    script
}

#[test]
fn a_question_of_a_plugin_is_answered_in_the_prompt() {
    let sandbox = Sandbox::new();
    let code = "from bub_sdk import ask, hookimpl, serve\n\n@hookimpl\nasync def run_model(prompt):\n    \
                return 'Hello ' + await ask('Who is there?', default='you')\n\nserve()\n";
    if !crate::plugin::write_python_plugin(&sandbox, "asking", code) {
        return;
    }
    let chat = TerminalOptions::new(&sandbox).start();
    chat.wait_idle();
    for (typed, expected) in [("Ada\r", "Hello Ada"), ("\r", "Hello you")] {
        chat.send("knock\r");
        let screen = chat.wait_for("answer:");
        assert!(screen.contains("Who is there? [you]"), "{screen}");
        chat.send(typed);
        chat.wait_for(expected);
        chat.wait_idle();
    }
}

// Text after Ctrl-C is a message, not the answer to a question of the cancelled turn; two questions are asked one after
// the other.
#[test]
fn a_question_of_a_cancelled_turn_takes_no_answer() {
    let code = "import asyncio\nfrom bub_sdk import ask, hookimpl, serve\n\n@hookimpl\nasync def run_model(prompt):\n    \
                if 'later' in prompt: return 'a new turn'\n    \
                return 'Hello ' + ' and '.join(await asyncio.gather(ask('Who is there?'), ask('Who else?')))\n\nserve()\n";
    for args in [&[][..], &["--plain"]] {
        let sandbox = Sandbox::new();
        if !crate::plugin::write_python_plugin(&sandbox, "asking", code) {
            return;
        }
        let chat = TerminalOptions::new(&sandbox).args(args).start();
        chat.wait_for("workspace >");
        chat.send("knock\r");
        let screen =
            chat.wait_until(|screen| screen.ends_with("answer:") || screen.contains("\nanswer:"));
        assert!(
            screen.contains("Who is there?") != screen.contains("Who else?"),
            "{screen}"
        );
        chat.send("Ada\r");
        chat.wait_until(|screen| screen.contains("Who is there?") && screen.contains("Who else?"));
        chat.send("\x03");
        chat.wait_idle();
        chat.send("later\r");
        chat.wait_for("a new turn");
    }
}
