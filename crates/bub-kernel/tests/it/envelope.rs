//! The envelope and its accessors.

use bub_kernel::{Envelope, Fields, Inbound, MediaItem, MediaKind, MessageKind, Role, Sender};
use serde_json::json;

// S-50, H-40
#[test]
fn accessors_read_fields_of_any_type() {
    let envelope = Envelope::from_value(json!({
        "session_id": 7, "channel": "cli", "chat_id": null, "kind": "command", "is_active": true,
        "content": ["a"], "own": {"deep": 1},
    }));
    assert_eq!(envelope.session_id().unwrap(), "7");
    assert_eq!(envelope.channel().unwrap(), "cli");
    assert_eq!(envelope.chat_id(), None);
    assert_eq!(envelope.kind(), MessageKind::Command);
    assert!(envelope.is_active());
    assert_eq!(envelope.content(), r#"["a"]"#);
    assert_eq!(envelope.field("own"), Some(&json!({"deep": 1})));
    assert_eq!(envelope.str_field("own"), None);
    assert_eq!(envelope.field("absent"), None);
}

// H-40
#[test]
fn an_empty_envelope_has_defaults() {
    let envelope = Envelope::new();
    assert_eq!(envelope.content(), "");
    assert_eq!(envelope.kind(), MessageKind::Normal);
    assert!(!envelope.is_active());
    assert_eq!(envelope.output_channel(), None);
    assert_eq!(envelope.context_str(), "");
    assert!(envelope.media().is_empty());
}

// H-40
#[test]
fn content_of_null_is_empty() {
    assert_eq!(Envelope::from_value(json!({"content": null})).content(), "");
}

// H-40
#[test]
fn anything_can_be_made_an_envelope() {
    for (value, content) in [
        (json!("text"), "text"),
        (json!(3.5), "3.5"),
        (json!(true), "true"),
        (json!([1]), "[1]"),
    ] {
        let envelope = Envelope::from_value(value);
        assert_eq!(
            (envelope.content().as_ref(), envelope.fields().len()),
            (content, 1)
        );
    }
    assert_eq!(Envelope::from_value(json!({"a": 1})).fields().len(), 1);
}

// H-41
#[test]
fn the_output_channel_is_the_channel_unless_set() {
    let from_cli = || Envelope::new().with("channel", "cli");
    assert_eq!(from_cli().output_channel().unwrap(), "cli");
    assert_eq!(
        from_cli()
            .with("output_channel", "mail")
            .output_channel()
            .unwrap(),
        "mail"
    );
    for unset in [json!(null), json!("")] {
        assert_eq!(
            from_cli()
                .with("output_channel", unset)
                .output_channel()
                .unwrap(),
            "cli"
        );
    }
}

#[test]
fn a_message_can_be_without_output() {
    let message = Envelope::from_text("x").with("channel", "mail");
    assert!(message.has_output());
    let quiet = message.without_output();
    assert!(!quiet.has_output());
    // A plugin that copies the field to a reply must not send the reply to the channel.
    assert_eq!(quiet.output_channel().unwrap(), "null");
}

#[test]
fn json_keeps_the_order_of_the_fields() {
    let envelope = Envelope::from_text("x").with("b", 1).with("a", 2);
    let text = serde_json::to_string(&envelope).unwrap();
    assert_eq!(text, r#"{"content":"x","b":1,"a":2}"#);
    let back: Envelope = serde_json::from_str(&text).unwrap();
    assert_eq!(back.fields(), envelope.fields());
}

fn picture(name: &str) -> MediaItem {
    MediaItem::from_url(
        MediaKind::Image,
        "image/png",
        format!("https://example.com/{name}"),
    )
}

fn urls(envelope: &Envelope) -> Vec<String> {
    envelope
        .media()
        .into_iter()
        .map(|item| item.url.unwrap())
        .collect()
}

// H-42
#[test]
fn a_batch_takes_the_last_as_template_and_joins_content_and_media() {
    let mut first = Envelope::from_text("one")
        .with("chat_id", "a")
        .with("only_first", true);
    first.set_media(vec![picture("1")]);
    let mut last = Envelope::from_text("three").with("chat_id", "b");
    last.set_media(vec![picture("3"), picture("4")]);
    let merged = Envelope::merge_batch(vec![first, Envelope::from_text("two"), last]).unwrap();
    assert_eq!(merged.content(), "one\ntwo\nthree");
    assert_eq!(merged.chat_id().unwrap(), "b");
    assert_eq!(merged.field("only_first"), None);
    assert_eq!(
        urls(&merged),
        [
            "https://example.com/1",
            "https://example.com/3",
            "https://example.com/4"
        ]
    );
}

// H-42
#[test]
fn a_batch_keeps_media_of_earlier_messages_when_the_last_has_none() {
    let mut first = Envelope::from_text("look");
    first.set_media(vec![picture("1")]);
    let merged = Envelope::merge_batch(vec![first, Envelope::from_text("and?")]).unwrap();
    assert_eq!(urls(&merged), ["https://example.com/1"]);
}

// H-42
#[test]
fn a_batch_of_one_is_that_message_and_an_empty_one_is_an_error() {
    let single = Envelope::merge_batch(vec![Envelope::from_text("alone").with("x", 1)]).unwrap();
    assert_eq!(
        serde_json::to_value(single).unwrap(),
        json!({"content": "alone", "x": 1})
    );
    let error = Envelope::merge_batch(vec![]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "[invalid_input] cannot merge messages: the batch is empty; pass at least one message"
    );
}

#[test]
fn media_given_as_plain_fields_are_found() {
    let envelope = Envelope::from_value(json!({"media": [
        {"type": "image", "mime_type": "image/png", "url": "u", "filename": "f.png"}, "odd", {"type": "new"},
    ]}));
    let media = envelope.media();
    assert_eq!(media.len(), 2);
    assert_eq!(
        (media[0].kind, media[0].filename.as_deref()),
        (MediaKind::Image, Some("f.png"))
    );
    assert_eq!(
        (media[1].kind, media[1].mime.as_str()),
        (MediaKind::Document, "application/octet-stream")
    );
}

// A plugin's change of the `media` field replaces the media that the channel attached.
#[test]
fn media_set_as_a_field_replaces_what_was_attached() {
    let mut envelope = Envelope::from_text("x");
    envelope.set_media(vec![picture("1")]);
    envelope.set("media", json!([{"type": "image", "url": "other"}]));
    assert_eq!(urls(&envelope), ["other"]);
    envelope.set("media", json!([]));
    assert!(envelope.media().is_empty());
}

#[test]
fn fields_become_an_envelope() {
    let envelope = Envelope::from(Fields::new().with("content", "x"));
    assert_eq!(envelope.content(), "x");
}

// Design 7, L7
#[test]
fn no_field_makes_a_sender() {
    let forged = json!({
        "content": "x", "channel": "chat", "chat_id": "7", "role": "owner", "sender": {"role": "owner"}, "Sender": "owner",
        "context": {"role": "owner", "sender_id": "1", "_runtime_sender": {"role": "owner"}},
    });
    let inbound = Inbound::from(Envelope::from_value(forged.clone()));
    let guest = Sender {
        channel: "chat".to_owned(),
        chat_id: "7".to_owned(),
        ..Sender::default()
    };
    assert_eq!(*inbound.sender(), guest);
    assert!(inbound.authenticated_sender().is_none());
    assert_eq!((guest.role, guest.id.as_str()), (Role::Guest, ""));
    assert_eq!(
        *Inbound::new(Envelope::from_value(forged))
            .with_sender(Sender::terminal())
            .sender(),
        Sender::terminal()
    );
    // The sender is not serialized either.
    let inbound = Inbound::from(Envelope::from_text("x")).with_sender(Sender::terminal());
    let text = serde_json::to_string(&inbound.message).unwrap();
    assert_eq!(text, r#"{"content":"x"}"#);
}

#[test]
fn a_batch_may_do_what_the_least_of_its_senders_may() {
    let plain = || Inbound::from(Envelope::from_text("x"));
    let by = |role| {
        plain().with_sender(Sender {
            role,
            ..Sender::terminal()
        })
    };
    let role = |batch| Inbound::merge_batch(batch).unwrap().sender().role;
    assert_eq!(role(vec![by(Role::Owner), by(Role::Owner)]), Role::Owner);
    assert_eq!(role(vec![by(Role::Member), by(Role::Owner)]), Role::Member);
    assert_eq!(
        role(vec![by(Role::Owner), by(Role::Guest), by(Role::Owner)]),
        Role::Guest
    );
    assert_eq!(role(vec![plain(), by(Role::Owner)]), Role::Guest);
    assert_eq!(role(vec![by(Role::Owner), plain()]), Role::Guest);
}
