//! Encoding of senders.

use bub_kernel::{Result, Role, Sender};
use serde_json::{Value, json};

use super::{Wire, object_schema, optional_text};

impl Wire for Sender {
    fn encode(&self) -> Value {
        json!({
            "role": self.role.name(), "channel": self.channel, "chat_id": self.chat_id,
            "id": self.id, "name": self.name,
        })
    }

    /// Decodes a sender. Missing fields are empty, and the default role is guest.
    fn decode(value: Value) -> Result<Self> {
        let field = |name: &str| optional_text(value.get(name)).unwrap_or_default();
        Ok(Self {
            role: Role::from_name(&field("role")).unwrap_or_default(),
            channel: field("channel"),
            chat_id: field("chat_id"),
            id: field("id"),
            name: field("name"),
        })
    }

    fn schema() -> Value {
        let text = json!({"type": "string"});
        let roles = Role::ALL.map(Role::name);
        object_schema(
            &json!({"role": {"enum": roles}, "channel": text, "chat_id": text, "id": text, "name": text}),
        )
    }
}
