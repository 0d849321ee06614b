//! Recording the message and the prompt of a turn.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use bub_tape::{Entry, REPLACES_KEY, media};
use serde_json::{Value, json};

use super::{ResumePoint, TurnTape};
use crate::{envelope::Envelope, error::Result, prompt::Prompt, steering::SteeredMessage};

impl TurnTape {
    /// Records the message as an event that views omit. If the process dies before the prompt is recorded, the tape
    /// shows that the message was not processed.
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

    /// Records `queued`, the messages that were queued before the turn began, and then the prompt. Does nothing if the
    /// prompt is recorded already, is empty, or is a comma command. Commands are recorded as events, because the model
    /// never sees them.
    pub async fn record_prompt(&self, prompt: &Prompt, queued: Vec<SteeredMessage>) -> Result<()> {
        if self.prompt_id().is_some() || prompt.is_empty() || self.is_command(prompt) {
            return Ok(());
        }
        let mut batch = self.bootstrap_entries().await?;
        batch.extend(queued.iter().map(|message| self.steering_entry(message)));
        batch.push(self.with_inbound_id(self.user_message_entry(prompt)));
        self.append_then(batch, |progress, ids| {
            progress.prompt_id = ids.last().copied();
            // A plugin may have run a command before the prompt. That command is complete, but the prompt is not
            // answered.
            (progress.is_complete, progress.has_error) = (false, false);
        })
        .await
        .map(drop)
    }

    /// Records the prompt that the agent got, if a plugin changed it. Views then show the changed prompt in place of
    /// the one that was recorded first. But if the agent has already answered the first prompt, views show both.
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
            let mut progress = self.progress.lock();
            let fingerprint = prompt_fingerprint(prompt);
            if progress
                .prompt_fingerprint
                .is_none_or(|recorded| recorded == fingerprint)
            {
                return Ok(());
            }
            progress.prompt_fingerprint = Some(fingerprint);
            std::mem::take(&mut progress.is_complete)
        };
        let message = self.user_message_entry(prompt);
        if has_answered {
            self.append(vec![message]).await?;
            return Ok(());
        }
        let message = self.with_inbound_id(message);
        let message = message.with_meta(REPLACES_KEY, recorded.get());
        self.record_prompt_again(message).await
    }

    /// Sets the fingerprint of the prompt that the model stage gets. If an earlier attempt replaced the prompt, sets no
    /// fingerprint, so that its replacement is kept.
    pub(crate) fn set_prompt_fingerprint(&self, prompt: &Prompt) {
        let mut progress = self.progress.lock();
        progress.prompt_fingerprint =
            (!progress.is_prompt_replaced).then(|| prompt_fingerprint(prompt));
    }

    /// Returns whether the prompt is a comma command that this turn accepts.
    pub(super) fn is_command(&self, prompt: &Prompt) -> bool {
        self.accepts_commands && prompt.is_command()
    }

    /// Records the prompt again after the tape was reset.
    pub async fn record_prompt_again(&self, prompt: Entry) -> Result<()> {
        self.append_then(vec![prompt], |progress, ids| {
            progress.prompt_id = ids.last().copied();
        })
        .await
        .map(drop)
    }

    /// Creates the entry of a user message: the content is the prompt, and the `run_id` is the turn's.
    pub fn user_message_entry(&self, prompt: &Prompt) -> Entry {
        let content = serde_json::to_value(prompt).unwrap_or_else(|_| prompt.text().into());
        let entry = self.with_run_id(Entry::message("user", content));
        let Prompt::Parts(parts) = prompt else {
            return entry;
        };
        let progress = self.progress.lock();
        let name = |part| progress.media_names.get(&fingerprint(part)).cloned();
        let parts = parts.iter().enumerate();
        media::with_media_names(
            entry,
            parts.filter_map(|(index, part)| Some((index, name(part)?))),
        )
    }

    /// Sets the name of the file in a content part of a prompt. The tape keeps it, because the part does not have it.
    pub fn set_media_name(&self, part: &Value, name: &str) {
        let name = self.redactor().redact(name).into_owned();
        let names = &mut self.progress.lock().media_names;
        names.insert(fingerprint(part), name);
    }
}

/// Returns a hash that distinguishes prompts. The prompts themselves are not kept, because they may contain images.
fn prompt_fingerprint(prompt: &Prompt) -> u64 {
    match prompt {
        Prompt::Text(text) => fingerprint(text),
        Prompt::Parts(parts) => fingerprint(parts),
    }
}

fn fingerprint(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
