//! The trait of a channel, which receives and sends messages on one platform.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::{
    BoxFuture,
    admission::{Admission, TurnSnapshot},
    approval::{ApprovalAnswer, ApprovalRequest},
    async_trait,
    error::Result,
    hooks::guard,
    inbound::Inbound,
    outbound::Outbound,
    sender::Role,
    stream::{ModelStream, StreamEvent},
    turn::Turn,
};

/// A function that accepts a message from a channel. Its future resolves when the message is accepted, not when it is
/// answered.
pub type MessageHandler = Arc<dyn Fn(Inbound) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// The purpose of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChannelRole {
    /// A service that users write to, such as a messenger or a webhook.
    Service,
    /// The interface of a single user, such as the terminal. The name `all` in `enabled_channels` does not include it.
    Interface,
    /// Background work without users, such as a scheduler.
    Lifecycle,
}

/// The access of a sender to a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SenderAccess {
    /// The sender has access with this role.
    Granted(Role),
    /// The sender has no access, for this reason. The channel does not accept their messages.
    Denied(String),
}

/// An adapter that receives and sends messages on one platform.
///
/// Only `name`, `start` and `send` are required. Put `#[async_trait]` on the `impl` block; without it, the compiler
/// reports E0195, "lifetime parameters or bounds on method … do not match the trait declaration".
#[async_trait]
pub trait Channel: Send + Sync + 'static {
    /// Returns the channel's name. Messages are routed by it, and users enable the channel with it.
    fn name(&self) -> &str;

    /// Starts receiving messages and returns once the channel is ready. Background tasks must end when `stop` is
    /// cancelled.
    async fn start(&self, stop: CancellationToken) -> Result<()>;

    /// Stops receiving messages. Also called after a failed `start`. Does nothing by default: the token passed to
    /// `start` is cancelled at the same time.
    async fn stop(&self) -> Result<()> {
        Ok(())
    }

    /// Sends an outbound message to its chat.
    ///
    /// # Errors
    ///
    /// The gateway delivers the message again after an error, with backoff and not before
    /// [`Error::retry_after`](crate::Error::retry_after). It does not retry after an error of the kind `InvalidInput`,
    /// `NotFound` or `Config`: the reply is marked as failed, and `bub outbox` lists it.
    async fn send(&self, reply: &Outbound) -> Result<()>;

    /// Receives each stream event of a turn while the model runs. Does nothing by default.
    async fn on_event(&self, event: &StreamEvent, turn: &Turn) -> Result<()> {
        let _ = (event, turn);
        Ok(())
    }

    /// Wraps the model stream of a turn. By default, it passes each event to [`Channel::on_event`], in order and before
    /// the turn processes it. An error of `on_event` is logged, and the turn continues.
    fn stream_events(self: Arc<Self>, turn: Turn, stream: ModelStream) -> ModelStream {
        ModelStream::new(stream.then(move |event| {
            let (channel, turn) = (Arc::clone(&self), turn.clone());
            async move {
                let event = event?;
                let handled = guard::run_with_timeout(|| channel.on_event(&event, &turn)).await;
                if let Err(error) = handled.flatten() {
                    let channel = channel.name();
                    tracing::warn!(%channel, %error, "channel.on_event_failed");
                }
                Ok(event)
            }
        }))
    }

    /// Decides how an inbound message is handled, if no plugin decides in the hook `admit_message`. `None`, the
    /// default, leaves the decision to the gateway.
    async fn admit_message(
        &self,
        message: &Inbound,
        turn: &TurnSnapshot,
    ) -> Result<Option<Admission>> {
        let _ = (message, turn);
        Ok(None)
    }

    /// Completes a message from an earlier process with data that the journal does not store, such as its lifespan and
    /// its media fetchers.
    fn restore_message(&self, message: &mut Inbound) {
        let _ = message;
    }

    /// Returns whether messages that arrive close together are merged into one turn. The default is `false`.
    fn needs_debounce(&self) -> bool {
        false
    }

    /// Returns whether the channel can be used, for example because its token is set. The default is `true`.
    fn is_enabled(&self) -> bool {
        true
    }

    /// Checks the channel's settings without making requests. If this fails, the gateway does not start. `bub doctor`
    /// reports the error.
    fn validate_settings(&self) -> Result<()> {
        Ok(())
    }

    /// Checks whether the channel could run, without starting it. Returns the account that it would use, if the
    /// platform reports one. It must not receive or send messages. `bub doctor` and `bub onboard` call it.
    async fn check_connection(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns one line that describes who has access and with which role, for `bub status`:
    /// `clients with the token have role member`.
    fn access_summary(&self) -> Option<String> {
        None
    }

    /// Returns the reason why a running channel currently receives no messages, if any.
    fn receive_error(&self) -> Option<String> {
        None
    }

    /// Returns whether several users may read and write in a chat. If so, an owner in it can approve the calls of
    /// others. The default is `false`.
    fn is_shared_chat(&self, chat_id: &str) -> bool {
        let _ = chat_id;
        false
    }

    /// Returns the access that the channel gives to a sender in a chat, or in a private chat if `chat_id` is `None`.
    /// `None`, the default, means that the channel leaves it to the settings. `bub policy explain` uses it.
    fn sender_access(&self, sender_id: &str, chat_id: Option<&str>) -> Option<SenderAccess> {
        let _ = (sender_id, chat_id);
        None
    }

    /// Called when an approval request that the channel showed as a message is not pending any more. `answer` is the
    /// user's answer, or `None` if the request ended without one. A channel with buttons removes them. Does nothing by
    /// default.
    async fn end_approval(&self, request_id: &str, answer: Option<&ApprovalAnswer>) -> Result<()> {
        let _ = (request_id, answer);
        Ok(())
    }

    /// Asks the user of this channel about a tool call and returns the answer. `None`, the default, means that the
    /// channel has no approval dialog: the gateway then sends the question as a message and reads the answer from a
    /// message.
    async fn request_approval(&self, request: &ApprovalRequest) -> Result<Option<ApprovalAnswer>> {
        let _ = request;
        Ok(None)
    }

    /// Returns the purpose of the channel. The default is [`ChannelRole::Service`].
    fn role(&self) -> ChannelRole {
        ChannelRole::Service
    }
}
