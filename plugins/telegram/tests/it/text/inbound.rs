//! Tests of the content that the model gets for a message, and of how the bot is addressed.

use bub_telegram::inbound::{BotIdentity, InboundMessage, InboundUpdate, convert_message};
use proptest::prelude::*;
use serde_json::{Value, json};

pub(crate) fn me() -> BotIdentity {
    BotIdentity {
        id: 99,
        username: "TestBot".to_owned(),
    }
}

/// Returns a message with some fields replaced.
pub(crate) fn message(fields: Value) -> Value {
    let mut message = json!({
        "message_id": 7, "date": 1_700_000_000, "chat": {"id": -5, "type": "private"},
        "from": {"id": 42, "is_bot": false, "first_name": "Ann", "last_name": "Lee", "username": "ann"},
    });
    let Value::Object(fields) = fields else {
        panic!("{fields} are no fields")
    };
    message.as_object_mut().unwrap().extend(fields);
    message
}

pub(crate) fn inbound_message(message: &Value) -> InboundMessage {
    match convert_message(message, false, &me()) {
        InboundUpdate::Message(inbound_message) => inbound_message,
        other => panic!("{other:?} of {message}"),
    }
}

fn group(fields: Value) -> Value {
    let mut message = message(fields);
    message["chat"]["type"] = json!("supergroup");
    message
}

// H-168: the keys, their order, omitted keys, and the format of the date.
#[test]
fn the_content_is_the_one_of_the_python_version() {
    let text = message(json!({"text": " Grüße 👋 \n"}));
    assert_eq!(
        inbound_message(&text).content(),
        "{\"message\":\" Grüße 👋 \\n\",\"message_id\":7,\"type\":\"text\",\"username\":\"ann\",\"full_name\":\"Ann Lee\",\
         \"sender_id\":\"42\",\"sender_is_bot\":false,\"date\":1700000000.0}"
    );
    // A sender without a user name and last name, and no sender, as in a channel.
    let nameless =
        message(json!({"text": "a", "from": {"id": 1, "is_bot": true, "first_name": "B"}}));
    assert_eq!(
        inbound_message(&nameless).content(),
        "{\"message\":\"a\",\"message_id\":7,\"type\":\"text\",\"full_name\":\"B\",\"sender_id\":\"1\",\"sender_is_bot\":true,\
         \"date\":1700000000.0}"
    );
    let without_sender = message(json!({"text": "a", "from": null}));
    assert_eq!(
        inbound_message(&without_sender).content(),
        "{\"message\":\"a\",\"message_id\":7,\"type\":\"text\",\"username\":\"\",\"full_name\":\"\",\"sender_id\":\"\",\
         \"date\":1700000000.0}"
    );
}

// H-168: the replied-to message comes last, with the same keys, its own links and its media.
#[test]
fn a_reply_tells_what_it_replies_to() {
    let reply = json!({
        "message_id": 3, "date": 1_600_000_000, "from": {"id": 99, "is_bot": true, "first_name": "Bot"},
        "photo": [{"file_id": "small"}, {"file_id": "big", "width": 2}], "caption": "see x.org",
        "caption_entities": [{"type": "url", "offset": 4, "length": 5}],
    });
    let inbound_message = inbound_message(&message(
        json!({"text": "why?", "reply_to_message": reply, "quote": {"text": "see"}}),
    ));
    let content: Value = serde_json::from_str(&inbound_message.content()).unwrap();
    assert_eq!(
        content["reply_to_message"].to_string(),
        "{\"message\":\"[Photo message] Caption: see x.org\",\"message_id\":3,\"type\":\"photo\",\"full_name\":\"Bot\",\
         \"sender_id\":\"99\",\"sender_is_bot\":true,\"date\":1600000000.0,\"links\":[\"x.org\"],\
         \"media\":{\"file_id\":\"big\",\"width\":2,\"mime_type\":\"image/jpeg\"}}"
    );
    let keys: Vec<&String> = content.as_object().unwrap().keys().collect();
    assert_eq!(keys[keys.len() - 2..], ["reply_to_message", "quote"]);
    assert_eq!(content["quote"], "see");
    assert_eq!(inbound_message.media.len(), 1);
}

