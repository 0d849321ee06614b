//! Every turn leaves entries on its tape, one turn of a session at a time.
//!
//! The question is recorded before the model stage, whoever runs it, and the answer after: by the builtin
//! agent as soon as it has it, otherwise when the turn ends.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use bub_kernel::{BoxFuture, Envelope, Error, ErrorKind, Framework, Prompt, Result, TurnRecorder};
use bub_settings::Redactor;
use bub_tape::{
    ChatStep, Entry, EntryId, Lease, SessionInfo, Tape, TapeError, TapeName, View, ViewOptions, Wait,
    recover, run_id,
};
use serde_json::Value;

/// How long a turn waits for another one of its session: less than a hook may take, so that the
/// error says who holds it.
const PATIENCE: Duration = Duration::from_mins(4);

/// The tape of a turn, with the session's lease while the turn runs: a slot of the state.
#[derive(Debug)]
pub(crate) struct TurnTape {
    tape: Tape,
    session: SessionInfo,
    redactor: Redactor,
    run_id: String,
    lease: Mutex<Option<Lease>>,
    phase: Mutex<Phase>,
    asked: Mutex<Option<EntryId>>,
}

/// What is on the tape of the turn so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Nothing,
    Question,
    Answer,
}

/// What is known of a turn when it ends.
pub(crate) struct Ending<'a> {
    pub(crate) prompt: &'a Prompt,
    /// The answer, or what there is of it.
    pub(crate) output: &'a str,
    pub(crate) error: Option<&'a Error>,
}

/// The tape of a session.
pub(crate) fn session_tape(framework: &Framework, session_id: &str) -> Result<Option<Tape>> {
    let Some(store) = framework.tape_store() else { return Ok(None) };
    let name = TapeName::for_session(framework.workspace_text(), session_id);
    let context = framework.tape_context()?.unwrap_or_default();
    Ok(Some(Tape::new(store, name).with_sidecars(framework.tape_sidecars()?).with_context(context)))
}

/// Waits, as long as it takes, until no turn of the session runs, and says so. For callers with one turn to run.
pub async fn wait_for_session(framework: &Framework, session_id: &str) -> Result<()> {
    let Some(tape) = session_tape(framework, session_id)? else { return Ok(()) };
    match tape.lease(Wait::No).await {
        Err(TapeError::Busy { holder, .. }) => {
            tracing::warn!("waiting for session {session_id}: a turn of it runs in {holder}");
            drop(tape.lease(Wait::Forever).await.map_err(tape_error)?);
            Ok(())
        }
        other => other.map(drop).map_err(tape_error),
    }
}

impl TurnTape {
    /// Opens the session's tape and takes its lease; `None` when there is no store.
    pub(crate) async fn open(
        framework: &Framework,
        redactor: &Redactor,
        message: &Envelope,
        session_id: &str,
    ) -> Result<Option<Self>> {
        let Some(tape) = session_tape(framework, session_id)? else { return Ok(None) };
        let lease = tape.lease(Wait::For(PATIENCE)).await.map_err(tape_error)?;
        for recovered in recover(&**tape.store(), tape.name()).await.map_err(tape_error)? {
            tracing::warn!("tape.recovered session={session_id} {recovered:?}");
        }
        let clean = |text: &str| redactor.redact(text).into_owned();
        let session = SessionInfo {
            session_id: clean(session_id),
            workspace: Some(clean(framework.workspace_text())),
            channel: message.channel().map(|channel| clean(&channel)),
        };
        Ok(Some(Self {
            tape,
            session,
            redactor: redactor.clone(),
            run_id: run_id(),
            lease: Mutex::new(Some(lease)),
            phase: Mutex::new(Phase::Nothing),
            asked: Mutex::new(None),
        }))
    }

