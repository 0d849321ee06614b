//! The agent loop: call the model, run the tools it requests, and repeat until it requests none.
//!
//! ```text
//! step: steering messages → view (context budget) → before_llm_call → model → record → tools → record
//! ```
//!
//! The results of a step are on the tape before the next model call. So after a crash at any point, the turn resumes
//! from its tape.

mod budget;
mod calls;
mod digest;
mod handoff;
mod handoff_state;
mod handoff_summary;
mod repeat_guard;
mod step;

use std::sync::Arc;

use bub_kernel::{
    CancellationToken, Error, ErrorKind, Inbound, Prompt, Result, ResumePoint, StepRequests,
    StreamEvent, Turn, TurnTape, error_entry,
    hooks::{HookPoint, HookSet, point::ContinuePrompt},
};
use bub_model::ModelId;
use bub_settings::Redactor;
use bub_tape::{Entry, SystemPrompt};
use serde_json::json;
use tracing::Instrument as _;

pub use self::{
    budget::estimate_tokens,
    handoff_summary::{HANDOFF_EVENT, HANDOFF_PROMPT},
};
pub(crate) use self::{
    budget::{Calibration, HandoffBudget},
    digest::PhaseEntries,
    handoff::{UNKNOWN_WINDOW, add_todo, entries_from},
    handoff_state::HandoffParts,
    handoff_summary::HandoffCall,
};
use self::{repeat_guard::RepeatGuard, step::StepError};
use crate::{
    agent::{Agent, AgentTask},
    emitter::Emitter,
    settings::AgentSettings,
    tool_runner::run_command,
    tool_set::{OfferedTools, ToolSet},
    truncate,
};

/// Maximum characters of a prompt in the tape events `loop.start` and `loop.step.start`. The message entry has the
/// complete prompt.
const MAX_EVENT_PROMPT_CHARS: usize = 80;
/// Key in the state with the maximum number of steps of the turn. A replay sets it to the recorded one.
const MAX_STEPS_KEY: &str = "_runtime_max_steps";

/// One run of the agent loop.
pub(crate) struct AgentLoop {
    pub(crate) agent: Arc<Agent>,
    /// The turn, or the nested run of a subagent.
    pub(crate) turn: Turn,
    pub(crate) tools: Arc<ToolSet>,
    /// The model of the run, followed by its fallbacks.
    pub(crate) models: Vec<ModelId>,
    pub(crate) events: Emitter,
    /// Cancelled when the run ends for any reason.
    pub(crate) cancel: CancellationToken,
    /// Requests that tools make to the loop, such as a handoff. They are applied between steps.
    pub(crate) requests: Arc<StepRequests>,
}

/// The outcome of a step.
enum StepOutcome {
    /// The model requested no tools. The run ends unless steering messages are queued.
    Done,
    /// The model needs another step to see the tool results. The loop sends these events once the results are on the
    /// tape.
    Continue(Vec<StreamEvent>),
}

/// Data that a run keeps between its steps.
struct LoopState {
    /// The text of all prompts of the run. `$name` in it loads a skill, for all later steps.
    prompt_text: String,
    repeat_guard: RepeatGuard,
    /// Whether an earlier step sent text.
    has_text: bool,
    /// Whether the model was asked to hand off since the last handoff.
    was_asked_to_hand_off: bool,
    /// The tools that the current step offers.
    offered: Arc<OfferedTools>,
    /// Whether an automatic handoff made the request less than 10 % smaller, so that another handoff would not help.
    cannot_shrink: bool,
    /// The system prompt of the last step.
    system: StepPrompt,
    /// The size of the last request.
    size: RequestSize,
}

/// The size of a request in tokens of the model.
#[derive(Clone, Copy, Default)]
struct RequestSize {
    /// All tokens.
    tokens: u64,
    /// The tokens of the system prompt and the tool definitions.
    fixed: u64,
}

/// The system prompt of a step, as it was built and as the model gets it. It seldom changes between steps, and
/// redacting and hashing it costs more than the rest of a step.
#[derive(Default)]
struct StepPrompt {
    built: String,
    redacted: Option<Arc<SystemPrompt>>,
}

impl StepPrompt {
    /// Returns the system prompt for the model.
    fn update(&mut self, built: String, redactor: &Redactor) -> Arc<SystemPrompt> {
        if self.built != built {
            self.redacted = None;
        }
        let redacted = self.redacted.get_or_insert_with(|| {
            Arc::new(SystemPrompt::new(redactor.redact(&built).into_owned()))
        });
        let redacted = Arc::clone(redacted);
        self.built = built;
        redacted
    }
}

