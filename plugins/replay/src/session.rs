//! One replay of a tape: runs its user messages again on a copy in memory, and compares what happens.

use std::{collections::HashSet, ops::Range, sync::Arc};

use bub::{
    ChannelMessage, Entry, Envelope, ErrorKind, Framework, Inbound, LlmDecision, LlmRequest,
    Prompt, Result, Sender, SessionId, TapeStore, ToolCall, ToolDecision, Turn,
    agent::HANDOFF_EVENT,
    clap,
    kernel::tape_error,
    tape::{EntryRange, Tape, TapeName, media},
};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tracing::{instrument::WithSubscriber as _, subscriber::NoSubscriber};

use crate::{
    difference::first_difference,
    interruption::Interruption,
    provider::{replay_error, stream_answer},
    recording::{RecordedCall, RecordedTurn, Recording, run_id, step_limit},
    store::ReplayStore,
    surroundings::{Normalizer, Surroundings},
};

/// Field of a replayed message with the prompt that the tape has for it.
const PROMPT_FIELD: &str = "replay_prompt";
/// Field of a replayed message with the names of the files in its prompt.
const NAMES_FIELD: &str = "replay_media_names";

/// Tools that act only on the session. They run in a replay if they ran when the tape was recorded, because later requests
/// depend on them, and then get their recorded result.
const SESSION_TOOLS: [&str; 5] = ["tape.handoff", RESET_TOOL, "tool.describe", "skill", "todo"];

/// The tool that clears the tape. If it ran when the tape was recorded, its call is not on the tape. A call that is there was
/// denied, or its process ended before, so it has no effect in a replay either.
const RESET_TOOL: &str = "tape.reset";

/// Events of a step that the runtime records in a replay, too. All others come from tools that do not run.
const RUNTIME_EVENTS: [&str; 9] = [
    HANDOFF_EVENT,
    "run",
    "hook",
    "tool.done",
    "loop.step",
    "loop.step.start",
    "handoff",
    "todo",
    "tool.loaded",
];

/// Where the results of tool calls come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ToolSource {
    /// From the tape; a call that the tape does not have is denied
    #[default]
    Recorded,
    /// The tools run
    Live,
    /// No tool runs, and each call gets the same short result
    Dry,
}

/// Options of a replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// Model to call. Without it, the answers come from the tape.
    pub model: Option<String>,
    /// Text that replaces the system prompt.
    pub system: Option<String>,
    /// Where the results of tool calls come from.
    pub tools: ToolSource,
    /// Index of the first turn to replay.
    pub first_turn: usize,
}

/// A replay of one session.
#[derive(Debug)]
pub struct ReplaySession {
    pub(crate) recording: Arc<Recording>,
    pub(crate) options: ReplayOptions,
    session_id: SessionId,
    store: ReplayStore,
    /// The store with the tape of the session.
    source: Option<Arc<dyn TapeStore>>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// Index of the current turn.
    turn: usize,
    /// Number of model calls of the current turn.
    calls: usize,
    /// Whether the current turn reached the point at which the recorded one was interrupted.
    is_interrupted: bool,
    /// The turns that ended before the point at which the recorded ones were interrupted, and the errors of failed turns.
    unfinished: Vec<(usize, String)>,
    /// Recorded tool calls whose result was used: index of the model call, and of the tool call in it.
    used: HashSet<(usize, usize)>,
    /// Tools that act on the session and are being called, each with its recorded result.
    session_results: Vec<(String, Value)>,
    /// Turn, step and first difference of the requests that differ from the recorded ones.
    differences: Vec<(usize, usize, String)>,
    requests: Vec<Vec<Value>>,
}

impl ReplaySession {
    /// Creates a replay of a session.
    pub fn new(session_id: SessionId, recording: Arc<Recording>, options: ReplayOptions) -> Self {
        Self {
            recording,
            options,
            session_id,
            store: ReplayStore::default(),
            source: None,
            progress: Mutex::default(),
        }
    }

    /// Returns the replay with the store that the tape of the session is in. Models such as `replay:TAPE` read it.
    #[must_use]
    pub fn with_source(mut self, source: Option<Arc<dyn TapeStore>>) -> Self {
        self.source = source;
        self
    }

    pub(crate) fn source(&self) -> Option<Arc<dyn TapeStore>> {
        self.source.clone()
    }

    /// Returns the store with the copy of the tape.
    pub(crate) fn store(&self) -> Arc<ReplayStore> {
        Arc::new(self.store.clone())
    }

