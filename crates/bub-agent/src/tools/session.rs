//! The comma commands that change a session or switch to another session.

use std::{collections::HashSet, sync::Arc};

use bub_kernel::{
    Error, ModelOptions, Result, Sender, SessionId, ToolContext, command_prefix, tape_error, tools,
};
use bub_tape::{TapeListFilter, TapeName};
use serde_json::{Value, json};

use crate::{agent::Agent, sessions, truncate};

/// The reasoning efforts that providers accept.
pub const REASONING_EFFORTS: [&str; 8] = [
    "none", "minimal", "low", "medium", "high", "xhigh", "max", "auto",
];

/// The argument of the command `,model` that selects the configured model.
const DEFAULT_MODEL_WORD: &str = "default";

/// Maximum number of models that `,model` lists.
const MAX_LISTED_MODELS: usize = 20;

/// Maximum length of a title in the list of sessions.
const MAX_LISTED_TITLE_CHARS: usize = 40;

/// The comma commands for sessions, such as `,new` and `,resume`.
pub(crate) struct SessionTools {
    pub(crate) agent: Arc<Agent>,
}

#[tools(crate = bub_kernel)]
impl SessionTools {
    /// Stop background shells and other turns of this session
    #[tool(command_only)]
    async fn quit(&self, context: &ToolContext) -> Result<String> {
        let session_id = context.turn.session_id();
        self.agent.shells.stop_session(session_id).await;
        if let Some(router) = context.turn.framework().router() {
            let message_id = context.turn.message_id();
            router.quit_session(session_id, message_id).await?;
        }
        Ok("Session tasks stopped.".to_owned())
    }

    /// Show or set the model of this session, from the next turn
    #[tool(command_only)]
    async fn model(
        &self,
        context: &ToolContext,
        /// Model as `provider:model`, a number of the choices, or `default` for the configured model; omit it to show the choices
        #[default("")]
        model_id: String,
    ) -> Result<String> {
        let model = model_id.trim();
        if model == DEFAULT_MODEL_WORD {
            append_event(context, "model_switch", json!({"model": null})).await?;
            context.state().remove("model");
            return Ok(
                "Session model set to the configured model (applies from the next turn)."
                    .to_owned(),
            );
        }
        let (framework, session_id) = (context.turn.framework(), context.turn.session_id());
        // An invalid model would make every later turn fail. Models that a plugin offers need no check.
        let chosen = match self.agent.resolve_model(model) {
            Ok(_) => model.to_owned(),
            Err(error) => {
                let mut options = framework.model_options(session_id).await?;
                let mut known = HashSet::new();
                options
                    .choices
                    .retain(|choice| known.insert(choice.id.clone()));
                if model.is_empty() {
                    return Ok(format_model_choices(context, options));
                }
                let mut choices = options.choices.into_iter().map(|choice| choice.id);
                let choice = match model.parse::<usize>() {
                    Ok(number) => choices.nth(number.wrapping_sub(1)),
                    Err(_) => choices.find(|id| id == model),
                };
                choice.ok_or(error)?
            }
        };
        let model = chosen.as_str();
        append_event(context, "model_switch", json!({"model": model})).await?;
        context.state().set("model", model);
        Ok(format!(
            "Session model set to {model} (applies from the next turn)."
        ))
    }

    /// Set the reasoning effort of this session, from the next turn
    #[tool(command_only)]
    async fn reasoning_effort(
        &self,
        context: &ToolContext,
        /// One of: none, minimal, low, medium, high, xhigh, max, auto
        reasoning_effort: String,
    ) -> Result<String> {
        let effort = reasoning_effort.trim();
        if !REASONING_EFFORTS.contains(&effort) {
            let available = REASONING_EFFORTS.join(", ");
            return Err(Error::invalid_input(format!(
                "unknown reasoning effort `{effort}`; available: {available}"
            )));
        }
        let event = json!({"reasoning_effort": effort});
        append_event(context, "reasoning_effort_switch", event).await?;
        context.state().set("reasoning_effort", effort);
        Ok(format!(
            "Session reasoning effort set to {effort} (applies from the next turn)."
        ))
    }

