//! What is typed: the editor in a terminal, lines while a turn runs, answers to questions.

use bub_testkit::model::{ModelServer, Pace, Reply};

use super::terminal::Start;
use crate::sandbox::Sandbox;

/// The texts of the users in the last request.
fn said(server: &ModelServer) -> String {
    server
        .requests()
        .last()
        .map(|request| String::from_utf8_lossy(&request.body).into_owned())
        .unwrap_or_default()
}

// C.6, L6: the history is that of the original; multi-line paste; completion.
#[test]
fn lines_are_edited_completed_pasted_and_remembered() {
    let sandbox = Sandbox::new();
    let mut chat = Start::new(&sandbox).go();
    chat.is_idle();
    chat.send(",tape.i\t");
    chat.sees("workspace > ,tape.info");
    chat.send("\r");
    chat.sees("last_anchor");
    chat.is_idle();
    chat.send("\x1b[200~,printf '%s.' one\ntwo\x1b[201~");
    let screen = chat.sees("            two");
    assert!(!screen.contains("one."), "pasted, not sent:\n{screen}");
    chat.send("\x7f\x7f\x7fzwei");
    chat.sees("            zwei");
    chat.send("\x15\x7f\r");
    chat.until(|screen| screen.contains("\none.\n"));
    chat.is_idle();
    chat.send("\x1b[A");
    chat.sees("workspace > ,printf '%s.' one\nHH");
    chat.send("\x15,ta");
    let hinted = chat.sees("workspace > ,tape.info");
    assert!(
        hinted.contains(",tape.info"),
        "the history offers how to go on:\n{hinted}"
    );
    chat.send("\x15\x04");
    assert_eq!(chat.ends().0, Some(0));
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
    // And the next chat knows them.
    let chat = Start::new(&sandbox).go();
    chat.is_idle();
    chat.send("\x1b[A\x1b[A");
    chat.sees("workspace > ,tape.info");
}

// H-155: Ctrl-X, and commands without their comma.
#[test]
fn in_shell_mode_lines_are_commands() {
    let sandbox = Sandbox::new();
    let chat = Start::new(&sandbox).go();
    chat.is_idle();
    chat.send("\x18");
    chat.sees("mode:shell");
    chat.send("echo $((20 + 3))\r");
    chat.until(|screen| screen.lines().any(|line| line == "23"));
    chat.send("\x18");
    chat.sees("mode:agent");
    let text = chat.everything();
    assert!(!text.contains(", ,"), "{text}");
}

// H-157, W-47: text steers the turn that runs, a command waits for its own; both are seen as what they are.
#[test]
fn text_steers_and_commands_wait() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    let call = Reply::new()
        .say("Let me look.")
        .call("c1", "bash", r#"{"cmd":"echo one"}"#);
    server.script(call.paced(&pace));
    server.script(Reply::text("I heard you."));
    let chat = Start::new(&sandbox).model(&server).go();
    chat.is_idle();
    chat.send("start\r");
    pace.allow(1);
    chat.sees("Generating");
    chat.send("turn left\r");
    chat.sees("(steering) turn left");
    chat.send(",echo com''mand\r");
    let screen = chat.sees("(queued) ,echo com''mand");
    assert!(!screen.contains("\ncommand\n"), "{screen}");
    pace.release();
    chat.sees("I heard you.");
    chat.until(|screen| screen.contains("\ncommand"));
    let screen = chat.is_idle();
    assert!(said(&server).contains("turn left"));
    assert!(
        !said(&server).contains("com''mand"),
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

// W-14: a line typed while a command runs is answered, also when the chat is left at once.
#[test]
fn what_was_typed_is_answered_before_the_chat_ends() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::text("Answered."));
    let mut chat = Start::new(&sandbox).model(&server).go();
    chat.is_idle();
    std::fs::write(sandbox.workspace().join("wait"), "").unwrap();
    chat.send(",while [ -e wait ]; do sleep 0.05; done; echo over\r");
    chat.sees("Running");
    chat.send("a question\r");
    chat.sees("(queued) a question");
    chat.send("\x04");
    chat.sees("leaving after this turn");
    std::fs::remove_file(sandbox.workspace().join("wait")).unwrap();
    let (code, screen) = chat.ends();
    assert_eq!(code, Some(0), "{screen}");
    let text = chat.everything();
    assert!(
        text.contains("Answered.") && text.ends_with("Bye."),
        "{text}"
    );
}

