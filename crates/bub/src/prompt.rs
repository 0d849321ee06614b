//! Asks the user questions at the terminal. The user can quit with Ctrl-C or Ctrl-D.
//!
//! A prompt crate would bring its own line editor and signal handling. Questions here are plain lines that also work
//! with a screen reader and through a pseudo-terminal.

use std::{
    io::{BufRead, IsTerminal, Read, Write},
    sync::OnceLock,
};

use bub_kernel::{Error, ErrorKind, Result};
use bub_plugin::PluginQuestion;
use bub_terminal::channel::ChatEventSender;
use bub_terminal::tty::ModeGuard;

use crate::{output, signals};

/// Returns whether the user can be asked questions: stdin and stderr are a terminal that no chat
/// uses.
pub fn has_terminal() -> bool {
    std::io::stdin().is_terminal()
        && std::io::stderr().is_terminal()
        && !bub_terminal::tty::is_in_use()
}

/// Prints a comma-separated list of names to stderr, wrapped between names.
pub fn print_names(title: &str, names: &[&str]) {
    const WRAP_COLUMNS: usize = 78;
    let mut lines = vec![title.to_owned()];
    for (index, name) in names.iter().enumerate() {
        let comma = if index + 1 < names.len() { "," } else { "" };
        match lines.last_mut() {
            Some(line) if line.len() + name.len() + 2 <= WRAP_COLUMNS => {
                line.extend([" ", name, comma]);
            }
            _ => lines.push(format!("  {name}{comma}")),
        }
    }
    print_stderr(&(lines.join("\n") + "\n"));
}

/// Asks the user a question and returns the line that the user types. Returns the default if the
/// line is empty.
pub async fn prompt_line(question: &str, default: Option<&str>) -> Result<String> {
    let question = format!("{}: ", with_default_hint(question, default));
    let typed = run_interruptible(&question, read_line).await?;
    Ok(typed_or_default(typed, default))
}

/// Appends the default to a question in brackets.
fn with_default_hint(question: &str, default: Option<&str>) -> String {
    match default {
        Some(default) => format!("{question} [{default}]"),
        None => question.to_owned(),
    }
}

/// Returns the line that the user typed, or the default if the line is empty.
fn typed_or_default(typed: String, default: Option<&str>) -> String {
    if typed.is_empty() {
        return default.unwrap_or_default().to_owned();
    }
    typed
}

/// Asks the user for a secret: a line that the terminal does not show.
pub async fn prompt_secret(question: &str) -> Result<String> {
    signals::exit_on_signal();
    // Turn echo off before the question is printed, because this discards earlier input.
    let quiet = ModeGuard::echo_off();
    let typed = run_interruptible(&format!("{question}: "), read_line).await;
    drop(quiet);
    print_stderr("\n");
    typed
}

/// Asks the user the question of a plugin at the terminal. Blocks the thread.
fn prompt_for_plugin(question: &PluginQuestion) -> Result<Vec<String>> {
    if question.is_raw {
        return read_raw_line(question.is_secret);
    }
    let default = question.default.as_deref();
    if !has_terminal() {
        let default = default.ok_or_else(|| {
            Error::unknown("cannot prompt: stdin is not a terminal; run the command in a terminal")
        })?;
        return Ok(parse_choices(default, question).unwrap_or_else(|_| vec![default.to_owned()]));
    }
    // The plugin may have put control sequences into the text.
    let text = output::sanitize_line(&question.text);
    let quiet = question.is_secret.then(|| {
        signals::exit_on_signal();
        ModeGuard::echo_off()
    });
    let shown_default = default
        .filter(|_| !question.is_secret)
        .map(output::sanitize_line);
    for (number, choice) in question.choices.iter().enumerate() {
        let choice = output::sanitize_line(choice);
        print_stderr(&format!("  {}) {choice}\n", number + 1));
    }
    loop {
        print_stderr(&format!(
            "{}: ",
            with_default_hint(&text, shown_default.as_deref())
        ));
        let typed = read_line();
        if quiet.is_some() {
            print_stderr("\n");
        }
        match parse_choices(&typed_or_default(typed?, default), question) {
            Ok(answers) => return Ok(answers),
            Err(problem) => print_stderr(&problem),
        }
    }
}

/// Reads a line of stdin, which may be a pipe. Returns nothing at the end of stdin.
fn read_raw_line(is_secret: bool) -> Result<Vec<String>> {
    let quiet = (is_secret && has_terminal()).then(|| {
        signals::exit_on_signal();
        // The plugin has printed its question already.
        ModeGuard::echo_off_after_question()
    });
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    if quiet.is_some() {
        print_stderr("\n");
    }
    Ok((!line.is_empty()).then_some(line).into_iter().collect())
}

/// Returns what the user chose, by number or by name. Returns the text for a question without choices. The error is a
/// line for the user.
fn parse_choices(typed: &str, question: &PluginQuestion) -> Result<Vec<String>, String> {
    let choices = &question.choices;
    if choices.is_empty() {
        return Ok(vec![typed.to_owned()]);
    }
    let parts: Vec<&str> = if question.is_multiple {
        typed.split(',').map(str::trim).collect()
    } else {
        vec![typed.trim()]
    };
    let find = |part: &str| {
        let number = part
            .parse()
            .ok()
            .and_then(|number: usize| number.checked_sub(1));
        let numbered = number.and_then(|index| choices.get(index));
        let named = || {
            choices
                .iter()
                .find(|choice| choice.eq_ignore_ascii_case(part))
        };
        numbered.or_else(named).cloned()
    };
    let wanted = parts
        .into_iter()
        .filter(|part| !part.is_empty() || !question.is_multiple);
    wanted
        .map(|part| {
            find(part).ok_or_else(|| {
                format!(
                    "`{}` is not one of the choices; enter a number or a name.\n",
                    output::sanitize_line(part)
                )
            })
        })
        .collect()
}

