//! Environments of an external plugin: its process runs the commands, and reads and writes the files.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use bub_kernel::{Error, ErrorKind, ExecutionEnvironment, OutputSink, Result, async_trait};
use serde_json::{Value, json};

use crate::{
    callbacks::{self, CallContext},
    peer::{IncomingMessage, Peer},
    process::PluginProcess,
    stream::STREAM_CREDITS,
};

/// An environment that a plugin keeps under an id. It ends with the process of the plugin.
pub(crate) struct RemoteEnvironment {
    plugin: Arc<PluginProcess>,
    /// The process that has the environment.
    peer: Weak<Peer>,
    id: String,
    workspace: Option<String>,
}

impl RemoteEnvironment {
    /// Creates the environment that a plugin described. Returns `None` if the description has no id.
    pub(crate) fn new(plugin: &Arc<PluginProcess>, described: &Value) -> Option<Self> {
        let text = |name: &str| described.get(name)?.as_str().map(str::to_owned);
        let peer = plugin.running_peer();
        Some(Self {
            plugin: Arc::clone(plugin),
            peer: peer.as_ref().map(Arc::downgrade).unwrap_or_default(),
            id: text("id")?,
            workspace: text("workspace"),
        })
    }

    /// Fails if the process that has the environment was replaced by another one.
    fn peer(&self) -> Result<Arc<Peer>> {
        let peer = self.peer.upgrade().filter(|peer| !peer.is_closed());
        peer.ok_or_else(|| {
            let cause = "the environment is gone, because the process ended; the next turn gets another one";
            self.plugin.plugin_error(ErrorKind::Temporary, cause)
        })
    }

    async fn call(&self, method: &str, mut params: Value) -> Result<Value> {
        self.peer()?;
        if let Some(params) = params.as_object_mut() {
            params.insert("environment".to_owned(), self.id.as_str().into());
        }
        // A file can be large, and an environment can be slow.
        let limit = self.plugin.plugin_config.limits.tool;
        self.plugin.call(method, &params, None, limit).await
    }

    fn response_error(&self, method: &str, expected: &str) -> Error {
        let cause = format!("invalid response to `{method}`: expected {expected}");
        self.plugin.plugin_error(ErrorKind::Unknown, &cause)
    }
}

#[async_trait]
impl ExecutionEnvironment for RemoteEnvironment {
    fn workspace(&self) -> Option<&str> {
        self.workspace.as_deref()
    }

    async fn run(
        &self,
        command: &str,
        directory: Option<&str>,
        output: &OutputSink<'_>,
    ) -> Result<i32> {
        let peer = self.peer()?;
        let params = json!({
            "environment": self.id,
            "command": command,
            "cwd": directory,
            "credits": STREAM_CREDITS,
        });
        let mut request = peer.send_request("environment/run", &params, STREAM_CREDITS);
        loop {
            match request.next_message().await {
                IncomingMessage::Event(event) => {
                    request.grant_credits(1);
                    if let Some(text) = event.get("output").and_then(Value::as_str) {
                        output(text.as_bytes());
                    }
                }
                IncomingMessage::Question(question) => {
                    let context = CallContext::new(&self.plugin, None);
                    callbacks::spawn_answer(&peer, question, context);
                }
                IncomingMessage::Response(answer) => {
                    let code = answer?.get("code").and_then(Value::as_i64);
                    let code = code.and_then(|code| i32::try_from(code).ok());
                    return code
                        .ok_or_else(|| self.response_error("environment/run", "a number `code`"));
                }
            }
        }
    }

    async fn read_text(&self, path: &str) -> Result<String> {
        let mut answer = self.call("environment/read", json!({"path": path})).await?;
        match answer.get_mut("content").map(Value::take) {
            Some(Value::String(content)) => Ok(content),
            _ => Err(self.response_error("environment/read", "a string `content`")),
        }
    }

    async fn write_text(&self, path: &str, content: &str) -> Result<()> {
        let params = json!({"path": path, "content": content});
        self.call("environment/write", params).await.map(drop)
    }

    fn is_open(&self) -> bool {
        self.peer().is_ok()
    }

    async fn close(&self) -> Result<()> {
        if !self.is_open() {
            return Ok(());
        }
        self.call("environment/close", json!({})).await.map(drop)
    }
}

impl fmt::Debug for RemoteEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteEnvironment({}, {})", self.plugin.name(), self.id)
    }
}
