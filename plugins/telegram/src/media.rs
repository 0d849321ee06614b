//! Files that come with a message: fetched when the model is asked, and not before, and never more than a little.

use std::{sync::Arc, time::Duration};

use bub::kernel::{
    BoxFuture, Envelope, Error, ErrorKind, MediaFetcher, MediaItem, MediaKind, Result,
};
use serde_json::{Value, json};

use super::{Bot, client::ApiErrorKind, inbound::Attachment};

/// The field by which the next process knows what to fetch.
const MEDIA_FIELD: &str = "telegram_media";
/// So many bytes of a file reach the model.
pub(super) const MAX_FILE_BYTES: usize = 2 * 1024 * 1024;
const MAX_FETCH_ATTEMPTS: u32 = 3;
pub(super) const TOO_LARGE_TEXT: &str = "larger than 2 MiB";

/// Attaches files to a message; of those that are too long, the agent is told.
pub(super) fn attach(bot: &Arc<Bot>, message: &mut Envelope, attachments: &[Attachment]) {
    let is_long = |file: &&Attachment| file.size.is_some_and(|size| size > MAX_FILE_BYTES as u64);
    let (long, fitting): (Vec<_>, Vec<_>) = attachments.iter().partition(is_long);
    if !long.is_empty() {
        let names: Vec<_> = long
            .iter()
            .map(|file| file.filename.as_deref().unwrap_or(file.kind.name()))
            .collect();
        let told = format!("{} ({TOO_LARGE_TEXT})", names.join(", "));
        if let Some(Value::Object(mut context)) = message.field("context").cloned() {
            context.insert("files_not_read".to_owned(), told.into());
            message.set("context", context);
        }
    }
    if fitting.is_empty() {
        return;
    }
    let items = fitting.iter().map(|attachment| {
        let file = TelegramFile {
            bot: Arc::clone(bot),
            file_id: attachment.file_id.clone(),
        };
        let mut item = MediaItem::fetched(attachment.kind, &attachment.mime, Arc::new(file));
        item.filename.clone_from(&attachment.filename);
        item
    });
    message.set_media(items.collect());
    let ids = fitting.iter().map(|file| {
        json!({"kind": file.kind.name(), "mime": file.mime, "file_id": file.file_id, "filename": file.filename})
    });
    message.set(MEDIA_FIELD, ids.collect::<Vec<_>>());
}

/// Attaches again what was attached in an earlier process.
pub(super) fn restore(bot: &Arc<Bot>, message: &mut Envelope) {
    let Some(Value::Array(files)) = message.field(MEDIA_FIELD).cloned() else {
        return;
    };
    let text = |file: &Value, name: &str| file.get(name).and_then(Value::as_str).map(str::to_owned);
    let attachment = |file: &Value| {
        Some(Attachment {
            kind: MediaKind::from_name(&text(file, "kind")?),
            mime: text(file, "mime")?,
            file_id: text(file, "file_id")?,
            size: None,
            filename: text(file, "filename"),
        })
    };
    let attachments: Vec<_> = files.iter().filter_map(attachment).collect();
    attach(bot, message, &attachments);
}

struct TelegramFile {
    bot: Arc<Bot>,
    file_id: String,
}

impl MediaFetcher for TelegramFile {
    fn fetch(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>>> {
        Box::pin(async move {
            let late = |_| Error::new(ErrorKind::Temporary, "it took too long");
            let fetching = tokio::time::timeout(self.bot.options.file_limit, self.try_fetch());
            fetching.await.map_err(late)?.map(Some)
        })
    }
}

impl TelegramFile {
    async fn try_fetch(&self) -> Result<Vec<u8>> {
        let mut attempt = 1;
        loop {
            match self
                .bot
                .client
                .download(
                    &self.file_id,
                    MAX_FILE_BYTES,
                    self.bot.options.file_patience,
                )
                .await
            {
                Ok(bytes) => return Ok(bytes),
                Err(failure)
                    if attempt < MAX_FETCH_ATTEMPTS
                        && matches!(
                            failure.error_kind,
                            ApiErrorKind::Trouble | ApiErrorKind::Flood
                        ) =>
                {
                    let error = &failure.text;
                    tracing::warn!(attempt, %error, "telegram.download_failed");
                    let pause = failure
                        .retry_after
                        .unwrap_or(Duration::from_millis(300) * attempt);
                    tokio::time::sleep(pause).await;
                }
                Err(failure) => return Err(failure.into()),
            }
            attempt += 1;
        }
    }
}
