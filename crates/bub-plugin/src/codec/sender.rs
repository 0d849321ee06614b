//! Encoding of senders.

use bub_kernel::{Role, Sender};
use serde_json::{Value, json};

use super::{object_schema, optional_text};

/// Returns a sender as JSON.
pub(crate) fn encode_sender(sender: &Sender) -> Value {
    json!({
        "role": sender.role.name(), "channel": sender.channel, "chat_id": sender.chat_id,
        "id": sender.id, "name": sender.name,
    })
}

/// Returns the JSON Schema of a sender.
pub(crate) fn sender_schema() -> Value {
    let text = json!({"type": "string"});
    let roles: Vec<_> = Role::ALL.iter().map(|role| role.name()).collect();
    object_schema(
        &json!({"role": {"enum": roles}, "channel": text, "chat_id": text, "id": text, "name": text}),
    )
}

/// Decodes a sender. Missing fields are empty, and the default role is guest.
pub(crate) fn decode_sender(value: Option<&Value>) -> Sender {
    let field =
        |name: &str| optional_text(value.and_then(|value| value.get(name))).unwrap_or_default();
    Sender {
        role: Role::from_name(&field("role")).unwrap_or_default(),
        channel: field("channel"),
        chat_id: field("chat_id"),
        id: field("id"),
        name: field("name"),
    }
}