// ,quit at once, also while a turn runs.
#[test]
fn quit_does_not_wait() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["one", "two"]).paced(&pace));
    let mut chat = Start::new(&sandbox).model(&server).go();
    chat.is_idle();
    chat.send("go\r");
    chat.sees("Generating");
    chat.send(",quit\r");
    let (code, screen) = chat.ends();
    assert_eq!(code, Some(0));
    assert!(screen.ends_with("Bye."), "{screen}");
    assert!(chat.is_restored());
    let chat = Start::new(&sandbox).model(&server).go();
    let screen = chat.is_idle();
    assert!(
        !screen.contains("from an earlier chat"),
        "it was ended, not put off:\n{screen}"
    );
}

#[test]
fn a_question_is_answered_in_the_prompt_and_a_draft_is_kept() {
    for (answer, expected) in [
        ("y\r", "completed in"),
        ("n\r", "failed in"),
        ("\r", "failed in"),
    ] {
        let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
        let call = Reply::new().call("c1", "bash", r#"{"cmd":"echo dangerous"}"#);
        server.script(call.paced(&pace));
        server.script(Reply::text("So be it."));
        sandbox.write(
            "home/config.yml",
            "policy:\n  rules:\n    - {tools: [bash], action: ask}\n",
        );
        let chat = Start::new(&sandbox).model(&server).go();
        chat.is_idle();
        chat.send("do it\r");
        chat.sees("Generating");
        chat.send("my dra");
        chat.sees("workspace > my dra");
        pace.release();
        let screen = chat.sees("allow? [y/N]");
        assert!(
            screen.contains(r#"allow bash(cmd="echo dangerous")?"#),
            "{screen}"
        );
        chat.send("something else\r");
        chat.sees("answer y or n first");
        chat.until(|screen| screen.lines().any(|line| line == "allow? [y/N]"));
        chat.send(answer);
        chat.sees(expected);
        chat.sees("So be it.");
        chat.until(|screen| {
            screen.contains("workspace > my dra\n") && !screen.contains("Ctrl-C: cancel")
        });
    }
}

#[test]
fn a_history_that_cannot_be_written_is_said_once_and_stops_nobody() {
    let sandbox = Sandbox::new();
    sandbox.write("home/history", "in the way");
    let chat = Start::new(&sandbox).size(240, 24).go();
    chat.is_idle();
    chat.send(",echo o''ne\r");
    chat.until(|screen| screen.contains("\none\n"));
    chat.is_idle();
    chat.send(",echo t''wo\r");
    chat.until(|screen| screen.contains("\ntwo\n"));
    let text = chat.everything();
    assert_eq!(
        text.matches("lines are kept until you leave").count(),
        1,
        "{text}"
    );
    chat.is_idle();
    chat.send("\x1b[A\x1b[A");
    chat.sees("workspace > ,echo o''ne");
}

#[test]
fn bytes_that_are_no_text_do_no_harm() {
    let sandbox = Sandbox::new();
    let chat = Start::new(&sandbox).go();
    chat.is_idle();
    chat.send(b"\xff\xfe\x1b[99~\x1b[<0;1;1M,echo fi\xc3\xbcr\r");
    chat.send("\x15\x1b[H,echo a''live\r");
    chat.until(|screen| screen.contains("alive"));
}

// One by one, so that what is text stays text and what is a command a command.
#[test]
fn what_waits_can_be_taken_back() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::text("The answer.").paced(&pace));
    let mut chat = Start::new(&sandbox).model(&server).go();
    chat.is_idle();
    chat.send("go\r");
    chat.sees("Generating");
    chat.send("aside\rsteer\r,touch never\rmore\r");
    chat.until(|screen| screen.contains("(steering) steer") && screen.contains("(queued) more"));
    chat.sees("Up: edit the last queued line");
    chat.send("\x1b[A\x1b[A");
    chat.until(|screen| screen.contains("workspace > more\n") && !screen.contains("(queued) more"));
    let screen = chat.until(|screen| !screen.contains("Up takes back"));
    assert!(
        screen.contains("(queued) ,touch never"),
        "one at a time:\n{screen}"
    );
    chat.send("\x15\x1b[A");
    chat.until(|screen| {
        screen.contains("workspace > ,touch never\n") && !screen.contains("(queued)")
    });
    chat.send("\x15\x18\x1b[A");
    // It is no command, also in shell mode.
    let screen = chat
        .until(|screen| screen.contains("workspace > steer\n") && screen.contains("mode:agent"));
    assert!(
        screen.contains("(steering) aside") && !screen.contains("(steering) steer"),
        "{screen}"
    );
    chat.send("\x15,touch ne''ver\r");
    chat.sees("(queued) ,touch ne''ver");
    chat.send("\x18\x1b[A");
    chat.until(|screen| screen.contains("\n, touch ne''ver\n"));
    chat.send("\x15\x18");
    chat.sees("(steering) aside");
    server.script(Reply::text("And aside."));
    pace.release();
    chat.sees("And aside.");
    chat.is_idle();
    assert!(
        said(&server).contains("aside") && !said(&server).contains("steer\""),
        "{}",
        said(&server)
    );
    chat.send("\x04");
    assert_eq!(chat.ends().0, Some(0));
    assert_eq!(server.requests().len(), 2);
    let chat = Start::new(&sandbox).model(&server).go();
    let screen = chat.is_idle();
    assert!(!screen.contains("from an earlier chat"), "{screen}");
    assert!(!sandbox.workspace().join("never").exists());
}

