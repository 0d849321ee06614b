//! Tests the commands of a chat: slashes, mistyped commands, and the commands about the conversation.

use bub_testkit::{
    TINY_PNG,
    model::{ModelServer, Reply, ReplyUsage},
};

use super::{
    pipe::piped,
    terminal::{Terminal, TerminalOptions},
};
use crate::sandbox::{Sandbox, bub};

fn start(sandbox: &Sandbox, server: &ModelServer) -> Terminal {
    let options = TerminalOptions::new(sandbox).model(server);
    let chat = options.size(100, 40).start();
    chat.wait_idle();
    chat
}

fn messages(server: &ModelServer) -> String {
    let request = server.requests().pop().unwrap();
    request.json()["messages"].to_string()
}

#[test]
fn a_slash_is_a_comma_and_an_unknown_one_is_sent_only_when_confirmed() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("An answer."));
    let chat = start(&sandbox, &server);
    chat.send("/help model\r");
    chat.wait_for("Show or set the model of this session");
    chat.wait_idle();
    chat.send("/hlep\r");
    let screen = chat.wait_for(
        "unknown command `/hlep`, did you mean `/help`? (press Enter again to send it as text)",
    );
    assert!(screen.contains("workspace > /hlep"), "{screen}");
    assert!(server.requests().is_empty());
    chat.send("\x15/etc/hosts\r");
    chat.wait_for("unknown command `/etc/hosts`");
    chat.send("\r");
    chat.wait_for("An answer.");
    assert!(messages(&server).contains("/etc/hosts"));
    // Tab completes after a slash, too.
    chat.wait_idle();
    chat.send("/tape.an\t");
    chat.wait_for("workspace > /tape.anchors");
}

#[test]
fn a_plain_chat_asks_about_an_unknown_slash_and_a_pipe_refuses_it() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("An answer."));
    let chat = TerminalOptions::new(&sandbox)
        .model(&server)
        .args(&["--plain"])
        .size(120, 24)
        .start();
    chat.wait_for("workspace >");
    chat.send("/hlep\n");
    chat.wait_for("did you mean `/help`? Type the line again to send it as text");
    assert!(server.requests().is_empty());
    chat.send("/hlep\n");
    chat.wait_for("An answer.");
    drop(chat);
    server.forget_requests();
    let mut command = sandbox.command(&bub());
    command
        .arg("chat")
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", server.url()))
        .env("BUB_API_KEY", "key");
    let run = piped(&mut command, b"/hlep\n");
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("did you mean `/help`?"), "{run:?}");
    assert!(server.requests().is_empty());
}

#[test]
fn a_mistyped_command_does_not_reach_the_shell() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let chat = start(&sandbox, &server);
    for (line, answer) in [
        (",hlep", "unknown command `,hlep`, did you mean `,help`?"),
        (
            ",thinkin",
            "unknown command `,thinkin`, did you mean `,thinking`?",
        ),
        (
            ",modle x",
            "unknown command `,modle`, did you mean `,model`?",
        ),
        (
            ",help mdoel",
            "unknown command `mdoel`, did you mean `model`?",
        ),
        // These are programs, or no typos.
        (",echo fine", "fine"),
        (",exit_of_nothing_known 3", "command exited with code 127"),
    ] {
        chat.send(format!("{line}\r"));
        chat.wait_for(answer);
        chat.wait_idle();
    }
}