    /// Returns whether both the answers and the results of tools come from the tape.
    pub(crate) fn is_recorded(&self) -> bool {
        self.options.model.is_none() && self.options.tools == ToolSource::Recorded
    }

    /// Returns the maximum number of steps of the current turn, if it ended there when it was recorded.
    pub(crate) fn step_limit(&self) -> Option<u64> {
        let index = self.progress.lock().turn;
        let turn = self.recording.turns.get(index)?;
        let next = self.recording.turns.get(index + 1);
        let end = next.map_or(turn.limit, |next| next.start.min(turn.limit));
        let mut entries = self.recording.entries.get(turn.start..end)?.iter();
        entries.find_map(step_limit)
    }

    /// Runs all turns. The framework must have a [`ReplayPlugin`](crate::ReplayPlugin) with this replay.
    pub async fn run(&self, framework: &Framework) -> Result<()> {
        let name = TapeName::for_session(framework.workspace_text(), &self.session_id);
        let tape = Tape::new(self.store(), name);
        let mut copied = 0;
        for (index, turn) in self.recording.turns.iter().enumerate() {
            // What is not replayed is copied before the next turn.
            if index < self.options.first_turn || turn.not_replayed.is_some() {
                continue;
            }
            self.copy_entries(&tape, copied..turn.start).await?;
            copied = self.recording.turn_end(index);
            {
                let mut progress = self.progress.lock();
                (progress.turn, progress.calls, progress.is_interrupted) = (index, 0, false);
            }
            let removed = self.store.removed_count(tape.name());
            let turn_start = tape.summary().await.map_err(tape_error)?.entries;
            let queued = self
                .recording
                .messages_between(turn.start..turn.prompt, true);
            for entry in queued {
                let message = self.inbound(entry, None);
                framework.steer_message(&self.session_id, message).await?;
            }
            let prompt = self.recording.entries.get(turn.prompt);
            let inbound = prompt.map(|prompt| self.inbound(prompt, turn.message.as_ref()));
            let processed = framework.process_turn(inbound.unwrap_or_default());
            let (_, outcome) = match self.recording.failure(index) {
                // The report compares the failure, so the log need not have it as an error.
                Some(_) => processed.with_subscriber(NoSubscriber::default()).await,
                None => processed.await,
            };
            if let (Some(_), Err(error)) = (&self.options.model, &outcome)
                && matches!(error.kind(), ErrorKind::Config | ErrorKind::InvalidInput)
            {
                // The given model cannot be called, so there is nothing to compare.
                return Err(error.clone());
            }
            let is_interrupted = self.progress.lock().is_interrupted;
            match &turn.interruption {
                Some(interruption) if is_interrupted => {
                    let is_reset = self.store.removed_count(tape.name()) > removed;
                    let turn_start = if is_reset { 0 } else { turn_start };
                    self.interrupt_turn(&tape, turn_start, interruption).await?;
                }
                // The error of a model call is on the tape, too. Others are only here.
                interruption if interruption.is_some() || outcome.is_err() => {
                    let error = outcome.err().map(|error| format!(": {}", error.message()));
                    let error = error.unwrap_or_default();
                    self.progress.lock().unfinished.push((index, error));
                }
                _ => {}
            }
        }
        let rest = copied..self.recording.entries.len();
        self.copy_entries(&tape, rest).await
    }

    /// Returns what was recorded in the replay.
    pub async fn replayed(&self, framework: &Framework) -> Result<Recording> {
        let name = TapeName::for_session(framework.workspace_text(), &self.session_id);
        let entries = self.store.history(&name).await.map_err(tape_error)?;
        Ok(Recording::new(entries, &*self.store.blobs()).await)
    }

    /// Returns turn, step and first difference of each request that differs from the recorded one.
    pub fn differences(&self) -> Vec<(usize, usize, String)> {
        self.progress.lock().differences.clone()
    }

    /// Returns the error of a turn that ended before its recorded end: empty if it did not fail.
    pub(crate) fn unfinished(&self, turn: usize) -> Option<String> {
        let progress = self.progress.lock();
        let found = progress.unfinished.iter().find(|(index, _)| *index == turn);
        found.map(|(_, error)| error.clone())
    }

    /// Returns the requests to the model.
    pub fn requests(&self) -> Vec<Vec<Value>> {
        self.progress.lock().requests.clone()
    }

    /// Copies entries that do not belong to a turn, such as the record of a comma command.
    async fn copy_entries(&self, tape: &Tape, range: Range<usize>) -> Result<()> {
        let entries = self.recording.entries.get(range).unwrap_or_default();
        tape.append_all(entries.to_vec())
            .await
            .map_err(tape_error)?;
        Ok(())
    }

