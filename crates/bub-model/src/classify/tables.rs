//! Tables for classifying errors. Add new codes and phrases of servers here.

use crate::error::RecoveryAction;

/// Machine-readable codes, types, statuses and reasons, in lower case with `_`.
///
/// Codes that servers use for many errors (`invalid_request_error`, `server_error`, `bad_request`) are not listed,
/// because they do not imply an action.
pub(super) const CODES: &[(&str, RecoveryAction)] = &[
    ("context_length_exceeded", RecoveryAction::ShrinkContext),
    ("context_window_exceeded", RecoveryAction::ShrinkContext),
    (
        "context_window_exceeded_error",
        RecoveryAction::ShrinkContext,
    ),
    ("contextwindowexceedederror", RecoveryAction::ShrinkContext),
    ("exceed_context_size_error", RecoveryAction::ShrinkContext),
    (
        "model_context_window_exceeded",
        RecoveryAction::ShrinkContext,
    ),
    (
        "model_max_prompt_tokens_exceeded",
        RecoveryAction::ShrinkContext,
    ),
    ("prompt_too_long", RecoveryAction::ShrinkContext),
    ("input_too_long", RecoveryAction::ShrinkContext),
    ("string_above_max_length", RecoveryAction::ShrinkContext),
    ("tokens_limit_reached", RecoveryAction::ShrinkContext),
    ("request_too_large", RecoveryAction::ShrinkContext),
    ("api_key_invalid", RecoveryAction::Reauthenticate),
    ("api_key_expired", RecoveryAction::Reauthenticate),
    ("authentication_error", RecoveryAction::Reauthenticate),
    ("expired_token", RecoveryAction::Reauthenticate),
    ("invalid_api_key", RecoveryAction::Reauthenticate),
    ("invalid_authentication", RecoveryAction::Reauthenticate),
    (
        "invalid_authentication_error",
        RecoveryAction::Reauthenticate,
    ),
    ("invalid_token", RecoveryAction::Reauthenticate),
    ("missing_api_key", RecoveryAction::Reauthenticate),
    ("token_expired", RecoveryAction::Reauthenticate),
    ("token_invalidated", RecoveryAction::Reauthenticate),
    ("unauthenticated", RecoveryAction::Reauthenticate),
    ("unauthorized", RecoveryAction::Reauthenticate),
    ("billing_error", RecoveryAction::NextModel),
    ("billing_hard_limit_reached", RecoveryAction::NextModel),
    ("billing_not_active", RecoveryAction::NextModel),
    ("content_filter", RecoveryAction::NextModel),
    ("content_policy_violation", RecoveryAction::NextModel),
    ("data_inspection_failed", RecoveryAction::NextModel),
    ("deploymentnotfound", RecoveryAction::NextModel),
    ("insufficient_balance", RecoveryAction::NextModel),
    ("insufficient_credits", RecoveryAction::NextModel),
    ("insufficient_quota", RecoveryAction::NextModel),
    ("model_decommissioned", RecoveryAction::NextModel),
    ("model_not_available", RecoveryAction::NextModel),
    ("model_not_found", RecoveryAction::NextModel),
    ("model_not_supported", RecoveryAction::NextModel),
    ("not_found", RecoveryAction::NextModel),
    ("not_found_error", RecoveryAction::NextModel),
    ("payment_required", RecoveryAction::NextModel),
    ("previous_response_not_found", RecoveryAction::NextModel),
    ("quota_exceeded", RecoveryAction::NextModel),
    ("responsibleaipolicyviolation", RecoveryAction::NextModel),
    ("unknown_model", RecoveryAction::NextModel),
    (
        "unsupported_country_region_territory",
        RecoveryAction::NextModel,
    ),
    ("unsupported_model", RecoveryAction::NextModel),
    ("usage_limit_reached", RecoveryAction::NextModel),
    ("usage_not_included", RecoveryAction::NextModel),
    ("deadline_exceeded", RecoveryAction::Retry),
    ("engine_overloaded", RecoveryAction::Retry),
    ("engine_overloaded_error", RecoveryAction::Retry),
    ("internal_server_error", RecoveryAction::Retry),
    ("model_overloaded", RecoveryAction::Retry),
    ("overloaded", RecoveryAction::Retry),
    ("overloaded_error", RecoveryAction::Retry),
    ("rate_limit_error", RecoveryAction::Retry),
    ("rate_limit_exceeded", RecoveryAction::Retry),
    ("rate_limit_reached_error", RecoveryAction::Retry),
    ("ratelimitexceeded", RecoveryAction::Retry),
    ("resource_exhausted", RecoveryAction::Retry),
    ("server_is_overloaded", RecoveryAction::Retry),
    ("service_unavailable", RecoveryAction::Retry),
    ("slow_down", RecoveryAction::Retry),
    ("throttlingexception", RecoveryAction::Retry),
    ("timeout_error", RecoveryAction::Retry),
    ("too_many_requests", RecoveryAction::Retry),
    // The model produced a tool call that its server rejects. Another attempt usually succeeds.
    ("tool_use_failed", RecoveryAction::Retry),
    ("unavailable", RecoveryAction::Retry),
];

