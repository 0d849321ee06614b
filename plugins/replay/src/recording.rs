//! A recording: the model calls and turns that a tape contains.
//!
//! A tape has the answer of each model call, but not its request. The request is the view of all entries before the
//! answer, after the system prompt. This holds for tapes of bub and of the Python version.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
};

use bub::{
    Entry, EntryKind, Error, ModelStream, Result, StreamEvent, Tape, TapeStore as _,
    agent::{HANDOFF_EVENT, HANDOFF_PROMPT},
    kernel::tape_error,
    tape::{
        BlobStore, Durability, EntryId, EntryRange, FileStore, MediaLimit, MemoryStore,
        TapeListFilter, TapeName, ViewOptions, codec, media, message_text,
    },
};
use serde_json::{Value, json};

use crate::{
    files::read_file,
    interruption::{InterruptedStage, Interruption},
    provider::replay_error,
    surroundings::Surroundings,
};

/// Name of the event that records which call of which model a tape answered a request with.
pub(crate) const ANSWER_EVENT: &str = "replay.answer";

/// The text before the maximum number of steps in the error of a turn that reached it.
const STEP_LIMIT_PREFIX: &str = "max_steps_reached=";

/// Why turns that the agent did not run are not replayed.
const ANSWERED_BY_PLUGIN: &str = "answered by a plugin";
const NOT_STARTED: &str = "failed before the agent started";
const RESET: &str = "the tape was reset in this turn, so the start of the turn is missing";

/// Model calls and turns of a tape, in tape order.
#[derive(Debug, Default)]
pub struct Recording {
    pub(crate) entries: Vec<Entry>,
    pub(crate) calls: Vec<RecordedCall>,
    pub(crate) turns: Vec<RecordedTurn>,
    /// How many media of earlier turns the requests contain.
    media: MediaLimit,
    /// Indexes of the messages whose media are missing or damaged.
    incomplete: Vec<usize>,
}

/// One model call: its answer, and the results of its tool calls.
#[derive(Clone, Debug, Default)]
pub struct RecordedCall {
    /// Index of the first entry of the answer. The request is the view of the entries before it.
    pub(crate) position: usize,
    /// Index of the entry with the results, or of the last entry of the answer.
    pub(crate) end: usize,
    pub(crate) run_id: String,
    pub(crate) text: String,
    pub(crate) tool_calls: Vec<Value>,
    pub(crate) results: Vec<Value>,
    pub(crate) error: Option<Value>,
    pub(crate) usage: Option<Value>,
    pub(crate) model: Option<String>,
    pub(crate) provider_state: Option<Value>,
    pub(crate) elapsed_ms: u64,
}

/// One turn of the agent: a prompt and the model calls that answer it.
#[derive(Clone, Debug, Default)]
pub struct RecordedTurn {
    /// Index of the first entry of the turn.
    pub(crate) start: usize,
    /// Index of the start of the next run, or the number of entries.
    pub(crate) limit: usize,
    /// Index of the entry with the prompt.
    pub(crate) prompt: usize,
    /// Text and media of the message, if the tape has them. The prompt also has the context of the message.
    pub(crate) message: Option<Value>,
    pub(crate) model: String,
    /// The model calls, as a range of [`Recording::calls`].
    pub(crate) calls: std::ops::Range<usize>,
    /// Where the process of the turn died, if it did.
    pub(crate) interruption: Option<Interruption>,
    /// Why a replay copies the turn and does not run it again, if so.
    pub(crate) not_replayed: Option<&'static str>,
    run_id: String,
}

impl RecordedTurn {
    /// Returns the model call in which the turn was interrupted. It has a request, but no answer.
    pub(crate) fn interrupted_call(&self) -> Option<RecordedCall> {
        let interruption = self.interruption.as_ref()?;
        let is_in_call = interruption.stage == InterruptedStage::ModelCall;
        is_in_call.then(|| RecordedCall {
            position: interruption.completion.start,
            end: interruption.completion.start,
            run_id: self.run_id.clone(),
            model: Some(self.model.clone()),
            ..RecordedCall::default()
        })
    }
}

