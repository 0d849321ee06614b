//! The model stage: one walk over the two hooks that can answer a prompt.
//!
//! Plugins are asked latest first; in each, `run_model_stream` comes before `run_model`. The first
//! output wins, and a hook without an opinion lets the walk go on.

use futures_util::StreamExt;

use super::{
    Call, Chained, HookPoint, HookSet, Implementation, Next, args,
    point::{RunModel, RunModelStream},
};
use crate::{
    BoxFuture,
    error::Result,
    stream::{ModelStream, StreamEvent},
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
        let args::RunModel { prompt, session_id, state } = args;
        let mut streams = below(RunModelStream::implementations(self), plugin).peekable();
        let mut texts = below(RunModel::implementations(self), plugin).peekable();
        loop {
            let next_text = texts.peek().map(|found| found.plugin_index());
            // A tie means one plugin has both: its stream comes first.
            if let Some(found) = streams.next_if(|found| Some(found.plugin_index()) >= next_text) {
                let args = args::RunModelStream { prompt, session_id, state };
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
    found.iter().rev().filter(move |found| found.plugin_index() < plugin)
}

impl Chained for RunModelStream {
    fn below(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<ModelStream>>> {
        let Call { args: args::RunModelStream { prompt, session_id, state }, set, plugin } = next.0;
        Box::pin(set.model_stage_below(args::RunModel { prompt, session_id, state }, plugin))
    }
}

impl Chained for RunModel {
    fn below(next: Next<'_, Self>) -> BoxFuture<'_, Result<Option<String>>> {
        let Call { args, set, plugin } = next.0;
        Box::pin(async move {
            match set.model_stage_below(args, plugin).await? {
                Some(stream) => drain_text(stream).await.map(Some),
                None => Ok(None),
            }
        })
    }
}

/// Reads a stream to its end and keeps only the text.
async fn drain_text(mut stream: ModelStream) -> Result<String> {
    let mut text = String::new();
    while let Some(event) = stream.next().await {
        if let StreamEvent::Text(delta) = event? {
            text.push_str(&delta);
        }
    }
    Ok(text)
}
