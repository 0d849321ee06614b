//! Tests that the agent's commands are confined with `sandbox.profile`, through the program.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

use bub_testkit::{
    model::{ModelServer, Reply},
    pty::{Pty, SESSION_LEADER},
};
use serde_json::json;

use crate::{
    gateway_client::GatewayClient,
    sandbox::{Run, Sandbox, bub, signal},
};

const CANARY: &str = "canary-4711";

/// Runs a turn in which the model runs `command`. Returns the request with the tool's result.
fn result_of(sandbox: &Sandbox, profile: &str, command: &str) -> String {
    let arguments = json!({"command": command}).to_string();
    result_of_call(sandbox, profile, "bash", &arguments)
}

fn result_of_call(sandbox: &Sandbox, profile: &str, tool: &str, arguments: &str) -> String {
    let server = ModelServer::start();
    server.script(Reply::new().call("call_1", tool, arguments));
    server.script(Reply::text("done"));
    let run = sandbox
        .command(&bub())
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", server.url()))
        .env("BUB_API_KEY", "correct-horse-battery")
        .env("BUB_SANDBOX_PROFILE", profile)
        .args(["run", "hi"])
        .output()
        .unwrap();
    Run::from_output(run).ok();
    let requests = server.requests();
    String::from_utf8_lossy(&requests.last().unwrap().body).into_owned()
}

// What bub reads from its home is protected where it is.
#[test]
fn files_of_bubs_home_that_are_links_to_the_workspace_cannot_be_changed() {
    let sandbox = Sandbox::new();
    sandbox.write("workspace/bub.yml", "max_steps: 7\n");
    sandbox.write("workspace/pack/a/SKILL.md", "text");
    std::fs::create_dir_all(sandbox.home()).unwrap();
    for (target, link) in [("bub.yml", "config.yml"), ("pack", "skills")] {
        let target = sandbox.workspace().join(target);
        std::os::unix::fs::symlink(target, sandbox.home().join(link)).unwrap();
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(sandbox.workspace().join("bub.yml"), mode).unwrap();
    let script = "echo 'max_steps: 9' > bub.yml; mv bub.yml other; echo x > pack/a/SKILL.md; rm -r pack; echo made > file";
    sandbox.bub(["sandbox", "bash", "-c", script]).ok();
    let read = |name: &str| std::fs::read_to_string(sandbox.workspace().join(name)).unwrap();
    assert_eq!(read("bub.yml"), "max_steps: 7\n");
    assert_eq!(read("pack/a/SKILL.md"), "text");
    assert_eq!(read("file"), "made\n");
}

// The same error for the program, its turns and the gateway, which share the sandbox.
#[test]
fn no_command_runs_in_the_home_of_bub() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.home().join("skills/a")).unwrap();
    for workspace in [sandbox.home(), sandbox.home().join("skills/a")] {
        let workspace = workspace.to_str().unwrap();
        let run = sandbox.bub(["-w", workspace, "sandbox", "touch", "planted"]);
        assert_ne!(run.code, Some(0), "{run:?}");
        assert!(
            run.stderr.contains("the workspace is in bub's own data"),
            "{run:?}"
        );
        assert!(!sandbox.home().join("planted").exists());
    }
}

// L7: the home directory of the user and the home of bub are out of reach, the workspace is not.
#[test]
fn a_command_of_the_model_stays_in_the_workspace() {
    let sandbox = Sandbox::new();
    sandbox.write("secret", CANARY);
    sandbox.write("home/secret", CANARY);
    let command = "cat ~/secret \"$BUB_HOME/secret\" ../secret; echo made > file; cat file";
    let result = result_of(&sandbox, "workspace", command);
    assert!(result.contains("made"), "{result}");
    assert!(!result.contains(CANARY), "{result}");
    assert!(sandbox.workspace().join("file").exists());

    let result = result_of(&sandbox, "off", command);
    assert!(result.contains(CANARY), "{result}");
}

