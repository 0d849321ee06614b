//! The turn pipeline: one inbound message, any number of outbound messages.
//!
//! ```text
//! resolve_session → load_state → build_prompt → run_model → save_state → render → dispatch
//! ```

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, error_span, field};

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
    ids::SessionId,
    inbound::Inbound,
    prompt::Prompt,
    state::{State, StatePatch},
    turn::{Stage, Turn, TurnGuard, cancelled_error},
    turn_tape::{ModelStageEnd, ResumePoint, TurnTape},
};

/// Log target of failures that are also returned to the caller, so that a program can avoid printing them twice.
pub(crate) const TURN_LOG_TARGET: &str = "bub::turn";

/// Log target of lines with message contents. Programs show them only on request.
const CONTENTS_LOG_TARGET: &str = "bub::contents";

/// How long a hook that completes a turn, such as `save_state`, may take after the turn is cancelled.
const CANCEL_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// The result of a successful turn.
#[derive(Debug)]
#[non_exhaustive]
pub struct TurnResult {
    /// The session of the turn.
    pub session_id: SessionId,
    /// The prompt of the model stage.
    pub prompt: Prompt,
    /// The answer.
    pub model_output: String,
    /// The messages that were dispatched.
    pub outbounds: Vec<Envelope>,
    /// The state at the end of the turn.
    pub state: State,
}

impl Framework {
    /// Runs one turn.
    ///
    /// After `resolve_session`, the turn takes the session's lease and records the message before any other hook runs.
    /// If any stage fails, panics, times out or is cancelled, the message and the error are on the tape afterwards, and
    /// the session is free.
    ///
    /// # Errors
    ///
    /// A failure is logged, reported to `on_error` with the stage `turn`, and returned.
    pub async fn process_inbound(&self, inbound: impl Into<Inbound>) -> Result<TurnResult> {
        self.process_turn(inbound).await.1
    }

    /// Runs one turn and returns it with its result.
    pub async fn process_turn(&self, inbound: impl Into<Inbound>) -> (Turn, Result<TurnResult>) {
        let inbound = inbound.into();
        let span = turn_span(&inbound);
        self.run_turn(inbound, &span).instrument(span.clone()).await
    }

    async fn run_turn(&self, mut inbound: Inbound, span: &Span) -> (Turn, Result<TurnResult>) {
        let was_resolved = inbound.session_id().is_some();
        let resolved = self.resolve_session(&mut inbound).await;
        if !was_resolved {
            record_session_in_span(span, &inbound);
        }
        let (turn, opened) = match resolved {
            Ok(()) => self.open_turn(inbound, span).await,
            Err(error) => (self.open_failed_turn(inbound, span).await, Err(error)),
        };
        span.record("run_id", field::display(turn.id()));
        let _guard = TurnGuard(turn.clone());
        let outcome = match opened {
            Ok(()) => run_stages_guarded(&turn).await,
            Err(error) => Err(error),
        };
        self.close_turn(&turn, outcome.as_ref().err()).await;
        (turn, outcome)
    }

    /// Records a message that cannot be processed, together with the error, and reports the error to `on_error`. If the
    /// session of the message is not resolved, the session `channel:chat_id` is used.
    pub async fn reject_inbound(&self, inbound: Inbound, error: &Error) -> Turn {
        let span = turn_span(&inbound);
        let ending = async {
            let turn = self.open_failed_turn(inbound, &span).await;
            self.close_unstarted_turn(turn, error, &span).await
        };
        ending.instrument(span.clone()).await
    }

    /// Records a message whose session is resolved, together with the error, and reports the error to `on_error`. The
    /// message is not processed.
    ///
    /// If an earlier attempt answered the message, the answer is the output of the turn. Then the error is recorded but
    /// not reported, because the caller can still deliver the answer.
    pub async fn fail_inbound(&self, inbound: Inbound, error: &Error) -> Turn {
        let span = turn_span(&inbound);
        let ending = async {
            let (turn, _) = self.open_turn(inbound, &span).await;
            let Some(ResumePoint::Answered(answer)) = turn.tape().resume_point() else {
                return self.close_unstarted_turn(turn, error, &span).await;
            };
            span.record("run_id", field::display(turn.id()));
            turn.set_output(answer);
            turn.tape().mark_complete();
            self.complete_turn(&turn, Some(error)).await;
            turn
        };
        ending.instrument(span.clone()).await
    }

