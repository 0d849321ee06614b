//! The tape of a turn. It holds the session's lease while the turn runs.
//!
//! * `TurnTape::open` takes the lease. If the message is not in a durable journal, it is recorded at once, as an event
//!   that views omit.
//! * The prompt is recorded before the model stage, for every plugin that can run that stage.
//! * The builtin agent records its steps as they happen (`steps`). For other plugins the answer is recorded when the
//!   model stage ends.
//! * `TurnTape::close` completes the record, also after a failure.
//! * `resume` finds the point at which an earlier attempt at the same message was interrupted.

mod prompt;
mod resume;
mod steps;

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use bub_settings::Redactor;
use bub_tape::{
    Entry, EntryId, EntryKind, Lease, LeaseWait, MemoryStore, SessionInfo, StepRecord, Tape,
    TapeError, TapeName, TapeStore, TapeSummary, View, ViewOptions, now_iso, recover_forks,
};
use serde_json::{Value, json};

pub use self::resume::ResumePoint;
use self::{
    resume::{CANCELLED_STATUS, ERROR_STATUS},
    steps::{OpenCalls, OpenStep},
};
use crate::{
    envelope::Envelope,
    error::{Error, ErrorKind, Result},
    framework::Framework,
    hooks::HookDecision,
    ids::{SessionId, TurnId},
    inbound::{Inbound, InboundAttempt},
    pipeline::run_until_cancelled,
    prompt::{COMMAND_PREFIX, Prompt},
};

/// Key in an entry's `meta` with the id of the inbound message. Later attempts use it to find the entry.
const INBOUND_ID_KEY: &str = "inbound_id";

/// How long a turn waits for the session's lease. It is shorter than the timeout of a hook, so that the error names the
/// lease holder.
const LEASE_TIMEOUT: Duration = Duration::from_mins(4);

/// How long a nested run waits for the lease of its session.
const NESTED_LEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The tape of one turn.
#[derive(Debug)]
pub struct TurnTape {
    framework: Framework,
    session_id: SessionId,
    channel: Option<String>,
    /// Created at first use, because most in-memory tapes are never read.
    tape: OnceLock<Tape>,
    run_id: TurnId,
    attempt: Option<InboundAttempt>,
    /// Whether the tape outlives the turn. If not, only entries that an agent reads are recorded.
    is_stored: bool,
    /// Whether the prompt can be a comma command. Only users' prompts can.
    accepts_commands: bool,
    resume_point: Option<ResumePoint>,
    lease: Mutex<Option<Lease>>,
    progress: Mutex<TurnProgress>,
}

/// What the turn has recorded so far.
#[derive(Debug, Default)]
struct TurnProgress {
    /// The entry of the user's message.
    prompt_id: Option<EntryId>,
    /// A hash of the prompt that the model stage got, which is also the message on the tape.
    prompt_fingerprint: Option<u64>,
    /// Whether the prompt on the tape replaces an earlier one, because a hook changed it in an earlier attempt.
    is_prompt_replaced: bool,
    /// Whether the model stage is completely recorded.
    is_complete: bool,
    /// Whether the failure that ended the turn is recorded.
    has_error: bool,
    /// Entries for the next batch.
    pending: Vec<Entry>,
    summary: Option<Arc<TapeSummary>>,
    calls: Option<OpenCalls>,
    step: Option<OpenStep>,
}

/// The outcome of a model stage.
#[derive(Clone, Copy, Debug)]
pub struct ModelStageEnd<'a> {
    /// The prompt of the stage.
    pub prompt: &'a Prompt,
    /// The answer, or a partial answer after an error.
    pub output: &'a str,
    /// The error that ended the stage.
    pub error: Option<&'a Error>,
}

impl Framework {
    /// Returns the tape of a session, or `None` if no running scope with a tape store is open.
    pub fn session_tape(&self, session_id: &SessionId) -> Result<Option<Tape>> {
        let Some(store) = self.tape_store() else {
            return Ok(None);
        };
        tape_in_store(self, store, session_id).map(Some)
    }

