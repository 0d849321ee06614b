//! One turn: a message in, any number out.
//!
//! ```text
//! resolve_session → load_state → build_prompt → run_model → save_state → render → dispatch
//! ```

use tokio_util::sync::CancellationToken;

use crate::{
    envelope::Envelope,
    error::{Error, ErrorKind, Result},
    framework::Framework,
    hooks::{
        HookPoint, args, guard,
        point::{
            BuildPrompt, DispatchOutbound, LoadState, RenderOutbound, ResolveSession, SaveState,
        },
    },
    prompt::Prompt,
    recorder::RecorderHandle,
    state::{State, StatePatch},
    steering::SteeringHandle,
};

/// How a turn is run.
#[derive(Clone, Debug, Default)]
pub struct TurnOptions {
    /// Whether channels see the output grow. The turn itself always streams.
    pub stream_output: bool,
    /// Ends the turn when it fires, in any stage up to the model's; after the model stage has begun, `save_state`
    /// still runs.
    pub cancel: Option<CancellationToken>,
}

/// The target of log lines about what the caller learns as well, so that a program can print them once.
pub(crate) const TURN_LOG: &str = "bub::turn";

/// The target of log lines with what people and models say: a program shows them only when asked to.
const CONTENTS_LOG: &str = "bub::contents";

impl TurnOptions {
    /// Waits until the turn is cancelled: for ever, when nobody can.
    pub async fn cancelled(&self) {
        match &self.cancel {
            Some(cancel) => cancel.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// A turn whose output channels see grow.
    pub fn streaming() -> Self {
        Self {
            stream_output: true,
            ..Self::default()
        }
    }
}

/// What a turn came to.
#[derive(Debug)]
pub struct TurnResult {
    /// The session it belonged to.
    pub session_id: String,
    /// What the model was asked.
    pub prompt: Prompt,
    /// What it answered.
    pub model_output: String,
    /// The messages that went out.
    pub outbounds: Vec<Envelope>,
    /// The state as the turn left it.
    pub state: State,
}

impl Framework {
    /// Runs one turn.
    ///
    /// A failure of any stage is logged, told to `on_error` as stage `turn`, and returned.
    pub async fn process_inbound(
        &self,
        mut inbound: Envelope,
        options: TurnOptions,
    ) -> Result<TurnResult> {
        let outcome = self.turn(&mut inbound, &options).await;
        let failure = outcome.as_ref().err();
        match failure {
            Some(error) if error.kind() == ErrorKind::Cancelled => tracing::info!("turn.cancelled"),
            Some(error) => {
                let session = inbound.session_id().unwrap_or_default();
                tracing::error!(target: TURN_LOG, "turn.failed session={session:?} error={error}");
            }
            None => {}
        }
        // A lifespan that no `save_state` closed, because the turn never got there, ends here.
        close_lifespan(&inbound, failure).await;
        if let Some(error) = failure {
            self.hooks()
                .notify_error("turn", error, Some(&inbound))
                .await;
        }
        outcome
    }

    async fn turn(&self, inbound: &mut Envelope, options: &TurnOptions) -> Result<TurnResult> {
        let cancel = options.cancel.as_ref();
        let session_id = until(cancel, self.resolve_session(inbound)).await?;
        inbound.set("session_id", session_id.as_str());
        let inbound = &*inbound;

        let state = until(cancel, self.build_state(inbound, &session_id)).await?;
        let prompt = until(cancel, self.build_prompt(inbound, &session_id, &state)).await?;

        if let Some(recorder) = state.slot::<RecorderHandle>() {
            until(cancel, recorder.0.question(&prompt, &state)).await?;
        }

        tracing::info!(target: CONTENTS_LOG, "turn.prompt session={session_id:?} text={:?}", prompt.text());
        let turn = Turn {
            framework: self,
            message: inbound,
            session_id: &session_id,
            state: &state,
        };
        let mut output = String::new();
        let answered = until(
            cancel,
            turn.run_model(&prompt, options.stream_output, &mut output),
        )
        .await;
        tracing::info!(target: CONTENTS_LOG, "turn.answer session={session_id:?} text={output:?}");
        let saved = turn
            .save_state(&prompt, &output, answered.as_ref().err())
            .await;
        answered?;
        saved?;
        let model_output = output;

        let outbounds = turn.render(&model_output).await?;
        for outbound in &outbounds {
            self.hooks()
                .call_many::<DispatchOutbound>(args::DispatchOutbound { message: outbound })
                .await?;
        }
        Ok(TurnResult {
            session_id,
            prompt,
            model_output,
            outbounds,
            state,
        })
    }

    /// Names the session of a message.
    pub async fn resolve_session(&self, message: &Envelope) -> Result<String> {
        let resolved = self
            .hooks()
            .call_first::<ResolveSession>(args::ResolveSession { message })
            .await?;
        Ok(resolved
            .filter(|id| !id.is_empty())
            .unwrap_or_else(|| default_session(message)))
    }

    /// Builds the state of a turn: the runtime's own seeds, then what plugins contribute.
    pub async fn build_state(&self, message: &Envelope, session_id: &str) -> Result<State> {
        let mut seeds =
            StatePatch::with_capacity(4).with("_runtime_workspace", self.workspace_text());
        if let Some(inbox) = self.steering_inbox() {
            seeds = seeds.with_slot(std::sync::Arc::new(SteeringHandle(inbox)));
        }
        let state = State::from_patch(seeds);
        let patches = self
            .hooks()
            .call_many::<LoadState>(args::LoadState {
                message,
                session_id,
            })
            .await?;
        // Called latest first, merged the other way round: the latest registered has the last word.
        for patch in patches.into_iter().rev().flatten() {
            state.merge(patch);
        }
        Ok(state)
    }

    /// Makes the prompt of a message; an empty one is replaced by the content of the message.
    pub async fn build_prompt(
        &self,
        message: &Envelope,
        session_id: &str,
        state: &State,
    ) -> Result<Prompt> {
        let args = args::BuildPrompt {
            message,
            session_id,
            state,
        };
        let built = self.hooks().call_first::<BuildPrompt>(args).await?;
        let usable = built.filter(|prompt| !prompt.is_empty());
        Ok(usable.unwrap_or_else(|| Prompt::Text(message.content().into_owned())))
    }
}

/// What the stages from the model on have in common.
struct Turn<'a> {
    framework: &'a Framework,
    message: &'a Envelope,
    session_id: &'a str,
    state: &'a State,
}

impl Turn<'_> {
    /// Collects the answer in `output`, which holds what there is of it when the stage fails or is cancelled.
    async fn run_model(
        &self,
        prompt: &Prompt,
        stream_output: bool,
        output: &mut String,
    ) -> Result<()> {
        let args = args::RunModel {
            prompt,
            session_id: self.session_id,
            state: self.state,
        };
        let Some(mut stream) = self.framework.hooks().run_model_stage(args).await? else {
            *output = self.echo(prompt).await;
            return Ok(());
        };
        if stream_output && let Some(router) = self.framework.router() {
            stream = guard::catch(|| router.wrap_stream(self.message, stream))?;
        }
        self.framework
            .hooks()
            .collect_text(stream, output, Some(self.message))
            .await
    }

