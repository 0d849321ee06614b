//! What changes the session itself: its phase, its model, its tape, which one it is.

use std::sync::Arc;

use bub_kernel::{
    Error, ErrorKind, ModelOptions, Result, Sender, SessionId, ToolContext, tape_error, tools,
};
use bub_tape::{Entry, TapeListFilter, TapeName};
use serde_json::json;

use crate::{agent::Agent, sessions};

/// What providers know.
const REASONING_EFFORTS: [&str; 8] = [
    "none", "minimal", "low", "medium", "high", "xhigh", "max", "auto",
];

/// What stands for the configured model.
const DEFAULT_MODEL_WORD: &str = "default";

/// The commands that change a session.
#[derive(Debug)]
pub(crate) struct SessionTools {
    agent: Arc<Agent>,
}

impl SessionTools {
    pub(crate) fn with_agent(agent: Arc<Agent>) -> Self {
        Self { agent }
    }
}

#[tools(crate = bub_kernel)]
impl SessionTools {
    /// Stops what runs in this session: background commands and other turns.
    #[tool(command_only)]
    async fn quit(&self, context: &ToolContext) -> Result<String> {
        let session_id = context.turn.session_id();
        self.agent.shells().stop_session(session_id).await;
        if let Some(router) = context.turn.framework().router() {
            router.quit(session_id, context.turn.message_id()).await?;
        }
        Ok("Session tasks stopped.".to_owned())
    }

    /// Chooses the model of this session, from the next turn on.
    #[tool(command_only)]
    async fn model(
        &self,
        context: &ToolContext,
        /// As `provider:model`, or `default` for the configured one; without it, the choices are shown.
        #[default("")]
        model_id: String,
    ) -> Result<String> {
        let chosen = model_id.trim();
        if chosen == DEFAULT_MODEL_WORD {
            context
                .tape()
                .event("model_switch", json!({"model": null}))
                .await
                .map_err(tape_error)?;
            context.state().remove("model");
            return Ok(
                "Session model set to the configured one (applies from the next turn).".to_owned(),
            );
        }
        let offered = context
            .turn
            .framework()
            .model_options(context.turn.session_id())
            .await?;
        if chosen.is_empty() {
            return Ok(choices(context.state().get_str("model"), &offered));
        }
        // One that cannot be would fail every turn from now on. What a plugin offers, it knows.
        if !offered.choices.iter().any(|choice| choice.id == chosen) {
            self.agent.resolve(chosen)?;
        }
        context
            .tape()
            .event("model_switch", json!({"model": chosen}))
            .await
            .map_err(tape_error)?;
        context.state().set("model", chosen);
        Ok(format!(
            "Session model set to {chosen} (applies from the next turn)."
        ))
    }

    /// Chooses how hard the model of this session thinks, from the next turn on.
    #[tool(command_only)]
    async fn reasoning_effort(
        &self,
        context: &ToolContext,
        /// One of: none, minimal, low, medium, high, xhigh, max, auto.
        reasoning_effort: String,
    ) -> Result<String> {
        let chosen = reasoning_effort.trim();
        if !REASONING_EFFORTS.contains(&chosen) {
            let known = REASONING_EFFORTS.join(", ");
            return Err(Error::invalid_input(format!(
                "there is no reasoning effort `{chosen}`; there are: {known}"
            )));
        }
        let event = json!({"reasoning_effort": chosen});
        context
            .tape()
            .event("reasoning_effort_switch", event)
            .await
            .map_err(tape_error)?;
        context.state().set("reasoning_effort", chosen);
        Ok(format!(
            "Session reasoning effort set to {chosen} (applies from the next turn)."
        ))
    }

    /// Begins a fresh session in this chat. The old one stays, and can be resumed.
    #[tool(name = "new", command_only)]
    async fn new_session(&self, context: &ToolContext) -> Result<String> {
        let old = context.turn.session_id();
        let fresh = sessions::fresh_id(old);
        switch(context, &fresh).await?;
        Ok(format!(
            "New session: {fresh}\nThe old one is kept; go back with: ,resume {old}"
        ))
    }

