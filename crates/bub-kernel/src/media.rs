//! Images, audio, video and documents that are attached to a message.

use std::{fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use strum::{EnumString, IntoStaticStr};

use crate::{BoxFuture, error::Result};

/// The kind of a media item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum MediaKind {
    /// An image.
    Image,
    /// An audio recording.
    Audio,
    /// A video.
    Video,
    /// Any other file.
    Document,
}

impl MediaKind {
    /// Returns the name that JSON uses.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the kind with this name, or [`MediaKind::Document`] for other names.
    pub fn from_name(name: &str) -> Self {
        name.parse().unwrap_or(Self::Document)
    }
}

/// A source of media bytes, which are fetched on demand.
pub trait MediaFetcher: Send + Sync {
    /// Returns the bytes, or `None` if they are not available, for example because the file is too large or was
    /// deleted.
    fn fetch(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>>>;
}

/// A media item with a URL or a fetcher.
#[derive(Clone)]
pub struct MediaItem {
    /// The kind of the item.
    pub kind: MediaKind,
    /// The MIME type.
    pub mime: String,
    /// The file name, if known.
    pub filename: Option<String>,
    /// The URL, if the item is publicly accessible.
    pub url: Option<String>,
    /// Fetches the bytes of an item without a URL.
    pub fetcher: Option<Arc<dyn MediaFetcher>>,
}

impl MediaItem {
    /// Creates an item with a URL.
    pub fn from_url(kind: MediaKind, mime: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            url: Some(url.into()),
            ..Self::without_source(kind, mime.into())
        }
    }

    /// Creates an item with these bytes, as a data URL.
    pub fn from_bytes(kind: MediaKind, mime: &str, bytes: &[u8]) -> Self {
        let url = format!("data:{mime};base64,{}", STANDARD.encode(bytes));
        Self::from_url(kind, mime, url)
    }

    /// Creates an item whose bytes are fetched on demand.
    pub fn from_fetcher(
        kind: MediaKind,
        mime: impl Into<String>,
        fetcher: Arc<dyn MediaFetcher>,
    ) -> Self {
        Self {
            fetcher: Some(fetcher),
            ..Self::without_source(kind, mime.into())
        }
    }

    fn without_source(kind: MediaKind, mime: String) -> Self {
        Self {
            kind,
            mime,
            filename: None,
            url: None,
            fetcher: None,
        }
    }

    /// Returns the URL, or a data URL with the fetched bytes. Returns `None` if the item has no URL and its bytes are
    /// not available.
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

    /// Returns the bytes from a data URL or from the fetcher. Does not download other URLs.
    pub async fn bytes(&self) -> Result<Option<Vec<u8>>> {
        if let Some(url) = &self.url {
            let data = url
                .strip_prefix("data:")
                .and_then(|data| data.split_once(";base64,"));
            return Ok(data.and_then(|(_, data)| STANDARD.decode(data).ok()));
        }
        match &self.fetcher {
            Some(fetcher) => fetcher.fetch().await,
            None => Ok(None),
        }
    }

    /// Returns the item as JSON, without the fetcher.
    pub fn to_value(&self) -> Value {
        let mut value = json!({"type": self.kind.name(), "mime_type": self.mime});
        for (name, text) in [("filename", &self.filename), ("url", &self.url)] {
            if let (Value::Object(map), Some(text)) = (&mut value, text) {
                map.insert(name.into(), text.clone().into());
            }
        }
        value
    }

    /// Converts an item from JSON. Returns `None` if the value is not an object.
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

/// Audio formats whose name differs from the MIME subtype, as pairs of name and MIME type.
const AUDIO_FORMATS: [(&str, &str); 2] = [("mp3", "audio/mpeg"), ("m4a", "audio/mp4")];

/// Returns the short format name of an audio MIME type: `audio/mpeg; codecs=…` is `mp3`.
pub fn audio_format(mime: &str) -> String {
    let essence = mime.split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    if let Some((format, _)) = AUDIO_FORMATS.iter().find(|(_, mime)| *mime == essence) {
        return (*format).to_owned();
    }
    let short = essence.strip_prefix("audio/").unwrap_or(&essence);
    match short {
        "x-aiff" | "x-flac" | "x-m4a" | "x-wav" => short.trim_start_matches("x-").to_owned(),
        "" => "unknown".to_owned(),
        other => other.to_owned(),
    }
}

/// Returns the MIME type of a short audio format name.
pub fn audio_mime(format: &str) -> String {
    let entry = AUDIO_FORMATS.iter().find(|(name, _)| *name == format);
    entry.map_or_else(|| format!("audio/{format}"), |(_, mime)| (*mime).to_owned())
}
