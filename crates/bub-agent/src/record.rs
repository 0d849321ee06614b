//! Every turn leaves entries on its tape, one turn of a session at a time.
//!
//! The question is recorded before the model stage, whoever runs it. What follows is recorded by the builtin
//! agent as it happens; when another plugin ran the model, or the turn failed or was cancelled, when the turn ends.

mod resume;

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use bub_kernel::{
    BoxFuture, Delivery, Envelope, Error, ErrorKind, Framework, Prompt, Result, State,
    TurnRecorder, hooks::HookNote,
};
use bub_settings::Redactor;
use bub_tape::{
    ChatStep, Entry, EntryId, INTERRUPTED, Kind, Lease, MemoryStore, REPLACES, SessionInfo,
    Summary, Tape, TapeError, TapeName, View, ViewOptions, Wait, now_iso, recover, run_id,
};
use serde_json::{Value, json};

pub(crate) use self::resume::Resumed;
use crate::{
    prompt,
    steering::{self, Steered},
};

/// The name in an entry's `meta` of the message that was delivered, for the next delivery of it.
const INBOUND_ID: &str = "inbound_id";

/// How long a turn waits for another one of its session: less than a hook may take, so that the
/// error says who holds it.
const PATIENCE: Duration = Duration::from_mins(4);

/// The result of a call that was not made, because the turn had ended.
const NOT_RUN: &str = "[not run]";

/// Sessions of this name leave nothing behind.
pub(crate) const TEMPORARY: &str = "temp/";

/// The tape of a turn, with the session's lease while the turn runs: a slot of the state.
#[derive(Debug)]
pub(crate) struct TurnTape {
    tape: Tape,
    session: SessionInfo,
    redactor: Redactor,
    run_id: String,
    delivery: Option<Delivery>,
    /// Whether a prompt may be a command: only those of people are.
    takes_commands: bool,
    resumed: Option<Resumed>,
    lease: Mutex<Option<Lease>>,
    progress: Mutex<Progress>,
}

/// What is on the tape of the turn so far.
#[derive(Debug, Default)]
struct Progress {
    /// The user's message.
    asked: Option<EntryId>,
    /// What the model stage was given, which the message on the tape says.
    given: Option<u64>,
    /// Whether an earlier delivery left a message that took the question's place.
    was_replaced: bool,
    /// Whether nothing is left to record.
    is_complete: bool,
    /// Entries that go with the next batch.
    pending: Vec<Entry>,
    summary: Option<Arc<Summary>>,
    calls: Option<OpenCalls>,
    step: Option<OpenStep>,
}

/// A step of the builtin agent that has begun.
#[derive(Debug)]
struct OpenStep {
    number: u64,
    started: Instant,
    /// What it has said so far.
    said: String,
}

/// The tool calls of a response, until their results are recorded.
#[derive(Debug)]
struct OpenCalls {
    ids: Vec<String>,
    outcomes: Vec<CallState>,
}

/// How far a call has come.
#[derive(Clone, Debug)]
enum CallState {
    Waiting,
    Running,
    Done(Value),
}

impl OpenCalls {
    /// The results as they are when the turn ends before its time.
    fn close(self) -> Entry {
        let results = self.outcomes.into_iter().map(|outcome| match outcome {
            CallState::Waiting => NOT_RUN.into(),
            CallState::Running => INTERRUPTED.into(),
            CallState::Done(result) => result,
        });
        Entry::tool_result(results.collect()).with_meta("call_ids", self.ids)
    }
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
    let Some(store) = framework.tape_store() else {
        return Ok(None);
    };
    tape_in(framework, store, session_id).map(Some)
}

fn tape_in(
    framework: &Framework,
    store: Arc<dyn bub_tape::TapeStore>,
    session_id: &str,
) -> Result<Tape> {
    let name = TapeName::for_session(framework.workspace_text(), session_id);
    let context = framework.tape_context()?.unwrap_or_default();
    Ok(Tape::new(store, name)
        .with_sidecars(framework.tape_sidecars()?)
        .with_context(context))
}

