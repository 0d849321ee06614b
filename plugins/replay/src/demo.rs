//! `bub demo`: shows bub at work without a model. The answers come from a bundled tape; everything else is real.

mod texts;

use std::{path::PathBuf, process::ExitCode};

use self::texts::Texts;
use crate::{
    files::{FileResultExt as _, TemporaryDirectory},
    program,
    recording::Recording,
};
use bub::{
    AppCommand, CancellationToken, CommandContext, Error, Result, Settings,
    agent::usage::TokenCounts,
    clap,
    model::{Catalog, ModelId},
    output::print,
    prompt::has_terminal,
    signals,
};

/// The session of the demo.
const SESSION: &str = "demo";
/// Variables that the commands of the demo get.
const PASSED_VARIABLES: [&str; 7] = [
    "PATH",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "LANG",
    "LC_ALL",
    "TMPDIR",
];

#[derive(clap::Args)]
#[command(
    long_about = "Show bub at work, without a model and without a key. The answers of the model are replayed from a \
                  bundled tape. Tools, sandbox, approval and tape are real. The demo uses a temporary home and project, \
                  and removes them at the end.",
    after_help = "Exit codes: 0 the check of the project passes at the end, 1 it does not, for example because you denied \
                  the edit"
)]
struct DemoArgs {
    /// Approve the edit without a question
    #[arg(long, short = 'y')]
    yes: bool,
    /// Language [default: that of the locale]
    #[arg(long, value_name = "LANG", value_parser = ["en", "zh"])]
    lang: Option<String>,
    /// Characters per second of the replayed answers; 0 for no delay
    #[arg(long, value_name = "N", default_value_t = 300)]
    pace: u64,
}

/// Returns the command `bub demo`.
pub(crate) fn command() -> AppCommand {
    AppCommand::with_args("demo", "Show bub at work, without a model or a key", run)
        .allow_invalid_settings()
        .manages_trust()
}

async fn run(context: CommandContext, args: DemoArgs) -> Result<ExitCode> {
    let settings = &context.settings;
    if !args.yes && !has_terminal() {
        let text = "cannot ask for the approval: stdin is not a terminal; pass `--yes`";
        return Err(Error::invalid_input(text));
    }
    let stop = signals::listen_for_stop_once();
    let directory = TemporaryDirectory::create("bub-demo-")?;
    let demo = Demo {
        texts: texts::for_language(args.lang.as_deref().unwrap_or(language(settings))),
        program: program::current_program()?,
        settings,
        home: directory.path().join("home"),
        project: directory.path().join("project"),
        tape: directory.path().join("demo.jsonl"),
        is_approved: args.yes,
        pace: args.pace,
        stop: stop.token(),
    };
    let shown = demo.show().await;
    directory.remove()?;
    if stop.token().is_cancelled() {
        return Ok(stop.exit_code());
    }
    shown
}

fn language(settings: &Settings) -> &'static str {
    let variables = ["LC_ALL", "LC_MESSAGES", "LANG"];
    let mut set = variables
        .iter()
        .filter_map(|name| settings.environment().get(name));
    let locale = set.find(|value| !value.is_empty());
    match locale.and_then(|locale| locale.to_str()) {
        Some(locale) if locale.starts_with("zh") => "zh",
        _ => "en",
    }
}

struct Demo<'a> {
    texts: &'static Texts,
    program: PathBuf,
    settings: &'a Settings,
    home: PathBuf,
    project: PathBuf,
    tape: PathBuf,
    /// Whether the user approved the edit with `--yes`.
    is_approved: bool,
    pace: u64,
    stop: CancellationToken,
}

