//! The plugin `replay`.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, OnceLock},
};

use bub::{
    ApprovalAnswer, Envelope, Error, LlmDecision, LlmRequest, ModelStream, Plugin, Prompt,
    Provided, Result, SessionId, StatePatch, TapeStore, ToolCall, ToolDecision, Turn,
    agent::tool_definition,
    futures::stream,
    hooks,
    kernel::{hooks::HookSet, settings::media_limit, tape_error},
    tape::{EntryRange, Tape, TapeName},
};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::{
    provider::RecordedModel,
    recording::{ANSWER_EVENT, Recording},
    session::ReplaySession,
    settings::ReplaySettings,
    surroundings::Surroundings,
};

/// The prefix of models that are recorded tapes.
const MODEL_PREFIX: &str = "replay:";
/// Field of the event about an answer with the name of the tape that it comes from.
const TAPE_FIELD: &str = "tape";

/// The plugin `replay`: answers calls of models such as `replay:TAPE`, and runs the replay of `bub replay`.
#[derive(Debug)]
pub struct ReplayPlugin {
    models: Arc<RecordedModels>,
    /// The replay, if the process runs one.
    replay: Option<Arc<ActiveReplay>>,
}

impl ReplayPlugin {
    /// Name of the plugin.
    pub const NAME: &'static str = "replay";

    /// Creates the plugin.
    pub fn new(settings: ReplaySettings) -> Self {
        Self::with_replay(settings, ActiveReplay::default())
    }

    /// Creates the plugin with the replay that a command starts. The setting `replay.session` must be set.
    pub fn with_replay(settings: ReplaySettings, active: ActiveReplay) -> Self {
        let models = RecordedModels {
            settings,
            replay: active.clone(),
            models: Mutex::default(),
        };
        Self {
            models: Arc::new(models),
            replay: settings.session.then(|| Arc::new(active)),
        }
    }
}

impl Plugin for ReplayPlugin {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        Arc::clone(&self.models).register(hooks);
        if let Some(replay) = &self.replay {
            Arc::clone(replay).register(hooks);
        }
    }
}

/// The tapes that answer model calls.
#[derive(Debug)]
struct RecordedModels {
    settings: ReplaySettings,
    replay: ActiveReplay,
    /// By tape and session, because each session has its own position on the tape.
    models: Mutex<HashMap<(String, SessionId), Arc<RecordedModel>>>,
}

impl RecordedModels {
    /// Returns the model of a tape. It keeps its position for the next call. In a new process, it continues after the last
    /// answer on the tape of the session.
    async fn recorded_model(&self, tape: &str, turn: &Turn) -> Result<Arc<RecordedModel>> {
        let key = (tape.to_owned(), turn.session_id().clone());
        let mut models = self.models.lock().await;
        if let Some(model) = models.get(&key) {
            return Ok(Arc::clone(model));
        }
        let recording = self.open_tape(tape, turn).await?;
        let limit = media_limit(turn.framework().settings());
        let recording = Arc::new(recording.with_media(limit));
        let model = RecordedModel::new(recording, Surroundings::of_turn(turn)).await?;
        let model = Arc::new(model.starting_after(answered_calls(tape, turn).await?));
        models.insert(key, Arc::clone(&model));
        Ok(model)
    }
}

impl RecordedModels {
    /// Reads a tape: a file, or the session or tape with this name. A replay works on a copy, so it reads the store that
    /// the replayed session is in.
    async fn open_tape(&self, name: &str, turn: &Turn) -> Result<Recording> {
        let path = Path::new(name);
        if path.is_file() {
            return Recording::open(path).await;
        }
        let framework = turn.framework();
        let source = self.replay.get().and_then(ReplaySession::source);
        if let Some(store) = source.or_else(|| framework.tape_store()) {
            let session = TapeName::for_session(framework.workspace_text(), name);
            for name in [session].into_iter().chain(TapeName::new(name).ok()) {
                let tape = Tape::new(Arc::clone(&store), name);
                let entries = tape.entries(EntryRange::ALL).await.map_err(tape_error)?;
                if !entries.is_empty() {
                    return Ok(Recording::new(entries, &*store.blobs()).await);
                }
            }
        }
        Err(Error::config(format!(
            "unknown tape `{name}`: neither a file nor a session; run `bub tape list` to list sessions"
        )))
    }

