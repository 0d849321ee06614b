//! The contract between the kernel and whoever runs the channels.

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

/// Routes what leaves a turn to channels.
pub trait ChannelRouter: Send + Sync + 'static {
    /// The channel of that name, when it exists.
    fn channel(&self, name: &str) -> Option<Arc<dyn Channel>>;

    /// Delivers a message; `false` if there is no such channel. Replies of a turn go through
    /// [`Turn::deliver`](crate::Turn::deliver).
    fn dispatch(&self, reply: Outbound) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let channel = reply.output_channel().and_then(|name| self.channel(&name));
            match channel {
                Some(channel) => channel.send(&reply).await.map(|()| true),
                None => Ok(false),
            }
        })
    }

    /// Lets the channel that a turn answers see its stream.
    fn wrap_stream(&self, turn: &Turn, stream: ModelStream) -> ModelStream {
        let channel = turn.message().output_channel();
        match channel.and_then(|name| self.channel(&name)) {
            Some(channel) => channel.stream_events(turn.clone(), stream),
            None => stream,
        }
    }

    /// Stops everything in a session, except the turn of one message.
    fn quit<'a>(
        &'a self,
        session_id: &'a SessionId,
        except: Option<&'a MessageId>,
    ) -> BoxFuture<'a, Result<()>>;
}
