//! The tape of a turn. It holds the session's lease until the model stage is recorded.
//!
//! * `TurnTape::open` takes the lease. If the message is not in a durable journal, it is recorded at once, as an event
//!   that views omit.
//! * The prompt is recorded before the model stage, no matter which plugin runs that stage.
//! * The builtin agent records its steps as they happen (module `steps`). For other plugins the answer is recorded when
//!   the model stage ends.
//! * `TurnTape::close` completes the record, also after a failure.
//! * The module `interrupted` completes the record of the previous turn of the session, if its process died.
//! * The module `draft` keeps the answer of a running model call beside the tape.
//! * The module `resume` finds the point at which an earlier attempt at the same message was interrupted.

mod draft;
mod interrupted;
mod prompt;
mod resume;
mod steps;

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use bub_settings::Redactor;
use bub_tape::{
    Entry, EntryId, EntryKind, Lease, LeaseWait, MemoryStore, SessionInfo, StepRecord, Tape,
    TapeError, TapeErrorKind, TapeName, TapeStore, TapeSummary, View, ViewOptions, now_iso,
    recover_forks,
};
use futures_util::future::poll_immediate;
use parking_lot::Mutex;
use serde_json::{Value, json};

pub use self::{interrupted::InterruptedTurn, resume::ResumePoint, steps::CallProgress};
use self::{
    resume::{CANCELLED_STATUS, ERROR_STATUS},
    steps::{OpenCalls, OpenStep, PrintedOutput},
};
use crate::{
    envelope::Envelope,
    error::{Error, ErrorKind, Result},
    framework::Framework,
    hooks::HookDecision,
    ids::{SessionId, TurnId},
    inbound::{Inbound, InboundAttempt},
    pipeline::run_until_cancelled,
    prompt::{Prompt, command_line},
    provenance::TurnProvenance,
    settings::media_limit,
};

/// Key in an entry's `meta` with the id of the inbound message. Later attempts to process the message use it to find
/// the entry.
const INBOUND_ID_KEY: &str = "inbound_id";

/// How long a turn waits for the session's lease. It is shorter than `HOOK_TIMEOUT`, so that the turn ends with an
/// error that names the lease holder, not with the timeout of a hook.
const LEASE_TIMEOUT: Duration = Duration::from_mins(4);

/// How long a nested run, such as a subagent, waits for the lease of its session.
const NESTED_LEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Event with the guide that the user gets if no model is configured.
const NO_MODEL_EVENT: &str = "no_model";

/// The session's tape as one turn uses it, with the lease and the progress of the turn's record.
#[derive(Debug)]
pub struct TurnTape {
    framework: Framework,
    session_id: SessionId,
    channel: Option<String>,
    /// The tape. A tape in memory is created at its first use, because most turns without a stored tape never use it.
    tape: OnceLock<Tape>,
    run_id: TurnId,
    attempt: Option<InboundAttempt>,
    /// Whether the tape outlives the turn. If not, entries are recorded only for the builtin agent, which builds its
    /// views from them.
    is_stored: bool,
    /// Whether the prompt can be a comma command. The prompt of a nested run cannot.
    accepts_commands: bool,
    resume_point: Option<ResumePoint>,
    lease: Mutex<Option<Lease>>,
    /// Whose text the turn contains. A nested run shares it with its parent, because the parent sees its answer.
    pub(crate) provenance: Arc<Mutex<TurnProvenance>>,
    progress: Arc<Mutex<TurnProgress>>,
    /// Whether the store has a draft of the current step.
    has_draft: AtomicBool,
    /// Held while a batch is written.
    write_lock: Arc<tokio::sync::Mutex<()>>,
}