impl Demo<'_> {
    async fn show(&self) -> Result<ExitCode> {
        let texts = self.texts;
        for directory in [&self.home, &self.project] {
            std::fs::create_dir_all(directory).at("create", directory)?;
        }
        let project = texts
            .files
            .map(|(name, text)| (self.project.join(name), text));
        for (path, text) in [(self.tape.clone(), texts.tape)].into_iter().chain(project) {
            std::fs::write(&path, text).at("write", &path)?;
        }
        print(texts.intro)?;
        let can_confine = self.run_silently(&["sandbox", "true"]).await?;
        if !can_confine {
            print(texts.no_sandbox)?;
        }
        let is_confined = can_confine;
        print(texts.task)?;
        if self.is_approved {
            print(texts.approved)?;
        }
        let approval = if self.is_approved { "--allow" } else { "--ask" };
        self.bub(
            &[
                "run",
                "--session-id",
                SESSION,
                approval,
                "fs.edit",
                texts.task_message,
            ],
            is_confined,
        )
        .await?;
        print(texts.check)?;
        let is_fixed = self
            .bub(
                &["run", "--session-id", SESSION, ",sh check.sh"],
                is_confined,
            )
            .await?;
        if is_fixed {
            print(texts.question)?;
            self.bub(
                &["run", "--session-id", SESSION, texts.question_message],
                is_confined,
            )
            .await?;
        } else {
            // The question is about the fix.
            print(texts.not_fixed)?;
        }
        print(texts.record)?;
        self.bub(
            &[
                "tape",
                "show",
                SESSION,
                "--kinds",
                "tool_call,tool_result,anchor",
                "--last",
                "7",
            ],
            is_confined,
        )
        .await?;
        print(&self.cost().await?)?;
        print(texts.next_steps)?;
        if is_fixed {
            return Ok(ExitCode::SUCCESS);
        }
        print(texts.unsuccessful)?;
        Ok(ExitCode::FAILURE)
    }

    /// Runs a command of this program and shows it. Returns whether it succeeded.
    async fn bub(&self, arguments: &[&str], is_confined: bool) -> Result<bool> {
        let needs_quotes = |letter: char| !letter.is_ascii_graphic() || letter == ',';
        let quoted = arguments.iter().map(|argument| {
            if argument.contains(needs_quotes) {
                format!("\"{argument}\"")
            } else {
                (*argument).to_owned()
            }
        });
        print(&format!("$ bub {}\n", quoted.collect::<Vec<_>>().join(" ")))?;
        let mut command = self.command(arguments, is_confined);
        let status = program::wait(&mut program::spawn(&mut command)?, &self.stop).await?;
        self.check_stop()?;
        print("\n")?;
        Ok(status.success())
    }

    /// Runs a command of this program without its output. Returns whether it succeeded.
    async fn run_silently(&self, arguments: &[&str]) -> Result<bool> {
        let mut command = self.command(arguments, true);
        let null = std::process::Stdio::null;
        command.stdin(null()).stdout(null()).stderr(null());
        let mut child = program::spawn(&mut command)?;
        let status = program::wait(&mut child, &self.stop).await?;
        self.check_stop()?;
        Ok(status.success())
    }

    fn check_stop(&self) -> Result<()> {
        if self.stop.is_cancelled() {
            return Err(Error::unknown("the demo was interrupted"));
        }
        Ok(())
    }

    fn command(&self, arguments: &[&str], is_confined: bool) -> tokio::process::Command {
        let mut command = program::command(&self.program, &self.project);
        program::pass_variables(&mut command, self.settings, |name| {
            PASSED_VARIABLES.contains(&name)
        });
        let model = format!("replay:{}", self.tape.display());
        let profile = if is_confined { "workspace" } else { "off" };
        command
            .args(arguments)
            .env("HOME", &self.home)
            .env("BUB_HOME", &self.home)
            .env("BUB_MODEL", model)
            .env("BUB_LOCAL_MODELS", "false")
            .env("BUB_LOG", "error")
            .env("BUB_SANDBOX_PROFILE", profile)
            .env("BUB_REPLAY_DIVERGENCE", "lenient")
            .env("BUB_REPLAY_PACE", self.pace.to_string())
            .env("PAGER", "cat");
        command
    }

    /// Returns what the model calls would have cost, from the usage on the tape. The provider `replay` has estimated it.
    async fn cost(&self) -> Result<String> {
        let recording = Recording::of_home(&self.home).await?.unwrap_or_default();
        let mut tokens = TokenCounts::default();
        let usages = recording.calls.iter().flat_map(|call| &call.usage);
        for counts in usages.filter_map(TokenCounts::from_usage) {
            tokens += counts;
        }
        let catalog =
            Catalog::new(self.settings).map_err(|error| Error::config(error.to_string()))?;
        // The first provider whose default model is not free.
        let priced = catalog.iter().find_map(|provider| {
            let model = ModelId::new(&provider.name, provider.default_model.clone()?);
            let price = catalog.price(&model).filter(|price| price.input > 0.0)?;
            Some((model, price))
        });
        let (model, price) = priced.ok_or_else(|| Error::unknown("no model has a price"))?;
        Ok(self
            .texts
            .cost
            .replace("{calls}", &recording.calls.len().to_string())
            .replace("{input}", &tokens.input.to_string())
            .replace("{output}", &tokens.output.to_string())
            .replace("{model}", &model.to_string())
            .replace("{cost}", &format!("${:.2}", tokens.cost(price))))
    }
}
