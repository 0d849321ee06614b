//! Public list prices of models.
//!
//! Prices are in US dollars per million tokens, as of November 2026. They exclude batch discounts and surcharges for
//! very long requests. The table lists exact models only, because a wrong price is worse than no price. Prices in the
//! config take precedence.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::table_name;
use crate::ModelId;

/// Price of a model, in US dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Price {
    /// Price of input tokens.
    pub input: f64,
    /// Price of input tokens read from the provider's cache.
    pub cached: f64,
    /// Price of input tokens written to the provider's cache.
    pub cache_write: f64,
    /// Price of output tokens, reasoning included.
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

/// Names of models and their prices: input, cached input, input written to the cache, output.
///
/// Names are written with `-` instead of `.`. A name has the prefix of its provider if other providers charge different
/// prices for the model.
static PRICES: LazyLock<BTreeMap<&str, Price>> =
    LazyLock::new(|| serde_json::from_str(include_str!("prices.json")).unwrap_or_default());

/// Returns the built-in price of a model, if it is known.
pub(super) fn built_in_price(model: &ModelId) -> Option<Price> {
    let name = table_name(model.model());
    if name.ends_with(":free") {
        return Some(Price::FREE);
    }
    let qualified = format!("{}:{name}", model.provider());
    PRICES
        .iter()
        .filter(|(row, _)| is_version_of(&name, row) || is_version_of(&qualified, row))
        .max_by_key(|(row, _)| row.len())
        .map(|(_, price)| *price)
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
