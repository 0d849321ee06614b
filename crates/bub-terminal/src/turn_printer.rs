//! Prints one turn while it runs, for `bub run`: rendered on a terminal, as plain text elsewhere.

use std::{
    io::{self, Stdout, Write as _},
    time::{Duration, Instant},
};

use bub_kernel::{MessageKind, Result, StreamEvent};
use bub_settings::Redactor;

use crate::{
    ColorMode, Line, Style,
    channel::ChatEvent,
    sanitize::sanitize,
    screen::{LiveArea, Screen},
    spinner::{SPINNER_INTERVAL, activity_text},
    stdout_writer::{StdoutWriter, ignore_broken_pipe},
    tty,
    turn_view::{TurnView, call_summary, failure_lines},
};

/// How often [`TurnPrinter::tick`] should be called while a turn runs.
pub const TICK_INTERVAL: Duration = SPINNER_INTERVAL;

/// Where and how a turn is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrintMode {
    /// Rendered lines, with a live area below them for unfinished output.
    Screen {
        /// Which escape sequences may be written.
        color_mode: ColorMode,
        /// Whether the terminal rewraps its lines when its width changes.
        reflows: bool,
    },
    /// Rendered lines without escape sequences, for dumb terminals.
    Lines,
    /// The text of the answer as it arrives. Tool calls are reported on stderr.
    Text {
        /// Whether control sequences and invisible characters are kept.
        is_raw: bool,
        /// Whether stderr shows the tool calls.
        shows_calls: bool,
    },
}

/// Prints the events of one turn.
pub struct TurnPrinter {
    target: PrintTarget,
    redactor: Redactor,
    has_answer: bool,
}

enum PrintTarget {
    Screen {
        screen: Screen<Stdout>,
        view: Box<TurnView>,
        started: Instant,
    },
    Lines(Box<TurnView>),
    Text {
        out: StdoutWriter,
        shows_calls: bool,
    },
}

impl TurnPrinter {
    /// Creates a printer for a turn. `command` is the comma command that the turn runs, if it runs one.
    pub fn new(mode: PrintMode, command: Option<&str>, redactor: Redactor) -> Self {
        let view = |color_mode| {
            let mut view = TurnView::new(tty::size().columns, color_mode, redactor.clone());
            view.begin_turn(command);
            Box::new(view.without_titles())
        };
        let target = match mode {
            PrintMode::Screen {
                color_mode,
                reflows,
            } => PrintTarget::Screen {
                screen: Screen::new(io::stdout(), tty::size(), color_mode, reflows),
                view: view(color_mode),
                started: Instant::now(),
            },
            PrintMode::Lines => {
                PrintTarget::Lines(Box::new(view(ColorMode::None).with_call_starts()))
            }
            PrintMode::Text {
                is_raw,
                shows_calls,
            } => PrintTarget::Text {
                out: StdoutWriter::new(redactor.clone(), is_raw),
                shows_calls,
            },
        };
        Self {
            target,
            redactor,
            has_answer: false,
        }
    }

    /// Returns whether a part of an answer was printed.
    pub fn has_answer(&self) -> bool {
        self.has_answer
    }

    /// Prints an event of the turn.
    ///
    /// # Errors
    ///
    /// Fails if stdout cannot be written. A closed pipe is not an error.
    pub fn handle_event(&mut self, event: &ChatEvent) -> Result<()> {
        match event {
            ChatEvent::ReplacedFiles(texts) => {
                if let Some(view) = self.view_mut() {
                    view.set_replaced_files(texts.clone());
                }
                Ok(())
            }
            ChatEvent::CallsInterrupted(calls) => {
                if let Some(view) = self.view_mut() {
                    view.set_call_progress(calls.clone());
                }
                Ok(())
            }
            ChatEvent::Stream(event) => self.handle_stream_event(event),
            ChatEvent::Message {
                content,
                kind,
                is_streamed: false,
            } if *kind != MessageKind::Error => self.print_message(content),
            ChatEvent::Notice(text) => {
                self.print_notice(text);
                self.draw()
            }
            _ => Ok(()),
        }
    }

