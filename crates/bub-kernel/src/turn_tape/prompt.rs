//! Recording the message and the prompt of a turn.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bub_tape::{Entry, REPLACES_KEY};
use serde_json::json;

use super::{ResumePoint, TurnTape, lock};
use crate::{envelope::Envelope, error::Result, prompt::Prompt, steering::SteeredMessage};

impl TurnTape {
    /// Records the message as an event that views omit. If the process dies before the prompt is recorded, the tape
    /// shows that the message was interrupted.
    pub(super) async fn record_message(&self, message: &Envelope) -> Result<()> {
        if message.content().is_empty() && message.media().is_empty() {
            // An empty message has nothing to lose, and an empty prompt is not recorded either.
            return Ok(());
        }
        let mut batch = self.bootstrap_entries().await?;
        let mut data = json!({"content": message.content()});
        if let (Some(data), Some(media)) = (data.as_object_mut(), message.field("media")) {
            data.insert("media".to_owned(), media.clone());
        }
        let event = Entry::event("turn.start", Some(data)).exclude_from_context();
        batch.push(self.with_run_id(event));
        self.append(batch).await?;
        Ok(())
    }

    /// Records the messages that were queued before the turn began, and then the prompt, unless it is recorded already.
    /// Commands are recorded as events elsewhere, because the model never sees them.
    pub async fn record_prompt(&self, prompt: &Prompt, queued: Vec<SteeredMessage>) -> Result<()> {
        if self.prompt_id().is_some() || prompt.is_empty() || self.is_command(prompt) {
            return Ok(());
        }
        let mut batch = self.bootstrap_entries().await?;
        batch.extend(queued.iter().map(|message| self.steering_entry(message)));
        batch.push(self.with_inbound_id(self.user_message_entry(prompt)));
        let id = self.append(batch).await?;
        let mut progress = lock(&self.progress);
        progress.prompt_id = Some(id);
        // A plugin may have run a command before the prompt. That command is complete, but the prompt is not answered.
        (progress.is_complete, progress.has_error) = (false, false);
        Ok(())
    }

    /// Records the prompt of the agent, if a plugin called the next plugin with another one. The view shows the new
    /// message in place of the recorded prompt. If the agent has already answered, the message continues the
    /// conversation.
    pub async fn replace_prompt(&self, prompt: &Prompt) -> Result<()> {
        let Some(recorded) = self.prompt_id() else {
            return self.record_prompt(prompt, Vec::new()).await;
        };
        if !matches!(
            self.resume_point,
            None | Some(ResumePoint::AfterSteps { .. })
        ) {
            return Ok(());
        }
        let has_answered = {
            let mut progress = lock(&self.progress);
            if progress
                .prompt_fingerprint
                .is_none_or(|recorded| recorded == prompt_fingerprint(prompt))
            {
                return Ok(());
            }
            progress.prompt_fingerprint = Some(prompt_fingerprint(prompt));
            std::mem::take(&mut progress.is_complete)
        };
        let message = self.user_message_entry(prompt);
        if has_answered {
            self.append(vec![message]).await?;
            return Ok(());
        }
        let message = self
            .with_inbound_id(message)
            .with_meta(REPLACES_KEY, recorded.get());
        let id = self.append(vec![message]).await?;
        lock(&self.progress).prompt_id = Some(id);
        Ok(())
    }

    /// Sets the fingerprint of the prompt that the model stage gets. A resumed turn whose prompt was replaced has none, so
    /// that the replacement stays.
    pub(crate) fn set_prompt_fingerprint(&self, prompt: &Prompt) {
        let mut progress = lock(&self.progress);
        progress.prompt_fingerprint =
            (!progress.is_prompt_replaced).then(|| prompt_fingerprint(prompt));
    }

    /// Returns whether the prompt is a comma command that this turn accepts.
    pub(super) fn is_command(&self, prompt: &Prompt) -> bool {
        self.accepts_commands && prompt.is_command()
    }

    /// Records the prompt again after the tape was reset.
    pub async fn record_prompt_again(&self, prompt: Entry) -> Result<()> {
        let id = self.append(vec![prompt]).await?;
        lock(&self.progress).prompt_id = Some(id);
        Ok(())
    }

    /// Returns the entry of a user message of this turn.
    pub fn user_message_entry(&self, prompt: &Prompt) -> Entry {
        let content = serde_json::to_value(prompt).unwrap_or_else(|_| prompt.text().into());
        self.with_run_id(Entry::message("user", content))
    }
}

/// Returns a hash that distinguishes prompts. The prompts themselves are not kept, because they may contain images.
fn prompt_fingerprint(prompt: &Prompt) -> u64 {
    let mut hasher = DefaultHasher::new();
    match prompt {
        Prompt::Text(text) => text.hash(&mut hasher),
        Prompt::Parts(parts) => parts.hash(&mut hasher),
    }
    hasher.finish()
}
