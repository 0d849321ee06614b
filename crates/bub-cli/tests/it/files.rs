//! Tests which files the tools reach, through the program.

use bub_testkit::{
    model::{ModelServer, Reply},
    telegram::{BotServer, TOKEN},
};

use crate::{
    sandbox::{Run, Sandbox, bub, wait_until},
    telegram::{command, start_with},
};

const OWNER: i64 = 42;
const MEMBER: i64 = 7;
const CANARY: &str = "canary-4711";

fn run(sandbox: &Sandbox, arguments: &[&str]) -> Run {
    let mut command = sandbox.command(&bub());
    command.env("BUB_SANDBOX_PROFILE", "workspace");
    Run::from_output(command.args(arguments).output().unwrap())
}

// L7: a path that a confined command cannot read or write is refused by the file tools, and the other way round.
#[cfg(target_os = "linux")]
#[test]
fn file_tools_and_commands_reach_the_same_files() {
    let sandbox = Sandbox::new();
    let files = [
        "workspace/file",
        "workspace/.env",
        "workspace/AGENTS.md",
        "workspace/.git/config",
        "workspace/.git/hooks/pre-commit",
        "workspace/.git/HEAD",
        "secret",
        ".ssh/id_ed25519",
        ".gitconfig",
        "home/config.yml",
    ];
    for file in files {
        sandbox.write(file, "# some text\n");
    }
    let root = sandbox.workspace().parent().unwrap().to_owned();
    let own = files.map(|file| root.join(file).to_str().unwrap().to_owned());
    let system = [
        "/etc/passwd",
        "/etc/shadow",
        "/usr/bin/env",
        "/proc/version",
    ];
    let others = ["/var/log/dpkg.log", "/root/.bashrc", "/tmp/no-such-file"];
    let system = system.into_iter().chain(others).map(str::to_owned);
    for path in own.into_iter().chain(system) {
        let shown = run(&sandbox, &["sandbox", "head", "-c", "1", &path]);
        let can_read = !shown.stdout.is_empty();
        let read = run(
            &sandbox,
            &["policy", "explain", "fs.read", &format!("path={path}")],
        );
        // What does not exist can be allowed.
        if std::path::Path::new(&path).exists() {
            assert_eq!(
                read.code == Some(0),
                can_read,
                "read {path}: {read:?} {shown:?}"
            );
        }
        let touched = run(&sandbox, &["sandbox", "sh", "-c", "echo >> \"$0\"", &path]);
        let explain = [
            "policy",
            "explain",
            "fs.write",
            &format!("path={path}"),
            "content=x",
        ];
        let write = run(&sandbox, &explain);
        // The home directory of a command is empty, and hidden files are `/dev/null`: what it writes there is lost.
        let is_home = path.starts_with(root.to_str().unwrap()) && !path.contains("/workspace/");
        // Commands use git, which writes there. File tools have no reason to.
        let is_git = path.contains("/.git/");
        if !is_home && !is_git && !path.starts_with("/root/") && path != "/etc/shadow" {
            let can_write = touched.code == Some(0);
            assert_eq!(
                write.code == Some(0),
                can_write,
                "write {path}: {write:?} {touched:?}"
            );
        } else {
            assert_eq!(write.code, Some(4), "write {path}: {write:?}");
        }
    }
}