/// Waits, as long as it takes, until no turn of the session runs, and says so. For callers with one turn to run.
pub async fn wait_for_session(framework: &Framework, session_id: &str) -> Result<()> {
    let Some(tape) = session_tape(framework, session_id)? else {
        return Ok(());
    };
    if let Some(holder) = tape
        .store()
        .lease_holder(tape.name())
        .await
        .map_err(tape_error)?
    {
        tracing::warn!("waiting for session {session_id}: a turn of it runs in {holder}");
        drop(tape.lease(Wait::Forever).await.map_err(tape_error)?);
    }
    Ok(())
}

impl TurnTape {
    /// Opens the session's tape and takes its lease. Without a store, and for temporary sessions, the tape lives in
    /// memory and goes with the turn.
    pub(crate) async fn open(
        framework: &Framework,
        redactor: &Redactor,
        message: &Envelope,
        session_id: &str,
    ) -> Result<Self> {
        let stored = if session_id.starts_with(TEMPORARY) {
            None
        } else {
            session_tape(framework, session_id)?
        };
        let channel = message.channel().map(Cow::into_owned);
        let Some(tape) = stored else {
            let turn = Self::in_memory(framework, redactor, session_id, channel.as_deref())?;
            return Ok(Self {
                takes_commands: true,
                ..turn
            });
        };
        let lease = tape.lease(Wait::For(PATIENCE)).await.map_err(tape_error)?;
        for recovered in recover(&**tape.store(), tape.name())
            .await
            .map_err(tape_error)?
        {
            tracing::warn!("tape.recovered session={session_id} {recovered:?}");
        }
        let mut turn = Self::new(tape, framework, redactor, session_id, channel.as_deref());
        turn.lease = Mutex::new(Some(lease));
        turn.takes_commands = true;
        turn.delivery = message
            .slot::<Delivery>()
            .map(|delivery| (*delivery).clone());
        turn.look_back(framework, session_id).await?;
        Ok(turn)
    }

    /// A turn of its own beside the running one. When its session is busy, it does not wait for long.
    pub(crate) async fn aside(
        framework: &Framework,
        redactor: &Redactor,
        session_id: &str,
    ) -> Result<Self> {
        let stored = if session_id.starts_with(TEMPORARY) {
            None
        } else {
            session_tape(framework, session_id)?
        };
        let Some(tape) = stored else {
            return Self::in_memory(framework, redactor, session_id, None);
        };
        let lease = tape
            .lease(Wait::For(Duration::from_secs(5)))
            .await
            .map_err(tape_error)?;
        let mut turn = Self::new(tape, framework, redactor, session_id, None);
        turn.lease = Mutex::new(Some(lease));
        Ok(turn)
    }

    /// A turn whose tape goes with it.
    pub(crate) fn in_memory(
        framework: &Framework,
        redactor: &Redactor,
        session_id: &str,
        channel: Option<&str>,
    ) -> Result<Self> {
        let tape = tape_in(framework, Arc::new(MemoryStore::new()), session_id)?;
        Ok(Self::new(tape, framework, redactor, session_id, channel))
    }

    /// A turn on a tape that somebody else looks after, such as a fork.
    pub(crate) fn new(
        tape: Tape,
        framework: &Framework,
        redactor: &Redactor,
        session_id: &str,
        channel: Option<&str>,
    ) -> Self {
        let clean = |text: &str| redactor.redact(text).into_owned();
        let session = SessionInfo {
            session_id: clean(session_id),
            workspace: Some(clean(framework.workspace_text())),
            channel: channel.map(clean),
        };
        Self {
            tape,
            session,
            redactor: redactor.clone(),
            run_id: run_id(),
            delivery: None,
            takes_commands: false,
            resumed: None,
            lease: Mutex::default(),
            progress: Mutex::default(),
        }
    }

    /// The tape itself.
    pub(crate) fn tape(&self) -> &Tape {
        &self.tape
    }

    /// What all entries of the turn have in common.
    pub(crate) fn run_id(&self) -> &str {
        &self.run_id
    }

