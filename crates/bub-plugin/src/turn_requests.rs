//! Answers the requests of an external plugin about turns, sessions and messages.

use std::sync::Arc;

use bub_kernel::{
    Envelope, Error, Inbound, InboundReceipt, MessageOutcome, Outbound, Result, Sender, SessionId,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    callbacks::{CallContext, parse_params},
    codec::Wire,
};

/// The parameters of a request about a session.
#[derive(Deserialize)]
struct SessionParams {
    session_id: SessionId,
    message: Option<Value>,
    reason: Option<String>,
}

pub(crate) async fn send_message(context: &CallContext, params: &Value) -> Result<Value> {
    let reply = Outbound::new(parse_message(params.get("message").cloned())?);
    let turn = context.turn.as_ref();
    let turn = turn.filter(|turn| turn.inbound().reply_target.is_some());
    let is_delivered = if let Some(turn) = turn {
        turn.deliver(reply).await?
    } else {
        let router = context.plugin.framework()?.router();
        let router = router.ok_or_else(|| {
            Error::unknown("cannot send the message: no channel is running; start `bub gateway`")
        })?;
        router.dispatch(reply).await?
    };
    Ok(json!({"delivered": is_delivered}))
}

fn parse_message(message: Option<Value>) -> Result<Envelope> {
    match message {
        Some(message @ Value::Object(_)) => Ok(Envelope::from_value(message)),
        _ => Err(Error::invalid_input(
            "invalid `message`: expected an object",
        )),
    }
}

/// Handles `turn/run`: processes a message of the plugin in any session and returns the result of its turn.
///
/// If a gateway runs, the message takes the way of all messages: journal, lane, turn, outbox.
pub(crate) async fn run_turn(context: &CallContext, mut params: Value) -> Result<Value> {
    let plugin = &context.plugin;
    let message = parse_message(params.get_mut("message").map(Value::take))?;
    let mut inbound = Inbound::new(message).with_sender(plugin_sender(context));
    if params.get("stream_output") == Some(&Value::Bool(true)) {
        inbound = inbound.with_streaming();
    }
    let session_id = inbound.message.session_id();
    let session_id = session_id.map_or_else(
        || inbound.message.chat_session_id().into(),
        |session_id| SessionId::from(session_id.as_ref()),
    );
    if context.is_turn_session(&session_id) {
        return Err(Error::invalid_input(format!(
            "cannot run a turn in session `{session_id}`: the plugin is part of a running turn there; send the message with `message/send`, or wait for the end of the turn"
        )));
    }
    let Some(inbox) = plugin.inbox.get() else {
        let result = plugin.framework()?.process_inbound(inbound).await?;
        let outbounds: Vec<_> = result.outbounds.iter().map(Wire::encode).collect();
        return Ok(json!({
            "session_id": result.session_id,
            "prompt": result.prompt.encode(),
            "model_output": result.model_output,
            "outbounds": outbounds,
        }));
    };
    let receipt = Arc::new(InboundReceipt::new(None));
    inbox(inbound.with_receipt(Arc::clone(&receipt))).await?;
    let failed = |reason: String| {
        Err(Error::unknown(format!(
            "the message was not answered: {reason}"
        )))
    };
    match receipt.outcome().await {
        MessageOutcome::Done { report, .. } => match report {
            Some(report) => match report.error {
                Some(error) => Err(error),
                None => Ok(json!({"session_id": report.session_id, "model_output": report.output})),
            },
            None => failed("its turn ran elsewhere or panicked".to_owned()),
        },
        MessageOutcome::Joined { message_id } => {
            failed(format!("it became part of message {message_id}"))
        }
        MessageOutcome::Dropped { reason } => failed(reason.to_string()),
        MessageOutcome::Unfinished { error } => Err(error),
        _ => failed("unknown outcome".to_owned()),
    }
}

/// Returns the plugin as the sender of a message.
fn plugin_sender(context: &CallContext) -> Sender {
    let name = context.plugin.name();
    Sender {
        id: format!("plugin:{name}"),
        name: name.to_owned(),
        role: context.plugin.plugin_config.max_role,
        ..Sender::default()
    }
}

/// Handles `session/quit`: stops the turns of a session and drops its queued messages.
pub(crate) async fn quit_session(context: &CallContext, params: &Value) -> Result<Value> {
    let params: SessionParams = parse_params(params)?;
    let own = context.turn.as_ref().and_then(|turn| turn.message_id());
    if let Some(router) = context.plugin.framework()?.router() {
        router.quit_session(&params.session_id, own).await?;
    }
    Ok(json!({}))
}

/// Handles `session/steer`: adds a message to the running turn of a session.
pub(crate) async fn steer_session(context: &CallContext, params: Value) -> Result<Value> {
    let params: SessionParams = parse_params(&params)?;
    let mut message = parse_message(params.message)?;
    if let Some(reason) = params.reason {
        let mut fields = message.field("context").and_then(Value::as_object).cloned();
        fields
            .get_or_insert_default()
            .insert("steering_reason".to_owned(), reason.into());
        message.set("context", fields.unwrap_or_default());
    }
    let inbound = Inbound::new(message).with_sender(plugin_sender(context));
    let framework = context.plugin.framework()?;
    let is_accepted = framework.steer_message(&params.session_id, inbound).await?;
    Ok(json!({"accepted": is_accepted}))
}

/// Handles `models/list`: returns the models that users can choose from.
pub(crate) async fn list_models(context: &CallContext, params: &Value) -> Result<Value> {
    let params: SessionParams = parse_params(params)?;
    let options = context
        .plugin
        .framework()?
        .model_options(&params.session_id)
        .await?;
    Ok(options.encode())
}
