//! Runs comma commands: tool calls that a user makes.

use std::{pin::pin, sync::Arc, time::Instant};

use bub_kernel::{
    CancellationToken, Error, ModelStream, Result, ResumePoint, Sender, StreamEvent, Tool,
    ToolCaller, ToolContext, Turn, TurnTape, command_line, command_prefix,
    hooks::{HookPoint as _, point::AfterToolCall},
};
use bub_settings::StreamRedactor;
use bub_tape::Entry;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::ToolRunner;
use crate::{
    agent::{Agent, AgentTask},
    command::{self, CommaCommand},
    emitter,
    shell::find_programs,
    spill,
    tools::CHAT_COMMANDS,
};

/// The tool that runs a command line if the line does not start with the name of a tool.
const SHELL_TOOL: &str = "bash";

/// The character after the comma that shows the output of a command to the model.
const SHOW_TO_MODEL_PREFIX: char = '!';

/// The line between the status and the output in the result of a failed command.
const OUTPUT_HEADING: &str = "\noutput:\n";

/// Maximum number of output chunks queued for streaming. If the reader is too slow, the rest comes with the result.
pub(crate) const LIVE_OUTPUT_CAPACITY: usize = 1024;

/// Runs a command and streams its output line by line.
pub(crate) fn stream_command(agent: Arc<Agent>, task: AgentTask, line: String) -> ModelStream {
    emitter::stream_events(move |events| async move {
        let (live_output, mut printed) = mpsc::channel(LIVE_OUTPUT_CAPACITY);
        // The hook `after_tool_call` can change the output. If a plugin implements it, send the output after the hook.
        let hooks = task.turn.framework().hooks();
        let live_output = AfterToolCall::implementations(hooks)
            .is_empty()
            .then_some(live_output);
        let redactor = agent.settings.redactor();
        let mut emitted = EmittedOutput {
            redactor: redactor.stream(),
            sent: String::new(),
            pending: String::new(),
        };
        let mut running = pin!(run_command(&agent, &task, &line, live_output));
        let outcome = loop {
            tokio::select! {
                biased;
                Some(text) = printed.recv() => {
                    if let Some(lines) = emitted.add_output(&text) {
                        task.turn.tape().add_output(None, &lines);
                        events.send(StreamEvent::Text(lines)).await;
                    }
                }
                outcome = &mut running => break outcome,
            }
        };
        let text = match &outcome {
            Ok(text) => emitted.unsent_part(text),
            Err(error) => emitted.unsent_output(&redactor.redact(error.message())),
        };
        if !text.is_empty() {
            events.send(StreamEvent::Text(text)).await;
        }
        let end = StreamEvent::Final(json!({"ok": true, "text": outcome?}));
        events.send(end).await;
        Ok(())
    })
}

/// The part of an output that was sent, and the part that is pending until its line is complete.
struct EmittedOutput {
    redactor: StreamRedactor,
    sent: String,
    pending: String,
}

impl EmittedOutput {
    /// Adds output and returns the complete lines, with secrets redacted. Blank lines are pending until more text follows, because
    /// the result of the command does not end with blank lines.
    fn add_output(&mut self, text: &str) -> Option<String> {
        self.pending.push_str(&self.redactor.push_str(text));
        let last_newline = self.pending.rfind('\n')?;
        let end = self.pending.get(..last_newline)?.trim_end().len();
        let rest = self.pending.split_off(end);
        let lines = std::mem::replace(&mut self.pending, rest);
        let lines = if self.sent.is_empty() {
            lines.trim_start()
        } else {
            &lines
        };
        self.sent.push_str(lines);
        Some(lines.to_owned()).filter(|lines| !lines.is_empty())
    }

    /// Returns the part of the result `text` of a command that was not sent. If `text` is a status followed by the
    /// output, returns the unsent output followed by the status.
    fn unsent_part(&self, text: &str) -> String {
        if let Some(rest) = text.strip_prefix(&self.sent) {
            return rest.to_owned();
        }
        let status = text
            .split_once(OUTPUT_HEADING)
            .map_or(text, |(status, _)| status);
        format!("{}\n{status}", self.unsent_output(text))
    }

    /// Returns the unsent part of the output of a failed command. `text` is its result: a status, then the output.
    /// Returns an empty text if no output was sent.
    fn unsent_output(&self, text: &str) -> String {
        let output = text
            .split_once(OUTPUT_HEADING)
            .filter(|_| !self.sent.is_empty());
        output
            .and_then(|(_, output)| output.strip_prefix(&self.sent))
            .unwrap_or_default()
            .to_owned()
    }
}

