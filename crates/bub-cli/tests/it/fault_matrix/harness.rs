//! The framework of `bub::testing` with a gateway whose journal and tapes are on a faulty file system. The agent has a
//! model that calls one tool.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
};

use bub::testing;
use bub_agent::ModelOverride;
use bub_gateway::{
    GatewayOptions, JournalKind, JournalRecovery, gateway_directory, testing::RunningGateway,
};
use bub_kernel::{
    Channel, MessageHandler, Provided, Result, Role, Tool, ToolContext, ToolSpec, async_trait,
    hooks, testing::FakeChannel,
};
use bub_model::{FinishReason, ModelEvent, ToolCallDelta};
use bub_tape::{Durability, FileStore, TapeStore, fs::Fs};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

/// A reply that arrived, with its id and text.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedReply {
    pub(crate) id: String,
    pub(crate) text: String,
}

/// Everything that is visible from outside, across restarts of the gateway.
#[derive(Clone, Default)]
pub(crate) struct Observations {
    /// Replies that arrived, by the id of the message.
    pub(crate) replies: Arc<watch::Sender<HashMap<String, Vec<ReceivedReply>>>>,
    /// Number of runs of the tool, by the number of the message.
    pub(crate) ran: Arc<Mutex<HashMap<u64, usize>>>,
}

impl Observations {
    /// Returns a channel that keeps its replies here.
    fn channel(&self) -> FakeChannel {
        let replies = Arc::clone(&self.replies);
        FakeChannel {
            on_send: Some(Box::new(move |outbound| {
                let attempt = outbound.attempt.as_ref().unwrap();
                let reply = ReceivedReply {
                    id: String::from(&attempt.reply_id),
                    text: outbound.content().into_owned(),
                };
                let inbound = attempt.message_id.as_ref().map(String::from);
                replies.send_modify(|replies| {
                    replies
                        .entry(inbound.unwrap_or_default())
                        .or_default()
                        .push(reply);
                });
                Ok(())
            })),
            ..FakeChannel::new("lab")
        }
    }
}

/// Provides the channel, and tapes on the faulty file system.
struct FakeLabPlugin {
    channel: Arc<FakeChannel>,
    fs: Arc<dyn Fs>,
    tapes: std::path::PathBuf,
    durability: Durability,
}

#[hooks(crate = bub_kernel)]
impl FakeLabPlugin {
    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        vec![self.channel.open(message_handler)]
    }

    fn provide_tape_store(&self) -> Provided<dyn TapeStore> {
        Provided::new(Arc::new(FileStore::with_fs(
            &self.tapes,
            self.durability,
            Arc::clone(&self.fs),
        )))
    }
}

/// The tool. Its effect must not happen twice.
struct FakeNoteTool {
    spec: ToolSpec,
    seen: Observations,
}

#[async_trait]
impl Tool for FakeNoteTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, arguments: Map<String, Value>, _context: ToolContext) -> Result<Value> {
        *self
            .seen
            .ran
            .lock()
            .unwrap()
            .entry(arguments["number"].as_u64().unwrap())
            .or_default() += 1;
        Ok(json!("noted"))
    }
}

/// Calls the tool with the number of the message, and answers when the result is available.
fn answer(messages: &[Value]) -> Vec<ModelEvent> {
    let number = |message: &Value| -> Option<u64> {
        message["content"]
            .as_str()?
            .rsplit_once("message ")?
            .1
            .trim()
            .parse()
            .ok()
    };
    // Only after the question, because an earlier call may have been interrupted.
    let asked = messages
        .iter()
        .rposition(|message| number(message).is_some())
        .unwrap();
    let (number, since) = (number(&messages[asked]).unwrap(), &messages[asked..]);
    if since.iter().any(|message| message["role"] == "tool") {
        return vec![
            ModelEvent::Text(format!("noted {number}")),
            ModelEvent::Finish(FinishReason::Stop),
        ];
    }
    let call = ToolCallDelta {
        index: 0,
        id: Some(format!("call-{number}")),
        name: Some("note".to_owned()),
        arguments: json!({ "number": number }).to_string(),
    };
    vec![
        ModelEvent::ToolCall(call),
        ModelEvent::Finish(FinishReason::ToolCalls),
    ]
}

/// A running gateway.
pub(crate) struct FaultFixture {
    channel: Arc<FakeChannel>,
    pub(crate) recovered: JournalRecovery,
    running: RunningGateway,
}

impl FaultFixture {
    pub(crate) async fn open(
        root: &Path,
        durability: Durability,
        fs: Arc<dyn Fs>,
        seen: &Observations,
    ) -> Result<Self> {
        let channel = Arc::new(seen.channel());
        let lab = FakeLabPlugin {
            channel: Arc::clone(&channel),
            fs: Arc::clone(&fs),
            tapes: root.join("home/tapes"),
            durability,
        };
        let parameters = json!({"type": "object", "properties": {"number": {"type": "integer"}}});
        let spec = ToolSpec::new("note", "Notes a number.", parameters);
        let model = ModelOverride(Box::new(|_, request| answer(&request.messages)));
        let framework = testing::framework(root)
            .model(model)
            .builder()?
            .plugin("lab", lab)
            .tool(FakeNoteTool {
                spec,
                seen: seen.clone(),
            })
            .build();
        let settings = framework.settings();
        let mut options = GatewayOptions::new(settings, "main");
        options.journal = JournalKind::File {
            directory: gateway_directory(settings, "main"),
            durability,
            fs,
        };
        let running = RunningGateway::start(&framework, options, &["lab"]).await?;
        Ok(Self {
            channel,
            recovered: running.recovery(),
            running,
        })
    }

    /// Submits a message like a channel. Returns its id, or the reason for the rejection.
    pub(crate) async fn submit(&self, number: u64, chat: &str) -> Result<String> {
        let (by, text) = ((Role::Owner, "ada"), format!("message {number}"));
        let key = number.to_string();
        let receipt = self.channel.say_as(by, chat, &text, Some(&key)).await?;
        Ok(receipt.message_id().unwrap().into())
    }

    pub(crate) async fn stop(self) {
        self.running.stop().await.unwrap();
    }
}
