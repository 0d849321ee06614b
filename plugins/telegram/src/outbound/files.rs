//! Sends files as photos, animations, audio, voice messages, videos, documents or albums, with a caption.

use std::path::PathBuf;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bub::agent::files::AllowedFile;
use bub::kernel::{Error, MediaItem, MediaKind, Result, tool::run_blocking};
use bub::settings::Redactor;
use serde_json::{Value, json};

use super::{OutgoingPart, OutgoingReply, reply_params};
use crate::{
    client::{ApiError, Upload},
    html::MessagePart,
    tools::read_file,
};

/// Maximum size of a photo. Larger images are sent as documents.
const MAX_PHOTO_BYTES: usize = 10 * 1024 * 1024;
/// Maximum size of the files of an album together. The files of a larger album are sent one by one.
const MAX_ALBUM_BYTES: usize = 50 * 1024 * 1024;
/// Maximum number of files in an album.
const MAX_ALBUM_FILES: usize = 10;
/// Maximum length of a caption in UTF-16 units.
const MAX_CAPTION_UNITS: usize = 1_024;

/// Whether a text fits into a caption, as HTML and as plain text.
pub(super) fn fits_caption(part: &MessagePart) -> bool {
    part.html.encode_utf16().count() <= MAX_CAPTION_UNITS
}

/// The files of a reply.
pub(super) struct MediaParts {
    pub(super) parts: Vec<OutgoingPart>,
    /// Whether the first file has the caption.
    pub(super) has_caption: bool,
}

/// Groups the files of a reply into albums. The first file or album gets the caption.
pub(super) fn media_parts(items: Vec<MediaItem>, caption: Option<MessagePart>) -> MediaParts {
    let mut albums: Vec<Vec<MediaItem>> = Vec::new();
    for item in items {
        let class = FileKind::from_item(&item).album_class();
        let joins = |album: &&mut Vec<MediaItem>| {
            let first = album.first().map(FileKind::from_item);
            class.is_some()
                && album.len() < MAX_ALBUM_FILES
                && first.and_then(FileKind::album_class) == class
        };
        match albums.last_mut().filter(joins) {
            Some(album) => album.push(item),
            None => albums.push(vec![item]),
        }
    }
    let (has_caption, mut caption) = (caption.is_some() && !albums.is_empty(), caption);
    let parts = albums
        .into_iter()
        .map(|album| OutgoingPart::Media(album, caption.take()));
    MediaParts {
        parts: parts.collect(),
        has_caption,
    }
}

/// How the platform shows a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Photo,
    Animation,
    Audio,
    Voice,
    Video,
    Document,
}

impl FileKind {
    fn from_item(item: &MediaItem) -> Self {
        match (item.kind, item.mime.as_str()) {
            (MediaKind::Image, "image/gif") => Self::Animation,
            (MediaKind::Image, "image/svg+xml") => Self::Document,
            (MediaKind::Image, _) => Self::Photo,
            (MediaKind::Audio, "audio/ogg" | "audio/opus") => Self::Voice,
            (MediaKind::Audio, "audio/mpeg" | "audio/mp4" | "audio/mp3" | "audio/x-m4a") => {
                Self::Audio
            }
            (MediaKind::Video, "video/mp4") => Self::Video,
            _ => Self::Document,
        }
    }

    /// Returns the method to send one file, and the name of its parameter.
    fn method(self) -> (&'static str, &'static str) {
        match self {
            Self::Photo => ("sendPhoto", "photo"),
            Self::Animation => ("sendAnimation", "animation"),
            Self::Audio => ("sendAudio", "audio"),
            Self::Voice => ("sendVoice", "voice"),
            Self::Video => ("sendVideo", "video"),
            Self::Document => ("sendDocument", "document"),
        }
    }

    /// Returns the name of the kinds that can share an album. Photos and videos can.
    fn album_class(self) -> Option<&'static str> {
        match self {
            Self::Photo | Self::Video => Some("visual"),
            Self::Audio => Some("audio"),
            Self::Document => Some("document"),
            Self::Animation | Self::Voice => None,
        }
    }
}

/// The content of a file to send.
enum FileSource {
    Link(String),
    Bytes(Upload),
}

struct LoadedFile {
    kind: FileKind,
    source: FileSource,
}

impl OutgoingReply {
    /// Sends a file, or several as an album. If the platform rejects an album, its files are sent one by one. If it
    /// rejects a file with a caption, the text is sent as a message, so that only the file is missing.
    pub(super) async fn send_files(
        &mut self,
        index: usize,
        items: &[MediaItem],
        caption: Option<&MessagePart>,
    ) -> Result<Result<Option<i64>, ApiError>> {
        let redactor = self.bot.options.redactor.clone();
        if self.sent.pieces == 0
            && let Some(files) = load_album(items, &redactor).await?
        {
            let (media, uploads) = album(files, caption);
            let mut params = reply_params(&self.route, index == 0);
            params["media"] = media.into();
            let params = params.as_object().cloned().unwrap_or_default();
            let client = &self.bot.client;
            match client.upload("sendMediaGroup", &params, &uploads).await {
                Err(api_error) if api_error.is_rejection() => {}
                outcome => return Ok(outcome.map(|sent| first_message_id(&sent))),
            }
        }
        while let Some(item) = items.get(self.sent.pieces) {
            let file = load_file(item, &redactor).await?;
            let is_first = self.sent.pieces == 0;
            if !is_first {
                let chat = self.route.chat_thread.chat;
                self.bot.limiter.wait_to_send(chat).await;
            }
            let caption = caption.filter(|_| is_first);
            match self.send_file(index == 0 && is_first, file, caption).await {
                Ok(message_id) => {
                    self.sent.first = self.sent.first.or(message_id);
                    self.sent.pieces += 1;
                    if self.sent.pieces < items.len() {
                        let log = &self.bot.delivery_log;
                        log.record(&self.reply_id, self.sent.clone());
                    }
                }
                Err(api_error) => {
                    if let Some(part) = caption.filter(|_| api_error.is_rejection()) {
                        let _ = self.send_text(index, part, None).await;
                    }
                    return Ok(Err(api_error));
                }
            }
        }
        Ok(Ok(self.sent.first))
    }

