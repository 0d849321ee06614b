//! Media items and audio formats.

use std::sync::Arc;

use bub_kernel::{
    BoxFuture, Error, MediaFetcher, MediaItem, MediaKind, Result, audio_format, audio_mime,
};
use serde_json::json;

struct FakeFetcher(Result<Option<&'static [u8]>>);

impl MediaFetcher for FakeFetcher {
    fn fetch(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>>> {
        let bytes = self.0.clone().map(|bytes| bytes.map(<[u8]>::to_vec));
        Box::pin(std::future::ready(bytes))
    }
}

fn fetched_item(bytes: Result<Option<&'static [u8]>>) -> MediaItem {
    MediaItem::from_fetcher(MediaKind::Audio, "audio/ogg", Arc::new(FakeFetcher(bytes)))
}

// H-43
#[tokio::test]
async fn the_url_is_the_given_one_or_made_of_the_bytes_or_none() {
    let at = MediaItem::from_url(MediaKind::Image, "image/png", "https://example.com/a.png");
    assert_eq!(
        at.resolve_url().await.unwrap().as_deref(),
        Some("https://example.com/a.png")
    );
    let made = fetched_item(Ok(Some(b"hi!"))).resolve_url().await.unwrap();
    assert_eq!(made.as_deref(), Some("data:audio/ogg;base64,aGkh"));
    assert_eq!(fetched_item(Ok(None)).resolve_url().await.unwrap(), None);
    let failed = fetched_item(Err(Error::not_found("gone")))
        .resolve_url()
        .await;
    assert_eq!(failed.unwrap_err().message(), "gone");
}

// H-43: an item with a URL is not fetched.
#[tokio::test]
async fn a_given_url_wins_over_the_fetcher() {
    let both = MediaItem {
        url: Some("u".into()),
        ..fetched_item(Err(Error::unknown("not called")))
    };
    assert_eq!(both.resolve_url().await.unwrap().as_deref(), Some("u"));
}

// H-43
#[test]
fn an_item_goes_through_json_without_its_fetcher() {
    let value = json!({"type": "video", "mime_type": "video/mp4", "filename": "a.mp4", "url": "u"});
    assert_eq!(MediaItem::from_value(&value).unwrap().to_value(), value);
    let item = fetched_item(Ok(None));
    assert_eq!(
        item.to_value(),
        json!({"type": "audio", "mime_type": "audio/ogg"})
    );
    assert!(
        MediaItem::from_value(&item.to_value())
            .unwrap()
            .fetcher
            .is_none()
    );
    assert!(MediaItem::from_value(&json!("x")).is_none());
}

// H-44
#[test]
fn audio_formats_of_mime_types() {
    let cases = [
        ("audio/mpeg", "mp3"),
        ("audio/mp4", "m4a"),
        ("audio/ogg", "ogg"),
        ("audio/wav", "wav"),
        ("audio/flac", "flac"),
        ("audio/aiff", "aiff"),
        ("audio/webm", "webm"),
        ("audio/x-aiff", "aiff"),
        ("audio/x-flac", "flac"),
        ("audio/x-m4a", "m4a"),
        ("audio/x-wav", "wav"),
        ("Audio/OGG; codecs=opus", "ogg"),
        (" audio/MPEG ;rate=1", "mp3"),
        ("audio/x-custom", "x-custom"),
        ("application/ogg", "application/ogg"),
        ("audio/", "unknown"),
        ("", "unknown"),
        (";", "unknown"),
    ];
    for (mime, format) in cases {
        assert_eq!(audio_format(mime), format, "{mime:?}");
    }
}

// H-44
#[test]
fn mime_types_of_audio_formats() {
    let cases = [
        ("mp3", "audio/mpeg"),
        ("m4a", "audio/mp4"),
        ("ogg", "audio/ogg"),
        ("new", "audio/new"),
    ];
    for (format, mime) in cases {
        assert_eq!(audio_mime(format), mime);
    }
    for format in ["mp3", "m4a", "ogg", "wav", "flac", "aiff", "webm"] {
        assert_eq!(audio_format(&audio_mime(format)), format);
    }
}
