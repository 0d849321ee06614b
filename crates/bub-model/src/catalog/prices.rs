//! Public list prices of models.
//!
//! Prices are in US dollars per million tokens, as of November 2026. They exclude batch discounts and surcharges for
//! very long requests. The table lists exact models only, because a wrong price is worse than no price. Prices in the
//! config take precedence.

use crate::ModelId;

/// Price of a model, in US dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Input tokens.
    pub input: f64,
    /// Input tokens read from the provider's cache.
    pub cached: f64,
    /// Input tokens written to the provider's cache.
    pub cache_write: f64,
    /// Output tokens, reasoning included.
    pub output: f64,
}

impl Price {
    /// The price of free models, such as those of a local server.
    pub const FREE: Self = Self {
        input: 0.0,
        cached: 0.0,
        cache_write: 0.0,
        output: 0.0,
    };
}

/// Returns the built-in price of a model, if it is known.
pub(crate) fn built_in_price(model: &ModelId) -> Option<Price> {
    // Routers prefix the vendor: `anthropic/claude-…`. Some providers write `5.5`, others `5-5`.
    let name = model
        .model()
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase()
        .replace('.', "-");
    if name.ends_with(":free") {
        return Some(Price::FREE);
    }
    let qualified = format!("{}:{name}", model.provider());
    let is_match = |row: &&(&str, _)| {
        [&name, &qualified]
            .iter()
            .any(|name| is_version_of(name, row.0))
    };
    let (_, [input, cached, cache_write, output]) = *PRICES
        .iter()
        .filter(is_match)
        .max_by_key(|row| row.0.len())?;
    Some(Price {
        input,
        cached,
        cache_write,
        output,
    })
}

/// Returns whether `name` is `model`, possibly with a date, number, `latest` or `preview` appended.
fn is_version_of(name: &str, model: &str) -> bool {
    let Some(rest) = name.strip_prefix(model) else {
        return false;
    };
    let mut parts = rest.split('-');
    let is_label = |part: &str| matches!(part, "latest" | "preview");
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    // The first number must be a date: `gpt-5-5` is not a version of `gpt-5`.
    parts.next() == Some("")
        && parts
            .next()
            .is_none_or(|part| is_label(part) || (part.len() >= 4 && is_number(part)))
        && parts.all(|part| is_label(part) || is_number(part))
}

