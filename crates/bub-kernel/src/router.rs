//! The contract between the kernel and whoever runs the channels.

use std::sync::Arc;

use crate::{BoxFuture, channel::Channel, envelope::Envelope, error::Result, stream::ModelStream};

/// Routes what leaves a turn to channels.
pub trait ChannelRouter: Send + Sync + 'static {
    /// The channel of that name, when it exists.
    fn channel(&self, name: &str) -> Option<Arc<dyn Channel>>;

    /// Delivers an outbound message; `false` when there is no such channel.
    fn dispatch<'a>(&'a self, message: &'a Envelope) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let channel = message
                .output_channel()
                .and_then(|name| self.channel(&name));
            match channel {
                Some(channel) => channel.send(message).await.map(|()| true),
                None => Ok(false),
            }
        })
    }

    /// Lets the channel a message came from see the stream of its turn.
    fn wrap_stream(&self, message: &Envelope, stream: ModelStream) -> ModelStream {
        match message
            .output_channel()
            .and_then(|name| self.channel(&name))
        {
            Some(channel) => channel.stream_events(message.clone(), stream),
            None => stream,
        }
    }

    /// Stops what runs for a session.
    fn quit<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Result<()>>;
}