    /// Start a new session in this chat; the current one is kept
    #[tool(name = "new", command_only)]
    async fn new_session(&self, context: &ToolContext) -> Result<String> {
        let current = context.turn.session_id();
        let new = sessions::new_session_id(current);
        switch_session(context, &new).await?;
        Ok(format!(
            "New session: {new}\nThe old session is kept; to return, type: {}resume {current}",
            command_prefix()
        ))
    }

    /// List the sessions of this chat, newest first. At a terminal, also lists other terminal sessions of this
    /// workspace.
    #[tool(command_only, read_only)]
    async fn sessions(&self, context: &ToolContext) -> Result<String> {
        let current = context.turn.session_id();
        let (chat_sessions, other_sessions) = list_sessions(context).await?;
        let all = chat_sessions.iter().chain(&other_sessions);
        let id_width = all.map(|row| row.id.chars().count()).max().unwrap_or(0);
        let format_list = |mut list: Vec<SessionRow>| {
            list.sort_by(|left, right| right.cmp(left));
            let lines = list.iter().map(|SessionRow { date, id, title }| {
                let mark = if current == id { "*" } else { "-" };
                let day = date.get(..16).unwrap_or(date);
                let title = title.as_deref().unwrap_or_default();
                let title = truncate(title, MAX_LISTED_TITLE_CHARS);
                let line = format!("{mark} {id:id_width$}  {day}  {title}");
                line.trim_end().to_owned()
            });
            lines.collect::<Vec<_>>().join("\n")
        };
        let mut text = if chat_sessions.is_empty() {
            "(no sessions)".to_owned()
        } else {
            format_list(chat_sessions)
        };
        if !other_sessions.is_empty() {
            text.push_str(
                "\n\nOther sessions of this workspace (open one with `bub chat --session ID`):\n",
            );
            text.push_str(&format_list(other_sessions));
        }
        Ok(text)
    }

    /// Switch to an earlier session of this chat
    #[tool(command_only)]
    async fn resume(
        &self,
        context: &ToolContext,
        /// Session id from `sessions`, or the start of one
        session_id: String,
    ) -> Result<String> {
        let current = context.turn.session_id();
        let target = find_chat_session(context, session_id.trim()).await?;
        let is_other = sessions::session_chat_id(&target) != sessions::session_chat_id(current);
        let (_, others) = list_sessions(context).await?;
        if is_other && others.iter().any(|row| target == row.id) {
            let hint = if is_at_terminal(context) {
                format!("; open it with `bub chat --session {target}`")
            } else {
                format!("; type `{}sessions` to list the sessions", command_prefix())
            };
            let text = format!("`{target}` is not a session of this chat{hint}");
            return Err(Error::invalid_input(text));
        }
        let tape = context.turn.framework().session_tape(&target)?;
        let tape = tape.ok_or_else(no_tape_error)?;
        // Users of a chat must not learn which sessions other chats have.
        if is_other || tape.summary().await.map_err(tape_error)?.entries == 0 {
            return Err(Error::not_found(format!(
                "unknown session `{target}`; type `{}sessions` to list the sessions",
                command_prefix()
            )));
        }
        switch_session(context, &target).await?;
        Ok(format!("Resumed session: {target}"))
    }
}

/// Formats the current model of the session and the models to choose from, with the number that selects each.
fn format_model_choices(context: &ToolContext, options: ModelOptions) -> String {
    let current = context.state().get_str("model").or(options.current);
    let mut lines = vec![match &current {
        Some(name) => format!("Session model: {name}."),
        None => "Session model: none is configured.".to_owned(),
    }];
    let choices = options.choices.iter().zip(1..);
    for (choice, number) in choices.take(MAX_LISTED_MODELS) {
        let is_current = current.as_ref() == Some(&choice.id);
        let mark = if is_current { "*" } else { "-" };
        let label = choice.label.as_deref().unwrap_or_default();
        let line = format!("{mark} {number}: {}  {label}", choice.id);
        lines.push(line.trim_end().to_owned());
    }
    let hidden = options.choices.len().saturating_sub(MAX_LISTED_MODELS);
    if hidden > 0 {
        lines.push(format!("… and {hidden} more; see `bub models`"));
    }
    let prefix = command_prefix();
    lines.push(format!(
        "To change it, type: {prefix}model provider:model, a number of the list, or {prefix}model default"
    ));
    lines.join("\n")
}

