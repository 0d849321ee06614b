//! The trait that connects the kernel with the component that runs the channels.

use std::sync::Arc;

use crate::{
    async_trait,
    channel::Channel,
    error::Result,
    ids::{MessageId, SessionId},
    outbound::Outbound,
    stream::ModelStream,
    turn::Turn,
};

/// The component that routes the messages and streams of turns to channels.
#[async_trait]
pub trait ChannelRouter: Send + Sync + 'static {
    /// Returns the channel with this name.
    fn channel(&self, name: &str) -> Option<Arc<dyn Channel>>;

    /// Delivers a message. Returns `false` if its channel does not exist. Use [`Turn::deliver`](crate::Turn::deliver)
    /// for the replies of a turn.
    async fn dispatch(&self, reply: Outbound) -> Result<bool> {
        let channel = reply.output_channel().and_then(|name| self.channel(&name));
        match channel {
            Some(channel) => channel.send(&reply).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Lets the channel that receives the replies wrap the model stream of a turn.
    fn wrap_stream(&self, turn: &Turn, stream: ModelStream) -> ModelStream {
        let channel = turn.message().output_channel();
        match channel.and_then(|name| self.channel(&name)) {
            Some(channel) => channel.stream_events(turn.clone(), stream),
            None => stream,
        }
    }

    /// Stops all turns of a session, except the turn of the message `except`, and drops the session's queued messages.
    async fn quit_session(&self, session_id: &SessionId, except: Option<&MessageId>) -> Result<()>;
}
