//! The log of the current thread as lines.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// Collects the log of the current thread as `LEVEL span{field=value}: event field=value`, until it is dropped.
pub(crate) struct LogCapture {
    text: LogBuffer,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl LogCapture {
    pub(crate) fn new() -> Self {
        let text = LogBuffer::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(text.clone())
            .with_ansi(false)
            .with_target(false)
            .without_time()
            .finish();
        Self {
            text,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.text.0.lock().unwrap().clone()).unwrap()
    }

    /// Returns the number of lines that contain the text.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.text()
            .lines()
            .filter(|line| line.contains(text))
            .count()
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
