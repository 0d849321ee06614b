//! The hook implementations of the builtin plugin.

use std::{
    borrow::Cow,
    sync::{Arc, Once},
    time::Duration,
};

use bub_kernel::settings::{TAPE_STORAGE, TapeStorage, file_store};
use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, BoxFuture, ChannelMessage, Envelope, Error, ErrorKind,
    MessageKind, ModelOption, ModelOptions, ModelStream, PluginContext, Prompt, Provided, Result,
    Role, ScopeGuard, StatePatch, SteeringInbox, Turn, UntrustedSource, hooks,
};
use bub_model::{LoginFactory, ModelId};
use bub_tape::{MemoryStore, Sidecar, TapeStore};

use crate::{
    agent::{Agent, ModelOverride},
    attachments::{AddedFiles, AttachmentReader},
    prompt, sessions,
    shell::{Launcher, Shells},
    spill,
    steering::MemorySteeringInbox,
    system_prompt, tools,
};

/// How long shell commands have to exit at shutdown.
const SHELL_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The builtin plugin: defaults for every stage of a turn. It is registered first, so other plugins take precedence.
pub struct BuiltinAgent {
    agent: Arc<Agent>,
    /// Completed when the log has a line about untrusted instructions.
    instructions_announced: Once,
}

/// Options that the program passes to the builtin plugin.
#[derive(Default)]
pub struct BuiltinOptions {
    /// Starts shell commands under a supervisor. If `None`, commands run without a supervisor.
    pub launcher: Option<Launcher>,
    /// Logins of plugins, with which models can be called without an API key.
    pub logins: Arc<[LoginFactory]>,
    /// Answers model calls instead of a provider.
    pub model_override: Option<Arc<ModelOverride>>,
}

impl BuiltinAgent {
    /// Creates the plugin and registers its tools.
    pub fn new(context: &PluginContext<'_>, options: BuiltinOptions) -> Self {
        let agent = Arc::new(Agent::new(context, options));
        tools::register_tools(context, &agent);
        Self {
            agent,
            instructions_announced: Once::new(),
        }
    }
}

#[hooks(crate = bub_kernel)]
impl BuiltinAgent {
    async fn resolve_session(&self, message: &Envelope) -> Result<String> {
        let id = message.session_id().filter(|id| !id.trim().is_empty());
        let id = id.map_or_else(|| message.chat_session_id(), Cow::into_owned);
        sessions::current_session(&self.agent.framework()?, id).await
    }

    async fn load_state(&self, message: &Envelope, turn: &Turn) -> Result<StatePatch> {
        if let Some(lifespan) = &turn.inbound().lifespan {
            lifespan.enter().await?;
        }
        let mut patch = StatePatch::with_capacity(8)
            .with("session_id", turn.session_id())
            .with("_runtime_agent", "builtin");
        let summary = turn.tape().summary().await?;
        let chosen = [
            ("model", &summary.model),
            ("reasoning_effort", &summary.reasoning_effort),
        ];
        for (name, value) in chosen {
            if let Some(value) = value {
                patch = patch.with(name, value.as_str());
            }
        }
        if summary.code_mode {
            patch = patch.with("code_mode", true);
        }
        let context = message.context_str();
        if !context.is_empty() {
            patch = patch.with("context", context);
        }
        for (key, name) in [
            ("model", "model"),
            ("thread_id", "_runtime_thread_id"),
            // The prompt does not show these.
            ("_model", "model"),
            ("_reasoning_effort", "reasoning_effort"),
        ] {
            if let Some(value) = message.context_value(key).filter(|value| !value.is_null()) {
                patch = patch.with(name, value.clone());
            }
        }
        Ok(patch)
    }

    async fn build_prompt(&self, message: &Envelope, turn: &Turn) -> Result<Prompt> {
        let agent = &*self.agent;
        let reader = AttachmentReader { agent, turn };
        prompt::build_prompt(message, &reader).await
    }

    async fn run_model_stream(&self, prompt: &Prompt, turn: &Turn) -> Result<ModelStream> {
        self.agent.answer_prompt(prompt, turn).await
    }

    async fn save_state(&self, turn: &Turn, error: Option<&Error>) -> Result<()> {
        match &turn.inbound().lifespan {
            Some(lifespan) => lifespan.exit(error).await,
            None => Ok(()),
        }
    }

    fn render_outbound(
        &self,
        message: &Envelope,
        session_id: &str,
        model_output: &str,
    ) -> Envelope {
        let kind = prompt::message_kind(message);
        build_reply(message, session_id, model_output, kind)
    }

    async fn dispatch_outbound(&self, message: &Envelope, turn: Option<&Turn>) -> Result<bool> {
        // Redact here because any plugin may have rendered the reply.
        let redactor = self.agent.settings.redactor();
        let message = match redactor.redact(&message.content()) {
            Cow::Borrowed(_) => message.clone(),
            Cow::Owned(clean) => message.clone().with("content", clean),
        };
        match (turn, self.agent.framework()?.router()) {
            (Some(turn), _) => turn.deliver(message).await,
            (None, Some(router)) => router.dispatch(message.into()).await,
            (None, None) => Ok(false),
        }
    }

