//! `bub eval`: runs a directory of cases and checks their outcomes.

mod case;
mod check;
mod run;
mod schema;
mod summary;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use bub::{
    AppCommand, BoxFuture, CommandContext, Error, Result, clap,
    futures::{StreamExt as _, stream},
    model::Catalog,
    output::{print, print_stderr},
    signals,
    tape::codec,
};
use rustix::fs::Access;
use serde_json::json;

use self::{
    case::{CASE_FILE, EvalCase, TAPE_FILE, read_cases},
    run::{CaseOutcome, Runner, Variant},
    summary::{to_junit, to_text},
};
use crate::{
    command::{check_model, has_plugins, read_session},
    files::{FileResultExt as _, ReplacedFile},
    program,
};

/// Width of the progress bar.
const BAR_WIDTH: usize = 30;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    long_about = "Run a directory of cases and check their outcomes. A case is a file NAME.yml, a tape NAME.jsonl, or a \
                  directory NAME with the file case.yml. Each case has its own temporary home and workspace.",
    after_help = "Exit codes: 0 all cases passed, 1 a case failed, 2 invalid arguments or cases"
)]
struct EvalArgs {
    #[command(subcommand)]
    command: Option<EvalCommand>,
    /// Directory with the cases
    #[arg(required = true)]
    directory: Option<PathBuf>,
    /// Model to use instead of those in the cases; can be repeated to compare models
    #[arg(long, short = 'm', value_name = "MODEL")]
    model: Vec<String>,
    /// Another bub program to compare; can be repeated
    #[arg(long, value_name = "FILE")]
    program: Vec<PathBuf>,
    /// How often each case runs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// Maximum number of cases that run at the same time
    #[arg(long, short, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Seconds after which a case fails
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Print JSON, one line per run of a case
    #[arg(long)]
    json: bool,
    /// File for the results in the `JUnit` format
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum EvalCommand {
    /// Make a case of a recorded session
    Record {
        /// Session id or tape name
        session: String,
        /// Directory for the case, which must not exist [default: the name of the session]
        #[arg(long, short, value_name = "DIR")]
        output: Option<PathBuf>,
    },
}

/// Returns the command `bub eval`.
pub(crate) fn command() -> AppCommand {
    AppCommand::with_args(
        "eval",
        "Run a directory of cases and check their outcomes",
        run,
    )
}

async fn run(context: CommandContext, args: EvalArgs) -> Result<ExitCode> {
    if let Some(EvalCommand::Record { session, output }) = args.command {
        return record(&context, &session, output).await;
    }
    let settings = &context.settings;
    let cases = read_cases(&args.directory.clone().unwrap_or_default()).await?;
    let runner = Runner {
        settings,
        catalog: Catalog::new(settings).map_err(|error| Error::config(error.to_string()))?,
        timeout: Duration::from_secs(args.timeout),
    };
    let variants = variants(&args, &runner)?;
    let junit = args.junit.as_deref().map(ReplacedFile::open).transpose()?;
    let mut jobs: Vec<BoxFuture<'_, CaseOutcome>> = Vec::new();
    for case in &cases {
        for variant in &variants {
            for run in 1..=args.repeat {
                jobs.push(Box::pin(runner.run(case, variant, run)));
            }
        }
    }
    let (total, stop) = (jobs.len(), signals::listen_for_stop_once());
    let mut running = stream::iter(jobs).buffered(args.jobs.into());
    let mut progress = ProgressBar::new(total);
    let mut outcomes: Vec<CaseOutcome> = Vec::with_capacity(total);
    let stopped = stop.token();
    loop {
        let next = tokio::select! {
            next = running.next() => next,
            () = stopped.cancelled() => break,
        };
        let Some(outcome) = next else {
            break;
        };
        outcomes.push(outcome);
        progress.advance(outcomes.len());
    }
    drop((running, progress));
    if stopped.is_cancelled() {
        return Ok(stop.exit_code());
    }
    if let Some(junit) = junit {
        junit.write(&to_junit(&outcomes))?;
    }
    let text = if args.json {
        let lines: Vec<String> = outcomes
            .iter()
            .map(|outcome| json!(outcome).to_string())
            .collect();
        lines.join("\n") + "\n"
    } else {
        to_text(&outcomes)
    };
    print(&settings.redactor().redact(&text))?;
    let has_failed = outcomes.iter().any(|outcome| !outcome.failures.is_empty());
    Ok(ExitCode::from(u8::from(has_failed)))
}

/// Returns the variants to compare: each program with each model.
fn variants(args: &EvalArgs, runner: &Runner<'_>) -> Result<Vec<Variant>> {
    let has_plugins = has_plugins(runner.settings)?;
    args.model
        .iter()
        .try_for_each(|model| check_model(model, &runner.catalog, has_plugins))?;
    let mut programs = vec![(String::new(), program::current_program()?)];
    for path in &args.program {
        let path = path.canonicalize().at("run", path)?;
        let is_program = path.is_file() && rustix::fs::access(&path, Access::EXEC_OK).is_ok();
        if !is_program {
            let text = format!("cannot run {}: it is not a program", path.display());
            return Err(Error::invalid_input(text));
        }
        programs.push((path.display().to_string(), path));
    }
    let mut variants = Vec::new();
    for (name, program) in programs {
        let models = args.model.iter().cloned().map(Some);
        let models: Vec<Option<String>> = if args.model.is_empty() {
            vec![None]
        } else {
            models.collect()
        };
        for model in models {
            let parts = [model.as_deref().unwrap_or_default(), &name];
            let label = parts.into_iter().filter(|part| !part.is_empty());
            variants.push(Variant {
                label: label.collect::<Vec<_>>().join(" "),
                model,
                program: program.clone(),
            });
        }
    }
    Ok(variants)
}

/// Writes a case with the messages, the tape and the tools of a session.
async fn record(
    context: &CommandContext,
    session: &str,
    output: Option<PathBuf>,
) -> Result<ExitCode> {
    let framework = &context.framework;
    let (_, recording) = framework
        .run_scoped(read_session(framework, session))
        .await?;
    let (recording, failed) = recording.without_failed_turns();
    let skipped: Vec<String> = failed
        .iter()
        .map(|(number, reason)| format!("turn {number}: {reason}"))
        .collect();
    if recording.turn_count() == 0 {
        return Err(Error::invalid_input(format!(
            "no case can be made of session `{session}`, because no turn succeeded: {}",
            skipped.join("; ")
        )));
    }
    let name: String = session
        .chars()
        .map(|letter| {
            if letter.is_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .collect();
    let directory = output.unwrap_or_else(|| Path::new(&name).to_owned());
    let case = EvalCase::from_recording(&recording);
    let last_answer = recording
        .calls
        .last()
        .map(|call| call.text.as_str())
        .unwrap_or_default();
    let first_line: Vec<&str> = last_answer.lines().take(1).collect();
    // JSON is valid YAML, and keeps any text intact.
    let case_file = json!({
        "messages": case.messages,
        "model": format!("replay:{TAPE_FILE}"),
        "env": {"BUB_REPLAY_DIVERGENCE": "lenient"},
        "expect": {"tools": case.expect.tools, "text": first_line},
    });
    let tape: String = recording.entries().iter().map(codec::encode).collect();
    let redactor = context.settings.redactor();
    if directory.exists() {
        return Err(Error::invalid_input(format!(
            "cannot create {}: it exists; choose another directory with `--output`",
            directory.display()
        )));
    }
    std::fs::create_dir(&directory).at("create", &directory)?;
    let case_file = format!("{case_file:#}\n");
    for (name, text) in [(CASE_FILE, &case_file), (TAPE_FILE, &tape)] {
        let path = directory.join(name);
        std::fs::write(&path, redactor.redact(text).as_bytes()).at("write", &path)?;
    }
    for skipped in skipped {
        let text = format!("skipped {skipped}; a case cannot repeat a turn that did not succeed\n");
        print_stderr(&redactor.redact(&text));
    }
    let text = format!(
        "wrote the case to {}; add the files that it needs, and what you expect\n",
        directory.display()
    );
    print_stderr(&text);
    Ok(ExitCode::SUCCESS)
}

/// A progress bar on stderr, if stderr is a terminal.
struct ProgressBar {
    total: usize,
    is_shown: bool,
}

impl ProgressBar {
    fn new(total: usize) -> Self {
        let is_shown = std::io::IsTerminal::is_terminal(&std::io::stderr());
        let mut bar = Self { total, is_shown };
        bar.advance(0);
        bar
    }

    fn advance(&mut self, done: usize) {
        if self.is_shown {
            let filled = BAR_WIDTH * done / self.total.max(1);
            let (full, empty) = ("#".repeat(filled), "-".repeat(BAR_WIDTH - filled));
            print_stderr(&format!("\r[{full}{empty}] {done}/{}", self.total));
        }
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.is_shown {
            print_stderr("\r\x1b[K");
        }
    }
}
