//! `bub login`: signs in to a provider with an account instead of an API key.

use std::{
    io::BufRead as _,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

use bub::model::{KeySource, ModelClient, ModelId, Models};
use bub::output::{print, print_stderr};
use bub::{AppCommand, CommandContext, Error, Result, Settings, clap};

use crate::settings::CODEX_HOME;
use crate::{
    CodexAuth, DEFAULT_MODEL, LoginError, LoginFlow, LoginOutcome, OAuthEndpoints, PROVIDER,
};

#[derive(clap::Args)]
#[command(
    long_about = "Sign in to a provider with an account instead of an API key. bub opens the sign-in page in your \
                  browser and receives the result from it. bub stores the login in a file that only you can read."
)]
struct LoginArgs {
    /// Provider to sign in to
    #[arg(value_parser = [PROVIDER])]
    provider: String,
    #[arg(
        long,
        value_name = "DIR",
        help = "Directory for the login file [default: $CODEX_HOME or ~/.codex]"
    )]
    codex_home: Option<PathBuf>,
    /// Open the sign-in page in a browser (default)
    #[arg(long, conflicts_with_all = ["no_browser", "manual"])]
    browser: bool,
    /// Print the sign-in URL and prompt for the URL that the browser is redirected to
    #[arg(long)]
    no_browser: bool,
    /// Print the sign-in URL and prompt for the URL that the browser is redirected to
    #[arg(long)]
    manual: bool,
    /// Seconds to wait for the sign-in
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = parse_seconds)]
    timeout: Duration,
    #[arg(long, value_name = "URL", hide = true)]
    issuer: Option<String>,
}

/// Returns the command `bub login`.
pub fn command() -> AppCommand {
    AppCommand::with_args(
        "login",
        "Sign in to a provider with an account instead of an API key",
        run,
    )
}

async fn run(context: CommandContext, args: LoginArgs) -> Result<ExitCode> {
    let settings = &context.settings;
    let issuer = args.issuer.as_deref();
    let codex = CodexAuth::new(
        &args.codex_home.unwrap_or_else(|| settings.get(&CODEX_HOME)),
        issuer.map_or_else(OAuthEndpoints::default, OAuthEndpoints::with_issuer),
        Arc::new(ModelClient::from_settings(settings)),
        settings.redactor().clone(),
    );
    let outcome = if args.manual || args.no_browser {
        sign_in_manually(&codex, args.timeout).await
    } else {
        sign_in_with_browser(&codex, settings, args.timeout).await
    };
    let logged_in =
        outcome.map_err(|error| Error::unknown(format!("Codex login failed: {error}")))?;
    if let Some(source) = overriding_key_source(settings) {
        print_stderr(&format!(
            "note: the key from {source} takes precedence over this login\n"
        ));
    }
    print(&login_summary(&logged_in))
}

/// Returns the source of the key that takes precedence over the login, if any.
fn overriding_key_source(settings: &Arc<Settings>) -> Option<KeySource> {
    let fetch = Arc::new(ModelClient::from_settings(settings));
    let models = Models::new(Arc::clone(settings), fetch, &[]).ok()?;
    models.key_source(PROVIDER)
}

async fn sign_in_with_browser(
    codex: &CodexAuth,
    settings: &Settings,
    wait_timeout: Duration,
) -> Result<LoginOutcome, LoginError> {
    let login = LoginFlow::with_listener(codex).await?;
    let url = login.sign_in_url();
    let lead = if open_browser(settings, &url) {
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
    let login = LoginFlow::without_listener(codex)?;
    print_stderr(&format!(
        "Open this URL and sign in:\n\n  {}\n\nThe browser then shows a page that does not load. Paste the URL of that page here.\n\
         callback: ",
        login.sign_in_url()
    ));
    let line = tokio::time::timeout(wait_timeout, read_stdin_line()).await;
    let line = line.map_err(|_| LoginError::TimedOut(wait_timeout.as_secs()))?;
    let line = line.ok_or(LoginError::NoInput)?;
    login.complete_with_pasted_text(&line).await
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
    let mut command = Command::new(program);
    command.arg(url).env_clear();
    command.envs(settings.child_environment());
    command.stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().is_ok()
}

/// Returns the lines that are printed after a sign-in. They match the Python version.
fn login_summary(logged_in: &LoginOutcome) -> String {
    let account = logged_in.account_id.as_deref().unwrap_or("-");
    let model = ModelId::new(PROVIDER, DEFAULT_MODEL);
    let file = logged_in.file.display();
    format!(
        "login: ok\naccount_id: {account}\nauth_file: {file}\nusage: BUB_MODEL={model} bub run \"hello\"\n"
    )
}

fn parse_seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok();
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or("expected a number of seconds above 0")
}
