//! A command is a tool call that a person makes.

use std::{sync::Arc, time::Instant};

use bub_kernel::{CancellationToken, Error, Result, Tool};
use bub_tape::Entry;
use serde_json::{Map, Value, json};

use super::Runner;
use crate::{
    agent::{Agent, Errand},
    command::{self, Command},
    prompt::COMMAND_PREFIX,
    spill,
};

/// The tool that runs what is no tool.
const SHELL: &str = "bash";

/// Runs a command and returns its output. What was asked is on the tape before anything is done.
pub(crate) async fn run_command(agent: &Agent, errand: &Errand, line: &str) -> Result<String> {
    let raw = line.trim().strip_prefix(COMMAND_PREFIX).unwrap_or(line).trim();
    let (tape, started) = (&errand.tape, Instant::now());
    tape.bootstrap().await?;
    let called = understood(raw, errand.framework.tools());
    let name = called.as_ref().map_or(String::new(), |(tool, _)| tool.spec().name.clone());
    let begun = Entry::event("command.start", Some(json!({"raw": raw, "name": name}))).outside_context();
    tape.append(vec![tape.owned(begun)]).await?;
    let outcome = match called {
        Ok((tool, arguments)) => {
            let cancel = CancellationToken::new();
            let _guard = cancel.clone().drop_guard();
            let runner =
                Runner { framework: &errand.framework, agent, state: &errand.state, tape, cancel: &cancel };
            runner.run(&tool, arguments, None).await.map(text_of)
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
    tape.append(vec![tape.owned(Entry::event("command", Some(data)))]).await?;
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
