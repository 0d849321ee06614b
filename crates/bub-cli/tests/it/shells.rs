//! Tests that commands of the agent end with the program, however it ends.

use std::{path::Path, process::Child};

use crate::sandbox::{Sandbox, bub, example, signal, wait_until};

/// Command with all kinds of processes: the shell, a background process, a detached one, and one that ignores signals.
const PROCESS_TREE_COMMAND: &str = "echo $$ > shell; sleep 99 & echo $! > child; \
    setsid sh -c 'echo $$ > away; sleep 99; true' & \
    (trap '' TERM; echo $BASHPID > deaf; while true; do sleep 0.05; done) & sleep 99; true";
const MEMBERS: [&str; 4] = ["shell", "child", "away", "deaf"];

fn pid(sandbox: &Sandbox, file: &str) -> Option<u32> {
    std::fs::read_to_string(sandbox.workspace().join(file))
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

fn start_process_tree(sandbox: &Sandbox) -> Child {
    let child = sandbox
        .command(&example("commanding"))
        .args(["run", PROCESS_TREE_COMMAND])
        .spawn()
        .unwrap();
    wait_until("all run", || {
        MEMBERS
            .iter()
            .all(|member| pid(sandbox, member).is_some_and(is_alive))
    });
    child
}

// L7, W-24, W-27
#[cfg(target_os = "linux")]
#[test]
fn no_command_survives_the_program() {
    for how in ["KILL", "TERM", "INT", "QUIT"] {
        let sandbox = Sandbox::new();
        let mut child = start_process_tree(&sandbox);
        signal(&child, how);
        child.wait().unwrap();
        for member in MEMBERS {
            let pid = pid(&sandbox, member).unwrap();
            wait_until(&format!("{member} is gone after {how}"), || !is_alive(pid));
        }
    }
}

// L7: commands do not inherit file descriptors of the process that started bub.
#[cfg(target_os = "linux")]
#[test]
fn a_command_gets_no_file_that_bub_was_started_with() {
    let sandbox = Sandbox::new();
    sandbox.write("workspace/private", "not for commands");
    let run = sandbox
        .command(Path::new("/bin/sh"))
        .args(["-c", r#"exec 7<private; exec "$@""#, "sh"])
        .arg(bub())
        .args(["run", ",cat <&7 2>&1; echo over"])
        .output()
        .unwrap();
    let output = crate::sandbox::Run::from_output(run).ok();
    assert!(
        output.contains("over") && !output.contains("not for commands"),
        "{output}"
    );
}

// L7
#[cfg(target_os = "linux")]
#[test]
fn what_a_finished_program_left_running_ends_with_it() {
    let sandbox = Sandbox::new();
    let run = sandbox.example(
        "commanding",
        ["run", "sleep 99 & echo $! > child; echo started"],
    );
    assert_eq!(run.ok(), "started\n");
    let pid = pid(&sandbox, "child").unwrap();
    wait_until("the child is gone", || !is_alive(pid));
}

// L7, W-37: also with a custom program, which is its own supervisor.
#[test]
fn commands_see_no_secrets() {
    let sandbox = Sandbox::new();
    let output = sandbox
        .command(&example("commanding"))
        .args(["run", "cat; echo ${#BUB_API_KEY} $PLAIN"])
        .env("BUB_API_KEY", "correct-horse-battery")
        .env("PLAIN", "seen")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "0 seen\n");
}

#[test]
fn the_helper_is_hidden_and_reads_no_settings() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "{ broken");
    assert!(!sandbox.bub(["--help"]).ok().contains("__exec"));
    // Without bub at the other end of its stdin, the supervisor does and prints nothing.
    for args in [&["__exec"][..], &["__exec", "/bin/sh", "echo no"]] {
        let run = sandbox.bub(args);
        assert_eq!(
            (run.code, run.stdout.as_str(), run.stderr.as_str()),
            (Some(2), "", "")
        );
    }
}

// H-112: the standard program as the supervisor.
#[cfg(target_os = "linux")]
#[test]
fn the_program_is_a_helper_of_few_resources() {
    use std::{
        io::{BufRead, BufReader},
        os::{fd::OwnedFd, unix::net::UnixStream},
    };
    let sandbox = Sandbox::new();
    // Create the pipe before the command runs, because the command does not wait for it.
    std::process::Command::new("mkfifo")
        .arg(sandbox.workspace().join("go"))
        .status()
        .unwrap();
    let (own, theirs) = UnixStream::pair().unwrap();
    let mut helper = sandbox
        .command(Path::new(&bub()))
        .args([
            "__exec",
            "/bin/sh",
            "echo $PPID > helper; read line < go; exit 7",
        ])
        .stdin(OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    let mut reports = BufReader::new(own).lines().map(Result::unwrap);
    assert!(reports.next().unwrap().starts_with("started "));
    wait_until("it runs", || pid(&sandbox, "helper").is_some());
    let status = std::fs::read_to_string(format!("/proc/{}/status", helper.id())).unwrap();
    let memory = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    let memory: u32 = memory.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(memory < 3500, "{memory} kB");
    std::fs::write(sandbox.workspace().join("go"), "\n").unwrap();
    assert_eq!(reports.next().unwrap(), "exited 7 alone");
    assert_eq!(reports.next(), None);
    helper.wait().unwrap();
}
