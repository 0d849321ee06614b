//! A complete gateway in this process, with journal and tapes on a faulty file system. The agent has a model that calls
//! one tool, and a channel that accepts messages and delivers replies.
//!
//! `bub::testing` keeps its journal in memory; here journal and tapes must be on the file system that fails.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, OnceLock},
};

use bub_agent::{BuiltinOptions, ModelOverride};
use bub_gateway::{
    GatewayOptions, JournalKind, JournalRecovery, gateway_directory, testing::RunningGateway,
};
use bub_kernel::{
    BoxError, CancellationToken, Channel, ChannelMessage, Framework, Inbound, InboundReceipt,
    MessageHandler, Outbound, Provided, Result, Role, Sender, Tool, ToolContext, ToolSpec,
    async_trait, hooks,
};
use bub_model::{FinishReason, ModelEvent, ToolCallDelta};
use bub_settings::{Environment, Loader};
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

#[derive(Clone)]
struct FakeLabPlugin {
    seen: Observations,
    handler: Arc<OnceLock<MessageHandler>>,
    fs: Arc<dyn Fs>,
    tapes: std::path::PathBuf,
    durability: Durability,
}

struct FakeLabChannel(FakeLabPlugin);

#[async_trait]
impl Channel for FakeLabChannel {
    fn name(&self) -> &'static str {
        "lab"
    }

    async fn start(&self, _stop: CancellationToken) -> Result<()> {
        Ok(())
    }

    async fn stop(&self) -> Result<()> {
        Ok(())
    }

    async fn send(&self, outbound: &Outbound) -> Result<()> {
        let attempt = outbound.attempt.as_ref().unwrap();
        let reply = ReceivedReply {
            id: String::from(&attempt.reply_id),
            text: outbound.content().into_owned(),
        };
        let inbound = attempt
            .message_id
            .as_ref()
            .map(String::from)
            .unwrap_or_default();
        self.0
            .seen
            .replies
            .send_modify(|replies| replies.entry(inbound).or_default().push(reply));
        Ok(())
    }
}

#[hooks(crate = bub_kernel)]
impl FakeLabPlugin {
    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let _ = self.handler.set(Arc::clone(message_handler));
        vec![Arc::new(FakeLabChannel(self.clone()))]
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
    handler: Arc<OnceLock<MessageHandler>>,
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
        let variables = [
            ("BUB_HOME", root.join("home").into_os_string()),
            ("HOME", root.to_owned().into_os_string()),
            ("BUB_MODEL", "llamacpp:test".into()),
            ("BUB_LOCAL_MODELS", "false".into()),
        ];
        let settings = Loader::new(Environment::from_pairs(variables))
            .sections(bub::core_sections())
            .load()
            .unwrap();
        let mut options = GatewayOptions::new(&settings, "main");
        options.journal = JournalKind::File {
            directory: gateway_directory(&settings, "main"),
            durability,
            fs: Arc::clone(&fs),
        };
        let handler = Arc::new(OnceLock::new());
        let lab = FakeLabPlugin {
            seen: seen.clone(),
            handler: Arc::clone(&handler),
            fs,
            tapes: root.join("home/tapes"),
            durability,
        };
        let parameters = json!({"type": "object", "properties": {"number": {"type": "integer"}}});
        let spec = ToolSpec {
            name: "note".to_owned(),
            description: "Notes a number.".to_owned(),
            parameters,
            agent_use: true,
            read_only: false,
        };
        let builtin = BuiltinOptions {
            model_override: Some(Arc::new(ModelOverride(Box::new(|_, request| {
                answer(&request.messages)
            })))),
            ..BuiltinOptions::default()
        };
        let framework = Framework::builder()
            .workspace(root)
            .settings(Arc::new(settings))
            .plugin_with("builtin", |context| {
                Ok::<_, BoxError>(bub_agent::BuiltinAgent::new(context, builtin))
            })
            .plugin("lab", lab)
            .tool(FakeNoteTool {
                spec,
                seen: seen.clone(),
            })
            .build();
        let running = RunningGateway::start(&framework, options, &["lab"]).await?;
        Ok(Self {
            handler,
            recovered: running.recovery(),
            running,
        })
    }

    /// Submits a message like a channel. Returns its id, or the reason for the rejection.
    pub(crate) async fn submit(&self, number: u64, chat: &str) -> Result<String> {
        let sender = Sender {
            role: Role::Owner,
            channel: "lab".to_owned(),
            chat_id: chat.to_owned(),
            id: "ada".to_owned(),
            name: String::new(),
        };
        let message =
            ChannelMessage::new(format!("lab:{chat}"), "lab", format!("message {number}"))
                .chat_id(chat);
        let receipt = Arc::new(InboundReceipt::new(Some(number.to_string())));
        let inbound = Inbound::from(message)
            .with_sender(sender)
            .with_receipt(Arc::clone(&receipt));
        self.handler.get().unwrap()(inbound).await?;
        Ok(receipt.message_id().unwrap().into())
    }

    pub(crate) async fn stop(self) {
        self.running.stop().await.unwrap();
    }
}