#[test]
fn at_a_question_up_is_not_promised_to_take_anything_back() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(
        Reply::new()
            .call("c1", "bash", r#"{"cmd":"true"}"#)
            .paced(&pace),
    );
    sandbox.write(
        "home/config.yml",
        "policy:\n  rules:\n    - {tools: [bash], action: ask}\n",
    );
    let chat = Start::new(&sandbox).model(&server).go();
    chat.is_idle();
    chat.send("go\r");
    chat.sees("Generating");
    chat.send(",echo later\r");
    chat.sees("Up: edit the last queued line");
    pace.release();
    let screen = chat.sees("allow? [y/N]");
    assert!(
        screen.contains("(queued) ,echo later") && !screen.contains("Up takes back"),
        "{screen}"
    );
}

// A disk that is full, or a file that may grow no further.
#[test]
fn a_history_that_cannot_grow_is_said_and_stops_nobody() {
    let sandbox = Sandbox::new();
    let mut chat = Start::new(&sandbox).go();
    chat.is_idle();
    chat.send(",true\r");
    chat.sees("(no output)");
    chat.is_idle();
    chat.send("\x04");
    chat.ends();
    let file = std::fs::read_dir(sandbox.home().join("history"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let before = "\n# 2026-01-01 00:00:00.000000\n+,echo o''ld\n".repeat(60_000);
    std::fs::write(&file, &before).unwrap();
    let script = without_xfsz(&sandbox, "ulimit -f 1024");
    let chat = Start::new(&sandbox).program(&script).size(240, 24).go();
    chat.is_idle();
    chat.send(",echo o''ne\r");
    chat.until(|screen| screen.contains("\none\n"));
    let screen = chat.is_idle();
    assert!(
        screen.contains("too large") && screen.contains("lines are kept until you leave"),
        "{screen}"
    );
    chat.send("\x1b[A");
    chat.sees("workspace > ,echo o''ne");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
}

// What waits is counted where there is no room for it; a second Ctrl-C leaves also when the next line's turn runs by then; what
// steered a turn that was cancelled is answered beside itself.
#[test]
fn many_lines_wait_and_each_is_seen_with_its_answer() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Half", " of it"]).paced(&pace));
    for number in 1..=6 {
        server.script(Reply::text(format!("Answer {number}.")));
    }
    let mut chat = Start::new(&sandbox).model(&server).go();
    chat.is_idle();
    chat.send("go\r");
    pace.allow(1);
    chat.sees("Generating");
    for number in 1..=6 {
        chat.send(format!("line {number}\r"));
        chat.sees(&format!("(steering) line {number}"));
    }
    chat.sees("(3 more queued)");
    chat.send("\x03");
    chat.sees("Answer 6.");
    chat.is_idle();
    let screen = chat.everything();
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
    chat.sees("Running");
    chat.send(",while : second; do sleep 0.05; done\r");
    chat.sees("(queued) ,while : second");
    chat.send("\x03");
    chat.until(|screen| {
        screen.contains("workspace > ,while : second") && screen.contains("(Ctrl-C again: leave)")
    });
    chat.send("\x03");
    let (code, screen) = chat.ends();
    assert_eq!(code, Some(0), "{screen}");
}

// L1: a line is said to wait only once it is on disk.
#[test]
fn a_line_that_cannot_be_written_is_never_shown_as_waiting() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Half", " of it"]).paced(&pace));
    let script = without_xfsz(&sandbox, "");
    let chat = Start::new(&sandbox)
        .program(&script)
        .model(&server)
        .size(120, 24)
        .go();
    chat.is_idle();
    chat.send("a question\r");
    pace.allow(1);
    chat.sees("Generating");
    chat.limit_files(Some(1));
    chat.send(",touch ne''ver\r");
    chat.sees("not answered");
    chat.limit_files(None);
    chat.send(",touch o''nce\r");
    chat.sees("(queued) ,touch o''nce");
    pace.release();
    chat.sees("(no output)");
    chat.is_idle();
    let written = String::from_utf8_lossy(&chat.bytes()).into_owned();
    assert!(
        written.contains("… ,touch ne''ver") && !written.contains("(queued) ,touch ne''ver"),
        "{written}"
    );
    assert!(
        sandbox.workspace().join("once").exists() && !sandbox.workspace().join("never").exists()
    );
}

