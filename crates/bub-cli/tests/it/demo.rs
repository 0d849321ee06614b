//! Tests `bub demo`, as a newcomer runs it.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use bub_testkit::pty::Pty;

use crate::{
    replay::{has_strace, trace},
    sandbox::{Run, Sandbox, bub, example, signal, wait_until},
};

/// Returns a demo whose temporary directories are in the workspace of a sandbox.
fn demo(sandbox: &Sandbox, args: &[&str]) -> Command {
    demo_of(sandbox, sandbox.command(&bub()), args)
}

/// Returns a demo for a pseudo-terminal, at which it asks.
fn demo_in_terminal(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = sandbox.command(&example("in_terminal"));
    command.arg(bub());
    demo_of(sandbox, command, args)
}

fn demo_of(sandbox: &Sandbox, mut command: Command, args: &[&str]) -> Command {
    let temporary = sandbox.workspace().join("tmp");
    fs::create_dir_all(&temporary).unwrap();
    command.arg("demo").args(args).env("TMPDIR", temporary);
    command.env("TERM", "xterm");
    command
}

fn has_left_nothing(sandbox: &Sandbox) -> bool {
    let temporary = sandbox.workspace().join("tmp");
    fs::read_dir(temporary).unwrap().next().is_none() && !sandbox.home().join("tapes").exists()
}

#[test]
fn the_demo_runs_without_a_person_and_leaves_nothing_behind() {
    for (lang, texts) in [
        (
            ["--lang", "en"],
            [
                "ok: the total is 42",
                "FAIL: expected 42, got 6`. I found this",
                "would have cost about $",
                "Next steps",
            ],
        ),
        (
            ["--lang", "zh"],
            [
                "ok: the total is 42",
                "FAIL: expected 42, got 6`。这是我在磁带上找到的",
                "大约需要 $",
                "下一步",
            ],
        ),
    ] {
        let sandbox = Sandbox::new();
        let started = Instant::now();
        let mut command = demo(&sandbox, &["--yes"]);
        let run = Run::from_output(command.args(lang).output().unwrap());
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{:?}",
            started.elapsed()
        );
        let stdout = run.ok();
        for text in texts {
            assert!(stdout.contains(text), "{text}: {stdout}");
        }
        assert!(has_left_nothing(&sandbox));
    }
}

#[test]
fn the_demo_asks_at_a_terminal_and_uses_the_language_of_the_locale() {
    let sandbox = Sandbox::new();
    let mut command = demo_in_terminal(&sandbox, &[]);
    command.env("LANG", "zh_CN.UTF-8");
    let mut terminal = Pty::spawn_sized(command, 50, 120);
    terminal.expect("allow fs.edit?");
    terminal.expect("or `n REASON`: ");
    terminal.send("y\r");
    let shown = terminal.expect("下一步");
    assert!(shown.contains("ok: the total is 42"), "{shown}");
    let (code, _) = terminal.finish();
    assert_eq!(code, Some(0));
    assert!(has_left_nothing(&sandbox));
}

/// The demo must not claim a success that did not happen: the answer, the last words and the exit code say so.
#[test]
fn a_denied_edit_is_admitted() {
    for (lang, answer, last_words) in [
        (
            "en",
            "is unchanged and the check still fails",
            "The check was not fixed, because you did not approve the edit.",
        ),
        (
            "zh",
            "没有变，检查仍然失败",
            "检查没有修好，因为你没有批准修改。",
        ),
    ] {
        let sandbox = Sandbox::new();
        let args = ["--lang", lang, "--pace", "0"];
        let mut terminal = Pty::spawn_sized(demo_in_terminal(&sandbox, &args), 50, 120);
        terminal.expect("or `n REASON`: ");
        terminal.send("n\r");
        let (code, shown) = terminal.finish();
        assert_eq!(code, Some(1), "{shown}");
        assert!(shown.contains(answer), "{shown}");
        let end = shown.trim_end().lines().last().unwrap();
        assert!(end.starts_with(last_words), "{end}");
        assert!(!shown.contains("passes now"), "{shown}");
        assert!(has_left_nothing(&sandbox));
    }
}

