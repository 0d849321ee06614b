//! One log line, for people or for programs.

use std::fmt;

use bub_terminal::sanitize;
use serde_json::{Map, Value};
use tracing::{
    Event, Level,
    field::{Field, Visit},
};

/// What was logged.
pub(super) struct LogLine {
    level: Level,
    target: &'static str,
    message: String,
    fields: Map<String, Value>,
}

impl LogLine {
    pub(super) fn from_event(event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let mut line = Self {
            level: *metadata.level(),
            target: metadata.target(),
            message: String::new(),
            fields: Map::new(),
        };
        event.record(&mut line);
        line
    }

    pub(super) fn human(&self, colour: bool) -> String {
        let (on, off) = match self.level {
            _ if !colour => ("", ""),
            Level::ERROR => ("\x1b[31m", "\x1b[0m"),
            Level::WARN => ("\x1b[33m", "\x1b[0m"),
            _ => ("\x1b[2m", "\x1b[0m"),
        };
        let level = format!("{:>5}", self.level.as_str());
        let mut text = sanitize::line(&self.message);
        for (name, value) in &self.fields {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), sanitize::line);
            text.push_str(&[" ", name, "=", &value].concat());
        }
        format!("{on}{level}{off} {text}\n")
    }

    pub(super) fn json(&self) -> String {
        let mut object = Map::new();
        object.insert(
            "time".to_owned(),
            Value::from(jiff::Timestamp::now().to_string()),
        );
        object.insert(
            "level".to_owned(),
            Value::from(self.level.as_str().to_ascii_lowercase()),
        );
        object.insert("target".to_owned(), Value::from(self.target));
        object.insert("message".to_owned(), Value::from(self.message.as_str()));
        for (name, value) in &self.fields {
            object.entry(name.as_str()).or_insert_with(|| value.clone());
        }
        format!("{}\n", Value::Object(object))
    }

    fn set_field(&mut self, field: &Field, value: impl Into<Value>) {
        self.fields.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.set_field(field, text);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.set_field(field, value);
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set_field(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set_field(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set_field(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set_field(field, value);
    }
}