impl Recording {
    /// Reads a tape file, with the media that are in its directory.
    pub async fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let failed = |error: std::io::Error| {
            Error::invalid_input(format!("cannot read the tape {shown}: {error}"))
        };
        let bytes = read_file(path).map_err(failed)?;
        let mut entries = Vec::new();
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            match codec::decode(line) {
                Some(entry) => entries.push(entry),
                None if line.trim_ascii().is_empty() => {}
                None => {
                    return Err(Error::invalid_input(format!(
                        "{shown}: line {} is not an entry of a tape",
                        index + 1
                    )));
                }
            }
        }
        if entries.is_empty() {
            let text = format!("{shown}: the tape has no entries");
            return Err(Error::invalid_input(text));
        }
        let directory = path.parent().unwrap_or(Path::new("."));
        let store = FileStore::new(directory, Durability::Os);
        let blobs = store.blobs();
        Ok(Self::new(entries, &*blobs).await)
    }

    /// Reads the only session of a home. Returns `None` if the home has no tape.
    pub(crate) async fn of_home(home: &Path) -> Result<Option<Self>> {
        let store = Arc::new(FileStore::new(home.join("tapes"), Durability::Os));
        let names = store
            .list(TapeListFilter::Sessions)
            .await
            .map_err(tape_error)?;
        let Some(name) = names.into_iter().next() else {
            return Ok(None);
        };
        let blobs = store.blobs();
        let entries = Tape::new(store, name).entries(EntryRange::ALL).await;
        let entries = entries.map_err(tape_error)?;
        Ok(Some(Self::new(entries, &*blobs).await))
    }

    /// Returns what the model wrote for the first handoff after an entry, or `None` if a request asks for something else.
    ///
    /// # Errors
    ///
    /// Fails if the tape has no such answer. bub then sums up the conversation without a model.
    pub(crate) fn handoff_answer(
        &self,
        request: &[Value],
        position: usize,
    ) -> Option<Result<ModelStream>> {
        let prompt = request.first()?.get("content")?.as_str()?;
        (prompt == HANDOFF_PROMPT).then(|| {
            let mut later = self.entries.iter().skip(position);
            let event = later.find(|entry| entry.name() == Some(HANDOFF_EVENT));
            let text = event.and_then(|event| event.data()?.get("text")?.as_str());
            let text = text.ok_or_else(|| {
                replay_error("the tape has no summary for this handoff".to_owned())
            })?;
            let text = StreamEvent::Text(text.to_owned());
            Ok(ModelStream::from_events([text]))
        })
    }

    /// Reads entries. Their media are in `blobs`.
    pub async fn new(entries: Vec<Entry>, blobs: &dyn BlobStore) -> Self {
        let (mut complete, mut incomplete) = (Vec::with_capacity(entries.len()), Vec::new());
        for (index, entry) in entries.into_iter().enumerate() {
            // A missing file must not prevent a replay. The report names it.
            let attached = media::attach_media(blobs, &entry).await;
            let attached = attached.unwrap_or_else(|_| entry.clone());
            let count = |entry: &Entry| list(entry, "content").len();
            let media = entry.meta.get("media").and_then(Value::as_array);
            let has_parts = entry.payload.get("content").is_some_and(Value::is_array);
            let expected = count(&entry) + media.filter(|_| has_parts).map_or(0, Vec::len);
            incomplete.extend((count(&attached) < expected).then_some(index));
            complete.push(attached);
        }
        Self {
            incomplete,
            ..Self::of_entries(complete)
        }
    }

    /// Returns the ids of the messages whose media are missing or damaged, from the start of a turn on.
    pub(crate) fn incomplete_messages(&self, first_turn: usize) -> Vec<EntryId> {
        let start = self.turns.get(first_turn).map_or(0, |turn| turn.start);
        let indexes = self.incomplete.iter().filter(|index| **index >= start);
        let entries = indexes.filter_map(|index| self.entries.get(*index));
        entries.map(|entry| entry.id).collect()
    }

    /// Finds the calls and turns of entries that contain their media.
    fn of_entries(entries: Vec<Entry>) -> Self {
        let calls = find_calls(&entries);
        let turns = find_turns(&entries, &calls);
        Self {
            entries,
            calls,
            turns,
            media: MediaLimit::default(),
            incomplete: Vec::new(),
        }
    }

    /// Sets how many media of earlier turns the requests contain.
    #[must_use]
    pub fn with_media(mut self, limit: MediaLimit) -> Self {
        self.media = limit;
        self
    }

    /// Returns the recording of a session whose last turn may be running.
    pub(crate) fn of_running_session(mut self) -> Self {
        let last = self.turns.last_mut();
        if let Some(interruption) = last.and_then(|turn| turn.interruption.as_mut()) {
            interruption.is_running = true;
        }
        self
    }

    /// Returns why a turn is not replayed.
    pub(crate) fn not_replayed(turn: &RecordedTurn) -> Option<String> {
        let interruption = turn.interruption.as_ref().map(Interruption::place_text);
        turn.not_replayed
            .map(|reason| interruption.unwrap_or_else(|| reason.to_owned()))
    }

    /// Returns why a turn did not succeed when it was recorded.
    pub(crate) fn failure(&self, index: usize) -> Option<String> {
        let turn = self.turns.get(index)?;
        if let Some(interruption) = &turn.interruption {
            return Some(interruption.place_text());
        }
        if let Some(RESET) = turn.not_replayed {
            return Some(RESET.to_owned());
        }
        let end = self.turn_end(index);
        let entries = self.entries.get(turn.start..end).unwrap_or_default();
        let limit = entries.iter().find_map(step_limit);
        let calls = self.calls.get(turn.calls.clone()).unwrap_or_default();
        let error = calls.last().map(|call| call.error.as_ref());
        // A turn can also end without an answer and without a failed call, for example if it is cancelled in a tool.
        let is_status =
            |entry: &&Entry| entry.name() == Some("loop.step") && !run_id(entry).is_empty();
        let status = entries.iter().rev().find(is_status).and_then(Entry::data);
        let field = |name: &str| status.and_then(|data| data.get(name)?.as_str());
        let has_ended = matches!(field("status"), None | Some("ok"));
        match (limit, error) {
            (None, Some(None)) if !has_ended => {
                Some(field("error").unwrap_or("it has no answer").to_owned())
            }
            (Some(limit), _) => Some(format!("it reached the maximum of {limit} steps")),
            (None, Some(Some(error))) => {
                let message = error.get("message").and_then(Value::as_str);
                Some(message.unwrap_or("unknown error").to_owned())
            }
            (None, Some(None)) => None,
            (None, None) => Some("it has no answer".to_owned()),
        }
    }

    /// Returns the recording without the turns that did not succeed, and these turns: number and reason.
    pub(crate) fn without_failed_turns(self) -> (Self, Vec<(usize, String)>) {
        let indexes = 0..self.turns.len();
        let failed: Vec<(usize, String)> = indexes
            .filter_map(|index| Some((index, self.failure(index)?)))
            .collect();
        let ranges: Vec<_> = failed
            .iter()
            .filter_map(|(index, _)| Some(self.turns.get(*index)?.start..self.turn_end(*index)))
            .collect();
        // Later turns need the system prompt and the anchors.
        let is_shared = |kind: &EntryKind| matches!(kind, EntryKind::System | EntryKind::Anchor);
        let entries = self
            .entries
            .into_iter()
            .enumerate()
            .filter(|(index, entry)| {
                is_shared(&entry.kind) || !ranges.iter().any(|range| range.contains(index))
            });
        let recording = Self::of_entries(entries.map(|(_, entry)| entry).collect());
        let failed = failed
            .into_iter()
            .map(|(index, reason)| (index + 1, reason));
        (recording, failed.collect())
    }

    /// Returns the index of the first turn after an anchor or an entry.
    pub(crate) fn first_turn_after(&self, text: &str) -> Result<usize> {
        let id = text.parse().ok().map(EntryId::new);
        let is_start = |entry: &Entry| {
            Some(entry.id) == id || (entry.kind == EntryKind::Anchor && entry.name() == Some(text))
        };
        let unknown = || {
            Error::invalid_input(format!(
                "unknown anchor or entry `{text}`; run `bub tape anchors` or `bub tape show` to list them"
            ))
        };
        let start = self
            .entries
            .iter()
            .rposition(is_start)
            .ok_or_else(unknown)?;
        let turn = self.turns.iter().position(|turn| turn.prompt >= start);
        turn.ok_or_else(|| {
            Error::invalid_input(format!("nothing to replay: no turn begins after `{text}`"))
        })
    }

    /// Returns the text of a turn's message, without the context in its prompt.
    pub(crate) fn prompt_text(&self, turn: &RecordedTurn) -> String {
        let message = turn.message.as_ref();
        let text = message.and_then(|message| message.get("content")?.as_str());
        let prompt = || message_text(&self.entries.get(turn.prompt)?.payload);
        let text = text.or_else(|| prompt().map(|(_, text)| text));
        text.unwrap_or_default().to_owned()
    }

    /// Returns all entries of the tape.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the surroundings in which the tape was recorded.
    pub(crate) fn surroundings(&self) -> Surroundings {
        Surroundings::of_entries(&self.entries)
    }

    /// Returns the number of turns.
    pub fn turn_count(&self) -> usize {
        self.turns.len()
    }

    /// Returns the messages of the request of a call, with the system prompt first.
    pub(crate) async fn request(&self, call: &RecordedCall) -> Result<Vec<Value>> {
        RequestReader::new()?.request(self, call).await
    }

    /// Returns the user messages between two calls that entered the turn from outside. Steered messages have
    /// `is_steered`; others are prompts of a plugin or of the Python version.
    pub(crate) fn messages_between(
        &self,
        range: std::ops::Range<usize>,
        is_steered: bool,
    ) -> impl Iterator<Item = &Entry> {
        let entries = self.entries.get(range).unwrap_or_default().iter();
        entries.filter(move |entry| {
            is_user_message(entry) && entry.meta.contains_key("steered") == is_steered
        })
    }
}

