//! A chat through a pipe.

use std::{
    io::{self, Write as _},
    sync::Arc,
};

use bub_kernel::{Error, MessageKind, Result, StreamEvent};

use super::{
    PlainChatOptions,
    stdin::{self, input_error},
};
use crate::{
    channel::{ChatEvent, LineOutcome},
    chat::{ChatCommand, ChatExit, resolve_slash},
    sanitize::{sanitize, sanitize_line},
    stdout_writer::StdoutWriter,
    turn_view,
};

/// Processes the lines of stdin in order. Answers go to stdout, everything else to stderr. Lines that an earlier chat
/// left unanswered come first. With `is_raw`, answers are not sanitized.
///
/// # Errors
///
/// Fails if stdin cannot be read or stdout cannot be written. A closed stdout is not an error.
pub async fn run_pipe_chat(options: PlainChatOptions, is_raw: bool) -> Result<ChatExit> {
    let mut pipe = Pipe {
        out: StdoutWriter::new(options.redactor.clone(), is_raw),
        open: Vec::new(),
        expected_replies: u32::try_from(options.recovered_replies).unwrap_or(u32::MAX),
        options,
        replies: 0,
    };
    while let Ok(event) = pipe.options.chat_events.try_recv() {
        pipe.handle_event(event)?;
    }
    if !pipe.wait_until_settled().await? {
        return Ok(ChatExit::Stopped);
    }
    let mut number = 0;
    if let Some(text) = pipe.options.first_line.take() {
        number += 1;
        if !pipe.submit_and_print(number, text).await? {
            return Ok(ChatExit::Stopped);
        }
    }
    let mut lines = stdin::spawn_line_reader(false);
    loop {
        let line = tokio::select! {
            biased;
            () = pipe.options.input_end.cancelled() => return Ok(ChatExit::Stopped),
            line = lines.recv() => line,
        };
        let Some(Some(text)) = line.transpose().map_err(input_error)? else {
            return Ok(ChatExit::Quit);
        };
        match text.trim() {
            "" => {}
            _ => match resolve_slash(&text, &pipe.options.words.commands) {
                Ok(text) if ChatCommand::parse(&text) == Some(ChatCommand::Quit) => {
                    return Ok(ChatExit::Quit);
                }
                Ok(text) => {
                    number += 1;
                    if !pipe.submit_and_print(number, text).await? {
                        return Ok(ChatExit::Stopped);
                    }
                }
                Err(problem) => {
                    // A program cannot be asked.
                    let text = format!("{problem} A space before the line sends it as text");
                    pipe.print_error(&text);
                    let error = Error::invalid_input(text).mark_reported();
                    pipe.options.host.report_failure(error);
                }
            },
        }
    }
}

/// A chat through a pipe.
struct Pipe {
    options: PlainChatOptions,
    out: StdoutWriter,
    /// Numbers of the lines that have no outcome yet.
    open: Vec<u64>,
    expected_replies: u32,
    replies: u32,
}

impl Pipe {
    /// Submits a line and prints its replies. Returns `false` if the program is stopped before the line has an outcome.
    async fn submit_and_print(&mut self, number: u64, text: String) -> Result<bool> {
        self.open.push(number);
        let host = Arc::clone(&self.options.host);
        let submitting = async {
            host.submit_line(number, text).await;
            std::future::pending().await
        };
        tokio::select! {
            biased;
            is_settled = self.wait_until_settled() => is_settled,
            never = submitting => never,
        }
    }

    /// Prints events until all lines have an outcome and their replies are printed. Returns `false` if the program is
    /// stopped first.
    async fn wait_until_settled(&mut self) -> Result<bool> {
        while !self.open.is_empty() || self.replies < self.expected_replies {
            tokio::select! {
                biased;
                event = self.options.chat_events.recv() => match event {
                    Some(event) => self.handle_event(event)?,
                    None => return Ok(false),
                },
                () = self.options.stop.cancelled() => return Ok(false),
            }
        }
        (self.replies, self.expected_replies) = (0, 0);
        Ok(true)
    }

    fn handle_event(&mut self, event: ChatEvent) -> Result<()> {
        self.replies += u32::from(matches!(event, ChatEvent::Message { .. }));
        match event {
            ChatEvent::LineRecovered { line, content } => {
                self.open.push(line);
                let content = sanitize_line(&content);
                let text = format!("continuing a line from an earlier chat: {content}");
                self.print_notice(&text);
            }
            ChatEvent::Stream(StreamEvent::Text(delta)) => self.out.write_text(&delta)?,
            ChatEvent::Stream(StreamEvent::Final(end)) => {
                for failure in turn_view::failure_lines(&end) {
                    self.print_notice(&format!("tool {failure}"));
                }
            }
            ChatEvent::Stream(StreamEvent::Error(error)) => self.print_error(error.message()),
            ChatEvent::TurnStarted { .. } | ChatEvent::TurnEnded => self.out.end_line()?,
            ChatEvent::Message {
                content,
                kind: MessageKind::Error,
                ..
            } => {
                self.out.end_line()?;
                self.print_error(&content);
            }
            ChatEvent::Message {
                content,
                is_streamed: false,
                ..
            } => {
                self.out.write_text(&content)?;
                self.out.end_line()?;
            }
            // A program must not take the guide for an answer.
            ChatEvent::SetupGuide(text) | ChatEvent::Notice(text) => self.print_notice(&text),
            ChatEvent::LineSettled {
                line,
                outcome,
                replies,
            } if self.open.contains(&line) => {
                self.out.end_line()?;
                if let LineOutcome::NotAnswered(reason) = outcome {
                    self.print_error(&format!("the message was not answered: {reason}"));
                }
                self.open.retain(|open| *open != line);
                self.expected_replies += replies;
            }
            _ => {}
        }
        Ok(())
    }

    fn print_error(&self, text: &str) {
        self.print_notice(&format!("error: {text}"));
    }

    fn print_notice(&self, text: &str) {
        let text = self.options.redactor.redact(text);
        // Ignore errors: if stderr cannot be written, there is nowhere to report them.
        let _ = writeln!(io::stderr(), "{}", sanitize(text.trim_end()));
    }
}
