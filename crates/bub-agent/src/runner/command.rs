//! A command is a tool call that a person makes.

use std::{pin::pin, sync::Arc, time::Instant};

use bub_kernel::{
    CancellationToken, Error, ErrorKind, ModelStream, Result, StreamEvent, Tool,
    hooks::{HookPoint as _, point::AfterToolCall},
};
use bub_settings::Redactor;
use bub_tape::Entry;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::Runner;
use crate::{
    agent::{Agent, Errand},
    command::{self, Command},
    emit,
    prompt::COMMAND_PREFIX,
    record::Resumed,
    spill,
};

/// The tool that runs what is no tool.
const SHELL: &str = "bash";

/// What stands before the output where something is said about it.
const OUTPUT: &str = "\noutput:\n";

/// Who is told what a command of the shell prints, while it does: a slot of the state.
#[derive(Debug)]
pub(crate) struct Live(pub(crate) mpsc::UnboundedSender<String>);

/// A command of the shell took too long: a slot of the state. To the model that is a result, to a person a failure.
#[derive(Debug)]
pub(crate) struct TimedOut;

/// Runs a command, and says line by line what it prints.
pub(crate) fn stream_command(agent: Arc<Agent>, errand: Errand, line: String) -> ModelStream {
    emit::stream(move |events| async move {
        let (prints, mut printed) = mpsc::unbounded_channel();
        // What a hook may change is said when it has.
        if AfterToolCall::implementations(errand.framework.hooks()).is_empty() {
            errand.state.put_slot(Arc::new(Live(prints)));
        } else {
            drop(prints);
        }
        let redactor = agent.settings().redactor();
        let mut said = Said::default();
        let mut running = pin!(run_command(&agent, &errand, &line));
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
            Err(error) => said.rest_of_output(&redactor.redact(error.message())),
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
struct Said {
    said: String,
    held: String,
}

impl Said {
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
        let about = text.split_once(OUTPUT).map_or(text, |(about, _)| about);
        format!("{}\n{about}", self.rest_of_output(text))
    }

    /// What is left of the output in a text about it, when some of it has been said.
    fn rest_of_output(&self, text: &str) -> String {
        let output = text.split_once(OUTPUT).filter(|_| !self.said.is_empty());
        output
            .and_then(|(_, output)| output.strip_prefix(&self.said))
            .unwrap_or_default()
            .to_owned()
    }
}

/// Runs a command and returns its output. What was asked is on the tape before anything is done; what had begun when
/// the process died is not run again.
pub(crate) async fn run_command(agent: &Agent, errand: &Errand, line: &str) -> Result<String> {
    if let Some(Resumed::Command(said)) = errand.tape.resumed() {
        return said.clone();
    }
    let raw = line
        .trim()
        .strip_prefix(COMMAND_PREFIX)
        .unwrap_or(line)
        .trim();
    let (tape, started) = (&errand.tape, Instant::now());
    tape.bootstrap().await?;
    let called = understood(raw, errand.framework.tools());
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
        tape.owned(begun)
    } else {
        tape.of_delivery(begun)
    }])
    .await?;
    let outcome = match called {
        Ok((tool, arguments)) => {
            let cancel = CancellationToken::new();
            let _guard = cancel.clone().drop_guard();
            let runner = Runner {
                framework: &errand.framework,
                agent,
                state: &errand.state,
                tape,
                cancel: &cancel,
            };
            let said = runner.run(&tool, arguments, None).await.map(text_of);
            let is_late = name == SHELL && errand.state.slot::<TimedOut>().is_some();
            said.and_then(|text| {
                if is_late {
                    Err(Error::new(ErrorKind::Tool, text))
                } else {
                    Ok(text)
                }
            })
        }
        Err(error) => Err(error),
    };
    let (status, output) = match &outcome {
        Ok(output) => ("ok", output.clone()),
        Err(error) => ("error", error.message().to_owned()),
    };
    let kept = spill::put_aside(tape, agent.settings(), &name, output).await;
    let elapsed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let data = json!({
        "raw": raw, "name": name, "status": status, "elapsed_ms": elapsed, "output": kept, "date": bub_tape::now_iso(),
    });
    tape.append(vec![tape.of_delivery(Entry::event("command", Some(data)))])
        .await?;
    outcome.map(|text| agent.settings().redactor().redact(&text).into_owned())
}

fn understood(line: &str, tools: &[Arc<dyn Tool>]) -> Result<(Arc<dyn Tool>, Map<String, Value>)> {
    let (name, arguments) = match command::parse(line, tools)? {
        Command::Tool { name, arguments } => (name, arguments),
        Command::Shell { line } => {
            let mut arguments = Map::new();
            arguments.insert("cmd".to_owned(), line.into());
            (SHELL.to_owned(), arguments)
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
