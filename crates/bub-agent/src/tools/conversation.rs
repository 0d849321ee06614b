//! The comma commands about the conversation of a session: `,undo`, `,compact`, `,usage`, `,status` and `,export`.

use std::{borrow::Cow, fmt::Write as _, pin::pin, sync::Arc};

use bub_kernel::{
    Error, ErrorKind, Prompt, Result, Sender, ToolContext, tape_error, tool::run_blocking, tools,
};
use bub_tape::{
    Entry, EntryKind, EntryRange, HandoffSlots, SessionInfo, handoff_entries, message_text,
};
use futures_util::TryStreamExt as _;
use serde_json::{Value, json};

use super::session::switch_session;
use crate::{
    agent::Agent,
    agent_loop::{
        HandoffBudget, HandoffCall, HandoffParts, PhaseEntries, UNKNOWN_WINDOW, estimate_tokens,
    },
    conversation::ConversationPart,
    files::FileUse,
    sessions,
    settings::AgentSettings,
    truncate,
    usage::{UsageRow, read_model_calls},
};

/// Maximum characters of the message that `,undo` names.
const MAX_QUOTE_CHARS: usize = 60;
/// Name of the anchor that `,compact` adds.
const COMPACT_ANCHOR: &str = "compact";
/// The comma commands about the conversation of a session.
pub(crate) struct ConversationTools {
    pub(crate) agent: Arc<Agent>,
}

#[tools(crate = bub_kernel)]
impl ConversationTools {
    /// Continue in a new session that ends before the last turn. The old session is kept, and files stay as they are.
    #[tool(command_only)]
    async fn undo(&self, context: &ToolContext) -> Result<String> {
        let (tape, current) = (context.tape(), context.turn.session_id());
        let mut entries = tape.entries(EntryRange::ALL).await.map_err(tape_error)?;
        let Some(prompt) = entries.iter().rposition(is_user_message) else {
            return Err(Error::not_found(
                "nothing to undo: this session has no message yet",
            ));
        };
        let text = entries.get(prompt).map(quote_message).unwrap_or_default();
        entries.truncate(turn_start(&entries, prompt));
        let new = sessions::new_session_id(current);
        // Before the first turn, there is nothing to copy.
        if entries
            .iter()
            .any(|entry| entry.kind != EntryKind::Event && !is_start(entry))
        {
            let framework = context.turn.framework();
            let target = framework.session_tape(&new)?;
            let target = target.ok_or_else(|| Error::not_found("no plugin stores tapes"))?;
            let mut info = SessionInfo::new(new.as_str());
            info.workspace = Some(framework.workspace_text().to_owned());
            info.channel = context.turn.message().channel().map(Cow::into_owned);
            let copied = tape.copy_to(&target, entries, &info).await;
            copied.map_err(tape_error)?;
        }
        switch_session(context, &new).await?;
        Ok(format!(
            "Undid the turn: {text}\nNew session: {new}\nFiles are not changed back. The old session is kept; to return, \
             type: ,resume {current}"
        ))
    }