    /// Closes a turn whose stages do not run, with the error that prevented them.
    async fn close_unstarted_turn(&self, turn: Turn, error: &Error, span: &Span) -> Turn {
        span.record("run_id", field::display(turn.id()));
        let _guard = TurnGuard(turn.clone());
        self.close_turn(&turn, Some(error)).await;
        turn
    }

    /// Resolves the session of a message, unless it is set, and writes it to the envelope.
    pub async fn resolve_session(&self, inbound: &mut Inbound) -> Result<()> {
        if inbound.session_id().is_some() {
            return Ok(());
        }
        let args = args::ResolveSession {
            message: &inbound.message,
            inbound,
        };
        let hooks = self.hooks();
        let resolved =
            run_until_cancelled(&inbound.cancel, hooks.call_first::<ResolveSession>(args));
        match resolved.await?.filter(|id| !id.is_empty()) {
            Some(session_id) => inbound.set_session_id(session_id.into()),
            None => inbound.set_default_session(),
        }
        Ok(())
    }

    async fn open_turn(&self, inbound: Inbound, span: &Span) -> (Turn, Result<()>) {
        match TurnTape::open(self, &inbound).await {
            Ok(tape) => (Turn::new(self, inbound, tape), Ok(())),
            // A cancelled message is recorded. After other errors, the tape is unusable, so the turn gets a tape in
            // memory.
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                (self.open_failed_turn(inbound, span).await, Err(error))
            }
            Err(error) => {
                let tape = TurnTape::in_memory(self, &inbound);
                (Turn::new(self, inbound, tape), Err(error))
            }
        }
    }

    async fn open_failed_turn(&self, mut inbound: Inbound, span: &Span) -> Turn {
        if inbound.session_id().is_none() {
            inbound.set_session_id(SessionId::from(inbound.message.chat_session_id()));
            record_session_in_span(span, &inbound);
        }
        let opened = TurnTape::open_for_failure(self, &inbound).await;
        let tape = opened.unwrap_or_else(|error| {
            tracing::error!(%error, "turn.record_failed");
            TurnTape::in_memory(self, &inbound)
        });
        Turn::new(self, inbound, tape)
    }

    /// Completes the turn's record on the tape, ends its lifespan, and reports a failure to `on_error`.
    async fn close_turn(&self, turn: &Turn, failure: Option<&Error>) {
        self.complete_turn(turn, failure).await;
        if let Some(error) = failure {
            let args = args::OnError::new("turn", error, Some(turn.message()), Some(turn));
            let notify = self.hooks().notify_error(args).map(Ok);
            let notified = run_with_grace_period(turn.cancel_token(), notify).await;
            if notified.is_err() {
                tracing::warn!("hook.on_error_timeout");
            }
        }
    }

    /// Completes the turn's record on the tape and ends its lifespan.
    async fn complete_turn(&self, turn: &Turn, failure: Option<&Error>) {
        match failure {
            Some(error) if error.kind() == ErrorKind::Cancelled => {
                tracing::info!("turn.cancelled");
            }
            Some(error) => tracing::error!(target: TURN_LOG_TARGET, %error, "turn.failed"),
            None => {}
        }
        turn.close(failure).await;
        // If the turn did not reach `save_state`, the lifespan is still open.
        if let Some(lifespan) = &turn.inbound().lifespan {
            let exit = lifespan.exit(failure);
            if let Err(error) = run_with_grace_period(turn.cancel_token(), exit).await {
                tracing::error!(%error, "lifespan.exit_failed");
            }
        }
    }

    /// Sets the environment of the turn, calls the hook `load_state`, and merges the results of all plugins into the state
    /// of the turn.
    pub async fn load_state(&self, turn: &Turn) -> Result<()> {
        if let Some(environment) = self.environment(turn.session_id()).await? {
            turn.set_environment(environment);
        }
        let seeds = StatePatch::with_capacity(8).with("_runtime_workspace", self.workspace_text());
        turn.state().merge(seeds);
        let args = args::LoadState::new(turn.message(), turn.session_id(), turn);
        let patches = self.hooks().call_all::<LoadState>(args).await?;
        // Plugins run in reverse registration order. Merge in registration order, so that the plugin registered last
        // wins.
        for patch in patches.into_iter().rev().flatten() {
            turn.state().merge(patch);
        }
        Ok(())
    }

    /// Builds the prompt of a message. An empty prompt is replaced by the content of the message.
    pub async fn build_prompt(&self, message: &Envelope, turn: &Turn) -> Result<Prompt> {
        let args = args::BuildPrompt::new(message, turn.session_id(), turn.state(), turn);
        let built = self.hooks().call_first::<BuildPrompt>(args).await?;
        let usable = built.filter(|prompt| !prompt.is_empty());
        Ok(usable.unwrap_or_else(|| Prompt::Text(message.content().into_owned())))
    }

    /// Passes a message to all `dispatch_outbound` implementations.
    pub async fn dispatch_outbound(&self, message: &Envelope, turn: Option<&Turn>) -> Result<()> {
        let args = args::DispatchOutbound { message, turn };
        self.hooks().call_all::<DispatchOutbound>(args).await?;
        Ok(())
    }
}

