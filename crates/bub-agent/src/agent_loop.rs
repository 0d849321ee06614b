//! The loop of a turn: ask the model, run the tools it asks for, go on until it has nothing more to ask.
//!
//! ```text
//! step: messages that wait → view (budget) → before_llm_call → model → on the tape → tools → on the tape
//! ```
//!
//! What happened is on the tape before the next thing happens, so a turn can end at any point: by an error, by
//! being cancelled, by the death of the process.

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

pub(crate) use self::budget::{Calibration, estimate};
use self::{repeat_guard::RepeatGuard, step::StepError};
use crate::{
    agent::{Agent, AgentTask},
    emitter::Emitter,
    settings::MAX_STEPS,
    tool_runner::run_command,
    tool_set::ToolSet,
};

/// How much of a prompt the events of the loop repeat: the whole stands in its message.
const MAX_EVENT_PROMPT_CHARS: usize = 1000;

/// One run of the agent loop.
pub(crate) struct AgentLoop {
    pub(crate) agent: Arc<Agent>,
    /// The turn, or the run nested in it.
    pub(crate) turn: Turn,
    pub(crate) tools: Arc<ToolSet>,
    /// The model of the run, and what to try when it fails.
    pub(crate) models: Vec<ModelId>,
    pub(crate) events: Emitter,
    /// Fires when the run ends, however it ends.
    pub(crate) cancel: CancellationToken,
    /// What tools ask for between two steps.
    pub(crate) requests: Arc<StepRequests>,
}

/// How a step ended.
enum StepOutcome {
    /// The model has nothing more to ask.
    Done,
    /// There are results to show it; these events tell of them, once they are on the tape.
    Continue(Vec<StreamEvent>),
}

/// What a turn remembers from step to step.
#[derive(Default)]
struct LoopState {
    breaker: RepeatGuard,
    /// Whether an earlier step said something.
    has_spoken: bool,
    /// Whether the model was asked to hand off, since the last handoff.
    was_asked_to_hand_off: bool,
    /// Handing off did not help.
    cannot_shrink: bool,
}

impl AgentLoop {
    /// Runs the turn to its end.
    pub(crate) async fn run(self, prompt: Prompt) -> Result<()> {
        let (steps, said) = match self.turn.tape().resume_point() {
            Some(ResumePoint::Answered(text)) => return self.resend_answer(text.clone()).await,
            Some(ResumePoint::AttemptsExhausted) => {
                return Err(self.fail(attempts_exhausted()).await);
            }
            Some(ResumePoint::AfterSteps { steps, text }) => (*steps, text.as_str()),
            Some(ResumePoint::Command(_)) | None => (0, ""),
        };
        self.turn.tape().append_later(self.loop_start(&prompt));
        let most = self.agent.settings().get(&MAX_STEPS);
        let (mut prompt, mut number, mut memory) = (prompt, steps + 1, LoopState::default());
        if !said.is_empty() {
            self.events.send(StreamEvent::Text(said.to_owned())).await;
            memory.has_spoken = true;
        }
        if steps == 0 {
            self.turn
                .tape()
                .begin_step(number, &shortened(&prompt.text()));
        } else {
            self.advance(&mut prompt, number).await?;
        }
        let mut overflows = 0;
        loop {
            if let Some(most) = most.filter(|most| number > *most) {
                let error = Error::new(ErrorKind::Unknown, format!("max_steps_reached={most}"));
                return Err(self.fail(error).await);
            }
            let span = tracing::error_span!("step", number);
            let outcome = self.step(&prompt, &mut memory).instrument(span).await;
            number += 1;
            match outcome {
                Ok(StepOutcome::Done) if !self.turn.has_steering() => {
                    self.turn.tape().complete();
                    return Ok(());
                }
                Ok(StepOutcome::Done) => self.advance(&mut prompt, number).await?,
                Ok(StepOutcome::Continue(events)) => {
                    self.advance(&mut prompt, number).await?;
                    for event in events {
                        self.events.send(event).await;
                    }
                }
                Err(StepError {
                    error,
                    is_overflow: true,
                }) if overflows == 0 => {
                    overflows += 1;
                    self.hand_off_overflow(&error).await?;
                    self.turn
                        .tape()
                        .begin_step(number, &shortened(&prompt.text()));
                }
                Err(failure) => return Err(self.fail(failure.error).await),
            }
        }
    }