/// Builds the requests of recorded calls. It keeps its position, so that each entry is read once.
pub(crate) struct RequestReader {
    tape: Tape,
    position: usize,
}

impl RequestReader {
    pub(crate) fn new() -> Result<Self> {
        let name = TapeName::new("recording__tape").map_err(tape_error)?;
        Ok(Self {
            tape: Tape::new(Arc::new(MemoryStore::new()), name),
            position: 0,
        })
    }

    pub(crate) async fn request(
        &mut self,
        recording: &Recording,
        call: &RecordedCall,
    ) -> Result<Vec<Value>> {
        let new = recording.entries.get(self.position..call.position);
        self.position = self.position.max(call.position);
        let new = new.unwrap_or_default().to_vec();
        self.tape.append_all(new).await.map_err(tape_error)?;
        let before = recording.entries.get(..call.position).unwrap_or_default();
        let model = call.model.clone().unwrap_or_default();
        let mut options = ViewOptions::new()
            .for_model(model)
            .with_media(recording.media);
        let in_run = |entry: &Entry| run_id(entry) == call.run_id;
        let prompt = before
            .iter()
            .position(|entry| is_user_message(entry) && in_run(entry));
        // The store numbers entries from 1.
        let prompt = prompt.and_then(|index| i64::try_from(index + 1).ok());
        options.turn_start = prompt.map(EntryId::new);
        let view = self.tape.view(&options).await.map_err(tape_error)?;
        let mut messages = vec![json!({"role": "system", "content": system_prompt(before, call)})];
        messages.extend(view.messages.into_iter().map(Value::Object));
        Ok(messages)
    }
}

