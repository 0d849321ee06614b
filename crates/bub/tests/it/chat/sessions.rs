//! Which session a chat is about: a new one, the last one, one that another chat has open.

use bub_testkit::model::{ModelServer, Pace, Reply};

use super::terminal::Start;
use crate::sandbox::{Sandbox, bub};

#[test]
fn new_and_resume_lead_the_chat_to_another_session() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::text("First answer."));
    server.script(Reply::text("Second answer."));
    let chat = Start::new(&sandbox).model(&server).go();
    chat.is_idle();
    chat.send("the old topic\r");
    chat.sees("First answer.");
    chat.is_idle();
    chat.send(",new\r");
    chat.sees("session: cli:local~");
    chat.is_idle();
    chat.send("the new topic\r");
    chat.sees("Second answer.");
    chat.is_idle();
    let request = String::from_utf8_lossy(&server.requests()[1].body).into_owned();
    assert!(request.contains("the new topic") && !request.contains("the old topic"), "{request}");
    chat.send(",resume cli:local\r");
    chat.sees("Resumed session: cli:local");
    let screen = chat.is_idle();
    assert!(screen.contains("\nsession: cli:local\n"), "{screen}");
}

#[test]
fn continue_goes_on_with_the_last_session_of_the_workspace() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("Answer."));
    let ask = |args: &[&str], text: &str| {
        let chat = Start::new(&sandbox).model(&server).args(args).go();
        chat.is_idle();
        chat.send(format!("{text}\r"));
        chat.sees("Answer.");
        chat.is_idle();
    };
    ask(&["--session", "cli:special"], "the special topic");
    let chat = Start::new(&sandbox).model(&server).args(&["--continue"]).go();
    let screen = chat.is_idle();
    assert!(screen.contains("\nsession: cli:special\n"), "{screen}");
    drop(chat);
    ask(&["-c"], "and now");
    let request = String::from_utf8_lossy(&server.requests().last().unwrap().body).into_owned();
    assert!(request.contains("the special topic"), "{request}");
    ask(&[], "elsewhere");
    let request = String::from_utf8_lossy(&server.requests().last().unwrap().body).into_owned();
    assert!(!request.contains("the special topic"), "{request}");
}

#[test]
fn a_second_chat_on_the_same_session_is_offered_a_new_one() {
    let sandbox = Sandbox::new();
    let first = Start::new(&sandbox).go();
    first.is_idle();
    let second = Start::new(&sandbox).go();
    second.sees("Session cli:local is open in another chat. Begin a new one? [Y/n]");
    second.send("what?\n");
    second.until(|screen| screen.matches("Begin a new one?").count() == 2);
    second.send("\n");
    let screen = second.is_idle();
    assert!(screen.contains("\nsession: cli:local-"), "{screen}");
    let mut third = Start::new(&sandbox).go();
    third.sees("Begin a new one?");
    third.send("n\n");
    let (_, screen) = third.ends();
    assert!(!screen.contains("workspace >"), "{screen}");
    if !crate::sandbox::is_ignored(2) {
        let mut fourth = Start::new(&sandbox).go();
        fourth.sees("Begin a new one?");
        fourth.send("\x03");
        let (code, screen) = fourth.ends();
        assert!(code != Some(0) && !screen.contains("workspace >"), "{screen}");
    }
    let mut piped = sandbox.command(&bub());
    piped.arg("chat").stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut piped = piped.stderr(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut piped.stdin.take().unwrap(), b",echo piped\n").unwrap();
    let run = crate::sandbox::Run::of(piped.wait_with_output().unwrap());
    assert!(run.stderr.contains("session cli:local is open in another chat"), "{run:?}");
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{run:?}");
}

// L1: a line that was typed is answered, if not by this chat then by the next.
#[test]
fn a_chat_that_was_killed_leaves_nothing_unanswered() {
    let (sandbox, server, pace) = (Sandbox::new(), ModelServer::start(), Pace::stopped());
    server.script(Reply::deltas(["Half", " lost"]).paced(&pace));
    server.otherwise(Reply::text("Answered at last."));
    let mut chat = Start::new(&sandbox).model(&server).go();
    chat.is_idle();
    chat.send("an important question\r");
    pace.allow(1);
    chat.sees("Generating");
    chat.signal("KILL");
    chat.ends();
    let chat = Start::new(&sandbox).model(&server).go();
    let screen = chat.sees("Answered at last.");
    assert!(screen.contains("an important question (of an earlier chat)"), "{screen}");
}