// W-59: offsets count UTF-16 units of the text as it was sent, and may be invalid.
#[test]
fn links_are_found_by_utf16_offsets() {
    let entity = |kind: &str, offset: i64, length: i64| json!({"type": kind, "offset": offset, "length": length});
    let rows = [
        (
            "👋👋 https://a.org ok",
            vec![entity("url", 5, 13)],
            json!(["https://a.org"]),
        ),
        (
            "  \n é👨‍👩‍👧 a.org",
            vec![entity("url", 14, 5)],
            json!(["a.org"]),
        ),
        (
            "here",
            vec![json!({"type": "text_link", "offset": 0, "length": 4, "url": "https://b.org"})],
            json!(["https://b.org"]),
        ),
        (
            "a.org a.org",
            vec![entity("url", 0, 5), entity("url", 6, 5)],
            json!(["a.org"]),
        ),
        // A range beyond the end is shortened. A range that is outside of the text, negative, without a type, or within a
        // surrogate pair is ignored.
        ("a.org", vec![entity("url", 2, 100)], json!(["org"])),
        ("a.org", vec![entity("url", 9, 3)], Value::Null),
        (
            "a.org",
            vec![entity("url", -1, 3), entity("url", 0, -3)],
            Value::Null,
        ),
        ("👋a", vec![entity("url", 1, 1)], Value::Null),
        ("a👋", vec![entity("url", 0, 2)], Value::Null),
        (
            "a.org",
            vec![
                entity("url", 0, i64::MAX),
                entity("url", i64::MAX, i64::MAX),
            ],
            json!(["a.org"]),
        ),
        (
            "a.org",
            vec![
                json!(3),
                json!(null),
                json!({"type": "url"}),
                json!({"offset": 0, "length": 1}),
            ],
            Value::Null,
        ),
        ("", vec![entity("url", 0, 0)], Value::Null),
    ];
    for (text, entities, links) in rows {
        for (text_key, entities_key) in [("text", "entities"), ("caption", "caption_entities")] {
            let message = message(
                json!({text_key: text, entities_key: entities, "document": {"file_id": "f"}}),
            );
            let content: Value =
                serde_json::from_str(&inbound_message(&message).content()).unwrap();
            assert_eq!(content["links"], links, "{text:?} {entities:?}");
        }
    }
}

// H-169, W-59: how the bot is addressed in a group.
#[test]
fn in_groups_the_bot_has_to_be_addressed() {
    let from_bot = json!({"message_id": 1, "from": {"id": 99, "first_name": "b"}, "text": "x"});
    let rows = [
        (json!({"text": "hi"}), false),
        (json!({"text": "hi bub"}), true),
        (json!({"text": "BUB, hi"}), true),
        (json!({"text": "bub's"}), true),
        (json!({"text": "请bub帮我"}), true),
        (json!({"text": "a bubble"}), false),
        (json!({"text": "hubbub"}), false),
        (json!({"text": "bub_fan bub2 übub bubé буbub"}), false),
        (json!({"text": "@bub hi"}), false),
        (json!({"text": "hi @testbot!"}), true),
        (json!({"text": "hi @TestBot2 @TestBot_x x@testbot"}), false),
        (
            json!({"text": "see https://x.org/bub", "entities": [{"type": "url", "offset": 4, "length": 17}]}),
            false,
        ),
        (
            json!({"text": "👋 https://x.org/bub bub", "entities": [{"type": "url", "offset": 3, "length": 17}]}),
            true,
        ),
        (
            json!({"text": "hey you", "entities": [{"type": "text_mention", "offset": 4, "length": 3, "user": {"id": 99}}]}),
            true,
        ),
        (
            json!({"text": "hey you", "entities": [{"type": "text_mention", "offset": 4, "length": 3, "user": {"id": 98}}]}),
            false,
        ),
        (json!({"text": "hi", "reply_to_message": from_bot}), true),
        (
            json!({"text": "hi", "reply_to_message": {"from": {"id": 98}}}),
            false,
        ),
        // A reply to the start of a topic that the bot created is not a reply to the bot.
        (
            json!({"text": "hi", "reply_to_message": {"from": {"id": 99}, "forum_topic_created": {"name": "t"}}}),
            false,
        ),
        (json!({"photo": [{"file_id": "f"}]}), false),
        (
            json!({"photo": [{"file_id": "f"}], "caption": "bub?"}),
            true,
        ),
        (
            json!({"photo": [{"file_id": "f"}], "caption": "what"}),
            false,
        ),
        (
            json!({"photo": [{"file_id": "f"}], "reply_to_message": from_bot}),
            true,
        ),
        (json!({"location": {}, "reply_to_message": from_bot}), false),
        (
            json!({"text": "/bub hi", "entities": [{"type": "bot_command", "offset": 0, "length": 4}]}),
            true,
        ),
    ];
    for (fields, active) in rows {
        assert_eq!(
            inbound_message(&group(fields.clone())).is_active,
            active,
            "{fields}"
        );
    }
}

