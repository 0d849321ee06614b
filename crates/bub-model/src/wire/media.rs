//! Parts of a message's content: text, images, audio, video and files.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// One part of a content list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentPart<'a> {
    /// A text.
    Text(&'a str),
    /// Base64 data from a data URL or an `input_audio` part.
    Inline {
        kind: PartKind,
        mime: Mime<'a>,
        data: &'a str,
        name: Option<&'a str>,
    },
    /// A URL that the server fetches.
    Remote { kind: PartKind, url: &'a str },
    /// The id of a file that was uploaded to the provider.
    Uploaded(&'a str),
    /// A part of an unknown type.
    Unknown(&'a str),
}

/// The kind of media in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    Image,
    Audio,
    Video,
    File,
}

impl PartKind {
    /// Returns the name of the kind, for placeholder texts.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
            Self::File => "file",
        }
    }
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
    let parts: Vec<_> = match content {
        Some(Value::String(text)) => vec![ContentPart::Text(text)],
        Some(Value::Array(parts)) => parts.iter().map(parse_part).collect(),
        _ => Vec::new(),
    };
    parts
        .into_iter()
        .filter(|part| *part != ContentPart::Text(""))
        .collect()
}

/// Splits a data URL into its media type and base64 payload.
pub(super) fn parse_data_url(url: &str) -> Option<(&str, &str)> {
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

fn parse_part(part: &Value) -> ContentPart<'_> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let parsed =
        match kind {
            "text" | "input_text" | "output_text" => part
                .get("text")
                .and_then(Value::as_str)
                .map(ContentPart::Text),
            "image_url" => part_url(part, "image_url")
                .map(|url| media_part_from_url(PartKind::Image, url, None)),
            "video_url" => part_url(part, "video_url")
                .map(|url| media_part_from_url(PartKind::Video, url, None)),
            "input_audio" => part.get("input_audio").and_then(parse_audio),
            "file" => part.get("file").and_then(parse_file),
            _ => part.as_str().map(ContentPart::Text),
        };
    parsed.unwrap_or(ContentPart::Unknown(kind))
}

/// Returns the URL in `{"image_url": {"url": …}}` or in the short form `{"image_url": …}`.
fn part_url<'a>(part: &'a Value, key: &str) -> Option<&'a str> {
    let target = part.get(key)?;
    target.as_str().or_else(|| target.get("url")?.as_str())
}

fn media_part_from_url<'a>(kind: PartKind, url: &'a str, name: Option<&'a str>) -> ContentPart<'a> {
    match parse_data_url(url) {
        Some((mime, data)) => ContentPart::Inline {
            kind,
            mime: Mime::Full(mime),
            data,
            name,
        },
        None => ContentPart::Remote { kind, url },
    }
}

fn parse_audio(audio: &Value) -> Option<ContentPart<'_>> {
    let data = audio.get("data")?.as_str()?;
    let format = audio.get("format").and_then(Value::as_str).unwrap_or("wav");
    Some(ContentPart::Inline {
        kind: PartKind::Audio,
        mime: Mime::AudioFormat(format),
        data,
        name: None,
    })
}

fn parse_file(file: &Value) -> Option<ContentPart<'_>> {
    let text = |key: &str| file.get(key).and_then(Value::as_str);
    if let Some(id) = text("file_id") {
        return Some(ContentPart::Uploaded(id));
    }
    let url = text("file_data").or_else(|| text("file_url"))?;
    let kind = match parse_data_url(url) {
        Some((mime, _)) if mime.starts_with("image/") => PartKind::Image,
        Some((mime, _)) if mime.starts_with("audio/") => PartKind::Audio,
        Some((mime, _)) if mime.starts_with("video/") => PartKind::Video,
        _ => PartKind::File,
    };
    Some(media_part_from_url(kind, url, text("filename")))
}

/// Returns a placeholder text for a part that the wire format does not support.
pub(super) fn omitted_text(kind: &str) -> String {
    format!("[{kind} omitted: the API of this model does not support it]")
}

/// Decodes a base64 payload as UTF-8 text.
pub(super) fn decode_text(data: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(data).ok()?).ok()
}
