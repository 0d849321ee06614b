//! What changes the session itself: its phase, its model, its tape, which one it is.

use std::sync::Arc;

use bub_kernel::{Error, ErrorKind, Framework, ModelOptions, Result, Sender, ToolContext, tool};
use bub_tape::{Listing, Tape, TapeName};
use serde_json::json;

use crate::{
    agent::Agent,
    record::{session_tape, tape_error},
    sessions,
    shell::Shells,
    turn::{StepRequest, StepRequests},
};

/// What providers know.
const EFFORTS: [&str; 8] = [
    "none", "minimal", "low", "medium", "high", "xhigh", "max", "auto",
];

/// What stands for the configured model.
const CONFIGURED: &str = "default";

/// Starts the tape anew: everything before leaves your sight.
#[tool(crate = bub_kernel, name = "tape.reset")]
pub(crate) async fn tape_reset(
    context: &ToolContext,
    /// Whether the old content is kept in a file of its own.
    archive: Option<bool>,
) -> Result<String> {
    // A person who leaves it out wants it gone, as in the original; what a model forgets, people may want back.
    if let Some(requests) = context.state.slot::<StepRequests>() {
        requests.add(StepRequest::Reset {
            archive: archive.unwrap_or(true),
        });
        return Ok("the tape is reset with the end of this step".to_owned());
    }
    let archive = archive.unwrap_or(false);
    let report = tape(context)?.reset(archive).await.map_err(tape_error)?;
    Ok(report.archived.map_or_else(
        || "tape reset".to_owned(),
        |path| format!("tape reset; archived: {path}"),
    ))
}

/// Begins a new phase: everything before it leaves your sight, except for the summary and the message you are answering.
#[tool(crate = bub_kernel, name = "tape.handoff")]
pub(crate) async fn tape_handoff(
    context: &ToolContext,
    /// The name of the new anchor.
    #[default("handoff")]
    name: String,
    /// All that the next phase needs: goal, latest instruction, what is done, in progress and next, files.
    #[default("")]
    summary: String,
) -> Result<String> {
    let answer = format!("anchor added: {name}");
    if let Some(requests) = context.state.slot::<StepRequests>() {
        requests.add(StepRequest::HandOff { name, summary });
    } else {
        let summary = json!({"summary": summary});
        tape(context)?
            .handoff(&name, Some(summary))
            .await
            .map_err(tape_error)?;
    }
    Ok(answer)
}

/// Stops what runs in this session: background commands and other turns.
#[tool(crate = bub_kernel, command_only)]
pub(crate) async fn quit(context: &ToolContext) -> Result<String> {
    let session_id = session_id(context)?;
    if let Some(shells) = context.state.slot::<Shells>() {
        shells.stop_session(&session_id).await;
    }
    if let Some(router) = framework(context)?.router() {
        router.quit(&session_id).await?;
    }
    Ok("Session tasks stopped.".to_owned())
}

