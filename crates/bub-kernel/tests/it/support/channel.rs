//! A channel that records calls, and a router with one channel.

use std::sync::Arc;

use bub_kernel::{
    BoxFuture, Channel, ChannelRouter, Error, MessageId, Outbound, Result, SessionId, StreamEvent,
    Turn,
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

impl Channel for FakeChannel {
    fn name(&self) -> &str {
        self.name
    }

    fn start(&self, _stop: CancellationToken) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn send<'a>(&'a self, message: &'a Outbound) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.trace.note(format!("send {}", message.content()));
            Ok(())
        })
    }

    fn on_event<'a>(&'a self, event: &'a StreamEvent, turn: &'a Turn) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let chat = turn.message().chat_id().unwrap_or_default();
            self.trace
                .note(format!("event {} for {chat}", event.to_value()));
            match self.event_result {
                EventResult::Succeeds => Ok(()),
                EventResult::Fails => Err(Error::unknown("screen is gone")),
                EventResult::Panics => panic!("screen fell down"),
            }
        })
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

impl ChannelRouter for FakeRouter {
    fn channel(&self, name: &str) -> Option<Arc<dyn Channel>> {
        (name == self.0.name).then(|| Arc::clone(&self.0) as Arc<dyn Channel>)
    }

    fn quit_session<'a>(
        &'a self,
        _: &'a SessionId,
        _: Option<&'a MessageId>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
