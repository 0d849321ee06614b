//! Checks of an implementation of [`Channel`].

use std::{sync::Arc, time::Duration};

use bub_kernel::{
    CancellationToken, Channel, ChannelMessage, Inbound, MessageHandler, Outbound, Result,
};
use tokio::{sync::mpsc, time::timeout};

/// How long each call of the channel may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the guarantees of [`Channel`]: its name, two rounds of `start`, an inbound message, replies and `stop`, and that
/// its tasks end. `make` creates a channel that passes inbound messages to the handler, and
/// `receive` makes the platform deliver one message to the channel: a fake server sends it, or a fake client posts it.
///
/// It does not check that the platform gets the replies. An error of `send` is accepted, because a platform can refuse
/// a reply. To test replies, use [`gateway`](super::gateway()).
///
/// ```
/// # use bub::{prelude::*, testing};
/// # use std::sync::Arc;
/// # struct Loopback(MessageHandler);
/// # #[async_trait]
/// # impl Channel for Loopback {
/// #     fn name(&self) -> &str { "loopback" }
/// #     async fn start(&self, _stop: CancellationToken) -> Result<()> { Ok(()) }
/// #     async fn send(&self, _reply: &Outbound) -> Result<()> { Ok(()) }
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// testing::check_channel(
///     |handler| Loopback(handler),
///     async |channel: Arc<Loopback>| {
///         (channel.0)(ChannelMessage::new("loopback:1", "loopback", "hi").chat_id("1").into()).await
///     },
/// )
/// .await;
/// # });
/// ```
///
/// # Panics
///
/// Panics with the guarantee that the channel violates.
#[expect(
    clippy::panic,
    clippy::expect_used,
    reason = "test code for other crates"
)]
pub async fn check_channel<C: Channel>(
    make: impl Fn(MessageHandler) -> C,
    receive: impl AsyncFn(Arc<C>) -> Result<()>,
) {
    let (sender, mut received) = mpsc::channel::<Inbound>(16);
    let handler: MessageHandler = Arc::new(move |inbound| {
        let sender = sender.clone();
        Box::pin(async move {
            let _ = sender.send(inbound).await;
            Ok(())
        })
    });
    let is_handler_held = Arc::downgrade(&handler);
    let channel = Arc::new(make(handler));

    let name = channel.name().to_owned();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    assert!(
        !name.is_empty() && name.chars().all(is_name) && name != "all",
        "`name` must consist of letters, digits, `-` and `_`, and must not be `all`: {name:?}"
    );

    // Two rounds, because the gateway restarts a channel that failed.
    for round in ["first", "second"] {
        let stop = CancellationToken::new();
        in_time("start", channel.start(stop.clone()))
            .await
            .unwrap_or_else(|error| panic!("the {round} `start` failed: {error}"));
        in_time("receiving a message", receive(Arc::clone(&channel)))
            .await
            .unwrap_or_else(|error| panic!("the platform could not deliver a message: {error}"));
        let inbound = in_time("passing the message to the handler", received.recv())
            .await
            .expect("the channel keeps the handler");
        check_inbound(&name, &inbound);
        for text in ["hello", "", "line 1\nline 2", &"long ".repeat(4000)] {
            let reply = reply_to(&inbound, text);
            // A reply that the platform refuses is an error, not a panic.
            let _ = in_time("send", channel.send(&reply)).await;
        }
        stop.cancel();
        in_time("stop", channel.stop())
            .await
            .unwrap_or_else(|error| panic!("`stop` failed after the {round} `start`: {error}"));
    }
    in_time("a second `stop`", channel.stop())
        .await
        .unwrap_or_else(|error| panic!("`stop` failed for a channel that is not running: {error}"));
    drop(channel);
    let tasks_end = async {
        while is_handler_held.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let has_ended = timeout(CALL_TIMEOUT, tasks_end).await.is_ok();
    assert!(
        has_ended,
        "a task of the channel still holds the message handler; tasks must end when `stop` is cancelled"
    );
}

fn check_inbound(name: &str, inbound: &Inbound) {
    let message = &inbound.message;
    assert_eq!(
        message.channel().as_deref(),
        Some(name),
        "the message must name its channel"
    );
    assert!(
        message.chat_id().is_some_and(|chat| !chat.is_empty()),
        "the message must have a `chat_id`, because replies are sent to it"
    );
}

fn reply_to(inbound: &Inbound, text: &str) -> Outbound {
    let message = &inbound.message;
    let channel = message.channel().unwrap_or_default().into_owned();
    let chat_id = message.chat_id().unwrap_or_default().into_owned();
    let session = format!("{channel}:{chat_id}");
    let reply = ChannelMessage::new(session, channel, text).chat_id(chat_id);
    Outbound::new(reply)
}

#[expect(clippy::panic, reason = "test code for other crates")]
async fn in_time<T>(what: &str, call: impl Future<Output = T>) -> T {
    timeout(CALL_TIMEOUT, call)
        .await
        .unwrap_or_else(|_| panic!("{what} took longer than {} s", CALL_TIMEOUT.as_secs()))
}