/// Returns the system prompt of a call: the one whose hash its start event has, otherwise the newest one.
fn system_prompt(before: &[Entry], call: &RecordedCall) -> String {
    let is_start =
        |entry: &&Entry| entry.name() == Some("loop.step.start") && run_id(entry) == call.run_id;
    let start = before.iter().rev().find(is_start);
    let hash = start.and_then(|start| start.data()?.get("system_sha256"));
    let mut prompts = before.iter().rev();
    let prompt = prompts.find(|entry| {
        entry.kind == EntryKind::System
            && hash.is_none_or(|hash| entry.meta.get("sha256") == Some(hash))
    });
    let text = prompt.and_then(|entry| entry.payload.get("content")?.as_str());
    text.unwrap_or_default().to_owned()
}

pub(crate) fn run_id(entry: &Entry) -> &str {
    let id = entry.meta.get("run_id").and_then(Value::as_str);
    id.unwrap_or_default()
}

/// Returns the maximum number of steps, if an entry is the error of a turn that reached it.
pub(crate) fn step_limit(entry: &Entry) -> Option<u64> {
    let message = entry.payload.get("message")?.as_str()?;
    let limit = message.strip_prefix(STEP_LIMIT_PREFIX)?.split(';').next()?;
    let limit = limit.parse().ok();
    limit.filter(|_| entry.kind == EntryKind::Error)
}

