//! From a failed answer to a [`ModelError`]: status and structured code first, text last.

use std::time::Duration;

use serde_json::Value;

use crate::error::{Action, ErrorKind, ModelError, looks_like_html};
use crate::wire::Wire;

/// Classifies an error answer: an HTTP error, or an error object found inside a 200 stream.
///
/// `status` is that of the HTTP answer; for an error inside a stream it is what the error object
/// claims, if anything.
pub fn classify(status: Option<u16>, retry_after: Option<Duration>, body: &[u8], _wire: Wire) -> ModelError {
    let text = String::from_utf8_lossy(body);
    let (code, message) = code_and_message(&text);
    let action = match status {
        Some(401 | 403) => Action::Reauthenticate,
        Some(404) => Action::NextModel,
        Some(413) => Action::ShrinkContext,
        Some(408 | 409 | 429 | 500..=599) | None => Action::Retry,
        Some(_) => Action::GiveUp,
    };
    let mut error = ModelError::new(ErrorKind::Provider, action, message);
    error.status = status;
    error.code = code;
    error.retry_after = retry_after;
    error
}

fn code_and_message(text: &str) -> (Option<String>, String) {
    let parsed: Option<Value> = serde_json::from_str(text).ok();
    let Some(parsed) = parsed else {
        let message = if text.trim().is_empty() { "no error text" } else { text };
        debug_assert!(!looks_like_html(message) || text == message);
        return (None, message.to_owned());
    };
    let body = parsed.as_array().and_then(|list| list.first()).unwrap_or(&parsed);
    let error = body.get("error").filter(|error| !error.is_null()).unwrap_or(body);
    let code = ["code", "type", "status"].iter().find_map(|key| match error.get(key)? {
        Value::String(code) if !code.is_empty() => Some(code.clone()),
        _ => None,
    });
    let message = error
        .as_str()
        .or_else(|| ["message", "detail"].iter().find_map(|key| error.get(key)?.as_str()))
        .map_or_else(|| error.to_string(), str::to_owned);
    (code, message)
}