    /// Removes what a replayed turn recorded after the point at which the recorded one was interrupted. Then adds the
    /// entries that complete the record of the turn.
    async fn interrupt_turn(
        &self,
        tape: &Tape,
        turn_start: u64,
        interruption: &Interruption,
    ) -> Result<()> {
        let mut entries = tape.entries(EntryRange::ALL).await.map_err(tape_error)?;
        let turn_start = usize::try_from(turn_start).unwrap_or(usize::MAX);
        entries.truncate(interruption.replayed_length(&entries, turn_start));
        let run = entries.iter().rev().map(run_id).find(|run| !run.is_empty());
        let run = run.unwrap_or_default().to_owned();
        let completion = self.recording.entries.get(interruption.completion.clone());
        let completion = completion.unwrap_or_default().iter().cloned();
        entries.extend(completion.map(|entry| entry.with_meta("run_id", run.as_str())));
        let replaced = self.store.replace(tape.name(), entries).await;
        replaced.map_err(tape_error)
    }

    /// Creates the message of a prompt. `recorded` has its text and media, if the tape has them.
    fn inbound(&self, prompt: &Entry, recorded: Option<&Value>) -> Inbound {
        let content = prompt.payload.get("content").cloned().unwrap_or_default();
        let field = |name: &str| recorded.and_then(|message| message.get(name)).cloned();
        let text = match field("content").unwrap_or_else(|| content.clone()) {
            Value::String(text) => text,
            parts => parts.to_string(),
        };
        let model = self.model(prompt);
        // The reply goes nowhere: it was sent when the tape was recorded.
        let message = ChannelMessage::new(&*self.session_id, "cli", text)
            .chat_id("replay")
            .output_channel("null")
            .context("_model", model);
        let mut message = Envelope::from(message)
            .with(PROMPT_FIELD, content)
            .with(NAMES_FIELD, json!(media::media_names(prompt)));
        if let Some(media) = field("media") {
            message.set("media", media);
        }
        Inbound::from(message).with_sender(Sender::terminal())
    }

    /// Returns the model of a turn: the given one, or the recorded one, whose context window decides about handoffs.
    fn model(&self, prompt: &Entry) -> String {
        let turns = self.recording.turns.iter();
        let mut turn = turns.filter(|turn| {
            self.recording
                .entries
                .get(turn.prompt)
                .is_some_and(|entry| run_id(entry) == run_id(prompt))
        });
        let recorded = || turn.next().map(|turn| turn.model.clone());
        self.options
            .model
            .clone()
            .or_else(recorded)
            .unwrap_or_default()
    }

    /// Returns the recorded prompt of a replayed message.
    pub(crate) fn prompt(message: &Envelope, turn: &Turn) -> Option<Prompt> {
        let prompt = serde_json::from_value(message.field(PROMPT_FIELD)?.clone()).ok()?;
        let names = message.field(NAMES_FIELD).cloned().unwrap_or_default();
        let names: Vec<(usize, String)> = serde_json::from_value(names).unwrap_or_default();
        if let Prompt::Parts(parts) = &prompt {
            for (index, name) in names {
                if let Some(part) = parts.get(index) {
                    turn.tape().set_media_name(part, &name);
                }
            }
        }
        Some(prompt)
    }

    fn recorded_call(&self, turn: usize, call: usize) -> Option<(usize, &RecordedCall)> {
        let range = self.recording.turns.get(turn)?.calls.clone();
        let index = range.start + call;
        let call = range
            .contains(&index)
            .then(|| self.recording.calls.get(index))?;
        Some((index, call?))
    }

    /// Returns the index of the entry that the replay has reached: the end of the last call, or the prompt of the turn.
    fn position(&self) -> usize {
        let progress = self.progress.lock();
        let last = progress.calls.checked_sub(1);
        let last = last.and_then(|last| self.recorded_call(progress.turn, last));
        let turn = self.recording.turns.get(progress.turn);
        last.map_or_else(|| turn.map_or(0, |turn| turn.prompt), |(_, call)| call.end)
    }

