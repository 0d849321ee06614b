//! The model stage, which calls the two hooks that can answer a prompt.
//!
//! The plugin registered last runs first. If a plugin implements both hooks, `run_model_stream` runs before
//! `run_model`. The first result that is not `None` wins.

use futures_util::StreamExt;

use super::{
    Chained, HookCall, HookPoint, HookSet, Implementation, Next, args,
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
        self.call_models_before(args, usize::MAX).await
    }

    async fn call_models_before(
        &self,
        args: args::RunModel<'_>,
        index: usize,
    ) -> Result<Option<ModelStream>> {
        let args::RunModel {
            prompt,
            session_id,
            state,
            turn,
        } = args;
        let mut streams =
            registered_before(RunModelStream::implementations(self), index).peekable();
        let mut texts = registered_before(RunModel::implementations(self), index).peekable();
        loop {
            let next_text = texts
                .peek()
                .map(|implementation| implementation.registration_index());
            // If the indexes are equal, one plugin implements both hooks: its stream comes first.
            if let Some(implementation) = streams
                .next_if(|implementation| Some(implementation.registration_index()) >= next_text)
            {
                let args = args::RunModelStream {
                    prompt,
                    session_id,
                    state,
                    turn,
                };
                if let Some(stream) = implementation.call(self, args).await? {
                    return Ok(Some(stream));
                }
            } else if let Some(implementation) = texts.next() {
                if let Some(text) = implementation.call(self, args).await? {
                    return Ok(Some(ModelStream::from_text(text)));
                }
            } else {
                return Ok(None);
            }
        }
    }
}

/// Returns the implementations of plugins registered before an index, the last one first.
fn registered_before<P: HookPoint>(
    implementations: &[Implementation<P>],
    index: usize,
) -> impl Iterator<Item = &Implementation<P>> {
    implementations
        .iter()
        .rev()
        .filter(move |implementation| implementation.registration_index() < index)
}

impl Chained for RunModelStream {
    fn call_next(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<ModelStream>>> {
        let HookCall {
            args:
                args::RunModelStream {
                    prompt,
                    session_id,
                    state,
                    turn,
                },
            set,
            registration_index,
        } = next.0;
        Box::pin(set.call_models_before(
            args::RunModel {
                prompt,
                session_id,
                state,
                turn,
            },
            registration_index,
        ))
    }
}

impl Chained for RunModel {
    fn call_next(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<String>>> {
        let HookCall {
            args,
            set,
            registration_index,
        } = next.0;
        Box::pin(async move {
            let Some(stream) = set.call_models_before(args, registration_index).await? else {
                return Ok(None);
            };
            let mut text = String::new();
            set.collect_text(stream, &mut text, None).await?;
            Ok(Some(text))
        })
    }
}

/// Maximum length of an answer. It bounds memory use if a stream never ends.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

impl HookSet {
    /// Reads a stream to its end and appends its text to `text`. Reports [`StreamEvent::Error`] events.
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

    /// Logs a model error that does not end the stage, and notifies the observers.
    pub(crate) async fn report_model_error(&self, error: &Error, turn: Option<&Turn>) {
        tracing::warn!(target: crate::pipeline::TURN_LOG_TARGET, %error, "run_model.error");
        if let Some(turn) = turn {
            turn.set_model_error(error);
        }
        self.notify_error(args::OnError {
            stage: "run_model",
            error,
            message: turn.map(Turn::message),
            turn,
        })
        .await;
    }
}