/// A session in the list of sessions. The order is that of the dates.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SessionRow {
    /// Date of the last entry.
    date: String,
    id: String,
    title: Option<String>,
}

/// Returns the sessions of this chat in this workspace, and the other sessions that the sender may open.
async fn list_sessions(context: &ToolContext) -> Result<(Vec<SessionRow>, Vec<SessionRow>)> {
    let (turn, tape) = (&context.turn, context.tape());
    let chat = sessions::session_chat_id(turn.session_id());
    let (mut chat_sessions, mut other_sessions) = (Vec::new(), Vec::new());
    let names = tape.store().list(TapeListFilter::Sessions).await;
    for name in names.map_err(tape_error)? {
        let summary = tape.store().summary(&name).await.map_err(tape_error)?;
        let Some(session) = summary.session else {
            continue;
        };
        if session.workspace.as_deref() != Some(turn.framework().workspace_text()) {
            continue;
        }
        let is_from_terminal = session.channel == Some(Sender::terminal().channel);
        let row = SessionRow {
            date: summary.last_date.unwrap_or_default(),
            id: session.session_id,
            title: summary.title,
        };
        if sessions::session_chat_id(&row.id) == chat {
            chat_sessions.push(row);
        } else if is_at_terminal(context) && is_from_terminal {
            other_sessions.push(row);
        }
    }
    Ok((chat_sessions, other_sessions))
}

/// Finds the session of this chat whose id is `text`, or else the only one whose id, or the timestamp in it, starts with
/// `text`. Returns `text` if no session matches.
async fn find_chat_session(context: &ToolContext, text: &str) -> Result<SessionId> {
    let (rows, _) = list_sessions(context).await?;
    let mut ids: Vec<_> = rows.into_iter().map(|row| row.id).collect();
    if text.is_empty() || ids.iter().any(|id| id == text) {
        return Ok(SessionId::from(text));
    }
    ids.retain(|id| {
        let stamp = id.strip_prefix(sessions::session_chat_id(id));
        let stamp = stamp.and_then(|stamp| stamp.strip_prefix(sessions::SESSION_SEPARATOR));
        id.starts_with(text) || stamp.is_some_and(|stamp| stamp.starts_with(text))
    });
    match ids.as_slice() {
        [] => Ok(SessionId::from(text)),
        [id] => Ok(SessionId::from(id.as_str())),
        ids => Err(Error::invalid_input(format!(
            "`{text}` matches {} sessions: {}; type more of the id",
            ids.len(),
            ids.join(", ")
        ))),
    }
}

async fn append_event(context: &ToolContext, name: &str, data: Value) -> Result<()> {
    let appended = context.tape().append_event(name, data).await;
    appended.map(drop).map_err(tape_error)
}

/// Returns whether the sender is the user at the terminal. That user may open all terminal sessions.
fn is_at_terminal(context: &ToolContext) -> bool {
    *context.turn.sender() == Sender::terminal()
}

/// Makes `target` the current session of the chat. Records the switch on the tape of the chat's first session.
pub(super) async fn switch_session(context: &ToolContext, target: &SessionId) -> Result<()> {
    let turn = &context.turn;
    let chat = sessions::session_chat_id(turn.session_id());
    let chat = TapeName::for_session(turn.framework().workspace_text(), chat);
    sessions::record_session_switch(&**context.tape().store(), &chat, target).await?;
    turn.switch_session(target.clone());
    Ok(())
}

fn no_tape_error() -> Error {
    Error::not_found("cannot resume: no plugin provides a tape store; see `bub hooks`")
}
