//! The draft of a step: the part of an answer that was received, kept beside the tape until the answer is recorded.
//!
//! If the process dies in a model call, the next turn of the session finds the draft. A draft is written at most every
//! 100 ms, so that a fast stream costs few writes.

use std::{sync::atomic::Ordering, time::Duration};

use bub_settings::StreamRedactor;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::TurnTape;

/// Minimum time between two writes of a draft.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// The progress of writing a draft.
#[derive(Default)]
pub(super) struct DraftProgress {
    /// When the next text must be written. `None` if all text is written.
    deadline: Option<Instant>,
    /// Length of the text of the step that is written.
    written: usize,
    /// Redacts the text. `None` before the first write.
    redactor: Option<StreamRedactor>,
}

impl std::fmt::Debug for DraftProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let written = &self.written;
        f.debug_struct("DraftProgress")
            .field("written", written)
            .finish_non_exhaustive()
    }
}

/// A draft as it was found after a crash.
#[derive(Debug)]
pub(super) struct FoundDraft {
    pub(super) run_id: String,
    pub(super) step: u64,
    pub(super) text: String,
}

impl FoundDraft {
    /// Parses the content of a draft: a line of JSON that names the run and the step, and the text.
    pub(super) fn parse(content: &str) -> Option<Self> {
        let (header, text) = content.split_once('\n')?;
        let header: Value = serde_json::from_str(header).ok()?;
        Some(Self {
            run_id: header.get("run_id")?.as_str()?.to_owned(),
            step: header.get("step")?.as_u64()?,
            text: text.to_owned(),
        })
    }
}

impl TurnTape {
    /// Adds text to the partial answer of the step.
    pub fn record_delta(&self, delta: &str) {
        if let Some(step) = &mut self.progress.lock().step {
            step.text.push_str(delta);
            let deadline = &mut step.draft.deadline;
            if self.is_stored {
                deadline.get_or_insert_with(|| Instant::now() + FLUSH_INTERVAL);
            }
        }
    }

    /// Waits until the draft of the step must be written with [`TurnTape::flush_draft`]. Waits forever if all text is
    /// written.
    pub async fn wait_for_draft(&self) {
        let deadline = {
            let progress = self.progress.lock();
            progress.step.as_ref().and_then(|step| step.draft.deadline)
        };
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }

    /// Writes the text of the step that is not in its draft yet. Failures are only logged, because the answer itself
    /// does not depend on the draft.
    pub async fn flush_draft(&self) {
        let Some(text) = self.take_unwritten_text() else {
            return;
        };
        let tape = self.tape();
        if let Err(error) = tape.store().append_draft(tape.name(), &text).await {
            tracing::warn!(%error, "turn.draft_failed");
        }
    }

    /// Returns the text to append to the draft, with secrets redacted. The first text starts with the header.
    fn take_unwritten_text(&self) -> Option<String> {
        let mut progress = self.progress.lock();
        let step = progress.step.as_mut()?;
        step.draft.deadline.take()?;
        let unwritten = step.text.get(step.draft.written..).unwrap_or_default();
        step.draft.written = step.text.len();
        let header = match &step.draft.redactor {
            Some(_) => String::new(),
            None => format!("{}\n", json!({"run_id": self.run_id, "step": step.number})),
        };
        let redactor = step
            .draft
            .redactor
            .get_or_insert_with(|| self.redactor().stream());
        let text = header + &redactor.push_str(unwritten);
        self.has_draft.store(true, Ordering::Relaxed);
        Some(text)
    }

    /// Removes the partial answer of the step, because the model starts it again.
    pub async fn discard_partial_text(&self) {
        if let Some(step) = &mut self.progress.lock().step {
            step.text.clear();
            step.draft = DraftProgress::default();
        }
        self.discard_draft().await;
    }

    /// Removes the draft, because its text is on the tape or not needed.
    pub(super) async fn discard_draft(&self) {
        if !self.has_draft.swap(false, Ordering::Relaxed) {
            return;
        }
        let tape = self.tape();
        if let Err(error) = tape.store().discard_draft(tape.name()).await {
            tracing::warn!(%error, "turn.draft_failed");
        }
    }
}
