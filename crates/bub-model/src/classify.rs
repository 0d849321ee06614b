//! Converts an error response to a [`ModelError`]: by its code, then by its status, then by its text.
//!
//! The order matters. The text of a token rate limit resembles that of a context overflow, and a wrong classification
//! discards parts of conversations. Text is therefore only used for statuses that servers use for many errors (400,
//! 5xx, and no status inside a stream). The rules are tables in `classify/tables.rs`.

use std::time::Duration;

use crate::error::{ModelError, ModelErrorKind, RecoveryAction, short_message};
use crate::wire::WireFormat;

mod error_body;
mod retry_delay;
mod tables;

use error_body::ErrorBody;
use tables::{
    ACCOUNT_TEXTS, AUTH_TEXTS, BUSY_TEXTS, CODES, MODEL_TEXTS, OVERFLOW_TEXTS, RATE_TEXTS,
    TOO_LARGE_FOR_RATE_TEXTS, has_any_phrase,
};

/// Classifies an error response: an HTTP error, or an error object inside a stream with status 200.
///
/// `status` is the HTTP status. For an error inside a stream, it is the status in the error object, if it has one.
///
/// ```
/// use bub_model::{RecoveryAction, WireFormat, classify::classify};
///
/// let limit = br#"{"error":{"message":"You have exceeded token rate limit of your tier."}}"#;
/// let error = classify(Some(429), None, limit, WireFormat::ChatCompletions);
/// assert_eq!(error.action, RecoveryAction::Retry);
///
/// let overflow = br#"{"error":{"message":"exceed context limit: 199000 + 16384 > 200000"}}"#;
/// let error = classify(Some(400), None, overflow, WireFormat::Messages);
/// assert_eq!(error.action, RecoveryAction::ShrinkContext);
/// ```
pub fn classify(
    status: Option<u16>,
    retry_after: Option<Duration>,
    body: &[u8],
    _wire: WireFormat,
) -> ModelError {
    let body_info = ErrorBody::parse(body);
    // Inside a stream the HTTP status is always 200; use the status in the error object instead.
    let status = status.filter(|status| *status >= 300).or(body_info.status);
    let action = choose_action(status, &body_info);
    let mut error = ModelError::new(
        ModelErrorKind::Provider,
        action,
        user_message(status, &body_info),
    );
    error.status = status;
    error.code = body_info.display_code(status);
    error.retry_after = retry_after
        .or(body_info.retry_after)
        .filter(|_| action == RecoveryAction::Retry);
    error
}

fn choose_action(status: Option<u16>, body_info: &ErrorBody) -> RecoveryAction {
    let text = body_info.text.to_lowercase();
    if matches!(status, Some(413 | 429)) && has_any_phrase(TOO_LARGE_FOR_RATE_TEXTS, &text) {
        // A single request exceeds the limit per minute. Waiting never helps, a smaller request does.
        return RecoveryAction::ShrinkContext;
    }
    if let Some(action) = action_by_code(status, body_info) {
        return action;
    }
    match status {
        Some(401) => RecoveryAction::Reauthenticate,
        Some(403) => forbidden_action(body_info, &text),
        // 3xx: the base URL is probably wrong. Redirects are not followed, so that the key is not sent elsewhere.
        Some(300..=399 | 402 | 404 | 410 | 451 | 501) => RecoveryAction::NextModel,
        Some(413) => RecoveryAction::ShrinkContext,
        Some(429) => rate_limit_action(&text),
        Some(408 | 409 | 425 | 499) => RecoveryAction::Retry,
        Some(400..=499) => action_by_text(&text).unwrap_or(RecoveryAction::GiveUp),
        Some(_) | None => action_by_text(&text).unwrap_or(RecoveryAction::Retry),
    }
}

/// Returns the action for the codes in the body. An unambiguous status takes precedence over a vague code.
fn action_by_code(status: Option<u16>, body_info: &ErrorBody) -> Option<RecoveryAction> {
    let action_for = |code: &String| {
        CODES
            .iter()
            .find(|(name, _)| name == code)
            .map(|(_, action)| *action)
    };
    let action = body_info.codes.iter().find_map(action_for)?;
    match (status, action) {
        // "Too large" with the code of a rate limit needs a smaller request, not a later one.
        (Some(413), RecoveryAction::Retry) => None,
        // 401 is unambiguous and takes precedence over the body.
        (Some(401), RecoveryAction::NextModel | RecoveryAction::Retry) => {
            Some(RecoveryAction::Reauthenticate)
        }
        _ => Some(action),
    }
}

fn forbidden_action(body_info: &ErrorBody, text: &str) -> RecoveryAction {
    if body_info.is_html || has_any_phrase(ACCOUNT_TEXTS, text) || has_any_phrase(MODEL_TEXTS, text)
    {
        // A web page comes from a firewall or a country block, so the key is not the problem.
        return RecoveryAction::NextModel;
    }
    RecoveryAction::Reauthenticate
}

fn rate_limit_action(text: &str) -> RecoveryAction {
    if has_any_phrase(ACCOUNT_TEXTS, text) {
        RecoveryAction::NextModel
    } else {
        RecoveryAction::Retry
    }
}

/// Returns the action for the text of an error with an ambiguous status.
fn action_by_text(text: &str) -> Option<RecoveryAction> {
    let rules = [
        // Before overflow, because "token rate limit" must never be classified as one.
        (RATE_TEXTS, RecoveryAction::Retry),
        (OVERFLOW_TEXTS, RecoveryAction::ShrinkContext),
        (AUTH_TEXTS, RecoveryAction::Reauthenticate),
        (ACCOUNT_TEXTS, RecoveryAction::NextModel),
        (MODEL_TEXTS, RecoveryAction::NextModel),
        (BUSY_TEXTS, RecoveryAction::Retry),
    ];
    rules
        .into_iter()
        .find(|(texts, _)| has_any_phrase(texts, text))
        .map(|(_, action)| action)
}

/// Returns the error message for users in one line. A web page is reduced to its title.
fn user_message(status: Option<u16>, body_info: &ErrorBody) -> String {
    let text = short_message(&body_info.text);
    match (status, text.is_empty()) {
        (Some(300..=399), _) => {
            "the server redirects, and bub does not follow redirects; check the base URL".into()
        }
        (Some(407), _) => "the proxy requires a login; add it to the proxy's URL".into(),
        (_, true) => "the provider returned an error without a message".into(),
        (_, false) if body_info.is_html => format!("received a web page: {text}"),
        (_, false) => text,
    }
}

#[cfg(test)]
mod tests;
