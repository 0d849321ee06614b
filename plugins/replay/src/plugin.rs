//! The plugin `replay`.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, OnceLock},
};

use bub::{
    ApprovalAnswer, Envelope, Error, LlmDecision, LlmRequest, ModelStream, Prompt, Provided,
    Result, SessionId, StatePatch, TapeStore, ToolCall, ToolDecision, Turn,
    futures::stream,
    hooks,
    kernel::tape_error,
    tape::{EntryRange, Tape, TapeName},
};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::{
    provider::RecordedModel, recording::Recording, session::ReplaySession, settings::ReplaySettings,
};

/// The prefix of models that are recorded tapes.
const MODEL_PREFIX: &str = "replay:";

/// Answers calls of models such as `replay:TAPE` from recorded tapes.
#[derive(Debug)]
pub struct ReplayPlugin {
    settings: ReplaySettings,
    models: Mutex<HashMap<String, Arc<RecordedModel>>>,
    active: ActiveReplay,
}

/// The replay that `bub replay` runs. The command sets it, once per process.
#[derive(Clone, Debug, Default)]
pub struct ActiveReplay(Arc<OnceLock<Arc<ReplaySession>>>);

impl ActiveReplay {
    /// Starts a replay: from now on, the plugin provides its tape and answers its calls. Only the first replay counts.
    pub fn start(&self, session: Arc<ReplaySession>) {
        let _ = self.0.set(session);
    }

    fn get(&self) -> Option<&ReplaySession> {
        self.0.get().map(|session| &**session)
    }
}

impl ReplayPlugin {
    /// Name of the plugin.
    pub const NAME: &'static str = "replay";

    /// Creates the plugin.
    pub fn new(settings: ReplaySettings) -> Self {
        Self::with_replay(settings, ActiveReplay::default())
    }

    /// Creates the plugin with the replay that a command starts.
    pub fn with_replay(settings: ReplaySettings, active: ActiveReplay) -> Self {
        Self {
            settings,
            models: Mutex::default(),
            active,
        }
    }

    /// Returns the model of a tape. It keeps its position for the next call.
    async fn recorded_model(&self, tape: &str, turn: &Turn) -> Result<Arc<RecordedModel>> {
        let mut models = self.models.lock().await;
        if let Some(model) = models.get(tape) {
            return Ok(Arc::clone(model));
        }
        let recording = Arc::new(open_tape(tape, turn).await?);
        let model = Arc::new(RecordedModel::new(recording).await?);
        models.insert(tape.to_owned(), Arc::clone(&model));
        Ok(model)
    }
}

#[hooks]
impl ReplayPlugin {
    async fn before_llm_call(&self, request: &LlmRequest, turn: &Turn) -> Option<LlmDecision> {
        let decision = match (self.active.get(), request.model.strip_prefix(MODEL_PREFIX)) {
            (Some(session), _) => session.answer(request, turn).await,
            (None, Some(tape)) => match self.recorded_model(tape, turn).await {
                Ok(model) => {
                    let answer = model.answer(&request.messages, self.settings).await;
                    Ok(Some(LlmDecision::Answer(answer)))
                }
                Err(error) => Err(error),
            },
            (None, None) => Ok(None),
        };
        // A failing hook would be ignored, so the error is the answer.
        decision.unwrap_or_else(|error| {
            let answer = ModelStream::new(stream::iter([Err(error)]));
            Some(LlmDecision::Answer(answer))
        })
    }

    fn provide_tape_store(&self) -> Option<Provided<dyn TapeStore>> {
        let session = self.active.get()?;
        Some(Provided::new(session.store()))
    }

    fn load_state(&self) -> Option<StatePatch> {
        let session = self.active.get()?;
        let patch = StatePatch::with_capacity(1);
        session
            .is_recorded()
            .then(|| patch.with("_runtime_repeat_guard", false))
    }

    fn build_prompt(&self, message: &Envelope) -> Option<Prompt> {
        self.active
            .get()
            .and_then(|_| ReplaySession::prompt(message))
    }

    fn continue_prompt(&self, turn: &Turn) -> Option<String> {
        self.active.get()?.continue_prompt(turn)
    }

    fn before_tool_call(&self, call: &ToolCall, turn: &Turn) -> Option<ToolDecision> {
        self.active.get()?.tool_decision(call, turn)
    }

    fn after_tool_call(&self, call: &ToolCall, turn: &Turn) -> Option<Value> {
        self.active.get()?.session_tool_result(call, turn)
    }

    fn request_approval(&self) -> Option<ApprovalAnswer> {
        self.active.get()?;
        let reason = "a replay cannot ask; allow the tool with a rule of the policy".to_owned();
        Some(ApprovalAnswer::Denied(Some(reason)))
    }
}

/// Reads a tape: a file, or the session or tape with this name in the store of the turn.
async fn open_tape(name: &str, turn: &Turn) -> Result<Recording> {
    let path = Path::new(name);
    if path.is_file() {
        return Recording::open(path).await;
    }
    let framework = turn.framework();
    let session = framework.session_tape(&SessionId::from(name))?;
    let named = TapeName::new(name).ok().zip(framework.tape_store());
    let named = named.map(|(name, store)| Tape::new(store, name));
    for tape in session.into_iter().chain(named) {
        let entries = tape.entries(EntryRange::ALL).await.map_err(tape_error)?;
        if !entries.is_empty() {
            return Ok(Recording::new(entries, &*tape.store().blobs()).await);
        }
    }
    Err(Error::config(format!(
        "unknown tape `{name}`: neither a file nor a session; run `bub tape list` to list sessions"
    )))
}
