//! Tests the session of a chat: a new one, the latest one, and one that another chat has open.

use bub_testkit::model::{ModelServer, Pace, Reply, ReplyUsage};

use super::terminal::TerminalOptions;
use crate::sandbox::{Sandbox, bub, ending_signals, signal, wait_until};

#[test]
fn new_and_resume_lead_the_chat_to_another_session() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::text("First answer."));
    server.script(Reply::text("Second answer."));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("the old topic\r");
    chat.wait_for("First answer.");
    chat.wait_idle();
    chat.send(",new\r");
    chat.wait_for("session: cli_session~");
    chat.wait_idle();
    chat.send("the new topic\r");
    chat.wait_for("Second answer.");
    chat.wait_idle();
    let request = String::from_utf8_lossy(&server.requests()[1].body).into_owned();
    assert!(
        request.contains("the new topic") && !request.contains("the old topic"),
        "{request}"
    );
    chat.send(",resume cli_session\r");
    chat.wait_for("Resumed session: cli_session");
    let screen = chat.wait_idle();
    assert!(screen.contains("\nsession: cli_session\n"), "{screen}");
}

#[test]
fn continue_resumes_the_last_session_of_the_workspace() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("Answer."));
    let ask = |args: &[&str], text: &str| {
        let chat = TerminalOptions::new(&sandbox)
            .model(&server)
            .args(args)
            .start();
        chat.wait_idle();
        chat.send(format!("{text}\r"));
        chat.wait_for("Answer.");
        chat.wait_idle();
    };
    ask(&["--session", "cli:special"], "the special topic");
    let chat = TerminalOptions::new(&sandbox)
        .model(&server)
        .args(&["--continue"])
        .start();
    let screen = chat.wait_idle();
    assert!(
        screen.contains("\nsession: cli:special (continued; "),
        "{screen}"
    );
    drop(chat);
    ask(&["-c"], "and now");
    let request = String::from_utf8_lossy(&server.requests().last().unwrap().body).into_owned();
    assert!(request.contains("the special topic"), "{request}");
    ask(&[], "elsewhere");
    let request = String::from_utf8_lossy(&server.requests().last().unwrap().body).into_owned();
    assert!(!request.contains("the special topic"), "{request}");
}

// `--session` selects exactly that session, independently of `,new` in its chat.
#[test]
fn a_session_that_is_named_is_opened_as_it_is() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("Answer."));
    let begin = |args: &[&str]| {
        let chat = TerminalOptions::new(&sandbox)
            .model(&server)
            .size(110, 40)
            .args(args)
            .start();
        (chat.wait_idle(), chat)
    };
    let (_, mut chat) = begin(&[]);
    chat.send("the first topic\r");
    chat.wait_for("Answer.");
    chat.wait_idle();
    chat.send(",new\r");
    let screen = chat.wait_for("\nsession: cli_session~");
    let fresh = screen
        .rsplit_once("session: ")
        .unwrap()
        .1
        .lines()
        .next()
        .unwrap()
        .to_owned();
    chat.wait_idle();
    chat.send("\x04");
    chat.wait_end();
    let (screen, mut chat) = begin(&[]);
    assert!(
        screen.contains(&format!("\nsession: {fresh}\n")),
        "{screen}"
    );
    chat.send(",echo us''ed\r");
    chat.wait_for("\nused\n");
    chat.wait_idle();
    chat.send("\x04");
    chat.wait_end();
    let (screen, mut chat) = begin(&["--session", "cli_session"]);
    assert!(
        screen.contains("\nsession: cli_session (continued; "),
        "{screen}"
    );
    chat.send("and more of it\r");
    chat.wait_until(|screen| screen.matches("Answer.").count() == 2);
    chat.wait_idle();
    assert!(
        String::from_utf8_lossy(&server.requests().last().unwrap().body)
            .contains("the first topic")
    );
    chat.send("\x04");
    chat.wait_end();
    let (screen, chat) = begin(&["--continue"]);
    assert!(
        screen.contains("\nsession: cli_session (continued; "),
        "{screen}"
    );
    // `,resume` can switch such a chat to the session that its tape names.
    chat.send(format!(",resume {fresh}\r"));
    chat.wait_for(&format!("\nsession: {fresh}\n"));
    chat.wait_idle();
    chat.send("a question\r");
    chat.wait_until(|screen| screen.matches("Answer.").count() == 2);
    chat.wait_idle();
    assert!(
        !String::from_utf8_lossy(&server.requests().last().unwrap().body)
            .contains("the first topic")
    );
}

