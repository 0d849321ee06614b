//! Checks the program against its budgets: `budgets PATH-TO-BUB`, built in release mode. Linux
//! only, because it reads `/proc`.
//!
//! The size is exact, so its limit is strict. Time and memory depend on the machine, so the best of
//! many runs counts. Each exceeded budget or failed measurement is reported with a hint, and the
//! other measurements continue.

use std::{
    io::Write,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use bub_testkit::program::Program;

mod gateway;

const MB: u64 = 1_000_000;
const RUN_COUNT: u32 = 40;
const TAPE_COUNT: usize = 10_000;
/// How long to repeat a measurement that is over its limit.
const REMEASURE_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);
/// Time of the shortest process (`true`) on an idle machine.
const BASELINE_TIME: Duration = Duration::from_millis(1);
/// Maximum slowdown of the machine. A slower machine cannot check budgets.
const MAX_SLOWDOWN: f64 = 4.0;

type BudgetResult<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let Some(program) = std::env::args_os().nth(1) else {
        let _ = writeln!(std::io::stderr(), "usage: budgets PATH-TO-BUB");
        return ExitCode::from(2);
    };
    let mut budgets = Budgets::default();
    if let Err(error) = check_all(&mut budgets, Path::new(&program)) {
        budgets.over += 1;
        let _ = writeln!(std::io::stderr(), "error: {error}");
    }
    if budgets.over == 0 {
        return ExitCode::SUCCESS;
    }
    let _ = writeln!(
        std::io::stderr(),
        "{} not kept or not measured, of {}",
        budgets.over,
        budgets.checked
    );
    ExitCode::FAILURE
}

fn check_all(budgets: &mut Budgets, path: &Path) -> BudgetResult<()> {
    let program = Program::new(path)?.with_timeout(COMMAND_TIMEOUT);
    let size = path.metadata()?.len();
    let hint =
        "`cargo bloat --release --crates`, features of new dependencies (`cargo tree -e features`)";
    budgets.check_size("binary", size, 17 * MB + 9 * MB / 10, hint)?;
    for command in ["--help", "hooks"] {
        let hint = "what every command does before it knows which one it is: bub/src/app.rs; `strace -f -r`";
        let label = format!("bub {command}");
        budgets.try_measure(&label, hint, |budgets| {
            check_short_command(budgets, &program, command, hint)
        })?;
    }
    let hint = "bub/src/cli/chat/: what runs before the first prompt";
    let limit = Duration::from_millis(30);
    budgets.check_minimum("bub chat: first prompt", (RUN_COUNT, limit), hint, || {
        Ok(program.measure_first_prompt()?)
    })?;
    for (place, on_terminal) in [("in a pipe", false), ("on a terminal", true)] {
        let label = format!("bub run: first token {place}, median");
        let hint = "what stands between the stream and stdout: bub-terminal/src/turn_printer.rs";
        budgets.try_measure(&label, hint, |budgets| {
            let median = program.measure_first_token(on_terminal, 21)?;
            budgets.check_time(&label, median, Duration::from_millis(15), hint)
        })?;
    }
    check_doctor(budgets, &program, "bub doctor --offline")?;
    gateway::check_start(budgets, &program, "")?;
    gateway::check_sessions_and_turns(budgets, &program)?;
    check_many_tapes(budgets, &Program::new(path)?.with_timeout(COMMAND_TIMEOUT))
}

/// Checks that a command ends quickly.
///
/// On a busy machine every process is slow, so runs of `true` alternate with runs of the command.
/// If even the best of them is slow, the limit is extended by the same factor.
fn check_short_command(
    budgets: &mut Budgets,
    program: &Program,
    command: &str,
    hint: &str,
) -> BudgetResult<()> {
    let limit = Duration::from_millis(5);
    let allowed = |idle: Duration| {
        limit.mul_f64((idle.as_secs_f64() / BASELINE_TIME.as_secs_f64()).clamp(1.0, MAX_SLOWDOWN))
    };
    let nothing = Program::new("/bin/true")?;
    let (begun, mut done) = (Instant::now(), 0);
    let (mut best, mut idle) = (program.run(&[command])?, nothing.run(&[])?.wall);
    while done < RUN_COUNT || best.wall > allowed(idle) && begun.elapsed() < REMEASURE_TIMEOUT {
        let used = program.run(&[command])?;
        (best.wall, best.peak) = (best.wall.min(used.wall), best.peak.min(used.peak));
        idle = idle.min(nothing.run(&[])?.wall);
        done += 1;
    }
    let note = if idle > BASELINE_TIME {
        format!(" (`true` takes {idle:?} here)")
    } else {
        String::new()
    };
    budgets.check_time(
        &format!("bub {command}{note}"),
        best.wall,
        allowed(idle),
        hint,
    )?;
    let hint = "what is built or read at the start and not used; `strace -e trace=memory`";
    // Other commands than `--help` also build the framework.
    let max_bytes = match command {
        "--help" => 12 * MB + 8 * MB / 10,
        _ => 13 * MB + 4 * MB / 10,
    };
    budgets.check_size(
        &format!("bub {command}: peak memory"),
        best.peak,
        max_bytes,
        hint,
    )
}

