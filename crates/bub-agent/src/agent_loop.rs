//! The agent loop: call the model, run the tools it requests, and repeat until it requests none.
//!
//! ```text
//! step: steering messages → view (context budget) → before_llm_call → model → record → tools → record
//! ```
//!
//! Each result is on the tape before the next action. So a turn can stop at any point and resume from its tape: after
//! an error, a cancellation or a crash.

mod budget;
mod calls;
mod digest;
mod handoff;
mod repeat_guard;
mod step;

use std::sync::Arc;

use bub_kernel::{
    CancellationToken, Error, ErrorKind, Inbound, Prompt, Result, ResumePoint, StepRequests,
    StreamEvent, Turn, error_entry,
    hooks::{HookPoint, point::ContinuePrompt},
};
use bub_model::ModelId;
use bub_tape::Entry;
use serde_json::{Value, json};
use tracing::Instrument as _;

pub(crate) use self::budget::{Calibration, estimate_tokens};
use self::{repeat_guard::RepeatGuard, step::StepError};
use crate::{
    agent::{Agent, AgentTask},
    emitter::Emitter,
    settings::MAX_STEPS,
    tool_runner::run_command,
    tool_set::ToolSet,
};

/// Maximum characters of a prompt in the tape events `loop.start` and `loop.step.start`. The message entry has the
/// complete prompt.
const MAX_EVENT_PROMPT_CHARS: usize = 1000;

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
    /// The model requested no tools: the turn is done.
    Done,
    /// The model needs another step to see the tool results. The loop sends these events once the results are on the
    /// tape.
    Continue(Vec<StreamEvent>),
}

/// State that a run keeps between steps.
#[derive(Default)]
struct LoopState {
    repeat_guard: RepeatGuard,
    /// Whether an earlier step sent text.
    has_text: bool,
    /// Whether the model was asked to hand off since the last handoff.
    was_asked_to_hand_off: bool,
    /// Whether the last handoff did not make the request smaller.
    cannot_shrink: bool,
}

impl AgentLoop {
    /// Runs steps until the turn is done or fails.
    pub(crate) async fn run(self, prompt: Prompt) -> Result<()> {
        let (steps, sent_text, needs_prompt) = match self.turn.tape().resume_point() {
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
        self.turn
            .tape()
            .append_later(self.loop_start_event(&prompt));
        let max_steps = self.agent.settings().get(&MAX_STEPS);
        let (mut prompt, mut number, mut loop_state) = (prompt, steps + 1, LoopState::default());
        if !sent_text.is_empty() {
            self.events
                .send(StreamEvent::Text(sent_text.to_owned()))
                .await;
            loop_state.has_text = true;
        }
        if needs_prompt {
            self.begin_next_step(&mut prompt, number).await?;
        } else {
            self.turn
                .tape()
                .begin_step(number, &truncate_prompt(&prompt.text()));
        }
        let mut overflows = 0;
        loop {
            if let Some(max_steps) = max_steps.filter(|max_steps| number > *max_steps) {
                let text = format!("max_steps_reached={max_steps}");
                let error = Error::new(ErrorKind::Unknown, text);
                return Err(self.record_failure(error).await);
            }
            let span = tracing::error_span!("step", number);
            let outcome = self
                .run_step(&prompt, &mut loop_state)
                .instrument(span)
                .await;
            number += 1;
            match outcome {
                Ok(StepOutcome::Done) if !self.turn.has_steering_messages() => {
                    self.turn.tape().mark_complete();
                    return Ok(());
                }
                Ok(StepOutcome::Done) => self.begin_next_step(&mut prompt, number).await?,
                Ok(StepOutcome::Continue(events)) => {
                    self.begin_next_step(&mut prompt, number).await?;
                    for event in events {
                        self.events.send(event).await;
                    }
                }
                Err(StepError {
                    error,
                    is_overflow: true,
                }) if overflows == 0 => {
                    overflows += 1;
                    self.hand_off_after_overflow(&error).await?;
                    self.turn
                        .tape()
                        .begin_step(number, &truncate_prompt(&prompt.text()));
                }
                Err(failure) => return Err(self.record_failure(failure.error).await),
            }
        }
    }

    /// Begins the next step: records the pending entries of the last step, the steering messages, and the prompt of the
    /// next step.
    async fn begin_next_step(&self, prompt: &mut Prompt, number: u64) -> Result<()> {
        // Record the tool results before a plugin builds the next prompt, which may take long.
        if ContinuePrompt::implementations(self.turn.framework().hooks()).len() > 1 {
            self.turn.tape().append(Vec::new()).await?;
        }
        let (steering, commands) = self.turn.take_steering_messages().await?;
        for command in commands {
            self.run_steered_command(&command).await;
        }
        let text = self
            .turn
            .framework()
            .continue_prompt(prompt, &self.turn)
            .await?;
        let mut messages: Vec<Entry> = steering
            .iter()
            .map(|message| self.turn.tape().steering_entry(message))
            .collect();
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            *prompt = Prompt::Text(text);
            messages.push(self.turn.tape().user_message_entry(prompt));
        }
        self.turn
            .tape()
            .begin_step(number, &truncate_prompt(&prompt.text()));
        self.turn.tape().append(messages).await?;
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
        self.events
            .send(StreamEvent::Text(format!("\n\n{line}\n{output}")))
            .await;
    }

    /// Records the error that ends the turn, and returns it.
    async fn record_failure(&self, error: Error) -> Error {
        let mut chat = self.turn.tape().new_step_record();
        // Text that came with tool calls is already on the tape.
        chat.text = self
            .turn
            .tape()
            .partial_text()
            .filter(|_| !self.turn.tape().interrupt_calls());
        chat.error = Some(error_entry(&error));
        let last = self.turn.tape().end_step("error", Some(&error));
        match self
            .turn
            .tape()
            .record_step(chat, last.into_iter().collect())
            .await
        {
            Ok(_) => self.turn.tape().mark_complete_with_error(),
            Err(failure) => tracing::error!(error = %failure, "turn.record_failed"),
        }
        error
    }

    /// Sends an answer that was recorded but not delivered before a crash.
    async fn resend_answer(&self, text: String) -> Result<()> {
        self.events.send(StreamEvent::Text(text.clone())).await;
        self.events
            .send(StreamEvent::Final(json!({"ok": true, "text": text})))
            .await;
        self.turn.tape().mark_complete();
        Ok(())
    }

    fn loop_start_event(&self, prompt: &Prompt) -> Entry {
        let model = self.models.first().map(ToString::to_string);
        let data = json!({
            "model": model,
            "prompt": truncate_prompt(&prompt.text()),
            "allowed_skills": self.turn.state().get("allowed_skills").unwrap_or(Value::Null),
            "allowed_tools": self.turn.state().get("allowed_tools").unwrap_or(Value::Null),
        });
        self.turn
            .tape()
            .with_run_id(Entry::event("loop.start", Some(data)))
    }
}

/// Returns the error for a message whose turns all ended with a crash of the process.
fn attempts_exhausted_error() -> Error {
    let text = "the message was not answered: bub stopped unexpectedly at each attempt; it will not be retried; \
                completed work is on the session's tape";
    Error::new(ErrorKind::Unknown, text)
}

fn truncate_prompt(text: &str) -> String {
    match text.char_indices().nth(MAX_EVENT_PROMPT_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