    /// Answers a request from a tape, and records where the answer comes from.
    async fn answer(&self, tape: &str, request: &LlmRequest, turn: &Turn) -> Result<ModelStream> {
        let model = self.recorded_model(tape, turn).await?;
        let tools = turn.framework().current_tools();
        let specs = tools.iter().map(|tool| tool.spec());
        let offered = specs.filter(|spec| request.tool_names.contains(&spec.model_name()));
        let tools: Vec<Value> = offered.map(tool_definition).collect();
        let answer = model.answer(&request.messages, &tools, self.settings);
        let (stream, mut event) = answer.await?;
        if let Some(Value::Object(data)) = event.payload.get_mut("data") {
            data.insert(TAPE_FIELD.to_owned(), tape.into());
        }
        let tape = turn.tape();
        tape.append_later(tape.with_run_id(event));
        Ok(stream)
    }
}

#[hooks]
impl RecordedModels {
    async fn before_llm_call(&self, request: &LlmRequest, turn: &Turn) -> Option<LlmDecision> {
        let tape = request.model.strip_prefix(MODEL_PREFIX)?;
        let answer = self.answer(tape, request, turn).await;
        let answer = answer.unwrap_or_else(failed_answer);
        Some(LlmDecision::Answer(answer))
    }
}

/// Returns an answer that fails. bub ignores the error of the hook itself, and would call a model.
fn failed_answer(error: Error) -> ModelStream {
    ModelStream::new(stream::iter([Err(error)]))
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

#[hooks]
impl ActiveReplay {
    async fn before_llm_call(&self, request: &LlmRequest, turn: &Turn) -> Option<LlmDecision> {
        let decision = self.get()?.answer(request, turn).await;
        decision.unwrap_or_else(|error| Some(LlmDecision::Answer(failed_answer(error))))
    }

    fn provide_tape_store(&self) -> Option<Provided<dyn TapeStore>> {
        Some(Provided::new(self.get()?.store()))
    }

    fn load_state(&self) -> Option<StatePatch> {
        let session = self.get()?;
        let mut patch = StatePatch::with_capacity(2);
        if let Some(limit) = session.step_limit() {
            patch = patch.with("_runtime_max_steps", limit);
        }
        if session.is_recorded() {
            patch = patch.with("_runtime_repeat_guard", false);
        }
        Some(patch)
    }

    fn build_prompt(&self, message: &Envelope, turn: &Turn) -> Option<Prompt> {
        ReplaySession::prompt(message, turn)
    }

    fn continue_prompt(&self, turn: &Turn) -> Option<String> {
        self.get()?.continue_prompt(turn)
    }

    fn before_tool_call(&self, call: &ToolCall, turn: &Turn) -> Option<ToolDecision> {
        self.get()?.tool_decision(call, turn)
    }

    fn after_tool_call(&self, call: &ToolCall) -> Option<Value> {
        self.get()?.session_tool_result(call)
    }

    fn request_approval(&self) -> Option<ApprovalAnswer> {
        self.get()?;
        let reason = "a replay cannot ask; allow the tool with a rule of the policy".to_owned();
        Some(ApprovalAnswer::Denied(Some(reason)))
    }
}

/// Returns how many calls of a tape are answered, as the tape of the session says: the number of the last one.
async fn answered_calls(tape: &str, turn: &Turn) -> Result<usize> {
    let entries = turn.tape().tape().entries(EntryRange::ALL).await;
    let entries = entries.map_err(tape_error)?;
    let mut answers = entries
        .iter()
        .rev()
        .filter(|entry| entry.name() == Some(ANSWER_EVENT));
    let last = answers.find_map(|entry| {
        let data = entry
            .data()
            .filter(|data| data.get(TAPE_FIELD).is_some_and(|name| name == tape))?;
        usize::try_from(data.get("call")?.as_u64()?).ok()
    });
    Ok(last.unwrap_or_default())
}
