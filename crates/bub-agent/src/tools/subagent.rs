//! The tool `subagent`.

use std::sync::Arc;

use bub_kernel::{
    Error, ModelStageEnd, ModelStream, Prompt, Result, SessionId, State, StreamEvent, Tool,
    ToolContext, ToolSpec, TurnTape, async_trait, tape_error,
};
use bub_tape::{Entry, MergeBack};
use futures_util::StreamExt as _;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};
use tracing::{Instrument as _, error_span};

use crate::{
    agent::{Agent, AgentTask},
    agent_loop::entries_from,
    skills::LoadedSkills,
    tools::{self, object_schema},
};

/// The name of the tool. A subagent cannot use it.
pub(crate) const NAME: &str = "subagent";

/// The tool that runs a nested agent loop with a separate prompt and returns its answer.
pub(crate) struct SubagentTool {
    spec: ToolSpec,
    agent: Arc<Agent>,
}

impl SubagentTool {
    pub(crate) fn new(agent: Arc<Agent>) -> Self {
        let text = |description: &str| json!({"anyOf": [{"type": "string"}, {"type": "null"}], "description": description});
        let list = |description: &str| {
            let items = json!({"type": "array", "items": {"type": "string"}});
            json!({"anyOf": [items, {"type": "null"}], "description": description})
        };
        let parameters = json!({
            "type": "object",
            "properties": {
                "prompt": {
                    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}],
                    "description": "The task with all that it needs to know: it sees nothing else",
                },
                "model": text("As provider:model; the same model by default"),
                "session": {
                    "type": "string",
                    "default": "temp",
                    "description": "temp: discarded afterwards; inherit: sees this session; other names: kept",
                },
                "allowed_tools": list("All by default"),
                "allowed_skills": list("All by default"),
            },
            "required": ["prompt"],
        });
        let description = "Delegate a task to a subagent and return its answer";
        let mut spec = ToolSpec::new(NAME, description, parameters);
        let text = json!({"type": "string"});
        let errors = json!({"type": "array", "items": text});
        let output = json!({"session_id": text, "output": text, "errors": errors});
        spec.output_schema = Some(object_schema(&output));
        Self { spec, agent }
    }
}

#[async_trait]
impl Tool for SubagentTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, arguments: Map<String, Value>, context: ToolContext) -> Result<Value> {
        run_subagent(&self.agent, arguments, &context).await
    }

    /// Returns the answer of the subagent, followed by its errors.
    fn render(&self, result: &Value) -> Option<String> {
        let answer = result.get("output")?.as_str()?;
        let errors = result.get("errors")?.as_array()?.iter();
        let errors = errors.filter_map(Value::as_str);
        let errors = errors.map(|error| format!("[Error: {error}]"));
        let answer = Some(answer.to_owned()).filter(|answer| !answer.is_empty());
        let parts: Vec<String> = answer.into_iter().chain(errors).collect();
        Some(parts.join("\n"))
    }
}

