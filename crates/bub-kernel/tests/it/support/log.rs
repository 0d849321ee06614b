//! The warnings and errors of the current thread as lines.

use std::{
    fmt, io,
    sync::{Arc, Mutex},
};

use tracing::{Event, Subscriber, subscriber::DefaultGuard};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::{Format, Writer},
    },
    registry::LookupSpan,
};

/// Collects the warnings of the current thread, as `LEVEL event field=value`, until it is dropped.
pub(crate) struct Log {
    text: Text,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn capture() -> Self {
        let text = Text::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(text.clone())
            .with_ansi(false)
            .with_max_level(tracing::Level::WARN)
            .event_format(WithoutSpans)
            .finish();
        Self {
            text,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// Like `capture`, with the spans of each line before its event.
    pub(crate) fn capture_with_spans() -> Self {
        let text = Text::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(text.clone())
            .with_ansi(false)
            .with_max_level(tracing::Level::WARN)
            .event_format(Format::default().with_target(false).without_time())
            .finish();
        Self {
            text,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let bytes = self.text.0.lock().unwrap().clone();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|line| line.trim().to_owned())
            .collect()
    }
}

/// The format `LEVEL event field=value`.
struct WithoutSpans;

impl<S, N> FormatEvent<S, N> for WithoutSpans
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "{} ", event.metadata().level())?;
        context
            .field_format()
            .format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Text {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