// The output of a failed command is shown once.
#[test]
fn a_failing_command_prints_its_output_once() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    for args in [&[][..], &["--plain"]] {
        let options = TerminalOptions::new(&sandbox).model(&server).args(args);
        let mut chat = options.size(100, 40).start();
        chat.wait_for("workspace >");
        for (line, texts) in [
            (",printf 'x%s\\n' uno dos; exit 3", ["xuno", "xdos"]),
            (
                ",printf o%s ne; sleep 0.2; printf two; exit 3",
                ["onetwo", "onetwo"],
            ),
            (
                ",sh -c 'echo to$((1))err >&2; exit 3'",
                ["to1err", "to1err"],
            ),
        ] {
            chat.send(format!("{line}\r"));
            let screen = chat.wait_for("exited with code 3");
            for text in texts {
                assert_eq!(screen.matches(text).count(), 1, "{text} in\n{screen}");
            }
            if args.is_empty() {
                chat.send("\x0c");
            } else {
                chat.send(",quit\r");
                chat.wait_end();
                chat = TerminalOptions::new(&sandbox)
                    .model(&server)
                    .args(args)
                    .size(100, 40)
                    .start();
            }
            chat.wait_until(|screen| !screen.contains("exited with code 3"));
            chat.wait_for("workspace >");
        }
    }
}

#[test]
fn undo_continues_before_the_last_turn_and_keeps_the_old_session() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::text("Answer one."));
    server.script(Reply::text("Answer two."));
    server.script(Reply::text("Answer three."));
    let chat = start(&sandbox, &server);
    chat.send(",undo\r");
    chat.wait_for("nothing to undo");
    for (message, answer) in [
        ("question one", "Answer one."),
        ("question two", "Answer two."),
    ] {
        chat.wait_idle();
        chat.send(format!("{message}\r"));
        chat.wait_for(answer);
    }
    chat.wait_idle();
    chat.send("/undo\r");
    let screen = chat.wait_for("type: ,resume cli_session");
    assert!(screen.contains("Undid the turn: question two"), "{screen}");
    chat.wait_for("\nsession: cli_session~");
    chat.wait_idle();
    chat.send("question three\r");
    chat.wait_for("Answer three.");
    let seen = messages(&server);
    assert!(
        seen.contains("question one") && seen.contains("Answer one."),
        "{seen}"
    );
    assert!(
        !seen.contains("question two") && !seen.contains("Answer two."),
        "{seen}"
    );
    chat.wait_idle();
    chat.send(",undo\r");
    chat.wait_for("Undid the turn: question three");
    chat.wait_idle();
    chat.send(",undo\r");
    chat.wait_for("Undid the turn: question one");
    chat.wait_idle();
    // History is never rewritten.
    chat.send(",resume cli_session\r");
    chat.wait_for("Resumed session: cli_session");
    chat.wait_idle();
    chat.send("question four\r");
    chat.wait_until(|_| server.requests().len() == 4);
    assert!(messages(&server).contains("question two"));
}

#[test]
fn compact_lets_the_model_write_a_summary_and_continue_from_it() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.script(Reply::text("Answer one."));
    server.script(Reply::text("The summary: we spoke about one."));
    server.script(Reply::text("Answer two."));
    let chat = start(&sandbox, &server);
    chat.send("question one\r");
    chat.wait_for("Answer one.");
    chat.wait_idle();
    chat.send(",compact\r");
    chat.wait_for("The summary: we spoke about one.");
    assert!(messages(&server).contains("question one"));
    chat.wait_idle();
    chat.send("question two\r");
    chat.wait_for("Answer two.");
    let seen = messages(&server);
    assert!(seen.contains("The summary: we spoke about one."), "{seen}");
    // The latest message stays, as part of the handoff.
    assert!(
        seen.contains(r"Latest instruction:\nquestion one"),
        "{seen}"
    );
    assert!(!seen.contains("\"assistant\""), "{seen}");
}

