//! Captures the log of the current thread.

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

/// The warnings and errors of the current thread, as `LEVEL event field=value`, until it is dropped.
pub(crate) struct LogCapture {
    buffer: LogBuffer,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl LogCapture {
    pub(crate) fn start() -> Self {
        let buffer = LogBuffer::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(buffer.clone())
            .with_ansi(false)
            .with_max_level(tracing::Level::WARN)
            .event_format(EventFormat)
            .finish();
        Self {
            buffer,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// Starts a capture that prints the spans of each line before its event.
    pub(crate) fn start_with_spans() -> Self {
        let buffer = LogBuffer::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(buffer.clone())
            .with_ansi(false)
            .with_max_level(tracing::Level::WARN)
            .event_format(Format::default().with_target(false).without_time())
            .finish();
        Self {
            buffer,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let bytes = self.buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|line| line.trim().to_owned())
            .collect()
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
        context
            .field_format()
            .format_fields(writer.by_ref(), event)?;
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
