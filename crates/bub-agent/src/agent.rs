//! The builtin agent: what answers prompts when no plugin does.

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

/// What answers prompts when no plugin does.
pub struct Agent {
    framework: FrameworkRef,
    /// Or what is wrong with the providers of the settings, for whoever asks.
    models: Result<Arc<Models>>,
    client: ModelClient,
    settings: Arc<Settings>,
    calibration: Calibration,
    cap: DailyLimit,
    answering: Option<Arc<ModelOverride>>,
    policy: Policy,
    skills: Arc<Skills>,
    shells: Arc<Shells>,
    all_tools: OnceLock<Arc<ToolSet>>,
}

/// A service that answers model calls in place of the network: a script in a test, a model in the same process.
pub struct ModelOverride(pub Box<ModelOverrideFn>);

/// Answers one call of a model.
pub type ModelOverrideFn = dyn Fn(&ModelId, &ChatRequest) -> Vec<ModelEvent> + Send + Sync;

/// A run of the agent: a turn, or a run nested in one, with the tools it may use.
#[derive(Clone)]
pub(crate) struct AgentTask {
    pub(crate) turn: Turn,
    pub(crate) tools: Arc<ToolSet>,
}

impl Agent {
    /// The agent of these settings. Nothing is looked up or connected before the first prompt.
    pub(crate) fn new(
        framework: FrameworkRef,
        settings: Arc<Settings>,
        answering: Option<Arc<ModelOverride>>,
        skills: Arc<Skills>,
        shells: Arc<Shells>,
    ) -> Self {
        let client = ModelClient::from_settings(&settings);
        let models = Models::new(Arc::clone(&settings), Arc::new(client.clone()));
        let models = models
            .map(Arc::new)
            .map_err(|error| Error::from(error).with_kind(ErrorKind::Config));
        let cap = DailyLimit::new(&settings);
        Self {
            framework,
            models,
            client,
            cap,
            calibration: Calibration::default(),
            answering,
            policy: Policy::new(&settings),
            skills,
            shells,
            settings,
            all_tools: OnceLock::new(),
        }
    }

    /// Answers the prompt of a turn: a command at once, anything else by the loop.
    pub(crate) async fn run_stream(
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
            tools: self.tool_set(turn.framework(), turn.state())?,
        };
        if prompt.is_command() {
            return Ok(stream_command(Arc::clone(self), task, prompt.text()));
        }
        turn.tape().replace_prompt(prompt).await?;
        self.run_task(task, prompt.clone()).await
    }

    /// Answers a prompt by the loop.
    pub(crate) async fn run_task(
        self: &Arc<Self>,
        task: AgentTask,
        prompt: Prompt,
    ) -> Result<ModelStream> {
        let models = self.candidates(task.turn.state()).await?;
        if models.is_empty() {
            return Ok(no_model::no_model_answer(&task.turn));
        }
        let agent = Arc::clone(self);
        Ok(emitter::stream(move |events| async move {
            let cancel = CancellationToken::new();
            // Whatever ends the run ends what it started.
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

    /// The tools that a model may use in a turn. All of them together are the same for every turn.
    fn tool_set(&self, framework: &Framework, state: &State) -> Result<Arc<ToolSet>> {
        let all = self
            .all_tools
            .get_or_init(|| Arc::new(ToolSet::new(for_models(framework))));
        match state.get("allowed_tools") {
            Some(Value::Array(names)) => {
                let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
                Ok(Arc::new(ToolSet::new(crate::tools::resolve(
                    &names,
                    all.tools(),
                )?)))
            }
            _ => Ok(Arc::clone(all)),
        }
    }

    /// The tools that a model may use in a turn.
    pub(crate) fn tools_for(&self, turn: &Turn) -> Result<Vec<Arc<dyn Tool>>> {
        let tools = self.tool_set(turn.framework(), turn.state())?;
        Ok(tools.tools().to_vec())
    }

    /// The models to try: that of the turn, or else the chosen one and its fallbacks.
    async fn candidates(&self, state: &State) -> Result<Vec<ModelId>> {
        let models = self.models.clone()?;
        if let Some(model) = state.get_str("model").filter(|model| !model.is_empty()) {
            let own = self.resolve(&model)?;
            // The fallbacks are those of the configured model.
            let configured = self
                .settings
                .get(&MODEL)
                .and_then(|text| models.resolve(&text).ok());
            if configured.as_ref() != Some(&own) {
                return Ok(vec![own]);
            }
        }
        Ok(models.choose().await.map_err(access_error)?.candidates())
    }

    /// Starts a call of the first of these models that answers.
    pub(crate) fn stream(
        &self,
        models: Vec<ModelId>,
        request: ChatRequest,
        options: CallOptions,
    ) -> Result<bub_model::ModelEventStream> {
        if let (Some(answering), Some(model)) = (&self.answering, models.first()) {
            return Ok(bub_model::ModelEventStream::answered(
                model.clone(),
                (answering.0)(model, &request),
            ));
        }
        Ok(self.client.stream_first(
            Candidates::new(self.models.clone()?, models),
            request,
            options,
        ))
    }

    /// The model that a text names.
    pub(crate) fn resolve(&self, model: &str) -> Result<ModelId> {
        self.models.clone()?.resolve(model).map_err(access_error)
    }

    /// The window of a model in tokens, where it is known.
    pub(crate) fn window(&self, model: &ModelId) -> Option<u64> {
        self.models
            .as_ref()
            .ok()?
            .catalog()
            .get(model.provider())?
            .context_window(model.model())
    }

    /// Whether the cap of the day allows a call of one of these models.
    pub(crate) async fn check_cap(&self, models: &[ModelId]) -> Result<()> {
        if !self.cap.is_set() {
            return Ok(());
        }
        let store = self.framework()?.tape_store();
        self.cap
            .check(models, self.models.clone()?.catalog(), store.as_deref())
            .await
    }

    /// The policy of tool calls.
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The skills.
    pub(crate) fn skills(&self) -> &Skills {
        &self.skills
    }

    /// The shells of all sessions.
    pub(crate) fn shells(&self) -> &Shells {
        &self.shells
    }

    /// The cap of the day.
    pub(crate) fn cap(&self) -> &DailyLimit {
        &self.cap
    }

    /// What was learned about the size of requests.
    pub(crate) fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// The settings of the program.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The framework the agent belongs to.
    pub(crate) fn framework(&self) -> Result<Framework> {
        self.framework
            .get()
            .ok_or_else(|| Error::unknown("the framework is gone"))
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Agent")
    }
}

fn for_models(framework: &Framework) -> Vec<Arc<dyn Tool>> {
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
