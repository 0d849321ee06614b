//! A channel that records calls, and a router with one channel.

use std::sync::Arc;

use bub_kernel::{
    Channel, ChannelRouter, Error, MessageId, Outbound, Result, SessionId, StreamEvent, Turn,
    async_trait,
};
use tokio_util::sync::CancellationToken;

use super::Trace;

/// The result of a channel's `on_event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EventResult {
    #[default]
    Succeeds,
    Fails,
    Panics,
}

pub(crate) struct FakeChannel {
    pub(crate) name: &'static str,
    pub(crate) trace: Trace,
    pub(crate) event_result: EventResult,
}

impl FakeChannel {
    pub(crate) fn named(name: &'static str) -> Self {
        Self {
            name,
            trace: Trace::default(),
            event_result: EventResult::Succeeds,
        }
    }
}

#[async_trait]
impl Channel for FakeChannel {
    fn name(&self) -> &str {
        self.name
    }

    async fn start(&self, _stop: CancellationToken) -> Result<()> {
        Ok(())
    }

    async fn stop(&self) -> Result<()> {
        Ok(())
    }

    async fn send(&self, message: &Outbound) -> Result<()> {
        self.trace.note(format!("send {}", message.content()));
        Ok(())
    }

    async fn on_event(&self, event: &StreamEvent, turn: &Turn) -> Result<()> {
        tokio::task::yield_now().await;
        let chat = turn.message().chat_id().unwrap_or_default();
        self.trace
            .note(format!("event {} for {chat}", event.to_value()));
        match self.event_result {
            EventResult::Succeeds => Ok(()),
            EventResult::Fails => Err(Error::unknown("screen is gone")),
            EventResult::Panics => panic!("screen fell down"),
        }
    }
}

/// A router with one channel.
pub(crate) struct FakeRouter(pub(crate) Arc<FakeChannel>);

impl FakeRouter {
    /// Creates a router with the channel `cli`.
    pub(crate) fn to(trace: &Trace, event_result: EventResult) -> Arc<Self> {
        Arc::new(Self(Arc::new(FakeChannel {
            name: "cli",
            trace: trace.clone(),
            event_result,
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