/// Fragments that must occur in this order. They are in lower case.
pub(super) type Phrase = &'static [&'static str];

/// Returns whether any phrase occurs in `text`, which must be in lower case.
pub(super) fn has_any_phrase(phrases: &[Phrase], text: &str) -> bool {
    phrases.iter().any(|phrase| has_phrase(phrase, text))
}

fn has_phrase(phrase: Phrase, text: &str) -> bool {
    let mut rest = text;
    phrase
        .iter()
        .all(|fragment| match rest.split_once(fragment) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
}

/// Phrases for a conversation that exceeds the context window.
pub(super) const OVERFLOW_TEXTS: &[Phrase] = &[
    &["maximum context length"],
    &["max context length"],
    &["maximum prompt length"],
    &["maximum model length"],
    &["prompt is too long"],
    &["prompt too long"],
    &["prompt exceeds max length"],
    &["prompt token count", "exceeds"],
    &["input is too long"],
    &["input too long"],
    &["input token count", "exceeds"],
    &["input tokens exceed"],
    &["input length", "exceed", "context"],
    &["input length", "exceed", "maximum"],
    &["range of input length should be"],
    &["exceed", "context limit"],
    &["exceed", "context length"],
    &["exceed", "context size"],
    &["exceed", "context window"],
    &["exceed", "maximum", "context"],
    &["exceed", "token limit"],
    &["context length", "exceed"],
    &["context window", "exceed"],
    &["context size", "exceed"],
    &["context limit", "exceed"],
    &["longer than the model's context"],
    &["too large for model", "context"],
    &["too many tokens", "prompt"],
    &["tokens >", "maximum"],
    &["reduce the length of the messages"],
    &["reduce the length of the input"],
    &["inputs", "tokens + ", "must be <="],
    &["request entity too large"],
    &["request body too large"],
];

/// Phrases for a single request that exceeds a rate limit.
pub(super) const TOO_LARGE_FOR_RATE_TEXTS: &[Phrase] = &[
    &["request too large", "limit", "requested"],
    &["request too large for"],
    &["request body too large"],
];

/// Phrases for rate limits on requests or tokens.
pub(super) const RATE_TEXTS: &[Phrase] = &[
    &["rate limit"],
    &["rate-limit"],
    &["ratelimit"],
    &["too many requests"],
    &["tokens per min"],
    &["tokens per day"],
    &["requests per min"],
    &["token rate"],
    &["too many tokens, please wait"],
];

/// Phrases for an invalid or missing key or login.
pub(super) const AUTH_TEXTS: &[Phrase] = &[
    &["incorrect api key"],
    &["invalid api key"],
    &["invalid api-key"],
    &["invalid x-api-key"],
    &["api key not valid"],
    &["api key is invalid"],
    &["api key", "is invalid"],
    &["api key expired"],
    &["api key", "missing"],
    &["missing", "api key"],
    &["no api key"],
    &["no auth credentials"],
    &["authentication fail"],
    &["invalid authentication"],
    &["invalid credentials"],
    &["unauthorized"],
    &["token", "has expired"],
];

/// Phrases for problems of the account: balance, plan, country, blocked content.
pub(super) const ACCOUNT_TEXTS: &[Phrase] = &[
    &["exceeded your current quota"],
    &["credit balance is too low"],
    &["insufficient balance"],
    &["insufficient credits"],
    &["insufficient funds"],
    &["insufficient_quota"],
    &["requires more credits"],
    &["more credits"],
    &["payment required"],
    &["billing"],
    &["country", "not supported"],
    &["location is not supported"],
    &["input was flagged"],
];

/// Phrases for a model that does not exist or does not support the request.
pub(super) const MODEL_TEXTS: &[Phrase] = &[
    &["model", "does not exist"],
    &["model", "not found"],
    &["model", "not exist"],
    &["not a valid model"],
    &["model identifier is invalid"],
    &["invalid model"],
    &["unknown model"],
    &["no such model"],
    &["no endpoints found"],
    &["model names are", "but you passed"],
    &["invocation of model", "supported"],
    &["model", "end of its life"],
    &["model", "decommissioned"],
    &["model", "doesn't support"],
    &["model", "does not support"],
    &["does not support", "with this model"],
    &["not supported with this model"],
    &["not supported by this model"],
    &["not enabled for this model"],
    &["input is not supported"],
    &["unsupported content"],
    &["expected to be either text or image"],
    &["expected `text`"],
    &["do not have access to"],
];

/// Phrases for temporary failures.
pub(super) const BUSY_TEXTS: &[Phrase] = &[
    &["overloaded"],
    &["try again later"],
    &["temporarily unavailable"],
    &["service unavailable"],
    &["at capacity"],
    &["high demand"],
    &["timed out"],
    &["timeout"],
    &["internal server error"],
    &["internal error"],
    &["bad gateway"],
    &["loading model"],
    &["model is loading"],
    &["no healthy upstream"],
    &["upstream connect error"],
];
