//! The tools `run_code` and `code_mode`.

use std::{ffi::OsString, sync::Arc, time::Instant};

use bub_kernel::{
    Error, ErrorKind, Result, Tool, ToolContext, ToolExposure, TurnTape, tape_error,
    tool::run_blocking, tools,
};
use bub_sandbox::{PipedCommand, PipedProcess};
use bub_tape::Entry;
use serde_json::{Map, Value, json};

use super::bash::confine;
use crate::{
    agent::Agent,
    code_mode::{self, CodeRequest},
    skills::LoadedSkills,
    tool_runner::ToolRunner,
    tool_set::{RUN_CODE_TOOL, ToolSet},
    truncate,
};

/// The tape event of a tool call that code made.
const CALL_EVENT: &str = "code.call";
/// Maximum characters of the arguments and of the result in that event.
const MAX_EVENT_CHARS: usize = 1000;
/// Maximum time that code can run.
const MAX_TIMEOUT_SECONDS: u64 = 3600;

/// The tools of code mode.
pub(super) struct CodeTools {
    agent: Arc<Agent>,
}

impl CodeTools {
    pub(super) fn new(agent: Arc<Agent>) -> Arc<Self> {
        Arc::new(Self { agent })
    }

    /// Returns the tools. Without a Python interpreter, no tool runs code.
    pub(super) fn available_tools(self: &Arc<Self>) -> Vec<Arc<dyn Tool>> {
        let mut tools = self.tools();
        let is_available = self.agent.code_mode.is_available();
        let is_command = |tool: &Arc<dyn Tool>| tool.spec().exposure == ToolExposure::Command;
        tools.retain(|tool| is_available || is_command(tool));
        tools
    }

    /// Starts the process that runs code, confined as commands are.
    async fn start_process(&self, context: &ToolContext, code: &str) -> Result<PipedProcess> {
        let agent = &self.agent;
        let arguments = Map::from_iter([("code".to_owned(), Value::from(code))]);
        let confinement = confine(agent, context, RUN_CODE_TOOL, &arguments).await?;
        let loaded = LoadedSkills::from_state(context.state());
        let granted = agent.skills.granted_environment(&loaded);
        let environment = agent.shells.command_environment(&granted);
        let directory = crate::workspace(context.state()).unwrap_or_else(|| ".".into());
        let command = agent.code_mode.command(confinement.as_ref());
        let command = command.ok_or_else(no_python_error)?;
        let launcher = agent.sandbox.launcher().cloned();
        let started = run_blocking(move || {
            let command: [OsString; 4] = command;
            let command = PipedCommand {
                launcher: launcher.as_ref(),
                command: &command,
                directory: &directory,
                environment,
                confinement,
            };
            command.start()
        });
        started
            .await?
            .map_err(|error| Error::new(ErrorKind::Tool, format!("cannot start python3: {error}")))
    }
}

#[tools(crate = bub_kernel)]
impl CodeTools {
    /// Run Python code and return what it prints. Each run is a new process in the workspace.
    #[tool(name = "run_code", direct)]
    async fn run_code(
        &self,
        context: &ToolContext,
        /// Python code; `await tools.<name>(...)` calls a tool
        code: String,
        /// Seconds after which the code is terminated
        #[default(120)]
        timeout_seconds: u64,
    ) -> Result<String> {
        let set = self.agent.turn_tool_set(&context.turn)?;
        if !set.is_code_mode() || context.code_mode {
            return Err(Error::invalid_input(
                "Code mode is not enabled for this run.",
            ));
        }
        if !(1..=MAX_TIMEOUT_SECONDS).contains(&timeout_seconds) {
            let text = format!("invalid `timeout_seconds`: expected 1 to {MAX_TIMEOUT_SECONDS}");
            return Err(Error::invalid_input(text));
        }
        if context.turn.environment().is_some() {
            return Err(Error::invalid_input(
                "code runs only on this machine, and this session has another environment; use bash",
            ));
        }
        let process = self.start_process(context, &code).await?;
        let request = CodeRequest {
            code: &code,
            names: tool_names(&set),
            timeout_seconds,
            cancel: &context.cancel,
            redactor: self.agent.settings.redactor(),
        };
        let runner = ToolRunner {
            agent: &self.agent,
            context: ToolContext {
                code_mode: true,
                live_output: None,
                ..context.clone()
            },
        };
        code_mode::run_code(process, request, |name, arguments| {
            call_tool(&runner, &set, name, arguments)
        })
        .await
    }

    /// Switch code mode of this session on or off, from the next turn
    #[tool(command_only)]
    async fn code_mode(
        &self,
        context: &ToolContext,
        /// `true` or `false`
        enable: bool,
    ) -> Result<String> {
        if enable && !self.agent.code_mode.is_available() {
            return Err(no_python_error());
        }
        let data = json!({"code_mode": enable});
        let appended = context.tape().append_event("code_mode_switch", data).await;
        appended.map_err(tape_error)?;
        let state = if enable { "enabled" } else { "disabled" };
        Ok(format!(
            "Session code mode {state} (applies from the next turn)."
        ))
    }
}

fn no_python_error() -> Error {
    Error::config(
        "code mode needs Python: `python3` not found in PATH, or not reachable in the sandbox; install it for all users and start bub again",
    )
}

fn tool_names(set: &ToolSet) -> Vec<String> {
    let tools = set.code_tools();
    tools
        .map(|tool| code_mode::function_name(tool.spec()))
        .collect()
}

/// Runs a tool call of code, and records it on the tape.
async fn call_tool(
    runner: &ToolRunner<'_>,
    set: &ToolSet,
    name: String,
    arguments: Map<String, Value>,
) -> Result<Value> {
    let mut tools = set.code_tools();
    let tool = tools.find(|tool| code_mode::function_name(tool.spec()) == name);
    let tool = tool.ok_or_else(|| Error::not_found(format!("unknown tool `{name}`")))?;
    let started = Instant::now();
    let shown = truncate(
        &Value::Object(arguments.clone()).to_string(),
        MAX_EVENT_CHARS,
    );
    let result = runner.run_for_code(tool, arguments).await;
    let (status, text) = match &result {
        Ok(Value::String(text)) => ("ok", text.clone()),
        Ok(value) => ("ok", value.to_string()),
        Err(error) => ("error", error.to_string()),
    };
    let elapsed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let data = json!({
        "tool": tool.spec().name, "arguments": shown, "status": status,
        "result": truncate(&text, MAX_EVENT_CHARS), "elapsed_ms": elapsed,
    });
    record_call(runner.context.turn.tape(), data).await?;
    result
}

async fn record_call(tape: &TurnTape, data: Value) -> Result<()> {
    let event = Entry::event(CALL_EVENT, Some(data)).exclude_from_context();
    tape.append(vec![tape.with_run_id(event)]).await?;
    Ok(())
}
