//! Captures the log of the current thread.

use std::{
    fmt, io,
    sync::{Arc, Mutex},
};

use tracing::{Event, Level, Subscriber, subscriber::DefaultGuard};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::{Format, Writer},
    },
    registry::LookupSpan,
};

/// The log of the current thread, one line per event, until it is dropped.
pub struct LogCapture {
    buffer: LogBuffer,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl LogCapture {
    /// Captures warnings and errors as `LEVEL event field=value`.
    pub fn start() -> Self {
        Self::with_format(Level::WARN, EventFormat)
    }

    /// Captures warnings and errors as `LEVEL span{field=value}: event field=value`.
    pub fn start_with_spans() -> Self {
        Self::with_spans_from(Level::WARN)
    }

    /// Captures lines of this level and above, with their spans.
    pub fn with_spans_from(level: Level) -> Self {
        Self::with_format(level, Format::default().with_target(false).without_time())
    }

    fn with_format<F>(level: Level, format: F) -> Self
    where
        F: FormatEvent<
                tracing_subscriber::Registry,
                tracing_subscriber::fmt::format::DefaultFields,
            > + Send
            + Sync
            + 'static,
    {
        let buffer = LogBuffer::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(buffer.clone())
            .with_ansi(false)
            .with_max_level(level)
            .event_format(format)
            .finish();
        Self {
            buffer,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// Returns the complete log.
    pub fn text(&self) -> String {
        String::from_utf8(self.buffer.0.lock().unwrap().clone()).unwrap()
    }

    /// Returns the lines.
    pub fn lines(&self) -> Vec<String> {
        let text = self.text();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Returns the number of lines that contain a text.
    pub fn count(&self, text: &str) -> usize {
        let lines = self.lines();
        lines.iter().filter(|line| line.contains(text)).count()
    }
}

/// The format `LEVEL event field=value`.
struct EventFormat;

impl<S, N> FormatEvent<S, N> for EventFormat
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
        let fields = context.field_format();
        fields.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

impl io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogBuffer {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
