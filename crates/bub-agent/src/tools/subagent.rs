//! The tool `subagent`.

use std::sync::Arc;

use bub_kernel::{
    BoxFuture, Error, ModelStageEnd, ModelStream, Prompt, Result, SessionId, State, StreamEvent,
    Tool, ToolContext, ToolSpec, TurnTape, tape_error,
};
use bub_tape::{Entry, EntryRange, MergeBack};
use futures_util::StreamExt as _;
use serde_json::{Map, Value, json};
use tracing::{Instrument as _, error_span};

use crate::{
    agent::{Agent, AgentTask},
    skills::LoadedSkills,
    tool_set::ToolSet,
    tools,
};

/// The name of the tool. A subagent cannot use it.
pub(crate) const NAME: &str = "subagent";

/// Runs a nested agent loop with a separate prompt and returns its answer.
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
                    "description": "Task for the subagent, with everything it needs to know: it sees nothing else",
                },
                "model": text("Model of the subagent, as provider:model; the configured model by default"),
                "session": {
                    "type": "string",
                    "default": "temp",
                    "description": "temp: discarded afterwards; inherit: sees this conversation; any other name: kept under that name",
                },
                "allowed_tools": list("Tools it may use; all except subagent by default"),
                "allowed_skills": list("Skills it may use; all by default"),
            },
            "required": ["prompt"],
        });
        let spec = ToolSpec {
            name: NAME.to_owned(),
            description: "Delegate a task to a subagent and return its answer".to_owned(),
            parameters,
            agent_use: true,
            read_only: false,
        };
        Self { spec, agent }
    }
}

impl Tool for SubagentTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<Value>> {
        Box::pin(async move {
            run_subagent(&self.agent, arguments, &context)
                .await
                .map(Value::String)
        })
    }
}

/// Runs the subagent and returns its answer, followed by its errors.
async fn run_subagent(
    agent: &Arc<Agent>,
    arguments: Map<String, Value>,
    context: &ToolContext,
) -> Result<String> {
    let (turn, parent) = (&context.turn, context.turn.tape());
    let framework = turn.framework();
    let prompt = match arguments.get("prompt") {
        Some(Value::String(text)) => Prompt::Text(text.clone()),
        Some(Value::Array(parts)) => Prompt::Parts(parts.clone()),
        _ => {
            return Err(Error::invalid_input(
                "missing `prompt`: expected a string or a list of content parts",
            ));
        }
    };
    if prompt.is_empty() {
        return Err(Error::invalid_input(
            "`prompt` must not be empty; describe the task",
        ));
    }
    let session = arguments
        .get("session")
        .and_then(Value::as_str)
        .unwrap_or("temp")
        .trim();
    let session_id = nested_session_id(session, turn.session_id());
    let allowed = name_list(&arguments, "allowed_tools")?.filter(|names| !names.is_empty());
    let mut available = agent.allowed_tools(turn)?;
    available.retain(|tool| tool.spec().name != NAME);
    if let Some(allowed) = &allowed {
        available = tools::select_tools(allowed, &available)?;
    }
    let state = nested_state(turn.state(), &session_id);
    if let Some(skills) = name_list(&arguments, "allowed_skills")? {
        state.set(
            "allowed_skills",
            skills
                .iter()
                .map(|name| name.trim().to_lowercase())
                .collect::<Vec<_>>(),
        );
    }
    match arguments
        .get("model")
        .and_then(Value::as_str)
        .filter(|model| !model.trim().is_empty())
    {
        Some(model) => state.set("model", model.trim()),
        // A subagent does not inherit the model of the session.
        None => drop(state.remove("model")),
    }
    let is_inherited = session == "inherit";
    let fork = if is_inherited {
        Some(
            parent
                .tape()
                .fork(MergeBack::No)
                .await
                .map_err(tape_error)?,
        )
    } else {
        None
    };
    let tape = match &fork {
        Some(fork) => TurnTape::new(fork.tape().clone(), framework, &session_id, None),
        None => TurnTape::open_nested(framework, &session_id).await?,
    };
    let nested = turn.nested_run(session_id.clone(), state, tape);
    let tape = nested.tape();
    tape.record_prompt(&prompt, Vec::new()).await?;
    let task = AgentTask {
        turn: nested.clone(),
        tools: Arc::new(ToolSet::new(available)),
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
    // The shells of a discarded session end with it.
    if session_id.is_temporary() {
        agent.shells().stop_session(&session_id).await;
    }
    if let Some(fork) = fork {
        fork.finish().await.map_err(tape_error)?;
    }
    Ok(output.to_display_string())
}

/// Returns the data of the tape events `run` of a turn. Each model call has one event.
async fn run_events(turn: &TurnTape) -> Result<Vec<Value>> {
    let tape = turn.tape();
    let mut runs = Vec::new();
    let mut newest = tape
        .store()
        .read(tape.name(), EntryRange::ALL.newest_first());
    while let Some(entry) = newest.next().await.transpose().map_err(tape_error)? {
        if Some(entry.id) == turn.prompt_id() {
            break;
        }
        runs.extend(
            entry
                .data()
                .filter(|_| entry.name() == Some("run"))
                .cloned(),
        );
    }
    runs.reverse();
    Ok(runs)
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

/// Returns an argument that is a list of names, or names separated by commas.
fn name_list(arguments: &Map<String, Value>, key: &str) -> Result<Option<Vec<String>>> {
    match arguments.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => Ok(Some(
            names
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        )),
        Some(Value::String(names)) => Ok(Some(
            names
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect(),
        )),
        Some(_) => Err(Error::invalid_input(format!(
            "invalid `{key}`: expected a list of names"
        ))),
    }
}

/// The answer and the errors of a subagent.
#[derive(Default)]
struct SubagentOutput {
    text: String,
    errors: Vec<String>,
    error: Option<Error>,
}

impl SubagentOutput {
    fn to_display_string(&self) -> String {
        let errors = self.errors.iter().map(|error| format!("[Error: {error}]"));
        let parts = std::iter::once(self.text.clone())
            .filter(|text| !text.is_empty())
            .chain(errors);
        parts.collect::<Vec<_>>().join("\n")
    }
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