fn is_user_message(entry: &Entry) -> bool {
    entry.kind == EntryKind::Message && entry.payload.get("role").is_some_and(|role| role == "user")
}

fn list(entry: &Entry, key: &str) -> Vec<Value> {
    let list = entry.payload.get(key).and_then(Value::as_array);
    list.cloned().unwrap_or_default()
}

fn find_calls(entries: &[Entry]) -> Vec<RecordedCall> {
    let mut calls: Vec<RecordedCall> = Vec::new();
    let mut open: HashMap<&str, RecordedCall> = HashMap::new();
    let mut replayed: HashMap<&str, &Value> = HashMap::new();
    let mut limited = None;
    for (index, entry) in entries.iter().enumerate() {
        let run = run_id(entry);
        let started = || RecordedCall {
            position: index,
            end: index,
            run_id: run.to_owned(),
            ..RecordedCall::default()
        };
        let text = |key: &str| {
            entry
                .payload
                .get(key)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        match &entry.kind {
            EntryKind::ToolCall => {
                let call = open.entry(run).or_insert_with(started);
                call.tool_calls = list(entry, "calls");
                call.text = text("content").unwrap_or_default();
                call.provider_state = entry
                    .meta
                    .get("provider_state")
                    .and_then(|state| state.get("state"))
                    .cloned();
            }
            EntryKind::Message if text("role").as_deref() == Some("assistant") => {
                let call = open.entry(run).or_insert_with(started);
                call.text = text("content").unwrap_or_default();
            }
            // The turn ended without a model call.
            EntryKind::Error if step_limit(entry).is_some() => limited = Some(run),
            EntryKind::Error => {
                let call = open.entry(run).or_insert_with(started);
                call.error = Some(Value::Object(entry.payload.clone()));
            }
            EntryKind::ToolResult => {
                let earlier = calls.iter_mut().rev().find(|call| call.run_id == run);
                if let Some(call) = open.get_mut(run).or(earlier) {
                    (call.results, call.end) = (list(entry, "results"), index);
                }
            }
            EntryKind::Event => match (entry.name(), entry.data()) {
                (Some("run"), _) if limited.take() == Some(run) => {}
                (Some("run"), Some(data)) => {
                    let mut call = open.remove(run).unwrap_or_else(started);
                    call.end = call.end.max(index);
                    call.usage = data.get("usage").cloned();
                    let model = replayed.remove(run).or_else(|| data.get("model"));
                    call.model = model.and_then(Value::as_str).map(str::to_owned);
                    calls.push(call);
                }
                (Some(ANSWER_EVENT), Some(data)) => {
                    // The price of the recorded model applies.
                    let model = data.get("model").filter(|model| model.is_string());
                    replayed.extend(model.map(|model| (run, model)));
                }
                // Events of the Python version name no run. They follow their call.
                (Some("loop.step"), Some(data)) => {
                    // A reset during the step removed the end of the call.
                    let is_answered = |call: &RecordedCall| !call.results.is_empty();
                    if !run.is_empty() && open.get(run).is_some_and(is_answered) {
                        calls.extend(open.remove(run));
                    }
                    let elapsed = data.get("elapsed_ms").and_then(Value::as_u64);
                    if let (Some(call), Some(elapsed)) = (calls.last_mut(), elapsed) {
                        call.elapsed_ms = elapsed;
                    }
                }
                _ => {}
            },
            _ => {}
        }
    }
    calls
}

fn find_turns(entries: &[Entry], calls: &[RecordedCall]) -> Vec<RecordedTurn> {
    let mut turns: Vec<RecordedTurn> = Vec::new();
    let starts = entries.iter().enumerate();
    for (index, entry) in starts.filter(|(_, entry)| entry.name() == Some("loop.start")) {
        let run = run_id(entry);
        // A later process continued the turn.
        if let Some(earlier) = turns
            .last_mut()
            .filter(|turn| !run.is_empty() && turn.run_id == run)
        {
            earlier.limit = next_start(entries, index + 1);
            continue;
        }
        let is_prompt =
            |entry: &Entry| is_user_message(entry) && !entry.meta.contains_key("steered");
        let before = entries.get(..index).unwrap_or_default();
        let recorded_before = before
            .iter()
            .rposition(|entry| run_id(entry) == run && is_prompt(entry));
        // The Python version records the prompt with the first answer, and not at all if the call fails.
        let limit = next_start(entries, index + 1);
        // bub records the prompt before the start of its run.
        let next_run = entries.get(limit).map(run_id).unwrap_or_default();
        let is_of_next = |entry: &Entry| !next_run.is_empty() && run_id(entry) == next_run;
        let is_own_prompt = |entry: &Entry| is_prompt(entry) && !is_of_next(entry);
        let after = || Some(index + entries.get(index..limit)?.iter().position(is_own_prompt)?);
        let prompt = recorded_before.filter(|_| !run.is_empty()).or_else(after);
        let Some(prompt) = prompt else {
            continue;
        };
        let in_run = |entry: &Entry| !run.is_empty() && run_id(entry) == run;
        let start = entries.iter().position(in_run).unwrap_or(index).min(index);
        let message = entries
            .get(start)
            .filter(|entry| entry.name() == Some("turn.start"));
        let message = message.and_then(|entry| entry.data().cloned());
        let model = entry.data().and_then(|data| data.get("model")?.as_str());
        turns.push(RecordedTurn {
            start,
            limit,
            prompt,
            message,
            model: model.unwrap_or_default().to_owned(),
            calls: 0..0,
            interruption: None,
            not_replayed: None,
            run_id: run.to_owned(),
        });
    }
    turns.extend(find_other_turns(entries));
    turns.sort_by_key(|turn| turn.start);
    let ends: Vec<usize> = turns.iter().skip(1).map(|turn| turn.start).collect();
    let mut next = 0;
    for (index, turn) in turns.iter_mut().enumerate() {
        let end = ends.get(index).copied().unwrap_or(entries.len());
        let first = next
            + calls
                .iter()
                .skip(next)
                .take_while(|call| call.position < turn.start)
                .count();
        next = first
            + calls
                .iter()
                .skip(first)
                .take_while(|call| call.position < end)
                .count();
        turn.calls = first..next;
        if turn.not_replayed.is_none() {
            turn.interruption = Interruption::find(entries, turn.start..end, &turn.run_id);
            let has_step = |entry: &Entry| entry.name() == Some("loop.step.start");
            let of_turn = entries.get(turn.start..end).unwrap_or_default();
            if turn.calls.is_empty() && !turn.run_id.is_empty() && !of_turn.iter().any(has_step) {
                // The process ended before the first step.
                turn.not_replayed = Some(NOT_STARTED);
                turn.interruption = Some(Interruption::before_model(end));
            }
            continue;
        }
        match calls.get(first..next).and_then(<[_]>::last) {
            _ if turn.not_replayed == Some(RESET) => {}
            None => turn.interruption = Some(Interruption::before_model(end)),
            Some(call) if call.error.is_some() => turn.not_replayed = Some(NOT_STARTED),
            Some(_) => {}
        }
    }
    turns
}

/// Finds the turns of bub that the agent did not run: another plugin answered them, they failed before, or their process
/// ended before. Turns of the Python version look like the steps of other turns.
fn find_other_turns(entries: &[Entry]) -> Vec<RecordedTurn> {
    let is_loop = |entry: &&Entry| entry.name() == Some("loop.start");
    let mut known: HashSet<&str> = entries.iter().filter(is_loop).map(run_id).collect();
    let mut turns = Vec::new();
    for (start, entry) in entries.iter().enumerate() {
        let run = run_id(entry);
        let is_start = entry.name() == Some("turn.start");
        if run.is_empty() || !(is_start || is_user_message(entry)) || known.contains(run) {
            continue;
        }
        // A reset keeps the message, and the steps from then on.
        let is_step = |entry: &Entry| {
            let name = entry.name().unwrap_or_default();
            run_id(entry) == run && name.starts_with("loop.step")
        };
        let has_steps = entries.get(start..).unwrap_or_default().iter().any(is_step);
        if !is_start && !has_steps && !entry.meta.contains_key("inbound_id") {
            continue;
        }
        known.insert(run);
        let message = entry.data().cloned().filter(|_| is_start);
        let mut of_run = (start..).zip(entries.get(start..).unwrap_or_default());
        let prompt = of_run.find(|(_, entry)| run_id(entry) == run && is_user_message(entry));
        let text = message
            .as_ref()
            .and_then(|data| data.get("content")?.as_str());
        let is_command = text.is_some_and(|text| text.trim_start().starts_with(','));
        let is_command_end =
            |entry: &Entry| entry.name() == Some("command") && run_id(entry) == run;
        let has_run = |(prompt, _): (usize, &Entry)| {
            let before = entries.get(start..prompt).unwrap_or_default();
            before.iter().any(is_command_end)
        };
        // The record of a comma command has no message, except that with its output for the model.
        if is_command && prompt.is_none_or(has_run) {
            continue;
        }
        let prompt = prompt.map_or(start, |(prompt, _)| prompt);
        turns.push(RecordedTurn {
            start,
            limit: next_start(entries, prompt + 1),
            prompt,
            message,
            not_replayed: Some(if has_steps { RESET } else { ANSWERED_BY_PLUGIN }),
            run_id: run.to_owned(),
            ..RecordedTurn::default()
        });
    }
    turns
}

/// Returns the index of the next start of a run, or the number of entries.
fn next_start(entries: &[Entry], from: usize) -> usize {
    let rest = entries.get(from..).unwrap_or_default();
    let next = rest
        .iter()
        .position(|entry| entry.name() == Some("loop.start"));
    next.map_or(entries.len(), |next| from + next)
}
