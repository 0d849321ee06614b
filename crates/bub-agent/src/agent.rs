//! The builtin agent, which answers prompts unless a plugin implements the model stage.

use std::sync::Arc;

use bub_kernel::settings::{TAPE_STORAGE, TapeStorage};
use bub_kernel::{
    CancellationToken, Error, ErrorKind, Framework, FrameworkRef, ModelStream, PluginContext,
    Prompt, Result, State, StreamEvent, Turn,
};
use bub_model::{
    CallOptions, Candidates, ChatRequest, ChoiceReason, MediaLimits, ModelClient, ModelEvent,
    ModelEventStream, ModelId, Models, Provider, Recording, settings::ModelSettings,
};
use bub_settings::Settings;
use serde_json::{Value, json};

use crate::{
    agent_loop::{AgentLoop, Calibration},
    attachments::AddedFiles,
    builtin::BuiltinOptions,
    code_mode::CodeMode,
    emitter,
    files::FileAccess,
    no_model,
    policy::Policy,
    sandbox::Sandbox,
    settings::AgentSettings,
    shell::Shells,
    skills::Skills,
    tool_runner::stream_command,
    tool_set::{CachedToolSet, DESCRIBE_TOOL, ToolSet},
    usage::DailyLimit,
};

/// The builtin agent, which answers prompts unless a plugin implements the model stage.
pub struct Agent {
    framework: FrameworkRef,
    /// The models, or the error in the provider settings. The error is reported only when a model is used, so that
    /// comma commands still work.
    pub(crate) models: Result<Arc<Models>>,
    client: ModelClient,
    pub(crate) settings: Arc<Settings>,
    /// Correction factors for token estimates.
    pub(crate) calibration: Calibration,
    pub(crate) daily_limit: DailyLimit,
    model_override: Option<Arc<ModelOverride>>,
    pub(crate) policy: Policy,
    pub(crate) skills: Arc<Skills>,
    pub(crate) shells: Arc<Shells>,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) files: Arc<FileAccess>,
    pub(crate) code_mode: CodeMode,
    pub(crate) added_files: Arc<AddedFiles>,
    all_tools: CachedToolSet,
    /// All tools, in code mode.
    code_mode_tools: CachedToolSet,
}

/// A function that answers model calls in place of a provider, such as a script in a test or an in-process model.
pub struct ModelOverride(pub Box<ModelOverrideFn>);

/// A function that answers one model call.
pub type ModelOverrideFn = dyn Fn(&ModelId, &ChatRequest) -> Vec<ModelEvent> + Send + Sync;

/// A turn, or the nested run of a subagent, with the tools that the model may use in it.
#[derive(Clone)]
pub(crate) struct AgentTask {
    pub(crate) turn: Turn,
    pub(crate) tools: Arc<ToolSet>,
}