/// Checks a home with very many tapes: no start may read all of them.
fn check_many_tapes(budgets: &mut Budgets, program: &Program) -> BudgetResult<()> {
    program.add_tapes(TAPE_COUNT, 20)?;
    let limit = Duration::from_millis(100);
    let hint = "something lists or reads all tapes at the start: `strace -c -f`, bub-tape's index and registry";
    let suffix = format!(" on a home with {TAPE_COUNT} tapes");
    let prompt = format!("bub chat: first prompt{suffix}");
    budgets.check_minimum(&prompt, (10, limit), hint, || {
        Ok(program.measure_first_prompt()?)
    })?;
    let run = format!("bub run, to its end,{suffix}");
    budgets.check_minimum(&run, (10, limit), hint, || {
        Ok(program.run(&["run", "How is it?"])?.wall)
    })?;
    gateway::check_start(budgets, program, &suffix)?;
    check_doctor(budgets, program, &format!("bub doctor --offline{suffix}"))
}

fn check_doctor(budgets: &mut Budgets, program: &Program, label: &str) -> BudgetResult<()> {
    let hint = "bub/src/cli/doctor/: each check has to end in a moment; `bub doctor --offline` under `strace -f -r`";
    let limit = Duration::from_millis(200);
    budgets.check_minimum(label, (10, limit), hint, || {
        Ok(program.run(&["doctor", "--offline"])?.wall)
    })
}

/// Returns the minimum of a number of runs, and of more runs while it is over the limit. This gives
/// a busy machine, but not a slow program, another chance.
pub(crate) fn minimum_time(
    limit: Duration,
    runs: u32,
    mut measure: impl FnMut() -> BudgetResult<Duration>,
) -> BudgetResult<Duration> {
    let (begun, mut least, mut done) = (Instant::now(), Duration::MAX, 0);
    while done < runs || least > limit && begun.elapsed() < REMEASURE_TIMEOUT {
        least = least.min(measure()?);
        done += 1;
    }
    Ok(least)
}

/// Results of the checks.
#[derive(Default)]
pub(crate) struct Budgets {
    checked: u32,
    over: u32,
}

impl Budgets {
    /// Runs a measurement; reports a failure and continues.
    pub(crate) fn try_measure(
        &mut self,
        label: &str,
        hint: &str,
        measure: impl FnOnce(&mut Self) -> BudgetResult<()>,
    ) -> BudgetResult<()> {
        if let Err(error) = measure(self) {
            (self.checked, self.over) = (self.checked + 1, self.over + 1);
            writeln!(
                std::io::stdout(),
                "NOT MEASURED: {label}: {error}\n    look at: {hint}"
            )?;
        }
        Ok(())
    }

    /// Measures the minimum of a number of times.
    fn check_minimum(
        &mut self,
        label: &str,
        (runs, limit): (u32, Duration),
        hint: &str,
        measure: impl FnMut() -> BudgetResult<Duration>,
    ) -> BudgetResult<()> {
        self.try_measure(label, hint, |budgets| {
            budgets.check_time(label, minimum_time(limit, runs, measure)?, limit, hint)
        })
    }

    pub(crate) fn check_time(
        &mut self,
        label: &str,
        elapsed: Duration,
        limit: Duration,
        hint: &str,
    ) -> BudgetResult<()> {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.check_limit(
            &format!("{label}: time in µs"),
            micros(elapsed),
            micros(limit),
            hint,
        )
    }

    pub(crate) fn check_size(
        &mut self,
        label: &str,
        bytes: u64,
        limit: u64,
        hint: &str,
    ) -> BudgetResult<()> {
        self.check_limit(&format!("{label}: bytes"), bytes, limit, hint)
    }

    fn check_limit(
        &mut self,
        label: &str,
        measured: u64,
        limit: u64,
        hint: &str,
    ) -> BudgetResult<()> {
        let mut out = std::io::stdout();
        self.checked += 1;
        if measured <= limit {
            writeln!(out, "ok: {label}: {measured} (limit {limit})")?;
        } else {
            self.over += 1;
            writeln!(
                out,
                "OVER BUDGET: {label}: {measured} (limit {limit})\n    look at: {hint}"
            )?;
        }
        Ok(())
    }
}
