//! `bub login`: signs in to a provider with an account instead of an API key.

use std::{
    io::{BufRead, Write},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

use bub::{AppCommand, CommandContext};
use bub_kernel::Result;
use bub_model::settings::CODEX_HOME;
use bub_model::{
    KeySource, ModelId, Models,
    codex::{self, CodexAuth, LoginError, LoginFlow, LoginOutcome, OAuthEndpoints},
};
use bub_settings::Settings;
use clap::{Arg, ArgAction, ArgMatches, Command, builder::PossibleValuesParser, value_parser};

use super::output;

/// Exit code for a failed sign-in.
const EXIT_FAILURE: u8 = 1;

pub(super) fn command() -> AppCommand {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    let command = Command::new("login")
        .about("Sign in to a provider with an account instead of an API key")
        .long_about(
            "Sign in to a provider with an account instead of an API key. bub opens the sign-in page in your browser and \
             receives the result from it. bub stores the login in a file that only you can read.",
        )
        .arg(
            Arg::new("provider")
                .value_name("PROVIDER")
                .required(true)
                .value_parser(PossibleValuesParser::new([codex::PROVIDER]))
                .help("Provider to sign in to"),
        )
        .arg(
            Arg::new("codex-home")
                .long("codex-home")
                .value_name("DIR")
                .value_parser(value_parser!(PathBuf))
                .help("Directory for the login file [default: $CODEX_HOME or ~/.codex]"),
        )
        .arg(flag("browser", "Open the sign-in page in a browser (default)").conflicts_with_all(["no-browser", "manual"]))
        .arg(flag("no-browser", "Print the sign-in URL and prompt for the result"))
        .arg(flag("manual", "Print the sign-in URL and prompt for the result"))
        .arg(
            Arg::new("timeout")
                .long("timeout")
                .value_name("SECONDS")
                .default_value("300")
                .value_parser(parse_seconds)
                .help("Seconds to wait for the sign-in"),
        )
        .arg(Arg::new("issuer").long("issuer").value_name("URL").hide(true));
    AppCommand::new(command, run)
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let settings = &context.settings;
    let codex = codex_auth(settings, &context.matches);
    let wait_timeout = context
        .matches
        .get_one::<Duration>("timeout")
        .copied()
        .unwrap_or(Duration::from_mins(5));
    let manual = context.matches.get_flag("manual") || context.matches.get_flag("no-browser");
    let outcome = if manual {
        sign_in_manually(&codex, wait_timeout).await
    } else {
        sign_in_with_browser(&codex, settings, wait_timeout).await
    };
    match outcome {
        Ok(logged_in) => {
            if let Some(source) = overriding_key_source(settings) {
                print_stderr(&format!(
                    "note: the key from {source} takes precedence over this login\n"
                ));
            }
            output::print(&login_summary(&logged_in))
        }
        Err(error) => {
            print_stderr(
                &settings
                    .redactor()
                    .redact(&format!("error: Codex login failed: {error}\n")),
            );
            Ok(ExitCode::from(EXIT_FAILURE))
        }
    }
}

/// Returns the source of the key that takes precedence over the login, if any.
fn overriding_key_source(settings: &Arc<Settings>) -> Option<KeySource> {
    let models = Models::new(
        Arc::clone(settings),
        Arc::new(super::model_client(settings)),
    )
    .ok()?;
    models
        .key_source(codex::PROVIDER)
        .filter(|source| !matches!(source, KeySource::Login(_)))
}

fn codex_auth(settings: &Settings, matches: &ArgMatches) -> CodexAuth {
    let home = matches.get_one::<PathBuf>("codex-home").cloned();
    let home = home.unwrap_or_else(|| settings.get(&CODEX_HOME));
    let issuer = matches.get_one::<String>("issuer");
    let endpoints = issuer.map_or_else(OAuthEndpoints::default, |issuer| {
        OAuthEndpoints::with_issuer(issuer)
    });
    CodexAuth::new(
        &home,
        endpoints,
        Arc::new(super::model_client(settings)),
        settings.redactor().clone(),
    )
}

async fn sign_in_with_browser(
    codex: &CodexAuth,
    settings: &Settings,
    wait_timeout: Duration,
) -> Result<LoginOutcome, LoginError> {
    let login = LoginFlow::with_listener(codex).await?;
    let url = login.sign_in_url();
    let opened = open_browser(settings, &url);
    let lead = if opened {
        "The sign-in page opens in your browser. If it does not, open this URL:"
    } else {
        "Open this URL:"
    };
    print_stderr(&format!(
        "{lead}\n\n  {url}\n\nIf your browser is on another machine, use --manual.\n"
    ));
    login.wait_for_redirect(wait_timeout).await
}

async fn sign_in_manually(
    codex: &CodexAuth,
    wait_timeout: Duration,
) -> Result<LoginOutcome, LoginError> {
    let login = LoginFlow::manual(codex)?;
    print_stderr(&format!(
        "Open this URL and sign in:\n\n  {}\n\nThe browser then shows a page that does not load. Paste the URL of that page here.\n\
         callback: ",
        login.sign_in_url()
    ));
    let timed_out = |_| LoginError::TimedOut(wait_timeout.as_secs());
    let line = tokio::time::timeout(wait_timeout, read_stdin_line())
        .await
        .map_err(timed_out)?;
    login
        .complete_with_pasted_text(&line.ok_or(LoginError::NoInput)?)
        .await
}

/// Reads one line from stdin. A separate thread reads it, so that a pending read does not keep the program running.
async fn read_stdin_line() -> Option<String> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        // After the timeout the receiver is dropped; ignore the send error.
        let _ = sender.send(read.is_ok_and(|count| count > 0).then_some(line));
    });
    receiver.await.ok().flatten()
}

fn open_browser(settings: &Settings, url: &str) -> bool {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let mut command = std::process::Command::new(program);
    command
        .arg(url)
        .env_clear()
        .envs(settings.child_environment());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .is_ok()
}

/// Returns the lines after a sign-in. H-99: they match the Python version.
fn login_summary(logged_in: &LoginOutcome) -> String {
    let LoginOutcome { account_id, file } = logged_in;
    let account = account_id.as_deref().unwrap_or("-");
    let model = ModelId::new(codex::PROVIDER, codex::DEFAULT_MODEL);
    let file: &Path = file;
    format!(
        "login: ok\naccount_id: {account}\nauth_file: {}\nusage: BUB_MODEL={model} bub run \"hello\"\n",
        file.display()
    )
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let duration = text
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "expected a number of seconds above 0".to_owned())
}

/// Prints prompts and errors to stderr. Ignores errors: stderr is closed and there is nowhere to report them.
fn print_stderr(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr
        .write_all(text.as_bytes())
        .and_then(|()| stderr.flush());
}