/// Runs a command and returns its output. The command is recorded on the tape before it runs. After a crash, only a
/// read-only command runs again.
pub(crate) async fn run_command(
    agent: &Agent,
    task: &AgentTask,
    line: &str,
    live_output: Option<mpsc::Sender<String>>,
) -> Result<String> {
    let turn = &task.turn;
    if let Some(ResumePoint::Command(outcome)) = turn.tape().resume_point() {
        mark_complete(turn.tape(), outcome);
        return outcome.clone();
    }
    let raw = command_line(line).unwrap_or_else(|| line.trim());
    // The output of a command goes to the user only, unless a `!` shows it to the model.
    let shown_to_model = raw.strip_prefix(SHOW_TO_MODEL_PREFIX);
    let raw = shown_to_model.map_or(raw, str::trim);
    let (tape, started) = (turn.tape(), Instant::now());
    tape.record_session().await?;
    let resolved = resolve_command(raw, agent, turn);
    let name = resolved
        .as_ref()
        .map_or(String::new(), |(tool, _)| tool.spec().name.clone());
    let start = Entry::event("command.start", Some(json!({"raw": raw, "name": name})));
    let start = start.exclude_from_context();
    tape.append(vec![match &resolved {
        Ok((tool, _)) if !tool.spec().read_only => tape.with_command_id(start),
        // A read-only command may run again after a crash.
        _ => tape.with_run_id(start),
    }])
    .await?;
    let outcome = match resolved {
        Ok((tool, arguments)) => {
            let cancel = CancellationToken::new();
            let _guard = cancel.clone().drop_guard();
            let context = ToolContext {
                cancel,
                caller: ToolCaller::User,
                live_output,
                ..ToolContext::new(turn.clone())
            };
            let runner = ToolRunner { agent, context };
            let result = runner.run_for_user(&tool, arguments).await;
            result.map(value_text)
        }
        Err(error) => Err(error),
    };
    let (status, output) = match &outcome {
        Ok(output) => ("ok", output.clone()),
        Err(error) => ("error", error.message().to_owned()),
    };
    let output = spill::spill(tape, &agent.settings, &name, output).await;
    let elapsed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let data = json!({
        "raw": raw, "name": name, "status": status, "elapsed_ms": elapsed, "output": &output, "date": bub_tape::now_iso(),
    });
    let mut batch = vec![tape.with_command_id(Entry::event("command", Some(data)))];
    if shown_to_model.is_some() {
        let output = agent.settings.redactor().redact(&output).into_owned();
        let text = format!("[I ran the command `{raw}`; its output:]\n{output}");
        batch.push(tape.with_run_id(Entry::message("user", text)));
    }
    tape.append(batch).await?;
    mark_complete(tape, &outcome);
    outcome.map(|text| agent.settings.redactor().redact(&text).into_owned())
}

/// Marks the turn as completely recorded. Does nothing if the prompt of the turn is already on the tape: the command
/// then arrived during the turn, and the agent loop marks the turn later.
fn mark_complete(tape: &TurnTape, outcome: &Result<String>) {
    match outcome {
        _ if tape.prompt_id().is_some() => {}
        Ok(_) => tape.mark_complete(),
        Err(_) => tape.mark_complete_with_error(),
    }
}

/// Parses a command line. Returns the tool to run and its arguments. The error names the command that a mistyped line
/// probably means, so that the line does not reach the shell.
fn resolve_command(
    line: &str,
    agent: &Agent,
    turn: &Turn,
) -> Result<(Arc<dyn Tool>, Map<String, Value>)> {
    let tools = turn.framework().current_tools();
    let (name, arguments) = match command::parse(line, &tools)? {
        CommaCommand::Tool { name, arguments } => (name, arguments),
        CommaCommand::Shell { line } => {
            let is_at_terminal = *turn.sender() == Sender::terminal();
            let chat_commands = CHAT_COMMANDS.iter().filter(|_| is_at_terminal);
            let chat_commands: Vec<_> = chat_commands.map(|(name, _)| *name).collect();
            let path = agent.settings.environment().get("PATH");
            let is_program = |name: &str| find_programs(path, name).next().is_some();
            if chat_commands.contains(&line.as_str()) && !is_program(&line) {
                return Err(Error::invalid_input(format!(
                    "`,{line}` works only in the chat; start it with `bub chat`"
                )));
            }
            let names = tools.iter().map(|tool| tool.spec().name.as_str());
            let names = names.chain(chat_commands);
            if let Some(error) = command::mistyped_error(&line, names, is_program) {
                return Err(error);
            }
            let line = match line.as_str() {
                command::DIFF_COMMAND => command::DIFF_SHELL_LINE.to_owned(),
                _ => line,
            };
            let arguments = Map::from_iter([("command".to_owned(), line.into())]);
            (SHELL_TOOL.to_owned(), arguments)
        }
    };
    let tool = tools.iter().find(|tool| tool.spec().name == name).cloned();
    let unknown_tool_error = || {
        Error::not_found(format!(
            "unknown tool `{name}`; type `{}help` to list the tools",
            command_prefix()
        ))
    };
    Ok((tool.ok_or_else(unknown_tool_error)?, arguments))
}

fn value_text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
