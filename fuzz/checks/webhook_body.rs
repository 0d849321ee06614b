//! A body of any bytes is rejected, or gives a message of this channel without fields that only the
//! runtime may set.

use bub_http::webhook::{CHANNEL_NAME, WebhookOptions, parse_body};
use bub_kernel::Role;

pub(crate) fn check(input: &[u8]) {
    let Some(inbound) = parse_body(input, &WebhookOptions::default()) else {
        return;
    };
    let message = &inbound.message;
    assert!(!message.content().trim().is_empty());
    assert!(
        message
            .session_id()
            .is_some_and(|id| id.starts_with(&format!("{CHANNEL_NAME}:"))),
        "a session of another channel"
    );
    let sender = inbound.authenticated_sender().expect("a sender");
    assert_eq!(
        (sender.role, sender.channel.as_str()),
        (Role::Member, CHANNEL_NAME)
    );
    let context = message
        .field("context")
        .and_then(|context| context.as_object())
        .cloned()
        .unwrap_or_default();
    assert!(
        !context.keys().any(|key| key.starts_with('_')),
        "{context:?}"
    );
    serde_json::to_string(message).expect("a message that serializes");
}