/// Creates the span of a turn with the fields that are known before its session is resolved. The span has the level
/// `error`, so that a log filter of any level keeps its fields.
fn turn_span(inbound: &Inbound) -> Span {
    error_span!(
        "turn",
        session_id = inbound.session_id().map(field::display),
        channel = inbound.message.channel().as_deref(),
        inbound_id = inbound.message_id().map(field::display),
        run_id = field::Empty,
    )
}

fn record_session_in_span(span: &Span, inbound: &Inbound) {
    if let Some(session_id) = inbound.session_id() {
        span.record("session_id", field::display(session_id));
    }
}

/// Runs the stages after `resolve_session`. Converts a panic into an error, even if it occurs outside of plugin code.
async fn run_stages_guarded(turn: &Turn) -> Result<TurnResult> {
    let stages = AssertUnwindSafe(run_stages(turn)).catch_unwind();
    stages
        .await
        .unwrap_or_else(|panic| Err(guard::panic_error(panic.as_ref())))
}

async fn run_stages(turn: &Turn) -> Result<TurnResult> {
    let (framework, cancel) = (turn.framework(), turn.cancel_token());
    turn.enter_stage(Stage::LoadState);
    run_until_cancelled(cancel, framework.load_state(turn)).await?;

    turn.enter_stage(Stage::BuildPrompt);
    let prompt = framework.build_prompt(turn.message(), turn);
    let prompt = run_until_cancelled(cancel, prompt).await?;

    turn.enter_stage(Stage::RunModel);
    run_until_cancelled(cancel, record_prompt(turn, &prompt)).await?;
    tracing::info!(target: CONTENTS_LOG_TARGET, text = prompt.text(), "turn.prompt");
    let mut output = String::new();
    let model_result = run_until_cancelled(cancel, run_model(turn, &prompt, &mut output)).await;
    tracing::info!(target: CONTENTS_LOG_TARGET, text = output, "turn.answer");
    turn.set_output(&output);

    turn.enter_stage(Stage::SaveState);
    let end = ModelStageEnd {
        prompt: &prompt,
        output: &output,
        error: model_result.as_ref().err(),
    };
    let saved = save_state(turn, end).await;
    let recorded = turn.tape().end_model_stage(end).await;
    model_result?;
    recorded?;
    saved?;

    turn.enter_stage(Stage::Render);
    let outbounds = run_until_cancelled(cancel, render_replies(turn, &output)).await?;

    turn.enter_stage(Stage::Dispatch);
    for outbound in &outbounds {
        // A delivery that has started may finish within the grace period.
        run_with_grace_period(cancel, framework.dispatch_outbound(outbound, Some(turn))).await?;
        check_cancelled(cancel)?;
    }
    Ok(TurnResult {
        session_id: turn.session_id().clone(),
        prompt,
        model_output: output,
        outbounds,
        state: turn.state().clone(),
    })
}

/// Records the prompt and the messages that were queued before the turn. If that fails, the model stage does not run.
pub(crate) async fn record_prompt(turn: &Turn, prompt: &Prompt) -> Result<()> {
    let tape = turn.tape();
    tape.set_prompt_fingerprint(prompt);
    // A resumed turn takes queued messages at its next step. If it has no further step, they are left for the next
    // turn.
    if tape.prompt_id().is_some() {
        return Ok(());
    }
    let queued = turn.take_prompts_before_turn(prompt).await?;
    if queued.is_empty() && !tape.is_readable() {
        // The tape is not stored. If the builtin agent runs, it records the prompt itself.
        return Ok(());
    }
    tape.record_prompt(prompt, queued).await
}

