//! The model stage, which calls the two hooks that can answer a prompt.
//!
//! The plugin registered last runs first. If a plugin implements both hooks, `run_model_stream` runs before
//! `run_model`. The first result that is not `None` wins.

use futures_util::StreamExt;

use super::{
    Chained, HookCall, HookSet, Next, args,
    point::{RunModel, RunModelStream},
};
use crate::{
    BoxFuture,
    error::{Error, Result},
    stream::{ModelStream, StreamEvent},
    turn::Turn,
};

impl HookSet {
    /// Runs the model stage. Returns `None` if no plugin answers.
    pub async fn run_model_stage(&self, args: args::RunModel<'_>) -> Result<Option<ModelStream>> {
        self.next_after::<RunModel>(usize::MAX, args)
            .call_models()
            .await
    }
}

impl Next<'_, RunModel> {
    async fn call_models(self) -> Result<Option<ModelStream>> {
        let HookCall {
            args,
            set,
            position,
        } = self.0;
        let stream_args =
            args::RunModelStream::new(args.prompt, args.session_id, args.state, args.turn);
        let streams = set.next_after::<RunModelStream>(position, stream_args);
        let mut streams = streams.implementations().peekable();
        let mut texts = self.implementations().peekable();
        // Each stream that leaves a plugin is redacted here, so that no reader of streams can forget it.
        let redactor = args.turn.framework().settings().redactor();
        loop {
            let next_text = texts.peek().map(|next| next.position());
            // If the positions are equal, one plugin implements both hooks: its stream comes first.
            if let Some(next) = streams.next_if(|next| Some(next.position()) >= next_text) {
                if let Some(stream) = next.call(set, stream_args).await? {
                    return Ok(Some(stream.redact(redactor)));
                }
            } else if let Some(next) = texts.next() {
                if let Some(text) = next.call(set, args).await? {
                    return Ok(Some(ModelStream::from_text(text).redact(redactor)));
                }
            } else {
                return Ok(None);
            }
        }
    }
}

impl Chained for RunModelStream {
    fn call_next(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<ModelStream>>> {
        let call = next.0;
        let args = args::RunModel::new(
            call.args.prompt,
            call.args.session_id,
            call.args.state,
            call.args.turn,
        );
        let next = call.set.next_after::<RunModel>(call.position, args);
        Box::pin(next.call_models())
    }
}

impl Chained for RunModel {
    fn call_next(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(async move {
            let Some(stream) = next.call_models().await? else {
                return Ok(None);
            };
            let mut text = String::new();
            next.0.set.collect_text(stream, &mut text, None).await?;
            Ok(Some(text))
        })
    }
}

/// Maximum length of an answer. It bounds memory use if a stream never ends.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

impl HookSet {
    /// Reads a stream to its end and appends its text to `text`. Reports [`StreamEvent::Error`] events to `on_error`.
    ///
    /// # Errors
    ///
    /// Returns the error that ends the stream, and fails if the text exceeds [`MAX_ANSWER_BYTES`].
    pub(crate) async fn collect_text(
        &self,
        mut stream: ModelStream,
        text: &mut String,
        turn: Option<&Turn>,
    ) -> Result<()> {
        while let Some(event) = stream.next().await {
            match event? {
                StreamEvent::Text(delta) if text.is_empty() => *text = delta,
                StreamEvent::Text(delta) => text.push_str(&delta),
                StreamEvent::Error(error) => self.report_model_error(&error, turn).await,
                _ => {}
            }
            if text.len() > MAX_ANSWER_BYTES {
                return Err(Error::unknown(format!(
                    "model answer is too long: the limit is {MAX_ANSWER_BYTES} bytes; ask for a shorter answer"
                )));
            }
            // Yield to the scheduler, so that a stream that is always ready does not prevent cancellation.
            tokio::task::consume_budget().await;
        }
        Ok(())
    }

    /// Logs a model error that does not end the stage, and reports it to `on_error`.
    pub(crate) async fn report_model_error(&self, error: &Error, turn: Option<&Turn>) {
        tracing::warn!(target: crate::pipeline::TURN_LOG_TARGET, %error, "run_model.error");
        if let Some(turn) = turn {
            turn.set_model_error(error);
        }
        self.notify_error(args::OnError::new(
            "run_model",
            error,
            turn.map(Turn::message),
            turn,
        ))
        .await;
    }
}
