//! A command is a tool call that a person makes.

use std::{pin::pin, sync::Arc, time::Instant};

use bub_kernel::{
    COMMAND_PREFIX, CancellationToken, Error, ModelStream, Result, ResumePoint, StreamEvent, Tool,
    ToolCaller, TurnTape,
    hooks::{HookPoint as _, point::AfterToolCall},
};
use bub_settings::Redactor;
use bub_tape::Entry;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::ToolRunner;
use crate::{
    agent::{Agent, AgentTask},
    command::{self, CommaCommand},
    emitter, spill,
};

/// The tool that runs what is no tool.
const SHELL_TOOL: &str = "bash";

/// What stands before the output where something is said about it.
const OUTPUT_HEADING: &str = "\noutput:\n";

/// Chunks of output that wait to be streamed. If the reader is slower than that, the rest comes with the result.
const LIVE_OUTPUT_CAPACITY: usize = 1024;

/// Runs a command, and says line by line what it prints.
pub(crate) fn stream_command(agent: Arc<Agent>, task: AgentTask, line: String) -> ModelStream {
    emitter::stream(move |events| async move {
        let (live_output, mut printed) = mpsc::channel(LIVE_OUTPUT_CAPACITY);
        // Output that a hook may change is sent after the hook has run.
        let hooks = task.turn.framework().hooks();
        let live_output = AfterToolCall::implementations(hooks)
            .is_empty()
            .then_some(live_output);
        let redactor = agent.settings().redactor();
        let mut said = EmittedOutput::default();
        let mut running = pin!(run_command(&agent, &task, &line, live_output));
        let outcome = loop {
            tokio::select! {
                biased;
                Some(text) = printed.recv() => {
                    if let Some(lines) = said.add(&text, redactor) {
                        events.send(StreamEvent::Text(lines)).await;
                    }
                }
                outcome = &mut running => break outcome,
            }
        };
        let text = match &outcome {
            Ok(text) => said.rest(text),
            Err(error) => said.unsent_output(&redactor.redact(error.message())),
        };
        if !text.is_empty() {
            events.send(StreamEvent::Text(text)).await;
        }
        events
            .send(StreamEvent::Final(json!({"ok": true, "text": outcome?})))
            .await;
        Ok(())
    })
}

/// What has been said of an output, and what waits for the end of its line.
#[derive(Default)]
struct EmittedOutput {
    said: String,
    held: String,
}

impl EmittedOutput {
    /// Adds what was printed; returns the lines that are whole, without secrets. Blank ones wait for what follows them:
    /// the output is trimmed.
    fn add(&mut self, text: &str, redactor: &Redactor) -> Option<String> {
        self.held.push_str(text);
        let whole = self.held.rfind('\n')?;
        let end = self.held.get(..whole)?.trim_end().len();
        let rest = self.held.split_off(end);
        let lines = std::mem::replace(&mut self.held, rest);
        let lines = if self.said.is_empty() {
            lines.trim_start()
        } else {
            &lines
        };
        let lines = redactor.redact(lines).into_owned();
        self.said.push_str(&lines);
        Some(lines).filter(|lines| !lines.is_empty())
    }

    /// What is left to say of a result.
    fn rest(&self, text: &str) -> String {
        if let Some(rest) = text.strip_prefix(&self.said) {
            return rest.to_owned();
        }
        let about = text
            .split_once(OUTPUT_HEADING)
            .map_or(text, |(about, _)| about);
        format!("{}\n{about}", self.unsent_output(text))
    }

    /// What is left of the output in a text about it, when some of it has been said.
    fn unsent_output(&self, text: &str) -> String {
        let output = text
            .split_once(OUTPUT_HEADING)
            .filter(|_| !self.said.is_empty());
        output
            .and_then(|(_, output)| output.strip_prefix(&self.said))
            .unwrap_or_default()
            .to_owned()
    }
}

/// Runs a command and returns its output. What was asked is on the tape before anything is done; what had begun when
/// the process died is not run again.
pub(crate) async fn run_command(
    agent: &Agent,
    task: &AgentTask,
    line: &str,
    live_output: Option<mpsc::Sender<String>>,
) -> Result<String> {
    let turn = &task.turn;
    if let Some(ResumePoint::Command(outcome)) = turn.tape().resume_point() {
        complete(turn.tape(), outcome);
        return outcome.clone();
    }
    let raw = line
        .trim()
        .strip_prefix(COMMAND_PREFIX)
        .unwrap_or(line)
        .trim();
    let (tape, started) = (turn.tape(), Instant::now());
    tape.bootstrap().await?;
    let called = parse_command(raw, turn.framework().tools());
    let name = called
        .as_ref()
        .map_or(String::new(), |(tool, _)| tool.spec().name.clone());
    let begun =
        Entry::event("command.start", Some(json!({"raw": raw, "name": name}))).outside_context();
    // What only reads may be done again when bub dies meanwhile.
    let only_reads = called
        .as_ref()
        .map_or(true, |(tool, _)| tool.spec().read_only);
    tape.append(vec![if only_reads {
        tape.with_run_id(begun)
    } else {
        tape.with_command_id(begun)
    }])
    .await?;
    let outcome = match called {
        Ok((tool, arguments)) => {
            let cancel = CancellationToken::new();
            let _guard = cancel.clone().drop_guard();
            let runner = ToolRunner {
                agent,
                turn,
                cancel: &cancel,
                caller: ToolCaller::User,
                requests: None,
                live_output,
            };
            runner.run(&tool, arguments, None).await.map(text_of)
        }
        Err(error) => Err(error),
    };
    let (status, output) = match &outcome {
        Ok(output) => ("ok", output.clone()),
        Err(error) => ("error", error.message().to_owned()),
    };
    let kept = spill::spill(tape, agent.settings(), &name, output).await;
    let elapsed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let data = json!({
        "raw": raw, "name": name, "status": status, "elapsed_ms": elapsed, "output": kept, "date": bub_tape::now_iso(),
    });
    tape.append(vec![
        tape.with_command_id(Entry::event("command", Some(data))),
    ])
    .await?;
    complete(tape, &outcome);
    outcome.map(|text| agent.settings().redactor().redact(&text).into_owned())
}

/// Notes that the turn is recorded completely. A command that steered a turn, or that a plugin ran for a prompt, does not
/// complete that turn.
fn complete(tape: &TurnTape, outcome: &Result<String>) {
    match outcome {
        _ if tape.prompt_id().is_some() => {}
        Ok(_) => tape.complete(),
        Err(_) => tape.complete_with_error(),
    }
}

fn parse_command(
    line: &str,
    tools: &[Arc<dyn Tool>],
) -> Result<(Arc<dyn Tool>, Map<String, Value>)> {
    let (name, arguments) = match command::parse(line, tools)? {
        CommaCommand::Tool { name, arguments } => (name, arguments),
        CommaCommand::Shell { line } => {
            let mut arguments = Map::new();
            arguments.insert("cmd".to_owned(), line.into());
            (SHELL_TOOL.to_owned(), arguments)
        }
    };
    let tool = tools.iter().find(|tool| tool.spec().name == name).cloned();
    let missing = || Error::not_found(format!("there is no tool `{name}` to run this with"));
    Ok((tool.ok_or_else(missing)?, arguments))
}

fn text_of(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
