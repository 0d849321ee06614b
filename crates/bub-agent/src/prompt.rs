//! Builds the prompt for the model from a message.

use bub_kernel::{
    COMMAND_PREFIX, Envelope, Error, MediaItem, MediaKind, MessageKind, Prompt, Result,
    audio_format,
};
use jiff::Zoned;
use serde_json::{Value, json};

/// The error for an attached file without content.
const NO_CONTENT_TEXT: &str = "the channel provided no content";

/// Maximum number of characters of a document in a prompt.
const MAX_DOCUMENT_CHARS: usize = 100_000;

/// Builds the prompt of a message. A comma command is used as typed. For other messages, the context line and the date
/// precede the text, and each attached file that can be read becomes a content part of the prompt.
pub(crate) async fn build_prompt(message: &Envelope) -> Result<Prompt> {
    let content = message.content();
    if content.starts_with(COMMAND_PREFIX) {
        return Ok(Prompt::Text(content.into_owned()));
    }
    let mut parts = Vec::new();
    let mut unread = Vec::new();
    for item in message.media() {
        match media_part(&item).await {
            Ok(part) => parts.extend(part),
            Err(error) => {
                let name = item.filename.as_deref().unwrap_or(item.kind.name());
                tracing::warn!(file = name, %error, "prompt.file_not_read");
                unread.push(format!("{name} ({})", error.message()));
            }
        }
    }
    let text = prepend_context(&context_with_unread(message, unread), &content);
    if parts.is_empty() {
        return Ok(Prompt::Text(text));
    }
    parts.insert(0, json!({"type": "text", "text": text}));
    Ok(Prompt::Parts(parts))
}

/// Returns the kind of a message. A comma command always has the kind `command`.
pub(crate) fn message_kind(message: &Envelope) -> MessageKind {
    if message.content().starts_with(COMMAND_PREFIX) {
        MessageKind::Command
    } else {
        message.kind()
    }
}

/// Returns the context line of a message: its context as `key=value` pairs. Adds `unread`: the attached files that
/// cannot be read, each with the reason.
fn context_with_unread(message: &Envelope, mut unread: Vec<String>) -> String {
    if unread.is_empty() {
        return message.context_str();
    }
    let context = message.field("context").and_then(Value::as_object);
    let mut context = context.cloned().unwrap_or_default();
    let already_listed = context.get("files_not_read").and_then(Value::as_str);
    unread.splice(0..0, already_listed.map(str::to_owned));
    context.insert("files_not_read".to_owned(), unread.join(", ").into());
    Envelope::new().with("context", context).context_str()
}

/// Returns the text with the context line and the date before it. If the context line is empty, returns the text
/// unchanged.
fn prepend_context(context: &str, text: &str) -> String {
    if context.is_empty() {
        return text.to_owned();
    }
    let date = Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
    format!("{context}\n---Date: {date}---\n{text}")
}

/// Returns the content part of a media item, or `None` if models do not accept its format.
async fn media_part(item: &MediaItem) -> Result<Option<Value>> {
    if item.kind == MediaKind::Document {
        return document_part(item).await;
    }
    let url = item.resolve_url().await?;
    let url = url.ok_or_else(|| Error::unknown(NO_CONTENT_TEXT))?;
    Ok(match item.kind {
        MediaKind::Image => Some(json!({"type": "image_url", "image_url": {"url": url}})),
        MediaKind::Video => Some(json!({"type": "video_url", "video_url": {"url": url}})),
        MediaKind::Audio => audio_part(&url),
        _ => None,
    })
}

/// Returns the content part of a text document. Fails if the document is not text.
async fn document_part(item: &MediaItem) -> Result<Option<Value>> {
    let name = item.filename.as_deref().unwrap_or("document");
    if !is_text_document(&item.mime, name) {
        return Err(Error::invalid_input(
            "unsupported file type: only text, images, audio and video can be read",
        ));
    }
    let bytes = item.bytes().await?;
    let bytes = bytes.ok_or_else(|| Error::unknown(NO_CONTENT_TEXT))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::unknown("not a text file: the content is not valid UTF-8"))?;
    let (text, note) = match text.char_indices().nth(MAX_DOCUMENT_CHARS) {
        Some((end, _)) => (text.get(..end).unwrap_or_default(), "\n[truncated here]"),
        None => (text.as_str(), ""),
    };
    Ok(Some(
        json!({"type": "text", "text": format!("[Content of {name}]\n{text}{note}")}),
    ))
}

/// Returns whether a document is text, by its media type or the extension of its name.
fn is_text_document(mime: &str, name: &str) -> bool {
    const TEXT_EXTENSIONS: [&str; 20] = [
        "c", "cfg", "conf", "cpp", "css", "csv", "go", "h", "ini", "java", "json", "log", "md",
        "py", "rs", "sh", "toml", "txt", "yaml", "yml",
    ];
    let mime = mime.split(';').next().unwrap_or_default();
    let mime = mime.trim().to_ascii_lowercase();
    match mime.strip_prefix("application/") {
        None | Some("octet-stream") => {
            let extension = name.rsplit_once('.').map(|(_, extension)| extension);
            let extension = extension.unwrap_or_default().to_ascii_lowercase();
            mime.starts_with("text/") || TEXT_EXTENSIONS.contains(&extension.as_str())
        }
        Some("json" | "xml" | "yaml" | "x-yaml" | "toml" | "javascript" | "x-sh" | "sql") => true,
        Some(subtype) => subtype.ends_with("+json") || subtype.ends_with("+xml"),
    }
}

/// Returns the content part of an audio file. Providers accept audio only inline, so `url` must be a data URL of an
/// audio type.
fn audio_part(url: &str) -> Option<Value> {
    let (mime, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
    if !mime.to_ascii_lowercase().starts_with("audio/") {
        return None;
    }
    let audio = json!({"data": data, "format": audio_format(mime)});
    Some(json!({"type": "input_audio", "input_audio": audio}))
}