impl Agent {
    /// Creates the agent. It makes no connections before the first prompt.
    pub(crate) fn new(context: &PluginContext<'_>, options: BuiltinOptions) -> Self {
        let settings = Arc::clone(context.settings);
        let client = ModelClient::from_settings(&settings);
        let models = Models::new(
            Arc::clone(&settings),
            Arc::new(client.clone()),
            &options.logins,
        );
        let shells = Shells::new(Arc::clone(&settings), options.launcher.clone());
        let skills = Arc::new(Skills::new(&settings));
        let sandbox = Sandbox::new(Arc::clone(&settings), Arc::clone(&skills), options.launcher);
        let sandbox = Arc::new(sandbox);
        let files = FileAccess::with_sandbox(
            Arc::clone(&settings),
            Arc::clone(&skills),
            Arc::clone(&sandbox),
        );
        let is_temporary = settings.get(&TAPE_STORAGE) == TapeStorage::Memory;
        Self {
            framework: context.framework.clone(),
            models: models.map(Arc::new).map_err(access_error),
            client,
            daily_limit: DailyLimit::new(&settings),
            calibration: Calibration::default(),
            model_override: options.model_override,
            policy: Policy::new(&settings),
            code_mode: CodeMode::new(&settings),
            skills,
            sandbox,
            files: Arc::new(files),
            shells: Arc::new(shells),
            added_files: Arc::new(AddedFiles::new(is_temporary)),
            settings,
            all_tools: CachedToolSet::default(),
            code_mode_tools: CachedToolSet::default(),
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
            tools: self.turn_tool_set(turn)?,
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
        let (models, reason) = self.candidate_models(task.turn.state()).await?;
        if let Some(reason) = reason {
            return Ok(no_model::no_model_answer(&task.turn, &reason));
        }
        let agent = Arc::clone(self);
        Ok(emitter::stream_events(move |events| async move {
            let cancel = CancellationToken::new();
            // Cancels the model call and the tool calls of the run when the run ends for any reason.
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

    /// Returns the tool set for a turn: all tools that a model may call, or only those named in `allowed_tools` of the
    /// state.
    pub(crate) fn turn_tool_set(&self, turn: &Turn) -> Result<Arc<ToolSet>> {
        let code_mode = is_code_mode(turn.state());
        let cached = if code_mode {
            &self.code_mode_tools
        } else {
            &self.all_tools
        };
        let all = &cached.get(&turn.framework().current_tools(), code_mode);
        let Some(Value::Array(names)) = turn.state().get("allowed_tools") else {
            return Ok(Arc::clone(all));
        };
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        let mut tools = crate::tools::select_tools(&names, all.tools())?;
        // It only describes tools that are allowed.
        let describe = all
            .tools()
            .iter()
            .filter(|tool| tool.spec().name == DESCRIBE_TOOL);
        tools.extend(describe.filter(|_| !names.is_empty()).cloned());
        tools.dedup_by(|left, right| Arc::ptr_eq(left, right));
        Ok(Arc::new(ToolSet::new(tools, code_mode)))
    }

    /// Returns the models to try, in order: the model that the state names, or else the configured model and its
    /// fallbacks. If no model is configured, returns the reason.
    pub(crate) async fn candidate_models(
        &self,
        state: &State,
    ) -> Result<(Vec<ModelId>, Option<ChoiceReason>)> {
        let models = self.models.clone()?;
        if let Some(model) = state.get_str("model").filter(|model| !model.is_empty()) {
            let model = self.resolve_model(&model)?;
            // Only the configured model has fallbacks.
            let configured = self.settings.get(ModelSettings::MODEL);
            let configured = configured.and_then(|text| models.resolve_model(&text).ok());
            if configured.as_ref() != Some(&model) {
                return Ok((vec![model], None));
            }
        }
        let choice = models.choose_model().await.map_err(access_error)?;
        let candidates = choice.candidates();
        let reason = candidates.is_empty().then_some(choice.reason);
        Ok((candidates, reason))
    }

    /// Starts a model call. Tries the models in order until one answers.
    pub(crate) fn start_model_call(
        &self,
        models: Vec<ModelId>,
        request: ChatRequest,
        options: CallOptions,
    ) -> Result<ModelEventStream> {
        if let (Some(model_override), Some(model)) = (&self.model_override, models.first()) {
            let events = (model_override.0)(model, &request);
            return Ok(ModelEventStream::from_events(model.clone(), events));
        }
        let candidates = Candidates::new(self.models.clone()?, models);
        Ok(self.client.stream(candidates, request, options))
    }

    /// Encodes a request as the provider of the model would get it. Returns the path and the body.
    pub(crate) fn encode_request(
        &self,
        model: &ModelId,
        request: &ChatRequest,
    ) -> Result<(String, Value)> {
        let models = self.models.clone()?;
        let encoded = models
            .encode_request(model, request)
            .map_err(access_error)?;
        let body = serde_json::from_slice(&encoded.body).unwrap_or_default();
        Ok((encoded.path, body))
    }

    /// Returns the file extensions that the transcription endpoint accepts, or `None` if no model for transcription is
    /// configured.
    pub(crate) fn transcription_formats(&self) -> Result<Option<Vec<String>>> {
        let Some(model) = self.settings.get(AgentSettings::TRANSCRIBE) else {
            return Ok(None);
        };
        let (model, models) = (self.resolve_model(&model)?, self.models.clone()?);
        let quirks = models.catalog().get(model.provider()).map(Provider::quirks);
        Ok(Some(quirks.unwrap_or_default().transcription_formats))
    }

    /// Returns the transcript of a recording.
    pub(crate) async fn transcribe(&self, name: &str, mime: &str, bytes: &[u8]) -> Result<String> {
        let model = self.settings.get(AgentSettings::TRANSCRIBE);
        let model = self.resolve_model(&model.unwrap_or_default())?;
        let models = self.models.clone()?;
        let endpoint = models.endpoint(&model).await.map_err(access_error)?;
        let recording = Recording { name, mime, bytes };
        let text = self.client.transcribe(&endpoint, recording).await;
        text.map_err(|error| Error::from(error).with_kind(ErrorKind::Provider))
    }

    /// Returns which images and recordings all models that a turn may use accept.
    pub(crate) async fn media_limits(&self, state: &State) -> MediaLimits {
        let candidates = self.candidate_models(state).await;
        match (candidates, &self.models) {
            (Ok((candidates, _)), Ok(models)) => models.media_limits(&candidates),
            _ => MediaLimits::default(),
        }
    }

    /// Parses a model such as `provider:model`. The provider may be an alias.
    pub(crate) fn resolve_model(&self, model: &str) -> Result<ModelId> {
        let models = self.models.clone()?;
        models.resolve_model(model).map_err(access_error)
    }

    /// Returns the context window of a model in tokens, if it is known.
    pub(crate) fn context_window(&self, model: &ModelId) -> Option<u64> {
        let models = self.models.as_ref().ok()?;
        let provider = models.catalog().get(model.provider())?;
        provider.context_window(model.model())
    }

    /// Fails if the daily limit does not allow a call to these models.
    pub(crate) async fn check_daily_limit(&self, models: &[ModelId]) -> Result<()> {
        if !self.daily_limit.is_set() {
            return Ok(());
        }
        let (store, access) = (self.framework()?.tape_store(), self.models.clone()?);
        let limit = &self.daily_limit;
        let store = store.as_deref();
        limit.check(models, access.catalog(), store).await
    }

    /// Returns the framework that the agent belongs to. Fails during shutdown.
    pub(crate) fn framework(&self) -> Result<Framework> {
        self.framework
            .get()
            .ok_or_else(|| Error::unknown("cannot run the hook: bub is shutting down"))
    }
}

/// Returns whether the session is in code mode.
pub(crate) fn is_code_mode(state: &State) -> bool {
    state.get("code_mode") == Some(Value::Bool(true))
}

fn access_error(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::from(error).with_kind(ErrorKind::Config)
}