    /// What the model is to see: the question, which is on the tape by now, and what came before it.
    pub(crate) async fn view(&self, prompt: &Prompt, model: &str) -> Result<View> {
        self.ask(prompt).await?;
        let asked = lock(&self.asked).unwrap_or_default();
        let options = ViewOptions::new().for_model(model).in_turn(asked).opened_by_user();
        self.tape.view(&options).await.map_err(tape_error)
    }

    /// Records the question, unless that has been done.
    async fn ask(&self, prompt: &Prompt) -> Result<()> {
        if *lock(&self.phase) != Phase::Nothing {
            return Ok(());
        }
        self.tape.ensure_bootstrap(&self.session).await.map_err(tape_error)?;
        let mut content = serde_json::to_value(prompt).unwrap_or_else(|_| prompt.text().into());
        self.redact(&mut content);
        let entry = Entry::message("user", content).with_meta("run_id", self.run_id.as_str());
        let id = self.tape.append(entry).await.map_err(tape_error)?;
        *lock(&self.asked) = Some(id);
        *lock(&self.phase) = Phase::Question;
        Ok(())
    }

    /// A step of this turn, to be filled in and recorded with [`Self::answer`].
    pub(crate) fn step(&self) -> ChatStep {
        ChatStep::new(self.run_id.as_str())
    }

    /// Records what came back.
    pub(crate) async fn answer(&self, mut step: ChatStep) -> Result<()> {
        step.text = step.text.map(|text| self.redactor.redact(&text).into_owned());
        step.system = step.system.map(|text| self.redactor.redact(&text).into_owned());
        self.tape.record_chat(step).await.map_err(tape_error)?;
        *lock(&self.phase) = Phase::Answer;
        Ok(())
    }

    /// Records what of the turn is not on the tape yet, and lets the next turn of the session begin.
    pub(crate) async fn finish(&self, ending: Ending<'_>) -> Result<()> {
        let recorded = self.complete(ending).await;
        let lease = lock(&self.lease).take();
        drop(lease);
        recorded
    }

    async fn complete(&self, ending: Ending<'_>) -> Result<()> {
        if *lock(&self.phase) == Phase::Answer {
            return Ok(());
        }
        self.ask(ending.prompt).await?;
        let mut step = self.step();
        step.text = Some(ending.output.to_owned());
        step.error = ending.error.map(|error| self.error_entry(error));
        self.answer(step).await
    }

    pub(crate) fn error_entry(&self, error: &Error) -> Entry {
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

impl TurnRecorder for TurnTape {
    fn question<'a>(&'a self, prompt: &'a Prompt) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.ask(prompt))
    }
}

/// The turns that run, by session: how the end of a failed turn finds its tape.
#[derive(Debug, Default)]
pub(crate) struct OpenTurns(Mutex<HashMap<String, Weak<TurnTape>>>);

impl OpenTurns {
    /// So many turns are seldom open at once; then those whose future was dropped are forgotten.
    const MANY: usize = 1024;

    pub(crate) fn add(&self, session_id: &str, tape: &Arc<TurnTape>) {
        let mut open = lock(&self.0);
        if open.len() >= Self::MANY {
            open.retain(|_, turn| turn.strong_count() > 0);
        }
        open.insert(session_id.to_owned(), Arc::downgrade(tape));
    }

    pub(crate) fn take(&self, session_id: &str) -> Option<Arc<TurnTape>> {
        lock(&self.0).remove(session_id)?.upgrade()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A store's error as the runtime's: what the caller can do stays the same.
pub(crate) fn tape_error(error: TapeError) -> Error {
    let kind = match error.kind() {
        bub_tape::ErrorKind::NotFound => ErrorKind::NotFound,
        bub_tape::ErrorKind::InvalidInput => ErrorKind::InvalidInput,
        bub_tape::ErrorKind::Busy | bub_tape::ErrorKind::Retry => ErrorKind::Temporary,
        _ => ErrorKind::Config,
    };
    Error::from(error).with_kind(kind)
}