/// What the turn has recorded so far.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about the record"
)]
struct TurnProgress {
    /// The id of the entry with the prompt. `None` if the prompt is not recorded.
    prompt_id: Option<EntryId>,
    /// A hash of the prompt that the model stage got. If the agent gets a prompt with another hash, a plugin changed
    /// the prompt.
    prompt_fingerprint: Option<u64>,
    /// Whether an earlier attempt recorded a second prompt that replaces the first one, because a plugin had changed
    /// the prompt.
    is_prompt_replaced: bool,
    /// Whether the model stage is completely recorded.
    is_complete: bool,
    /// Whether no model is configured. The output of the model stage is then a guide for the user.
    has_no_model: bool,
    /// Whether the failure that ended the turn is recorded.
    has_error: bool,
    /// Entries that are written with the next batch.
    pending: Vec<Entry>,
    summary: Option<Arc<TapeSummary>>,
    calls: Option<OpenCalls>,
    /// The names of the files in the content parts of prompts, with the hash of the part.
    media_names: HashMap<u64, String>,
    /// Whether the last view showed media of earlier turns.
    shows_earlier_media: bool,
    /// Whether views of the turn show no media of earlier turns.
    hides_earlier_media: bool,
    /// What the comma command of the turn has printed.
    command_output: PrintedOutput,
    step: Option<OpenStep>,
}

/// The outcome of a model stage.
#[derive(Clone, Copy, Debug)]
pub struct ModelStageEnd<'a> {
    /// The prompt of the stage.
    pub prompt: &'a Prompt,
    /// The answer, or a partial answer after an error.
    pub output: &'a str,
    /// The error that ended the stage, if any.
    pub error: Option<&'a Error>,
}

