//! The contract of a channel: where messages come from and replies go to.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::{
    BoxFuture,
    admission::{Admission, TurnSnapshot},
    approval::{ApprovalAnswer, ApprovalRequest},
    error::Result,
    hooks::guard,
    inbound::Inbound,
    outbound::Outbound,
    stream::{ModelStream, StreamEvent},
    turn::Turn,
};

/// Takes a message that arrived on a channel. It returns when the message has been accepted.
pub type MessageHandler = Arc<dyn Fn(Inbound) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// What a channel is to its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelRole {
    /// A service people write to: a messenger, a webhook.
    Service,
    /// The surface in front of one person: the terminal. Not started by `all`.
    Interface,
    /// Background work without people: a scheduler.
    Lifecycle,
}

/// A channel. Only `name`, `start`, `stop` and `send` have to be written.
pub trait Channel: Send + Sync + 'static {
    /// Its name, by which messages are routed and users enable it.
    fn name(&self) -> &str;

    /// Starts receiving, and returns once it does. Work goes on in tasks that end with `stop`.
    fn start(&self, stop: CancellationToken) -> BoxFuture<'_, Result<()>>;

    /// Stops receiving. Called also after a failed `start`.
    fn stop(&self) -> BoxFuture<'_, Result<()>>;

    /// Delivers a rendered message.
    fn send<'a>(&'a self, reply: &'a Outbound) -> BoxFuture<'a, Result<()>>;

    /// Sees each event of a turn while the model runs.
    fn on_event<'a>(&'a self, event: &'a StreamEvent, turn: &'a Turn) -> BoxFuture<'a, Result<()>> {
        let _ = (event, turn);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Wraps the stream of a turn. The default passes it through [`Channel::on_event`], each event
    /// in order and before the turn counts it; a failure there is logged and the turn goes on.
    fn stream_events(self: Arc<Self>, turn: Turn, stream: ModelStream) -> ModelStream {
        ModelStream::new(stream.then(move |event| {
            let (channel, turn) = (Arc::clone(&self), turn.clone());
            async move {
                let event = event?;
                let seen = guard::run(|| channel.on_event(&event, &turn)).await;
                if let Err(error) = seen.flatten() {
                    let channel = channel.name();
                    tracing::warn!(%channel, %error, "channel.on_event_failed");
                }
                Ok(event)
            }
        }))
    }

    /// Decides about an arriving message; `None` leaves it to the runtime.
    fn admit_message<'a>(
        &'a self,
        message: &'a Inbound,
        turn: &'a TurnSnapshot,
    ) -> BoxFuture<'a, Result<Option<Admission>>> {
        let _ = (message, turn);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Puts back onto a message of an earlier process what is not data: its lifespan, how its media are fetched.
    fn restore(&self, message: &mut Inbound) {
        let _ = message;
    }

    /// Whether messages that come in quick succession are collected into one.
    fn needs_debounce(&self) -> bool {
        false
    }

    /// Whether it can be used at all, for example because its token is set.
    fn enabled(&self) -> bool {
        true
    }

    /// Checks the settings without any request. The gateway does not start if this fails, and `bub doctor` reports it.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// Tries, without starting it, whether it could work, and says who it would be where it has somebody to ask. Takes no
    /// messages and sends none: `bub doctor` and `bub onboard` call it.
    fn check(&self) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Whom it lets in and as what, in one line for people: `whoever has the token is member`.
    fn access_summary(&self) -> Option<String> {
        None
    }

    /// What keeps it from receiving just now, in words, although it runs. `None` once that is over.
    fn receive_error(&self) -> Option<String> {
        None
    }

    /// Asks the user in front of this channel about a tool call and returns the answer. `None` if the channel cannot ask
    /// on its own: then the question is sent as a message, and the answer comes as one.
    fn request_approval<'a>(
        &'a self,
        request: &'a ApprovalRequest,
    ) -> BoxFuture<'a, Result<Option<ApprovalAnswer>>> {
        let _ = request;
        Box::pin(std::future::ready(Ok(None)))
    }

    /// What it is to its users.
    fn role(&self) -> ChannelRole {
        ChannelRole::Service
    }
}