/// Chooses the model of this session, from the next turn on.
#[tool(crate = bub_kernel, command_only)]
pub(crate) async fn model(
    context: &ToolContext,
    /// As `provider:model`, or `default` for the configured one; without it, the choices are shown.
    #[default("")]
    model_id: String,
) -> Result<String> {
    let chosen = model_id.trim();
    if chosen == CONFIGURED {
        tape(context)?
            .event("model_switch", json!({"model": null}))
            .await
            .map_err(tape_error)?;
        context.state.remove("model");
        return Ok(
            "Session model set to the configured one (applies from the next turn).".to_owned(),
        );
    }
    let offered = framework(context)?
        .model_options(&session_id(context)?)
        .await?;
    if chosen.is_empty() {
        return Ok(choices(context.state.get_str("model"), &offered));
    }
    // One that cannot be would fail every turn from now on. What a plugin offers, it knows.
    if !offered.choices.iter().any(|choice| choice.id == chosen) {
        agent(context)?.resolve(chosen)?;
    }
    tape(context)?
        .event("model_switch", json!({"model": chosen}))
        .await
        .map_err(tape_error)?;
    context.state.set("model", chosen);
    Ok(format!(
        "Session model set to {chosen} (applies from the next turn)."
    ))
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

/// Chooses how hard the model of this session thinks, from the next turn on.
#[tool(crate = bub_kernel, command_only)]
pub(crate) async fn reasoning_effort(
    context: &ToolContext,
    /// One of: none, minimal, low, medium, high, xhigh, max, auto.
    reasoning_effort: String,
) -> Result<String> {
    let chosen = reasoning_effort.trim();
    if !EFFORTS.contains(&chosen) {
        let known = EFFORTS.join(", ");
        return Err(Error::invalid_input(format!(
            "there is no reasoning effort `{chosen}`; there are: {known}"
        )));
    }
    let event = json!({"reasoning_effort": chosen});
    tape(context)?
        .event("reasoning_effort_switch", event)
        .await
        .map_err(tape_error)?;
    context.state.set("reasoning_effort", chosen);
    Ok(format!(
        "Session reasoning effort set to {chosen} (applies from the next turn)."
    ))
}

/// Begins a fresh session in this chat. The old one stays, and can be resumed.
#[tool(crate = bub_kernel, command_only)]
pub(crate) async fn new(context: &ToolContext) -> Result<String> {
    let old = session_id(context)?;
    let fresh = sessions::fresh_id(&old);
    switch(context, &old, &fresh).await?;
    Ok(format!(
        "New session: {fresh}\nThe old one is kept; go back with: ,resume {old}"
    ))
}

/// Lists the sessions of this chat, the latest first; at a terminal also the others of this workspace's terminals.
#[tool(crate = bub_kernel, command_only, read_only)]
pub(crate) async fn sessions(context: &ToolContext) -> Result<String> {
    let current = session_id(context)?;
    let tape = tape(context)?;
    let (mut found, mut others) = (Vec::new(), Vec::new());
    for name in tape
        .store()
        .list(Listing::Sessions)
        .await
        .map_err(tape_error)?
    {
        let summary = tape.store().summary(&name).await.map_err(tape_error)?;
        let Some(session) = summary.session else {
            continue;
        };
        let is_here = session.workspace.as_deref() == Some(framework(context)?.workspace_text());
        let is_own = sessions::chat_of(&session.session_id) == sessions::chat_of(&current);
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
            let mark = if *id == current { "*" } else { "-" };
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
        text.push_str("\n\nOther sessions of this workspace; `bub chat --session ID` opens one:\n");
        text.push_str(&listed(others));
    }
    Ok(text)
}

/// Whether a person at the terminal asks, whose every session is.
fn is_at_terminal(context: &ToolContext) -> bool {
    *context.state.sender() == Sender::terminal()
}

/// Goes back to an earlier session of this chat.
#[tool(crate = bub_kernel, command_only)]
pub(crate) async fn resume(
    context: &ToolContext,
    /// Its id, as `sessions` shows it.
    session_id: String,
) -> Result<String> {
    let (old, wanted) = (self::session_id(context)?, session_id.trim());
    if sessions::chat_of(wanted) != sessions::chat_of(&old) {
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
    let known = session_tape(&framework(context)?, wanted)?.ok_or_else(no_tape)?;
    if known.summary().await.map_err(tape_error)?.entries == 0 {
        return Err(Error::not_found(format!(
            "there is no session {wanted}; `,sessions` lists them"
        )));
    }
    switch(context, &old, wanted).await?;
    Ok(format!("Resumed session: {wanted}"))
}

/// The tape of the chat's first session says which one is in use.
async fn switch(context: &ToolContext, old: &str, wanted: &str) -> Result<()> {
    let framework = framework(context)?;
    let chat = sessions::chat_of(old);
    let name = TapeName::for_session(framework.workspace_text(), chat);
    let store = Arc::clone(tape(context)?.store());
    let event = bub_tape::Entry::event(sessions::SWITCH, Some(json!({"session_id": wanted})))
        .outside_context();
    store.append(&name, vec![event]).await.map_err(tape_error)?;
    context.state.set(sessions::SWITCH, wanted);
    Ok(())
}

fn tape(context: &ToolContext) -> Result<&Tape> {
    context.tape.as_deref().ok_or_else(no_tape)
}

fn no_tape() -> Error {
    Error::not_found("there is no tape in this turn")
}

fn session_id(context: &ToolContext) -> Result<String> {
    context
        .state
        .get_str("session_id")
        .ok_or_else(|| Error::not_found("there is no session in this turn"))
}

fn agent(context: &ToolContext) -> Result<Arc<Agent>> {
    context
        .state
        .slot::<Agent>()
        .ok_or_else(|| Error::not_found("the builtin agent is not part of this turn"))
}

fn framework(context: &ToolContext) -> Result<Framework> {
    agent(context)?.framework()
}
