//! Channels of an external plugin. The plugin talks to the platform; the host journals and processes the messages.

use std::{sync::Arc, time::Duration};

use bub_kernel::{
    CancellationToken, Channel, ChannelRole, Envelope, Error, ErrorKind, Inbound, Lifespan,
    LifespanScope, Outbound, Result, Role, Sender, StreamEvent, Turn, async_trait,
};
use serde_json::{Value, json};

use crate::{codec::Wire, descriptor::ChannelDecl, process::PluginProcess};

/// Delay before another attempt to restart a channel.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// A channel that an external plugin implements.
#[derive(Clone)]
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

    async fn start_in_plugin(&self) -> Result<Value> {
        let params = json!({"channel": self.entry.name});
        self.call_plugin("channel/start", params).await
    }

    /// Restarts the channel whenever the process of its plugin has ended.
    async fn restart_after_exit(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.plugin.wait_for_exit() => {}
            }
            while let Err(error) = self.start_in_plugin().await {
                let (plugin, error) = (self.plugin.name(), self.plugin.redact(error.message()));
                tracing::warn!(plugin, channel = %self.entry.name, %error, "channel.restart_failed");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(RESTART_DELAY) => {}
                }
            }
        }
    }

    async fn call_plugin(&self, method: &str, params: Value) -> Result<Value> {
        let limit = self.plugin.plugin_config.limits.hook;
        self.plugin.call(method, &params, None, limit).await
    }
}

#[async_trait]
impl Channel for ExternalChannel {
    fn name(&self) -> &str {
        &self.entry.name
    }

    async fn start(&self, stop: CancellationToken) -> Result<()> {
        self.start_in_plugin().await?;
        tokio::spawn(self.clone().restart_after_exit(stop));
        Ok(())
    }

    async fn stop(&self) -> Result<()> {
        // Do not start the process only to stop its channel.
        if !self.plugin.is_running() {
            return Ok(());
        }
        self.call_plugin("channel/stop", json!({"channel": self.entry.name}))
            .await
            .map(drop)
    }

    async fn send(&self, reply: &Outbound) -> Result<()> {
        let message = reply.message.encode();
        let params = json!({"channel": self.entry.name, "message": message});
        self.call_plugin("channel/send", params).await.map(drop)
    }

    async fn on_event(&self, event: &StreamEvent, turn: &Turn) -> Result<()> {
        if self.entry.events
            && let Some(peer) = self.plugin.running_peer()
        {
            let message = turn.message().encode();
            let params = json!({"channel": self.entry.name, "event": event, "message": message});
            peer.notify("channel/event", &params);
        }
        Ok(())
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

/// Adds the channel and the chat to the context of a message, as built-in channels do. The model sees the context, and
/// the name of the channel loads the skill of this name.
fn add_context(message: &mut Envelope, sender: &Sender) {
    let context = message.field("context").and_then(Value::as_object);
    let mut context = context.cloned().unwrap_or_default();
    context.insert("channel".to_owned(), format!("${}", sender.channel).into());
    context.insert("chat_id".to_owned(), sender.chat_id.as_str().into());
    message.set("context", context);
}

/// A resource of the plugin that is open while a message is processed, such as a typing indicator.
struct PluginLifespan {
    plugin: Arc<PluginProcess>,
    id: String,
}

impl PluginLifespan {
    async fn call(&self, method: &str, error: Option<&Error>) -> Result<()> {
        // A restarted process does not know the resource.
        if !self.plugin.is_running() {
            return Ok(());
        }
        let params = json!({"lifespan": self.id, "error": error.map(Error::to_value)});
        let limit = self.plugin.plugin_config.limits.hook;
        self.plugin
            .call(method, &params, None, limit)
            .await
            .map(drop)
    }
}

#[async_trait]
impl LifespanScope for PluginLifespan {
    async fn enter(&mut self) -> Result<()> {
        self.call("lifespan/enter", None).await
    }

    async fn exit(&mut self, error: Option<&Error>) -> Result<()> {
        self.call("lifespan/exit", error).await
    }
}

/// Handles `channel/inbound`: accepts a message that a channel of the plugin received. Returns when the message is
/// on disk.
pub(crate) async fn accept_inbound(
    plugin: &Arc<PluginProcess>,
    mut params: Value,
) -> Result<Value> {
    let channel = params.get("channel").and_then(Value::as_str);
    let channel = channel.unwrap_or_default().to_owned();
    let mut declared = plugin.descriptor.channels.iter();
    if !declared.any(|declared| declared.name == channel) {
        return Err(Error::invalid_input(format!(
            "unknown channel `{channel}`: the descriptor of the plugin does not list it; add it to `channels`"
        )));
    }
    let no_gateway = "cannot accept the message: the gateway is not running; start `bub gateway`";
    let inbox = plugin.inbox.get();
    let inbox = inbox.ok_or_else(|| Error::new(ErrorKind::Temporary, no_gateway))?;
    let Some(Value::Object(message)) = params.get_mut("message").map(Value::take) else {
        let text = "invalid `message`: expected an object";
        return Err(Error::invalid_input(text));
    };
    let mut message = Envelope::from_value(message.into());
    message.set("channel", channel.as_str());
    let sender = params.get("sender").cloned().unwrap_or_default();
    let mut sender = Sender::decode(sender).unwrap_or_default();
    // The channel authenticates the sender, but the setting `plugins` limits the sender's role.
    sender.role = sender.role.min(plugin.plugin_config.max_role);
    let session = message.field("session_id").and_then(Value::as_str);
    let session = session.unwrap_or_default();
    let prefix = session.split_once(':').map(|(prefix, _)| prefix);
    let is_own_session = session.is_empty() || prefix == Some(channel.as_str());
    if sender.role != Role::Owner && !is_own_session {
        return Err(Error::invalid_input(format!(
            "invalid `session_id`: expected a value that starts with `{channel}:`"
        )));
    }
    sender.channel = channel;
    sender.chat_id = message.chat_id().unwrap_or_default().into_owned();
    add_context(&mut message, &sender);
    let mut inbound = Inbound::new(message).with_sender(sender);
    if let Some(id) = params.get("lifespan").and_then(Value::as_str) {
        inbound = inbound.with_lifespan(Lifespan::new(PluginLifespan {
            plugin: Arc::clone(plugin),
            id: id.to_owned(),
        }));
    }
    inbox(inbound).await?;
    Ok(json!({"accepted": true}))
}
