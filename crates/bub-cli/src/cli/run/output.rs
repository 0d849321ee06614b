//! The output of `bub run`: rendered on a terminal, plain text in a pipe, or JSON.

use std::{io::IsTerminal as _, time::Instant};

use bub::output;
use bub_kernel::{
    CancellationToken, Error, Framework, Inbound, Result, StreamEvent, TurnReport, command_line,
    hooks::{HookPoint as _, point::RenderOutbound},
};
use bub_settings::{Redactor, Settings};
use bub_terminal::{
    ChatEvent,
    channel::UserQuestion,
    turn_printer::{PrintMode, TICK_INTERVAL, TurnPrinter},
    turn_view::TurnView,
};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::{
    TerminalApprover,
    args::{OutputFormat, RunArgs},
};
use crate::cli::terminal_mode::{TerminalMode, color_mode, rewraps_lines};

/// Prints the output of the turn.
pub(super) struct TurnOutput {
    target: OutputTarget,
    is_quiet: bool,
    is_ephemeral: bool,
}

enum OutputTarget {
    Printer(TurnPrinter, PrintMode),
    Json(JsonOutput),
}

impl TurnOutput {
    pub(super) fn new(args: &RunArgs, content: &str, settings: &Settings) -> Self {
        let redactor = settings.redactor().clone();
        let target = match args.output {
            OutputFormat::Text => {
                let mode = print_mode(args, settings);
                let command = command_line(content).is_some().then_some(content);
                OutputTarget::Printer(TurnPrinter::new(mode, command, redactor), mode)
            }
            format => OutputTarget::Json(JsonOutput::new(format, redactor)),
        };
        Self {
            target,
            is_quiet: args.quiet,
            is_ephemeral: args.ephemeral,
        }
    }

    /// Returns whether the answer can be printed while it streams. In a pipe, a reply that a plugin renders replaces
    /// the stream, so that a program does not get both.
    pub(super) fn can_stream(&self, framework: &Framework) -> bool {
        let has_renderer = RenderOutbound::implementations(framework.hooks()).len() > 1;
        match self.target {
            OutputTarget::Printer(_, PrintMode::Text { .. }) => !has_renderer,
            _ => true,
        }
    }

    /// Returns whether a user reads the output, which log lines on stderr would interrupt.
    pub(super) fn is_read_by_user(&self) -> bool {
        std::io::stderr().is_terminal() && matches!(self.target, OutputTarget::Printer(..))
    }

    /// Says which session is used, if a user reads stderr.
    pub(super) fn begin(&mut self, inbound: &Inbound) {
        let session = inbound.message.session_id().unwrap_or_default();
        if let OutputTarget::Json(json) = &mut self.target {
            json.session_id = session.clone().into_owned();
        } else if !self.is_quiet && std::io::stderr().is_terminal() {
            if self.is_ephemeral {
                notice!("session: not kept (--ephemeral)");
            } else {
                notice!("session: {session}");
            }
        }
    }

    /// Prints events until `finished` is cancelled, and asks the questions among them.
    pub(super) async fn print_events(
        &mut self,
        mut chat_events: mpsc::Receiver<ChatEvent>,
        approver: &TerminalApprover,
        finished: CancellationToken,
    ) -> Result<()> {
        let mut ticks = tokio::time::interval(TICK_INTERVAL);
        loop {
            tokio::select! {
                biased;
                Some(event) = chat_events.recv() => match event {
                    ChatEvent::Question(question) => {
                        self.ask_question(question, &mut chat_events, approver).await?;
                    }
                    event => self.handle_event(&event)?,
                },
                () = finished.cancelled() => return Ok(()),
                _ = ticks.tick() => {
                    if let OutputTarget::Printer(printer, _) = &mut self.target {
                        printer.tick()?;
                    }
                }
            }
        }
    }

    /// Asks the user, and meanwhile prints what other calls produce. Ends without an answer if the question is
    /// withdrawn.
    async fn ask_question(
        &mut self,
        question: UserQuestion,
        chat_events: &mut mpsc::Receiver<ChatEvent>,
        approver: &TerminalApprover,
    ) -> Result<()> {
        let UserQuestion::Call {
            request,
            replaced,
            answer,
        } = question
        else {
            return Ok(());
        };
        if let OutputTarget::Printer(printer, _) = &mut self.target {
            printer.pause()?;
        }
        if let Some(view) = self.view_mut() {
            view.begin_approval();
        }
        let mut later = Vec::new();
        {
            let asking = approver.ask(&request, replaced.as_deref());
            tokio::pin!(asking);
            loop {
                tokio::select! {
                    biased;
                    given = &mut asking => {
                        let _ = answer.send(given?);
                        break;
                    }
                    event = chat_events.recv() => match event {
                        Some(ChatEvent::QuestionWithdrawn(id)) if id == request.id => break,
                        Some(ChatEvent::QuestionWithdrawn(id)) => later.retain(|event| {
                            !matches!(event, ChatEvent::Question(question) if question.id() == id)
                        }),
                        Some(event) => later.push(event),
                        None => break,
                    },
                }
            }
        }
        if let Some(view) = self.view_mut() {
            view.end_approval();
        }
        for event in later {
            match event {
                ChatEvent::Question(question) => {
                    Box::pin(self.ask_question(question, chat_events, approver)).await?;
                }
                event => self.handle_event(&event)?,
            }
        }
        Ok(())
    }

