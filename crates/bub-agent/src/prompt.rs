//! Builds the prompt for the model from a message.

use bub_kernel::{Envelope, MessageKind, Prompt, Result};
use jiff::Zoned;
use serde_json::{Value, json};

use crate::attachments::AttachmentReader;

/// Builds the prompt of a message. A comma command is used as typed. For other messages, the context line and the date
/// precede the text, and each attached file that can be read becomes a content part of the prompt. The context names
/// the stored files, and those that cannot be read.
pub(crate) async fn build_prompt(
    message: &Envelope,
    reader: &AttachmentReader<'_>,
) -> Result<Prompt> {
    let content = message.content();
    if message.is_command() {
        return Ok(Prompt::Text(content.into_owned()));
    }
    let (mut parts, mut saved, mut unread) = (Vec::new(), Vec::new(), Vec::new());
    for item in message.media() {
        let attachment = reader.read(&item).await;
        parts.extend(attachment.part);
        saved.extend(attachment.saved);
        if let Some(error) = attachment.problem {
            let name = item.filename.as_deref().unwrap_or(item.kind.name());
            let reason = error.message();
            tracing::warn!(file = name, error = reason, "prompt.file_not_read");
            unread.push(format!("{name} ({})", error.message()));
        }
    }
    let text = prepend_context(&context_with_files(message, saved, unread), &content);
    if parts.is_empty() {
        return Ok(Prompt::Text(text));
    }
    parts.insert(0, json!({"type": "text", "text": text}));
    Ok(Prompt::Parts(parts))
}

/// Returns the kind of a message. A comma command always has the kind `command`.
pub(crate) fn message_kind(message: &Envelope) -> MessageKind {
    if message.is_command() {
        MessageKind::Command
    } else {
        message.kind()
    }
}

/// Returns the context line of a message: its context as `key=value` pairs. Adds the paths of stored files, and the
/// attached files that cannot be read, each with the reason.
fn context_with_files(message: &Envelope, saved: Vec<String>, unread: Vec<String>) -> String {
    if saved.is_empty() && unread.is_empty() {
        return message.context_str();
    }
    let context = message.field("context").and_then(Value::as_object);
    let mut context = context.cloned().unwrap_or_default();
    for (key, mut names) in [("files_saved", saved), ("files_not_read", unread)] {
        let already_listed = context.get(key).and_then(Value::as_str);
        names.splice(0..0, already_listed.map(str::to_owned));
        if !names.is_empty() {
            context.insert(key.to_owned(), names.join(", ").into());
        }
    }
    Envelope::new().with("context", context).context_str()
}

/// Returns the text with the context line and the date before it. If the context line is empty, returns the text
/// unchanged.
fn prepend_context(context: &str, text: &str) -> String {
    if context.is_empty() {
        return text.to_owned();
    }
    let date = Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
    format!("{context}\n---Date: {date}---\n{text}")
}
