//! The hooks of the builtin plugin.

use std::{borrow::Cow, path::PathBuf, sync::Arc};

use bub_kernel::{
    ChannelMessage, Envelope, Error, ErrorKind, Framework, FrameworkRef, ModelStream, PluginContext, Prompt,
    Provided, Result, State, StatePatch, hooks,
    hooks::{args, point},
};
use bub_settings::{Redactor, Settings, core};
use bub_tape::{Durability, FileStore, TapeStore};

use crate::{
    offline::OfflineGuide,
    prompt,
    record::{Ending, TurnTape},
    system_prompt,
};

/// What answers prompts when no plugin does: the typed slot `load_state` seeds.
#[derive(Debug, Default)]
pub struct Agent {
    guide: OfflineGuide,
}

impl Agent {
    /// Answers a prompt.
    pub fn run_stream(&self, prompt: &Prompt) -> ModelStream {
        self.guide.answer(prompt)
    }
}

/// Defaults for every stage of a turn. Registered first, so everything else comes before it.
#[derive(Debug)]
pub struct Builtin {
    framework: FrameworkRef,
    redactor: Redactor,
    agent: Arc<Agent>,
    tapes: PathBuf,
    durability: Durability,
}

impl Builtin {
    /// Makes the plugin from the settings the program loaded.
    pub fn new(context: &PluginContext<'_>) -> Result<Self> {
        let settings = context
            .service::<Settings>()
            .ok_or_else(|| Error::config("the builtin plugin needs the program's settings as a service"))?;
        Ok(Self {
            framework: context.framework.clone(),
            redactor: settings.redactor().clone(),
            agent: Arc::default(),
            tapes: settings.get(&core::HOME).join("tapes"),
            durability: match settings.get(&core::TAPE_DURABILITY) {
                core::Durability::Os => Durability::Os,
                core::Durability::Always => Durability::Always,
            },
        })
    }

    fn framework(&self) -> Result<Framework> {
        self.framework.get().ok_or_else(|| Error::unknown("the framework is gone"))
    }
}

#[hooks(crate = bub_kernel)]
impl Builtin {
    fn resolve_session(&self, message: &Envelope) -> String {
        let own = message.session_id().filter(|id| !id.trim().is_empty());
        own.map_or_else(|| message.chat_session(), Cow::into_owned)
    }

    async fn load_state(&self, message: &Envelope, session_id: &str) -> Result<StatePatch> {
        if let Some(lifespan) = message.lifespan() {
            lifespan.enter().await?;
        }
        let mut patch =
            StatePatch::with_capacity(4).with("session_id", session_id).with_slot(Arc::clone(&self.agent));
        if let Some(tape) = TurnTape::open(&self.framework()?, &self.redactor, message, session_id).await? {
            patch = patch.with_slot(Arc::new(tape));
        }
        let context = message.context_str();
        if !context.is_empty() {
            patch = patch.with("context", context);
        }
        for (key, name) in [("model", "model"), ("thread_id", "_runtime_thread_id")] {
            if let Some(value) = message.context(key).filter(|value| !value.is_null()) {
                patch = patch.with(name, value.clone());
            }
        }
        Ok(patch)
    }

    async fn build_prompt(&self, message: &Envelope) -> Result<Prompt> {
        prompt::build(message).await
    }

    fn run_model_stream(&self, prompt: &Prompt) -> ModelStream {
        self.agent.run_stream(prompt)
    }

    async fn save_state(
        &self,
        state: &State,
        message: &Envelope,
        prompt: &Prompt,
        model_output: &str,
        error: Option<&Error>,
    ) -> Result<()> {
        let recorded = match state.slot::<TurnTape>() {
            Some(tape) => tape.finish(Ending { prompt, model_output, error }).await,
            None => Ok(()),
        };
        // The lifespan ends here whether the record could be written or not.
        if let Some(lifespan) = message.lifespan() {
            lifespan.exit(error).await?;
        }
        recorded
    }

    fn render_outbound(&self, message: &Envelope, session_id: &str, model_output: &str) -> Envelope {
        reply(message, session_id, model_output, prompt::kind(message))
    }

    async fn dispatch_outbound(&self, message: &Envelope) -> Result<bool> {
        match self.framework()?.router() {
            Some(router) => router.dispatch(message).await,
            None => Ok(false),
        }
    }

    async fn on_error(&self, stage: &str, error: &Error, message: Option<&Envelope>) -> Result<()> {
        // Whoever cancelled a turn knows.
        let Some(message) = message.filter(|_| error.kind() != ErrorKind::Cancelled) else { return Ok(()) };
        let session_id = message.session_id().unwrap_or("unknown".into());
        let text = format!("An error occurred at stage '{stage}': {error}");
        let notice = reply(message, &session_id, &self.redactor.redact(&text), "error");
        let framework = self.framework()?;
        framework
            .hooks()
            .call_many::<point::DispatchOutbound>(args::DispatchOutbound { message: &notice })
            .await?;
        Ok(())
    }

    fn system_prompt(&self, state: &State) -> String {
        system_prompt::build(state)
    }

    fn provide_tape_store(&self) -> Provided<dyn TapeStore> {
        Provided::new(Arc::new(FileStore::new(&self.tapes, self.durability)))
    }
}

/// A message back to where `message` came from.
fn reply(message: &Envelope, session_id: &str, content: &str, kind: &str) -> Envelope {
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