impl Framework {
    /// Returns the tape of a session, or `None` if no running scope with a tape store is open.
    pub fn session_tape(&self, session_id: &SessionId) -> Result<Option<Tape>> {
        let store = self.tape_store();
        store
            .map(|store| tape_in_store(self, store, session_id))
            .transpose()
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
    /// Opens the session's tape, takes its lease and finds the resume point. Records the message unless it is in a
    /// durable journal. Temporary sessions, and frameworks without a tape store, use a tape in memory.
    pub(crate) async fn open(framework: &Framework, inbound: &Inbound) -> Result<Self> {
        let mut turn = Self::in_memory(framework, inbound);
        turn.accepts_commands = true;
        let Some(tape) = turn.find_stored_tape()? else {
            // A tape in memory needs no record of an interrupted message, because it ends with the process.
            return Ok(turn);
        };
        // Cancel only the wait for the lease. If recording the message were cancelled, `open_for_failure` could record
        // it twice.
        let lease = tape.lease(LeaseWait::For(LEASE_TIMEOUT));
        let lease = async { lease.await.map_err(tape_error) };
        let lease = run_until_cancelled(&inbound.cancel, lease).await?;
        let recovered = recover_forks(&**tape.store(), tape.name()).await;
        for recovered in recovered.map_err(tape_error)? {
            let (fork, entries) = (recovered.fork, recovered.entries);
            tracing::warn!(%fork, entries, merged = recovered.merged, "tape.recovered");
        }
        turn.set_stored_tape(tape, Some(lease));
        turn.attempt.clone_from(&inbound.attempt);
        turn.recover_interrupted_turn().await?;
        turn.find_resume_point().await?;
        let attempt = inbound.attempt.as_ref();
        if !attempt.is_some_and(|attempt| attempt.is_durable) {
            turn.record_message(&inbound.message).await?;
        }
        Ok(turn)
    }

    /// Opens the tape for a message that cannot be processed, and records the message. Views omit the record, because
    /// the sender may send the message again. Does not wait for the lease of a busy session: a batch of entries is
    /// atomic even without the lease.
    pub(crate) async fn open_for_failure(framework: &Framework, inbound: &Inbound) -> Result<Self> {
        let mut turn = Self::in_memory(framework, inbound);
        if let Some(tape) = turn.find_stored_tape()? {
            let lease = tape.lease(LeaseWait::No).await.ok();
            turn.set_stored_tape(tape, lease);
            turn.record_message(&inbound.message).await?;
            // Only the error is still to be recorded.
            turn.mark_complete();
        }
        Ok(turn)
    }

    /// Opens the tape of a nested run, such as a subagent, and takes its lease.
    pub async fn open_nested(framework: &Framework, session_id: &SessionId) -> Result<Self> {
        let mut turn = Self::with_session(framework, session_id.clone(), None);
        if let Some(tape) = turn.find_stored_tape()? {
            let lease = tape.lease(LeaseWait::For(NESTED_LEASE_TIMEOUT)).await;
            turn.set_stored_tape(tape, Some(lease.map_err(tape_error)?));
            turn.recover_interrupted_turn().await?;
        }
        Ok(turn)
    }

    /// Creates a tape in memory that is discarded with the turn.
    pub(crate) fn in_memory(framework: &Framework, inbound: &Inbound) -> Self {
        let session_id = inbound.session_id().cloned().unwrap_or_default();
        let channel = inbound.message.channel().map(Cow::into_owned);
        Self::with_session(framework, session_id, channel)
    }

    /// Wraps a tape, such as a fork, for one run. The caller manages the lease and the lifetime of the tape.
    pub fn new(
        tape: Tape,
        framework: &Framework,
        session_id: &SessionId,
        channel: Option<&str>,
    ) -> Self {
        let channel = channel.map(str::to_owned);
        let mut turn = Self::with_session(framework, session_id.clone(), channel);
        turn.set_stored_tape(tape, None);
        turn
    }

    fn with_session(framework: &Framework, session_id: SessionId, channel: Option<String>) -> Self {
        Self {
            framework: framework.clone(),
            session_id,
            channel,
            tape: OnceLock::new(),
            run_id: TurnId::generate(),
            attempt: None,
            is_stored: false,
            accepts_commands: false,
            resume_point: None,
            lease: Mutex::default(),
            provenance: Arc::default(),
            progress: Arc::default(),
            has_draft: AtomicBool::default(),
            write_lock: Arc::default(),
        }
    }

    /// Returns the stored tape of the session, or `None` if the session uses a tape in memory.
    fn find_stored_tape(&self) -> Result<Option<Tape>> {
        if self.session_id.is_temporary() {
            return Ok(None);
        }
        self.framework.session_tape(&self.session_id)
    }

    fn set_stored_tape(&mut self, tape: Tape, lease: Option<Lease>) {
        self.tape = OnceLock::from(tape);
        self.is_stored = true;
        self.lease = Mutex::new(lease);
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

    /// Returns the entries that describe the session, or an empty list if the tape already has them.
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

    /// Returns the id of the turn, which is the `run_id` in the `meta` of all its entries.
    pub fn run_id(&self) -> &TurnId {
        &self.run_id
    }

    /// Returns the point where the turn resumes, if an earlier attempt at the same message was interrupted.
    pub fn resume_point(&self) -> Option<&ResumePoint> {
        self.resume_point.as_ref()
    }

    /// Returns the id of the entry with the prompt, once the prompt is recorded.
    pub fn prompt_id(&self) -> Option<EntryId> {
        self.progress.lock().prompt_id
    }

    /// Builds the view for a model call. `carry_limit` is the maximum total size in bytes of carried entries: entries
    /// before the anchor that the view includes. `None` means the default limit.
    pub async fn build_view(&self, model: &str, carry_limit: Option<usize>) -> Result<View> {
        let mut options = ViewOptions::new().for_model(model);
        options.turn_start = self.prompt_id();
        if !self.progress.lock().hides_earlier_media {
            options.media = media_limit(self.framework.settings());
        }
        if let Some(limit) = carry_limit {
            options.carry_limit = limit;
        }
        let view = self.tape().view(&options).await.map_err(tape_error)?;
        self.provenance.lock().add_view(&view.provenance);
        self.progress.lock().shows_earlier_media = view.shows_earlier_media;
        Ok(view)
    }

    /// Hides media of earlier turns from the next views of this turn. Returns whether the last view showed some.
    pub fn hide_earlier_media(&self) -> bool {
        let mut progress = self.progress.lock();
        progress.hides_earlier_media |= progress.shows_earlier_media;
        progress.shows_earlier_media
    }

    /// Returns whether the entries of the turn can be read later: the tape is stored, or the builtin agent uses it.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_stored || self.prompt_id().is_some()
    }

    /// Sets the `run_id` of an entry to the id of this turn.
    pub fn with_run_id(&self, entry: Entry) -> Entry {
        entry.with_meta("run_id", self.run_id.as_str())
    }

    /// Sets the `run_id` of an entry about a comma command. If the command is the inbound message of the turn, also
    /// sets the `inbound_id`, so that a later attempt finds the entry.
    pub fn with_command_id(&self, entry: Entry) -> Entry {
        let entry = self.with_run_id(entry);
        // If a prompt is already recorded, the command is not the inbound message: it only steers the turn.
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

    /// Adds an entry to the next batch that is written to the tape.
    pub fn append_later(&self, entry: Entry) {
        self.progress.lock().pending.push(entry);
    }

    /// Adds the decisions of hooks to the next batch, as events that views omit.
    pub fn append_hook_decisions(&self, decisions: &[HookDecision]) {
        for decision in decisions {
            let event = Entry::event("hook", Some(decision.to_value())).exclude_from_context();
            self.append_later(self.with_run_id(event));
        }
    }

    /// Appends the entries from [`TurnTape::append_later`] and then a batch to the tape, with secrets redacted. Returns
    /// the id of the last entry of the batch.
    pub async fn append(&self, batch: Vec<Entry>) -> Result<EntryId> {
        let ids = self.append_batch(batch).await?;
        Ok(ids.last().copied().unwrap_or_default())
    }

    /// Redacts and appends the pending entries and a batch. Returns the entry ids of the batch only.
    async fn append_batch(&self, batch: Vec<Entry>) -> Result<Vec<EntryId>> {
        self.append_then(batch, |_, _| ()).await
    }

    /// Like [`append_batch`](Self::append_batch), and calls `on_written` with the ids of the batch. If the caller is
    /// dropped while the batch is written, for example because the turn is cancelled, the batch is still written and
    /// `on_written` is called: the progress always agrees with the tape.
    async fn append_then(
        &self,
        batch: Vec<Entry>,
        on_written: impl FnOnce(&mut TurnProgress, &[EntryId]) + Send + 'static,
    ) -> Result<Vec<EntryId>> {
        let guard = Arc::clone(&self.write_lock).lock_owned().await;
        let mut all = std::mem::take(&mut self.progress.lock().pending);
        let pending_count = all.len();
        all.extend(batch);
        if all.is_empty() {
            return Ok(Vec::new());
        }
        for value in all.iter_mut().flat_map(|entry| entry.payload.values_mut()) {
            self.redact(value);
        }
        {
            let provenance = self.provenance.lock();
            for entry in &mut all {
                provenance.stamp(entry);
            }
        }
        // An anchor or a system prompt changes the summary.
        let in_summary =
            |entry: &Entry| matches!(entry.kind, EntryKind::Anchor | EntryKind::System);
        if all.iter().any(in_summary) {
            self.invalidate_summary();
        }
        let (tape, progress) = (self.tape().clone(), Arc::clone(&self.progress));
        let mut write = Box::pin(async move {
            let mut ids = tape.append_all(all).await.map_err(tape_error)?.ids;
            ids.drain(..pending_count.min(ids.len()));
            on_written(&mut progress.lock(), &ids);
            drop(guard);
            Ok(ids)
        });
        // Most batches are written at the first poll. Only a write that waits needs a task.
        match poll_immediate(&mut write).await {
            Some(ids) => ids,
            None => tokio::spawn(write).await?,
        }
    }

    /// Waits until a batch is written whose caller was dropped.
    async fn wait_for_write(&self) {
        drop(self.write_lock.lock().await);
    }

    /// Writes the entries that describe the session, unless the tape already has them. For turns without a prompt, such
    /// as comma commands.
    pub async fn record_session(&self) -> Result<()> {
        let batch = self.bootstrap_entries().await?;
        if !batch.is_empty() {
            self.append(batch).await?;
        }
        Ok(())
    }

    /// Returns the summary of the tape. It is read once, because only this turn appends while it holds the lease.
    pub async fn summary(&self) -> Result<Arc<TapeSummary>> {
        if let Some(summary) = self.progress.lock().summary.clone() {
            return Ok(summary);
        }
        let summary = Arc::new(self.tape().summary().await.map_err(tape_error)?);
        self.progress.lock().summary = Some(Arc::clone(&summary));
        Ok(summary)
    }

    /// Discards the cached [`TapeSummary`], so that the next call of [`Self::summary`] reads it again.
    pub fn invalidate_summary(&self) {
        self.progress.lock().summary = None;
    }

    /// Creates an empty record of a step.
    pub fn new_step_record(&self) -> StepRecord {
        StepRecord::new(self.run_id.as_str())
    }

    /// Records a step and further entries as one batch. Returns the id of the last entry.
    pub async fn record_step(&self, step: StepRecord, further: Vec<Entry>) -> Result<EntryId> {
        let mut batch = step.into_entries(&*self.summary().await?);
        batch.extend(further);
        let id = self.append(batch).await?;
        // The answer is on the tape, so its draft is not needed.
        self.discard_draft().await;
        Ok(id)
    }

    /// Records the outcome of the model stage, unless the agent did, and frees the session for the next turn.
    pub async fn end_model_stage(&self, end: ModelStageEnd<'_>) -> Result<()> {
        let recorded = self.record_model_stage(end).await;
        self.release_lease();
        recorded
    }

    async fn record_model_stage(&self, end: ModelStageEnd<'_>) -> Result<()> {
        let is_complete = self.progress.lock().is_complete;
        let is_command = self.prompt_id().is_none() && self.is_command(end.prompt);
        if is_complete || end.prompt.is_empty() || is_command || !self.is_readable() {
            return Ok(());
        }
        self.record_prompt(end.prompt, Vec::new()).await?;
        let has_calls = self.interrupt_calls();
        let mut step = self.new_step_record();
        // Record only the text of the current step, because earlier steps are already on the tape.
        let text = self.partial_text().unwrap_or_else(|| end.output.to_owned());
        let has_no_model = self.progress.lock().has_no_model;
        // The guide is for the user. As a message of the assistant, a later model would see it as its own answer.
        let guide = has_no_model.then(|| {
            let event = Entry::event(NO_MODEL_EVENT, Some(json!({"text": text})));
            self.with_run_id(event)
        });
        step.text = Some(text).filter(|_| !has_calls && !has_no_model);
        step.error = end.error.map(error_entry);
        let status = if end.error.is_some() { "error" } else { "ok" };
        let last = self.end_step(status, end.error);
        let further = guide.into_iter().chain(last).collect();
        self.record_step(step, further).await?;
        self.mark_complete();
        self.progress.lock().has_error = end.error.is_some();
        Ok(())
    }

    /// Completes the record of a turn and frees the session. After a failure in any stage, the message and the error
    /// are on the tape exactly once.
    pub(crate) async fn close(&self, message: &Envelope, failure: Option<&Error>) -> Result<()> {
        self.wait_for_write().await;
        let recorded = match failure {
            Some(error) => self.record_failure(message, error).await,
            // Write the pending entries. If a plugin answered a comma command, no other batch has written them.
            None => self.append(Vec::new()).await.map(drop),
        };
        self.release_lease();
        recorded
    }

    async fn record_failure(&self, message: &Envelope, error: &Error) -> Result<()> {
        if self.progress.lock().has_error || !self.is_readable() {
            return Ok(());
        }
        if self.progress.lock().is_complete {
            // A stage after the model stage failed.
            let entry = self.with_run_id(error_entry(error));
            self.append(vec![entry]).await?;
        } else if self.prompt_id().is_none() && self.accepts_commands && message.is_command() {
            let raw = message.content();
            let raw = command_line(&raw).unwrap_or_default();
            let status = match error.kind() {
                ErrorKind::Cancelled => CANCELLED_STATUS,
                _ => ERROR_STATUS,
            };
            let output = self
                .progress
                .lock()
                .command_output
                .append_to(error.message());
            let data = json!({"raw": raw, "status": status, "output": output, "date": now_iso()});
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
        self.progress.lock().has_error = true;
        Ok(())
    }

    pub(crate) fn release_lease(&self) {
        drop(self.lease.lock().take());
    }

    /// Redacts the secrets in all strings of a JSON value.
    pub fn redact(&self, value: &mut Value) {
        self.redactor().redact_value(value);
    }
}

/// Returns the tape entry of an error.
pub fn error_entry(error: &Error) -> Entry {
    let details = (!error.details().is_empty()).then(|| Value::Object(error.details().clone()));
    Entry::error(error.kind().name(), error.message(), details)
}

/// Converts an error of a tape store.
pub fn tape_error(error: TapeError) -> Error {
    let kind = match error.kind() {
        TapeErrorKind::NotFound => ErrorKind::NotFound,
        TapeErrorKind::InvalidInput => ErrorKind::InvalidInput,
        TapeErrorKind::Busy | TapeErrorKind::Retry => ErrorKind::Temporary,
        _ => ErrorKind::Config,
    };
    Error::from(error).with_kind(kind)
}