    /// Answers a model call from the tape, or lets the given model answer it.
    pub(crate) async fn answer(
        &self,
        request: &LlmRequest,
        turn: &Turn,
    ) -> Result<Option<LlmDecision>> {
        if *turn.session_id() != self.session_id {
            return match &self.options.model {
                Some(_) => Ok(None),
                None => Err(replay_error(
                    "the tape has no answers for a subagent; use `--model`".to_owned(),
                )),
            };
        }
        if self.options.model.is_none() {
            let position = self.position();
            let answer = self.recording.handoff_answer(&request.messages, position);
            if let Some(answer) = answer {
                return Ok(Some(LlmDecision::Answer(answer?)));
            }
        }
        let (turn_index, call_index) = {
            let mut progress = self.progress.lock();
            progress.calls += 1;
            (progress.turn, progress.calls - 1)
        };
        let mut request = request.clone();
        if let Some(system) = &self.options.system {
            let system = serde_json::json!({"role": "system", "content": system});
            if let Some(first) = Arc::make_mut(&mut request.messages).first_mut() {
                *first = system;
            }
        }
        let recorded = self.recorded_call(turn_index, call_index);
        let recorded_turn = self.recording.turns.get(turn_index);
        let is_interrupted =
            recorded.is_none() && recorded_turn.is_some_and(|turn| turn.interruption.is_some());
        let interrupted_call = recorded_turn
            .filter(|_| is_interrupted)
            .and_then(RecordedTurn::interrupted_call);
        let expected = recorded.map(|(_, call)| call).or(interrupted_call.as_ref());
        let difference = match expected {
            Some(call) => {
                let (before, now) = (self.recording.surroundings(), Surroundings::of_turn(turn));
                let normalizer = Normalizer::new(&before, &now);
                let expected = normalizer.messages(&self.recording.request(call).await?);
                first_difference(&expected, &normalizer.messages(&*request.messages))
            }
            None if is_interrupted => None,
            None => Some("the tape has no further model call in this turn".to_owned()),
        };
        {
            let mut progress = self.progress.lock();
            progress.requests.push(request.messages.to_vec());
            progress
                .differences
                .extend(difference.map(|text| (turn_index, call_index, text)));
            progress.is_interrupted = is_interrupted;
        }
        if is_interrupted {
            // Ends the turn. The text is removed from the copy of the tape with what follows the interruption.
            return Ok(Some(LlmDecision::Finish(String::new())));
        }
        if let Some((index, call)) = recorded {
            let next = self.recording.next_position(index);
            for entry in self.recording.messages_between(call.position..next, true) {
                let message = self.inbound(entry, None);
                turn.framework()
                    .steer_message(&self.session_id, message)
                    .await?;
            }
        }
        match (&self.options.model, recorded) {
            (None, Some((_, call))) => Ok(Some(LlmDecision::Answer(stream_answer(call, 0)))),
            (None, None) => Err(replay_error(
                "the tape has no further answer in this turn".to_owned(),
            )),
            (Some(_), _) if self.options.system.is_some() => {
                Ok(Some(LlmDecision::Proceed(request)))
            }
            (Some(_), _) => Ok(None),
        }
    }

    /// Returns the prompt with which the tape continues the turn after its current step.
    pub(crate) fn continue_prompt(&self, turn: &Turn) -> Option<String> {
        if *turn.session_id() != self.session_id {
            return None;
        }
        let (turn, call) = {
            let progress = self.progress.lock();
            (progress.turn, progress.calls.checked_sub(1)?)
        };
        let (index, call) = self.recorded_call(turn, call)?;
        let next = self.recording.next_position(index);
        let mut prompts = self.recording.messages_between(call.position..next, false);
        // The agent writes notices about the context window itself.
        let text = prompts.find_map(|entry| entry.payload.get("content")?.as_str());
        text.filter(|text| !text.starts_with("[context: "))
            .map(str::to_owned)
    }

    /// Decides about a tool call: the recorded result replaces it while the tape has the call.
    pub(crate) fn tool_decision(&self, call: &ToolCall, turn: &Turn) -> Option<ToolDecision> {
        match self.options.tools {
            ToolSource::Live => None,
            ToolSource::Dry => Some(ToolDecision::Replace(
                "[dry run: the tool was not run]".into(),
            )),
            ToolSource::Recorded => {
                let is_session_tool = SESSION_TOOLS.contains(&&*call.tool);
                match self.take_result(call, turn) {
                    Some((_, result))
                        if is_session_tool && call.tool != RESET_TOOL && has_run(&result) =>
                    {
                        let call = (call.tool.clone(), result);
                        self.progress.lock().session_results.push(call);
                        None
                    }
                    None if is_session_tool => None,
                    Some((index, result)) => {
                        self.copy_tool_events(index, turn);
                        Some(replacement(result))
                    }
                    None => {
                        let reason = "the tape has no result for this call".to_owned();
                        Some(ToolDecision::Deny(Some(reason)))
                    }
                }
            }
        }
    }

