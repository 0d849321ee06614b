//! Questions at the terminal, one line each. Whoever is asked can leave with Ctrl-C or Ctrl-D.

use std::{
    io::{BufRead, IsTerminal, Read, Write},
    sync::OnceLock,
};

use bub_kernel::{Error, ErrorKind, Result};
use bub_plugin::PluginQuestion;
use bub_terminal::channel::ChatEventSender;
use bub_terminal::tty::EchoOff;

use crate::{output, signals};

/// Whether there is somebody to ask.
pub fn has_terminal() -> bool {
    // The chat has the terminal for itself.
    std::io::stdin().is_terminal()
        && std::io::stderr().is_terminal()
        && !bub_terminal::tty::is_in_use()
}

/// Says which names there are, in lines that are not broken within one.
pub fn names(title: &str, names: &[&str]) {
    const WRAP_COLUMNS: usize = 78;
    let mut lines = vec![title.to_owned()];
    for (at, name) in names.iter().enumerate() {
        let comma = if at + 1 < names.len() { "," } else { "" };
        match lines.last_mut() {
            Some(line) if line.len() + name.len() + 2 <= WRAP_COLUMNS => {
                line.extend([" ", name, comma]);
            }
            _ => lines.push(format!("  {name}{comma}")),
        }
    }
    print_stderr(&(lines.join("\n") + "\n"));
}

/// A line, or the default for an empty one.
pub async fn line(question: &str, default: Option<&str>) -> Result<String> {
    let shown = default.map_or(String::new(), |default| format!(" [{default}]"));
    let typed = interruptible(&format!("{question}{shown}: "), read_line).await?;
    Ok(if typed.is_empty() {
        default.unwrap_or_default().to_owned()
    } else {
        typed
    })
}

/// A line that is not shown.
pub async fn secret(question: &str) -> Result<String> {
    signals::exit_on_signal();
    // First, because it forgets what was typed before.
    let quiet = EchoOff::enter();
    let typed = interruptible(&format!("{question}: "), read_line).await;
    drop(quiet);
    print_stderr("\n");
    typed
}

/// What a plugin wants to know, asked from where nothing can be awaited.
fn for_plugin(question: &PluginQuestion) -> Result<String> {
    if !has_terminal() {
        let nobody = || Error::unknown("there is no terminal to ask at");
        return question.default.clone().ok_or_else(nobody);
    }
    // It is the plugin's text.
    let text = output::one_line(&question.text);
    let quiet = question.is_secret.then(|| {
        signals::exit_on_signal();
        EchoOff::enter()
    });
    match question.default.as_deref().filter(|_| !question.is_secret) {
        Some(default) => print_stderr(&format!("{text} [{}]: ", output::one_line(default))),
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

/// Asks the user what plugins want to know: at the terminal, or in the chat once it owns the terminal.
#[derive(Default)]
pub struct PluginPrompt(OnceLock<ChatEventSender>);

impl PluginPrompt {
    /// Asks in this chat from now on.
    pub fn attach(&self, teller: &ChatEventSender) {
        // There is one chat in a process.
        let _ = self.0.set(teller.clone());
    }

    /// Asks where the person is.
    pub fn ask(&self, question: &PluginQuestion) -> Result<String> {
        let Some(teller) = self.0.get() else {
            return for_plugin(question);
        };
        if question.is_secret {
            return Err(Error::unknown(
                "a chat shows what is typed, and no place for secrets",
            ));
        }
        let shown = question
            .default
            .as_ref()
            .map_or(String::new(), |default| format!(" [{default}]"));
        let typed = teller
            .ask_line(&format!("{}{shown}", question.text))
            .ok_or_else(interrupted)?;
        Ok(if typed.is_empty() {
            question.default.clone().unwrap_or_default()
        } else {
            typed
        })
    }
}

/// Yes or no.
pub async fn confirm(question: &str, default: bool) -> Result<bool> {
    let question = format!("{question} [{}] ", if default { "Y/n" } else { "y/N" });
    loop {
        match interruptible(&question, read_line)
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

/// All of standard input, for a value that must not be seen in a list of processes.
pub fn read_stdin() -> Result<String> {
    const MAX_STDIN_BYTES: u64 = 1 << 20;
    let mut text = Vec::new();
    std::io::stdin()
        .lock()
        .take(MAX_STDIN_BYTES + 1)
        .read_to_end(&mut text)?;
    if text.len() as u64 > MAX_STDIN_BYTES {
        return Err(Error::invalid_input("standard input is longer than 1 MiB"));
    }
    let text = String::from_utf8(text)
        .map_err(|_| Error::invalid_input("standard input is not valid UTF-8 text"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Asks, and runs what waits for the answer in a thread that does not keep the program from ending.
pub async fn interruptible<T: Send + 'static>(
    question: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    // Before the question is there to be answered with Ctrl-C.
    let interrupted_by_person = signals::next_interrupt();
    print_stderr(question);
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(work()));
    tokio::select! {
        done = receiver => done.unwrap_or_else(|_| Err(Error::unknown("the question panicked"))),
        Ok(()) = interrupted_by_person => {
            print_stderr("\n");
            Err(interrupted())
        }
    }
}

const INTERRUPTED_TEXT: &str = "Stopped; nothing was written.";

pub fn interrupted() -> Error {
    Error::new(ErrorKind::Cancelled, INTERRUPTED_TEXT)
}

/// Whether whoever was asked has left.
pub fn is_interruption(error: &Error) -> bool {
    error.kind() == ErrorKind::Cancelled
}

/// Everything but results goes to standard error. There is no other place to complain about that one.
pub fn print_stderr(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr
        .write_all(text.as_bytes())
        .and_then(|()| stderr.flush());
}

fn read_line() -> Result<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line)? {
        0 => Err(interrupted()),
        _ => Ok(line.trim().to_owned()),
    }
}