#[test]
fn usage_status_export_and_copy_are_about_this_session() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let usage = ReplyUsage {
        input: 1000,
        output: 10,
        ..ReplyUsage::default()
    };
    server.otherwise(Reply::text("Answer **one**.").usage(usage));
    sandbox.write(
        "home/config.yml",
        "providers:\n  openai:\n    context_window: {small: 10000}\n    prices: {small: {input: 1, output: 2}}\n",
    );
    let chat = start(&sandbox, &server);
    chat.send(",copy\r");
    chat.wait_for("nothing to copy");
    chat.send(",export\r");
    chat.wait_for("nothing to export");
    chat.wait_idle();
    chat.send("question one\r");
    chat.wait_for("Answer one.");
    chat.wait_idle();
    chat.send(",usage\r");
    chat.wait_for("openai:small: 1 call, 1000 input tokens, 10 output tokens, $0.0010");
    chat.wait_idle();
    chat.send(",status\r");
    let screen = chat.wait_for("context: 1010 of 10000 tokens used, 89 % left");
    for line in [
        "session: cli_session\n",
        "model: openai:small\n",
        "reasoning effort: default\n",
        "cost: $0.0010\n",
    ] {
        assert!(screen.contains(line), "{line} in\n{screen}");
    }
    chat.wait_idle();
    chat.send(",export notes.md\r");
    chat.wait_for("Exported to ");
    chat.wait_idle();
    chat.send(",export notes.md\r");
    chat.wait_for("exists already");
    let text = std::fs::read_to_string(sandbox.workspace().join("notes.md")).unwrap();
    assert!(
        text.contains("### User (") && text.contains("\n\nquestion one\n"),
        "{text}"
    );
    assert!(
        text.contains("### Assistant (") && text.contains("\n\nAnswer **one**.\n"),
        "{text}"
    );
    chat.wait_idle();
    chat.send(",copy\r");
    chat.wait_for("copied 15 characters");
    // `Answer **one**.` in base64.
    let bytes = String::from_utf8_lossy(&chat.bytes()).into_owned();
    assert!(
        bytes.contains("\x1b]52;c;QW5zd2VyICoqb25lKiou\x07"),
        "{bytes:?}"
    );
}

#[test]
fn the_model_sees_the_output_of_a_command_only_with_an_exclamation_mark() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("An answer."));
    let chat = start(&sandbox, &server);
    chat.send(",echo se$((40 + 2))cret\r");
    chat.wait_for("se42cret");
    chat.wait_idle();
    chat.send(",!echo sh$((40 + 2))own\r");
    chat.wait_for("sh42own");
    chat.wait_idle();
    chat.send("what was it?\r");
    chat.wait_for("An answer.");
    let seen = messages(&server);
    assert!(
        seen.contains("sh42own") && !seen.contains("se42cret"),
        "{seen}"
    );
}

#[test]
fn diff_shows_what_changed_in_color() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    sandbox.write("workspace/a.txt", "one\n");
    let options = TerminalOptions::new(&sandbox).model(&server);
    let chat = options.set("TERM", "xterm-256color").size(100, 40).start();
    chat.wait_idle();
    let git = "git -c user.name=a -c user.email=a@example.com";
    chat.send(format!(
        ",git init -q && git add a.txt && {git} commit -qm one && echo two > a.txt\r"
    ));
    chat.wait_until(|screen| screen.matches("workspace >").count() == 2);
    chat.wait_idle();
    chat.send(",diff\r");
    let screen = chat.wait_for("+two");
    assert!(screen.contains("-one"), "{screen}");
    chat.wait_idle();
    let bytes = String::from_utf8_lossy(&chat.bytes()).into_owned();
    assert!(bytes.contains("\x1b[32m+two\x1b[0m"), "{bytes:?}");
    assert!(bytes.contains("\x1b[31m-one\x1b[0m"), "{bytes:?}");
}

#[test]
fn diff_works_before_the_first_commit() {
    let sandbox = Sandbox::new();
    sandbox.write("workspace/a.txt", "one\n");
    sandbox.bub(["run", ",git init -q && git add a.txt"]).ok();
    let shown = sandbox.bub(["run", ",diff"]).ok();
    assert!(
        shown.contains("A  a.txt") && shown.contains("+one"),
        "{shown}"
    );
}

