//! The builtin agent, which answers prompts unless a plugin implements the model stage.

use std::sync::{Arc, OnceLock};

use bub_kernel::{
    CancellationToken, Error, ErrorKind, Framework, FrameworkRef, ModelStream, Prompt, Result,
    State, StreamEvent, Tool, Turn,
};
use bub_model::settings::MODEL;
use bub_model::{CallOptions, Candidates, ChatRequest, ModelClient, ModelEvent, ModelId, Models};
use bub_settings::Settings;
use serde_json::{Value, json};

use crate::{
    agent_loop::{AgentLoop, Calibration},
    emitter, no_model,
    policy::Policy,
    shell::Shells,
    skills::Skills,
    tool_runner::stream_command,
    tool_set::ToolSet,
    usage::DailyLimit,
};

/// The builtin agent, which answers prompts unless a plugin implements the model stage.
pub struct Agent {
    framework: FrameworkRef,
    /// The models, or the error in the provider settings. The error is reported only when a model is used, so that
    /// commands still work.
    models: Result<Arc<Models>>,
    client: ModelClient,
    settings: Arc<Settings>,
    calibration: Calibration,
    daily_limit: DailyLimit,
    model_override: Option<Arc<ModelOverride>>,
    policy: Policy,
    skills: Arc<Skills>,
    shells: Arc<Shells>,
    all_tools: OnceLock<Arc<ToolSet>>,
}

/// A service that answers model calls without the network, such as a script in a test or an in-process model.
pub struct ModelOverride(pub Box<ModelOverrideFn>);

/// A function that answers one model call.
pub type ModelOverrideFn = dyn Fn(&ModelId, &ChatRequest) -> Vec<ModelEvent> + Send + Sync;

/// One run: a turn or a subagent, with the tools it may use.
#[derive(Clone)]
pub(crate) struct AgentTask {
    pub(crate) turn: Turn,
    pub(crate) tools: Arc<ToolSet>,
}

impl Agent {
    /// Creates the agent. It makes no connections before the first prompt.
    pub(crate) fn new(
        framework: FrameworkRef,
        settings: Arc<Settings>,
        model_override: Option<Arc<ModelOverride>>,
        skills: Arc<Skills>,
        shells: Arc<Shells>,
    ) -> Self {
        let client = ModelClient::from_settings(&settings);
        let models = Models::new(Arc::clone(&settings), Arc::new(client.clone()));
        let models = models
            .map(Arc::new)
            .map_err(|error| Error::from(error).with_kind(ErrorKind::Config));
        let daily_limit = DailyLimit::new(&settings);
        Self {
            framework,
            models,
            client,
            daily_limit,
            calibration: Calibration::default(),
            model_override,
            policy: Policy::new(&settings),
            skills,
            shells,
            settings,
            all_tools: OnceLock::new(),
        }
    }

    /// Answers the prompt of a turn: runs it as a comma command, or passes it to the agent loop.
    pub(crate) async fn answer_prompt(
        self: &Arc<Self>,
        prompt: &Prompt,
        turn: &Turn,
    ) -> Result<ModelStream> {
        if prompt.is_empty() {
            let text = "error: empty prompt";
            let end = StreamEvent::Final(json!({"ok": false, "text": text}));
            return Ok(ModelStream::from_events([
                StreamEvent::Text(text.to_owned()),
                end,
            ]));
        }
        let task = AgentTask {
            turn: turn.clone(),
            tools: self.turn_tool_set(turn.framework(), turn.state())?,
        };
        if prompt.is_command() {
            return Ok(stream_command(Arc::clone(self), task, prompt.text()));
        }
        turn.tape().replace_prompt(prompt).await?;
        self.run_agent_loop(task, prompt.clone()).await
    }

    /// Answers a prompt with the agent loop.
    pub(crate) async fn run_agent_loop(
        self: &Arc<Self>,
        task: AgentTask,
        prompt: Prompt,
    ) -> Result<ModelStream> {
        let models = self.candidate_models(task.turn.state()).await?;
        if models.is_empty() {
            return Ok(no_model::no_model_answer(&task.turn));
        }
        let agent = Arc::clone(self);
        Ok(emitter::stream_events(move |events| async move {
            let cancel = CancellationToken::new();
            // Cancels the calls of the run when it ends for any reason.
            let _guard = cancel.clone().drop_guard();
            let run = AgentLoop {
                agent,
                turn: task.turn,
                tools: task.tools,
                models,
                events,
                cancel,
                requests: Arc::default(),
            };
            run.run(prompt).await
        }))
    }