/// Asks the user the questions of plugins: at the terminal, or in the chat that uses the terminal.
#[derive(Default)]
pub struct PluginPrompt(OnceLock<ChatEventSender>);

impl PluginPrompt {
    /// Makes this chat ask all further questions.
    pub fn attach_chat(&self, chat: &ChatEventSender) {
        // A process has one chat.
        let _ = self.0.set(chat.clone());
    }

    /// Asks the user the question of a plugin and returns the answers.
    pub fn ask_user(&self, question: &PluginQuestion) -> Result<Vec<String>> {
        let Some(chat) = self.0.get() else {
            return prompt_for_plugin(question);
        };
        if question.is_secret {
            return Err(Error::unknown(
                "cannot prompt for a secret: a chat shows the input; set the secret with `bub config set` or `bub onboard`",
            ));
        }
        let default = question.default.as_deref();
        let mut text = question.text.clone();
        if !question.choices.is_empty() {
            text = format!("{text} ({})", question.choices.join(", "));
        }
        loop {
            let typed = chat.ask_line(&with_default_hint(&text, default));
            let typed = typed_or_default(typed.ok_or_else(interrupted_error)?, default);
            match parse_choices(&typed, question) {
                Ok(answers) => return Ok(answers),
                Err(problem) => text = format!("{} {text}", problem.trim_end()),
            }
        }
    }
}

/// Asks the user a question until the input is yes, no or empty. Returns `default` for empty input.
pub async fn confirm(question: &str, default: bool) -> Result<bool> {
    let question = confirmation_question(question, default);
    loop {
        let typed = run_interruptible(&question, read_line).await?;
        if let Some(answer) = parse_confirmation(&typed, default) {
            return Ok(answer);
        }
    }
}

/// Asks like [`confirm`], before the program has started its threads. Blocks the thread.
pub(crate) fn confirm_blocking(question: &str, default: bool) -> Result<bool> {
    loop {
        print_stderr(&confirmation_question(question, default));
        if let Some(answer) = parse_confirmation(&read_line()?, default) {
            return Ok(answer);
        }
    }
}

fn confirmation_question(question: &str, default: bool) -> String {
    format!("{question} [{}] ", if default { "Y/n" } else { "y/N" })
}

/// Returns the answer that the user typed. Returns `None` and tells the user if it is neither yes nor no.
fn parse_confirmation(typed: &str, default: bool) -> Option<bool> {
    match typed.to_ascii_lowercase().as_str() {
        "" => Some(default),
        "y" | "yes" => Some(true),
        "n" | "no" => Some(false),
        _ => {
            print_stderr("Please answer y or n.\n");
            None
        }
    }
}

/// Reads a value from stdin and removes trailing line ends. Secrets are read this way, because
/// arguments are visible in the process list.
pub fn read_stdin() -> Result<String> {
    const MAX_STDIN_BYTES: u64 = 1 << 20;
    let mut text = Vec::new();
    let mut stdin = std::io::stdin().lock().take(MAX_STDIN_BYTES + 1);
    if stdin.read_to_end(&mut text)? as u64 > MAX_STDIN_BYTES {
        return Err(Error::invalid_input(
            "cannot read the value: stdin is longer than 1 MiB; pass a shorter value",
        ));
    }
    let text = String::from_utf8(text).map_err(|_| {
        Error::invalid_input("cannot read the value: stdin is not valid UTF-8; pass text in UTF-8")
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Prints a question and runs `work` in a thread. Returns an error if the user presses Ctrl-C
/// before `work` ends. In that case, the thread keeps running, but does not prevent the program
/// from exiting.
pub async fn run_interruptible<T: Send + 'static>(
    question: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    // Listen before the question is printed, so that Ctrl-C works as soon as it is visible.
    let interrupt = signals::next_interrupt();
    print_stderr(question);
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(work()));
    tokio::select! {
        done = receiver => done.unwrap_or_else(|_| Err(Error::unknown("the prompt failed with an internal error (panic); see the log for details"))),
        Ok(()) = interrupt => {
            print_stderr("\n");
            Err(interrupted_error())
        }
    }
}

/// Builds the error for a user who quits instead of answering a question.
pub fn interrupted_error() -> Error {
    Error::new(ErrorKind::Cancelled, "Stopped; nothing was written.")
}

/// Returns whether an error means that the user quit instead of answering a question.
pub fn is_interruption(error: &Error) -> bool {
    error.kind() == ErrorKind::Cancelled
}

/// Prints a text to stderr, such as a question or a notice. Ignores errors, because they cannot be
/// reported.
pub fn print_stderr(text: &str) {
    // Stderr has no buffer to flush.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn read_line() -> Result<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line)? {
        0 => Err(interrupted_error()),
        _ => Ok(line.trim().to_owned()),
    }
}
