//! Pictures, sound, video and documents that come with a message.

use std::{fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{BoxFuture, error::Result};

/// What a media item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaKind {
    /// A picture.
    Image,
    /// Sound.
    Audio,
    /// A film.
    Video,
    /// Anything else.
    Document,
}

impl MediaKind {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
            Self::Document => "document",
        }
    }

    /// The kind of that name; anything unknown is a document.
    pub fn from_name(name: &str) -> Self {
        match name {
            "image" => Self::Image,
            "audio" => Self::Audio,
            "video" => Self::Video,
            _ => Self::Document,
        }
    }
}

/// Gets the bytes of a media item when they are wanted, and not before.
pub trait MediaFetcher: Send + Sync {
    /// The bytes, or `None` when they cannot be had (too big, gone).
    fn fetch(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>>>;
}

/// One media item: a URL, or something that fetches the bytes.
#[derive(Clone)]
pub struct MediaItem {
    /// What it is.
    pub kind: MediaKind,
    /// Its MIME type.
    pub mime: String,
    /// Its file name, when it has one.
    pub filename: Option<String>,
    /// Where it is, when that is public.
    pub url: Option<String>,
    /// How to get it, when it has no URL.
    pub fetcher: Option<Arc<dyn MediaFetcher>>,
}

impl MediaItem {
    /// An item that is found at a URL.
    pub fn from_url(kind: MediaKind, mime: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            kind,
            mime: mime.into(),
            filename: None,
            url: Some(url.into()),
            fetcher: None,
        }
    }

    /// An item whose bytes are fetched when needed.
    pub fn fetched(
        kind: MediaKind,
        mime: impl Into<String>,
        fetcher: Arc<dyn MediaFetcher>,
    ) -> Self {
        Self {
            kind,
            mime: mime.into(),
            filename: None,
            url: None,
            fetcher: Some(fetcher),
        }
    }

    /// The URL, or else a data URL of the fetched bytes, or `None` when there are none.
    pub async fn resolve_url(&self) -> Result<Option<String>> {
        if let Some(url) = &self.url {
            return Ok(Some(url.clone()));
        }
        let Some(fetcher) = &self.fetcher else {
            return Ok(None);
        };
        let bytes = fetcher.fetch().await?;
        Ok(bytes.map(|bytes| format!("data:{};base64,{}", self.mime, STANDARD.encode(bytes))))
    }

    /// The bytes themselves, when they are at hand: in a data URL, or fetched.
    pub async fn bytes(&self) -> Result<Option<Vec<u8>>> {
        if let Some(url) = &self.url {
            let data = url
                .strip_prefix("data:")
                .and_then(|rest| rest.split_once(";base64,"));
            return Ok(data.and_then(|(_, data)| STANDARD.decode(data).ok()));
        }
        match &self.fetcher {
            Some(fetcher) => fetcher.fetch().await,
            None => Ok(None),
        }
    }

    /// The item as data; a fetcher does not show.
    pub fn to_value(&self) -> Value {
        let mut value = json!({"type": self.kind.name(), "mime_type": self.mime});
        for (name, text) in [("filename", &self.filename), ("url", &self.url)] {
            if let (Value::Object(map), Some(text)) = (&mut value, text) {
                map.insert(name.into(), text.clone().into());
            }
        }
        value
    }

    /// Reads an item; `None` when it is not an object.
    pub fn from_value(value: &Value) -> Option<Self> {
        value.as_object()?;
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            kind: MediaKind::from_name(&text("type").unwrap_or_default()),
            mime: text("mime_type").unwrap_or_else(|| "application/octet-stream".into()),
            filename: text("filename"),
            url: text("url"),
            fetcher: None,
        })
    }
}

impl fmt::Debug for MediaItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MediaItem({} {})", self.kind.name(), self.mime)
    }
}

/// Format names that are not simply the end of the MIME type, in both directions.
const AUDIO_FORMATS: [(&str, &str); 2] = [("mp3", "audio/mpeg"), ("m4a", "audio/mp4")];

/// The short format name of an audio MIME type: `audio/mpeg; codecs=…` is `mp3`.
pub fn audio_format(mime: &str) -> String {
    let essence = mime
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if let Some((format, _)) = AUDIO_FORMATS.iter().find(|(_, known)| *known == essence) {
        return (*format).to_owned();
    }
    let short = essence.strip_prefix("audio/").unwrap_or(&essence);
    match short {
        "x-aiff" | "x-flac" | "x-m4a" | "x-wav" => short.trim_start_matches("x-").to_owned(),
        "" => "unknown".to_owned(),
        known => known.to_owned(),
    }
}

/// The MIME type of a short audio format name.
pub fn audio_mime(format: &str) -> String {
    let known = AUDIO_FORMATS.iter().find(|(known, _)| *known == format);
    known.map_or_else(|| format!("audio/{format}"), |(_, mime)| (*mime).to_owned())
}
