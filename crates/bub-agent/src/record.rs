//! Every turn leaves entries on its tape, one turn of a session at a time.
//!
//! What the model stage recorded itself is left alone; when a plugin ran the model, nothing is on the
//! tape yet, and the turn is recorded here: the prompt, the output, and a `run` event.

use std::{
    borrow::Cow,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bub_kernel::{Envelope, Error, Framework, Prompt, Result};
use bub_settings::Redactor;
use bub_tape::{ChatStep, Entry, Lease, SessionInfo, Tape, TapeError, TapeName, Wait, run_id};
use serde_json::{Map, Value};

/// How long to wait for another turn of the session: less than a hook may take, so that the error says who holds it.
const PATIENCE: Duration = Duration::from_mins(4);

/// The tape of a turn, with the session's lease while the turn runs: a slot of the state.
#[derive(Debug)]
pub(crate) struct TurnTape {
    tape: Tape,
    session: SessionInfo,
    redactor: Redactor,
    lease: Mutex<Option<Lease>>,
}

/// What is known of a turn when it ends.
pub(crate) struct Ending<'a> {
    pub(crate) prompt: &'a Prompt,
    pub(crate) model_output: &'a str,
    pub(crate) error: Option<&'a Error>,
}

impl TurnTape {
    /// Opens the session's tape and takes its lease; `None` when there is no store.
    ///
    /// Another process may be in the middle of a turn of this session: then this waits, and says so.
    pub(crate) async fn open(
        framework: &Framework,
        redactor: &Redactor,
        message: &Envelope,
        session_id: &str,
    ) -> Result<Option<Self>> {
        let Some(store) = framework.tape_store() else { return Ok(None) };
        let workspace = framework.workspace().to_string_lossy().into_owned();
        let tape = Tape::new(store, TapeName::for_session(&workspace, session_id))
            .with_sidecars(framework.tape_sidecars()?)
            .with_context(framework.tape_context()?.unwrap_or_default());
        let lease = match tape.lease(Wait::No).await {
            Err(TapeError::Busy { .. }) => {
                tracing::warn!("waiting for session {session_id}: another turn of it is running");
                tape.lease(Wait::For(PATIENCE)).await
            }
            other => other,
        };
        let session = SessionInfo {
            session_id: session_id.to_owned(),
            workspace: Some(workspace),
            channel: message.channel().map(Cow::into_owned),
        };
        let lease = lease.map_err(tape_error)?;
        Ok(Some(Self { tape, session, redactor: redactor.clone(), lease: Mutex::new(Some(lease)) }))
    }

    /// Records how the turn ended and lets the next turn of the session begin.
    pub(crate) async fn finish(&self, ending: Ending<'_>) -> Result<()> {
        let recorded = self.record(ending).await;
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(lease);
        recorded
    }

    async fn record(&self, ending: Ending<'_>) -> Result<()> {
        self.tape.ensure_bootstrap(&self.session).await.map_err(tape_error)?;
        let mut step = ChatStep::new(run_id());
        step.messages = vec![self.user_message(ending.prompt)];
        step.text = Some(self.redactor.redact(ending.model_output).into_owned());
        step.error = ending.error.map(|error| self.error_entry(error));
        self.tape.record_chat(step).await.map_err(tape_error)?;
        Ok(())
    }

    fn user_message(&self, prompt: &Prompt) -> Map<String, Value> {
        let mut content = serde_json::to_value(prompt).unwrap_or_else(|_| prompt.text().into());
        self.redact(&mut content);
        Map::from_iter([("role".to_owned(), "user".into()), ("content".to_owned(), content)])
    }

    fn error_entry(&self, error: &Error) -> Entry {
        let mut details = Value::Object(error.details().clone());
        self.redact(&mut details);
        let details = (!error.details().is_empty()).then_some(details);
        Entry::error(error.kind().name(), &self.redactor.redact(error.message()), details)
    }

    /// No secret goes onto a tape, however it got into the text.
    fn redact(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(clean) = self.redactor.redact(text) {
                    *text = clean;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact(item)),
            Value::Object(map) => map.values_mut().for_each(|item| self.redact(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// A store's error as the runtime's: what the caller can do stays the same.
pub(crate) fn tape_error(error: TapeError) -> Error {
    Error::from_boxed(error.into())
}