    /// Waits, without a timeout, until no other process runs a turn of the session. Logs the lease holder.
    pub async fn wait_for_session(&self, session_id: &SessionId) -> Result<()> {
        if session_id.is_temporary() {
            return Ok(());
        }
        let Some(tape) = self.session_tape(session_id)? else {
            return Ok(());
        };
        let holder = tape.store().lease_holder(tape.name()).await;
        if let Some(holder) = holder.map_err(tape_error)? {
            tracing::warn!(%session_id, %holder, "session.lease_wait");
            drop(tape.lease(LeaseWait::Forever).await.map_err(tape_error)?);
        }
        Ok(())
    }
}

fn tape_in_store(
    framework: &Framework,
    store: Arc<dyn TapeStore>,
    session_id: &SessionId,
) -> Result<Tape> {
    let name = TapeName::for_session(framework.workspace_text(), session_id);
    let context = framework.tape_context()?.unwrap_or_default();
    Ok(Tape::new(store, name)
        .with_sidecars(framework.tape_sidecars()?)
        .with_context(context))
}

impl TurnTape {
    /// Opens the session's tape, takes its lease and records the message. Temporary sessions, and frameworks without a
    /// tape store, use a tape in memory.
    pub(crate) async fn open(
        framework: &Framework,
        session_id: &SessionId,
        inbound: &Inbound,
    ) -> Result<Self> {
        let channel = inbound.message.channel();
        let Some(tape) = stored_tape(framework, session_id)? else {
            // A tape in memory needs no record of an interrupted message, because it ends with the process.
            let mut turn = Self::in_memory(framework, session_id, channel.as_deref());
            turn.accepts_commands = true;
            return Ok(turn);
        };
        // Cancel only the wait for the lease: a message that is being recorded must not be recorded again.
        let lease = tape.lease(LeaseWait::For(LEASE_TIMEOUT));
        let lease = async { lease.await.map_err(tape_error) };
        let lease = run_until_cancelled(&inbound.cancel, lease).await?;
        let recovered = recover_forks(&**tape.store(), tape.name()).await;
        for recovered in recovered.map_err(tape_error)? {
            let (fork, entries) = (recovered.fork, recovered.entries);
            tracing::warn!(%fork, entries, merged = recovered.merged, "tape.recovered");
        }
        let mut turn = Self::new(tape, framework, session_id, channel.as_deref());
        turn.lease = Mutex::new(Some(lease));
        turn.attempt.clone_from(&inbound.attempt);
        turn.accepts_commands = true;
        turn.find_resume_point(framework, session_id).await?;
        let attempt = inbound.attempt.as_ref();
        if !attempt.is_some_and(|attempt| attempt.is_durable) {
            turn.record_message(&inbound.message).await?;
        }
        Ok(turn)
    }

    /// Opens the tape for a message that cannot be processed, and records the message. Views omit the record, because the
    /// sender may send the message again. Does not wait for the lease of a busy session: a batch of entries is
    /// atomic without it.
    pub(crate) async fn open_for_failure(
        framework: &Framework,
        session_id: &SessionId,
        inbound: &Inbound,
    ) -> Result<Self> {
        let channel = inbound.message.channel();
        let Some(tape) = stored_tape(framework, session_id)? else {
            return Ok(Self::in_memory(framework, session_id, channel.as_deref()));
        };
        let lease = tape.lease(LeaseWait::No).await.ok();
        let mut turn = Self::new(tape, framework, session_id, channel.as_deref());
        turn.lease = Mutex::new(lease);
        turn.record_message(&inbound.message).await?;
        // Only the error is missing.
        turn.mark_complete();
        Ok(turn)
    }

    /// Opens the tape of a nested run, such as a subagent's.
    pub async fn open_nested(framework: &Framework, session_id: &SessionId) -> Result<Self> {
        let Some(tape) = stored_tape(framework, session_id)? else {
            return Ok(Self::in_memory(framework, session_id, None));
        };
        let lease = tape.lease(LeaseWait::For(NESTED_LEASE_TIMEOUT)).await;
        let mut turn = Self::new(tape, framework, session_id, None);
        turn.lease = Mutex::new(Some(lease.map_err(tape_error)?));
        Ok(turn)
    }