// H-169: private chats and channels.
#[test]
fn in_private_the_bot_is_always_addressed_and_in_channels_never() {
    let rows = [
        ("private", json!({"text": "hi"}), true),
        ("private", json!({"sticker": {"file_id": "f"}}), true),
        ("private", json!({"location": {}}), false),
        (
            "private",
            json!({"location": {"latitude": 1, "longitude": 2}}),
            true,
        ),
        ("channel", json!({"text": "bub"}), false),
        ("whatever", json!({"text": "bub"}), false),
    ];
    for (chat, fields, active) in rows {
        let mut message = message(fields.clone());
        message["chat"]["type"] = json!(chat);
        assert_eq!(
            inbound_message(&message).is_active,
            active,
            "{chat} {fields}"
        );
    }
    // Service messages of the platform are ignored.
    assert_eq!(
        convert_message(&message(json!({"new_chat_title": "x"})), false, &me()),
        InboundUpdate::Ignored
    );
}

// H-166, W-59: slash commands.
#[test]
fn commands_of_the_platform_are_read() {
    let start = |text: &str| {
        message(
            json!({"text": text, "entities": [{"type": "bot_command", "offset": 0, "length": 3}]}),
        )
    };
    let rows = [
        ("/start", Some(None)),
        ("/start payload", Some(None)),
        ("/START@testbot", Some(None)),
        ("/start@OtherBot", None),
        ("/bub", None),
        ("/bub  ", None),
        ("/bub@OtherBot hi", None),
        ("/bub hi  there", Some(Some("hi  there"))),
        ("/bub@TestBot hi", Some(Some("hi"))),
        ("/bub\nhi", Some(Some("hi"))),
        ("/help@OtherBot", None),
        // Text that is no command is text.
        ("/shrug oh well", Some(Some("/shrug oh well"))),
        ("/newer", Some(Some("/newer"))),
    ];
    for (text, expected) in rows {
        let reading = convert_message(&start(text), false, &me());
        match expected {
            Some(None) => assert_eq!(reading, InboundUpdate::Start, "{text}"),
            None => assert_eq!(reading, InboundUpdate::Ignored, "{text}"),
            Some(Some(words)) => {
                let InboundUpdate::Message(inbound_message) = reading else {
                    panic!("{text}: {reading:?}")
                };
                let content: Value = serde_json::from_str(&inbound_message.content()).unwrap();
                assert_eq!(content["message"], words, "{text}");
            }
        }
    }
    assert_eq!(
        convert_message(&start("/help"), false, &me()),
        InboundUpdate::Help
    );
    for (text, command) in [
        ("/new", ",new"),
        ("/NEW@testbot now", ",new"),
        ("/stop please", ",quit"),
        ("/status", ",status"),
        ("/usage", ",usage"),
        ("/model a:b", ",model a:b"),
        ("/help model", ",help model"),
    ] {
        let read = inbound_message(&start(text));
        assert!(read.is_command, "{text}");
        assert_eq!(read.content(), command, "{text}");
        // A forwarded or edited command is text.
        let mut forwarded = start(text);
        forwarded["forward_origin"] = json!({"type": "hidden_user", "date": 1});
        assert!(!inbound_message(&forwarded).is_command, "{text}");
    }
    // A command without an entity is text, except `/bub`.
    assert!(
        inbound_message(&message(json!({"text": "/etc/passwd"})))
            .content()
            .contains("/etc/passwd")
    );
    assert!(
        inbound_message(&message(json!({"text": "/bub hi"})))
            .content()
            .starts_with("{\"message\":\"hi\"")
    );
    assert_eq!(
        convert_message(&start("/start"), true, &me()),
        InboundUpdate::Ignored
    );
}

// H-168, W-33: comma commands count only if they address the bot, and only from their author.
#[test]
fn a_comma_is_a_command_only_for_the_bot() {
    let from_bot = json!({"message_id": 1, "from": {"id": 99, "first_name": "b"}, "text": "x"});
    let rows = [
        (message(json!({"text": "  ,help me \n"})), Some(",help me")),
        (message(json!({"text": "/bub ,help"})), Some(",help")),
        (message(json!({"text": "so, help"})), None),
        (
            message(json!({"photo": [{"file_id": "f"}], "caption": ",help"})),
            None,
        ),
        (
            message(
                json!({"text": ",help", "forward_origin": {"type": "hidden_user", "sender_user_name": "x"}}),
            ),
            None,
        ),
        (
            message(json!({"text": ",help", "via_bot": {"id": 5}})),
            None,
        ),
        (group(json!({"text": ", rm -rf x"})), None),
        (group(json!({"text": ", and then bub said"})), None),
        (group(json!({"text": "@TestBot ,help"})), Some(",help")),
        (group(json!({"text": "@TestBot2 ,help"})), None),
        (group(json!({"text": "/bub@testbot ,help"})), Some(",help")),
        (
            group(json!({"text": ",help", "reply_to_message": from_bot})),
            Some(",help"),
        ),
    ];
    for (message, command) in rows {
        let inbound_message = inbound_message(&message);
        assert_eq!(
            inbound_message
                .is_command
                .then(|| inbound_message.content())
                .as_deref(),
            command,
            "{message}"
        );
    }
    let InboundUpdate::Message(edited) =
        convert_message(&message(json!({"text": ",help"})), true, &me())
    else {
        panic!()
    };
    assert!(!edited.is_command);
}

