//! A second agent for a part of the work.

use std::sync::Arc;

use bub_kernel::{
    BoxFuture, Error, ModelStream, Prompt, Result, State, SteeringHandle, StreamEvent, Tool,
    ToolContext, ToolSpec,
};
use bub_tape::{Entry, MergeBack, Span};
use futures_util::StreamExt as _;
use serde_json::{Map, Value, json};

use crate::{
    agent::{Agent, Errand},
    record::{Ending, TEMPORARY, TurnTape, tape_error},
    shell::Shells,
    skills::LoadedSkills,
    toolbox::Toolbox,
    tools,
};

/// The tool; it cannot be given to a subagent.
pub(crate) const NAME: &str = "subagent";

/// Runs another agent with a prompt of its own and returns what it says.
pub(crate) struct SubagentTool {
    spec: ToolSpec,
}

impl Default for SubagentTool {
    fn default() -> Self {
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
        Self { spec }
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
        Box::pin(async move { run(arguments, &context).await.map(Value::String) })
    }
}

async fn run(arguments: Map<String, Value>, context: &ToolContext) -> Result<String> {
    let missing = || Error::not_found("the builtin agent is not part of this turn");
    let agent = context.state.slot::<Agent>().ok_or_else(missing)?;
    let parent = context.state.slot::<TurnTape>().ok_or_else(missing)?;
    let framework = agent.framework()?;
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
    let current = context.state.get_str("session_id");
    let asked_for = arguments
        .get("session")
        .and_then(Value::as_str)
        .unwrap_or("temp")
        .trim();
    let session_id = session_of(asked_for, current.as_deref());
    let allowed = names(&arguments, "allowed_tools")?.filter(|names| !names.is_empty());
    let mut toolset = agent.tools_for(&context.state)?;
    toolset.retain(|tool| tool.spec().name != NAME);
    if let Some(allowed) = &allowed {
        toolset = tools::resolve(allowed, &toolset)?;
    }
    let state = state_for(&context.state, &session_id);
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
        Some(fork) => TurnTape::new(
            fork.tape().clone(),
            &framework,
            agent.settings().redactor(),
            &session_id,
            None,
        ),
        None => TurnTape::aside(&framework, agent.settings().redactor(), &session_id).await?,
    };
    let tape = Arc::new(tape);
    state.put_slot(Arc::clone(&tape));
    tape.ask(&prompt, Vec::new()).await?;
    let errand = Errand {
        framework,
        state,
        tape: Arc::clone(&tape),
        session_id: session_id.clone(),
        toolbox: Arc::new(Toolbox::of(toolset)),
    };
    let said = collect(agent.run_errand(errand, prompt.clone()).await?).await;
    let ending = Ending {
        prompt: &prompt,
        output: &said.text,
        error: said.error.as_ref(),
    };
    tape.finish(ending).await?;
    if inherited || session_id.starts_with(TEMPORARY) {
        // Its tape goes; what it cost stays.
        for run in runs_of(&tape).await? {
            parent.note(parent.owned(Entry::event("subagent.run", Some(run)).outside_context()));
        }
    }
    // What a session that is forgotten has started goes with it.
    if let Some(shells) = context
        .state
        .slot::<Shells>()
        .filter(|_| session_id.starts_with(TEMPORARY))
    {
        shells.stop_session(&session_id).await;
    }
    if let Some(fork) = fork {
        fork.finish().await.map_err(tape_error)?;
    }
    Ok(said.shown())
}

/// The model calls of a turn, as its tape has them.
async fn runs_of(turn: &TurnTape) -> Result<Vec<Value>> {
    let tape = turn.tape();
    let mut runs = Vec::new();
    let mut newest = tape.store().read(tape.name(), Span::ALL.newest_first());
    while let Some(entry) = newest.next().await.transpose().map_err(tape_error)? {
        if Some(entry.id) == turn.asked() {
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
fn session_of(asked_for: &str, current: Option<&str>) -> String {
    let current = current.unwrap_or("temp/unknown");
    match asked_for {
        "inherit" => current.to_owned(),
        "" | "temp" => format!("{TEMPORARY}{:08x}", crate::random() & 0xffff_ffff),
        name if name.starts_with(TEMPORARY) => name.to_owned(),
        name => format!("{current}/{name}"),
    }
}

/// The state of the turn for another one: without what is only for this one.
fn state_for(state: &State, session_id: &str) -> State {
    let own = state.detached();
    own.set("session_id", session_id);
    own.remove("_runtime_thread_id");
    own.drop_slot::<SteeringHandle>();
    own.put_slot(Arc::new(LoadedSkills::default()));
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
struct Said {
    text: String,
    errors: Vec<String>,
    error: Option<Error>,
}

impl Said {
    fn shown(&self) -> String {
        let errors = self.errors.iter().map(|error| format!("[Error: {error}]"));
        let parts = std::iter::once(self.text.clone())
            .filter(|text| !text.is_empty())
            .chain(errors);
        parts.collect::<Vec<_>>().join("\n")
    }
}

async fn collect(mut stream: ModelStream) -> Said {
    let mut said = Said::default();
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