/// Returns a `PATH` whose first program has this name and script.
fn path_with(sandbox: &Sandbox, name: &str, script: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let file = format!("bin/{name}");
    sandbox.write(&file, &format!("#!/bin/sh\n{script}\n"));
    let directory = sandbox.home().with_file_name("bin");
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.join(name), mode).unwrap();
    format!("{}:/usr/bin:/bin", directory.display())
}

// The programs of the desktop read the clipboard, without bub's secrets.
#[test]
fn control_v_attaches_the_image_in_the_clipboard() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("An answer."));
    std::fs::write(sandbox.workspace().join("dot.png"), TINY_PNG).unwrap();
    let path = path_with(
        &sandbox,
        "wl-paste",
        "env > seen\ntest \"$*\" = \"--no-newline --type image/png\" && cat dot.png",
    );
    let options = TerminalOptions::new(&sandbox).model(&server);
    let chat = options.set("PATH", &path).start();
    chat.wait_idle();
    chat.send("see \x16this");
    chat.wait_for("workspace > see [image 1] this");
    chat.send("\r");
    chat.wait_for("An answer.");
    assert!(messages(&server).contains("data:image/png;base64,"));
    let seen = std::fs::read_to_string(sandbox.workspace().join("seen")).unwrap();
    assert!(!seen.contains("key-of-the-tests"), "{seen}");
    // The image belongs to one message only.
    chat.wait_idle();
    chat.send("and this\r");
    chat.wait_until(|screen| screen.matches("An answer.").count() == 2);
    let last = server.requests().pop().unwrap().json();
    let content = &last["messages"].as_array().unwrap().last().unwrap()["content"];
    assert!(!content.to_string().contains("data:image"), "{content}");
    // Backspace takes a second image back.
    chat.wait_idle();
    chat.send("no \x16");
    chat.wait_for("workspace > no [image 2]");
    chat.send("\x7fimage\r");
    chat.wait_for("workspace > no image");
    chat.wait_until(|screen| screen.matches("An answer.").count() == 3);
    let last = server.requests().pop().unwrap().json();
    let content = &last["messages"].as_array().unwrap().last().unwrap()["content"];
    assert!(!content.to_string().contains("data:image"), "{content}");
    // A clipboard with text.
    std::fs::write(sandbox.workspace().join("dot.png"), "only text").unwrap();
    chat.wait_idle();
    chat.send("\x16");
    let screen =
        chat.wait_for("no image in the clipboard; copy one, or attach a file with `@PATH`");
    assert!(!screen.contains("[image 3]"), "{screen}");
}

#[test]
fn without_a_program_for_the_clipboard_the_chat_says_which_to_install() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let options = TerminalOptions::new(&sandbox).model(&server);
    let chat = options.set("PATH", "/nonexistent").start();
    chat.wait_idle();
    chat.send("\x16");
    chat.wait_for("cannot read the clipboard: install `wl-paste`");
}

#[test]
fn a_file_is_completed_and_attached_with_an_at_sign() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("An answer."));
    sandbox.write("workspace/notes.txt", "the content of the notes");
    std::fs::write(sandbox.workspace().join("dot.png"), TINY_PNG).unwrap();
    let chat = start(&sandbox, &server);
    chat.send("read @no\t");
    chat.wait_for("workspace > read @notes.txt");
    chat.send("and mail a@example.com\r");
    chat.wait_for("An answer.");
    assert!(messages(&server).contains("the content of the notes"));
    chat.wait_idle();
    // A pasted path of an image attaches it.
    chat.send("see \x1b[200~dot.png\x1b[201~");
    chat.wait_for("workspace > see @dot.png");
    chat.send("\r");
    chat.wait_until(|screen| screen.matches("An answer.").count() == 2);
    assert!(messages(&server).contains("data:image/png;base64,"));
    drop(chat);
    let chat = TerminalOptions::new(&sandbox)
        .model(&server)
        .args(&[
            "--session",
            "cli:other",
            "--image",
            "dot.png",
            "what is it?",
        ])
        .start();
    chat.wait_for("An answer.");
    assert!(messages(&server).contains("data:image/png;base64,"));
}