    /// What an earlier delivery of the same message left behind.
    pub(crate) fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_ref()
    }

    /// The user's message, once it is on the tape.
    pub(crate) fn asked(&self) -> Option<EntryId> {
        lock(&self.progress).asked
    }

    /// What a model is to see.
    pub(crate) async fn view(&self, model: &str, carry_limit: Option<usize>) -> Result<View> {
        let asked = self.asked().unwrap_or_default();
        let mut options = ViewOptions::new()
            .for_model(model)
            .in_turn(asked)
            .opened_by_user();
        if let Some(limit) = carry_limit {
            options.carry_limit = limit;
        }
        self.tape.view(&options).await.map_err(tape_error)
    }

    /// Records the question, and before it what waited to be said, unless that has been done. Commands are no
    /// messages: the model never sees them, and they are recorded as events.
    pub(crate) async fn ask(&self, prompt: &Prompt, waiting: Vec<Steered>) -> Result<()> {
        if self.asked().is_some() || prompt.is_empty() || self.is_command(prompt) {
            return Ok(());
        }
        let mut batch = self.session.bootstrap_entries(&*self.summary().await?);
        batch.extend(waiting.iter().map(|said| self.steered_message(said)));
        batch.push(self.of_question(self.user_message(prompt)));
        let id = self.append(batch).await?;
        lock(&self.progress).asked = Some(id);
        Ok(())
    }

    /// Another prompt than the recorded one may reach the agent, because a plugin asks the chain below it something else:
    /// that is what is asked, and a message that is shown in place of the question. Asked once more after an answer, it
    /// goes on from there.
    pub(crate) async fn ask_instead(&self, prompt: &Prompt) -> Result<()> {
        let Some(asked) = self.asked() else {
            return self.ask(prompt, Vec::new()).await;
        };
        if !matches!(self.resumed, None | Some(Resumed::AfterSteps { .. })) {
            return Ok(());
        }
        let is_over = {
            let mut progress = lock(&self.progress);
            if progress
                .given
                .is_none_or(|given| given == fingerprint(prompt))
            {
                return Ok(());
            }
            progress.given = Some(fingerprint(prompt));
            std::mem::take(&mut progress.is_complete)
        };
        let question = self.user_message(prompt);
        if is_over {
            self.append(vec![question]).await?;
            return Ok(());
        }
        let id = self
            .append(vec![
                self.of_question(question).with_meta(REPLACES, asked.get()),
            ])
            .await?;
        lock(&self.progress).asked = Some(id);
        Ok(())
    }

    /// The model stage is given this prompt. A turn that goes on with what a plugin asked instead stays with that.
    fn give(&self, prompt: &Prompt) {
        let mut progress = lock(&self.progress);
        progress.given = (!progress.was_replaced).then(|| fingerprint(prompt));
    }

    fn is_command(&self, prompt: &Prompt) -> bool {
        self.takes_commands && prompt::is_command(prompt)
    }

    /// Records the question once more, on a tape that was emptied meanwhile.
    pub(crate) async fn ask_again(&self, question: Entry) -> Result<()> {
        let id = self.append(vec![question]).await?;
        lock(&self.progress).asked = Some(id);
        Ok(())
    }

    /// A message of the user's side, as an entry of this turn.
    pub(crate) fn user_message(&self, prompt: &Prompt) -> Entry {
        let content = serde_json::to_value(prompt).unwrap_or_else(|_| prompt.text().into());
        self.owned(Entry::message("user", content))
    }

    /// An entry of this turn.
    pub(crate) fn owned(&self, entry: Entry) -> Entry {
        entry.with_meta("run_id", self.run_id.as_str())
    }

    /// An entry about the command that this turn is for, which another delivery of it looks for.
    pub(crate) fn of_delivery(&self, entry: Entry) -> Entry {
        let entry = self.owned(entry);
        // A turn that asks something is for that, whatever commands are run in it.
        match self.delivery.as_ref().filter(|_| self.asked().is_none()) {
            Some(delivery) => entry.with_meta(INBOUND_ID, delivery.inbound_id.as_str()),
            None => entry,
        }
    }

    /// The message that this turn is for, which another delivery of it looks for.
    fn of_question(&self, entry: Entry) -> Entry {
        match &self.delivery {
            Some(delivery) => entry.with_meta(INBOUND_ID, delivery.inbound_id.as_str()),
            None => entry,
        }
    }

    /// An entry that goes with the next batch: worth knowing, but nothing waits for it.
    pub(crate) fn note(&self, entry: Entry) {
        lock(&self.progress).pending.push(entry);
    }

    /// What hooks decided about a call.
    pub(crate) fn note_hooks(&self, notes: &[HookNote]) {
        for note in notes {
            self.note(self.owned(Entry::event("hook", Some(note.to_value())).outside_context()));
        }
    }

    /// Appends a batch behind what is pending and returns the id of its last entry.
    pub(crate) async fn append(&self, batch: Vec<Entry>) -> Result<EntryId> {
        let mut all = std::mem::take(&mut lock(&self.progress).pending);
        all.extend(batch);
        if all.is_empty() {
            return Ok(EntryId::default());
        }
        for value in all.iter_mut().flat_map(|entry| entry.payload.values_mut()) {
            self.redact(value);
        }
        // An anchor or a system prompt changes what is known of the tape.
        if all
            .iter()
            .any(|entry| matches!(entry.kind, Kind::Anchor | Kind::System))
        {
            self.look_again();
        }
        let appended = self.tape.append_all(all).await.map_err(tape_error)?;
        Ok(appended.last().unwrap_or_default())
    }

    /// Makes sure that the tape says whose it is, for turns that ask nothing.
    pub(crate) async fn bootstrap(&self) -> Result<()> {
        let batch = self.session.bootstrap_entries(&*self.summary().await?);
        if !batch.is_empty() {
            self.append(batch).await?;
        }
        Ok(())
    }

    /// What is known of the tape. While the turn has the lease, nobody else appends to it, and what the turn itself
    /// appends is learned in [`Self::append`].
    pub(crate) async fn summary(&self) -> Result<Arc<Summary>> {
        if let Some(known) = lock(&self.progress).summary.clone() {
            return Ok(known);
        }
        let summary = Arc::new(self.tape.summary().await.map_err(tape_error)?);
        lock(&self.progress).summary = Some(Arc::clone(&summary));
        Ok(summary)
    }

    /// Forgets what was known of the tape, because somebody else has changed it.
    pub(crate) fn look_again(&self) {
        lock(&self.progress).summary = None;
    }

    /// A record of one model call, to be filled in.
    pub(crate) fn chat(&self) -> ChatStep {
        ChatStep::new(self.run_id.as_str())
    }

    /// Records a model call and what belongs to it as one batch.
    pub(crate) async fn record(&self, chat: ChatStep, more: Vec<Entry>) -> Result<EntryId> {
        let mut batch = chat.into_entries(&*self.summary().await?);
        batch.extend(more);
        self.append(batch).await
    }

    /// A step of the agent begins.
    pub(crate) fn begin_step(&self, number: u64, prompt: &str) {
        let mut progress = lock(&self.progress);
        progress.step = Some(OpenStep {
            number,
            started: Instant::now(),
            said: String::new(),
        });
        let data = json!({"step": number, "prompt": prompt});
        progress
            .pending
            .push(self.owned(Entry::event("loop.step.start", Some(data))));
    }

    /// The step said something.
    pub(crate) fn said(&self, delta: &str) {
        if let Some(step) = &mut lock(&self.progress).step {
            step.said.push_str(delta);
        }
    }

    /// Calls of a response are on the tape.
    pub(crate) fn calls_begin(&self, ids: Vec<String>) {
        let outcomes = vec![CallState::Waiting; ids.len()];
        lock(&self.progress).calls = Some(OpenCalls { ids, outcomes });
    }

    /// One of them is being made, or was.
    pub(crate) fn call_is(&self, index: usize, result: Option<&Value>) {
        let mut progress = lock(&self.progress);
        let calls = progress.calls.as_mut();
        if let Some(outcome) = calls.and_then(|calls| calls.outcomes.get_mut(index)) {
            *outcome = result.map_or(CallState::Running, |result| CallState::Done(result.clone()));
        }
    }

    /// Their results are noted.
    pub(crate) fn calls_end(&self) {
        lock(&self.progress).calls = None;
    }

    /// Closes calls that were left open; `false` when there are none.
    pub(crate) fn close_calls(&self) -> bool {
        let calls = lock(&self.progress).calls.take();
        let any = calls.is_some();
        if let Some(calls) = calls {
            self.note(self.owned(calls.close()));
        }
        any
    }

    /// What the step has said so far.
    pub(crate) fn said_so_far(&self) -> Option<String> {
        lock(&self.progress)
            .step
            .as_ref()
            .map(|step| step.said.clone())
    }

    /// The step is over: the event that says so, to be recorded with the rest of it.
    pub(crate) fn end_step(&self, status: &str, error: Option<&Error>) -> Option<Entry> {
        let step = lock(&self.progress).step.take()?;
        let elapsed = u64::try_from(step.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut data = json!({"step": step.number, "elapsed_ms": elapsed, "status": status});
        if let (Some(error), Some(data)) = (error, data.as_object_mut()) {
            data.insert("error".to_owned(), error.message().into());
        }
        if let Some(data) = data.as_object_mut() {
            data.insert("date".to_owned(), now_iso().into());
        }
        Some(self.owned(Entry::event("loop.step", Some(data))))
    }

    /// Nothing is left to record.
    pub(crate) fn complete(&self) {
        lock(&self.progress).is_complete = true;
    }

    /// Records what of the turn is not on the tape yet, and lets the next turn of the session begin.
    pub(crate) async fn finish(&self, ending: Ending<'_>) -> Result<()> {
        let recorded = self.record_ending(ending).await;
        let lease = lock(&self.lease).take();
        drop(lease);
        recorded
    }

    async fn record_ending(&self, ending: Ending<'_>) -> Result<()> {
        let is_complete = lock(&self.progress).is_complete;
        let is_command = self.asked().is_none() && self.is_command(ending.prompt);
        if is_complete || ending.prompt.is_empty() || is_command {
            return Ok(());
        }
        self.ask(ending.prompt, Vec::new()).await?;
        let has_calls = self.close_calls();
        let mut chat = self.chat();
        // The steps before the last one are on the tape already.
        let said = self
            .said_so_far()
            .unwrap_or_else(|| ending.output.to_owned());
        chat.text = Some(said).filter(|_| !has_calls);
        chat.error = ending.error.map(error_entry);
        let last = self.end_step(
            if ending.error.is_some() {
                "error"
            } else {
                "ok"
            },
            ending.error,
        );
        self.record(chat, last.into_iter().collect()).await?;
        self.complete();
        Ok(())
    }

    /// No secret goes onto a tape, however it got into the text.
    pub(crate) fn redact(&self, value: &mut Value) {
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

/// A failure as it stands on the tape.
pub(crate) fn error_entry(error: &Error) -> Entry {
    let details = (!error.details().is_empty()).then(|| Value::Object(error.details().clone()));
    Entry::error(error.kind().name(), error.message(), details)
}

/// How the kernel has the question recorded.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) tape: Arc<TurnTape>,
    pub(crate) framework: Framework,
}

impl TurnRecorder for Recorder {
    fn question<'a>(&'a self, prompt: &'a Prompt, state: &'a State) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.tape.give(prompt);
            // A turn that goes on takes what waits at its next step; if there is none, it is for the next turn.
            if self.tape.asked().is_some() {
                return Ok(());
            }
            let waiting = steering::before_the_turn(&self.framework, prompt, state).await?;
            self.tape.ask(prompt, waiting).await
        })
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

/// Tells prompts apart without keeping them: they may hold pictures.
fn fingerprint(prompt: &Prompt) -> u64 {
    let mut hasher = DefaultHasher::new();
    match prompt {
        Prompt::Text(text) => text.hash(&mut hasher),
        Prompt::Parts(parts) => parts.hash(&mut hasher),
    }
    hasher.finish()
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