#[test]
fn a_second_chat_on_the_same_session_is_offered_a_new_one() {
    let sandbox = Sandbox::new();
    let first = TerminalOptions::new(&sandbox).start();
    first.wait_idle();
    let second = TerminalOptions::new(&sandbox).start();
    second.wait_for("Session cli_session is open in another chat. Start a new one? [Y/n]");
    second.send("what?\n");
    second.wait_until(|screen| screen.matches("Start a new one?").count() == 2);
    second.send("\n");
    let screen = second.wait_idle();
    assert!(screen.contains("\nsession: cli:local-"), "{screen}");
    let mut third = TerminalOptions::new(&sandbox).start();
    third.wait_for("Start a new one?");
    third.send("n\n");
    let (_, screen) = third.wait_end();
    assert!(!screen.contains("workspace >"), "{screen}");
    if !crate::sandbox::is_ignored(2) {
        let mut fourth = TerminalOptions::new(&sandbox).start();
        fourth.wait_for("Start a new one?");
        fourth.send("\x03");
        let (code, screen) = fourth.wait_end();
        assert!(
            code != Some(0) && !screen.contains("workspace >"),
            "{screen}"
        );
    }
    let mut piped = sandbox.command(&bub());
    piped
        .arg("chat")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut piped = piped.stderr(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut piped.stdin.take().unwrap(), b",echo piped\n").unwrap();
    let run = crate::sandbox::Run::from_output(piped.wait_with_output().unwrap());
    assert!(
        run.stderr
            .contains("session `cli_session` is open in another chat; leave that chat, or pass another `--session`"),
        "{run:?}"
    );
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{run:?}");
}

// L1: every typed line is answered, by this chat or by the next one.
#[test]
fn a_chat_that_was_killed_leaves_nothing_unanswered() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Half", " lost"]).paced(&pace));
    server.otherwise(Reply::text("Answered at last."));
    let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("an important question\r");
    pace.allow(1);
    chat.wait_until(|screen| screen.contains("Generating") && !server.requests().is_empty());
    chat.signal("KILL");
    chat.wait_end();
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    let screen = chat.wait_for("Answered at last.");
    assert!(
        screen.contains("an important question (from an earlier chat)"),
        "{screen}"
    );
}

// Lines that an earlier chat left queued are visible and can be withdrawn.
#[test]
fn what_waits_from_an_earlier_chat_is_listed_and_can_be_taken_back() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Half", " lost"]).paced(&pace));
    let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("a question\r");
    pace.allow(1);
    chat.wait_for("Generating");
    chat.send(",touch first\r,touch second\rthird\r");
    chat.wait_for("(queued) third");
    // When it can be withdrawn, all earlier lines are on disk.
    chat.send("\x1b[A");
    chat.wait_for("workspace > third\n");
    chat.signal("KILL");
    chat.wait_end();
    let pace = Pace::stopped();
    server.script(Reply::text("Answered at last.").paced(&pace));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    let screen = chat.wait_until(|screen| {
        screen.contains("a question (from an earlier chat)")
            && screen.contains("Up: edit the last queued line")
    });
    assert!(
        screen.contains("(queued) ,touch first") && screen.contains("(queued) ,touch second"),
        "{screen}"
    );
    chat.send("\x1b[A");
    chat.wait_until(|s| {
        s.contains("workspace > ,touch second\n") && !s.contains("(queued) ,touch second")
    });
    chat.send("\x15");
    pace.release();
    chat.wait_for(",touch first (from an earlier chat)");
    chat.wait_for("(no output)");
    let screen = chat.wait_idle();
    assert!(
        screen.contains("Answered at last.") && !screen.contains("(queued)"),
        "{screen}"
    );
    assert!(
        sandbox.workspace().join("first").exists() && !sandbox.workspace().join("second").exists()
    );
}

