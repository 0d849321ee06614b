//! The model stage: one walk over the two hooks that can answer a prompt.
//!
//! Plugins are asked latest first; in each, `run_model_stream` comes before `run_model`. The first
//! output wins, and a hook without an opinion lets the walk go on.

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
    /// Runs the model stage; `None` when no plugin has an answer.
    pub async fn run_model_stage(&self, args: args::RunModel<'_>) -> Result<Option<ModelStream>> {
        self.model_stage_below(args, usize::MAX).await
    }

    async fn model_stage_below(
        &self,
        args: args::RunModel<'_>,
        plugin: usize,
    ) -> Result<Option<ModelStream>> {
        let args::RunModel {
            prompt,
            session_id,
            state,
            turn,
        } = args;
        let mut streams = below(RunModelStream::implementations(self), plugin).peekable();
        let mut texts = below(RunModel::implementations(self), plugin).peekable();
        loop {
            let next_text = texts.peek().map(|found| found.registration_index());
            // A tie means one plugin has both: its stream comes first.
            if let Some(found) =
                streams.next_if(|found| Some(found.registration_index()) >= next_text)
            {
                let args = args::RunModelStream {
                    prompt,
                    session_id,
                    state,
                    turn,
                };
                if let Some(stream) = found.call(self, args).await? {
                    return Ok(Some(stream));
                }
            } else if let Some(found) = texts.next() {
                if let Some(text) = found.call(self, args).await? {
                    return Ok(Some(ModelStream::text(text)));
                }
            } else {
                return Ok(None);
            }
        }
    }
}

fn below<P: HookPoint>(
    found: &[Implementation<P>],
    plugin: usize,
) -> impl Iterator<Item = &Implementation<P>> {
    found
        .iter()
        .rev()
        .filter(move |found| found.registration_index() < plugin)
}

impl Chained for RunModelStream {
    fn below(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<ModelStream>>> {
        let HookCall {
            args:
                args::RunModelStream {
                    prompt,
                    session_id,
                    state,
                    turn,
                },
            set,
            plugin,
        } = next.0;
        Box::pin(set.model_stage_below(
            args::RunModel {
                prompt,
                session_id,
                state,
                turn,
            },
            plugin,
        ))
    }
}

impl Chained for RunModel {
    fn below(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<String>>> {
        let HookCall { args, set, plugin } = next.0;
        Box::pin(async move {
            let Some(stream) = set.model_stage_below(args, plugin).await? else {
                return Ok(None);
            };
            let mut text = String::new();
            set.collect_text(stream, &mut text, None).await?;
            Ok(Some(text))
        })
    }
}

/// No answer is this long; a stream that goes on has lost its way, and memory is not endless.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

impl HookSet {
    /// Reads a stream to its end and keeps the text; errors on the way are reported.
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
                    "the answer is longer than {MAX_ANSWER_BYTES} bytes"
                )));
            }
            // A stream that is always ready must not keep the turn from being cancelled.
            tokio::task::consume_budget().await;
        }
        Ok(())
    }

    /// Logs an error of the model stage that does not end it, and tells the observers.
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
