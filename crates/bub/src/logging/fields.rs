//! Fields of a log event or a span.

use std::fmt;

use serde_json::Value;
use tracing::field::{Field, Visit};

/// Fields of an event or a span with their values, in the order of declaration.
#[derive(Default)]
pub(super) struct Fields(Vec<(Field, Value)>);

impl Fields {
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&'static str, &Value)> {
        self.0.iter().map(|(field, value)| (field.name(), value))
    }

    /// Sets fields that were recorded after the span was created. Replaces earlier values.
    pub(super) fn merge(&mut self, recorded: Self) {
        for (field, value) in recorded.0 {
            self.0.retain(|(existing, _)| *existing != field);
            self.0.push((field, value));
        }
        self.0.sort_by_key(|(field, _)| field.index());
    }

    fn push_field(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.push((field.clone(), value.into()));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push_field(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push_field(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push_field(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push_field(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push_field(field, value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        // Durations in milliseconds have this type.
        self.push_field(field, u64::try_from(value).unwrap_or(u64::MAX));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push_field(field, value);
    }
}