/// Model and its prices: input, cached input, input written to the cache, output.
///
/// Names are written with `-` instead of `.`. A name has the prefix of its provider if other providers charge different
/// prices for the model.
static PRICES: &[(&str, [f64; 4])] = &[
    ("claude-fable-5", [10.0, 1.0, 12.5, 50.0]),
    ("claude-fable-5-1", [10.0, 0.25, 12.5, 50.0]),
    ("claude-haiku-4-5", [1.0, 0.1, 1.25, 5.0]),
    ("claude-haiku-5-5", [0.1, 0.01, 0.125, 0.5]),
    ("claude-mythos-5", [10.0, 1.0, 12.5, 50.0]),
    ("claude-mythos-5-1", [10.0, 0.25, 12.5, 50.0]),
    ("claude-opus-4-5", [5.0, 0.5, 6.25, 25.0]),
    ("claude-opus-4-6", [5.0, 0.5, 6.25, 25.0]),
    ("claude-opus-4-7", [5.0, 0.5, 6.25, 25.0]),
    ("claude-opus-4-8", [5.0, 0.5, 6.25, 25.0]),
    ("claude-opus-5", [5.0, 0.5, 6.25, 25.0]),
    ("claude-opus-5-5", [4.0, 0.2, 5.0, 20.0]),
    ("claude-sonnet-4-5", [3.0, 0.3, 3.75, 15.0]),
    ("claude-sonnet-4-6", [3.0, 0.3, 3.75, 15.0]),
    ("claude-sonnet-5", [2.0, 0.2, 2.5, 10.0]),
    ("claude-sonnet-5-5", [2.0, 0.1, 2.5, 10.0]),
    ("deepseek:deepseek-chat", [0.28, 0.028, 0.28, 0.42]),
    ("deepseek:deepseek-flash", [0.3, 0.006, 0.3, 1.2]),
    ("deepseek:deepseek-reasoner", [0.28, 0.028, 0.28, 0.42]),
    ("deepseek:deepseek-v4-flash", [0.3, 0.006, 0.3, 1.2]),
    ("deepseek:deepseek-v4-pro", [1.32, 0.044, 1.32, 3.96]),
    ("gemini-2-5-flash", [0.3, 0.03, 0.3, 2.5]),
    ("gemini-2-5-flash-lite", [0.1, 0.01, 0.1, 0.4]),
    ("gemini-2-5-pro", [1.25, 0.125, 1.25, 10.0]),
    ("gemini-3-1-flash-lite", [0.25, 0.025, 0.25, 1.5]),
    ("gemini-3-1-pro", [2.0, 0.2, 2.0, 12.0]),
    ("gemini-3-5-flash", [1.5, 0.15, 1.5, 9.0]),
    ("gemini-3-5-flash-lite", [0.3, 0.03, 0.3, 2.5]),
    ("gemini-3-6-flash", [0.75, 0.075, 0.75, 3.75]),
    ("gemini-3-7-flash", [0.75, 0.075, 0.75, 3.75]),
    ("gemini-3-8-flash", [0.75, 0.075, 0.75, 3.75]),
    ("gemini-3-flash", [0.5, 0.05, 0.5, 3.0]),
    ("gemini-4-argon", [2.0, 0.1, 2.0, 10.0]),
    ("gpt-3-5-turbo", [0.5, 0.5, 0.5, 1.5]),
    ("gpt-4", [30.0, 30.0, 30.0, 60.0]),
    ("gpt-4-1", [2.0, 0.5, 2.0, 8.0]),
    ("gpt-4-1-mini", [0.4, 0.1, 0.4, 1.6]),
    ("gpt-4-1-nano", [0.1, 0.025, 0.1, 0.4]),
    ("gpt-4-turbo", [10.0, 10.0, 10.0, 30.0]),
    ("gpt-4o", [2.5, 1.25, 2.5, 10.0]),
    ("gpt-4o-mini", [0.15, 0.075, 0.15, 0.6]),
    ("gpt-5", [1.25, 0.125, 1.25, 10.0]),
    ("gpt-5-1", [1.25, 0.125, 1.25, 10.0]),
    ("gpt-5-1-chat", [1.25, 0.125, 1.25, 10.0]),
    ("gpt-5-1-codex", [1.25, 0.125, 1.25, 10.0]),
    ("gpt-5-1-codex-max", [1.25, 0.125, 1.25, 10.0]),
    ("gpt-5-1-codex-mini", [0.25, 0.025, 0.25, 2.0]),
    ("gpt-5-2", [1.75, 0.175, 1.75, 14.0]),
    ("gpt-5-2-chat", [1.75, 0.175, 1.75, 14.0]),
    ("gpt-5-2-codex", [1.75, 0.175, 1.75, 14.0]),
    ("gpt-5-2-pro", [21.0, 21.0, 21.0, 168.0]),
    ("gpt-5-3-chat", [1.75, 0.175, 1.75, 14.0]),
    ("gpt-5-3-codex", [1.75, 0.175, 1.75, 14.0]),
    ("gpt-5-4", [2.5, 0.25, 2.5, 15.0]),
    ("gpt-5-4-mini", [0.75, 0.075, 0.75, 4.5]),
    ("gpt-5-4-nano", [0.2, 0.02, 0.2, 1.25]),
    ("gpt-5-4-pro", [30.0, 30.0, 30.0, 180.0]),
    ("gpt-5-5", [5.0, 0.5, 5.0, 30.0]),
    ("gpt-5-5-pro", [30.0, 30.0, 30.0, 180.0]),
    ("gpt-5-6", [4.0, 0.4, 5.0, 20.0]),
    ("gpt-5-6-luna", [0.2, 0.02, 0.25, 1.2]),
    ("gpt-5-6-sol", [4.0, 0.4, 5.0, 20.0]),
    ("gpt-5-6-terra", [2.0, 0.2, 2.5, 12.0]),
    ("gpt-5-chat", [1.25, 0.125, 1.25, 10.0]),
    ("gpt-5-codex", [1.25, 0.125, 1.25, 10.0]),
    ("gpt-5-mini", [0.25, 0.025, 0.25, 2.0]),
    ("gpt-5-nano", [0.05, 0.005, 0.05, 0.4]),
    ("gpt-5-pro", [15.0, 15.0, 15.0, 120.0]),
    ("gpt-6-1-sol", [2.0, 0.1, 2.5, 10.0]),
    ("gpt-6-astra", [10.0, 1.0, 12.5, 50.0]),
    ("gpt-6-luna", [0.1, 0.01, 0.125, 0.5]),
    ("gpt-6-sol", [2.0, 0.2, 2.5, 10.0]),
    ("grok-4-20", [1.25, 0.2, 1.25, 2.5]),
    ("grok-4-3", [1.25, 0.2, 1.25, 2.5]),
    ("grok-4-5", [2.0, 0.3, 2.0, 6.0]),
    ("grok-4-6", [2.0, 0.5, 2.0, 6.0]),
    ("grok-4-7", [2.0, 0.5, 2.0, 6.0]),
    ("grok-code-fast-1", [1.0, 0.2, 1.0, 2.0]),
    ("mistral:codestral", [0.3, 0.03, 0.3, 0.9]),
    ("mistral:mistral-large", [0.5, 0.05, 0.5, 1.5]),
    ("mistral:mistral-large-3", [0.5, 0.05, 0.5, 1.5]),
    ("mistral:mistral-large-4", [0.68, 0.068, 0.68, 2.09]),
    ("mistral:mistral-medium", [1.5, 0.15, 1.5, 7.5]),
    ("mistral:mistral-small", [0.15, 0.015, 0.15, 0.6]),
    ("o1", [15.0, 7.5, 15.0, 60.0]),
    ("o1-pro", [150.0, 150.0, 150.0, 600.0]),
    ("o3", [2.0, 0.5, 2.0, 8.0]),
    ("o3-mini", [1.1, 0.55, 1.1, 4.4]),
    ("o3-pro", [20.0, 20.0, 20.0, 80.0]),
    ("o4-mini", [1.1, 0.275, 1.1, 4.4]),
];
