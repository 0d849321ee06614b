//! The hooks of the builtin plugin.

use std::{borrow::Cow, path::PathBuf, sync::Arc, time::Duration};

use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, BoxFuture, ChannelMessage, Envelope, Error, ErrorKind,
    Framework, FrameworkRef, LastWord, ModelStream, PluginContext, Prompt, Provided,
    RecorderHandle, Result, Role, ScopeGuard, State, StatePatch, SteeringInbox, hooks,
    hooks::{args, point},
};
use bub_settings::{Redactor, Settings, core};
use bub_tape::{Durability, FileStore, Sidecar, TapeStore};

use crate::{
    agent::{Agent, Answering},
    policy::{Approvals, Policy},
    prompt,
    record::{Ending, OpenTurns, Recorder, TurnTape},
    sessions,
    shell::{Launcher, Shells},
    skills::{LoadedSkills, Skills},
    spill,
    steering::MemoryInbox,
    system_prompt,
    tools::{self, Files},
    web::Web,
};

/// How long commands have to end when the program does.
const SHELLS_DEADLINE: Duration = Duration::from_secs(5);

/// Defaults for every stage of a turn. Registered first, so everything else comes before it.
#[derive(Debug)]
pub struct Builtin {
    framework: FrameworkRef,
    redactor: Redactor,
    agent: Arc<Agent>,
    open_turns: OpenTurns,
    policy: Arc<Policy>,
    approvals: Arc<Approvals>,
    skills: Arc<Skills>,
    files: Files,
    shells: Arc<Shells>,
    web: Arc<Web>,
    home: PathBuf,
    durability: Durability,
}

impl Builtin {
    /// Makes the plugin from the settings the program loaded.
    pub fn new(context: &PluginContext<'_>) -> Result<Self> {
        let settings = context.service::<Settings>().ok_or_else(|| {
            Error::config("the builtin plugin needs the program's settings as a service")
        })?;
        tools::register(context);
        Ok(Self {
            framework: context.framework.clone(),
            redactor: settings.redactor().clone(),
            agent: Arc::new(Agent::new(
                context.framework.clone(),
                Arc::clone(&settings),
                context.service::<Answering>(),
            )),
            open_turns: OpenTurns::default(),
            policy: Arc::new(Policy::new(&settings)),
            approvals: Arc::default(),
            skills: Arc::new(Skills::new(&settings)),
            files: Files::new(&settings),
            shells: Arc::new(Shells::new(
                Arc::clone(&settings),
                context
                    .service::<Launcher>()
                    .map(|launcher| (*launcher).clone()),
            )),
            web: Arc::new(Web::new(&settings)),
            home: settings.get(&core::HOME),
            durability: match settings.get(&core::TAPE_DURABILITY) {
                core::Durability::Os => Durability::Os,
                core::Durability::Always => Durability::Always,
            },
        })
    }

    /// A turn that failed before its model stage has no `save_state`: it is recorded, and its session set free, here.
    async fn record_failure(&self, error: &Error, message: Option<&Envelope>) -> Result<()> {
        let Some((message, session_id)) =
            message.and_then(|message| Some((message, message.session_id()?)))
        else {
            return Ok(());
        };
        let tape = match self.open_turns.take(&session_id) {
            Some(tape) => tape,
            // Another plugin's `load_state` failed before this one's was asked.
            None if error
                .origin()
                .is_some_and(|origin| origin.hook == "load_state") =>
            {
                Arc::new(
                    TurnTape::open(&self.framework()?, &self.redactor, message, &session_id)
                        .await?,
                )
            }
            None => return Ok(()),
        };
        let prompt = Prompt::from(message.content().as_ref());
        tape.finish(Ending {
            prompt: &prompt,
            output: "",
            error: Some(error),
        })
        .await
    }

    fn framework(&self) -> Result<Framework> {
        self.framework
            .get()
            .ok_or_else(|| Error::unknown("the framework is gone"))
    }
}

#[hooks(crate = bub_kernel)]
impl Builtin {
    async fn resolve_session(&self, message: &Envelope) -> Result<String> {
        let own = message.session_id().filter(|id| !id.trim().is_empty());
        let id = own.map_or_else(|| message.chat_session(), Cow::into_owned);
        sessions::in_use(&self.framework()?, id).await
    }