    /// Shorten the context: the model summarizes the conversation and continues from its summary
    #[tool(command_only)]
    async fn compact(&self, context: &ToolContext) -> Result<String> {
        let (agent, turn) = (&self.agent, &context.turn);
        let before = context.tape().info().await?.entries_since_last_anchor;
        let phase = PhaseEntries::read(context.tape()).await?;
        if !phase.has_content() {
            return Err(Error::not_found(
                "nothing to compact: this session has no message since the last handoff",
            ));
        }
        let (models, _) = agent.candidate_models(context.state()).await?;
        let window = models.first().and_then(|model| agent.context_window(model));
        let window = window.unwrap_or(UNKNOWN_WINDOW);
        let model = models.first().map(ToString::to_string).unwrap_or_default();
        let view = turn.tape().build_view(&model, None).await?;
        let written = agent.write_handoff(HandoffCall {
            turn,
            models: &models,
            messages: &view.messages,
            window,
            cancel: &context.cancel,
        });
        let written = match written.await {
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
            written => written,
        };
        let system = turn
            .framework()
            .system_prompt(&Prompt::Text(String::new()), turn)?;
        let fixed =
            estimate_tokens([&system.into()]) + agent.turn_tool_set(turn)?.offer(&[]).tokens;
        let fixed = agent.calibration.correct_estimate(&model, fixed);
        let answer = agent.settings.get(AgentSettings::MAX_TOKENS);
        // The next message needs room, too.
        let budget = HandoffBudget::new(window, fixed + window / 10, answer);
        let state = HandoffParts {
            phase: &phase,
            candidates: Vec::new(),
            written: written.as_deref().unwrap_or_default(),
            todo: &turn.tape().summary().await?.todo,
            budget: budget.to_estimates(&agent.calibration, &model),
        };
        let state = Value::Object(state.into_state());
        let run = [("run_id".to_owned(), turn.tape().run_id().into())];
        let slots = HandoffSlots::from_state(&state).unwrap_or_default();
        let summary = state
            .get("summary")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let text = format!("{summary}\n{}", slots.to_text(true));
        let entries = handoff_entries(COMPACT_ANCHOR, Some(state), run.into_iter().collect());
        turn.tape().append(entries).await?;
        let author = match written {
            Ok(_) => "the model continues from this summary".to_owned(),
            Err(error) => format!(
                "the model wrote no summary ({}), so it continues from this digest of the tape",
                error.message()
            ),
        };
        Ok(format!(
            "Compacted {before} entries; {author}:\n\n{}",
            text.trim()
        ))
    }

