//! Converts an error response to a [`ModelError`]. Its code decides first, then its status, then its text.
//!
//! The order matters. The text of a token rate limit resembles that of a context overflow, and a wrong classification
//! discards parts of conversations. Text therefore decides alone only if servers use the status for many errors, such
//! as 400 or 5xx, or if there is no status. For 403, 413 and 429, a few phrases in the text influence the decision
//! too. The rules are in `classify/rules.json`.

use std::time::Duration;

use crate::error::{ModelError, ModelErrorKind, RecoveryAction, short_message};

mod error_body;
mod retry_delay;
mod rules;

use error_body::ErrorBody;
pub(crate) use retry_delay::clamped_duration;
use rules::RULES;

/// Classifies an error response: an HTTP error, or an error object inside a stream with status 200.
///
/// `status` is the HTTP status. For an error inside a stream, it is the status in the error object, if it has one.
///
/// ```
/// use bub_model::{RecoveryAction, classify::classify};
///
/// let limit = br#"{"error":{"message":"You have exceeded token rate limit of your tier."}}"#;
/// let error = classify(Some(429), None, limit);
/// assert_eq!(error.action, RecoveryAction::Retry);
///
/// let overflow = br#"{"error":{"message":"exceed context limit: 199000 + 16384 > 200000"}}"#;
/// let error = classify(Some(400), None, overflow);
/// assert_eq!(error.action, RecoveryAction::ShrinkContext);
/// ```
pub fn classify(status: Option<u16>, retry_after: Option<Duration>, body: &[u8]) -> ModelError {
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
    if matches!(status, Some(413 | 429)) && RULES.too_large_for_rate.any_in(&text) {
        // A single request exceeds the limit per minute. Waiting never helps, a smaller request does.
        return RecoveryAction::ShrinkContext;
    }
    if let Some(action) = action_by_code(status, body_info) {
        return action;
    }
    match status {
        // A web page comes from a firewall or a country block, so the key is not the problem.
        Some(403) if body_info.is_html => RecoveryAction::NextModel,
        Some(403) if RULES.account.any_in(&text) || RULES.model.any_in(&text) => {
            RecoveryAction::NextModel
        }
        Some(401 | 403) => RecoveryAction::Reauthenticate,
        // 3xx: the base URL is probably wrong. Redirects are not followed, so that the key is not sent elsewhere.
        Some(300..=399 | 402 | 404 | 410 | 451 | 501) => RecoveryAction::NextModel,
        Some(413) => RecoveryAction::ShrinkContext,
        Some(429) if RULES.account.any_in(&text) => RecoveryAction::NextModel,
        Some(408 | 409 | 425 | 429 | 499) => RecoveryAction::Retry,
        Some(400..=499) => action_by_text(&text).unwrap_or(RecoveryAction::GiveUp),
        Some(_) | None => action_by_text(&text).unwrap_or(RecoveryAction::Retry),
    }
}

/// Returns the action for the first known code in the body. The statuses 401 and 413 are unambiguous, so they take
/// precedence over codes that contradict them.
fn action_by_code(status: Option<u16>, body_info: &ErrorBody) -> Option<RecoveryAction> {
    let mut codes = body_info.codes.iter();
    let action = *codes.find_map(|code| RULES.codes.get(code.as_str()))?;
    match (status, action) {
        // Status 413 means "too large". Ignore the code of a rate limit, because only a smaller request helps.
        (Some(413), RecoveryAction::Retry) => None,
        // 401 is unambiguous and takes precedence over the body.
        (Some(401), RecoveryAction::NextModel | RecoveryAction::Retry) => {
            Some(RecoveryAction::Reauthenticate)
        }
        _ => Some(action),
    }
}

/// Returns the action for the text of an error with an ambiguous status.
fn action_by_text(text: &str) -> Option<RecoveryAction> {
    let rules = [
        // Checked before `overflow`, because a token rate limit must never be classified as a context overflow.
        (&RULES.rate, RecoveryAction::Retry),
        (&RULES.overflow, RecoveryAction::ShrinkContext),
        (&RULES.auth, RecoveryAction::Reauthenticate),
        (&RULES.account, RecoveryAction::NextModel),
        (&RULES.model, RecoveryAction::NextModel),
        (&RULES.busy, RecoveryAction::Retry),
    ];
    rules
        .into_iter()
        .find(|(phrases, _)| phrases.any_in(text))
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
