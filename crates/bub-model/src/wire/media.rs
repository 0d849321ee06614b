//! Parts of a message's content: text, images, audio, video and files.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::{ChatRequest, Quirks};

/// One part of a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentPart<'a> {
    /// A text.
    Text(&'a str),
    /// Media of a kind.
    Media(PartKind, Source<'a>),
    /// The id of a file that was uploaded to the provider.
    Uploaded(&'a str),
    /// A part of an unknown type, with the name of the type.
    Unknown(&'a str),
}

/// Where the data of a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source<'a> {
    /// Base64 data from a data URL or an `input_audio` part, with the name of the file.
    Inline(Mime<'a>, &'a str, Option<&'a str>),
    /// A URL that the server fetches.
    Url(&'a str),
}

/// The kind of media in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(super) enum PartKind {
    Image,
    Audio,
    Video,
    File,
}

/// A media type: the full type, or the format name of an `input_audio` part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mime<'a> {
    Full(&'a str),
    AudioFormat(&'a str),
}

impl Mime<'_> {
    /// Returns the full media type.
    pub(super) fn full_type(self) -> String {
        match self {
            Self::Full(mime) => mime.to_owned(),
            Self::AudioFormat("mp3") => "audio/mpeg".to_owned(),
            Self::AudioFormat(format) => format!("audio/{format}"),
        }
    }
}

/// Returns the parts of a message's content. Omits empty text, because several servers reject it.
pub(super) fn parse_parts(content: Option<&Value>) -> Vec<ContentPart<'_>> {
    let mut parts: Vec<_> = match content {
        Some(Value::String(text)) => vec![ContentPart::Text(text)],
        Some(Value::Array(parts)) => parts.iter().map(parse_part).collect(),
        _ => Vec::new(),
    };
    parts.retain(|part| *part != ContentPart::Text(""));
    parts
}

/// Splits a data URL into its media type and base64 payload.
pub(super) fn parse_data_url(url: &str) -> Option<(&str, &str)> {
    let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
    let mime = head.strip_suffix(";base64")?;
    let mime = mime.split(';').next().unwrap_or(mime);
    match mime {
        "" => Some(("application/octet-stream", data)),
        mime => Some((mime, data)),
    }
}

fn parse_part(part: &Value) -> ContentPart<'_> {
    let kind = text(part, "type").unwrap_or_default();
    let media = |kind, url| media_from_url(kind, url, None);
    let parsed = match kind {
        "text" | "input_text" | "output_text" => text(part, "text").map(ContentPart::Text),
        "image_url" => part_url(part, kind).map(|url| media(PartKind::Image, url)),
        "video_url" => part_url(part, kind).map(|url| media(PartKind::Video, url)),
        "input_audio" => part.get(kind).and_then(parse_audio),
        "file" => part.get(kind).and_then(parse_file),
        _ => part.as_str().map(ContentPart::Text),
    };
    parsed.unwrap_or(ContentPart::Unknown(kind))
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

/// Returns the URL in `{"image_url": {"url": …}}` or in the short form `{"image_url": …}`.
fn part_url<'a>(part: &'a Value, key: &str) -> Option<&'a str> {
    let target = part.get(key)?;
    target.as_str().or_else(|| target.get("url")?.as_str())
}

fn media_from_url<'a>(kind: PartKind, url: &'a str, name: Option<&'a str>) -> ContentPart<'a> {
    let source = match parse_data_url(url) {
        Some((mime, data)) => Source::Inline(Mime::Full(mime), data, name),
        None => Source::Url(url),
    };
    ContentPart::Media(kind, source)
}

fn parse_audio(audio: &Value) -> Option<ContentPart<'_>> {
    let mime = Mime::AudioFormat(text(audio, "format").unwrap_or("wav"));
    let source = Source::Inline(mime, text(audio, "data")?, None);
    Some(ContentPart::Media(PartKind::Audio, source))
}

fn parse_file(file: &Value) -> Option<ContentPart<'_>> {
    if let Some(id) = text(file, "file_id") {
        return Some(ContentPart::Uploaded(id));
    }
    let url = text(file, "file_data").or_else(|| text(file, "file_url"))?;
    let kind = match parse_data_url(url) {
        Some((mime, _)) if mime.starts_with("image/") => PartKind::Image,
        Some((mime, _)) if mime.starts_with("audio/") => PartKind::Audio,
        Some((mime, _)) if mime.starts_with("video/") => PartKind::Video,
        _ => PartKind::File,
    };
    Some(media_from_url(kind, url, text(file, "filename")))
}

/// Returns a placeholder text for a part that the wire format does not support.
pub(super) fn omitted_text(kind: &str) -> String {
    format!("[{kind} omitted: the API of this model does not support it]")
}

/// Returns the request with a note in place of each image and recording that the server would reject. Returns `None` if
/// it rejects none. Only the format and the size are checked: a file that a user sends is converted before, but messages
/// may also come from plugins, from another model's turn, or from another program.
pub(super) fn omit_rejected_media(request: &ChatRequest, quirks: &Quirks) -> Option<ChatRequest> {
    let is_rejected = |part: &Value| rejection_text(part, quirks).is_some();
    let has_rejected = |message: &Value| content_parts(message).iter().any(is_rejected);
    if !request.messages.iter().any(has_rejected) {
        return None;
    }
    let mut request = request.clone();
    for message in Arc::make_mut(&mut request.messages) {
        let parts = message.get_mut("content").and_then(Value::as_array_mut);
        for part in parts.into_iter().flatten() {
            if let Some(text) = rejection_text(part, quirks) {
                *part = json!({"type": "text", "text": text});
            }
        }
    }
    Some(request)
}

fn content_parts(message: &Value) -> &[Value] {
    let parts = message.get("content").and_then(Value::as_array);
    parts.map_or(&[], Vec::as_slice)
}

/// Returns the note for a part that the server would reject, or `None` for other parts.
fn rejection_text(part: &Value, quirks: &Quirks) -> Option<String> {
    let (mime, data, kind) = match parse_part(part) {
        ContentPart::Media(PartKind::Video, _) if !quirks.video => {
            return Some(omitted_text("video"));
        }
        ContentPart::Media(kind, Source::Inline(mime, data, _)) => (mime, data, kind),
        _ => return None,
    };
    let format = match mime {
        Mime::AudioFormat(format) => format,
        Mime::Full(mime) => mime.rsplit('/').next().unwrap_or(mime),
    };
    let (format, accepted, hint) = match (kind, format) {
        (PartKind::Image, "jpg") => ("jpeg", &quirks.image_formats, ""),
        (PartKind::Image, _) => (format, &quirks.image_formats, ""),
        (PartKind::Audio, _) => {
            let format = if format == "mpeg" { "mp3" } else { format };
            let hint = "; set `transcribe` to send its text";
            (format, &quirks.audio_formats, hint)
        }
        _ => return None,
    };
    let kind: &str = kind.into();
    if !accepted.iter().any(|name| name == format) {
        return Some(format!(
            "[{kind} omitted: the API of this model does not accept {format}{hint}]"
        ));
    }
    let is_too_large = kind == "image" && data.len() / 4 * 3 > quirks.max_image_bytes + 2;
    is_too_large
        .then(|| format!("[{kind} omitted: the API of this model accepts only smaller ones]"))
}

/// Decodes a base64 payload as UTF-8 text.
pub(super) fn decode_text(data: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(data).ok()?).ok()
}