    /// Creates a tape in memory that is discarded with the turn.
    pub(crate) fn in_memory(
        framework: &Framework,
        session_id: &SessionId,
        channel: Option<&str>,
    ) -> Self {
        Self {
            is_stored: false,
            ..Self::with_tape(OnceLock::new(), framework, session_id, channel)
        }
    }

    /// Creates a run on a tape whose lease and lifetime the caller manages, such as a fork.
    pub fn new(
        tape: Tape,
        framework: &Framework,
        session_id: &SessionId,
        channel: Option<&str>,
    ) -> Self {
        Self::with_tape(OnceLock::from(tape), framework, session_id, channel)
    }

    fn with_tape(
        tape: OnceLock<Tape>,
        framework: &Framework,
        session_id: &SessionId,
        channel: Option<&str>,
    ) -> Self {
        Self {
            framework: framework.clone(),
            session_id: session_id.clone(),
            channel: channel.map(str::to_owned),
            tape,
            run_id: TurnId::generate(),
            attempt: None,
            is_stored: true,
            accepts_commands: false,
            resume_point: None,
            lease: Mutex::default(),
            progress: Mutex::default(),
        }
    }

    /// Sets the id of the turn. Call this before anything is recorded.
    pub(crate) fn with_id(mut self, run_id: TurnId) -> Self {
        self.run_id = run_id;
        self
    }

    /// Returns the underlying tape.
    pub fn tape(&self) -> &Tape {
        self.tape.get_or_init(|| {
            let store: Arc<dyn TapeStore> = Arc::new(MemoryStore::new());
            let tape = tape_in_store(&self.framework, Arc::clone(&store), &self.session_id);
            tape.unwrap_or_else(|error| {
                tracing::warn!(%error, "turn.tape_context_failed");
                let workspace = self.framework.workspace_text();
                Tape::new(store, TapeName::for_session(workspace, &self.session_id))
            })
        })
    }

    /// Returns the entries that start an empty tape. Returns none for other tapes.
    async fn bootstrap_entries(&self) -> Result<Vec<Entry>> {
        let redact = |text: &str| self.redactor().redact(text).into_owned();
        let session = SessionInfo {
            session_id: redact(&self.session_id),
            workspace: Some(redact(self.framework.workspace_text())),
            channel: self.channel.as_deref().map(redact),
        };
        Ok(session.bootstrap_entries(&*self.summary().await?))
    }

    fn redactor(&self) -> &Redactor {
        self.framework.settings().redactor()
    }

    /// Returns the id that the `meta` of all entries of the turn has.
    pub fn run_id(&self) -> &TurnId {
        &self.run_id
    }

    /// Returns the point where the turn resumes, if an earlier attempt at the same message was interrupted.
    pub fn resume_point(&self) -> Option<&ResumePoint> {
        self.resume_point.as_ref()
    }

    /// Returns the entry id of the user's message, once it is recorded.
    pub fn prompt_id(&self) -> Option<EntryId> {
        lock(&self.progress).prompt_id
    }

    /// Builds the view for a model call. `carry_limit` overrides the default limit of carried entries.
    pub async fn build_view(&self, model: &str, carry_limit: Option<usize>) -> Result<View> {
        let prompt = self.prompt_id().unwrap_or_default();
        let mut options = ViewOptions::new()
            .for_model(model)
            .with_turn_start(prompt)
            .open_with_user_message();
        if let Some(limit) = carry_limit {
            options.carry_limit = limit;
        }
        self.tape().view(&options).await.map_err(tape_error)
    }