    async fn on_error(
        &self,
        stage: &str,
        error: &Error,
        message: Option<&Envelope>,
        turn: Option<&Turn>,
    ) -> Result<()> {
        // A user who cancels a turn needs no notice.
        let Some(message) = message.filter(|_| error.kind() != ErrorKind::Cancelled) else {
            return Ok(());
        };
        let session_id = message.session_id().unwrap_or("unknown".into());
        let role = turn.map_or(Role::Guest, |turn| turn.sender().role);
        let error = error_text(error, role);
        let text = format!("An error occurred at stage '{stage}': {error}");
        let text = self.agent.settings.redactor().redact(&text);
        let mut notice = build_reply(message, &session_id, &text, MessageKind::Error);
        // Send the notice also in channels where the model's answers are not sent automatically.
        let channel = message.channel().unwrap_or_default();
        notice.set("output_channel", channel.into_owned());
        let framework = self.agent.framework()?;
        framework.dispatch_outbound(&notice, turn).await
    }

    fn system_prompt(&self, turn: &Turn) -> String {
        let settings = &self.agent.settings;
        let part = system_prompt::build_fragment(turn, settings);
        if let Some(file) = part.untrusted_file {
            turn.mark_untrusted(UntrustedSource::WorkspaceInstructions);
            if !settings.trust_report().is_declined {
                self.instructions_announced.call_once(|| {
                    let hint = "the model reads these instructions; if you trust their author, run `bub trust`";
                    tracing::warn!(file = %file.display(), hint, "prompt.untrusted_instructions");
                });
            }
        }
        part.text
    }

    async fn request_approval(&self, request: &ApprovalRequest) -> Option<ApprovalAnswer> {
        let framework = self.agent.framework().ok()?;
        framework.approvals().wait_for_answer(&request.id).await
    }

    async fn provide_model_options(&self) -> Option<ModelOptions> {
        let report = self.agent.models.as_ref().ok()?.report().await;
        let choice = report.choice.as_ref().ok();
        let current = choice.and_then(|choice| choice.model.as_ref());
        let option = |model: ModelId| ModelOption {
            id: model.to_string(),
            label: None,
        };
        Some(ModelOptions {
            current: current.map(ToString::to_string),
            choices: report.usable_models().into_iter().map(option).collect(),
        })
    }

    /// The shell commands of all sessions end with bub.
    fn provide_lifespan(&self) -> Box<dyn ScopeGuard> {
        Box::new(StopShellsGuard(Arc::clone(&self.agent.shells)))
    }

    fn provide_tape_sidecar(&self) -> Sidecar {
        Sidecar::new(spill::SPILL_SIDECAR)
    }

    fn provide_steering_inbox(&self) -> Provided<dyn SteeringInbox> {
        Provided::new(Arc::new(MemorySteeringInbox::default()))
    }

    fn provide_tape_store(&self) -> Provided<dyn TapeStore> {
        let settings = &self.agent.settings;
        if settings.get(&TAPE_STORAGE) == TapeStorage::Memory {
            let guard = RemoveFilesGuard(Arc::clone(&self.agent.added_files));
            return Provided::with_guard(Arc::new(MemoryStore::new()), guard);
        }
        Provided::new(Arc::new(file_store(settings)))
    }
}

/// Terminates the shell commands that are still running when bub shuts down.
struct StopShellsGuard(Arc<Shells>);

impl ScopeGuard for StopShellsGuard {
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            self.0.stop_all(SHELL_STOP_TIMEOUT).await;
            Ok(())
        })
    }
}

/// Removes the files that users attached when bub shuts down, because no tape that is kept names them.
struct RemoveFilesGuard(Arc<AddedFiles>);

impl ScopeGuard for RemoveFilesGuard {
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        self.0.remove_all();
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Builds a reply to the chat that `message` came from.
fn build_reply(message: &Envelope, session_id: &str, content: &str, kind: MessageKind) -> Envelope {
    let channel = message.channel().unwrap_or("default".into());
    let mut reply = ChannelMessage::new(session_id, channel, content).kind(kind);
    if let Some(chat_id) = message.chat_id() {
        reply = reply.chat_id(chat_id);
    }
    if let Some(output_channel) = message.output_channel() {
        reply = reply.output_channel(output_channel);
    }
    reply.into()
}

/// Returns the text of an error for senders with this role. Only owners see paths, addresses and settings of this
/// machine.
fn error_text(error: &Error, role: Role) -> String {
    let text = error.to_string();
    let is_internal = |word: &str| {
        let word = word.trim_matches(|letter: char| letter.is_ascii_punctuation() && letter != '/');
        let is_path = word.starts_with('/') && word.matches('/').count() > 1;
        let is_port = |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok();
        is_path
            || word.contains("://")
            || word.starts_with("BUB_")
            || word.rsplit_once(':').is_some_and(is_port)
    };
    let has_internals = text.contains("(os error ") || text.split_whitespace().any(is_internal);
    let summary = match error.kind() {
        _ if role == Role::Owner => return text,
        ErrorKind::Config => "bub is not configured correctly",
        ErrorKind::Provider => "the model refused or did not complete its answer",
        ErrorKind::Temporary => "the model or another service is unavailable",
        _ if has_internals => "a file or service that bub needs is unavailable",
        _ => return text,
    };
    format!("{summary}; ask the owner of this bot, who sees the details in the log")
}
