//! Building the prompt for the model.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bub_kernel::{
    BoxFuture, ChannelMessage, Envelope, MediaFetcher, MediaItem, MediaKind, MessageKind, Prompt,
    Result,
};
use bub_testkit::TINY_PNG;
use serde_json::{Value, json};

use crate::harness::AgentFixture;

async fn prompt_of(message: impl Into<Envelope>) -> Prompt {
    let turn = AgentFixture::new().loaded(message.into()).await;
    turn.build_prompt(turn.message()).await.unwrap()
}

// S-30, H-100
#[tokio::test]
async fn text_is_preceded_by_context_and_date() {
    let prompt = prompt_of(ChannelMessage::new("s", "cli", "hello there").chat_id("local")).await;
    let text = prompt.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "channel=$cli|chat_id=local");
    assert_eq!(lines[2], "hello there");
    let date = lines[1]
        .strip_prefix("---Date: ")
        .and_then(|rest| rest.strip_suffix("---"))
        .unwrap();
    assert!(date.parse::<jiff::Timestamp>().is_ok(), "{date}");
    assert_eq!(date.len(), "2026-11-15T18:09:55+00:00".len(), "{date}");
}

// S-30, S-39, H-100: no context, no prefix.
#[tokio::test]
async fn text_without_context_stays_as_it_is() {
    assert_eq!(
        prompt_of(Envelope::from_text("hello")).await,
        Prompt::from("hello")
    );
}

// S-30: a command stays unchanged, with or without media, and its reply is marked.
#[tokio::test]
async fn a_command_is_passed_on_as_typed() {
    let image = MediaItem::from_url(MediaKind::Image, "image/png", "https://example.com/a.png");
    let command = || ChannelMessage::new("s", "cli", ",help  me").media(image.clone());
    assert_eq!(prompt_of(command()).await, Prompt::from(",help  me"));
    let result = AgentFixture::echoing().turn(command()).await.unwrap();
    assert_eq!(result.outbounds[0].kind(), MessageKind::Command);
    // P-47: white space before the comma does not matter; other text does.
    for (text, is_command) in [(" ,help", true), ("see ,help", false)] {
        let prompt = prompt_of(ChannelMessage::new("s", "cli", text)).await;
        assert_eq!(prompt == Prompt::from(text), is_command, "{text}");
    }
}

struct FakeFetcher(Option<&'static [u8]>);

impl MediaFetcher for FakeFetcher {
    fn fetch(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>>> {
        Box::pin(std::future::ready(Ok(self.0.map(<[u8]>::to_vec))))
    }
}

fn fetched(kind: MediaKind, mime: &str, bytes: Option<&'static [u8]>) -> MediaItem {
    MediaItem::from_fetcher(kind, mime, Arc::new(FakeFetcher(bytes)))
}

// S-30, H-101
#[tokio::test]
async fn media_become_parts_after_the_text() {
    let url = "https://example.com/a.png";
    let png = format!("data:image/png;base64,{}", STANDARD.encode(TINY_PNG));
    let cases: Vec<(MediaItem, Option<Value>)> = vec![
        (
            MediaItem::from_url(MediaKind::Image, "image/png", url),
            Some(json!({"type": "image_url", "image_url": {"url": url}})),
        ),
        (
            fetched(MediaKind::Image, "image/png", Some(TINY_PNG)),
            Some(json!({"type": "image_url", "image_url": {"url": png}})),
        ),
        (
            fetched(MediaKind::Video, "video/mp4", Some(b"abc")),
            Some(json!({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,YWJj"}})),
        ),
        (
            fetched(MediaKind::Audio, "audio/mpeg", Some(b"abc")),
            Some(json!({"type": "input_audio", "input_audio": {"data": "YWJj", "format": "mp3"}})),
        ),
        // Remote audio, documents that are not text and media that cannot be fetched are omitted; the context names
        // skipped files.
        (
            MediaItem::from_url(MediaKind::Audio, "audio/mpeg", "https://example.com/a.mp3"),
            None,
        ),
        (
            fetched(MediaKind::Document, "application/pdf", Some(b"abc")),
            None,
        ),
        (fetched(MediaKind::Image, "image/png", None), None),
    ];
    for (item, expected) in cases {
        let prompt = prompt_of(Envelope::from(
            ChannelMessage::new("s", "cli", "look").media(item.clone()),
        ))
        .await;
        match (prompt, expected) {
            (Prompt::Text(text), None) => {
                assert!(text.ends_with("look"));
                let note = match item.kind {
                    MediaKind::Image => "files_not_read=image (the channel provided no content)",
                    MediaKind::Audio => {
                        "files_not_read=audio (providers accept audio only as a file, not as a URL)"
                    }
                    MediaKind::Document => {
                        "files_not_read=document (unsupported file type: only text, PDF, Office documents, images, audio and video can be read)"
                    }
                    kind => panic!("{kind:?}"),
                };
                assert!(text.contains(note), "{text}");
            }
            (Prompt::Parts(parts), Some(expected)) => {
                assert!(parts[0]["text"].as_str().unwrap().ends_with("look"));
                assert_eq!(parts[1..], [expected], "{item:?}");
            }
            (prompt, expected) => panic!("{item:?}: {prompt:?}, expected {expected:?}"),
        }
    }
}
