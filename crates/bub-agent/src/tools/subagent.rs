//! A second agent for a part of the work.

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

/// The tool; it cannot be given to a subagent.
pub(crate) const NAME: &str = "subagent";

/// Runs another agent with a prompt of its own and returns what it says.
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
                    "description": "What the other agent is to do, with everything it needs to know: it sees nothing else.",
                },
                "model": text("Its model, as provider:model; the configured one by default."),
                "session": {
                    "type": "string",
                    "default": "temp",
                    "description": "temp: forgotten afterwards; inherit: sees this conversation; any other name: remembered under that name.",
                },
                "allowed_tools": list("The tools it may use; all but subagent by default."),
                "allowed_skills": list("The skills it may use; all by default."),
            },
            "required": ["prompt"],
        });
        let spec = ToolSpec {
            name: NAME.to_owned(),
            description: "Gives a part of the work to another agent and returns its answer."
                .to_owned(),
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
            run(&self.agent, arguments, &context)
                .await
                .map(Value::String)
        })
    }
}

async fn run(
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
                "subagent needs a prompt: a text, or a list of content parts",
            ));
        }
    };
    if prompt.is_empty() {
        return Err(Error::invalid_input(
            "the prompt of a subagent must not be empty",
        ));
    }
    let asked_for = arguments
        .get("session")
        .and_then(Value::as_str)
        .unwrap_or("temp")
        .trim();
    let session_id = session_of(asked_for, turn.session_id());
    let allowed = names(&arguments, "allowed_tools")?.filter(|names| !names.is_empty());
    let mut toolset = agent.tools_for(turn)?;
    toolset.retain(|tool| tool.spec().name != NAME);
    if let Some(allowed) = &allowed {
        toolset = tools::resolve(allowed, &toolset)?;
    }
    let state = state_for(turn.state(), &session_id);
    if let Some(skills) = names(&arguments, "allowed_skills")? {
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
        // It does not inherit the model of the session.
        None => drop(state.remove("model")),
    }
    let inherited = asked_for == "inherit";
    let fork = if inherited {
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
    let nested = turn.nested(session_id.clone(), state, tape);
    let tape = nested.tape();
    tape.record_prompt(&prompt, Vec::new()).await?;
    let task = AgentTask {
        turn: nested.clone(),
        tools: Arc::new(ToolSet::new(toolset)),
    };
    let span = error_span!("turn", session_id = %session_id, run_id = %nested.id());
    let stream = agent.run_task(task, prompt.clone());
    let stream = stream.instrument(span.clone()).await?;
    let said = collect(stream).instrument(span).await;
    let end = ModelStageEnd {
        prompt: &prompt,
        output: &said.text,
        error: said.error.as_ref(),
    };
    tape.end_model_stage(end).await?;
    if inherited || session_id.is_temporary() {
        // Its tape goes; what it cost stays.
        for run in runs_of(tape).await? {
            let event = Entry::event("subagent.run", Some(run)).outside_context();
            parent.append_later(parent.with_run_id(event));
        }
    }
    // What a session that is forgotten has started goes with it.
    if session_id.is_temporary() {
        agent.shells().stop_session(&session_id).await;
    }
    if let Some(fork) = fork {
        fork.finish().await.map_err(tape_error)?;
    }
    Ok(said.to_display_string())
}

/// The model calls of a turn, as its tape has them.
async fn runs_of(turn: &TurnTape) -> Result<Vec<Value>> {
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

/// The model chooses among its own: it can neither read nor write the session of another chat.
fn session_of(asked_for: &str, current: &SessionId) -> SessionId {
    const TEMP: &str = SessionId::TEMP_PREFIX;
    match asked_for {
        "inherit" => current.clone(),
        "" | "temp" => SessionId::from(format!("{TEMP}{:08x}", crate::random() & 0xffff_ffff)),
        name if name.starts_with(TEMP) => SessionId::from(name),
        name => SessionId::from(format!("{current}/{name}")),
    }
}

/// The state of the turn for another one: without what is only for this one.
fn state_for(state: &State, session_id: &SessionId) -> State {
    let own = state.detached();
    own.set("session_id", session_id);
    own.remove("_runtime_thread_id");
    LoadedSkills::from_state(&own).clear();
    own
}

fn names(arguments: &Map<String, Value>, key: &str) -> Result<Option<Vec<String>>> {
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
            "{key} must be a list of names"
        ))),
    }
}

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

async fn collect(mut stream: ModelStream) -> SubagentOutput {
    let mut said = SubagentOutput::default();
    while let Some(event) = stream.next().await {
        match event {
            Ok(StreamEvent::Text(delta)) => said.text.push_str(&delta),
            Ok(StreamEvent::Error(error)) => said.errors.push(error.message().to_owned()),
            Ok(_) => {}
            Err(error) => {
                said.errors.push(error.message().to_owned());
                said.error = Some(error);
            }
        }
    }
    said
}