    fn view_mut(&mut self) -> Option<&mut TurnView> {
        match &mut self.target {
            OutputTarget::Printer(printer, _) => printer.view_mut(),
            OutputTarget::Json(_) => None,
        }
    }

    fn handle_event(&mut self, event: &ChatEvent) -> Result<()> {
        if let ChatEvent::Notice(text) = event {
            // The live area would be drawn over it.
            if let OutputTarget::Printer(printer, _) = &mut self.target {
                printer.pause()?;
            }
            notice!("{text}");
            return Ok(());
        }
        match &mut self.target {
            OutputTarget::Printer(..) if self.is_quiet && is_activity(event) => Ok(()),
            OutputTarget::Printer(printer, _) => printer.handle_event(event),
            OutputTarget::Json(json) => json.handle_event(event),
        }
    }

    /// Prints what is left after the turn.
    pub(super) fn finish(
        &mut self,
        report: &TurnReport,
        failure: Option<&Error>,
        was_cancelled: bool,
    ) -> Result<()> {
        match &mut self.target {
            OutputTarget::Printer(printer, _) => {
                if report.error.is_some() && !printer.has_answer() {
                    // The answer, or a part of it, exists but was not delivered.
                    printer.print_message(&report.output)?;
                }
                printer.finish(was_cancelled)
            }
            OutputTarget::Json(json) => json.finish(report, failure, was_cancelled),
        }
    }
}

/// Returns whether an event is about what the turn does, and not a part of the answer.
fn is_activity(event: &ChatEvent) -> bool {
    use StreamEvent as E;
    match event {
        ChatEvent::Stream(event) => matches!(
            event,
            E::Reasoning(_) | E::ToolCall(_) | E::ToolOutput { .. } | E::ToolResult(_)
        ),
        _ => false,
    }
}

fn print_mode(args: &RunArgs, settings: &Settings) -> PrintMode {
    let environment = settings.environment();
    match TerminalMode::of_stdout(environment) {
        TerminalMode::Screen if !args.raw => PrintMode::Screen {
            color_mode: color_mode(environment),
            reflows: rewraps_lines(environment),
        },
        TerminalMode::Pipe => PrintMode::Text {
            is_raw: args.raw,
            shows_calls: !args.quiet && std::io::stderr().is_terminal(),
        },
        _ => PrintMode::Lines,
    }
}

/// Prints JSON: the result of the turn, and before it one line per event if the events are streamed.
struct JsonOutput {
    is_stream: bool,
    redactor: Redactor,
    started: Instant,
    session_id: String,
    answer: String,
    steps: u64,
    tool_calls: u64,
    /// Sums of the token counts of all model calls.
    usage: Map<String, Value>,
}

impl JsonOutput {
    fn new(format: OutputFormat, redactor: Redactor) -> Self {
        Self {
            is_stream: format == OutputFormat::StreamJson,
            redactor,
            started: Instant::now(),
            session_id: String::new(),
            answer: String::new(),
            steps: 0,
            tool_calls: 0,
            usage: Map::new(),
        }
    }

    fn handle_event(&mut self, event: &ChatEvent) -> Result<()> {
        match event {
            ChatEvent::Stream(event) => self.handle_stream_event(event),
            ChatEvent::Message {
                content,
                is_streamed: false,
                ..
            } => {
                self.answer.push_str(content);
                if self.is_stream {
                    self.print_line(&json!({"kind": "message", "data": {"content": content}}))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn handle_stream_event(&mut self, event: &StreamEvent) -> Result<()> {
        match event {
            StreamEvent::Text(delta) => self.answer.push_str(delta),
            StreamEvent::ToolCall(calls) => {
                self.steps += 1;
                self.tool_calls += calls.len() as u64;
            }
            // A step with calls is counted when they start, because the turn may end while they run.
            StreamEvent::Final(end) if end.get("tool_calls").is_none() => self.steps += 1,
            StreamEvent::Usage(usage) => self.add_usage(usage),
            _ => {}
        }
        if self.is_stream {
            self.print_line(&event.to_value())?;
        }
        Ok(())
    }

    fn add_usage(&mut self, usage: &Value) {
        let usage = usage.get("usage").unwrap_or(usage);
        for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            let Some(tokens) = usage.get(name).and_then(Value::as_u64) else {
                continue;
            };
            let before = self.usage.get(name).and_then(Value::as_u64).unwrap_or(0);
            self.usage.insert(name.into(), (before + tokens).into());
        }
    }

    fn finish(
        &mut self,
        report: &TurnReport,
        failure: Option<&Error>,
        was_cancelled: bool,
    ) -> Result<()> {
        // Without a model, the output is the guide to set one up.
        if self.answer.is_empty() && !report.has_no_model {
            self.answer.clone_from(&report.output);
        }
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let error = failure.map(|error| error.message().to_owned());
        let error = error.or_else(|| was_cancelled.then(|| "the turn was cancelled".to_owned()));
        let result = json!({
            "session_id": self.session_id,
            "answer": self.answer,
            "error": error,
            "steps": self.steps,
            "tool_calls": self.tool_calls,
            "usage": self.usage,
            "elapsed_ms": elapsed,
        });
        if self.is_stream {
            self.print_line(&json!({"kind": "result", "data": result}))
        } else {
            self.print_line(&result)
        }
    }

    fn print_line(&self, value: &Value) -> Result<()> {
        let line = self.redactor.redact(&value.to_string()).into_owned() + "\n";
        output::print(&line)?;
        Ok(())
    }
}