impl LoopState {
    fn new(tools: &ToolSet) -> Self {
        Self {
            prompt_text: String::new(),
            repeat_guard: RepeatGuard::default(),
            has_text: false,
            was_asked_to_hand_off: false,
            offered: tools.offer(&[]),
            cannot_shrink: false,
            system: StepPrompt::default(),
            size: RequestSize::default(),
        }
    }
}

impl AgentLoop {
    fn tape(&self) -> &TurnTape {
        self.turn.tape()
    }

    fn hooks(&self) -> &HookSet {
        self.turn.framework().hooks()
    }

    /// Sends text to the reader of the turn's stream.
    async fn send_text(&self, text: impl Into<String>) {
        self.events.send(StreamEvent::Text(text.into())).await;
    }

    /// Sends the event that ends the stream.
    async fn send_final(&self, text: String) {
        let event = StreamEvent::Final(json!({"ok": true, "text": text}));
        self.events.send(event).await;
    }

    /// Begins a step, unless it exceeds the limit. `prompt` is the new prompt of the step, if it has one. The prompt of
    /// the turn is in `loop.start`.
    fn begin_step(&self, number: u64, prompt: Option<&Prompt>) {
        if self.step_limit_error(number).is_some() {
            return;
        }
        let prompt = prompt.map(|prompt| truncate(&prompt.text(), MAX_EVENT_PROMPT_CHARS));
        self.tape().begin_step(number, prompt.as_deref());
    }

    /// Returns an error if a step exceeds the maximum number of steps per turn.
    fn step_limit_error(&self, number: u64) -> Option<Error> {
        let given = self.turn.state().get(MAX_STEPS_KEY);
        let configured = || self.agent.settings.get(AgentSettings::MAX_STEPS);
        let max_steps = given.and_then(|steps| steps.as_u64()).or_else(configured)?;
        (number > max_steps).then(|| {
            let steps = if max_steps == 1 { "step" } else { "steps" };
            let text = format!(
                "max_steps_reached={max_steps}; the turn stopped after {max_steps} {steps}: send `continue` to go on, \
                 or raise `max_steps`"
            );
            Error::new(ErrorKind::Unknown, text)
        })
    }

    /// Runs steps until the turn is done or fails.
    pub(crate) async fn run(self, prompt: Prompt) -> Result<()> {
        let (steps, sent_text, needs_prompt) = match self.tape().resume_point() {
            Some(ResumePoint::Answered(text)) => return self.resend_answer(text.clone()).await,
            Some(ResumePoint::AttemptsExhausted) => {
                return Err(self.record_failure(attempts_exhausted_error()).await);
            }
            Some(ResumePoint::AfterSteps {
                steps,
                text,
                needs_prompt,
            }) => (*steps, text.as_str(), *needs_prompt),
            Some(ResumePoint::Command(_)) | None => (0, "", false),
        };
        self.tape().append_later(self.loop_start_event(&prompt));
        let (mut prompt, mut number) = (prompt, steps + 1);
        let mut loop_state = LoopState::new(&self.tools);
        if !sent_text.is_empty() {
            self.send_text(sent_text).await;
            loop_state.has_text = true;
        }
        if needs_prompt {
            self.begin_next_step(&mut prompt, number).await?;
        } else {
            self.begin_step(number, None);
        }
        let mut overflows = 0;
        loop {
            if let Some(error) = self.step_limit_error(number) {
                return Err(self.record_failure(error).await);
            }
            let span = tracing::error_span!("step", number);
            let prompt_text = prompt.text();
            if !loop_state.prompt_text.ends_with(&*prompt_text) {
                loop_state.prompt_text.push('\n');
                loop_state.prompt_text.push_str(&prompt_text);
            }
            let step = self.run_step(&prompt, &mut loop_state);
            let outcome = step.instrument(span).await;
            number += 1;
            match outcome {
                Ok(StepOutcome::Done) if !self.turn.has_steering_messages() => {
                    self.tape().mark_complete();
                    return Ok(());
                }
                Ok(StepOutcome::Done) => self.begin_next_step(&mut prompt, number).await?,
                Ok(StepOutcome::Continue(events)) => {
                    self.begin_next_step(&mut prompt, number).await?;
                    for event in events {
                        self.events.send(event).await;
                    }
                }
                Err(StepError::Overflow(error)) if overflows == 0 => {
                    overflows += 1;
                    self.hand_off_after_overflow(&error, loop_state.size)
                        .await?;
                    self.begin_step(number, None);
                }
                Err(StepError::Failed(error)) if self.hides_rejected_media(&error) => {
                    self.begin_step(number, None);
                }
                Err(StepError::Overflow(error) | StepError::Failed(error)) => {
                    return Err(self.record_failure(error).await);
                }
            }
        }
    }

