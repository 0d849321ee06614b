//! Any bytes and any JSON are read as a message whose content is a command or one JSON object.

use bub_telegram::inbound::{BotIdentity, InboundUpdate, convert_message};
use serde_json::{Value, json};

pub(crate) fn check(input: &[u8]) {
    let message = serde_json::from_slice(input).unwrap_or_else(|_| {
        // Not JSON: a text with entities at positions that the first bytes select.
        let entities: Vec<Value> = input
            .chunks_exact(3)
            .take(4)
            .map(|bytes| {
                let kinds = ["url", "text_link", "mention", "text_mention", "bot_command", "email"];
                json!({"type": kinds[usize::from(bytes[0]) % kinds.len()], "offset": bytes[1], "length": bytes[2], "url": "u"})
            })
            .collect();
        json!({"text": String::from_utf8_lossy(input), "entities": entities, "chat": {"id": 1, "type": "group"}})
    });
    let me = BotIdentity {
        id: 1,
        username: "b_bot".to_owned(),
    };
    for is_edit in [false, true] {
        if let InboundUpdate::Message(inbound_message) = convert_message(&message, is_edit, &me) {
            let content = inbound_message.content();
            assert!(
                inbound_message.is_command
                    || serde_json::from_str::<Value>(&content)
                        .is_ok_and(|content| content.is_object())
            );
        }
    }
}
