//! Channels of an external plugin. The plugin talks to the platform; the host journals and processes the messages.

use std::sync::Arc;

use bub_kernel::{
    BoxFuture, CancellationToken, Channel, ChannelRole, Envelope, Error, ErrorKind, Inbound,
    Outbound, Result, Role, StreamEvent, Turn,
};
use serde_json::{Value, json};
use tracing::Instrument as _;

use crate::{
    callbacks::{self, CallContext},
    codec::{self, ArgumentCodec},
    descriptor::ChannelDecl,
    peer::IncomingMessage,
    process::PluginProcess,
};

/// A channel that an external plugin implements.
pub(crate) struct ExternalChannel {
    plugin: Arc<PluginProcess>,
    entry: ChannelDecl,
}

impl ExternalChannel {
    pub(crate) fn new(plugin: &Arc<PluginProcess>, entry: &ChannelDecl) -> Self {
        Self {
            plugin: Arc::clone(plugin),
            entry: entry.clone(),
        }
    }

    async fn call_plugin(&self, method: &str, params: Value) -> Result<Value> {
        let span = self.plugin.call_span(None);
        self.exchange_messages(method, params)
            .instrument(span)
            .await
    }

    async fn exchange_messages(&self, method: &str, params: Value) -> Result<Value> {
        let limit = self.plugin.plugin_config.limits.hook;
        let deadline = tokio::time::Instant::now() + limit;
        let peer = self.plugin.connect(Some(limit)).await?;
        let mut request = peer.send_request(method, &params, 0);
        let response = async {
            loop {
                match request.next_message().await {
                    IncomingMessage::Response(answer) => return answer,
                    IncomingMessage::Question { id, method, params } => {
                        callbacks::spawn_answer(
                            &peer,
                            id,
                            method,
                            params,
                            CallContext::new(&self.plugin, None),
                        );
                    }
                    IncomingMessage::Event(_) => {}
                }
            }
        };
        let Ok(answer) = tokio::time::timeout_at(deadline, response).await else {
            drop(request);
            self.plugin.handle_timeout(&peer).await;
            return Err(self.plugin.timeout_error(limit));
        };
        request.is_over = true;
        self.plugin.record_success();
        answer
    }
}

impl Channel for ExternalChannel {
    fn name(&self) -> &str {
        &self.entry.name
    }

    fn start(&self, stop: CancellationToken) -> BoxFuture<'_, Result<()>> {
        let watchdog = ChannelWatchdog {
            plugin: Arc::clone(&self.plugin),
            name: self.entry.name.clone(),
            stop,
        };
        Box::pin(async move {
            self.call_plugin("channel/start", json!({"channel": self.entry.name}))
                .await?;
            watchdog.spawn();
            Ok(())
        })
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            // Do not start the process only to stop its channel.
            if !self.plugin.is_running() {
                return Ok(());
            }
            self.call_plugin("channel/stop", json!({"channel": self.entry.name}))
                .await
                .map(drop)
        })
    }

    fn send<'a>(&'a self, reply: &'a Outbound) -> BoxFuture<'a, Result<()>> {
        let message = ArgumentCodec::encode(&reply.message);
        let params = json!({"channel": self.entry.name, "message": message});
        Box::pin(async move { self.call_plugin("channel/send", params).await.map(drop) })
    }

    fn on_event<'a>(&'a self, event: &'a StreamEvent, turn: &'a Turn) -> BoxFuture<'a, Result<()>> {
        if self.entry.events
            && let Some(peer) = self.plugin.running_peer()
        {
            let message = ArgumentCodec::encode(turn.message());
            let params = json!({"channel": self.entry.name, "event": event, "message": message});
            peer.notify("channel/event", &params);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn needs_debounce(&self) -> bool {
        self.entry.debounce
    }

    fn role(&self) -> ChannelRole {
        if self.entry.lifecycle {
            ChannelRole::Lifecycle
        } else {
            ChannelRole::Service
        }
    }
}

/// Restarts a channel when the process of its plugin has ended.
struct ChannelWatchdog {
    plugin: Arc<PluginProcess>,
    name: String,
    stop: CancellationToken,
}

impl ChannelWatchdog {
    fn spawn(self) {
        tokio::spawn(async move {
            let Self { plugin, name, stop } = self;
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = plugin.wait_for_exit() => {}
                }
                let channel = ExternalChannel {
                    plugin: Arc::clone(&plugin),
                    entry: ChannelDecl {
                        name: name.clone(),
                        ..ChannelDecl::default()
                    },
                };
                while let Err(error) = channel
                    .call_plugin("channel/start", json!({"channel": name}))
                    .await
                {
                    let (plugin, error) = (plugin.name(), plugin.redact(error.message()));
                    tracing::warn!(plugin, channel = %name, %error, "channel.restart_failed");
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(std::time::Duration::from_secs(1)) => {}
                    }
                }
            }
        });
    }
}

/// Handles `channel/inbound`: accepts a message that a channel of the plugin received. Returns when the message is
/// on disk.
pub(crate) async fn accept_inbound(plugin: &PluginProcess, mut params: Value) -> Result<Value> {
    let channel = params
        .get("channel")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if plugin
        .descriptor
        .channels
        .iter()
        .all(|declared| declared.name != channel)
    {
        return Err(Error::invalid_input(format!(
            "unknown channel `{channel}`: the descriptor of the plugin does not list it; add it to `channels`"
        )));
    }
    let inbox = plugin.inbox.get().ok_or_else(|| {
        Error::new(
            ErrorKind::Temporary,
            "cannot accept the message: the gateway is not running; start `bub gateway`",
        )
    })?;
    let Some(Value::Object(message)) = params.get_mut("message").map(Value::take) else {
        return Err(Error::invalid_input(
            "invalid `message`: expected an object",
        ));
    };
    let mut message = Envelope::from_value(message.into());
    message.set("channel", channel.as_str());
    let mut sender = codec::decode_sender(params.get("sender"));
    // The channel authenticates the sender, but the owner of bub limits the sender's role.
    sender.role = sender.role.min(plugin.plugin_config.max_role);
    let session = message
        .field("session_id")
        .and_then(Value::as_str)
        .filter(|session| !session.is_empty());
    let is_own_session = |session: &str| {
        session
            .split_once(':')
            .is_some_and(|(prefix, _)| prefix == channel)
    };
    if sender.role != Role::Owner && session.is_some_and(|session| !is_own_session(session)) {
        return Err(Error::invalid_input(format!(
            "invalid `session_id`: expected a value that starts with `{channel}:`"
        )));
    }
    sender.channel = channel;
    sender.chat_id = message.chat_id().unwrap_or_default().into_owned();
    inbox(Inbound::new(message).with_sender(sender)).await?;
    Ok(json!({"accepted": true}))
}
