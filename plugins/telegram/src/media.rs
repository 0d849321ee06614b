//! Files attached to messages. They are downloaded when the model needs them, up to a maximum size.

use std::{sync::Arc, time::Duration};

use bub::kernel::{
    BoxFuture, Envelope, Error, ErrorKind, MediaFetcher, MediaItem, MediaKind, Result,
};
use serde_json::{Value, json};

use super::{Bot, client::ApiErrorKind, inbound::Attachment};

/// Envelope field with the attached files, so that bub can download them after a restart.
const MEDIA_FIELD: &str = "telegram_media";
/// Maximum size of a file for the model.
pub(super) const MAX_FILE_BYTES: usize = 2 * 1024 * 1024;
const MAX_FETCH_ATTEMPTS: u32 = 3;
pub(super) const TOO_LARGE_TEXT: &str = "larger than 2 MiB";

/// Attaches files to a message. Files that are too large are listed in the context field `files_not_read`.
pub(super) fn attach_files(bot: &Arc<Bot>, message: &mut Envelope, attachments: &[Attachment]) {
    let is_too_large =
        |file: &&Attachment| file.size.is_some_and(|size| size > MAX_FILE_BYTES as u64);
    let (too_large, fitting): (Vec<_>, Vec<_>) = attachments.iter().partition(is_too_large);
    if !too_large.is_empty() {
        let names: Vec<_> = too_large
            .iter()
            .map(|file| file.filename.as_deref().unwrap_or(file.kind.name()))
            .collect();
        let description = format!("{} ({TOO_LARGE_TEXT})", names.join(", "));
        if let Some(Value::Object(mut context)) = message.field("context").cloned() {
            context.insert("files_not_read".to_owned(), description.into());
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
        let mut item = MediaItem::from_fetcher(attachment.kind, &attachment.mime, Arc::new(file));
        item.filename.clone_from(&attachment.filename);
        item
    });
    message.set_media(items.collect());
    let ids = fitting.iter().map(|file| {
        json!({"kind": file.kind.name(), "mime": file.mime, "file_id": file.file_id, "filename": file.filename})
    });
    message.set(MEDIA_FIELD, ids.collect::<Vec<_>>());
}

/// Attaches the files that an earlier process recorded in [`MEDIA_FIELD`].
pub(super) fn restore_files(bot: &Arc<Bot>, message: &mut Envelope) {
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
    attach_files(bot, message, &attachments);
}

struct TelegramFile {
    bot: Arc<Bot>,
    file_id: String,
}

impl MediaFetcher for TelegramFile {
    fn fetch(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>>> {
        Box::pin(async move {
            let timeout_error = |_| {
                Error::new(
                    ErrorKind::Temporary,
                    "download timed out; send the file again",
                )
            };
            let fetching =
                tokio::time::timeout(self.bot.options.file_timeout, self.fetch_with_retries());
            fetching.await.map_err(timeout_error)?.map(Some)
        })
    }
}

impl TelegramFile {
    async fn fetch_with_retries(&self) -> Result<Vec<u8>> {
        let mut attempt = 1;
        loop {
            match self
                .bot
                .client
                .download(
                    &self.file_id,
                    MAX_FILE_BYTES,
                    self.bot.options.file_idle_timeout,
                )
                .await
            {
                Ok(bytes) => return Ok(bytes),
                Err(api_error)
                    if attempt < MAX_FETCH_ATTEMPTS
                        && matches!(
                            api_error.error_kind,
                            ApiErrorKind::Unavailable | ApiErrorKind::Flood
                        ) =>
                {
                    let error = &api_error.text;
                    tracing::warn!(attempt, %error, "telegram.download_failed");
                    let delay = api_error
                        .retry_after
                        .unwrap_or(Duration::from_millis(300) * attempt);
                    tokio::time::sleep(delay).await;
                }
                Err(api_error) => return Err(api_error.into()),
            }
            attempt += 1;
        }
    }
}
