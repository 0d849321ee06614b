//! Development tasks: `cargo xtask agent-bench`, `cargo xtask api`, `cargo xtask bench`, `cargo xtask dist`,
//! `cargo xtask licenses` and `cargo xtask picture`.
#![allow(
    clippy::indexing_slicing,
    reason = "indexing a missing JSON field returns null"
)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for a terminal"
)]

use std::{
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

use serde_json::Value;

mod agent_bench;
mod api;
mod baseline;
mod bench;
mod dist;
mod divan;
mod licenses;
mod picture;
mod report;

const USAGE: &str = "\
usage: cargo xtask agent-bench --model MODEL [--api-base URL] [--bub PATH] [--original VENV] [--only NAME]… [--limit N]
                               [--slow] [--timeout SECONDS] [--results PATH]
       cargo xtask api [--check]
       cargo xtask bench [--quick] [--only NAME]… [--bub PATH] [--json PATH] [--write-docs]
       cargo xtask dist [--images]
       cargo xtask licenses
       cargo xtask picture

agent-bench let a model solve the tasks in xtask/agent-bench/tasks, and compare programs
          --model MODEL     the model, as provider:model
          --api-base URL    the base URL of its provider
          --bub PATH        run this program instead of building one in release mode
          --original VENV   also run the Python version of this virtual environment
          --only NAME       run only a task (read-word) or a group of tasks (edits)
          --limit N         run only the first N tasks
          --slow            also run tasks that need many tokens
          --timeout SECONDS end a message after this time [default: 600]
          --results PATH    keep results in this file; tasks with a result are skipped [default: target/agent-bench/results.jsonl]
api     write the public API of the crate `bub` to crates/bub/public-api.txt
          --check       compare the API with the file instead
bench   run every benchmark of the workspace, print tables and write target/bench.json
          --quick       use few samples and small sizes
          --only NAME   run only a crate (bub-tape), a benchmark (view), or both (bub-tape/view)
          --bub PATH    measure this program instead of building one in release mode
          --json PATH   write the figures to this file [default: target/bench.json]
          --write-docs  replace the figures in docs/performance.md
dist    build the static binary for Linux into target/dist and print its size
          --images      also build the images of Containerfile, with docker or podman
licenses check the licenses and sources of dependencies, and advisories with cargo-audit
picture run a chat with a scripted model and write docs/images/session.svg";

pub(crate) type TaskResult<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    if let Some(code) = api::run_as_rustdoc() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["agent-bench", options @ ..] => agent_bench::AgentBenchOptions::parse(options)
            .and_then(|options| agent_bench::run(&options)),
        ["api"] => api::run(false),
        ["api", "--check"] => api::run(true),
        ["bench", options @ ..] => {
            bench::BenchOptions::parse(options).and_then(|options| bench::run(&options))
        }
        ["dist"] => dist::run(false),
        ["dist", "--images"] => dist::run(true),
        ["licenses"] => licenses::run(),
        ["picture"] => picture::run(),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the root directory of the repository.
pub(crate) fn repository_root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

/// Builds with cargo; returns cargo's messages about the executables.
pub(crate) fn cargo_build(args: &[&str]) -> TaskResult<Vec<Value>> {
    eprintln!("cargo {}", args.join(" "));
    let output = Command::new(env!("CARGO"))
        .args(args)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(repository_root())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo {} failed", args.join(" ")).into());
    }
    let lines = String::from_utf8(output.stdout)?;
    let messages = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(messages
        .filter(|message| message.get("executable").is_some_and(Value::is_string))
        .collect())
}

/// Returns the output of a program; empty if it fails.
pub(crate) fn command_output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .current_dir(repository_root())
        .output();
    output
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}