    /// Nobody answered: that is reported, and the prompt stands in for the answer.
    async fn echo(&self, prompt: &Prompt) -> String {
        let error = Error::unknown("no model skill returned output");
        self.framework
            .hooks()
            .report_model_error(&error, Some(self.message))
            .await;
        match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Parts(_) => self.message.content().into_owned(),
        }
    }

    /// Lets every plugin save, also when one of them fails. The first failure is returned.
    async fn save_state(&self, prompt: &Prompt, output: &str, error: Option<&Error>) -> Result<()> {
        let hooks = self.framework.hooks();
        let args = args::SaveState {
            session_id: self.session_id,
            state: self.state,
            message: self.message,
            prompt,
            model_output: if error.is_some() { "" } else { output },
            partial_output: output,
            error,
        };
        let mut outcome = Ok(());
        for found in SaveState::implementations(hooks).iter().rev() {
            if let Err(error) = found.call(hooks, args).await {
                tracing::error!("save_state.failed adapter={} error={error}", found.plugin());
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    async fn render(&self, model_output: &str) -> Result<Vec<Envelope>> {
        let args = args::RenderOutbound {
            message: self.message,
            session_id: self.session_id,
            state: self.state,
            model_output,
        };
        let batches = self
            .framework
            .hooks()
            .call_many::<RenderOutbound>(args)
            .await?;
        let rendered: Vec<_> = batches.into_iter().flatten().flatten().collect();
        Ok(if rendered.is_empty() {
            vec![self.plain_reply(model_output)]
        } else {
            rendered
        })
    }

    fn plain_reply(&self, model_output: &str) -> Envelope {
        let mut reply = Envelope::with_capacity(4)
            .with("content", model_output)
            .with("session_id", self.session_id);
        for name in ["channel", "chat_id"] {
            if let Some(value) = self.message.field(name).filter(|value| !value.is_null()) {
                reply.set(name, value.clone());
            }
        }
        reply
    }
}

/// Runs a stage, unless or until the turn is cancelled.
async fn until<T>(
    cancel: Option<&CancellationToken>,
    stage: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(cancel) = cancel else {
        return stage.await;
    };
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(Error::new(ErrorKind::Cancelled, "the turn was cancelled")),
        outcome = stage => outcome,
    }
}

/// The envelope's own session id, or else that of its chat.
fn default_session(message: &Envelope) -> String {
    let own = message.session_id().filter(|id| !id.is_empty());
    own.map_or_else(|| message.chat_session(), std::borrow::Cow::into_owned)
}

async fn close_lifespan(message: &Envelope, error: Option<&Error>) {
    let Some(lifespan) = message.lifespan() else {
        return;
    };
    if let Err(failure) = lifespan.exit(error).await {
        tracing::error!("lifespan.exit_failed error={failure}");
    }
}
