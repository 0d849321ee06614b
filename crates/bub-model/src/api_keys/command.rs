//! Runs the command of the setting `api_key_command`, which prints the API key of a provider.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bub_settings::{Secret, Settings};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// Timeout of a key command. It is long, because the user may have to unlock a password store.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);
const EMPTY_COMMAND_TEXT: &str = "the command is empty; set a program and its arguments";
/// Maximum bytes kept from each of stdout and stderr; the rest is discarded. Keys are much shorter.
const MAX_KEY_BYTES: u64 = 16 * 1024;

/// Runs a command line without a shell and returns its stdout, trimmed.
///
/// The command gets the same environment as all child processes of bub, and no input. Errors never contain its stdout.
pub(super) async fn run_key_command(settings: &Settings, line: &str) -> Result<Secret, String> {
    let words = split_command_line(line)?;
    let (program, arguments) = words.split_first().ok_or(EMPTY_COMMAND_TEXT)?;
    let mut command = Command::new(expand_home(program, settings));
    command
        .args(arguments)
        .env_clear()
        .envs(settings.child_environment())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| {
        format!("cannot run `{program}`: {error}; correct the command or install the program")
    })?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let (stdout, stderr, status) =
            tokio::join!(read_pipe(stdout), read_pipe(stderr), child.wait());
        (stdout, stderr, status)
    };
    let result = tokio::time::timeout(COMMAND_TIMEOUT, work).await;
    let (stdout, stderr, status) = result.map_err(|_| {
        format!(
            "`{program}` did not finish within {} seconds; run it in a terminal to see why",
            COMMAND_TIMEOUT.as_secs()
        )
    })?;
    let status = status.map_err(|error| format!("cannot wait for `{program}`: {error}"))?;
    if !status.success() {
        return Err(failure_text(settings, program, status, &stderr));
    }
    parse_key(stdout, program)
}

/// Checks the syntax of a command line and that its program exists. Does not run the command.
pub(super) fn check_key_command(settings: &Settings, line: &str) -> Result<(), String> {
    let words = split_command_line(line)?;
    let name = words.first().ok_or(EMPTY_COMMAND_TEXT)?;
    let program = expand_home(name, settings);
    let path = settings
        .environment()
        .get("PATH")
        .filter(|_| !name.contains('/'));
    let exists = match path {
        Some(path) => {
            std::env::split_paths(path).any(|directory| directory.join(&program).is_file())
        }
        None => !name.contains('/') || program.is_file(),
    };
    if exists {
        Ok(())
    } else {
        Err(format!(
            "program `{name}` not found; install it or correct the path"
        ))
    }
}

fn split_command_line(line: &str) -> Result<Vec<String>, String> {
    crate::split_words(line).map_err(|_| "unclosed quote; add the missing quote".to_owned())
}

fn parse_key(stdout: Vec<u8>, program: &str) -> Result<Secret, String> {
    let text = String::from_utf8(stdout).map_err(|_| {
        format!("the output of `{program}` is not valid UTF-8; it must print the key as text")
    })?;
    match text.trim() {
        "" => Err(format!(
            "`{program}` printed nothing; it must print the key"
        )),
        key if key.contains('\n') => Err(format!(
            "`{program}` printed more than one line; it must print only the key"
        )),
        key => Ok(Secret::from(key)),
    }
}

/// Returns the error text of a failed command: its status and the first line of stderr, with secrets redacted.
fn failure_text(settings: &Settings, program: &str, status: ExitStatus, stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let reason = crate::short_message(
        text.lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default(),
    );
    let reason = settings.redactor().redact(&reason).into_owned();
    let reason = if reason.is_empty() {
        "; run it in a terminal to see why".to_owned()
    } else {
        format!(": {reason}")
    };
    format!("`{program}` failed with {status}{reason}")
}

/// Reads up to `MAX_KEY_BYTES` and discards the rest, so that the command never blocks on a full pipe.
async fn read_pipe(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // Ignore read errors: unreadable output counts as no output.
        let _ = (&mut pipe)
            .take(MAX_KEY_BYTES)
            .read_to_end(&mut bytes)
            .await;
        let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    }
    bytes
}

/// Expands `~/` at the start of a program's path, because the command runs without a shell.
fn expand_home(program: &str, settings: &Settings) -> PathBuf {
    let home = settings.environment().user_home();
    match (program.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(program),
    }
}
