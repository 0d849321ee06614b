//! Steering: messages that are added to a running turn.

use std::fmt;

use futures_util::future::try_join_all;

use crate::{
    BoxFuture, async_trait,
    error::Result,
    framework::Framework,
    hooks::{
        HookPoint, guard,
        point::{RunModel, RunModelStream},
    },
    ids::{MessageId, SessionId},
    inbound::Inbound,
    prompt::Prompt,
    turn::Turn,
};

/// An inbox for messages that steer a running turn. The next step of the turn takes them.
#[async_trait]
pub trait SteeringInbox: Send + Sync + 'static {
    /// Adds a message. Returns `false` if the inbox is full.
    async fn enqueue(&self, session_id: &SessionId, message: Inbound) -> Result<bool>;

    /// Takes all messages of a session, oldest first.
    async fn drain(&self, session_id: &SessionId) -> Result<Vec<Inbound>>;

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
    /// Adds a message to the steering inbox. Returns `false` if the inbox is full or missing.
    pub async fn steer_message(&self, session_id: &SessionId, message: Inbound) -> Result<bool> {
        match self.steering_inbox() {
            Some(inbox) => enqueue(&*inbox, session_id, message).await,
            None => Ok(false),
        }
    }

    /// Takes all messages of a session from the steering inbox, oldest first.
    pub async fn take_steered(&self, session_id: &SessionId) -> Result<Vec<Inbound>> {
        match self.steering_inbox() {
            Some(inbox) => drain(&*inbox, session_id).await,
            None => Ok(Vec::new()),
        }
    }

    /// Removes the messages in `delivered` from the steering inbox, because they are already on the session's tape.
    pub(crate) async fn discard_steered(
        &self,
        session_id: &SessionId,
        delivered: &[MessageId],
    ) -> Result<()> {
        let Some(inbox) = self.steering_inbox().filter(|_| !delivered.is_empty()) else {
            return Ok(());
        };
        let mut messages = drain(&*inbox, session_id).await?;
        messages.retain(|message| {
            message
                .message_id()
                .is_none_or(|id| !delivered.contains(id))
        });
        put_back(&*inbox, session_id, messages).await
    }
}

impl Turn {
    /// Returns whether messages are queued to steer this turn.
    pub fn has_steering_messages(&self) -> bool {
        self.steering_inbox().is_some_and(|inbox| {
            let count = guard::catch_panic(|| inbox.count(self.session_id()));
            count.is_ok_and(|count| count > 0)
        })
    }

    /// Takes the messages that are queued to steer this turn. Returns the prompts for the model, and the comma
    /// commands, which the model does not see.
    pub async fn take_steering_messages(&self) -> Result<(Vec<SteeredMessage>, Vec<Inbound>)> {
        let inbox = self
            .steering_inbox()
            .filter(|_| self.has_steering_messages());
        let Some(inbox) = inbox else {
            return Ok(<_>::default());
        };
        let queued = drain(&**inbox, self.session_id()).await?;
        let (commands, messages): (Vec<_>, Vec<_>) = queued
            .into_iter()
            .partition(|inbound| inbound.message.is_command());
        let built: Vec<BoxFuture<'_, Result<Prompt>>> = messages
            .iter()
            .map(|inbound| Box::pin(self.build_prompt(&inbound.message)) as _)
            .collect();
        let prompts = try_join_all(built).await?;
        for inbound in &messages {
            self.add_provenance(&inbound.provenance());
        }
        let steered = prompts.into_iter().zip(&messages);
        let steered = steered.map(|(prompt, inbound)| SteeredMessage {
            prompt,
            message_id: inbound.message_id().cloned(),
        });
        Ok((steered.collect(), commands))
    }

    /// Takes the prompts of messages that were queued before the turn began. Takes none if `prompt` is a comma command.
    /// Takes none unless the model stage has exactly one implementation, of `run_model_stream`, because other
    /// implementations may take the messages themselves.
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
        // Put commands back. They run at the first step, like commands that arrive during the turn.
        if let Some(inbox) = self.steering_inbox() {
            put_back(&**inbox, self.session_id(), commands).await?;
        }
        Ok(queued)
    }
}

async fn enqueue(
    inbox: &dyn SteeringInbox,
    session_id: &SessionId,
    message: Inbound,
) -> Result<bool> {
    guard::run_with_timeout(|| inbox.enqueue(session_id, message)).await?
}

async fn drain(inbox: &dyn SteeringInbox, session_id: &SessionId) -> Result<Vec<Inbound>> {
    guard::run_with_timeout(|| inbox.drain(session_id)).await?
}

/// Adds messages to an inbox from which they were taken.
async fn put_back(
    inbox: &dyn SteeringInbox,
    session_id: &SessionId,
    messages: Vec<Inbound>,
) -> Result<()> {
    for message in messages {
        if !enqueue(inbox, session_id, message).await? {
            tracing::error!(%session_id, "steering.message_lost");
        }
    }
    Ok(())
}