/// Runs the subagent and returns its session, its answer and its errors.
pub(super) async fn run_subagent(
    agent: &Arc<Agent>,
    arguments: Map<String, Value>,
    context: &ToolContext,
) -> Result<Value> {
    let (turn, parent) = (&context.turn, context.turn.tape());
    let framework = turn.framework();
    let prompt = match arguments.get("prompt") {
        Some(Value::String(text)) => Prompt::Text(text.clone()),
        Some(Value::Array(parts)) => Prompt::Parts(parts.clone()),
        _ => {
            let text = "missing `prompt`: expected a string or a list of content parts";
            return Err(Error::invalid_input(text));
        }
    };
    if prompt.is_empty() {
        let text = "`prompt` must not be empty; describe the task";
        return Err(Error::invalid_input(text));
    }
    let text_argument = |name: &str| arguments.get(name)?.as_str().map(str::trim);
    let session = text_argument("session").unwrap_or("temp");
    let session_id = nested_session_id(session, turn.session_id());
    let allowed = name_list(&arguments, "allowed_tools")?.filter(|names| !names.is_empty());
    let mut available = agent.turn_tool_set(turn)?.tools().to_vec();
    available.retain(|tool| tool.spec().name != NAME);
    if let Some(allowed) = &allowed {
        available = tools::select_tools(allowed, &available)?;
    }
    let state = nested_state(turn.state(), &session_id);
    let names = available.iter().map(|tool| tool.spec().name.as_str());
    state.set("allowed_tools", names.collect::<Vec<_>>());
    if let Some(skills) = name_list(&arguments, "allowed_skills")? {
        let skills = skills.iter().map(|name| name.trim().to_lowercase());
        state.set("allowed_skills", skills.collect::<Vec<_>>());
    }
    if let Some(model) = text_argument("model").filter(|model| !model.is_empty()) {
        state.set("model", model);
    }
    let is_inherited = session == "inherit";
    let (tape, fork) = if is_inherited {
        let fork = parent
            .tape()
            .fork(MergeBack::No)
            .await
            .map_err(tape_error)?;
        let tape = TurnTape::new(fork.tape().clone(), framework, &session_id, None);
        (tape, Some(fork))
    } else {
        (TurnTape::open_nested(framework, &session_id).await?, None)
    };
    let nested = turn.nested_run(session_id.clone(), state, tape);
    let tape = nested.tape();
    tape.record_prompt(&prompt, Vec::new()).await?;
    let task = AgentTask {
        turn: nested.clone(),
        tools: agent.turn_tool_set(&nested)?,
    };
    let span = error_span!("turn", session_id = %session_id, run_id = %nested.id());
    let stream = agent.run_agent_loop(task, prompt.clone());
    let stream = stream.instrument(span.clone()).await?;
    let output = collect_output(stream).instrument(span).await;
    let end = ModelStageEnd {
        prompt: &prompt,
        output: &output.text,
        error: output.error.as_ref(),
    };
    tape.end_model_stage(end).await?;
    if is_inherited || session_id.is_temporary() {
        // The tape of the subagent is discarded, so its usage is recorded on the parent's tape.
        for run in run_events(tape).await? {
            let event = Entry::event("subagent.run", Some(run)).exclude_from_context();
            parent.append_later(parent.with_run_id(event));
        }
    }
    // A temporary session is discarded, so its shells must end.
    if session_id.is_temporary() {
        agent.shells.stop_session(&session_id).await;
    }
    if let Some(fork) = fork {
        fork.finish().await.map_err(tape_error)?;
    }
    Ok(json!({"session_id": session_id, "output": output.text, "errors": output.errors}))
}

/// Returns the data of the events `run` on the tape since the prompt of the subagent. Each model call has one event.
async fn run_events(turn: &TurnTape) -> Result<Vec<Value>> {
    let entries = entries_from(turn, |entry| Some(entry.id) == turn.prompt_id()).await?;
    let runs = entries.iter().filter(|entry| entry.name() == Some("run"));
    Ok(runs.filter_map(|run| run.data().cloned()).collect())
}

/// Returns the session id for the argument `session`. A name is appended to the current session id, so the model cannot
/// use the session of another chat.
fn nested_session_id(session: &str, current: &SessionId) -> SessionId {
    const TEMP: &str = SessionId::TEMP_PREFIX;
    match session {
        "inherit" => current.clone(),
        "" | "temp" => SessionId::from(format!("{TEMP}{:08x}", crate::random_bits() & 0xffff_ffff)),
        name if name.starts_with(TEMP) => SessionId::from(name),
        name => SessionId::from(format!("{current}/{name}")),
    }
}

/// Returns a copy of the state for a nested run, without values that belong only to the parent turn.
fn nested_state(state: &State, session_id: &SessionId) -> State {
    let nested = state.deep_copy();
    nested.set("session_id", session_id);
    nested.remove("_runtime_thread_id");
    LoadedSkills::from_state(&nested).clear();
    nested
}

/// Returns the names in an argument, which is a list or comma-separated text. Returns `None` if the argument is
/// missing.
fn name_list(arguments: &Map<String, Value>, key: &str) -> Result<Option<Vec<String>>> {
    let value = arguments.get(key).unwrap_or(&Value::Null);
    if let Value::String(names) = value {
        let names = names.split(',').map(|name| name.trim().to_owned());
        return Ok(Some(names.collect()));
    }
    Option::deserialize(value)
        .map_err(|_| Error::invalid_input(format!("invalid `{key}`: expected a list of names")))
}

/// The answer and the errors of a subagent.
#[derive(Default)]
struct SubagentOutput {
    text: String,
    errors: Vec<String>,
    error: Option<Error>,
}

async fn collect_output(mut stream: ModelStream) -> SubagentOutput {
    let mut output = SubagentOutput::default();
    while let Some(event) = stream.next().await {
        match event {
            Ok(StreamEvent::Text(delta)) => output.text.push_str(&delta),
            Ok(StreamEvent::Error(error)) => output.errors.push(error.message().to_owned()),
            Ok(_) => {}
            Err(error) => {
                output.errors.push(error.message().to_owned());
                output.error = Some(error);
            }
        }
    }
    output
}