// L7: code in code mode is confined as commands are. The model can read the stub, which is in bub's home.
#[test]
fn code_of_the_model_stays_in_the_workspace() {
    let sandbox = Sandbox::new();
    sandbox.write("secret", CANARY);
    sandbox.write("home/secret", CANARY);
    sandbox.bub(["run", ",code_mode true"]).ok();
    let code = r#"
import os, subprocess
print("key" if "BUB_API_KEY" in os.environ else "no key")
for path in (os.path.expanduser("~/secret"), "../secret", os.environ.get("BUB_HOME", "") + "/secret"):
    print(subprocess.run(["cat", path], capture_output=True, text=True).stdout)
info = await tools.tape_info()
open("file", "w").write("made " + str(info["anchors"]))
print(open("file").read())
try:
    open("/usr/made", "w")
except OSError as error:
    print("refused", error.errno)
"#;
    let arguments = json!({"code": code}).to_string();
    let result = result_of_call(&sandbox, "workspace", "run_code", &arguments);
    assert!(
        result.contains("no key") && result.contains("made 1"),
        "{result}"
    );
    assert!(
        result.contains("refused") && !result.contains(CANARY),
        "{result}"
    );
    assert!(sandbox.workspace().join("file").exists());
    let (_, path) = result.split_once("signatures are in ").unwrap();
    let (path, _) = path.split_once(": ").unwrap();
    let result = result_of(&sandbox, "workspace", &format!("cat {path}"));
    assert!(
        result.contains("async def tape_info() -> TapeInfoResult:"),
        "{result}"
    );
    let planted = json!({"code": "open('AGENTS.md', 'w').write('evil')"}).to_string();
    result_of_call(&sandbox, "workspace", "run_code", &planted);
    assert!(!sandbox.workspace().join("AGENTS.md").exists());
    let ended = json!({"code": "import os\nos._exit(7)"}).to_string();
    let result = result_of_call(&sandbox, "workspace", "run_code", &ended);
    assert!(
        result.contains("exited unexpectedly with code 7"),
        "{result}"
    );
}

// L7: a command that the sandbox stops says so to the model.
#[test]
fn a_command_that_the_sandbox_stops_says_so() {
    let sandbox = Sandbox::new();
    let result = result_of(&sandbox, "read-only", "echo made > file");
    assert!(result.contains("Read-only file system"), "{result}");
    assert!(
        result.contains("[sandbox: the command can write only to /tmp"),
        "{result}"
    );
    assert!(!sandbox.workspace().join("file").exists());
}

/// Returns a command that runs bub, after `prefix`, as the leader of a session with its terminal.
fn command_after(sandbox: &Sandbox, prefix: &[&str]) -> Command {
    let [leader, arguments @ ..] = SESSION_LEADER;
    let mut command = sandbox.command(leader.as_ref());
    command.args(arguments).args(prefix).arg(bub());
    command
}

/// Makes the kernel refuse namespaces, so that commands cannot be confined.
const WITHOUT_NAMESPACES: [&str; 6] = [
    "unshare",
    "-Ur",
    "sh",
    "-c",
    "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"",
    "sh",
];

/// Starts a turn at a terminal in which the model runs `echo made > NAME` for each name.
fn start_at_terminal(server: &ModelServer, command: Command, names: &[&str]) -> Pty {
    let lines = names.iter().map(|name| format!("echo made > {name}"));
    start_commands_at_terminal(server, command, lines)
}

fn start_commands_at_terminal(
    server: &ModelServer,
    mut command: Command,
    lines: impl IntoIterator<Item = String>,
) -> Pty {
    for line in lines {
        let arguments = json!({"command": line}).to_string();
        server.script(Reply::new().call("call_1", "bash", &arguments));
    }
    server.script(Reply::text("done"));
    command
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", server.url()))
        .env("BUB_API_KEY", "correct-horse-battery")
        .args(["run", "hi"]);
    Pty::spawn(command)
}

// L7: the owner is offered to run the command outside. The answer is for one command.
#[test]
fn a_command_that_the_sandbox_stops_can_be_run_outside_once() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let mut command = command_after(&sandbox, &[]);
    command.env("BUB_SANDBOX_PROFILE", "read-only");
    let mut terminal = start_at_terminal(&server, command, &["one", "two"]);
    for answer in ["y\r", "n\r"] {
        terminal.expect("run it again outside the sandbox?");
        terminal.expect("[y");
        terminal.send(answer);
    }
    let (code, shown) = terminal.finish();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("echo made > one"), "{shown}");
    assert!(sandbox.workspace().join("one").exists());
    assert!(!sandbox.workspace().join("two").exists());
}

