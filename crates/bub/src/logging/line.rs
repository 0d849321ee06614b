//! One log line, as text or as JSON.

use bub_terminal::sanitize;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    layer::Context,
    registry::{LookupSpan, Scope},
};

use super::fields::Fields;
use crate::app_settings::LogFormat;

/// The event that reports an attached file that the model cannot read.
const FILE_NOT_READ_EVENT: &str = "prompt.file_not_read";

/// A log event with the fields of its spans.
pub(super) struct LogLine {
    time: Timestamp,
    level: Level,
    target: &'static str,
    message: String,
    fields: Map<String, Value>,
}

impl LogLine {
    /// Collects the fields of the event, then the fields of its spans, outermost span first. If
    /// several fields have the same name, the innermost field is kept.
    pub(super) fn new<S>(event: &Event<'_>, context: &Context<'_, S>) -> Self
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let metadata = event.metadata();
        let mut line = Self {
            time: Timestamp::now(),
            level: *metadata.level(),
            target: metadata.target(),
            message: String::new(),
            fields: Map::new(),
        };
        let mut event_fields = Fields::default();
        event.record(&mut event_fields);
        for (name, value) in event_fields.0.into_values() {
            match value {
                Value::String(message) if name == "message" => line.message = message,
                value => drop(line.fields.insert(name.to_owned(), value)),
            }
        }
        let mut span_fields = Map::new();
        let spans = context.event_scope(event);
        for span in spans.into_iter().flat_map(Scope::from_root) {
            let extensions = span.extensions();
            let fields = extensions.get::<Fields>().into_iter();
            for (name, value) in fields.flat_map(|fields| fields.0.values()) {
                if !line.fields.contains_key(*name) {
                    span_fields.shift_remove(*name);
                    span_fields.insert((*name).to_owned(), value.clone());
                }
            }
        }
        line.fields.append(&mut span_fields);
        line
    }

    /// Formats the line with its time, including the line end.
    pub(super) fn render(&self, format: LogFormat, color: bool) -> String {
        match format {
            LogFormat::Text => format!("{:.3} {}\n", self.time, self.render_without_time(color)),
            LogFormat::Json => self.to_json_line(),
        }
    }

    /// Formats the line as `LEVEL event field=value`.
    pub(super) fn render_without_time(&self, color: bool) -> String {
        let (on, off) = match self.level {
            _ if !color => ("", ""),
            Level::ERROR => ("\x1b[31m", "\x1b[0m"),
            Level::WARN => ("\x1b[33m", "\x1b[0m"),
            _ => ("\x1b[2m", "\x1b[0m"),
        };
        let level = format!("{:>5}", self.level.as_str());
        let mut text = sanitize::sanitize_line(&self.message);
        for (name, value) in &self.fields {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), sanitize::sanitize_line);
            text.push_str(&[" ", name, "=", &value].concat());
        }
        format!("{on}{level}{off} {text}")
    }

    /// Returns whether the line says that the model cannot read an attached file.
    pub(super) fn is_about_attachment(&self) -> bool {
        self.message == FILE_NOT_READ_EVENT
    }

    /// Returns the line in words, if it is about something for which a user at a terminal waits.
    pub(super) fn notice(&self) -> Option<String> {
        let text = |name: &str| Some(sanitize::sanitize_line(self.fields.get(name)?.as_str()?));
        Some(match self.message.as_str() {
            "model.retry" => {
                let delay = self.fields.get("delay_ms")?.as_u64()?;
                let seconds = delay.div_ceil(1000);
                format!("retrying in {seconds} s: {}", text("error")?)
            }
            "model.fallback" => format!("trying the next model: {}", text("error")?),
            "session.lease_wait" => {
                format!(
                    "waiting for another turn of this session ({})",
                    text("holder")?
                )
            }
            FILE_NOT_READ_EVENT => {
                format!(
                    "the model cannot read {} and gets only its path: {}",
                    text("file")?,
                    text("error")?
                )
            }
            _ => return None,
        })
    }

    /// Formats the line as a JSON object, including the line end.
    fn to_json_line(&self) -> String {
        let mut object = Map::new();
        object.insert("time".to_owned(), self.time.to_string().into());
        object.insert(
            "level".to_owned(),
            self.level.as_str().to_ascii_lowercase().into(),
        );
        object.insert("target".to_owned(), self.target.into());
        object.insert("message".to_owned(), self.message.as_str().into());
        for (name, value) in &self.fields {
            object.entry(name.as_str()).or_insert_with(|| value.clone());
        }
        format!("{}\n", Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::{
        Level, error_span,
        field::Empty,
        span::{Attributes, Id, Record},
    };
    use tracing_subscriber::{Layer, Registry, layer::SubscriberExt as _};

    use super::*;
    use crate::logging::{LogLayer, filter};

    /// Collects the lines that a `LogLayer` would print.
    struct Lines {
        log: LogLayer,
        lines: Arc<Mutex<Vec<String>>>,
    }

    impl<S> Layer<S> for Lines
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        fn enabled(&self, metadata: &tracing::Metadata<'_>, context: Context<'_, S>) -> bool {
            self.log.enabled(metadata, context)
        }

        fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
            self.log.on_new_span(attributes, id, context);
        }

        fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
            self.log.on_record(id, values, context);
        }

        fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
            let line = LogLine::new(event, &context).render_without_time(false);
            self.lines.lock().unwrap().push(line);
        }
    }

    fn logged_lines(work: impl FnOnce()) -> Vec<String> {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let log = LogLayer::for_tests(filter::parse("off,bub::logging=warn").unwrap());
        let layer = Lines {
            log,
            lines: Arc::clone(&lines),
        };
        tracing::subscriber::with_default(Registry::default().with(layer), work);
        let lines = lines.lock().unwrap();
        lines.clone()
    }

    #[test]
    fn the_fields_of_spans_follow_those_of_the_event_outermost_first() {
        let logged = logged_lines(|| {
            let turn = error_span!(target: "elsewhere", "turn", session_id = Empty, channel = "cli", run_id = Empty);
            turn.record("run_id", 7);
            turn.record("session_id", "cli:local");
            let _turn = turn.entered();
            let _step = error_span!("step", number = 1).entered();
            tracing::warn!(error = "no answer", "model.retry");
        });
        let line =
            " WARN model.retry error=no answer session_id=cli:local channel=cli run_id=7 number=1";
        assert_eq!(logged, [line]);
    }

    #[test]
    fn no_field_is_printed_twice_and_the_innermost_counts() {
        let logged = logged_lines(|| {
            let _outer = error_span!("turn", run_id = 1, channel = "cli").entered();
            let inner = error_span!("turn", run_id = 2, attempt = 1);
            inner.record("attempt", 2);
            let _inner = inner.entered();
            tracing::error!(channel = "webhook", "turn.failed");
        });
        assert_eq!(
            logged,
            ["ERROR turn.failed channel=webhook run_id=2 attempt=2"]
        );
    }

    #[test]
    fn outside_of_spans_an_event_has_its_own_fields() {
        let logged = logged_lines(|| {
            tracing::warn!(
                delay_ms = std::time::Duration::from_secs(2).as_millis(),
                "a.b"
            );
            tracing::info!("a.hidden");
            let span = tracing::span!(Level::INFO, "verbose", hidden = true);
            let _span = span.entered();
            tracing::warn!(absent = None::<&str>, "a.c");
        });
        assert_eq!(logged, [" WARN a.b delay_ms=2000", " WARN a.c"]);
    }
}
