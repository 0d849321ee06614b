//! Parts of a message's content: text, images, audio, video, files.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// One part of a content list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentPart<'a> {
    /// Text.
    Text(&'a str),
    /// Bytes in base64, from a data URL or an `input_audio` part.
    Inline {
        kind: PartKind,
        mime: Mime<'a>,
        data: &'a str,
        name: Option<&'a str>,
    },
    /// Something the server fetches itself.
    Remote { kind: PartKind, url: &'a str },
    /// A file the provider already has.
    Uploaded(&'a str),
    /// A part of a type nobody here knows.
    Unknown(&'a str),
}

/// What a part shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    Image,
    Audio,
    Video,
    File,
}

impl PartKind {
    /// The word for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
            Self::File => "file",
        }
    }
}

/// A media type: in full, or the format name of an `input_audio` part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mime<'a> {
    Full(&'a str),
    AudioFormat(&'a str),
}

impl Mime<'_> {
    /// The media type in full.
    pub(super) fn full(self) -> String {
        match self {
            Self::Full(mime) => mime.to_owned(),
            Self::AudioFormat("mp3") => "audio/mpeg".to_owned(),
            Self::AudioFormat(format) => format!("audio/{format}"),
        }
    }
}

/// The parts of a message's content, whatever its shape. Empty text is left out: several servers
/// refuse it.
pub(super) fn parts(content: Option<&Value>) -> Vec<ContentPart<'_>> {
    let parts: Vec<_> = match content {
        Some(Value::String(text)) => vec![ContentPart::Text(text)],
        Some(Value::Array(parts)) => parts.iter().map(part).collect(),
        _ => Vec::new(),
    };
    parts
        .into_iter()
        .filter(|part| *part != ContentPart::Text(""))
        .collect()
}

/// A data URL split into media type and base64 payload.
pub(super) fn data_url(url: &str) -> Option<(&str, &str)> {
    let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
    let mime = head.strip_suffix(";base64")?;
    let mime = mime.split(';').next().unwrap_or(mime);
    Some((
        if mime.is_empty() {
            "application/octet-stream"
        } else {
            mime
        },
        data,
    ))
}

fn part(part: &Value) -> ContentPart<'_> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let known = match kind {
        "text" | "input_text" | "output_text" => part
            .get("text")
            .and_then(Value::as_str)
            .map(ContentPart::Text),
        "image_url" => url_of(part, "image_url").map(|url| located(PartKind::Image, url, None)),
        "video_url" => url_of(part, "video_url").map(|url| located(PartKind::Video, url, None)),
        "input_audio" => part.get("input_audio").and_then(audio),
        "file" => part.get("file").and_then(file),
        _ => part.as_str().map(ContentPart::Text),
    };
    known.unwrap_or(ContentPart::Unknown(kind))
}

/// `{"image_url": {"url": …}}`, or the short form `{"image_url": …}`.
fn url_of<'a>(part: &'a Value, key: &str) -> Option<&'a str> {
    let place = part.get(key)?;
    place.as_str().or_else(|| place.get("url")?.as_str())
}

fn located<'a>(kind: PartKind, url: &'a str, name: Option<&'a str>) -> ContentPart<'a> {
    match data_url(url) {
        Some((mime, data)) => ContentPart::Inline {
            kind,
            mime: Mime::Full(mime),
            data,
            name,
        },
        None => ContentPart::Remote { kind, url },
    }
}

fn audio(audio: &Value) -> Option<ContentPart<'_>> {
    let data = audio.get("data")?.as_str()?;
    let format = audio.get("format").and_then(Value::as_str).unwrap_or("wav");
    Some(ContentPart::Inline {
        kind: PartKind::Audio,
        mime: Mime::AudioFormat(format),
        data,
        name: None,
    })
}

fn file(file: &Value) -> Option<ContentPart<'_>> {
    let text = |key: &str| file.get(key).and_then(Value::as_str);
    if let Some(id) = text("file_id") {
        return Some(ContentPart::Uploaded(id));
    }
    let url = text("file_data").or_else(|| text("file_url"))?;
    let kind = match data_url(url) {
        Some((mime, _)) if mime.starts_with("image/") => PartKind::Image,
        Some((mime, _)) if mime.starts_with("audio/") => PartKind::Audio,
        Some((mime, _)) if mime.starts_with("video/") => PartKind::Video,
        _ => PartKind::File,
    };
    Some(located(kind, url, text("filename")))
}

/// What stands in for a part that a format cannot carry: the model should know that it was there.
pub(super) fn omitted(what: &str) -> String {
    format!("[{what} left out: this model's interface does not take it]")
}

/// The text in a base64 payload, if it is text.
pub(super) fn decode_text(data: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(data).ok()?).ok()
}