/// A program that is told of a file too large by an error, and nothing worse.
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
    if !crate::plugin::python(&sandbox, "asking", code) {
        return;
    }
    let chat = Start::new(&sandbox).go();
    chat.is_idle();
    for (typed, expected) in [("Ada\r", "Hello Ada"), ("\r", "Hello you")] {
        chat.send("knock\r");
        let screen = chat.sees("answer:");
        assert!(screen.contains("Who is there? [you]"), "{screen}");
        chat.send(typed);
        chat.sees(expected);
        chat.is_idle();
    }
}

// What is typed after Ctrl-C is a message, not the answer to a question of the turn that was ended; two questions are asked one
// after the other.
#[test]
fn a_question_of_a_cancelled_turn_takes_no_answer() {
    let code = "import asyncio\nfrom bub_sdk import ask, hookimpl, serve\n\n@hookimpl\nasync def run_model(prompt):\n    \
                if 'later' in prompt: return 'a new turn'\n    \
                return 'Hello ' + ' and '.join(await asyncio.gather(ask('Who is there?'), ask('Who else?')))\n\nserve()\n";
    for args in [&[][..], &["--plain"]] {
        let sandbox = Sandbox::new();
        if !crate::plugin::python(&sandbox, "asking", code) {
            return;
        }
        let chat = Start::new(&sandbox).args(args).go();
        chat.sees("workspace >");
        chat.send("knock\r");
        let screen =
            chat.until(|screen| screen.ends_with("answer:") || screen.contains("\nanswer:"));
        assert!(
            screen.contains("Who is there?") != screen.contains("Who else?"),
            "{screen}"
        );
        chat.send("Ada\r");
        chat.until(|screen| screen.contains("Who is there?") && screen.contains("Who else?"));
        chat.send("\x03");
        chat.is_idle();
        chat.send("later\r");
        chat.sees("a new turn");
    }
}