// Design §5: a turn that had started when the process died does not run again.
#[test]
fn a_command_that_was_killed_is_not_run_again() {
    let sandbox = Sandbox::new();
    let mut chat = TerminalOptions::new(&sandbox).start();
    chat.wait_idle();
    chat.send(",echo ra''n | tee -a side.txt; sleep 25\r");
    chat.wait_until(|screen| screen.contains("\nran\n"));
    chat.signal("KILL");
    chat.wait_end();
    let chat = TerminalOptions::new(&sandbox).size(200, 24).start();
    let screen = chat
        .wait_for("may have taken effect; it was not run again. To run it again, send it again.");
    assert!(
        screen.contains("sleep 25 (from an earlier chat)"),
        "{screen}"
    );
    chat.wait_idle();
    assert_eq!(
        std::fs::read_to_string(sandbox.workspace().join("side.txt")).unwrap(),
        "ran\n"
    );
    chat.send(",echo tw''o\r");
    chat.wait_until(|screen| screen.contains("\ntwo\n"));
}

// L4, design §5: a line that steered a turn is part of it, also if the process dies in a tool call that it caused: the line
// is not sent again, its tool does not run again, and the line is settled with the turn. A line that had not reached the
// turn is answered as well.
#[test]
fn a_line_that_steered_a_killed_turn_is_not_said_again() {
    let in_order = ending_signals().into_iter().map(|(name, _)| name);
    for signal in in_order.chain(["KILL"]) {
        let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
        server.script(Reply::deltas(["The first", " answer."]).paced(&pace));
        server.script(Reply::new().call(
            "c1",
            "bash",
            r#"{"command": "echo ran >> side.txt; sleep 25"}"#,
        ));
        server.otherwise(Reply::text("On it goes."));
        let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
        chat.wait_idle();
        chat.send("a question\r");
        pace.allow(1);
        chat.wait_for("Generating");
        chat.send("steered once\r");
        chat.wait_for("(steering) steered once");
        pace.release();
        let side = sandbox.workspace().join("side.txt");
        chat.wait_until(|_| side.exists());
        chat.send("steered late\r");
        chat.wait_for("(steering) steered late");
        chat.signal(signal);
        chat.wait_end();
        let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
        let screen = chat.wait_for("On it goes.");
        assert!(screen.contains("The first answer."), "{screen}");
        chat.wait_idle();
        chat.send("\x04");
        chat.wait_end();
        let screen = TerminalOptions::new(&sandbox)
            .model(&server)
            .start()
            .wait_idle();
        assert!(
            !screen.contains("from an earlier chat"),
            "{signal}: all is settled\n{screen}"
        );
        assert_eq!(std::fs::read_to_string(&side).unwrap(), "ran\n", "{signal}");
        let requests = server.requests();
        let last = String::from_utf8_lossy(&requests.last().unwrap().body).into_owned();
        for line in ["a question", "steered once", "steered late"] {
            assert_eq!(last.matches(line).count(), 1, "{signal}: {line}: {last}");
        }
        assert!(last.contains("interrupted"), "{signal}: {last}");
    }
}

