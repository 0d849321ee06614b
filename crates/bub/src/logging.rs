//! Logs redacted lines to stderr and to a file, as text or JSON (setting `log.format`).
//!
//! A line has the event name, the fields of the event, and the fields of the open spans.

mod fields;
mod file;
mod filter;
mod line;

use std::{
    io::{IsTerminal, Write},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bub_settings::{Redactor, Settings};
use bub_terminal::{ChatEvent, channel::ChatEventSender};
use tracing::{
    Event, Level, Metadata, Subscriber,
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt as _},
    registry::LookupSpan,
};

use self::{fields::Fields, file::LogFile, filter::LogFilter, line::LogLine};
use crate::app_settings::{
    LOG_CONTENTS, LOG_FILE, LOG_FILTER, LOG_FORMAT, LOG_MAX_FILE_BYTES, LogFormat, VERBOSE,
};

/// Target of log lines about failed turns.
const TURN_LOG_TARGET: &str = "bub::turn";
/// Target of log lines with the text of messages and answers.
const CONTENTS_LOG_TARGET: &str = "bub::contents";

/// Whether the running command prints failures of turns itself.
static FAILURES_PRINTED: AtomicBool = AtomicBool::new(false);

/// Stops logging failed turns to stderr, for commands that print them. With increased verbosity,
/// they are logged anyway.
pub fn suppress_turn_failures() {
    FAILURES_PRINTED.store(true, Ordering::Relaxed);
}

/// Chat that shows log lines instead of stderr.
static LOG_REDIRECT: Mutex<Option<ChatEventSender>> = Mutex::new(None);

/// Redirects log lines to a chat until it is dropped. On stderr, they would damage the screen of
/// the chat.
pub struct LogRedirectGuard(());

impl LogRedirectGuard {
    /// Redirects log lines to this chat.
    pub fn new(chat: ChatEventSender) -> Self {
        *lock_redirect() = Some(chat);
        Self(())
    }
}

impl Drop for LogRedirectGuard {
    fn drop(&mut self) {
        *lock_redirect() = None;
    }
}

fn lock_redirect() -> MutexGuard<'static, Option<ChatEventSender>> {
    LOG_REDIRECT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts logging as the settings specify. `verbosity` is the number of `-v` arguments.
pub(crate) fn start_logging(settings: &Settings, verbosity: u64) {
    let configured = settings.get(&LOG_FILTER).filter(|_| verbosity == 0);
    let default = || LogFilter::for_verbosity(verbosity.max(settings.get(&VERBOSE)));
    let filter = configured
        .and_then(|words| LogFilter::parse(&words))
        .unwrap_or_else(default);
    let unusable = log_file_problem(settings);
    let file = settings.get(&LOG_FILE).filter(|_| unusable.is_none());
    let file = file.map(|path| LogFile::new(path, settings.get(&LOG_MAX_FILE_BYTES)));
    let is_terminal = std::io::stderr().is_terminal();
    let log = LogLayer {
        filter,
        contents: settings.get(&LOG_CONTENTS),
        redactor: settings.redactor().clone(),
        format: settings.get(&LOG_FORMAT),
        color: is_terminal && should_use_color(settings),
        file: file.map(Mutex::new),
    };
    // Ignore the error: a program that embeds the `App` may have installed its own subscriber.
    let _ = tracing::subscriber::set_global_default(Registry::default().with(log));
    install_panic_hook(settings.redactor().clone());
    if let Some(problem) = unusable {
        tracing::warn!(reason = %problem, "log.file_unusable");
    }
}

/// Returns why the file of the setting `log.file` cannot be used, if it cannot.
pub fn log_file_problem(settings: &Settings) -> Option<String> {
    let path = settings.get(&LOG_FILE)?;
    let problem = file::unusable_reason(&path, settings.config_file())?;
    Some(format!(
        "log file `{}` cannot be used: {problem}; change the setting `log.file`",
        path.display()
    ))
}

/// Returns whether the environment allows colored log lines (`NO_COLOR`, `TERM`).
fn should_use_color(settings: &Settings) -> bool {
    let has_no_color = settings
        .environment()
        .get("NO_COLOR")
        .is_some_and(|value| !value.is_empty());
    let is_dumb = settings
        .environment()
        .get("TERM")
        .is_some_and(|name| name == "dumb");
    !has_no_color && !is_dumb
}

/// Installs a panic hook that logs each panic in one redacted line, with its location. Panics of
/// plugins become errors without a location.
fn install_panic_hook(redactor: Redactor) {
    std::panic::set_hook(Box::new(move |panic| {
        // The chat runs on the main thread. If that thread panics, the chat cannot show the line.
        if std::thread::current().name() == Some("main") {
            bub_terminal::tty::restore();
            *lock_redirect() = None;
        }
        let text = panic.to_string();
        tracing::error!(error = %redactor.redact(&text), "thread.panicked");
    }));
}

/// Writes log lines to stderr or a chat, and to the log file.
struct LogLayer {
    filter: LogFilter,
    contents: bool,
    redactor: Redactor,
    format: LogFormat,
    color: bool,
    file: Option<Mutex<LogFile>>,
}

impl LogLayer {
    #[cfg(test)]
    fn for_tests(filter: LogFilter) -> Self {
        Self {
            filter,
            contents: false,
            redactor: Redactor::new(),
            format: LogFormat::Text,
            color: false,
            file: None,
        }
    }

    fn is_enabled(&self, metadata: &Metadata<'_>) -> bool {
        // bub's spans have the level error, so that every printed line can show their fields.
        if metadata.is_span() && *metadata.level() == Level::ERROR {
            return self.filter.max_level() != LevelFilter::OFF;
        }
        self.filter.is_allowed(metadata.target(), *metadata.level())
            && (self.contents || metadata.target() != CONTENTS_LOG_TARGET)
    }
}

impl<S> Layer<S> for LogLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        self.is_enabled(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter.max_level())
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        // Recorded before the span is locked, because a value that panics is logged with the fields
        // of its spans.
        let mut recorded = Fields::default();
        values.record(&mut recorded);
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            fields.merge(recorded);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let line = LogLine::new(event, &context);
        let is_printed = metadata.target() == TURN_LOG_TARGET
            && FAILURES_PRINTED.load(Ordering::Relaxed)
            && !self.filter.is_allowed(TURN_LOG_TARGET, Level::INFO);
        if !is_printed {
            let chat = lock_redirect().clone();
            if let Some(chat) = chat {
                let text = line.render_without_time(false);
                chat.emit_detached(ChatEvent::Notice(
                    self.redactor.redact(text.trim_end()).into_owned(),
                ));
            } else {
                let text = line.render(self.format, self.color);
                // Ignore errors: stderr is closed and there is nowhere to report them.
                let _ = std::io::stderr()
                    .lock()
                    .write_all(self.redactor.redact(&text).as_bytes());
            }
        }
        if let Some(file) = &self.file {
            let text = line.render(self.format, false);
            let failed = file
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .write(&self.redactor.redact(&text));
            // Log after the lock is released, because this function also handles this event.
            if let Err(error) = failed {
                tracing::warn!(%error, "log.file_write_failed");
            }
        }
    }
}