/// Runs the model stage and collects the answer in `output`. If the stage fails or is cancelled, `output` holds the
/// partial answer.
pub(crate) async fn run_model(turn: &Turn, prompt: &Prompt, output: &mut String) -> Result<()> {
    let framework = turn.framework();
    let args = args::RunModel::new(prompt, turn.session_id(), turn.state(), turn);
    let Some(mut stream) = framework.hooks().run_model_stage(args).await? else {
        *output = fallback_to_prompt(turn, prompt).await;
        return Ok(());
    };
    if turn.inbound().stream_output
        && let Some(router) = framework.router()
    {
        stream = guard::catch_panic(|| router.wrap_stream(turn, stream))?;
    }
    let hooks = framework.hooks();
    hooks.collect_text(stream, output, Some(turn)).await
}

/// Reports that no plugin answered, and returns the prompt as the answer.
async fn fallback_to_prompt(turn: &Turn, prompt: &Prompt) -> String {
    let error = Error::unknown("no model skill returned output");
    let hooks = turn.framework().hooks();
    hooks.report_model_error(&error, Some(turn)).await;
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Parts(_) => turn.message().content().into_owned(),
    }
}

/// Calls all `save_state` implementations, even if one of them fails or the turn is cancelled. Returns the first
/// failure.
async fn save_state(turn: &Turn, end: ModelStageEnd<'_>) -> Result<()> {
    let hooks = turn.framework().hooks();
    let args = args::SaveState {
        session_id: turn.session_id(),
        state: turn.state(),
        message: turn.message(),
        prompt: end.prompt,
        model_output: if end.error.is_some() { "" } else { end.output },
        partial_output: end.output,
        error: end.error,
        turn,
    };
    let mut outcome = Ok(());
    for implementation in SaveState::implementations(hooks).iter().rev() {
        let saving = implementation.call(hooks, args);
        if let Err(error) = run_with_grace_period(turn.cancel_token(), saving).await {
            let adapter = implementation.plugin();
            tracing::error!(%adapter, %error, "save_state.failed");
            outcome = outcome.and(Err(error));
        }
    }
    outcome.and_then(|()| check_cancelled(turn.cancel_token()))
}

fn check_cancelled(cancel: &CancellationToken) -> Result<()> {
    if cancel.is_cancelled() {
        return Err(cancelled_error());
    }
    Ok(())
}

async fn render_replies(turn: &Turn, model_output: &str) -> Result<Vec<Envelope>> {
    let args = args::RenderOutbound::new(
        turn.message(),
        turn.session_id(),
        turn.state(),
        model_output,
        turn,
    );
    let hooks = turn.framework().hooks();
    let batches = hooks.call_all::<RenderOutbound>(args).await?;
    let mut rendered: Vec<_> = batches.into_iter().flatten().flatten().collect();
    if rendered.is_empty() {
        rendered.push(plain_reply(turn, model_output));
    }
    Ok(rendered)
}

fn plain_reply(turn: &Turn, model_output: &str) -> Envelope {
    let mut reply = Envelope::with_capacity(4)
        .with("content", model_output)
        .with("session_id", turn.session_id());
    for name in ["channel", "chat_id"] {
        if let Some(value) = turn.message().field(name).filter(|value| !value.is_null()) {
            reply.set(name, value.clone());
        }
    }
    reply
}

/// Runs a stage. If the turn is cancelled, drops the stage and returns an error.
pub(crate) async fn run_until_cancelled<T>(
    cancel: &CancellationToken,
    stage: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(cancelled_error()),
        outcome = stage => outcome,
    }
}

/// Runs work that completes a turn. In a cancelled turn, the work still starts but must end within
/// [`CANCEL_GRACE_PERIOD`].
async fn run_with_grace_period<T>(
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let expired = async {
        cancel.cancelled().await;
        tokio::time::sleep(CANCEL_GRACE_PERIOD).await;
    };
    tokio::select! {
        biased;
        outcome = work => outcome,
        () = expired => Err(cancelled_error()),
    }
}
