//! Holds the program to its budgets: `budgets PATH-TO-BUB`, built in release.
//!
//! Size and memory are exact, so they are strict. Time varies with the machine: the best of many runs
//! counts, because only that says something about the program.

use std::{
    ffi::OsString,
    io::Write,
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use bub_testkit::pty::Pty;
use wait4::Wait4;

const MAX_BINARY_BYTES: u64 = 14_000_000;
const MAX_PEAK_BYTES: u64 = 10_000_000;
const MAX_WALL: Duration = Duration::from_millis(5);
const MAX_PROMPT: Duration = Duration::from_millis(30);
const RUNS: u32 = 40;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let Some(program) = std::env::args_os().nth(1) else {
        let _ = writeln!(std::io::stderr(), "usage: budgets PATH-TO-BUB");
        return ExitCode::from(2);
    };
    match check_all(&program) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check_all(program: &OsString) -> Outcome<bool> {
    let mut within = check("binary size in bytes", std::fs::metadata(program)?.len(), MAX_BINARY_BYTES)?;
    let home = tempfile::tempdir()?;
    for args in [["--help"], ["hooks"]] {
        let (wall, peak) = best_of_runs(program, &args, home.path())?;
        let name = format!("bub {}", args.join(" "));
        within &= check(&format!("{name}: best wall time in µs"), micros(wall), micros(MAX_WALL))?;
        within &= check(&format!("{name}: peak memory in bytes"), peak, MAX_PEAK_BYTES)?;
    }
    let prompt = first_prompt(program, home.path());
    within &= check("bub chat: best time to the first prompt in µs", micros(prompt), micros(MAX_PROMPT))?;
    Ok(within)
}

/// From the start of `bub chat` to its prompt, in a terminal.
fn first_prompt(program: &OsString, home: &Path) -> Duration {
    let one = |_| {
        let started = Instant::now();
        let mut command = Command::new(program);
        command.arg("chat").current_dir(home).env_clear().env("HOME", home).env("TERM", "xterm");
        let mut chat = Pty::spawn(command);
        chat.expect(" > ");
        let taken = started.elapsed();
        chat.send("\x04");
        chat.finish();
        taken
    };
    (0..RUNS).map(one).min().unwrap_or(Duration::MAX)
}

fn check(what: &str, measured: u64, limit: u64) -> Outcome<bool> {
    let verdict = if measured <= limit { "ok" } else { "OVER BUDGET" };
    writeln!(std::io::stdout(), "{verdict}: {what}: {measured} (limit {limit})")?;
    Ok(measured <= limit)
}

fn best_of_runs(program: &OsString, args: &[&str], home: &Path) -> Outcome<(Duration, u64)> {
    let (mut wall, mut peak) = (Duration::MAX, 0);
    for _ in 0..RUNS {
        let started = Instant::now();
        let mut child = Command::new(program)
            .args(args)
            .current_dir(home)
            .env_clear()
            .env("HOME", home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let used = child.wait4()?;
        wall = wall.min(started.elapsed());
        peak = peak.max(used.rusage.maxrss);
        if !used.status.success() {
            return Err(format!("bub {} failed", args.join(" ")).into());
        }
    }
    Ok((wall, peak))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
