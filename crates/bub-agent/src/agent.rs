//! The builtin agent: asks the model that is there, or says honestly that there is none.
//!
//! One call a turn, without tools. The question is on the tape before the call, the answer after it.

use std::{collections::VecDeque, sync::Arc};

use bub_kernel::{Error, ErrorKind, Framework, ModelStream, Prompt, Result, State, StreamEvent};
use bub_model::{
    Accumulator, CallOptions, Candidates, ChatRequest, Completion, FinishReason, ModelClient, ModelError,
    ModelEvent, ModelId, Models,
};
use bub_settings::{Settings, core};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::{offline, prompt::COMMAND_PREFIX, record::TurnTape};

/// What answers prompts when no plugin does: the typed slot that `load_state` seeds.
pub struct Agent {
    /// Or what is wrong with the providers of the settings, for whoever asks.
    models: Result<Arc<Models>>,
    client: ModelClient,
    settings: Arc<Settings>,
}

impl Agent {
    /// The agent of these settings. Nothing is looked up or connected before the first prompt.
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        let client = ModelClient::from_settings(&settings);
        let models = Models::new(Arc::clone(&settings), Arc::new(client.clone()));
        let models = models.map(Arc::new).map_err(|error| Error::from(error).with_kind(ErrorKind::Config));
        Self { models, client, settings }
    }

    /// Answers a prompt.
    pub(crate) async fn run_stream(
        &self,
        framework: &Framework,
        prompt: &Prompt,
        state: &State,
    ) -> Result<ModelStream> {
        if prompt.as_text().is_some_and(|text| text.starts_with(COMMAND_PREFIX)) {
            return Ok(ModelStream::text(offline::COMMANDS));
        }
        let models = self.models.clone()?;
        let candidates = candidates(&models, state).await?;
        let Some(first) = candidates.first() else { return Ok(offline::guide(state)) };
        let tape = state.slot::<TurnTape>();
        let system = framework.system_prompt(prompt, state)?;
        let mut messages = vec![json!({"role": "system", "content": system})];
        let mut seen = Vec::new();
        match &tape {
            Some(tape) => {
                let view = tape.view(prompt, &first.to_string()).await?;
                messages.extend(view.messages.into_iter().map(Value::Object));
                seen = view.entries;
            }
            None => messages.push(json!({"role": "user", "content": prompt})),
        }
        let candidates = Candidates::new(models, candidates);
        let events = self.client.stream_first(candidates, self.request(messages, state), self.options());
        let answer = Answer {
            events,
            accumulator: Accumulator::new(),
            tape,
            system,
            seen,
            ready: VecDeque::new(),
            is_over: false,
        };
        Ok(ModelStream::new(stream::try_unfold(answer, Answer::next)))
    }

    fn request(&self, messages: Vec<Value>, state: &State) -> ChatRequest {
        ChatRequest {
            messages: Arc::new(messages),
            max_tokens: Some(self.settings.get(&core::MAX_TOKENS)),
            reasoning_effort: state.get_str("reasoning_effort"),
            stream: true,
            extra: self.settings.get(&core::COMPLETION_ARGS),
            ..ChatRequest::default()
        }
    }

    fn options(&self) -> CallOptions {
        CallOptions::from_settings(&self.settings)
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Agent")
    }
}

/// The models to try: that of the turn, or else the chosen one and its fallbacks.
async fn candidates(models: &Models, state: &State) -> Result<Vec<ModelId>> {
    if let Some(model) = state.get_str("model").filter(|model| !model.is_empty()) {
        return Ok(vec![models.resolve(&model).map_err(access_error)?]);
    }
    Ok(models.choose().await.map_err(access_error)?.candidates())
}

/// An answer while it arrives.
struct Answer {
    events: bub_model::ModelStream,
    accumulator: Accumulator,
    tape: Option<Arc<TurnTape>>,
    system: String,
    seen: Vec<bub_tape::EntryId>,
    /// What is to be passed on after the last event.
    ready: VecDeque<StreamEvent>,
    is_over: bool,
}

impl Answer {
    async fn next(mut self) -> Result<Option<(StreamEvent, Self)>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some((event, self)));
            }
            if self.is_over {
                return Ok(None);
            }
            match self.events.next().await {
                Some(Ok(event)) => {
                    self.ready.extend(passed_on(&event));
                    self.accumulator.push(event);
                }
                // What there is of the answer is recorded when the turn ends.
                Some(Err(error)) => return Err(model_error(&error)),
                None => self.end().await?,
            }
        }
    }

    /// Records the whole answer and announces it.
    async fn end(&mut self) -> Result<()> {
        self.is_over = true;
        let answer = std::mem::take(&mut self.accumulator).finish().map_err(|error| model_error(&error))?;
        if let Some(tape) = &self.tape {
            let mut step = tape.step();
            step.system = Some(std::mem::take(&mut self.system));
            step.text = Some(answer.text.clone());
            step.usage = answer.usage.as_ref().map(bub_model::Usage::to_json);
            step.model = self.events.model().map(|model| model.to_string());
            step.view = std::mem::take(&mut self.seen);
            tape.answer(step).await?;
        }
        self.ready.extend(answer.usage.as_ref().map(|usage| StreamEvent::Usage(usage.to_json())));
        self.ready.extend(incomplete(&answer).map(StreamEvent::Error));
        self.ready.push_back(StreamEvent::Final(json!({"ok": true, "text": answer.text})));
        Ok(())
    }
}

fn passed_on(event: &ModelEvent) -> Option<StreamEvent> {
    match event {
        ModelEvent::Text(delta) => Some(StreamEvent::Text(delta.clone())),
        ModelEvent::Reasoning(delta) => Some(StreamEvent::Reasoning(delta.clone())),
        // For whoever watches: "waiting 8 s, rate limited".
        ModelEvent::Retry(retry) => Some(StreamEvent::Other {
            kind: "retry".to_owned(),
            data: json!({
                "attempt": retry.attempt,
                "wait_seconds": retry.wait.as_secs_f64(),
                "reason": retry.error.to_string(),
            }),
        }),
        _ => None,
    }
}

/// An answer that ended before its time is never taken for a whole one.
fn incomplete(answer: &Completion) -> Option<Error> {
    let why = match &answer.finish {
        FinishReason::Length => "it reached the limit of `max_tokens`".to_owned(),
        FinishReason::ContentFilter => "the provider's content filter stopped it".to_owned(),
        FinishReason::Refusal => "the model refused to go on".to_owned(),
        finish if finish.is_complete() => return None,
        finish => format!("the provider stopped it ({})", finish.as_str()),
    };
    Some(Error::new(ErrorKind::Provider, format!("the answer is not complete: {why}")))
}

fn access_error(error: bub_model::AccessError) -> Error {
    Error::from(error).with_kind(ErrorKind::Config)
}

fn model_error(error: &ModelError) -> Error {
    let kind = match error.kind {
        bub_model::ErrorKind::Cancelled => ErrorKind::Cancelled,
        bub_model::ErrorKind::Setup => ErrorKind::Config,
        bub_model::ErrorKind::Transport | bub_model::ErrorKind::Timeout => ErrorKind::Temporary,
        _ => ErrorKind::Provider,
    };
    let mut own = Error::new(kind, error.to_string());
    if let Some(delay) = error.retry_after {
        own = own.with_retry_after(delay);
    }
    own
}