    /// Lists the sessions of this chat, the latest first; at a terminal also the others of this workspace's terminals.
    #[tool(command_only, read_only)]
    async fn sessions(&self, context: &ToolContext) -> Result<String> {
        let current = context.turn.session_id();
        let tape = context.tape();
        let (mut found, mut others) = (Vec::new(), Vec::new());
        for name in tape
            .store()
            .list(TapeListFilter::Sessions)
            .await
            .map_err(tape_error)?
        {
            let summary = tape.store().summary(&name).await.map_err(tape_error)?;
            let Some(session) = summary.session else {
                continue;
            };
            let is_here =
                session.workspace.as_deref() == Some(context.turn.framework().workspace_text());
            let is_own = sessions::chat_id_of(&session.session_id) == sessions::chat_id_of(current);
            let is_known = is_own
                || (is_at_terminal(context) && session.channel == Some(Sender::terminal().channel));
            if is_here && is_known {
                let list = if is_own { &mut found } else { &mut others };
                list.push((
                    summary.last_date.unwrap_or_default(),
                    session.session_id,
                    summary.title,
                ));
            }
        }
        let listed = |mut list: Vec<(String, String, Option<String>)>| {
            list.sort_by(|one, other| other.cmp(one));
            let line = |(date, id, title): &(String, String, Option<String>)| {
                let mark = if current == id { "*" } else { "-" };
                let day = date.get(..16).unwrap_or(date);
                format!("{mark} {id}  {day}  {}", title.as_deref().unwrap_or(""))
            };
            list.iter().map(line).collect::<Vec<_>>().join("\n")
        };
        let mut text = if found.is_empty() {
            "(no sessions)".to_owned()
        } else {
            listed(found)
        };
        if !others.is_empty() {
            text.push_str(
                "\n\nOther sessions of this workspace; `bub chat --session ID` opens one:\n",
            );
            text.push_str(&listed(others));
        }
        Ok(text)
    }

    /// Goes back to an earlier session of this chat.
    #[tool(command_only)]
    async fn resume(
        &self,
        context: &ToolContext,
        /// Its id, as `sessions` shows it.
        session_id: String,
    ) -> Result<String> {
        let (old, wanted) = (
            context.turn.session_id(),
            SessionId::from(session_id.trim()),
        );
        if sessions::chat_id_of(&wanted) != sessions::chat_id_of(old) {
            let how = if is_at_terminal(context) {
                format!("; `bub chat --session {wanted}` opens it")
            } else {
                String::new()
            };
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("{wanted} is not a session of this chat{how}"),
            ));
        }
        let known = context
            .turn
            .framework()
            .session_tape(&wanted)?
            .ok_or_else(no_tape)?;
        if known.summary().await.map_err(tape_error)?.entries == 0 {
            return Err(Error::not_found(format!(
                "there is no session {wanted}; `,sessions` lists them"
            )));
        }
        switch(context, &wanted).await?;
        Ok(format!("Resumed session: {wanted}"))
    }
}

/// The model of the session, and those that plugins offer.
fn choices(own: Option<String>, offered: &ModelOptions) -> String {
    let current = own.or_else(|| offered.current.clone());
    let mut lines = vec![format!(
        "Session model: {}.",
        current.as_deref().unwrap_or("the configured one")
    )];
    lines.extend(offered.choices.iter().map(|choice| {
        let mark = if current.as_deref() == Some(choice.id.as_str()) {
            "*"
        } else {
            "-"
        };
        format!(
            "{mark} {}  {}",
            choice.id,
            choice.label.as_deref().unwrap_or_default()
        )
        .trim_end()
        .to_owned()
    }));
    lines.push("Choose with: ,model provider:model, or ,model default".to_owned());
    lines.join("\n")
}

/// Whether a person at the terminal asks, whose every session is.
fn is_at_terminal(context: &ToolContext) -> bool {
    *context.turn.sender() == Sender::terminal()
}

/// The tape of the chat's first session says which one is in use.
async fn switch(context: &ToolContext, wanted: &SessionId) -> Result<()> {
    let turn = &context.turn;
    let chat = sessions::chat_id_of(turn.session_id());
    let name = TapeName::for_session(turn.framework().workspace_text(), chat);
    let data = json!({"session_id": wanted});
    let event = Entry::event(sessions::SESSION_SWITCH_EVENT, Some(data)).outside_context();
    let store = context.tape().store();
    store.append(&name, vec![event]).await.map_err(tape_error)?;
    turn.switch_session(wanted.clone());
    Ok(())
}

fn no_tape() -> Error {
    Error::not_found("there is no tape in this turn")
}
