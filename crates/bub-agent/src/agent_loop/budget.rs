//! Estimates how much of a model's context window a request uses.

use std::collections::HashMap;

use parking_lot::Mutex;
use serde_json::Value;

/// Estimated tokens of an image, regardless of its size.
const TOKENS_PER_IMAGE: u64 = 1500;
/// Estimated base64 characters of a recording or video per token. A minute has about 2,000 tokens and 1 MB in a recording.
const MEDIA_CHARS_PER_TOKEN: u64 = 512;
/// Estimated tokens of a message in addition to its text.
const TOKENS_PER_MESSAGE: u64 = 4;
/// Estimated bytes of ASCII text per token, before the correction by [`Calibration`].
const BYTES_PER_TOKEN: u64 = 4;

/// The correction factor 1.0. Factors are integers in millionths.
const FACTOR_ONE: u64 = 1_000_000;
/// Plausible ratios of reported to estimated tokens: 0.3 to 5. Other ratios are ignored.
const VALID_CALIBRATION: std::ops::Range<u64> = 300_000..5_000_000;

/// Correction factors for token estimates, per model, learned from the usage that providers report.
#[derive(Debug, Default)]
pub(crate) struct Calibration(Mutex<HashMap<String, u64>>);

impl Calibration {
    /// Returns the estimate, multiplied by the correction factor of the model.
    pub(crate) fn correct_estimate(&self, model: &str, estimate: u64) -> u64 {
        let factors = self.0.lock();
        let factor = factors.get(model).copied().unwrap_or(FACTOR_ONE);
        estimate.saturating_mul(factor) / FACTOR_ONE
    }

    /// Returns the estimate that corresponds to a number of the model's tokens.
    pub(crate) fn to_estimate(&self, model: &str, tokens: u64) -> u64 {
        let factor = self.correct_estimate(model, FACTOR_ONE).max(1);
        tokens.saturating_mul(FACTOR_ONE) / factor
    }

    /// Updates the correction factor of a model from the tokens that the provider reported. New ratios are averaged
    /// with the old factor, so that a single outlier has little effect.
    pub(crate) fn record_usage(&self, model: &str, estimate: u64, reported: u64) {
        let ratio = reported.saturating_mul(FACTOR_ONE) / estimate.max(1);
        // In small requests, the text that the provider adds distorts the ratio.
        if estimate < 200 || !VALID_CALIBRATION.contains(&ratio) {
            return;
        }
        let mut factors = self.0.lock();
        let factor = factors.entry(model.to_owned()).or_insert(ratio);
        *factor = u64::midpoint(*factor, ratio);
    }
}

/// The size of a request relative to the context window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContextBudget {
    /// The request fits the context window.
    Fits,
    /// The request uses this percentage of the window: the model should hand off.
    Tight(u64),
    /// The request leaves too little of the window for the answer.
    Exceeded,
}

/// Compares the estimated tokens of a request with the context window. Reserves `answer` tokens for the answer, but at
/// most a quarter of the window.
pub(super) fn check_budget(estimate: u64, window: u64, answer: u64) -> ContextBudget {
    let usable = window - answer.min(window / 4);
    if estimate * 100 >= usable * 92 {
        ContextBudget::Exceeded
    } else if estimate * 100 >= usable * 75 {
        ContextBudget::Tight(estimate * 100 / window.max(1))
    } else {
        ContextBudget::Fits
    }
}

/// The maximum size of the view after a handoff, in tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandoffBudget {
    /// For the latest instruction and the start of the view: 40 % of the window, or less if the answer would not fit.
    pub(super) limit: u64,
    /// For everything. The complete request then uses at most 40 % of the window, if the system prompt and the tool
    /// definitions leave 10 % of the window for the view.
    pub(super) target: u64,
    /// What is left of `limit` for the rest if the latest instruction uses all of `target`.
    pub(super) reserve: u64,
}

impl HandoffBudget {
    /// Computes the budget. `fixed` is the size of the system prompt and the tool definitions, `answer` the maximum size
    /// of the answer.
    pub(crate) fn new(window: u64, fixed: u64, answer: u64) -> Self {
        let usable = window - answer.min(window / 4);
        let fitting = (usable * 92 / 100).saturating_sub(fixed);
        let limit = (window * 2 / 5).min(fitting).max(window / 20);
        let target = (window * 2 / 5).saturating_sub(fixed).max(window / 10);
        Self {
            limit,
            target: target.min(limit),
            reserve: window / 20,
        }
    }

    /// Converts tokens of a model to estimates.
    pub(crate) fn to_estimates(self, calibration: &Calibration, model: &str) -> Self {
        Self {
            limit: calibration.to_estimate(model, self.limit),
            target: calibration.to_estimate(model, self.target),
            reserve: calibration.to_estimate(model, self.reserve),
        }
    }
}

/// Estimates the tokens of a list of messages or tool definitions.
pub fn estimate_tokens<'a>(values: impl IntoIterator<Item = &'a Value>) -> u64 {
    values
        .into_iter()
        .map(|value| TOKENS_PER_MESSAGE + value_tokens(value))
        .sum()
}

fn value_tokens(value: &Value) -> u64 {
    match value {
        Value::String(text) => text_tokens(text),
        Value::Array(items) => items.iter().map(value_tokens).sum(),
        Value::Object(map) if map.contains_key("image_url") => TOKENS_PER_IMAGE,
        Value::Object(map) if map.contains_key("input_audio") || map.contains_key("video_url") => {
            value_size(value) / MEDIA_CHARS_PER_TOKEN
        }
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| 1 + text_tokens(key) + value_tokens(value))
            .sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// Returns the total bytes of the strings in a value.
fn value_size(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(items) => items.iter().map(value_size).sum(),
        Value::Object(map) => map.values().map(value_size).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Estimates the tokens of a text. Each non-ASCII character counts as one token.
pub(super) fn text_tokens(text: &str) -> u64 {
    if text.is_ascii() {
        return (text.len() as u64).div_ceil(BYTES_PER_TOKEN);
    }
    let ascii = text.bytes().filter(u8::is_ascii).count() as u64;
    let other = text.chars().count() as u64 - ascii;
    ascii.div_ceil(BYTES_PER_TOKEN) + other
}

/// Returns the longest start of a text that has at most `max_tokens` tokens.
pub(super) fn prefix_within(text: &str, max_tokens: u64) -> &str {
    let mut left = max_tokens.saturating_mul(BYTES_PER_TOKEN);
    let mut is_beyond = |(_, letter): &(usize, char)| {
        let cost = if letter.is_ascii() {
            1
        } else {
            BYTES_PER_TOKEN
        };
        let rest = left.checked_sub(cost);
        left = rest.unwrap_or_default();
        rest.is_none()
    };
    let end = text.char_indices().find(|letter| is_beyond(letter));
    end.map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}
