//! Output of the budget check for programs that exceed budgets or fail.

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use bub_testkit::program::Program;
use tempfile::TempDir;

/// Creates a program from a shell script.
fn fake(directory: &TempDir, script: &str) -> PathBuf {
    let path = directory.path().join("fake");
    // Written by another process, because a file that this process has open cannot be executed
    // while another test forks.
    let mut shell = Command::new("sh");
    shell
        .args([
            "-c",
            "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"",
            "sh",
            script,
        ])
        .arg(&path);
    assert!(shell.status().is_ok_and(|status| status.success()));
    path
}

#[test]
fn one_failing_measurement_is_explained_and_the_others_are_taken() {
    let directory = tempfile::tempdir().unwrap();
    fake(
        &directory,
        "case $1 in
             hooks) echo 'no table of hooks' >&2; exit 3 ;;
             chat) echo 'no terminal today'; exit 4 ;;
             gateway) echo 'port is taken' >&2; exit 5 ;;
         esac",
    );
    // The path is relative, as in docs/performance.md.
    let output = Command::new(env!("CARGO_BIN_EXE_budgets"))
        .arg("./fake")
        .current_dir(&directory)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for expected in [
        "ok: binary: bytes:",
        "ok: bub --help: peak memory:",
        "NOT MEASURED: bub hooks: `hooks`: exit status: 3; last output:\n    no table of hooks\n    look at: ",
        "NOT MEASURED: bub chat: first prompt: `chat` showed no prompt: \" > \" was not shown before the program ended \
         (exit status: 4):\nno terminal today",
        "NOT MEASURED: bub gateway: ready: `gateway` ended (exit status: 5) and did not send READY=1 to NOTIFY_SOCKET; \
         last output:\n    port is taken\n",
        "NOT MEASURED: bub gateway: sessions and turns: ",
        ": bub doctor --offline on a home with 10000 tapes: time in µs:",
    ] {
        assert!(said.contains(expected), "{expected}\nis not in\n{said}");
    }
    assert!(String::from_utf8_lossy(&output.stderr).contains("not kept or not measured"));
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_budgets"))
        .arg("no/such/bub")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).starts_with("error: no/such/bub: No such file")
    );
}

#[test]
fn what_never_ends_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let path = fake(&directory, "echo 'I wait' >&2; exec sleep 600");
    let program = Program::new(path)
        .unwrap()
        .with_timeout(Duration::from_millis(300));
    let begun = Instant::now();
    let waits = "within 300ms; last output:\n    I wait";
    let help = program.run(&["--help"]).unwrap_err().to_string();
    assert_eq!(help, format!("`--help` did not end {waits}"));
    let gateway = program.start_gateway().err().unwrap().to_string();
    assert_eq!(
        gateway,
        format!("`gateway` did not send READY=1 to NOTIFY_SOCKET {waits}")
    );
    let chat = program.measure_first_prompt().unwrap_err().to_string();
    assert!(
        chat.starts_with("`chat` showed no prompt: timed out; output so far:\nI wait"),
        "{chat}"
    );
    assert!(begun.elapsed() < Duration::from_mins(1));
}
