//! Steering: messages that are added to a running turn.

use std::fmt;

use futures_util::future::try_join_all;

use crate::{
    BoxFuture,
    error::Result,
    framework::Framework,
    hooks::{
        HookPoint,
        point::{RunModel, RunModelStream},
    },
    ids::{MessageId, SessionId},
    inbound::Inbound,
    prompt::Prompt,
    turn::Turn,
};

/// An inbox for messages that steer a running turn. The next step of the turn takes them.
pub trait SteeringInbox: Send + Sync + 'static {
    /// Adds a message. Returns `false` if the inbox is full.
    fn enqueue<'a>(
        &'a self,
        session_id: &'a SessionId,
        message: Inbound,
    ) -> BoxFuture<'a, Result<bool>>;

    /// Takes all messages of a session, oldest first.
    fn drain<'a>(&'a self, session_id: &'a SessionId) -> BoxFuture<'a, Result<Vec<Inbound>>>;

    /// Returns the number of messages of a session.
    fn count(&self, session_id: &SessionId) -> usize;
}

impl fmt::Debug for dyn SteeringInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SteeringInbox")
    }
}

/// A message that steers a turn, converted to a prompt.
#[derive(Debug)]
pub struct SteeredMessage {
    /// The prompt that the model sees.
    pub prompt: Prompt,
    /// The journal id of the message, if it has one.
    pub message_id: Option<MessageId>,
}

impl Framework {
    /// Removes messages from the steering inbox that are already on the tape of a resumed turn.
    pub(crate) async fn discard_steered(
        &self,
        session_id: &SessionId,
        delivered: &[MessageId],
    ) -> Result<()> {
        let Some(inbox) = self.steering_inbox().filter(|_| !delivered.is_empty()) else {
            return Ok(());
        };
        for message in inbox.drain(session_id).await? {
            let is_delivered = message
                .message_id()
                .is_some_and(|id| delivered.contains(id));
            if !is_delivered && !inbox.enqueue(session_id, message).await? {
                tracing::error!(%session_id, "steering.message_lost");
            }
        }
        Ok(())
    }
}

impl Turn {
    /// Returns whether messages are queued to steer this turn.
    pub fn has_steering_messages(&self) -> bool {
        self.steering_inbox()
            .is_some_and(|inbox| inbox.count(self.session_id()) > 0)
    }

    /// Takes the queued messages: the prompts for the model, and the commands, which the model does not see.
    pub async fn take_steering_messages(&self) -> Result<(Vec<SteeredMessage>, Vec<Inbound>)> {
        let Some(inbox) = self.steering_inbox() else {
            return Ok(<_>::default());
        };
        if inbox.count(self.session_id()) == 0 {
            return Ok(<_>::default());
        }
        let queued = inbox.drain(self.session_id()).await?;
        let (commands, messages): (Vec<_>, Vec<_>) = queued
            .into_iter()
            .partition(|inbound| inbound.message.is_command());
        let built: Vec<BoxFuture<'_, Result<Prompt>>> = messages
            .iter()
            .map(|inbound| Box::pin(self.build_prompt(&inbound.message)) as _)
            .collect();
        let prompts = try_join_all(built).await?;
        let steered = prompts.into_iter().zip(&messages);
        let steered = steered.map(|(prompt, inbound)| SteeredMessage {
            prompt,
            message_id: inbound.message_id().cloned(),
        });
        Ok((steered.collect(), commands))
    }

    /// Takes the prompts that were queued before the turn began. If another plugin can run the model, the messages
    /// stay in the inbox for that plugin.
    pub(crate) async fn take_prompts_before_turn(
        &self,
        prompt: &Prompt,
    ) -> Result<Vec<SteeredMessage>> {
        let hooks = self.framework().hooks();
        let has_one_model = RunModel::implementations(hooks).is_empty()
            && RunModelStream::implementations(hooks).len() == 1;
        if !has_one_model || prompt.is_command() {
            return Ok(Vec::new());
        }
        let (queued, commands) = self.take_steering_messages().await?;
        // Commands run at the first step, like those that arrive later.
        if let Some(inbox) = self.steering_inbox() {
            for command in commands {
                inbox.enqueue(self.session_id(), command).await?;
            }
        }
        Ok(queued)
    }
}
