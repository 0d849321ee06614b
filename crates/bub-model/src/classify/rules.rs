//! Rules for classifying errors. Add new codes and phrases of servers to `rules.json`.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::error::RecoveryAction;

/// The rules of `rules.json`.
pub(super) static RULES: LazyLock<Rules> =
    LazyLock::new(|| serde_json::from_str(include_str!("rules.json")).unwrap_or_default());

/// Codes and phrases that servers use in errors.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rules {
    /// Machine-readable codes, types, statuses and reasons of errors, in lower case with `_`, and the action for each.
    ///
    /// Codes that servers use for many errors (`invalid_request_error`, `server_error`, `bad_request`) are not listed,
    /// because they do not imply an action. After `tool_use_failed`, another attempt usually succeeds: the model
    /// produced a tool call that its server rejects.
    pub(super) codes: HashMap<String, RecoveryAction>,
    /// Phrases for a conversation that exceeds the context window.
    pub(super) overflow: Phrases,
    /// Phrases for a single request that exceeds a rate limit.
    pub(super) too_large_for_rate: Phrases,
    /// Phrases for rate limits on requests or tokens.
    pub(super) rate: Phrases,
    /// Phrases for an invalid or missing key or login.
    pub(super) auth: Phrases,
    /// Phrases for problems of the account: balance, plan, country, blocked content.
    pub(super) account: Phrases,
    /// Phrases for a model that does not exist or does not support the request.
    pub(super) model: Phrases,
    /// Phrases for temporary failures.
    pub(super) busy: Phrases,
    /// Phrases that precede a delay in a message.
    pub(super) delay_prefixes: Vec<String>,
    /// Fields of an error with a code, with an HTTP status, and with the message.
    pub(super) code_fields: Vec<String>,
    pub(super) status_fields: Vec<String>,
    pub(super) message_fields: Vec<String>,
}

/// Phrases of error messages, in lower case. A phrase consists of fragments with `…` between them. A message has the
/// phrase if all fragments occur in this order.
#[derive(Default, Deserialize)]
pub(super) struct Phrases(Vec<String>);

impl Phrases {
    /// Returns whether any phrase occurs in `text`, which must be in lower case.
    pub(super) fn any_in(&self, text: &str) -> bool {
        self.0.iter().any(|phrase| {
            let mut fragments = phrase.split('…');
            let rest =
                fragments.try_fold(text, |rest, fragment| Some(rest.split_once(fragment)?.1));
            rest.is_some()
        })
    }
}