    /// Begins the next step. Runs the comma commands that arrived during the turn. Records the pending entries of the
    /// previous step, the steering messages, and the prompt of the next step if a plugin returns one.
    async fn begin_next_step(&self, prompt: &mut Prompt, number: u64) -> Result<()> {
        // Record the tool results before a plugin builds the next prompt, which may take long.
        if !ContinuePrompt::implementations(self.hooks()).is_empty() {
            self.tape().append(Vec::new()).await?;
        }
        let (steering, commands) = self.turn.take_steering_messages().await?;
        for command in commands {
            self.run_steered_command(&command).await;
        }
        let framework = self.turn.framework();
        let text = framework.continue_prompt(prompt, &self.turn).await?;
        let messages = steering.iter();
        let messages = messages.map(|message| self.tape().steering_entry(message));
        let mut messages: Vec<Entry> = messages.collect();
        let next = text.filter(|text| !text.is_empty()).map(Prompt::Text);
        self.begin_step(number, next.as_ref());
        if let Some(next) = next {
            messages.push(self.tape().user_message_entry(&next));
            *prompt = next;
        }
        self.tape().append(messages).await?;
        Ok(())
    }

    /// Runs a comma command that arrived during the turn, with the role of its sender. Its output goes to the chat, not
    /// to the model.
    async fn run_steered_command(&self, command: &Inbound) {
        let task = AgentTask {
            turn: self.turn.with_sender(command.sender()),
            tools: Arc::clone(&self.tools),
        };
        let line = command.message.content();
        let output = run_command(&self.agent, &task, &line, None).await;
        let output = output.unwrap_or_else(|error| error.message().to_owned());
        self.send_text(format!("\n\n{line}\n{output}")).await;
    }

    /// Hides media of earlier turns if the provider rejected a request with them: the model of this turn may be another
    /// one, which reads no images. Returns whether the step can be repeated without them.
    fn hides_rejected_media(&self, error: &Error) -> bool {
        let has_answer = self
            .tape()
            .partial_text()
            .is_some_and(|text| !text.is_empty());
        let is_rejected = error.kind() == ErrorKind::Provider && !has_answer;
        if !is_rejected || !self.tape().hide_earlier_media() {
            return false;
        }
        tracing::warn!(%error, "model.earlier_media_rejected");
        // The failed model call counts as a step.
        if let Some(end) = self.tape().end_step("media_hidden", Some(error)) {
            self.tape().append_later(end);
        }
        true
    }

    /// Records the error that ends the turn, and returns it.
    async fn record_failure(&self, error: Error) -> Error {
        let mut chat = self.tape().new_step_record();
        // If the step made tool calls, the text of its response is already on the tape.
        let partial_text = self.tape().partial_text();
        chat.text = partial_text.filter(|_| !self.tape().interrupt_calls());
        chat.error = Some(error_entry(&error));
        let last = self.tape().end_step("error", Some(&error));
        let last = last.into_iter().collect();
        match self.tape().record_step(chat, last).await {
            Ok(_) => self.tape().mark_complete_with_error(),
            Err(failure) => tracing::error!(error = %failure, "turn.record_failed"),
        }
        error
    }

    /// Sends an answer that was recorded but not delivered before a crash.
    async fn resend_answer(&self, text: String) -> Result<()> {
        self.send_text(text.as_str()).await;
        self.send_final(text).await;
        self.tape().mark_complete();
        Ok(())
    }

    /// Returns the name of the run's model, or an empty text if the run has none.
    fn model_name(&self) -> String {
        let model = self.models.first().map(ToString::to_string);
        model.unwrap_or_default()
    }

    fn loop_start_event(&self, prompt: &Prompt) -> Entry {
        // Without the lines about channel and date, which fill the event and say little.
        let prompt = prompt.text();
        let prompt = prompt
            .rsplit_once("---\n")
            .map_or(&*prompt, |(_, text)| text);
        let prompt = truncate(prompt, MAX_EVENT_PROMPT_CHARS);
        let mut data = json!({"model": self.model_name(), "prompt": prompt});
        for key in ["allowed_skills", "allowed_tools"] {
            let allowed = self.turn.state().get(key).filter(|value| !value.is_null());
            if let (Some(data), Some(allowed)) = (data.as_object_mut(), allowed) {
                data.insert(key.to_owned(), allowed);
            }
        }
        self.tape()
            .with_run_id(Entry::event("loop.start", Some(data)))
    }
}

/// Returns the error for a message that bub does not retry, because bub crashed at each attempt.
fn attempts_exhausted_error() -> Error {
    let text = "the message was not answered: bub stopped unexpectedly at each attempt; it will not be retried; \
                completed work is on the session's tape";
    Error::new(ErrorKind::Unknown, text)
}
