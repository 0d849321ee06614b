//! The hooks of the builtin plugin.

use std::{borrow::Cow, path::PathBuf, sync::Arc};

use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, ChannelMessage, Envelope, Error, ErrorKind, Framework, FrameworkRef,
    ModelStream, PluginContext, Prompt, Provided, RecorderHandle, Result, State, StatePatch, hooks,
    hooks::{args, point},
};
use bub_settings::{Redactor, Settings, core};
use bub_tape::{Durability, FileStore, TapeStore};

use crate::{
    agent::Agent,
    policy::{Approvals, Policy},
    prompt,
    record::{Ending, OpenTurns, TurnTape},
    skills::{LoadedSkills, Skills},
    system_prompt, tools,
};

/// Defaults for every stage of a turn. Registered first, so everything else comes before it.
#[derive(Debug)]
pub struct Builtin {
    framework: FrameworkRef,
    redactor: Redactor,
    agent: Arc<Agent>,
    skills: Arc<Skills>,
    open_turns: OpenTurns,
    policy: Arc<Policy>,
    approvals: Arc<Approvals>,
    home: PathBuf,
    durability: Durability,
}

impl Builtin {
    /// Makes the plugin from the settings the program loaded.
    pub fn new(context: &PluginContext<'_>) -> Result<Self> {
        let settings = context
            .service::<Settings>()
            .ok_or_else(|| Error::config("the builtin plugin needs the program's settings as a service"))?;
        context.add_tool(tools::skill());
        Ok(Self {
            framework: context.framework.clone(),
            redactor: settings.redactor().clone(),
            agent: Arc::new(Agent::new(Arc::clone(&settings))),
            skills: Arc::new(Skills::new(&settings)),
            open_turns: OpenTurns::default(),
            policy: Arc::new(Policy::new(&settings)),
            approvals: Arc::default(),
            home: settings.get(&core::HOME),
            durability: match settings.get(&core::TAPE_DURABILITY) {
                core::Durability::Os => Durability::Os,
                core::Durability::Always => Durability::Always,
            },
        })
    }

    /// A turn that failed before its model stage has no `save_state`: it is recorded, and its session set free, here.
    async fn record_failure(&self, error: &Error, message: Option<&Envelope>) -> Result<()> {
        let Some((message, session_id)) = message.and_then(|message| Some((message, message.session_id()?)))
        else {
            return Ok(());
        };
        let tape = match self.open_turns.take(&session_id) {
            Some(tape) => Some(tape),
            // Another plugin's `load_state` failed before this one's was asked.
            None if error.origin().is_some_and(|origin| origin.hook == "load_state") => {
                let open = TurnTape::open(&self.framework()?, &self.redactor, message, &session_id).await?;
                open.map(Arc::new)
            }
            None => None,
        };
        let Some(tape) = tape else { return Ok(()) };
        let prompt = Prompt::from(message.content().as_ref());
        tape.finish(Ending { prompt: &prompt, output: "", error: Some(error) }).await
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
        let mut patch = StatePatch::with_capacity(4)
            .with("session_id", session_id)
            .with_slot(Arc::clone(&self.agent))
            .with_slot(message.sender())
            .with_slot(Arc::clone(&self.policy))
            .with_slot(Arc::clone(&self.approvals))
            .with_slot(Arc::clone(&self.skills))
            .with_slot(Arc::new(LoadedSkills::default()));
        if let Some(tape) = TurnTape::open(&self.framework()?, &self.redactor, message, session_id).await? {
            let tape = Arc::new(tape);
            self.open_turns.add(session_id, &tape);
            patch = patch.with_slot(Arc::new(RecorderHandle(Arc::clone(&tape) as _))).with_slot(tape);
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

    async fn run_model_stream(&self, prompt: &Prompt, state: &State) -> Result<ModelStream> {
        self.agent.run_stream(&self.framework()?, prompt, state).await
    }

    async fn save_state(
        &self,
        session_id: &str,
        message: &Envelope,
        prompt: &Prompt,
        partial_output: &str,
        error: Option<&Error>,
    ) -> Result<()> {
        let recorded = match self.open_turns.take(session_id) {
            Some(tape) => tape.finish(Ending { prompt, output: partial_output, error }).await,
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
        let Some(router) = self.framework()?.router() else { return Ok(false) };
        // Whoever rendered it: a secret does not leave the house.
        match self.redactor.redact(&message.content()) {
            Cow::Borrowed(_) => router.dispatch(message).await,
            Cow::Owned(clean) => router.dispatch(&message.clone().with("content", clean)).await,
        }
    }

    async fn on_error(&self, stage: &str, error: &Error, message: Option<&Envelope>) -> Result<()> {
        if stage == "turn" {
            self.record_failure(error, message).await?;
        }
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
        system_prompt::build(state, &self.home)
    }

    async fn request_approval(&self, request: &ApprovalRequest) -> Option<ApprovalAnswer> {
        self.approvals.wait(&request.id).await
    }

    fn provide_tape_store(&self) -> Provided<dyn TapeStore> {
        Provided::new(Arc::new(FileStore::new(self.home.join("tapes"), self.durability)))
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