#[test]
fn what_waits_behind_new_belongs_to_the_new_session() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(
        Reply::text("Old answer.")
            .usage(ReplyUsage {
                input: 40,
                output: 2,
                ..ReplyUsage::default()
            })
            .paced(&pace),
    );
    server.script(Reply::text("New answer."));
    let chat = TerminalOptions::new(&sandbox)
        .model(&server)
        .size(120, 40)
        .start();
    chat.wait_idle();
    chat.send(",new\r");
    chat.wait_for("\nsession: cli_session~");
    chat.wait_idle();
    chat.send("the old topic\r");
    chat.wait_for("Generating");
    chat.send(",new\r");
    chat.wait_for("(queued) ,new");
    chat.send("the new topic\r");
    chat.wait_for("(queued) the new topic");
    chat.send(",echo la''st\r");
    chat.wait_for("(queued) ,echo");
    pace.release();
    chat.wait_until(|screen| screen.contains("\nlast\n"));
    let screen = chat.wait_idle();
    let order = [
        "Old answer.",
        "to return, type: ,resume cli_session~",
        "> the new topic",
        "New answer.",
        "\nlast\n",
    ];
    let places: Vec<_> = order
        .map(|text| {
            screen
                .find(text)
                .unwrap_or_else(|| panic!("{text}\n{screen}"))
        })
        .into();
    assert!(places.is_sorted(), "{screen}");
    let request = String::from_utf8_lossy(&server.requests()[1].body).into_owned();
    assert!(
        request.contains("the new topic") && !request.contains("the old topic"),
        "{request}"
    );
    // The status is that of the new session.
    let session = screen.rsplit_once("session: ").unwrap().1;
    let session = session.lines().next().unwrap().to_owned();
    chat.send(",status\r");
    chat.wait_for(&format!("session: {session}\nmodel: openai:small\n"));
}

#[test]
fn the_order_of_typing_is_kept_when_the_turn_is_cancelled() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Half", " never"]).paced(&pace));
    server.script(Reply::text("Second answer."));
    let chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_idle();
    chat.send("go\r");
    chat.wait_for("Generating");
    chat.send(",echo fi''rst\r");
    chat.wait_for("(queued) ,echo");
    chat.send("second\r");
    chat.wait_for("(queued) second");
    chat.send("\x03");
    chat.wait_for("Second answer.");
    let screen = chat.wait_idle();
    assert!(
        screen.find("\nfirst\n").unwrap() < screen.find("Second answer.").unwrap(),
        "{screen}"
    );
}

#[test]
fn the_status_is_that_of_the_session() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Half", " lost"]).paced(&pace));
    server.otherwise(Reply::text("Answered at last.").usage(ReplyUsage {
        input: 40,
        output: 2,
        ..ReplyUsage::default()
    }));
    let start = || TerminalOptions::new(&sandbox).model(&server).size(120, 24);
    let mut chat = start().start();
    chat.wait_idle();
    chat.send("a question\r");
    pace.allow(1);
    chat.wait_for("Generating");
    chat.signal("KILL");
    chat.wait_end();
    let chat = start().start();
    chat.wait_for("Answered at last.");
    // Also for a turn that this chat did not start.
    chat.wait_for("42 tokens in context");
    chat.send(",new\r");
    chat.wait_for("\nsession: cli_session~");
    chat.wait_until(|screen| !screen.contains("42 tokens in context"));
}

#[test]
fn sessions_are_listed_and_completed() {
    let sandbox = Sandbox::new();
    sandbox
        .bub(["run", "--session-id", "cli:other", ",echo one"])
        .ok();
    let chat = TerminalOptions::new(&sandbox).size(110, 40).start();
    chat.wait_idle();
    chat.send(",new\r");
    chat.wait_for("\nsession: cli_session~");
    chat.wait_idle();
    chat.send(",sessions\r");
    chat.wait_for(
        "Other sessions of this workspace (open one with `bub chat --session ID`):\n- cli:other  ",
    );
    chat.wait_idle();
    chat.send(",resume cli:other\r");
    chat.wait_for(
        "`cli:other` is not a session of this chat; open it with `bub chat --session cli:other`",
    );
    chat.wait_idle();
    chat.send(",resume \t");
    chat.wait_for("> ,resume cli_session\n");
    chat.send("~\t\r");
    chat.wait_for("Resumed session: cli_session~");
}

