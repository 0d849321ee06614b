//! How much of a model's window a request takes.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use serde_json::Value;

/// An image counts this much, however many bytes it has.
const TOKENS_PER_IMAGE: u64 = 1500;
/// What a message costs beside its text.
const TOKENS_PER_MESSAGE: u64 = 4;
/// Bytes of plain text that make a token, before anything is known about a model.
const BYTES_PER_TOKEN: u64 = 4;

/// How many tokens a provider may count for one of ours.
const VALID_CALIBRATION: std::ops::Range<f64> = 0.3..5.0;

/// Learns from the usage that providers report how far the estimate is off, for each model.
#[derive(Debug, Default)]
pub(crate) struct Calibration(Mutex<HashMap<String, f64>>);

impl Calibration {
    /// The estimate as the model would count.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "token counts are far below 2^52, and an estimate is rough"
    )]
    pub(crate) fn apply(&self, model: &str, estimate: u64) -> u64 {
        let factors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let factor = factors.get(model).copied().unwrap_or(1.0);
        (estimate as f64 * factor) as u64
    }

    /// What the model counted for an estimate. One odd report changes little.
    #[expect(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^52"
    )]
    pub(crate) fn update(&self, model: &str, estimate: u64, reported: u64) {
        let seen = reported as f64 / estimate.max(1) as f64;
        // Small prompts are mostly what the provider adds itself, and what cannot be right is not believed.
        if estimate < 200 || !VALID_CALIBRATION.contains(&seen) {
            return;
        }
        let mut factors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match factors.get_mut(model) {
            Some(factor) => *factor = *factor * 0.5 + seen * 0.5,
            None => {
                factors.insert(model.to_owned(), seen);
            }
        }
    }
}

/// How the request stands to the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContextBudget {
    Fits,
    /// So many percent of the window are taken: time to hand off.
    Tight(u64),
    /// The next answer may not fit.
    Exceeded,
}

/// Judges an estimate against a window of which `answer` tokens are kept for the answer.
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

/// Roughly how many tokens messages and tools take.
pub(crate) fn estimate<'a>(values: impl IntoIterator<Item = &'a Value>) -> u64 {
    values
        .into_iter()
        .map(|value| TOKENS_PER_MESSAGE + tokens(value))
        .sum()
}

fn tokens(value: &Value) -> u64 {
    match value {
        Value::String(text) => text_tokens(text),
        Value::Array(items) => items.iter().map(tokens).sum(),
        Value::Object(map) if map.contains_key("image_url") => TOKENS_PER_IMAGE,
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| 1 + text_tokens(key) + tokens(value))
            .sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// Letters of other scripts are about a token each.
fn text_tokens(text: &str) -> u64 {
    if text.is_ascii() {
        return (text.len() as u64).div_ceil(BYTES_PER_TOKEN);
    }
    let (mut ascii, mut other) = (0u64, 0u64);
    for character in text.chars() {
        if character.is_ascii() {
            ascii += 1;
        } else {
            other += 1;
        }
    }
    ascii.div_ceil(BYTES_PER_TOKEN) + other
}