// Also for the first message. A command takes precedence over the command line from then on.
#[test]
fn the_command_line_selects_the_model_of_a_chat() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("An answer."));
    let mut command = sandbox.command(&bub());
    command
        .args(["chat", "-m", "openai:big", "--reasoning-effort", "high"])
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", server.url()))
        .env("BUB_API_KEY", "key");
    let lines = "hello\n,model\nhello again\n,model openai:other\nthe last one\n";
    let run = piped(&mut command, lines.as_bytes());
    let shown = run.ok();
    assert!(
        shown.contains("Session model: openai:big.") && shown.contains(": openai:small"),
        "{shown}"
    );
    let models = server.requests().into_iter().map(|request| {
        let request = request.json();
        let model = request["model"].as_str().unwrap().to_owned();
        (model, request["reasoning_effort"] == "high")
    });
    let expected = ["big", "big", "other"].map(|model| (model.to_owned(), true));
    assert_eq!(models.collect::<Vec<_>>(), expected);
}

#[test]
fn a_hint_is_wrapped_between_words() {
    for columns in [40, 80] {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        let options = TerminalOptions::new(&sandbox).model(&server);
        let chat = options.size(columns, 24).start();
        chat.wait_idle();
        chat.send("/stauts\r");
        chat.wait_until(|screen| {
            let words: Vec<&str> = screen.split_whitespace().collect();
            words.join(" ").contains(
                "unknown command `/stauts`, did you mean `/status`? (press Enter again to send it as text)",
            )
        });
        // It goes with the line.
        chat.send("\x03");
        chat.wait_until(|screen| !screen.contains("unknown command"));
    }
}

// A repository can contain a link to a key or a token.
#[test]
fn a_mention_obeys_the_file_tools_and_says_what_is_not_attached() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    server.otherwise(Reply::text("An answer."));
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("key.txt"), "canary").unwrap();
    sandbox.write("home/notes.txt", "canary");
    let link = |name: &str, target: &std::path::Path| {
        std::os::unix::fs::symlink(target, sandbox.workspace().join(name)).unwrap();
    };
    link("key.txt", &outside.path().join("key.txt"));
    link("home.txt", &sandbox.home().join("notes.txt"));
    let chat = start(&sandbox, &server);
    for (name, reason) in [
        ("key.txt", "leads out of the workspace"),
        ("home.txt", "the path belongs to bub itself"),
    ] {
        chat.send(format!("read @{name}\r"));
        chat.wait_until(|screen| {
            let words: Vec<&str> = screen.split_whitespace().collect();
            let words = words.join(" ");
            words.contains("not answered: cannot attach") && words.contains(reason)
        });
        chat.wait_idle();
    }
    assert!(server.requests().is_empty());
    sandbox.write("workspace/dir/a.txt", "apple");
    chat.send("ask @bob about @dir, @missing.txt and @dir/a.txt.\r");
    let screen = chat.wait_for("An answer.");
    for notice in [
        "not attached: dir: it is a directory",
        "not attached: missing.txt: no such file",
    ] {
        assert!(screen.contains(notice), "{screen}");
    }
    assert!(!screen.contains("not attached: bob"), "{screen}");
    assert!(!screen.contains("named bob"), "{screen}");
    assert!(messages(&server).contains("apple"));
    // If nothing is attached, a word without a dot was probably meant as a file.
    chat.wait_idle();
    chat.send("what is in @nosuch?\r");
    chat.wait_for("nothing attached: no file named nosuch");
    chat.wait_idle();
    // Pasted code.
    chat.send("\x1b[200~@property\ndef a(): pass\x1b[201~\r");
    let screen = chat.wait_until(|screen| screen.matches("An answer.").count() == 3);
    assert!(!screen.contains("named property"), "{screen}");
}
