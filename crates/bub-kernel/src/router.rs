//! The trait that connects the kernel with the component that runs the channels.

use std::sync::Arc;

use crate::{
    BoxFuture,
    channel::Channel,
    error::Result,
    ids::{MessageId, SessionId},
    outbound::Outbound,
    stream::ModelStream,
    turn::Turn,
};

/// The component that routes the messages and streams of turns to channels.
pub trait ChannelRouter: Send + Sync + 'static {
    /// Returns the channel with this name.
    fn channel(&self, name: &str) -> Option<Arc<dyn Channel>>;

    /// Delivers a message. Returns `false` if its channel does not exist. Use [`Turn::deliver`](crate::Turn::deliver)
    /// for the replies of a turn.
    fn dispatch(&self, reply: Outbound) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let channel = reply.output_channel().and_then(|name| self.channel(&name));
            match channel {
                Some(channel) => channel.send(&reply).await.map(|()| true),
                None => Ok(false),
            }
        })
    }

    /// Lets the channel that receives the replies wrap the model stream of a turn.
    fn wrap_stream(&self, turn: &Turn, stream: ModelStream) -> ModelStream {
        let channel = turn.message().output_channel();
        match channel.and_then(|name| self.channel(&name)) {
            Some(channel) => channel.stream_events(turn.clone(), stream),
            None => stream,
        }
    }

    /// Stops all turns of a session and drops its queued messages, except for the turn of one message.
    fn quit_session<'a>(
        &'a self,
        session_id: &'a SessionId,
        except: Option<&'a MessageId>,
    ) -> BoxFuture<'a, Result<()>>;
}