// A turn of another command that was killed does not resume automatically, because no journal has its message. The chat
// offers to finish it.
#[test]
fn a_chat_offers_to_finish_a_turn_that_was_killed() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::deltas(["Once upon ", "a time", " there"]).hang_after(3));
    server.script(Reply::text("there was a tape."));
    let mut run = sandbox.command(&bub());
    let base = format!("{}/v1", server.url());
    run.env("BUB_MODEL", "llamacpp:test")
        .env("BUB_LLAMACPP_API_BASE", base)
        .args(["run", "tell a story"]);
    let mut run = run.spawn().unwrap();
    let drafts = sandbox.home().join("tapes/.bub/drafts");
    wait_until("the answer is in the draft", || {
        let files = std::fs::read_dir(&drafts).into_iter().flatten().flatten();
        let mut texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
        texts.any(|text| text.contains("Once upon "))
    });
    signal(&run, "KILL");
    run.wait().unwrap();
    let options = TerminalOptions::new(&sandbox).model(&server);
    let chat = options.args(&["--session", "cli:local"]).start();
    let screen = chat.wait_for("Finish it now? [y/N]");
    assert!(screen.contains("message: tell a story"), "{screen}");
    assert!(screen.contains("answer so far: Once upon"), "{screen}");
    chat.send("y\r");
    chat.wait_for("there was a tape.");
    chat.wait_idle();
    let request = server.requests().last().unwrap().json();
    let messages = request["messages"].as_array().unwrap();
    let last = messages.last().unwrap()["content"].as_str().unwrap();
    assert!(last.ends_with("Continue the interrupted turn."), "{last}");
    let partial = messages[messages.len() - 2]["content"].as_str().unwrap();
    assert!(partial.starts_with("Once upon "), "{partial}");
}

/// Runs one turn in `cli:local`, where chats of the first release are.
fn run_once(sandbox: &Sandbox, model: &ModelServer) {
    let base = format!("{}/v1", model.url());
    let mut command = sandbox.command(&bub());
    command
        .args(["run", "from the first release"])
        .envs([("BUB_MODEL", "openai:small"), ("BUB_API_BASE", &base)])
        .env("BUB_API_KEY", "key-of-the-tests");
    assert!(command.output().unwrap().status.success());
}

// P-3: the chat uses the session of the Python version. A chat of the first release is offered once.
#[test]
fn a_chat_of_the_first_release_is_offered_once() {
    let model = ModelServer::start();
    model.otherwise(Reply::text("an answer"));
    let sandbox = Sandbox::new();
    let begin = || TerminalOptions::new(&sandbox).model(&model).start();
    run_once(&sandbox, &model);
    let mut chat = begin();
    chat.wait_for("Continue `cli:local` in this chat? [y/N]");
    chat.send("y\r");
    chat.wait_for("session: cli:local (continued; ");
    chat.wait_idle();
    chat.send("\x04");
    assert_eq!(chat.wait_end().0, Some(0));
    // The answer is kept.
    let mut chat = begin();
    let screen = chat.wait_for("session: cli:local (continued; ");
    assert!(!screen.contains("Continue `"), "{screen}");
    chat.wait_idle();
    // A later session of that chat is continued, too.
    chat.send(",new\r");
    chat.wait_for("New session: cli:local~");
    chat.wait_idle();
    chat.send("hello\r");
    chat.wait_for("an answer");
    chat.wait_idle();
    chat.send("\x04");
    assert_eq!(chat.wait_end().0, Some(0));
    let mut chat = begin();
    chat.wait_for("session: cli:local~");
    chat.wait_idle();
    chat.send("\x04");
    assert_eq!(chat.wait_end().0, Some(0));
}