    /// Returns whether the entries of the turn can be read later.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_stored || self.prompt_id().is_some()
    }

    /// Sets the `run_id` of an entry to this turn.
    pub fn with_run_id(&self, entry: Entry) -> Entry {
        entry.with_meta("run_id", self.run_id.as_str())
    }

    /// Sets the ids of an entry about the command that this turn runs, so that a later attempt finds the entry.
    pub fn with_command_id(&self, entry: Entry) -> Entry {
        let entry = self.with_run_id(entry);
        // If the turn has a prompt, the command only steers it and is not the inbound message.
        if self.prompt_id().is_some() {
            return entry;
        }
        self.with_inbound_id(entry)
    }

    fn with_inbound_id(&self, entry: Entry) -> Entry {
        match &self.attempt {
            Some(attempt) => entry.with_meta(INBOUND_ID_KEY, attempt.message_id.as_str()),
            None => entry,
        }
    }

    /// Adds an entry to the next batch.
    pub fn append_later(&self, entry: Entry) {
        lock(&self.progress).pending.push(entry);
    }

    /// Adds the decisions of hooks to the next batch, as events that views omit.
    pub fn append_hook_decisions(&self, decisions: &[HookDecision]) {
        for decision in decisions {
            let event = Entry::event("hook", Some(decision.to_value())).exclude_from_context();
            self.append_later(self.with_run_id(event));
        }
    }

    /// Redacts and appends the pending entries and a batch. Returns the id of the last entry.
    pub async fn append(&self, batch: Vec<Entry>) -> Result<EntryId> {
        let ids = self.append_batch(batch).await?;
        Ok(ids.last().copied().unwrap_or_default())
    }

    /// Redacts and appends the pending entries and a batch. Returns the ids of the batch.
    async fn append_batch(&self, batch: Vec<Entry>) -> Result<Vec<EntryId>> {
        let mut all = std::mem::take(&mut lock(&self.progress).pending);
        let pending_count = all.len();
        all.extend(batch);
        if all.is_empty() {
            return Ok(Vec::new());
        }
        for value in all.iter_mut().flat_map(|entry| entry.payload.values_mut()) {
            self.redact(value);
        }
        // An anchor or a system prompt changes the summary.
        if all
            .iter()
            .any(|entry| matches!(entry.kind, EntryKind::Anchor | EntryKind::System))
        {
            self.invalidate_summary();
        }
        let mut ids = self.tape().append_all(all).await.map_err(tape_error)?.ids;
        ids.drain(..pending_count.min(ids.len()));
        Ok(ids)
    }

    /// Records the session at the start of an empty tape, for turns without a prompt.
    pub async fn record_session(&self) -> Result<()> {
        let batch = self.bootstrap_entries().await?;
        if !batch.is_empty() {
            self.append(batch).await?;
        }
        Ok(())
    }

    /// Returns the summary of the tape. It is read once, because only this turn appends while it holds the lease.
    pub async fn summary(&self) -> Result<Arc<TapeSummary>> {
        if let Some(summary) = lock(&self.progress).summary.clone() {
            return Ok(summary);
        }
        let summary = Arc::new(self.tape().summary().await.map_err(tape_error)?);
        lock(&self.progress).summary = Some(Arc::clone(&summary));
        Ok(summary)
    }

    /// Discards the cached summary, so that the next use reads it again.
    pub fn invalidate_summary(&self) {
        lock(&self.progress).summary = None;
    }

    /// Creates an empty record of a model call.
    pub fn new_step_record(&self) -> StepRecord {
        StepRecord::new(self.run_id.as_str())
    }

    /// Records a model call and further entries as one batch.
    pub async fn record_step(&self, step: StepRecord, further: Vec<Entry>) -> Result<EntryId> {
        let mut batch = step.into_entries(&*self.summary().await?);
        batch.extend(further);
        self.append(batch).await
    }

    /// Records the outcome of the model stage, unless the agent did, and frees the session for the next turn.
    pub async fn end_model_stage(&self, end: ModelStageEnd<'_>) -> Result<()> {
        let recorded = self.record_model_stage(end).await;
        self.release_lease();
        recorded
    }

    async fn record_model_stage(&self, end: ModelStageEnd<'_>) -> Result<()> {
        let is_complete = lock(&self.progress).is_complete;
        let is_command = self.prompt_id().is_none() && self.is_command(end.prompt);
        if is_complete || end.prompt.is_empty() || is_command || !self.is_readable() {
            return Ok(());
        }
        self.record_prompt(end.prompt, Vec::new()).await?;
        let has_calls = self.interrupt_calls();
        let mut step = self.new_step_record();
        // Earlier steps are already on the tape.
        let text = self.partial_text().unwrap_or_else(|| end.output.to_owned());
        step.text = Some(text).filter(|_| !has_calls);
        step.error = end.error.map(error_entry);
        let status = if end.error.is_some() { "error" } else { "ok" };
        let last = self.end_step(status, end.error);
        self.record_step(step, last.into_iter().collect()).await?;
        self.mark_complete();
        lock(&self.progress).has_error = end.error.is_some();
        Ok(())
    }

    /// Completes the record of a turn and frees the session. After a failure in any stage, the message and the error
    /// are on the tape once.
    pub(crate) async fn close(&self, message: &Envelope, failure: Option<&Error>) -> Result<()> {
        let recorded = match failure {
            Some(error) => self.record_failure(message, error).await,
            // Write the pending entries. A command that a plugin answered has no other entries.
            None => self.append(Vec::new()).await.map(drop),
        };
        self.release_lease();
        recorded
    }

    async fn record_failure(&self, message: &Envelope, error: &Error) -> Result<()> {
        if lock(&self.progress).has_error || !self.is_readable() {
            return Ok(());
        }
        if lock(&self.progress).is_complete {
            // A stage after the model stage failed.
            let entry = self.with_run_id(error_entry(error));
            self.append(vec![entry]).await?;
        } else if self.prompt_id().is_none() && self.accepts_commands && message.is_command() {
            let raw = message.content();
            let raw = raw.trim().trim_start_matches(COMMAND_PREFIX).trim();
            let status = match error.kind() {
                ErrorKind::Cancelled => CANCELLED_STATUS,
                _ => ERROR_STATUS,
            };
            let data =
                json!({"raw": raw, "status": status, "output": error.message(), "date": now_iso()});
            self.record_session().await?;
            let event = self.with_command_id(Entry::event("command", Some(data)));
            self.append(vec![event]).await?;
        } else {
            let prompt = Prompt::from(message.content().as_ref());
            let end = ModelStageEnd {
                prompt: &prompt,
                output: "",
                error: Some(error),
            };
            self.record_model_stage(end).await?;
        }
        lock(&self.progress).has_error = true;
        Ok(())
    }

    pub(crate) fn release_lease(&self) {
        let lease = lock(&self.lease).take();
        drop(lease);
    }

    /// Redacts the secrets in a value.
    pub fn redact(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(redacted) = self.redactor().redact(text) {
                    *text = redacted;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact(item)),
            Value::Object(map) => map.values_mut().for_each(|item| self.redact(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Returns the stored tape of a session, or `None` if the session uses a tape in memory.
fn stored_tape(framework: &Framework, session_id: &SessionId) -> Result<Option<Tape>> {
    if session_id.is_temporary() {
        return Ok(None);
    }
    framework.session_tape(session_id)
}

/// Returns the tape entry of an error.
pub fn error_entry(error: &Error) -> Entry {
    let details = (!error.details().is_empty()).then(|| Value::Object(error.details().clone()));
    Entry::error(error.kind().name(), error.message(), details)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts an error of a tape store.
pub fn tape_error(error: TapeError) -> Error {
    let kind = match error.kind() {
        bub_tape::TapeErrorKind::NotFound => ErrorKind::NotFound,
        bub_tape::TapeErrorKind::InvalidInput => ErrorKind::InvalidInput,
        bub_tape::TapeErrorKind::Busy | bub_tape::TapeErrorKind::Retry => ErrorKind::Temporary,
        _ => ErrorKind::Config,
    };
    Error::from(error).with_kind(kind)
}