    /// Sends one file. If the platform rejects it as what it is, it is sent as a document.
    async fn send_file(
        &self,
        is_first: bool,
        mut file: LoadedFile,
        caption: Option<&MessagePart>,
    ) -> Result<Option<i64>, ApiError> {
        let mut params = reply_params(&self.route, is_first);
        if let Some(part) = caption {
            params["caption"] = part.html.as_str().into();
            params["parse_mode"] = "HTML".into();
        }
        let mut kinds = vec![file.kind, FileKind::Document];
        kinds.dedup();
        let mut rejection = None;
        for kind in kinds {
            let (method, name) = kind.method();
            let outcome = match &mut file.source {
                FileSource::Link(url) => {
                    let mut params = params.clone();
                    params[name] = url.as_str().into();
                    self.bot.client.call(method, &params).await
                }
                FileSource::Bytes(upload) => {
                    name.clone_into(&mut upload.name);
                    let params = params.as_object().cloned().unwrap_or_default();
                    let uploads = std::slice::from_ref(upload);
                    self.bot.client.upload(method, &params, uploads).await
                }
            };
            match outcome {
                Err(api_error) if api_error.is_rejection() => rejection = Some(api_error),
                outcome => return outcome.map(|sent| first_message_id(&sent)),
            }
        }
        rejection.map_or(Ok(None), Err)
    }
}

/// Loads the files of an album. Returns `None` if they are too large together, or if there is only one.
async fn load_album(items: &[MediaItem], redactor: &Redactor) -> Result<Option<Vec<LoadedFile>>> {
    let (mut files, mut size) = (Vec::new(), 0);
    for item in items.iter().filter(|_| items.len() > 1) {
        let file = load_file(item, redactor).await?;
        if let FileSource::Bytes(upload) = &file.source {
            size += upload.bytes.len();
        }
        if size > MAX_ALBUM_BYTES {
            return Ok(None);
        }
        files.push(file);
    }
    Ok(Some(files).filter(|files| !files.is_empty()))
}

/// Returns the items of an album and their files.
fn album(files: Vec<LoadedFile>, caption: Option<&MessagePart>) -> (Vec<Value>, Vec<Upload>) {
    let (mut media, mut uploads) = (Vec::new(), Vec::new());
    for (index, file) in files.into_iter().enumerate() {
        let (_, kind) = file.kind.method();
        let mut item = json!({"type": kind});
        match file.source {
            FileSource::Link(url) => item["media"] = url.into(),
            FileSource::Bytes(upload) => {
                let name = format!("file{index}");
                item["media"] = format!("attach://{name}").into();
                uploads.push(Upload { name, ..upload });
            }
        }
        if let Some(part) = caption.filter(|_| index == 0) {
            item["caption"] = part.html.as_str().into();
            item["parse_mode"] = "HTML".into();
        }
        media.push(item);
    }
    (media, uploads)
}

/// Returns the id of the first message in the answer of the platform, which is a list for an album.
fn first_message_id(sent: &Value) -> Option<i64> {
    let first = sent.as_array().and_then(|messages| messages.first());
    first.unwrap_or(sent).get("message_id")?.as_i64()
}

async fn load_file(item: &MediaItem, redactor: &Redactor) -> Result<LoadedFile> {
    let mut kind = FileKind::from_item(item);
    let url = item.resolve_url().await?.unwrap_or_default();
    let file_error = |reason: String| {
        Error::not_found(format!(
            "cannot send file `{}` of the reply: {reason}",
            item.filename.as_deref().unwrap_or(item.kind.name())
        ))
    };
    let (bytes, name) = if let Some(path) = url.strip_prefix("file://") {
        let path = PathBuf::from(path);
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let redactor = redactor.clone();
        let bytes = run_blocking(move || {
            // The tool that named the file has resolved its links. A link that is there now leads elsewhere.
            let file = AllowedFile::open_resolved(&path)?;
            Ok::<_, Error>(read_file(file, &redactor)?)
        });
        let bytes = bytes
            .await?
            .map_err(|error| file_error(error.message().to_owned()))?;
        (bytes, name)
    } else if let Some((_, data)) = url
        .strip_prefix("data:")
        .and_then(|data| data.split_once(";base64,"))
    {
        (
            STANDARD
                .decode(data)
                .map_err(|error| file_error(error.to_string()))?,
            None,
        )
    } else if url.starts_with("http") {
        let source = FileSource::Link(url);
        return Ok(LoadedFile { kind, source });
    } else {
        return Err(file_error("it has no content and no URL".to_owned()));
    };
    let filename = item.filename.clone().or(name);
    if kind == FileKind::Photo && bytes.len() > MAX_PHOTO_BYTES {
        kind = FileKind::Document;
    }
    let source = FileSource::Bytes(Upload {
        name: String::new(),
        filename: filename.unwrap_or_else(|| "file".to_owned()),
        mime: item.mime.clone(),
        bytes,
    });
    Ok(LoadedFile { kind, source })
}
