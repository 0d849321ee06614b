//! Holds the program to its budgets: `budgets PATH-TO-BUB`, built in release. Linux, because it asks `/proc`.
//!
//! The size is exact, so it is strict. Time and memory vary with the machine: the best of many runs counts, because only
//! that says something about the program; where processor time tells the same, it is taken instead. What is over its
//! budget is said with a hint where to look.

use std::{
    ffi::OsStr,
    io::Write,
    process::ExitCode,
    time::{Duration, Instant},
};

use bub_testkit::{program::Program, pty::Pty};

mod gateway;

const MB: u64 = 1_000_000;
const RUNS: u32 = 40;
const TAPES: usize = 10_000;
/// How long a time that is over its limit is measured again.
const PATIENCE: Duration = Duration::from_secs(15);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let Some(program) = std::env::args_os().nth(1) else {
        let _ = writeln!(std::io::stderr(), "usage: budgets PATH-TO-BUB");
        return ExitCode::from(2);
    };
    let mut budgets = Budgets::default();
    let outcome = check_all(&mut budgets, &program);
    if let Err(error) = &outcome {
        let _ = writeln!(std::io::stderr(), "error: {error}");
    }
    if outcome.is_ok() && budgets.over == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check_all(budgets: &mut Budgets, path: &OsStr) -> Outcome<()> {
    let size = std::fs::metadata(path)?.len();
    let hint = "`cargo bloat --release --crates`, features of new dependencies (`cargo tree -e features`)";
    budgets.size("binary", size, 14 * MB, hint)?;
    let program = Program::new(path)?;
    for command in ["--help", "hooks"] {
        let (limit, mut peak, mut cpu) = (Duration::from_millis(5), u64::MAX, Duration::MAX);
        let wall = least(limit, RUNS, || {
            let used = program.run(&[command])?;
            (peak, cpu) = (peak.min(used.peak), cpu.min(used.cpu));
            Ok(used.wall)
        })?;
        let hint = "what every command does before it knows which one it is: bub/src/app.rs; `strace -f -r`";
        // So short a time is not to be had where every process waits for its turn; what it needs still is.
        let (taken, note) = if wall > limit && is_busy() {
            (cpu, " (processor time, because the machine is busy)")
        } else {
            (wall, "")
        };
        budgets.time(&format!("bub {command}{note}"), taken, limit, hint)?;
        let hint = "what is built or read at the start and not used; `strace -e trace=memory`";
        budgets.size(&format!("bub {command}: peak memory"), peak, 10 * MB, hint)?;
    }
    let hint = "bub/src/cli/chat/: what stands before the first prompt";
    let limit = Duration::from_millis(30);
    let prompt = least(limit, RUNS, || Ok(first_prompt(&program)))?;
    budgets.time("bub chat: first prompt", prompt, limit, hint)?;
    doctor(budgets, &program, "bub doctor --offline")?;
    gateway::start(budgets, &program, "")?;
    gateway::sessions_and_turns(budgets, &program)?;
    many_tapes(budgets, &Program::new(path)?)
}

/// A home with very many tapes: nothing at a start may look at all of them.
fn many_tapes(budgets: &mut Budgets, program: &Program) -> Outcome<()> {
    program.add_tapes(TAPES, 20)?;
    let limit = Duration::from_millis(100);
    let hint =
        "something lists or reads all tapes at the start: `strace -c -f`, bub-tape's index and registry";
    let place = format!(" on a home with {TAPES} tapes");
    let prompt = least(limit, 10, || Ok(first_prompt(program)))?;
    budgets.time(&format!("bub chat: first prompt{place}"), prompt, limit, hint)?;
    let answered = least(limit, 10, || Ok(program.run(&["run", "How is it?"])?.wall))?;
    budgets.time(&format!("bub run, to its end,{place}"), answered, limit, hint)?;
    gateway::start(budgets, program, &place)?;
    doctor(budgets, program, &format!("bub doctor --offline{place}"))
}

fn doctor(budgets: &mut Budgets, program: &Program, what: &str) -> Outcome<()> {
    let limit = Duration::from_millis(200);
    let wall = least(limit, 10, || Ok(program.run(&["doctor", "--offline"])?.wall))?;
    let hint =
        "bub/src/cli/doctor/: each check has to end in a moment; `bub doctor --offline` under `strace -f -r`";
    budgets.time(what, wall, limit, hint)
}

/// The least of so many runs, and of more for as long as it is over the limit: a busy machine gets another chance, a slow
/// program has none.
pub(crate) fn least(
    limit: Duration,
    runs: u32,
    mut one: impl FnMut() -> Outcome<Duration>,
) -> Outcome<Duration> {
    let (begun, mut least, mut done) = (Instant::now(), Duration::MAX, 0);
    while done < runs || least > limit && begun.elapsed() < PATIENCE {
        least = least.min(one()?);
        done += 1;
    }
    Ok(least)
}

/// Whether three or more processes wait for each core.
fn is_busy() -> bool {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cores).is_ok_and(|cores| load > 3.0 * f64::from(cores))
}

/// From the start of `bub chat` to its prompt, in a terminal.
fn first_prompt(program: &Program) -> Duration {
    let started = Instant::now();
    let mut chat = Pty::spawn(program.command(&["chat"]));
    chat.expect(" > ");
    let taken = started.elapsed();
    chat.send("\x04");
    chat.finish();
    taken
}

/// What was found so far.
#[derive(Default)]
pub(crate) struct Budgets {
    over: u32,
}

impl Budgets {
    pub(crate) fn time(&mut self, what: &str, taken: Duration, limit: Duration, hint: &str) -> Outcome<()> {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.check(&format!("{what}: time in µs"), micros(taken), micros(limit), hint)
    }

    pub(crate) fn size(&mut self, what: &str, bytes: u64, limit: u64, hint: &str) -> Outcome<()> {
        self.check(&format!("{what}: bytes"), bytes, limit, hint)
    }

    fn check(&mut self, what: &str, measured: u64, limit: u64, hint: &str) -> Outcome<()> {
        let mut out = std::io::stdout();
        if measured <= limit {
            writeln!(out, "ok: {what}: {measured} (limit {limit})")?;
        } else {
            self.over += 1;
            writeln!(out, "OVER BUDGET: {what}: {measured} (limit {limit})\n    look at: {hint}")?;
        }
        Ok(())
    }
}