// W-61: edits are corrections.
#[test]
fn an_edit_says_that_it_corrects() {
    let InboundUpdate::Message(inbound_message) = convert_message(
        &message(json!({"text": "b", "edit_date": 1_700_000_009})),
        true,
        &me(),
    ) else {
        panic!()
    };
    assert!(inbound_message.content().ends_with(
        "\"date\":1700000000.0,\"correction\":\"replaces the earlier version of this message\",\"edit_date\":1700000009.0}"
    ));
}

// Issue 22, point 5: the policy restricts turns with text of others.
#[test]
fn text_of_other_people_is_recognized() {
    let reply =
        |id: i64| json!({"text": "a", "reply_to_message": {"from": {"id": id}, "text": "b"}});
    for (fields, is_foreign) in [
        (json!({"text": "a"}), false),
        (reply(42), false),
        (reply(99), false),
        (reply(7), true),
        (
            json!({"text": "a", "reply_to_message": {"sender_chat": {"id": 1}, "text": "b"}}),
            true,
        ),
        (
            json!({"text": "a", "reply_to_message": {"from": {"id": 42}, "forward_origin": {"type": "channel"}}}),
            true,
        ),
        (
            json!({"text": "a", "external_reply": {"origin": {"type": "user"}}}),
            true,
        ),
        (json!({"text": "a", "via_bot": {"id": 3}}), true),
        (
            json!({"text": "a", "forward_origin": {"type": "hidden_user"}}),
            true,
        ),
        (
            json!({"text": "a", "forward_origin": {"sender_user": {"id": 7}}}),
            true,
        ),
        (
            json!({"text": "a", "forward_origin": {"sender_user": {"id": 42}}}),
            false,
        ),
    ] {
        let converted = inbound_message(&message(fields.clone()));
        assert_eq!(converted.has_foreign_text, is_foreign, "{fields}");
    }
}

#[test]
fn a_forwarded_message_says_where_it_comes_from() {
    let rows = [
        (
            json!({"type": "user", "date": 5, "sender_user": {"id": 8, "first_name": "Eve", "username": "eve"}}),
            json!({"type": "user", "name": "Eve", "username": "eve", "id": "8", "date": 5.0}),
        ),
        (
            json!({"type": "hidden_user", "date": 5, "sender_user_name": "Eve"}),
            json!({"type": "hidden_user", "name": "Eve", "date": 5.0}),
        ),
        (
            json!({"type": "channel", "date": 5, "chat": {"id": -8, "title": "News"}, "message_id": 4}),
            json!({"type": "channel", "name": "News", "id": "-8", "message_id": 4, "date": 5.0}),
        ),
        (
            json!({"type": "chat", "date": 5, "sender_chat": {"id": -8, "title": "Team"}}),
            json!({"type": "chat", "name": "Team", "id": "-8", "date": 5.0}),
        ),
    ];
    for (origin, expected) in rows {
        let inbound_message =
            inbound_message(&message(json!({"text": "a", "forward_origin": origin})));
        let content: Value = serde_json::from_str(&inbound_message.content()).unwrap();
        assert_eq!(content["forward_origin"], expected);
    }
}

/// Generates arbitrary JSON.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3_i64..12).prop_map(Value::from),
        prop::sample::select(vec![
            "url",
            "mention",
            "bot_command",
            "text_link",
            "👋bub @TestBot",
            "/bub ,x",
            ",x",
            "group",
            ""
        ])
        .prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 8, |inner| {
        let key = prop::sample::select(vec![
            "type",
            "offset",
            "length",
            "url",
            "user",
            "id",
            "file_id",
            "file_name",
            "mime_type",
            "from",
            "text",
            "caption",
            "entities",
            "caption_entities",
            "photo",
            "document",
            "sticker",
            "chat",
            "date",
            "reply_to_message",
            "quote",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..8).prop_map(|fields| fields
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect()),
        ]
    })
}

proptest! {
    // Any message can be converted, and the content is the command or one JSON object.
    #[test]
    fn any_message_is_read(fields in any_json(), is_edit in any::<bool>()) {
        let given = if fields.is_object() { message(fields) } else { fields };
        if let InboundUpdate::Message(inbound_message) = convert_message(&given, is_edit, &me()) {
            let content = inbound_message.content();
            prop_assert!(inbound_message.is_command || serde_json::from_str::<Value>(&content).unwrap()["message"].is_string());
        }
    }
}