// A secret leaves by no file, and no file from outside leaves at all.
#[test]
fn telegram_sends_no_files_with_secrets_or_from_outside() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    sandbox.write("workspace/notes.txt", &format!("the token is {TOKEN}\n"));
    sandbox.write("workspace/.env", CANARY);
    sandbox.write("workspace/good.txt", "good");
    sandbox.write("outside.txt", CANARY);
    sandbox.write("home/config.yml", "# canary-4711\n");
    std::os::unix::fs::symlink("../outside.txt", sandbox.workspace().join("link")).unwrap();
    let mut gateway = command(&sandbox, &server, &model);
    gateway.env("BUB_SANDBOX_PROFILE", "workspace");
    let gateway = start_with(gateway);
    let send = |user, file: &str, expected: &str| {
        let arguments = serde_json::json!({"file": file}).to_string();
        model.script(Reply::new().call("c1", "telegram_send", &arguments));
        model.script(Reply::text("done"));
        server.send_private(user, "send it");
        wait_until("the turn", || model.unused_replies() == 0);
        let last = model.requests().pop().unwrap().json().to_string();
        assert!(last.contains(expected), "{file}: {last}");
    };
    let home = sandbox.home().join("config.yml");
    let home = home.to_str().unwrap();
    send(MEMBER, "notes.txt", "it contains a secret");
    send(MEMBER, ".env", "visible only to owners");
    for file in ["../outside.txt", "link", "/etc/passwd", home] {
        send(MEMBER, file, "outside the workspace");
    }
    send(OWNER, "notes.txt", "it contains a secret");
    send(OWNER, home, "belongs to bub itself");
    send(OWNER, "link", "the sandbox (profile `workspace`)");
    assert_eq!(server.calls_to("sendDocument").len(), 0);
    send(MEMBER, "good.txt", "message_id");
    assert_eq!(server.calls_to("sendDocument").len(), 1);
    gateway.stop();
}

// Another chat needs an approval, or a rule.
#[test]
fn another_chat_needs_an_approval() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    let gateway = start_with(command(&sandbox, &server, &model));
    let call = r#"{"text": "psst", "chat_id": 7}"#;
    model.script(Reply::new().call("c1", "telegram_send", call));
    model.script(Reply::text("done"));
    server.send_private(OWNER, "tell the other");
    let question = || {
        let mut texts = server.texts(OWNER).into_iter();
        texts.find(|text| text.contains(",approve "))
    };
    wait_until("the question", || question().is_some());
    let question = question().unwrap();
    assert!(
        question.contains("another chat") && question.contains("psst"),
        "{question}"
    );
    assert!(server.texts(MEMBER).is_empty());
    let id = question.split(",approve ").nth(1).unwrap();
    let id: String = id.chars().take_while(char::is_ascii_alphanumeric).collect();
    server.send_private(OWNER, &format!(",approve {id}"));
    wait_until("the message", || server.texts(MEMBER) == ["psst"]);
    wait_until("the turn", || model.unused_replies() == 0);
    gateway.stop();
}

// Also if a rule allows files and commands.
#[test]
fn a_gateway_in_the_home_directory_warns_and_closes_it_to_members() {
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    sandbox.write("workspace/notes.txt", CANARY);
    let rule = r#"[{"tools": ["fs.*", "bash"], "roles": ["member"], "action": "allow"}]"#;
    let with_home = || {
        let mut bub = command(&sandbox, &server, &model);
        bub.env("HOME", sandbox.workspace())
            .env("BUB_POLICY_RULES", rule);
        bub
    };
    let gateway = start_with(with_home());
    let commands = [
        ",fs.read path=notes.txt",
        ",fs.write path=new content=x",
        ", cat notes.txt",
    ];
    for (number, command) in commands.into_iter().enumerate() {
        server.send_private(MEMBER, command);
        wait_until("the refusal", || server.texts(MEMBER).len() == number + 1);
        let text = server.texts(MEMBER).pop().unwrap();
        assert!(
            text.contains("only owners can use files and commands"),
            "{text}"
        );
    }
    server.send_private(OWNER, ",fs.read path=notes.txt");
    wait_until("the file", || {
        server.texts(OWNER).iter().any(|text| text.contains(CANARY))
    });
    let warning = "the workspace contains the home directory of the owner";
    for arguments in [["status", "--name=main"], ["doctor", "--offline"]] {
        let run = Run::from_output(with_home().args(arguments).output().unwrap());
        assert!(run.stdout.contains(warning), "{run:?}");
    }
    let log = gateway.stop();
    assert!(log.contains(&format!("warning: {warning}")), "{log}");
    assert!(log.contains("gateway.workspace_exposed"), "{log}");
}
