//! The envelopes that channels build.

use bub_kernel::{ChannelMessage, Envelope, MediaItem, MediaKind, MessageKind};
use serde_json::json;

// H-41
#[test]
fn a_message_has_the_usual_fields_with_their_defaults() {
    let message: Envelope = ChannelMessage::new("cli:x", "cli", "hello").into();
    assert_eq!(
        serde_json::to_value(&message).unwrap(),
        json!({
            "session_id": "cli:x", "channel": "cli", "content": "hello", "chat_id": "default",
            "is_active": false, "kind": "normal",
            "context": {"channel": "$cli", "chat_id": "default"}, "output_channel": "cli",
        })
    );
}

// H-41
#[test]
fn every_field_can_be_set() {
    let message: Envelope = ChannelMessage::new("s", "telegram", ",help")
        .chat_id("42")
        .active()
        .kind("command")
        .context("sender", "ann")
        .output_channel("null")
        .media(MediaItem::from_url(MediaKind::Image, "image/png", "u"))
        .into();
    assert_eq!(
        (message.kind(), message.is_active()),
        (MessageKind::Command, true)
    );
    assert_eq!(message.chat_id().unwrap(), "42");
    assert_eq!(message.output_channel().unwrap(), "null");
    assert_eq!(message.context_value("sender"), Some(&json!("ann")));
    assert_eq!(message.media().len(), 1);
    assert_eq!(
        message.field("media"),
        Some(&json!([{"type": "image", "mime_type": "image/png", "url": "u"}]))
    );
}

// H-41
#[test]
fn an_empty_output_channel_is_the_channel() {
    let message: Envelope = ChannelMessage::new("s", "cli", "x")
        .output_channel("")
        .into();
    assert_eq!(message.output_channel().unwrap(), "cli");
}

// H-41, W-58: channel and chat are overwritten in the message's context and keep their positions.
#[test]
fn the_context_always_names_channel_and_chat() {
    let message: Envelope = ChannelMessage::new("s", "cli", "x")
        .chat_id("room")
        .context("channel", "forged")
        .context("sender", "ann")
        .context("chat_id", "forged")
        .into();
    assert_eq!(
        message.context_str(),
        "channel=$cli|sender=ann|chat_id=room"
    );
}

// H-41
#[test]
fn the_context_line_leaves_private_keys_out_and_keeps_the_order() {
    let message: Envelope = ChannelMessage::new("s", "cli", "x")
        .context("z", 1)
        .context("_secret", "no")
        .context("flag", true)
        .context("list", json!([1, "a"]))
        .into();
    assert_eq!(
        message.context_str(),
        r#"z=1|flag=true|list=[1,"a"]|channel=$cli|chat_id=default"#
    );
}