#[test]
fn a_command_that_needs_a_relative_path_outside_the_workspace_gets_a_note() {
    let sandbox = Sandbox::new();
    sandbox.write("offer.txt", "text");
    std::os::unix::fs::symlink("../offer.txt", sandbox.workspace().join("l0")).unwrap();
    let result = result_of(&sandbox, "workspace", "cat ../no.txt");
    assert!(!result.contains("[sandbox:"), "{result}");
    for (command, count) in [("cat ../offer.txt", 1), ("cat l0", 2)] {
        let result = result_of(&sandbox, "workspace", command);
        let notes = result.matches("[sandbox: the command can write only");
        assert_eq!(notes.count(), count, "{result}");
    }
}

// The first attempt holds a lock, as a server holds its port.
#[test]
fn the_processes_of_a_command_end_before_it_is_run_again_outside() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    sandbox.write("offer.txt", "text");
    let line = "exec 9>lock; flock -n 9 || { echo held > state; exit 1; }; sleep 600 & cat ../offer.txt > state";
    let command = command_after(&sandbox, &[]);
    let mut terminal = start_commands_at_terminal(&server, command, [line.to_owned()]);
    terminal.expect("run it again outside the sandbox?");
    terminal.expect("[y");
    terminal.send("y\r");
    let (code, shown) = terminal.finish();
    assert_eq!(code, Some(0), "{shown}");
    let state = std::fs::read_to_string(sandbox.workspace().join("state")).unwrap();
    assert_eq!(state, "text", "{shown}");
}

// L7: a command that would run beside an unprotected program of git does not start, and can be run outside once.
#[test]
fn a_command_is_refused_if_what_git_runs_cannot_be_protected() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    sandbox.write("workspace/.git/config", "[core]\nhooksPath = a/../h\n");
    let run = sandbox.bub(["sandbox", "true"]);
    assert_eq!(run.code, Some(125), "{run:?}");
    let text = "core.hookspath = a/../h";
    assert!(run.stderr.contains(text), "{run:?}");
    let mut terminal = start_at_terminal(&server, command_after(&sandbox, &[]), &["one", "two"]);
    for answer in ["y\r", "n\r"] {
        terminal.expect("allow bash?");
        terminal.expect("[y");
        terminal.send(answer);
    }
    let (code, shown) = terminal.finish();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains(text), "{shown}");
    assert!(sandbox.workspace().join("one").exists());
    assert!(!sandbox.workspace().join("two").exists());
}

// L7: a repository that a command created runs nothing before the user enables it.
#[test]
fn a_user_enables_a_repository_of_a_command() {
    let sandbox = Sandbox::new();
    let plant = "git init -q new && git -C new config core.fsmonitor ./run";
    let run = sandbox.bub(["sandbox", "sh", "-c", plant]);
    assert!(
        run.stderr.contains("run `bub sandbox --enable new`"),
        "{run:?}"
    );
    let head = sandbox.workspace().join("new/.git/HEAD");
    assert!(!head.exists());
    let shown = sandbox.bub(["sandbox", "--enable", "new"]).ok();
    assert_eq!(shown, "enabled new\n  `core.fsmonitor` is `./run`\n");
    assert!(head.exists());
    sandbox.bub(["sandbox", "true"]).ok();
    assert!(head.exists());
    let run = sandbox.bub(["sandbox", "--enable", "new"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("cannot enable `new`"), "{run:?}");
}

// L7: without confinement, a terminal is asked before each command.
#[test]
fn a_terminal_is_asked_if_commands_cannot_be_confined() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let command = command_after(&sandbox, &WITHOUT_NAMESPACES);
    let mut terminal = start_at_terminal(&server, command, &["one", "two"]);
    for answer in ["y\r", "n\r"] {
        terminal.expect("the sandbox is unavailable: ");
        terminal.expect("[y");
        terminal.send(answer);
    }
    let (code, shown) = terminal.finish();
    assert_eq!(code, Some(0), "{shown}");
    assert!(sandbox.workspace().join("one").exists());
    assert!(!sandbox.workspace().join("two").exists());
}

