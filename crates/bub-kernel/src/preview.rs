//! Previews: the request that a turn would send to its model, without sending it.

use std::sync::{Arc, OnceLock};

use bub_tape::{EntryId, MergeBack};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    framework::Framework,
    inbound::Inbound,
    pipeline::{record_prompt, run_model},
    turn::Turn,
    turn_tape::{TurnTape, tape_error},
};

/// The request that a turn would send to its model.
#[derive(Clone, Debug, Default)]
pub struct PreviewedRequest {
    /// The model, as `provider:model`.
    pub model: String,
    /// The messages in the chat-completions format.
    pub messages: Arc<Vec<Value>>,
    /// The definitions of the tools in the chat-completions format.
    pub tools: Arc<Vec<Value>>,
    /// The ids of the entries that the messages come from.
    pub view: Vec<EntryId>,
    /// The path of the HTTP request, without the base URL of the provider.
    pub path: String,
    /// The body of the HTTP request in the wire format of the provider.
    pub body: Value,
}

/// Receives the request of a turn's first model call. An [`Inbound`] that has one never reaches a model: the agent
/// fills it and ends the turn.
#[derive(Clone, Debug, Default)]
pub struct RequestPreview(Arc<OnceLock<PreviewedRequest>>);

impl RequestPreview {
    /// Stores the request. Only the first one counts.
    pub fn set(&self, request: PreviewedRequest) {
        let _ = self.0.set(request);
    }
}

impl Framework {
    /// Returns the request that the agent would send for a message. Runs the stages of a turn up to the model call on a
    /// fork of the session's tape, and discards the fork.
    ///
    /// # Errors
    ///
    /// Fails if a stage fails, if no running scope is open, or if no request is made, for example because no model is
    /// configured.
    pub async fn preview_request(&self, inbound: impl Into<Inbound>) -> Result<PreviewedRequest> {
        let (mut inbound, preview) = (inbound.into(), RequestPreview::default());
        inbound.preview = Some(preview.clone());
        self.resolve_session(&mut inbound).await?;
        let session_id = inbound.session_id().cloned().unwrap_or_default();
        let tape = self
            .session_tape(&session_id)?
            .ok_or_else(|| Error::config("cannot build the request: no tape store is open"))?;
        let fork = tape.fork(MergeBack::No).await.map_err(tape_error)?;
        let channel = inbound.message.channel();
        let tape = TurnTape::new(fork.tape().clone(), self, &session_id, channel.as_deref());
        let turn = Turn::new(self, inbound.clone(), tape);
        let stages = async {
            self.load_state(&turn).await?;
            let prompt = self.build_prompt(turn.message(), &turn).await?;
            record_prompt(&turn, &prompt).await?;
            run_model(&turn, &prompt, &mut String::new()).await
        };
        let ended = stages.await;
        fork.discard().await.map_err(tape_error)?;
        ended?;
        let reason = if turn.report().has_no_model {
            "no model is configured; set `model`"
        } else {
            "the agent made none"
        };
        let request = preview.0.get().cloned();
        request.ok_or_else(|| Error::config(format!("no request to the model: {reason}")))
    }
}