    /// Returns the recorded result of a session tool after its call.
    pub(crate) fn session_tool_result(&self, call: &ToolCall) -> Option<Value> {
        let results = &mut self.progress.lock().session_results;
        let index = results.iter().position(|(tool, _)| *tool == call.tool)?;
        Some(results.remove(index).1)
    }

    /// Returns the first unused result of an equal call: in the current step, else later in the turn or on the tape.
    fn take_result(&self, call: &ToolCall, turn: &Turn) -> Option<(usize, Value)> {
        let mut progress = self.progress.lock();
        let current = self.recorded_call(progress.turn, progress.calls.saturating_sub(1));
        let first = current.map_or(0, |(index, _)| index);
        let count = self.recording.calls.len();
        for index in (first..count).chain(0..first) {
            let recorded = self.recording.calls.get(index)?;
            for (position, tool_call) in recorded.tool_calls.iter().enumerate() {
                let result = recorded.results.get(position);
                if is_same_call(tool_call, call, turn)
                    && let Some(result) = result
                    && progress.used.insert((index, position))
                {
                    return Some((index, result.clone()));
                }
            }
        }
        None
    }

    /// Records the events that the tools of a step recorded, such as approvals.
    fn copy_tool_events(&self, index: usize, turn: &Turn) {
        // Once per step.
        if !self.progress.lock().used.insert((index, usize::MAX)) {
            return;
        }
        let Some(call) = self.recording.calls.get(index) else {
            return;
        };
        let entries = self.recording.entries.get(call.position..call.end);
        let is_copied = |entry: &&Entry| {
            entry
                .name()
                .is_some_and(|name| !RUNTIME_EVENTS.contains(&name))
                && run_id(entry) == call.run_id
        };
        for entry in entries.unwrap_or_default().iter().filter(is_copied) {
            turn.tape()
                .append_later(turn.tape().with_run_id(entry.clone()));
        }
    }
}

/// Returns the decision that gives a call its recorded result. The result of a tool is made a text again, but a denial must
/// stay an error.
fn replacement(result: Value) -> ToolDecision {
    let message = result.get("message").and_then(Value::as_str);
    let denial = message.map(|message| ToolDecision::denial_error("", Some(message)).to_value());
    match message {
        Some(message) if denial.as_ref() == Some(&result) => {
            ToolDecision::Deny(Some(message.to_owned()))
        }
        _ => ToolDecision::Replace(result),
    }
}

/// Returns whether a recorded result is of a call that ran: it was not denied, skipped or invalid.
fn has_run(result: &Value) -> bool {
    match result {
        Value::String(text) => !text.starts_with("[not run"),
        Value::Object(fields) => !(fields.contains_key("kind") && fields.contains_key("message")),
        _ => true,
    }
}

/// Returns whether a recorded tool call is this one.
fn is_same_call(recorded: &Value, call: &ToolCall, turn: &Turn) -> bool {
    let text = |path: &str| recorded.pointer(path).and_then(Value::as_str);
    if text("/function/name") != Some(&*call.tool.replace('.', "_")) {
        return false;
    }
    let arguments = text("/function/arguments").unwrap_or_default();
    let arguments: Map<String, Value> = serde_json::from_str(arguments).unwrap_or_default();
    let tools = turn.framework().tools();
    let tool = tools.iter().find(|tool| tool.spec().name == call.tool);
    let arguments = match tool {
        Some(tool) => tool.spec().resolve_aliases(arguments),
        None => arguments,
    };
    arguments == call.arguments
}

impl Recording {
    /// Returns the index after the last entry of a turn. Entries between turns, such as those of a comma command,
    /// belong to no turn.
    pub(crate) fn turn_end(&self, index: usize) -> usize {
        let next = self.turns.get(index + 1).map(|turn| turn.start);
        let turn = self.turns.get(index);
        let (start, limit) = turn.map_or((0, 0), |turn| (turn.start, turn.limit));
        let limit = next.unwrap_or(limit).min(limit);
        let entries = self.entries.get(start..limit).unwrap_or_default();
        let last = entries
            .iter()
            .rposition(|entry| matches!(entry.name(), Some("loop.step" | "run")));
        last.map_or(limit, |last| start + last + 1)
    }

    /// Returns the position of the call after this one, or the end of the turn.
    fn next_position(&self, index: usize) -> usize {
        let mut turns = self.turns.iter().enumerate();
        let turn = turns.find(|(_, turn)| turn.calls.contains(&index));
        let end = turn.map_or(self.entries.len(), |(number, _)| self.turn_end(number));
        let next = self.calls.get(index + 1).map(|call| call.position);
        next.unwrap_or(end).min(end)
    }
}
