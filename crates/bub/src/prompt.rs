//! Prompts the user at the terminal. The user can quit with Ctrl-C or Ctrl-D.

use std::{
    io::{BufRead, IsTerminal, Read, Write},
    sync::OnceLock,
};

use bub_kernel::{Error, ErrorKind, Result};
use bub_plugin::PluginQuestion;
use bub_terminal::channel::ChatEventSender;
use bub_terminal::tty::EchoOff;

use crate::{output, signals};

/// Returns whether the user can be prompted: stdin and stderr are a terminal that no chat uses.
pub fn has_terminal() -> bool {
    // A chat owns the terminal.
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

/// Prompts for a line. Returns the default if the line is empty.
pub async fn prompt_line(question: &str, default: Option<&str>) -> Result<String> {
    let default_hint = default.map_or(String::new(), |default| format!(" [{default}]"));
    let typed = run_interruptible(&format!("{question}{default_hint}: "), read_line).await?;
    Ok(if typed.is_empty() {
        default.unwrap_or_default().to_owned()
    } else {
        typed
    })
}

/// Prompts for a secret: a line that the terminal does not show.
pub async fn prompt_secret(question: &str) -> Result<String> {
    signals::exit_on_signal();
    // Before the prompt, because turning echo off discards earlier input.
    let quiet = EchoOff::enter();
    let typed = run_interruptible(&format!("{question}: "), read_line).await;
    drop(quiet);
    print_stderr("\n");
    typed
}

/// Prompts at the terminal on behalf of a plugin. Blocks the thread.
fn prompt_for_plugin(question: &PluginQuestion) -> Result<String> {
    if !has_terminal() {
        let no_terminal_error = || {
            Error::unknown("cannot prompt: stdin is not a terminal; run the command in a terminal")
        };
        return question.default.clone().ok_or_else(no_terminal_error);
    }
    // The text comes from the plugin.
    let text = output::sanitize_line(&question.text);
    let quiet = question.is_secret.then(|| {
        signals::exit_on_signal();
        EchoOff::enter()
    });
    match question.default.as_deref().filter(|_| !question.is_secret) {
        Some(default) => print_stderr(&format!("{text} [{}]: ", output::sanitize_line(default))),
        None => print_stderr(&format!("{text}: ")),
    }
    let typed = read_line();
    if quiet.is_some() {
        print_stderr("\n");
    }
    let typed = typed?;
    Ok(if typed.is_empty() {
        question.default.clone().unwrap_or_default()
    } else {
        typed
    })
}

/// Prompts the user on behalf of plugins: at the terminal, or in the chat that uses the terminal.
#[derive(Default)]
pub struct PluginPrompt(OnceLock<ChatEventSender>);

impl PluginPrompt {
    /// Uses this chat for all further prompts.
    pub fn attach_chat(&self, chat: &ChatEventSender) {
        // A process has one chat.
        let _ = self.0.set(chat.clone());
    }

    /// Prompts the user with the question of a plugin and returns the answer.
    pub fn ask_user(&self, question: &PluginQuestion) -> Result<String> {
        let Some(chat) = self.0.get() else {
            return prompt_for_plugin(question);
        };
        if question.is_secret {
            return Err(Error::unknown(
                "cannot prompt for a secret: a chat shows the input; set the secret with `bub config set` or `bub onboard`",
            ));
        }
        let default_hint = question
            .default
            .as_ref()
            .map_or(String::new(), |default| format!(" [{default}]"));
        let typed = chat
            .ask_line(&format!("{}{default_hint}", question.text))
            .ok_or_else(interrupted_error)?;
        Ok(if typed.is_empty() {
            question.default.clone().unwrap_or_default()
        } else {
            typed
        })
    }
}

/// Prompts for yes or no until the answer is valid.
pub async fn confirm(question: &str, default: bool) -> Result<bool> {
    let question = format!("{question} [{}] ", if default { "Y/n" } else { "y/N" });
    loop {
        match run_interruptible(&question, read_line)
            .await?
            .to_ascii_lowercase()
            .as_str()
        {
            "" => return Ok(default),
            "y" | "yes" => return Ok(true),
            "n" | "no" => return Ok(false),
            _ => print_stderr("Please answer y or n.\n"),
        }
    }
}

/// Reads a value from stdin, because arguments are visible in the process list. Removes line ends.
pub fn read_stdin() -> Result<String> {
    const MAX_STDIN_BYTES: u64 = 1 << 20;
    let mut text = Vec::new();
    std::io::stdin()
        .lock()
        .take(MAX_STDIN_BYTES + 1)
        .read_to_end(&mut text)?;
    if text.len() as u64 > MAX_STDIN_BYTES {
        return Err(Error::invalid_input(
            "cannot read the value: stdin is longer than 1 MiB; pass a shorter value",
        ));
    }
    let text = String::from_utf8(text).map_err(|_| {
        Error::invalid_input("cannot read the value: stdin is not valid UTF-8; pass text in UTF-8")
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Prints a prompt and runs `work` in a thread. Returns an error if the user presses Ctrl-C first; the
/// thread does not keep the program from exiting.
pub async fn run_interruptible<T: Send + 'static>(
    question: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    // Before the prompt is printed, so that Ctrl-C works as soon as the prompt is visible.
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

/// Message if the user quits at a prompt.
const INTERRUPTED_TEXT: &str = "Stopped; nothing was written.";

/// Builds the error for a user who quits at a prompt.
pub fn interrupted_error() -> Error {
    Error::new(ErrorKind::Cancelled, INTERRUPTED_TEXT)
}

/// Returns whether an error means that the user quit at a prompt.
pub fn is_interruption(error: &Error) -> bool {
    error.kind() == ErrorKind::Cancelled
}

/// Prints a text to stderr, such as a prompt or a notice. Ignores errors, because they cannot be
/// reported.
pub fn print_stderr(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr
        .write_all(text.as_bytes())
        .and_then(|()| stderr.flush());
}

fn read_line() -> Result<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line)? {
        0 => Err(interrupted_error()),
        _ => Ok(line.trim().to_owned()),
    }
}