/// The recorded model cannot know the reason of a user. The demo continues as without one, also without an answer.
#[test]
fn an_edit_that_is_denied_with_a_reason_is_admitted() {
    for answer in ["n not today\r", "\u{4}"] {
        let sandbox = Sandbox::new();
        let args = ["--lang", "en", "--pace", "0"];
        let mut terminal = Pty::spawn_sized(demo_in_terminal(&sandbox, &args), 50, 120);
        terminal.expect("or `n REASON`: ");
        terminal.send(answer);
        let (code, shown) = terminal.finish();
        assert_eq!(code, Some(1), "{shown}");
        assert!(
            shown.contains("is unchanged and the check still fails"),
            "{shown}"
        );
        assert!(!shown.contains("It passes"), "{shown}");
        assert!(!shown.contains("passes now"), "{shown}");
    }
}

/// The trace shows that the demo and its processes connect to nothing.
#[test]
fn the_demo_makes_no_connection() {
    if !has_strace() {
        return;
    }
    let sandbox = Sandbox::new();
    let (run, calls) = trace(&demo(&sandbox, &["--yes", "--lang", "en", "--pace", "0"]));
    assert_eq!(run.code, Some(0), "{run:?}");
    // The processes of the demo are seen, too.
    assert!(calls.matches("execve(").count() > 5, "{calls}");
    // The C library asks a local daemon for user names.
    let is_network = |line: &&str| line.contains("AF_") && !line.contains("AF_UNIX");
    let network: Vec<&str> = calls.lines().filter(is_network).collect();
    assert_eq!(network, [""; 0], "{network:?}");
}

/// The estimate includes the definitions of the tools, which are most of a request.
#[test]
fn the_demo_counts_the_tools_in_its_cost() {
    let sandbox = Sandbox::new();
    let mut command = demo(&sandbox, &["--yes", "--lang", "en", "--pace", "0"]);
    let shown = Run::from_output(command.output().unwrap()).ok();
    let (_, rest) = shown.split_once("model calls, about ").unwrap();
    let tokens: u64 = rest.split(' ').next().unwrap().parse().unwrap();
    assert!(tokens > 8 * 1_500, "{tokens}");
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let mut terminal = Pty::spawn_sized(demo_in_terminal(&sandbox, &["--lang", "en"]), 50, 120);
    terminal.expect("or `n REASON`: ");
    terminal.send("\u{3}");
    let (code, _) = terminal.finish();
    assert_eq!(code, Some(130));
    assert!(has_left_nothing(&sandbox));
    let without_terminal = Run::from_output(demo(&sandbox, &[]).output().unwrap());
    assert_eq!(without_terminal.code, Some(2));
    assert!(
        without_terminal.stderr.contains("pass `--yes`"),
        "{without_terminal:?}"
    );
}

/// Programs such as `timeout` send a signal to the process and then to its group.
#[test]
fn a_demo_that_gets_a_signal_alone_and_twice_ends_at_once_and_leaves_nothing_behind() {
    for signals in [&["INT"][..], &["TERM", "TERM"], &["INT", "TERM", "INT"]] {
        let sandbox = Sandbox::new();
        let mut command = demo(&sandbox, &["--yes", "--lang", "en", "--pace", "1"]);
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let temporary = sandbox.workspace().join("tmp");
        let is_running = || {
            let mut directories = fs::read_dir(&temporary).unwrap().flatten();
            directories.any(|directory| directory.path().join("home/tapes").exists())
        };
        wait_until("the demo runs", is_running);
        let started = Instant::now();
        for name in signals {
            signal(&child, name);
        }
        let code = child.wait().unwrap().code();
        assert!(matches!(code, Some(130 | 143)), "{code:?}");
        assert!(started.elapsed() < Duration::from_millis(2_500));
        assert!(has_left_nothing(&sandbox));
    }
}