    /// Show the tokens and the cost of this session, by model
    #[tool(command_only, read_only)]
    async fn usage(&self, context: &ToolContext) -> Result<String> {
        let rows = self.session_usage(context).await?;
        if rows.is_empty() {
            return Ok("(no model calls in this session)".to_owned());
        }
        let lines = rows.iter().map(|row| {
            let (calls, tokens) = (row.calls, &row.tokens);
            let cached = match tokens.cached {
                0 => String::new(),
                cached => format!(" ({cached} cached)"),
            };
            format!(
                "{}: {calls} {}, {} input tokens{cached}, {} output tokens, {}",
                row.name,
                if calls == 1 { "call" } else { "calls" },
                tokens.input,
                tokens.output,
                cost_text(row)
            )
        });
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// Show the session, model, effort, context and cost
    #[tool(command_only, read_only)]
    async fn status(&self, context: &ToolContext) -> Result<String> {
        let (summary, turn) = (context.turn.tape().summary().await?, &context.turn);
        let (models, _) = self.agent.candidate_models(context.state()).await?;
        let model = models.first();
        let mut text = format!("session: {}", turn.session_id());
        let name = model.map_or_else(|| "not configured".to_owned(), ToString::to_string);
        // Writing to a string cannot fail.
        let _ = write!(text, "\nmodel: {name}");
        let effort = context.state().get_str("reasoning_effort");
        let effort = effort.filter(|effort| !effort.is_empty());
        let effort = effort.as_deref().unwrap_or("default");
        let _ = write!(text, "\nreasoning effort: {effort}");
        let used = summary.usage.map(|usage| usage.total_tokens.max(0));
        let used = used.and_then(|used| u64::try_from(used).ok()).unwrap_or(0);
        let window = model.and_then(|model| self.agent.context_window(model));
        let _ = match window {
            Some(window) => {
                let left = context_left(used, window);
                write!(
                    text,
                    "\ncontext: {used} of {window} tokens used, {left} % left"
                )
            }
            None => write!(text, "\ncontext: {used} tokens used"),
        };
        let mut sum = UsageRow::default();
        for row in self.session_usage(context).await? {
            sum += &row;
        }
        let _ = write!(text, "\ncost: {}", cost_text(&sum));
        if *turn.sender() == Sender::terminal() {
            let workspace = turn.framework().workspace_text();
            let _ = write!(text, "\nworkspace: {workspace}");
        }
        Ok(text)
    }

    /// Write the conversation to a Markdown file in the workspace
    #[tool(command_only)]
    async fn export(
        &self,
        context: &ToolContext,
        /// The file; a name with the date by default
        #[default("")]
        path: String,
    ) -> Result<String> {
        let entries = context.tape().entries(EntryRange::ALL).await;
        let entries = entries.map_err(tape_error)?;
        if !entries.iter().any(is_user_message) {
            return Err(Error::not_found(
                "nothing to export: this session has no message yet",
            ));
        }
        let mut text = format!("# {}\n\n", context.turn.session_id());
        for part in entries.iter().flat_map(ConversationPart::from_entry) {
            text.push_str(&part.format_markdown());
        }
        let is_hidden = |char: char| char.is_control() && !matches!(char, '\n' | '\t');
        text.retain(|char| !is_hidden(char));
        let text = self.agent.settings.redactor().redact(&text).into_owned();
        let path = match path.trim() {
            "" => {
                let stamp = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S");
                format!("conversation-{stamp}.md")
            }
            path => path.to_owned(),
        };
        let (files, context) = (Arc::clone(&self.agent.files), context.clone());
        run_blocking(move || {
            let file = files.find(&context, &path, FileUse::Create)?;
            // Also if it cannot be read.
            if file.path().symlink_metadata().is_ok() {
                let shown = file.shown_path().display();
                return Err(Error::invalid_input(format!(
                    "{shown} exists already; choose another name"
                )));
            }
            file.replace(text.as_bytes())?;
            Ok(format!("Exported to {}", file.shown_path().display()))
        })
        .await?
    }
}

impl ConversationTools {
    /// Returns the usage of the session, one row per model, in the order of their first call.
    async fn session_usage(&self, context: &ToolContext) -> Result<Vec<UsageRow>> {
        let models = self.agent.models.clone()?;
        let (tape, mut rows) = (context.tape(), Vec::<UsageRow>::new());
        let calls = read_model_calls(&**tape.store(), tape.name(), EntryRange::ALL);
        let mut calls = pin!(calls);
        while let Some(call) = calls.try_next().await.map_err(tape_error)? {
            let index = rows.iter().position(|row| row.name == call.model);
            let index = index.unwrap_or_else(|| {
                rows.push(UsageRow {
                    name: call.model.clone(),
                    ..UsageRow::default()
                });
                rows.len() - 1
            });
            if let Some(row) = rows.get_mut(index) {
                row.add_call(&call.model, call.tokens, models.catalog());
            }
        }
        Ok(rows)
    }
}

/// Returns how much of a context window is left, in percent.
pub fn context_left(used: u64, window: u64) -> u64 {
    100 - (used.min(window) * 100).div_ceil(window.max(1))
}

fn cost_text(row: &UsageRow) -> String {
    match row.unpriced {
        0 => format!("${:.4}", row.cost),
        all if all == row.calls => "unknown price".to_owned(),
        1 => format!("${:.4} and 1 call of unknown price", row.cost),
        some => format!("${:.4} and {some} calls of unknown price", row.cost),
    }
}

fn is_user_message(entry: &Entry) -> bool {
    entry.kind == EntryKind::Message && entry.payload.get("role") == Some(&json!("user"))
}

/// Returns whether an entry is the anchor at the start of a session.
fn is_start(entry: &Entry) -> bool {
    entry.kind == EntryKind::Anchor && entry.name() == Some(bub_tape::SESSION_START)
}

/// Returns the index of the first entry of the turn to which the message at `prompt` belongs.
fn turn_start(entries: &[Entry], prompt: usize) -> usize {
    let run_id = |entry: &Entry| entry.meta.get("run_id").cloned();
    let Some(run) = entries.get(prompt).and_then(run_id) else {
        return prompt;
    };
    let first = entries
        .iter()
        .position(|entry| run_id(entry).as_ref() == Some(&run));
    first.map_or(prompt, |first| first.min(prompt))
}

fn quote_message(entry: &Entry) -> String {
    let text = message_text(&entry.payload).map_or("", |(_, text)| text);
    let words: Vec<_> = text.split_whitespace().collect();
    truncate(&words.join(" "), MAX_QUOTE_CHARS)
}