#[test]
fn a_message_instead_of_an_answer_starts_the_chat() {
    let model = ModelServer::start();
    model.otherwise(Reply::text("an answer"));
    let sandbox = Sandbox::new();
    run_once(&sandbox, &model);
    let chat = TerminalOptions::new(&sandbox).model(&model).start();
    chat.wait_for("Continue `cli:local` in this chat? [y/N]");
    chat.send("what is new?\r");
    chat.wait_for("an answer");
    let request = model.requests().pop().unwrap().json().to_string();
    assert!(request.contains("what is new?"), "{request}");
    assert!(!request.contains("from the first release"), "{request}");
}

// An answer to the question was appended to a command, and ran in the shell.
#[test]
fn a_chat_with_a_message_asks_nothing_before_it() {
    let model = ModelServer::start();
    let sandbox = Sandbox::new();
    model.otherwise(Reply::text("an answer"));
    run_once(&sandbox, &model);
    let options = TerminalOptions::new(&sandbox).model(&model);
    let chat = options.command(&["chat", ",echo $((40+2))"]).start();
    let screen = chat.wait_for("42");
    assert!(!screen.contains("Continue"), "{screen}");
    assert!(screen.contains("bub chat --session cli:local"), "{screen}");
}

// P-11: completion, shell mode and hints use the prefix.
#[test]
fn a_chat_completes_commands_after_another_prefix() {
    let model = ModelServer::start();
    let sandbox = Sandbox::new();
    let options = TerminalOptions::new(&sandbox).model(&model);
    let mut chat = options.set("BUB_COMMAND_PREFIX", "::").start();
    chat.wait_for("::help lists commands");
    chat.wait_idle();
    chat.send("::tape.inf\t");
    chat.wait_for("::tape.info");
    chat.send("\r");
    chat.wait_for("anchors: ");
    chat.wait_idle();
    chat.send("::quit\r");
    assert_eq!(chat.wait_end().0, Some(0));
    assert_eq!(model.requests().len(), 0);
}

#[test]
fn a_chat_of_the_first_release_can_be_left_alone() {
    let model = ModelServer::start();
    model.otherwise(Reply::text("an answer"));
    let sandbox = Sandbox::new();
    let begin = || TerminalOptions::new(&sandbox).model(&model).start();
    run_once(&sandbox, &model);
    let mut chat = begin();
    chat.wait_for("Continue `cli:local` in this chat? [y/N]");
    chat.send("\r");
    let screen = chat.wait_for("session: cli_session\n");
    assert!(
        screen.contains("run `bub chat --session cli:local`"),
        "{screen}"
    );
    chat.wait_idle();
    chat.send(",resume zzz\r");
    chat.wait_for("unknown session `zzz`; type `,sessions`");
    chat.wait_idle();
    chat.send("hello\r");
    chat.wait_for("an answer");
    chat.wait_idle();
    chat.send("\x04");
    assert_eq!(chat.wait_end().0, Some(0));
    // The chat has its own session now.
    let mut chat = begin();
    let screen = chat.wait_for("session: cli_session (continued; ");
    assert!(!screen.contains("cli:local"), "{screen}");
    chat.wait_idle();
    chat.send("\x04");
    assert_eq!(chat.wait_end().0, Some(0));
}

#[test]
fn control_c_at_the_first_question_is_an_interruption() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("An answer."));
    let options = TerminalOptions::new(&sandbox).model(&server);
    let mut run = options.command(&["run", "hello"]).start();
    run.wait_end();
    let mut chat = TerminalOptions::new(&sandbox).model(&server).start();
    chat.wait_for("Continue `cli:local` in this chat? [y/N]");
    chat.send("\x03");
    let (code, screen) = chat.wait_end();
    assert_eq!(code, Some(130), "{screen}");
}