    fn handle_stream_event(&mut self, event: &StreamEvent) -> Result<()> {
        if let StreamEvent::Text(delta) = event {
            self.has_answer |= !delta.trim().is_empty();
        }
        match &mut self.target {
            // The program reports the error of the turn at its end.
            _ if matches!(event, StreamEvent::Error(_)) => Ok(()),
            PrintTarget::Screen { view, .. } | PrintTarget::Lines(view) => {
                view.handle_event(event);
                self.draw()
            }
            PrintTarget::Text { out, shows_calls } => match event {
                StreamEvent::Text(delta) => out.write_text(delta),
                StreamEvent::ToolCall(calls) => {
                    out.end_line()?;
                    if *shows_calls {
                        for call in calls {
                            self.print_notice(&call_summary(call));
                        }
                    }
                    Ok(())
                }
                StreamEvent::Final(end) if *shows_calls => {
                    for failure in failure_lines(end) {
                        self.print_notice(&format!("tool {failure}"));
                    }
                    Ok(())
                }
                _ => Ok(()),
            },
        }
    }

    /// Prints a text that was not streamed.
    ///
    /// # Errors
    ///
    /// Fails if stdout cannot be written. A closed pipe is not an error.
    pub fn print_message(&mut self, content: &str) -> Result<()> {
        self.has_answer |= !content.trim().is_empty();
        match &mut self.target {
            PrintTarget::Screen { view, .. } | PrintTarget::Lines(view) => {
                view.show_message(content, false);
                self.draw()
            }
            PrintTarget::Text { out, .. } => {
                out.end_line()?;
                out.write_text(content)?;
                out.end_line()
            }
        }
    }

    /// Prints a text that is not part of the answer: on the terminal, or on stderr.
    fn print_notice(&mut self, text: &str) {
        match &mut self.target {
            PrintTarget::Screen { view, .. } | PrintTarget::Lines(view) => {
                view.show_notice(text, Style::DIM);
            }
            PrintTarget::Text { .. } => {
                let text = self.redactor.redact(text);
                // Ignore errors: if stderr cannot be written, there is nowhere to report them.
                let _ = writeln!(io::stderr(), "{}", sanitize(text.trim_end()));
            }
        }
    }

    /// Draws the live area again, with its spinner.
    ///
    /// # Errors
    ///
    /// Fails if stdout cannot be written.
    pub fn tick(&mut self) -> Result<()> {
        match self.target {
            PrintTarget::Screen { .. } => self.draw(),
            _ => Ok(()),
        }
    }

    /// Removes the live area, so that a question can be asked. The next event or tick draws it again.
    ///
    /// # Errors
    ///
    /// Fails if stdout cannot be written.
    pub fn pause(&mut self) -> Result<()> {
        self.draw()?;
        match &mut self.target {
            PrintTarget::Screen { screen, .. } => ignore_broken_pipe(screen.clear_live_area()),
            PrintTarget::Lines(_) => Ok(()),
            PrintTarget::Text { out, .. } => out.end_line(),
        }
    }

    /// Returns the view of the turn. `None` in a pipe.
    pub fn view_mut(&mut self) -> Option<&mut TurnView> {
        match &mut self.target {
            PrintTarget::Screen { view, .. } | PrintTarget::Lines(view) => Some(view),
            PrintTarget::Text { .. } => None,
        }
    }

    /// Prints what is left when the turn has ended.
    ///
    /// # Errors
    ///
    /// Fails if stdout cannot be written. A closed pipe is not an error.
    pub fn finish(&mut self, was_cancelled: bool) -> Result<()> {
        if let PrintTarget::Screen { view, .. } | PrintTarget::Lines(view) = &mut self.target {
            view.end_turn(was_cancelled);
        }
        self.pause()
    }

    /// Prints finished lines and updates the live area.
    fn draw(&mut self) -> Result<()> {
        match &mut self.target {
            PrintTarget::Screen {
                screen,
                view,
                started,
            } => {
                let size = tty::size();
                if size != screen.size() {
                    view.set_width(size.columns);
                    ignore_broken_pipe(screen.resize(size))?;
                }
                let max_rows = size.rows.saturating_sub(2).max(1);
                let mut rows = view.unfinished_tail(max_rows);
                let elapsed = started.elapsed().saturating_sub(view.approval_wait());
                let text = activity_text(view.activity_word(), elapsed, "Ctrl-C: cancel");
                rows.push(Line::fitting(&text, size.columns, Style::DIM));
                let cursor = (rows.len() - 1, 0);
                let live_area = LiveArea { rows, cursor };
                ignore_broken_pipe(screen.draw(&view.take_lines(), &live_area))
            }
            PrintTarget::Lines(view) => {
                let lines = view.take_lines();
                let text: String = lines.iter().map(|line| line.text() + "\n").collect();
                let mut out = io::stdout();
                ignore_broken_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
            }
            PrintTarget::Text { .. } => Ok(()),
        }
    }
}
