//! Tests the options, the input and the output of `bub run`.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Command, Stdio},
};

use bub_testkit::{
    model::{ModelServer, Pace, Reply, ReplyUsage},
    pty::Pty,
};
use serde_json::Value;

use crate::sandbox::{Run, Sandbox, bub, wait_until};

/// A model server, and a home and a workspace whose settings name it.
struct RunFixture {
    sandbox: Sandbox,
    model: ModelServer,
}

impl RunFixture {
    fn new() -> Self {
        Self {
            sandbox: Sandbox::new(),
            model: ModelServer::start(),
        }
    }

    fn answering(text: &str) -> Self {
        let fixture = Self::new();
        fixture.model.otherwise(Reply::text(text));
        fixture
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.sandbox.command(&bub());
        command
            .env("BUB_MODEL", "openai:small")
            .env("BUB_API_BASE", format!("{}/v1", self.model.url()))
            .env("BUB_API_KEY", "a-key-of-the-test")
            .args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Run {
        Run::from_output(self.command(args).output().unwrap())
    }

    /// Runs the command with text on stdin, through a pipe.
    fn pipe(&self, args: &[&str], text: &str) -> Run {
        let mut command = self.command(args);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        drop(stdin);
        Run::from_output(child.wait_with_output().unwrap())
    }

    /// Returns the last user message of the latest request.
    fn last_prompt(&self) -> String {
        let body = self.model.requests().last().unwrap().json();
        let messages = body["messages"].as_array().unwrap();
        let user = messages.iter().rfind(|message| message["role"] == "user");
        user.unwrap()["content"].as_str().unwrap().to_owned()
    }
}

#[test]
fn an_answer_is_printed_while_it_arrives() {
    let fixture = RunFixture::new();
    let pace = Pace::stopped();
    fixture
        .model
        .otherwise(Reply::deltas(["first ", "second"]).paced(&pace));
    let mut command = fixture.command(&["run", "hi"]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    // The model does not end its answer before the first word is here.
    pace.allow(3);
    let mut shown = [0; 5];
    stdout.read_exact(&mut shown).unwrap();
    assert_eq!(&shown, b"first");
    pace.release();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, " second\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn piped_text_is_added_to_the_message() {
    let fixture = RunFixture::answering("fine");
    let run = fixture.pipe(&["run", "review this"], "+ one line\n");
    assert_eq!(run.ok(), "fine\n");
    assert!(
        fixture
            .last_prompt()
            .ends_with("review this\n\n+ one line\n")
    );

    fixture
        .pipe(&["run", "review this", "--no-stdin"], "+ one line\n")
        .ok();
    assert!(fixture.last_prompt().ends_with("review this"));

    fixture.pipe(&["run", "empty"], " \n").ok();
    assert!(fixture.last_prompt().ends_with("empty"));
}

#[test]
fn a_pipe_that_stays_open_is_reported_and_read_to_its_end() {
    let fixture = RunFixture::answering("seen");
    let mut command = fixture.command(&["run", "review this"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut notice = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut notice).unwrap();
    assert_eq!(
        notice,
        "reading stdin until it ends; use `--no-stdin` to leave it alone\n"
    );
    assert!(fixture.model.requests().is_empty());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"+ a late line\n").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"seen\n");
    assert!(fixture.last_prompt().contains("+ a late line"));
}

#[test]
fn a_run_ends_after_the_steps_that_it_may_take() {
    let fixture = RunFixture::new();
    let call = || Reply::new().call("c", "bash", r#"{"command": "true"}"#);
    for _ in 0..3 {
        fixture.model.script(call());
    }
    let run = fixture.run(&["run", "work", "--max-steps", "2"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(fixture.model.requests().len(), 2);
    assert!(run.stderr.contains("max_steps"), "{run:?}");
    for wrong in ["0", "-1", "many"] {
        let run = fixture.run(&["run", "work", "--max-steps", wrong]);
        assert_eq!(run.code, Some(2), "{run:?}");
    }
}

#[test]
fn a_file_as_stdin_is_added_and_a_device_is_not() {
    let fixture = RunFixture::answering("fine");
    let notes = fixture.sandbox.workspace().join("notes.txt");
    std::fs::write(&notes, "buy milk").unwrap();
    let mut command = fixture.command(&["run", "what is in it?"]);
    command.stdin(std::fs::File::open(notes).unwrap());
    Run::from_output(command.output().unwrap()).ok();
    assert!(fixture.last_prompt().ends_with("it?\n\nbuy milk"));

    let mut command = fixture.command(&["run", "and now?"]);
    command.stdin(Stdio::null());
    Run::from_output(command.output().unwrap()).ok();
    assert!(fixture.last_prompt().ends_with("and now?"));
}

#[test]
fn text_with_a_space_is_a_message_and_a_single_word_is_a_command() {
    let fixture = RunFixture::answering("fine");
    assert_eq!(fixture.run(&["hello there"]).ok(), "fine\n");
    assert!(fixture.last_prompt().ends_with("hello there"));
    let workspace = fixture.sandbox.workspace();
    let options = [
        "-w",
        workspace.to_str().unwrap(),
        "again with options",
        "-q",
    ];
    assert_eq!(fixture.run(&options).ok(), "fine\n");

    let typo = fixture.run(&["modles"]);
    assert_eq!(typo.code, Some(2));
    assert!(typo.stderr.contains("'models'"), "{typo:?}");
}

// The headline of the Python version.
#[test]
fn the_headline_is_printed_only_if_it_is_set() {
    let fixture = RunFixture::answering("fine");
    assert_eq!(fixture.run(&["run", "hi"]).ok(), "fine\n");
    let mut command = fixture.command(&["run", "hi"]);
    let run = Run::from_output(command.env("BUB_RUN_HEADER", "true").output().unwrap());
    assert_eq!(run.ok(), "[cli:local]\nfine\n");
}

#[test]
fn json_has_the_answer_the_session_and_the_usage() {
    let fixture = RunFixture::new();
    fixture
        .model
        .script(Reply::text("looking").call("call_1", "bash", r#"{"cmd": "true"}"#));
    fixture.model.otherwise(Reply::text("fine"));
    let result: Value =
        serde_json::from_str(&fixture.run(&["run", "hi", "--output", "json"]).ok()).unwrap();
    assert_eq!(result["session_id"], "cli:local");
    assert_eq!(result["error"], Value::Null);
    assert_eq!(
        (&result["steps"], &result["tool_calls"]),
        (&2.into(), &1.into())
    );
    assert!(
        result["answer"].as_str().unwrap().ends_with("fine"),
        "{result}"
    );

    let lines = fixture.run(&["run", "hi", "--output", "stream-json"]).ok();
    let kinds: Vec<String> = lines
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["kind"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(kinds.first().map(String::as_str), Some("text"));
    assert_eq!(kinds.last().map(String::as_str), Some("result"));

    fixture.model.otherwise(Reply::status(400));
    let failed = fixture.run(&["run", "hi", "--output", "json"]);
    let result: Value = serde_json::from_str(&failed.stdout).unwrap();
    assert_eq!(failed.code, Some(1));
    assert!(
        result["error"].as_str().unwrap().contains("400"),
        "{result}"
    );
}

// As in the chat. Text that another program may have written attaches nothing.
#[test]
fn a_message_attaches_the_files_that_it_names() {
    let fixture = RunFixture::answering("fine");
    let write = |name: &str, text: &str| fixture.sandbox.write(&format!("workspace/{name}"), text);
    write("att.txt", "the word marmalade");
    write("in.txt", "see @att.txt");
    let last_request = || fixture.model.requests().pop().unwrap().json().to_string();
    let run = fixture.run(&["run", "see @other.txt"]);
    assert_eq!(run.stderr, "not attached: other.txt: no such file\n");
    assert_eq!(run.ok(), "fine\n");
    let mut command = fixture.command(&["run", "-"]);
    let stdin = std::fs::File::open(fixture.sandbox.workspace().join("in.txt")).unwrap();
    Run::from_output(command.stdin(stdin).output().unwrap()).ok();
    assert!(!last_request().contains("marmalade"), "{}", last_request());
    let run = fixture.run(&["run", "see @att.txt."]);
    assert_eq!(run.stderr, "");
    assert!(last_request().contains("marmalade"), "{}", last_request());
}

#[test]
fn an_ephemeral_run_sees_and_keeps_nothing() {
    let fixture = RunFixture::answering("fine");
    fixture.run(&["run", "remember the word marmalade"]).ok();
    let before = fixture.sandbox.only_tape();
    fixture.run(&["run", "hi", "--ephemeral"]).ok();
    assert_eq!(fixture.sandbox.only_tape(), before);
    let request = fixture.model.requests().last().unwrap().json();
    assert!(!request.to_string().contains("marmalade"), "{request}");
}

#[test]
fn a_run_uses_the_session_that_its_options_name() {
    let fixture = RunFixture::answering("fine");
    let session = |args: &[&str]| {
        let mut all = vec!["run", "hi", "--output", "json"];
        all.extend(args);
        let result: Value = serde_json::from_str(&fixture.run(&all).ok()).unwrap();
        result["session_id"].as_str().unwrap().to_owned()
    };
    let none = fixture.run(&["run", "hi", "--continue"]);
    assert_eq!(none.code, Some(2), "{none:?}");
    assert_eq!(session(&[]), "cli:local");
    let new = session(&["--new"]);
    assert!(new.starts_with("cli:local~"), "{new}");
    assert_eq!(session(&["--continue"]), new);
    assert_eq!(session(&["--session", "kitchen"]), "kitchen");
    assert_eq!(session(&["--session-id", "kitchen"]), "kitchen");
}

#[test]
fn the_model_and_the_effort_of_a_run_do_not_change_the_session() {
    let fixture = RunFixture::answering("fine");
    let sent = |args: &[&str]| {
        let mut all = vec!["run", "hi"];
        all.extend(args);
        fixture.run(&all).ok();
        let body = fixture.model.requests().last().unwrap().json();
        (body["model"].clone(), body["reasoning_effort"].clone())
    };
    assert_eq!(sent(&[]), ("small".into(), Value::Null));
    let chosen = sent(&["--model", "openai:large", "--reasoning-effort", "high"]);
    assert_eq!(chosen, ("large".into(), "high".into()));
    assert_eq!(sent(&[]), ("small".into(), Value::Null));
    // The prompt does not show what was chosen.
    let requests = fixture.model.requests();
    assert!(
        !requests[1].json()["messages"]
            .to_string()
            .contains("_model")
    );
}

#[test]
fn a_denied_tool_does_not_run() {
    let fixture = RunFixture::new();
    let call = Reply::new().call("call_1", "bash", r#"{"cmd": "touch made"}"#);
    fixture.model.script(call.clone());
    fixture.model.otherwise(Reply::text("fine"));
    fixture.run(&["run", "hi", "--deny", "bash"]).ok();
    assert!(!fixture.sandbox.workspace().join("made").exists());
    let request = fixture.model.requests().last().unwrap().json();
    assert!(
        request.to_string().contains("`--deny` lists the tool"),
        "{request}"
    );
    fixture.model.script(call);
    fixture
        .run(&["run", "hi", "--allow", "bash", "--deny", "fs.*"])
        .ok();
    assert!(fixture.sandbox.workspace().join("made").exists());
}

#[test]
fn an_option_about_tools_never_loosens_the_configuration() {
    let fixture = RunFixture::new();
    let config = "policy:\n  deny: [bash]\n  ask: [fs.write]\n  rules:\n  - {tools: [fs.edit], action: deny}\n";
    let home = fixture.sandbox.home();
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(home.join("config.yml"), config).unwrap();
    let write = r#"{"path": "made", "content": "x"}"#;
    let edit = r#"{"path": "kept", "old": "kept", "new": "lost"}"#;
    let kept = fixture.sandbox.workspace().join("kept");
    std::fs::write(&kept, "kept").unwrap();
    for (call, options) in [
        (
            ("bash", r#"{"command": "touch made"}"#),
            ["--deny", "web.fetch"],
        ),
        (
            ("bash", r#"{"command": "touch made"}"#),
            ["--allow", "bash"],
        ),
        (("fs_write", write), ["--ask", "web.fetch"]),
        (("fs_edit", edit), ["--ask", "fs.edit"]),
        (("fs_edit", edit), ["--allow", "fs.edit"]),
    ] {
        fixture
            .model
            .script(Reply::new().call("call_1", call.0, call.1));
        fixture.model.otherwise(Reply::text("fine"));
        let mut args = vec!["run", "hi"];
        args.extend(options);
        fixture.run(&args).ok();
        let made = fixture.sandbox.workspace().join("made");
        assert!(!made.exists(), "{call:?} {options:?}");
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "kept");
    }
}

#[test]
fn an_option_that_names_no_tool_is_an_error() {
    let fixture = RunFixture::answering("fine");
    for (value, is_valid) in [
        ("bash", true),
        (" bash", true),
        ("bash,fs.*", true),
        ("bsh", false),
        ("", false),
        ("bash,", false),
    ] {
        let run = fixture.run(&["run", "hi", "--deny", value]);
        let expected = if is_valid { 0 } else { 2 };
        assert_eq!(run.code, Some(expected), "{value:?}: {run:?}");
    }
}

#[test]
fn a_turn_that_takes_too_long_is_cancelled() {
    let fixture = RunFixture::new();
    let pace = Pace::stopped();
    fixture.model.otherwise(Reply::text("never").paced(&pace));
    let run = fixture.run(&["run", "hi", "--timeout", "1"]);
    assert_eq!(run.code, Some(124), "{run:?}");
    assert!(run.stderr.contains("did not end within 1 s"), "{run:?}");
    pace.release();
}

#[test]
fn a_timeout_is_the_error_in_json_beside_what_happened() {
    let fixture = RunFixture::new();
    let call = Reply::new().call("c1", "bash", r#"{"command":"sleep 600"}"#);
    fixture.model.script(call.usage(ReplyUsage {
        input: 40,
        output: 2,
        ..ReplyUsage::default()
    }));
    let run = fixture.run(&["run", "hi", "--timeout", "3", "--output", "json"]);
    assert_eq!(run.code, Some(124), "{run:?}");
    let result: Value = serde_json::from_str(&run.stdout).unwrap();
    let error = result["error"].as_str().unwrap();
    assert!(error.contains("did not end within 3 s"), "{run:?}");
    assert_eq!(
        (&result["steps"], &result["tool_calls"]),
        (&1.into(), &1.into())
    );
    assert_eq!(result["usage"]["total_tokens"], 42, "{run:?}");
}

#[test]
fn a_command_of_the_chat_is_refused_in_a_run() {
    for name in ["copy", "thinking"] {
        let run = Sandbox::new().bub(["run", &format!(",{name}")]);
        assert_ne!(run.code, Some(0), "{run:?}");
        let said = format!("`,{name}` works only in the chat");
        assert!(run.stderr.contains(&said), "{run:?}");
    }
}

#[test]
fn a_time_limit_is_whole_seconds() {
    for wrong in ["-1", "0", "1.5", "soon"] {
        let run = Sandbox::new().bub(["run", "hi", "--timeout", wrong]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(
            run.stderr.contains("expected whole seconds, at least 1"),
            "{run:?}"
        );
    }
}

#[test]
fn without_a_model_json_has_an_error_and_no_answer() {
    let run = Sandbox::new().bub(["run", "hi", "--output", "json"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    let result: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(result["answer"], "", "{run:?}");
    let error = result["error"].as_str().unwrap();
    assert!(error.contains("no model is configured"), "{run:?}");
}

// Nothing is kept, whether the turn succeeds, fails or is stopped. What was there before stays.
#[test]
fn an_ephemeral_run_keeps_no_attached_file() {
    let fixture = RunFixture::new();
    let workspace = fixture.sandbox.workspace();
    fixture.sandbox.write("workspace/notes.txt", "buy milk");
    let inbox = workspace.join("inbox");
    let args = ["run", "read it", "--file", "notes.txt", "--ephemeral"];
    let pace = Pace::stopped();
    let replies = [
        (Reply::text("fine"), 0),
        (Reply::status(400).message("no"), 1),
        (Reply::text("never").paced(&pace), 124),
    ];
    for (reply, code) in replies {
        fixture.model.script(reply);
        let run = fixture.run(&[&args[..], &["--timeout", "5"]].concat());
        assert_eq!(run.code, Some(code), "{run:?}");
        let request = fixture.model.requests().last().unwrap().json().to_string();
        assert!(request.contains("files_saved=inbox/"), "{request}");
        assert!(!inbox.exists(), "{code}");
        assert!(!fixture.sandbox.home().join("tapes").exists());
    }
    pace.release();
    fixture.model.otherwise(Reply::text("fine"));
    fixture.run(&["run", "read it", "--file", "notes.txt"]).ok();
    let names = || {
        let files = std::fs::read_dir(&inbox).unwrap();
        let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    fixture.sandbox.write("workspace/other.txt", "buy bread");
    fixture.run(&args).ok();
    fixture
        .run(&["run", "read it", "--file", "other.txt", "--ephemeral"])
        .ok();
    assert_eq!(names(), before);
}

// An ephemeral run removes only its own files, also if another run has attached the same one meanwhile.
#[test]
fn an_ephemeral_run_does_not_remove_the_attached_file_of_another_run() {
    let fixture = RunFixture::new();
    fixture.sandbox.write("workspace/notes.txt", "buy milk");
    let pace = Pace::stopped();
    fixture
        .model
        .script(Reply::text("fine").paced(&pace))
        .otherwise(Reply::text("fine"));
    let args = ["run", "read it", "--file", "notes.txt"];
    let mut ephemeral = fixture.command(&[&args[..], &["--ephemeral"]].concat());
    let ephemeral = ephemeral.stdout(Stdio::piped()).spawn().unwrap();
    wait_until("the first run", || fixture.model.requests().len() == 1);
    fixture
        .run(&[&args[..], &["--session", "other"]].concat())
        .ok();
    let request = fixture.model.requests().last().unwrap().json().to_string();
    let (_, saved) = request.split_once("files_saved=").unwrap();
    let saved = saved.split(['|', '\\', '"']).next().unwrap();
    let saved = fixture.sandbox.workspace().join(saved);
    assert!(saved.is_file(), "{request}");
    pace.release();
    let output = ephemeral.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(&saved).unwrap(), "buy milk");
}

// The content says what a file is, if its name does not.
#[test]
fn a_text_file_without_a_known_extension_reaches_the_model() {
    let fixture = RunFixture::answering("fine");
    fixture
        .sandbox
        .write("workspace/Makefile", "all:\n\techo built\n");
    let run = fixture.run(&["run", "read it", "--file", "Makefile"]);
    assert_eq!(run.stderr, "");
    assert_eq!(run.ok(), "fine\n");
    let request = fixture.model.requests().last().unwrap().json().to_string();
    assert!(request.contains("echo built"), "{request}");

    let path = fixture.sandbox.workspace().join("x.bin");
    std::fs::write(path, [b'a', 0, b'b']).unwrap();
    let run = fixture.run(&["run", "read it", "--file", "x.bin"]);
    let said = "the model cannot read x.bin and gets only its path: unsupported file type";
    assert!(run.stderr.starts_with(said), "{run:?}");
    assert_eq!(run.stderr.lines().count(), 1, "{run:?}");
}

/// Runs bub in a session of the system without a terminal.
fn run_without_terminal(fixture: &RunFixture, args: &[&str]) -> Run {
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(bub()).args(args);
    let with_model = fixture.command(&[]);
    command.current_dir(fixture.sandbox.workspace()).env_clear();
    for (name, value) in with_model.get_envs() {
        command.env(name, value.unwrap());
    }
    command.env("BUB_WEB_ALLOW_PRIVATE", r#"["127.0.0.1"]"#);
    Run::from_output(command.stdin(Stdio::null()).output().unwrap())
}

/// The advice to allow the tool would not help.
#[test]
fn a_call_that_is_denied_because_of_a_web_page_is_reported_with_this_reason() {
    let fixture = RunFixture::new();
    let fetch = format!(r#"{{"url":"{}/page"}}"#, fixture.model.url());
    let call = r#"{"command":"echo one"}"#;
    fixture
        .model
        .script(Reply::new().call("c1", "web_fetch", &fetch));
    fixture.model.script(Reply::text("The page."));
    fixture.model.script(Reply::new().call("c2", "bash", call));
    fixture.model.script(Reply::text("I could not."));
    let run = run_without_terminal(&fixture, &["run", "go", "--allow", "bash"]);
    assert_eq!(run.stdout, "I could not.\n", "{run:?}");
    let start = "denied bash \"echo one\": the conversation contains a web page, so `--allow` does not apply; ";
    assert!(run.stderr.starts_with(start), "{run:?}");
    assert!(
        run.stderr.ends_with(", or start a new session\n"),
        "{run:?}"
    );
    assert!(!run.stderr.contains("--allow bash"), "{run:?}");
}

#[test]
fn a_call_that_no_user_can_approve_is_reported() {
    let fixture = RunFixture::new();
    let call = r#"{"command":"echo one"}"#;
    fixture.model.script(Reply::new().call("c1", "bash", call));
    fixture.model.script(Reply::text("I could not."));
    let run = run_without_terminal(&fixture, &["run", "go", "--ask", "bash"]);
    assert_eq!(run.stdout, "I could not.\n", "{run:?}");
    assert!(
        run.stderr.starts_with("denied bash \"echo one\": ")
            && run.stderr.contains("`--allow bash`")
            && run.stderr.lines().count() == 1,
        "{run:?}"
    );
}

// Both show what was denied, in the same words.
#[test]
fn an_export_shows_what_did_not_run() {
    let fixture = RunFixture::new();
    let call = r#"{"command":"rm everything"}"#;
    fixture.model.script(Reply::new().call("c1", "bash", call));
    fixture.model.script(Reply::text("I could not."));
    fixture.run(&["run", "go", "--deny", "bash"]).ok();
    let args = ["tape", "export", "cli:local", "--format", "markdown"];
    let exported = fixture.run(&args).ok();
    let sections = exported.split_once("### User").unwrap().1;
    assert!(sections.contains("### Tool call"), "{exported}");
    assert!(sections.contains("denied"), "{exported}");
    fixture.run(&["run", ",export notes.md"]).ok();
    let notes = std::fs::read_to_string(fixture.sandbox.workspace().join("notes.md")).unwrap();
    assert!(notes.contains(sections), "{notes}\n---\n{sections}");
}

#[test]
fn attached_files_reach_the_model() {
    let fixture = RunFixture::answering("fine");
    let workspace = fixture.sandbox.workspace();
    let write = |name: &str, content: &[u8]| {
        let path = workspace.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let notes = write("notes.txt", b"buy milk");
    let image = write("dot.png", bub_testkit::TINY_PNG);
    fixture
        .run(&["run", "read both", "--file", &notes, "--image", &image])
        .ok();
    let request = fixture.model.requests().last().unwrap().json().to_string();
    assert!(request.contains("buy milk"), "{request}");
    assert!(request.contains("data:image/png;base64,"), "{request}");

    let wrong = fixture.run(&["run", "read it", "--image", &notes]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("not an image"), "{wrong:?}");
    let device = fixture.run(&["run", "read it", "--file", "/dev/zero"]);
    assert_eq!(device.code, Some(2));
    assert!(device.stderr.contains("not a regular file"), "{device:?}");
    let missing = fixture.run(&["run", "read it", "--file", "missing.txt"]);
    assert_eq!(missing.code, Some(2));
    assert!(
        missing.stderr.contains("cannot read missing.txt"),
        "{missing:?}"
    );
}

// A repository can contain a link to a key or a token.
#[test]
fn no_attached_file_comes_from_bubs_home_or_through_a_link_out_of_the_workspace() {
    let fixture = RunFixture::answering("fine");
    let workspace = fixture.sandbox.workspace();
    let outside = tempfile::tempdir().unwrap();
    let key = outside.path().join("key.txt");
    std::fs::write(&key, "canary").unwrap();
    fixture.sandbox.write("home/notes.txt", "canary");
    let secret = fixture.sandbox.home().join("notes.txt");
    let link = |name: &str, target: &std::path::Path| {
        let path = workspace.join(name);
        std::os::unix::fs::symlink(target, &path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let directory = link("docs", outside.path());
    for (path, reason) in [
        (secret.to_str().unwrap().to_owned(), "in bub's home"),
        (link("home.txt", &secret), "in bub's home"),
        (link("key.txt", &key), "leads out of the workspace"),
        ("key.txt".to_owned(), "leads out of the workspace"),
        (format!("{directory}/key.txt"), "leads out of the workspace"),
    ] {
        let run = fixture.run(&["run", "read it", "--file", &path]);
        assert_eq!(run.code, Some(2), "{path}: {run:?}");
        assert!(run.stderr.contains(reason), "{path}: {run:?}");
    }
    assert!(fixture.model.requests().is_empty());
    fixture
        .run(&["run", "read it", "--file", key.to_str().unwrap()])
        .ok();
}

#[test]
fn a_terminal_shows_rendered_markdown_and_tool_calls() {
    let fixture = RunFixture::new();
    fixture
        .model
        .script(Reply::new().call("call_1", "bash", r#"{"cmd": "true"}"#));
    fixture.model.otherwise(Reply::text("It is **done**."));
    let mut command = fixture.command(&["run", "hi"]);
    command.env("TERM", "xterm");
    let (code, shown) = Pty::spawn_sized(command, 24, 80).finish();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("session: cli:local"), "{shown}");
    assert!(shown.contains("bash(cmd: true)"), "{shown}");
    assert!(shown.contains("completed in"), "{shown}");
    assert!(shown.contains("done") && !shown.contains("**"), "{shown}");
    assert!(!shown.contains("Assistant"), "{shown}");
}

// A dumb terminal cannot move its cursor.
#[test]
fn a_dumb_terminal_gets_plain_lines() {
    let fixture = RunFixture::answering("It is **done**.");
    let mut command = fixture.command(&["run", "hi", "--quiet"]);
    command.env("TERM", "dumb");
    let (code, shown) = Pty::spawn_sized(command, 24, 80).finish();
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    assert_eq!(shown.trim(), "It is **done**.");
}

// P-2
#[test]
fn a_chat_starts_with_the_message_of_its_argument() {
    let fixture = RunFixture::answering("fine");
    let run = fixture.pipe(&["chat", "  the first  "], "the second\n");
    assert_eq!(run.ok(), "fine\nfine\n");
    let prompts: Vec<String> = fixture
        .model
        .requests()
        .iter()
        .map(|request| request.json()["messages"].to_string())
        .collect();
    assert_eq!(prompts.len(), 2);
    assert!(prompts[0].contains("the first\"") && !prompts[0].contains("the second"));
    assert!(prompts[1].contains("the second"));
}

// The guide is for the user. A model that is configured later must not see it as its own answer.
#[test]
fn a_later_model_does_not_see_the_setup_guide() {
    let fixture = RunFixture::answering("the answer");
    let run = fixture.sandbox.bub(["run", "hello"]);
    assert!(run.stderr.starts_with("No model is configured"), "{run:?}");
    assert_eq!(fixture.run(&["run", "again"]).ok(), "the answer\n");
    let requests = fixture.model.requests();
    let body = requests.last().unwrap().json();
    let messages = body["messages"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|message| &message["role"]).collect();
    assert!(
        !body.to_string().contains("No model is configured"),
        "{body}"
    );
    assert!(!roles.iter().any(|role| *role == "assistant"), "{roles:?}");
    assert!(body.to_string().contains("hello"), "{body}");
    // The tape has the guide, as what happened.
    let tape = fixture.sandbox.only_tape();
    assert!(tape.contains("\"no_model\""), "{tape}");
}

// The limit counts all model calls of the run. A call that was made is never refused.
#[test]
fn a_price_limit_ends_the_run_before_the_next_call() {
    let fixture = RunFixture::new();
    let usage = ReplyUsage {
        input: 1_000_000,
        output: 0,
        ..ReplyUsage::default()
    };
    let call = || {
        Reply::new()
            .call("c", "bash", "{\"command\": \"true\"}")
            .usage(usage)
    };
    fixture.model.script(call());
    fixture.model.script(call());
    fixture.model.otherwise(Reply::text("too far"));
    let run = |price: &str| {
        let mut command = fixture.command(&["run", "work", "--max-price", price]);
        command.env(
            "BUB_PROVIDERS",
            r#"{"openai": {"prices": {"small": {"input": 1, "output": 1}}}}"#,
        );
        Run::from_output(command.output().unwrap())
    };
    let refused = run("1.5");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("price limit reached: $2.0000 of $1.5000 (`--max-price`)"),
        "{refused:?}"
    );
    assert_eq!(fixture.model.requests().len(), 2);
    assert_eq!(run("0.5").code, Some(0), "one call is within the limit");
    for wrong in ["0", "-1", "much"] {
        let run = run(wrong);
        assert_eq!(run.code, Some(2), "{run:?}");
    }
    // A price that is unknown is not free.
    let mut command = fixture.command(&[
        "run",
        "work",
        "--max-price",
        "1",
        "--model",
        "openai:mystery",
    ]);
    let run = Run::from_output(command.output().unwrap());
    assert!(
        run.stderr
            .contains("the price of openai:mystery is unknown"),
        "{run:?}"
    );
}

// The first token is visible at most 15 ms after the server sent it: the median of several runs, in a pipe and on a
// terminal. A debug build gets more time, but not enough to wait for a frame or for the next token. The tool `budgets`
// checks the release build.
#[test]
fn the_first_token_is_visible_within_15_ms() {
    use std::time::Duration;
    const MAX_TIME: Duration = Duration::from_millis(if cfg!(debug_assertions) { 30 } else { 15 });
    let program = bub_testkit::program::Program::new(bub()).unwrap();
    for on_terminal in [false, true] {
        let median = program.measure_first_token(on_terminal, 11).unwrap();
        println!("on a terminal: {on_terminal}, median {median:?}");
        assert!(
            median < MAX_TIME,
            "on a terminal: {on_terminal}: {median:?}"
        );
    }
}

#[test]
fn a_slash_is_a_command_and_an_unknown_one_is_not_sent() {
    let fixture = RunFixture::answering("fine");
    let status = fixture.run(&["run", "/status"]).ok();
    assert!(status.starts_with("session: cli:local"), "{status:?}");
    // A command does not read stdin.
    let piped = fixture.pipe(&["run", "/status"], "more");
    assert!(piped.stdout.starts_with("session: cli:local"), "{piped:?}");
    for (message, tip) in [
        ("/stauts", "did you mean `/status`?"),
        ("/etc/hosts is what?", "unknown command `/etc/hosts`"),
    ] {
        let run = fixture.run(&["run", message]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains(tip), "{run:?}");
        let advice = "to send it as text, put a space before it";
        assert!(run.stderr.contains(advice), "{run:?}");
    }
    assert!(fixture.model.requests().is_empty());
    fixture.run(&["run", " /etc/hosts is what?"]).ok();
    assert!(fixture.last_prompt().ends_with("/etc/hosts is what?"));
}

#[test]
fn an_unknown_reasoning_effort_is_refused_with_the_known_ones() {
    let fixture = RunFixture::answering("fine");
    for command in ["run", "chat"] {
        let run = fixture.run(&[command, "hi", "--reasoning-effort", "huge"]);
        assert_eq!(run.code, Some(2), "{run:?}");
        let values = "none, minimal, low, medium, high, xhigh, max, auto";
        assert!(run.stderr.contains(values), "{run:?}");
    }
    assert!(fixture.model.requests().is_empty());
}

#[test]
fn the_json_of_a_failed_command_has_its_output_once() {
    let fixture = RunFixture::new();
    for format in ["json", "stream-json"] {
        let run = fixture.run(&["run", ",echo canary; exit 3", "--output", format]);
        assert_eq!(run.code, Some(1), "{run:?}");
        let last: Value = serde_json::from_str(run.stdout.lines().last().unwrap()).unwrap();
        let result = last.get("data").unwrap_or(&last);
        assert_eq!(result["answer"], "canary", "{run:?}");
        assert_eq!(result["error"], "command exited with code 3", "{run:?}");
    }
}

// The user at the terminal may write anywhere, but nothing is overwritten.
#[test]
fn an_export_says_where_it_is_and_replaces_nothing() {
    let fixture = RunFixture::answering("fine");
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("notes.md");
    let export = format!(",export {}", path.display());
    fixture.run(&["run", "hi"]).ok();
    let exported = fixture.run(&["run", &export]).ok();
    assert_eq!(exported.trim(), format!("Exported to {}", path.display()));
    std::fs::write(&path, "mine").unwrap();
    let again = fixture.run(&["run", &export]);
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(again.stderr.contains("exists already"), "{again:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}