// L7: without confinement, a gateway runs no command, whatever the policy says.
#[test]
fn a_gateway_refuses_commands_that_cannot_be_confined() {
    let (sandbox, server) = (Sandbox::new(), ModelServer::start());
    let arguments = json!({"command": "echo made > file"}).to_string();
    server.script(Reply::new().call("call_1", "bash", &arguments));
    server.script(Reply::text("done"));
    let [program, arguments @ ..] = WITHOUT_NAMESPACES;
    let mut command = sandbox.command(program.as_ref());
    command
        .args(arguments)
        .arg(bub())
        .arg("gateway")
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", server.url()))
        .env("BUB_API_KEY", "correct-horse-battery")
        .env("BUB_WEBHOOK_ROLE", "owner")
        .env("BUB_POLICY_UNTRUSTED_CONTENT", "allow");
    let gateway = GatewayClient::start(command);
    gateway.ask(&json!({"content": "hi", "sender_id": "alice"}));
    let requests = server.requests();
    let result = String::from_utf8_lossy(&requests.last().unwrap().body);
    assert!(
        result.contains("cannot run the command: the sandbox is unavailable"),
        "{result}"
    );
    assert!(!sandbox.workspace().join("file").exists());
    gateway.stop();
}

// L7: `/tmp` is private to a session in one workspace.
#[test]
fn workspaces_do_not_share_temporary_files() {
    let sandbox = Sandbox::new();
    sandbox.write("other/file", "");
    let other = sandbox.workspace().with_file_name("other");
    let command = |script: &'static str| ["sandbox", "sh", "-c", script];
    sandbox.bub(command("echo first > /tmp/x")).ok();
    assert_eq!(sandbox.bub(command("cat /tmp/x")).ok(), "first\n");
    let workspace = ["-w", other.to_str().unwrap()];
    let there = |script| sandbox.bub(workspace.into_iter().chain(command(script)));
    assert_eq!(there("cat /tmp/x").code, Some(1));
    there("echo second > /tmp/x").ok();
    assert_eq!(sandbox.bub(command("cat /tmp/x")).ok(), "first\n");
}

// L7: a command that ends with bub leaves nothing behind that works outside.
#[test]
fn the_sandbox_renames_what_a_command_planted_also_if_bub_is_ended() {
    for signal_name in ["TERM", "INT", "KILL"] {
        let sandbox = Sandbox::new();
        // The process that runs the tests may ignore SIGINT, which children inherit.
        let mut child = sandbox
            .command("env".as_ref())
            .arg("--default-signal=INT")
            .arg(bub())
            .args(["sandbox", "sh", "-c"])
            .arg("echo evil > AGENTS.md; echo up; sleep 1000")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut String::new()).unwrap();
        signal(&child, signal_name);
        let mut notes = String::new();
        let mut stderr = child.stderr.take().unwrap();
        stderr.read_to_string(&mut notes).unwrap();
        child.wait().unwrap();
        assert!(
            notes.contains("renamed `AGENTS.md`"),
            "{signal_name}: {notes}"
        );
        assert!(!sandbox.workspace().join("AGENTS.md").exists());
    }
}

#[test]
fn a_user_can_try_the_sandbox() {
    let sandbox = Sandbox::new();
    sandbox.write("secret", CANARY);
    let run = sandbox.bub([
        "sandbox",
        "sh",
        "-c",
        "echo made > file && cat file && cat ~/secret",
    ]);
    assert_eq!(
        (run.code, run.stdout.as_str()),
        (Some(1), "made\n"),
        "{run:?}"
    );
    let run = sandbox.bub(["sandbox", "--profile", "read-only", "touch", "other"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let run = sandbox.bub(["sandbox", "no-such-program"]);
    assert_eq!(run.code, Some(125), "{run:?}");
    assert!(
        run.stderr
            .contains("the sandbox cannot start `no-such-program`"),
        "{run:?}"
    );
}