    /// Begins the next step: records what is left of the last one, what people said meanwhile, and the prompt to go on.
    async fn advance(&self, prompt: &mut Prompt, number: u64) -> Result<()> {
        // A plugin may take its time to make the prompt; what the tools did must not wait for it.
        if ContinuePrompt::implementations(self.turn.framework().hooks()).len() > 1 {
            self.turn.tape().append(Vec::new()).await?;
        }
        let (waiting, commands) = self.turn.take_steering().await?;
        for command in commands {
            self.run_steered_command(&command).await;
        }
        let text = self
            .turn
            .framework()
            .continue_prompt(prompt, &self.turn)
            .await?;
        let mut messages: Vec<Entry> = waiting
            .iter()
            .map(|said| self.turn.tape().steered_message(said))
            .collect();
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            *prompt = Prompt::Text(text);
            messages.push(self.turn.tape().user_message(prompt));
        }
        self.turn
            .tape()
            .begin_step(number, &shortened(&prompt.text()));
        self.turn.tape().append(messages).await?;
        Ok(())
    }

    /// Runs a command that somebody sent meanwhile, with that person's rights. What it says goes to the chat, not to the
    /// model.
    async fn run_steered_command(&self, command: &Inbound) {
        let task = AgentTask {
            turn: self.turn.on_behalf_of(command.sender()),
            tools: Arc::clone(&self.tools),
        };
        let line = command.message.content();
        let output = run_command(&self.agent, &task, &line, None).await;
        let output = output.unwrap_or_else(|error| error.message().to_owned());
        self.events
            .send(StreamEvent::Text(format!("\n\n{line}\n{output}")))
            .await;
    }

    /// Records the end of the turn by an error.
    async fn fail(&self, error: Error) -> Error {
        let mut chat = self.turn.tape().chat_step();
        // What was said beside calls is on the tape with them.
        chat.text = self
            .turn
            .tape()
            .partial_text()
            .filter(|_| !self.turn.tape().close_calls());
        chat.error = Some(error_entry(&error));
        let last = self.turn.tape().end_step("error", Some(&error));
        match self
            .turn
            .tape()
            .record_step(chat, last.into_iter().collect())
            .await
        {
            Ok(_) => self.turn.tape().complete_with_error(),
            Err(failure) => tracing::error!(error = %failure, "turn.record_failed"),
        }
        error
    }

    /// The answer is on the tape; whoever waits for it has not got it.
    async fn resend_answer(&self, text: String) -> Result<()> {
        self.events.send(StreamEvent::Text(text.clone())).await;
        self.events
            .send(StreamEvent::Final(json!({"ok": true, "text": text})))
            .await;
        self.turn.tape().complete();
        Ok(())
    }

    fn loop_start(&self, prompt: &Prompt) -> Entry {
        let model = self.models.first().map(ToString::to_string);
        let data = json!({
            "model": model,
            "prompt": shortened(&prompt.text()),
            "allowed_skills": self.turn.state().get("allowed_skills").unwrap_or(Value::Null),
            "allowed_tools": self.turn.state().get("allowed_tools").unwrap_or(Value::Null),
        });
        self.turn
            .tape()
            .with_run_id(Entry::event("loop.start", Some(data)))
    }
}

/// The message has ended the process too often.
fn attempts_exhausted() -> Error {
    let text = "This message could not be handled: bub stopped unexpectedly each time it was tried. It will not be tried \
                again; what was done is on the session's tape.";
    Error::new(ErrorKind::Unknown, text)
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_EVENT_PROMPT_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
