//! A router with a channel that records calls.

use std::sync::Arc;

use bub_kernel::{
    Channel, ChannelRouter, Error, MessageId, Result, SessionId, async_trait, testing::FakeChannel,
};

use super::Trace;

/// The result of a channel's `on_event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EventResult {
    #[default]
    Succeeds,
    Fails,
    Panics,
}

/// A router with one channel.
pub(crate) struct FakeRouter(pub(crate) Arc<FakeChannel>);

impl FakeRouter {
    /// Creates a router with the channel `cli`.
    pub(crate) fn to(trace: &Trace, event_result: EventResult) -> Arc<Self> {
        let (sent, events) = (trace.clone(), trace.clone());
        Arc::new(Self(Arc::new(FakeChannel {
            on_send: Some(Box::new(move |reply| {
                sent.note(format!("send {}", reply.content()));
                Ok(())
            })),
            on_event: Some(Box::new(move |event, turn| {
                let chat = turn.message().chat_id().unwrap_or_default();
                events.note(format!("event {} for {chat}", event.to_value()));
                match event_result {
                    EventResult::Succeeds => Ok(()),
                    EventResult::Fails => Err(Error::unknown("screen is gone")),
                    EventResult::Panics => panic!("screen fell down"),
                }
            })),
            ..FakeChannel::new("cli")
        })))
    }
}

#[async_trait]
impl ChannelRouter for FakeRouter {
    fn channel(&self, name: &str) -> Option<Arc<dyn Channel>> {
        (name == self.0.name).then(|| Arc::clone(&self.0) as Arc<dyn Channel>)
    }

    async fn quit_session(&self, _: &SessionId, _: Option<&MessageId>) -> Result<()> {
        Ok(())
    }
}