    async fn load_state(&self, message: &Envelope, session_id: &str) -> Result<StatePatch> {
        if let Some(lifespan) = message.lifespan() {
            lifespan.enter().await?;
        }
        let framework = self.framework()?;
        let tape = Arc::new(TurnTape::open(&framework, &self.redactor, message, session_id).await?);
        self.open_turns.add(session_id, &tape);
        let mut patch = StatePatch::with_capacity(8).with("session_id", session_id);
        let summary = tape.summary().await?;
        let chosen = [
            ("model", &summary.model),
            ("reasoning_effort", &summary.reasoning_effort),
        ];
        for (name, value) in chosen {
            if let Some(value) = value {
                patch = patch.with(name, value.as_str());
            }
        }
        let sender = message.sender();
        let is_confined = self.policy.confines(&sender);
        let files = if is_confined {
            self.files.clone().confined()
        } else {
            self.files.clone()
        };
        let recorder = Recorder {
            tape: Arc::clone(&tape),
            framework,
        };
        patch = patch
            .with_slot(Arc::new(self.framework.clone()))
            .with_slot(Arc::clone(&self.agent))
            .with_slot(Arc::new(files))
            .with_slot(Arc::new(self.framework.clone()))
            .with_slot(sender)
            .with_slot(Arc::clone(&self.policy))
            .with_slot(Arc::clone(&self.approvals))
            .with_slot(Arc::clone(&self.shells))
            .with_slot(Arc::clone(&self.skills))
            .with_slot(Arc::clone(&self.web))
            .with_slot(Arc::new(LoadedSkills::default()))
            .with_slot(Arc::new(RecorderHandle(Arc::new(recorder))))
            .with_slot(tape);
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
        self.agent.run_stream(prompt, state).await
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
            Some(tape) => {
                tape.finish(Ending {
                    prompt,
                    output: partial_output,
                    error,
                })
                .await
            }
            None => Ok(()),
        };
        // The lifespan ends here whether the record could be written or not.
        if let Some(lifespan) = message.lifespan() {
            lifespan.exit(error).await?;
        }
        recorded
    }

    fn render_outbound(
        &self,
        message: &Envelope,
        session_id: &str,
        model_output: &str,
    ) -> Envelope {
        reply(message, session_id, model_output, prompt::kind(message))
    }

    async fn dispatch_outbound(&self, message: &Envelope) -> Result<bool> {
        let Some(router) = self.framework()?.router() else {
            return Ok(false);
        };
        // Whoever rendered it: a secret does not leave the house.
        match self.redactor.redact(&message.content()) {
            Cow::Borrowed(_) => router.dispatch(message).await,
            Cow::Owned(clean) => {
                router
                    .dispatch(&message.clone().with("content", clean))
                    .await
            }
        }
    }

    async fn on_error(&self, stage: &str, error: &Error, message: Option<&Envelope>) -> Result<()> {
        let recorded = match stage {
            "turn" => self.record_failure(error, message).await,
            _ => Ok(()),
        };
        // Whoever cancelled a turn knows.
        let Some(message) = message.filter(|_| error.kind() != ErrorKind::Cancelled) else {
            return recorded;
        };
        let session_id = message.session_id().unwrap_or("unknown".into());
        let text = format!(
            "An error occurred at stage '{stage}': {}",
            shown(error, message.sender().role)
        );
        let mut notice = reply(message, &session_id, &self.redactor.redact(&text), "error");
        if stage == "turn" {
            notice.put_slot(Arc::new(LastWord));
        }
        // Also where the answers of the model are not sent by themselves.
        notice.set(
            "output_channel",
            message.channel().unwrap_or_default().into_owned(),
        );
        let framework = self.framework()?;
        framework
            .hooks()
            .call_many::<point::DispatchOutbound>(args::DispatchOutbound { message: &notice })
            .await?;
        // The person is told also when the tape cannot be written.
        recorded
    }

    fn system_prompt(&self, state: &State) -> String {
        system_prompt::build(state, &self.home)
    }

    async fn request_approval(&self, request: &ApprovalRequest) -> Option<ApprovalAnswer> {
        self.approvals.wait(&request.id).await
    }

    fn continue_prompt(&self, state: &State) -> String {
        prompt::go_on(state.get_str("context").as_deref())
    }

    fn provide_tape_sidecar(&self) -> Sidecar {
        Sidecar::new(spill::SIDECAR)
    }

    fn provide_steering_inbox(&self) -> Provided<dyn SteeringInbox> {
        Provided::with_guard(
            Arc::new(MemoryInbox::default()),
            StopShells(Arc::clone(&self.shells)),
        )
    }

    fn provide_tape_store(&self) -> Provided<dyn TapeStore> {
        Provided::new(Arc::new(FileStore::new(
            self.home.join("tapes"),
            self.durability,
        )))
    }
}

/// What commands left running ends with the scope.
struct StopShells(Arc<Shells>);

impl ScopeGuard for StopShells {
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            self.0.stop_all(SHELLS_DEADLINE).await;
            Ok(())
        })
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

/// An error in words. What only concerns the computer, its addresses and its settings, is for its owner.
fn shown(error: &Error, role: Role) -> String {
    let text = error.to_string();
    let is_place = |word: &str| {
        let word = word.trim_matches(|letter: char| letter.is_ascii_punctuation() && letter != '/');
        let is_path = word
            .strip_prefix('/')
            .is_some_and(|rest| rest.contains('/'));
        let is_port = |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok();
        is_path
            || word.contains("://")
            || word.starts_with("BUB_")
            || word.rsplit_once(':').is_some_and(is_port)
    };
    let is_inside = text.contains("(os error ") || text.split_whitespace().any(is_place);
    let what = match error.kind() {
        _ if role == Role::Owner => return text,
        ErrorKind::Config => "something is not set up right",
        ErrorKind::Provider => "the model refused, or gave no whole answer",
        ErrorKind::Temporary => "the model, or something else that I need, cannot be reached",
        _ if is_inside => "something on my side cannot be read or written",
        _ => return text,
    };
    format!("{what}; the log has the details")
}
