//! One turn: a message in, any number out.
//!
//! ```text
//! resolve_session → load_state → build_prompt → run_model → save_state → render → dispatch
//! ```

use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::{
    envelope::Envelope,
    error::{Error, ErrorKind, Result},
    framework::Framework,
    hooks::{
        HookPoint, args, guard,
        point::{BuildPrompt, DispatchOutbound, LoadState, RenderOutbound, ResolveSession, SaveState},
    },
    prompt::Prompt,
    state::{State, StatePatch},
    steering::SteeringHandle,
    stream::{ModelStream, StreamEvent},
};

/// How a turn is run.
#[derive(Clone, Debug, Default)]
pub struct TurnOptions {
    /// Whether channels see the output grow. The turn itself always streams.
    pub stream_output: bool,
    /// Ends the model stage when it fires; `save_state` still runs.
    pub cancel: Option<CancellationToken>,
}

impl TurnOptions {
    /// A turn whose output channels see grow.
    pub fn streaming() -> Self {
        Self { stream_output: true, ..Self::default() }
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
    pub async fn process_inbound(&self, mut inbound: Envelope, options: TurnOptions) -> Result<TurnResult> {
        let outcome = self.turn(&mut inbound, &options).await;
        let failure = outcome.as_ref().err();
        if let Some(error) = failure {
            tracing::error!(
                "turn.failed session={:?} error={error}",
                inbound.session_id().unwrap_or_default()
            );
        }
        // A lifespan that no `save_state` closed, because the turn never got there, ends here.
        close_lifespan(&inbound, failure).await;
        if let Some(error) = failure {
            self.hooks().notify_error("turn", error, Some(&inbound)).await;
        }
        outcome
    }

    async fn turn(&self, inbound: &mut Envelope, options: &TurnOptions) -> Result<TurnResult> {
        let session_id = self.resolve_session(inbound).await?;
        inbound.set("session_id", session_id.as_str());
        let inbound = &*inbound;

        let state = self.build_state(inbound, &session_id).await?;
        let prompt = self.build_prompt(inbound, &session_id, &state).await?;

        let turn = Turn { framework: self, message: inbound, session_id: &session_id, state: &state };
        let output = turn.run_model(&prompt, options).await;
        let saved = turn.save_state(&prompt, &output).await;
        let model_output = output?;
        saved?;

        let outbounds = turn.render(&model_output).await?;
        for outbound in &outbounds {
            self.hooks().call_many::<DispatchOutbound>(args::DispatchOutbound { message: outbound }).await?;
        }
        Ok(TurnResult { session_id, prompt, model_output, outbounds, state })
    }

    /// Names the session of a message.
    pub async fn resolve_session(&self, message: &Envelope) -> Result<String> {
        let resolved = self.hooks().call_first::<ResolveSession>(args::ResolveSession { message }).await?;
        Ok(resolved.filter(|id| !id.is_empty()).unwrap_or_else(|| default_session(message)))
    }

    /// Builds the state of a turn: the runtime's own seeds, then what plugins contribute.
    pub async fn build_state(&self, message: &Envelope, session_id: &str) -> Result<State> {
        let mut seeds = StatePatch::with_capacity(4).with("_runtime_workspace", self.workspace_text());
        if let Some(inbox) = self.steering_inbox() {
            seeds = seeds.with_slot(std::sync::Arc::new(SteeringHandle(inbox)));
        }
        let state = State::from_patch(seeds);
        let patches = self.hooks().call_many::<LoadState>(args::LoadState { message, session_id }).await?;
        // Called latest first, merged the other way round: the latest registered has the last word.
        for patch in patches.into_iter().rev().flatten() {
            state.merge(patch);
        }
        Ok(state)
    }

    /// Makes the prompt of a message; an empty one is replaced by the content of the message.
    pub async fn build_prompt(&self, message: &Envelope, session_id: &str, state: &State) -> Result<Prompt> {
        let args = args::BuildPrompt { message, session_id, state };
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
    async fn run_model(&self, prompt: &Prompt, options: &TurnOptions) -> Result<String> {
        let Some(cancel) = &options.cancel else { return self.answer(prompt, options.stream_output).await };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Error::new(ErrorKind::Cancelled, "the turn was cancelled")),
            output = self.answer(prompt, options.stream_output) => output,
        }
    }

    async fn answer(&self, prompt: &Prompt, stream_output: bool) -> Result<String> {
        let args = args::RunModel { prompt, session_id: self.session_id, state: self.state };
        let Some(mut stream) = self.framework.hooks().run_model_stage(args).await? else {
            return Ok(self.echo(prompt).await);
        };
        if stream_output && let Some(router) = self.framework.router() {
            stream = guard::catch(|| router.wrap_stream(self.message, stream))?;
        }
        self.collect(stream).await
    }

    /// Nobody answered: that is reported, and the prompt stands in for the answer.
    async fn echo(&self, prompt: &Prompt) -> String {
        self.report(&Error::unknown("no model skill returned output")).await;
        match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Parts(_) => self.message.content().into_owned(),
        }
    }

    async fn collect(&self, mut stream: ModelStream) -> Result<String> {
        let mut output = String::new();
        while let Some(event) = stream.next().await {
            match event? {
                StreamEvent::Text(delta) if output.is_empty() => output = delta,
                StreamEvent::Text(delta) => output.push_str(&delta),
                StreamEvent::Error(error) => self.report(&error).await,
                _ => {}
            }
        }
        Ok(output)
    }

    async fn report(&self, error: &Error) {
        self.framework.hooks().notify_error("run_model", error, Some(self.message)).await;
    }

    /// Lets every plugin save, also when one of them fails. The first failure is returned.
    async fn save_state(&self, prompt: &Prompt, output: &Result<String>) -> Result<()> {
        let hooks = self.framework.hooks();
        let args = args::SaveState {
            session_id: self.session_id,
            state: self.state,
            message: self.message,
            prompt,
            model_output: output.as_ref().map_or("", String::as_str),
            error: output.as_ref().err(),
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
        let batches = self.framework.hooks().call_many::<RenderOutbound>(args).await?;
        let rendered: Vec<_> = batches.into_iter().flatten().flatten().collect();
        Ok(if rendered.is_empty() { vec![self.plain_reply(model_output)] } else { rendered })
    }

    fn plain_reply(&self, model_output: &str) -> Envelope {
        let mut reply =
            Envelope::with_capacity(4).with("content", model_output).with("session_id", self.session_id);
        for name in ["channel", "chat_id"] {
            if let Some(value) = self.message.field(name).filter(|value| !value.is_null()) {
                reply.set(name, value.clone());
            }
        }
        reply
    }
}

/// The envelope's own session id, or else that of its chat.
fn default_session(message: &Envelope) -> String {
    let own = message.session_id().filter(|id| !id.is_empty());
    own.map_or_else(|| message.chat_session(), std::borrow::Cow::into_owned)
}

async fn close_lifespan(message: &Envelope, error: Option<&Error>) {
    let Some(lifespan) = message.lifespan() else { return };
    if let Err(failure) = lifespan.exit(error).await {
        tracing::error!("lifespan.exit_failed error={failure}");
    }
}