    /// Returns the tool set for a turn: all tools, or only those named in `allowed_tools` of the state.
    fn turn_tool_set(&self, framework: &Framework, state: &State) -> Result<Arc<ToolSet>> {
        let all = self
            .all_tools
            .get_or_init(|| Arc::new(ToolSet::new(model_tools(framework))));
        match state.get("allowed_tools") {
            Some(Value::Array(names)) => {
                let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
                Ok(Arc::new(ToolSet::new(crate::tools::select_tools(
                    &names,
                    all.tools(),
                )?)))
            }
            _ => Ok(Arc::clone(all)),
        }
    }

    /// Returns the tools that the model may use in a turn.
    pub(crate) fn allowed_tools(&self, turn: &Turn) -> Result<Vec<Arc<dyn Tool>>> {
        let tools = self.turn_tool_set(turn.framework(), turn.state())?;
        Ok(tools.tools().to_vec())
    }

    /// Returns the models to try in order: the model of the turn, or else the configured model and its fallbacks.
    async fn candidate_models(&self, state: &State) -> Result<Vec<ModelId>> {
        let models = self.models.clone()?;
        if let Some(model) = state.get_str("model").filter(|model| !model.is_empty()) {
            let model = self.resolve_model(&model)?;
            // The fallbacks belong to the configured model; another model has none.
            let configured = self
                .settings
                .get(&MODEL)
                .and_then(|text| models.resolve_model(&text).ok());
            if configured.as_ref() != Some(&model) {
                return Ok(vec![model]);
            }
        }
        Ok(models
            .choose_model()
            .await
            .map_err(access_error)?
            .candidates())
    }

    /// Starts a model call. Tries the models in order until one answers.
    pub(crate) fn start_model_call(
        &self,
        models: Vec<ModelId>,
        request: ChatRequest,
        options: CallOptions,
    ) -> Result<bub_model::ModelEventStream> {
        if let (Some(model_override), Some(model)) = (&self.model_override, models.first()) {
            return Ok(bub_model::ModelEventStream::from_events(
                model.clone(),
                (model_override.0)(model, &request),
            ));
        }
        Ok(self.client.stream_candidates(
            Candidates::new(self.models.clone()?, models),
            request,
            options,
        ))
    }

    /// Resolves a model name or an alias.
    pub(crate) fn resolve_model(&self, model: &str) -> Result<ModelId> {
        self.models
            .clone()?
            .resolve_model(model)
            .map_err(access_error)
    }

    /// Returns the context window of a model in tokens, if it is known.
    pub(crate) fn context_window(&self, model: &ModelId) -> Option<u64> {
        self.models
            .as_ref()
            .ok()?
            .catalog()
            .get(model.provider())?
            .context_window(model.model())
    }

    /// Fails if the daily limit does not allow a call to these models.
    pub(crate) async fn check_daily_limit(&self, models: &[ModelId]) -> Result<()> {
        if !self.daily_limit.is_set() {
            return Ok(());
        }
        let store = self.framework()?.tape_store();
        self.daily_limit
            .check(models, self.models.clone()?.catalog(), store.as_deref())
            .await
    }

    /// Returns the tool policy.
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the skills of all workspaces.
    pub(crate) fn skills(&self) -> &Skills {
        &self.skills
    }

    /// Returns the shells of all sessions.
    pub(crate) fn shells(&self) -> &Shells {
        &self.shells
    }

    /// Returns the daily limit of tokens and cost.
    pub(crate) fn daily_limit(&self) -> &DailyLimit {
        &self.daily_limit
    }

    /// Returns the correction factors for token estimates.
    pub(crate) fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Returns the settings.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the framework that the agent belongs to. Fails during shutdown.
    pub(crate) fn framework(&self) -> Result<Framework> {
        self.framework
            .get()
            .ok_or_else(|| Error::unknown("cannot run the turn: bub is shutting down"))
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Agent")
    }
}

/// Returns the tools that a model may call. Commands for users are not among them.
fn model_tools(framework: &Framework) -> Vec<Arc<dyn Tool>> {
    framework
        .tools()
        .iter()
        .filter(|tool| tool.spec().agent_use)
        .cloned()
        .collect()
}

fn access_error(error: bub_model::AccessError) -> Error {
    Error::from(error).with_kind(ErrorKind::Config)
}
