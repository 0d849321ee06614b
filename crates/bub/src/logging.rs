//! Logs redacted lines to stderr and to a file, as text or JSON (setting `log.format`).
//!
//! A line has the event name, the fields of the event, and the fields of the open spans. The formatter of
//! tracing-subscriber prints each span separately, and tracing-appender rotates files by time, not by size. The line and
//! the file are therefore written here.

mod fields;
mod file;
mod filter;
mod line;

use std::{
    ffi::OsStr,
    io::{IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use bub_settings::{FromSettings as _, Redactor, Settings};
use bub_terminal::{ChatEvent, channel::ChatEventSender};
use parking_lot::Mutex;
use tracing::{
    Event, Level, Metadata, Subscriber,
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer, Registry,
    filter::Targets,
    layer::{Context, SubscriberExt as _},
    registry::LookupSpan,
};

use self::{fields::Fields, file::LogFile, line::LogLine};
use crate::app_settings::{AppSettings, LogFormat, LogSettings};

/// Target of log lines about failed turns.
const TURN_LOG_TARGET: &str = "bub::turn";
/// Target of log lines with the text of messages and answers.
const CONTENTS_LOG_TARGET: &str = "bub::contents";

/// Whether the running command prints the errors of failed turns. The log then omits them on
/// stderr.
static FAILURES_PRINTED: AtomicBool = AtomicBool::new(false);

/// Stops logging failed turns to stderr, for commands that print them. With increased verbosity,
/// they are logged anyway.
pub fn suppress_turn_failures() {
    FAILURES_PRINTED.store(true, Ordering::Relaxed);
}

/// The chat in the terminal that shows log lines. With `None`, they go to stderr.
static LOG_REDIRECT: Mutex<Option<ChatEventSender>> = Mutex::new(None);

/// Guard that redirects log lines to the chat in the terminal until the guard is dropped. On
/// stderr, the lines would damage the screen of the chat.
pub struct LogRedirectGuard(());

impl LogRedirectGuard {
    /// Redirects log lines to this chat.
    pub fn new(chat: ChatEventSender) -> Self {
        *LOG_REDIRECT.lock() = Some(chat);
        Self(())
    }
}

impl Drop for LogRedirectGuard {
    fn drop(&mut self) {
        *LOG_REDIRECT.lock() = None;
    }
}

/// Starts logging as the settings specify. `verbosity` is the number of `-v` arguments.
pub(crate) fn start_logging(settings: &Settings, verbosity: u64) {
    let log = LogSettings::from_settings(settings);
    let configured = log.filter.filter(|_| verbosity == 0);
    let default = || filter::for_verbosity(verbosity.max(settings.get(AppSettings::VERBOSE)));
    let filter = configured
        .and_then(|words| filter::parse(&words))
        .unwrap_or_else(default);
    let unusable = log_file_problem(settings);
    let file = log.file.filter(|_| unusable.is_none());
    let file = file.map(|path| LogFile::new(path, log.max_file_bytes));
    let layer = LogLayer {
        filter,
        contents: log.contents,
        redactor: settings.redactor().clone(),
        format: log.format,
        color: std::io::stderr().is_terminal() && should_use_color(settings),
        file: file.map(Mutex::new),
    };
    // Ignore the error: a program that embeds the `App` may have installed its own subscriber.
    let _ = tracing::subscriber::set_global_default(Registry::default().with(layer));
    install_panic_hook(settings.redactor().clone());
    if let Some(problem) = unusable {
        tracing::warn!(reason = %problem, "log.file_unusable");
    }
}

/// Returns why the file of the setting `log.file` cannot be used, if it cannot.
pub fn log_file_problem(settings: &Settings) -> Option<String> {
    let path = settings.get(LogSettings::FILE)?;
    let problem = file::unusable_reason(&path, settings.config_file())?;
    Some(format!(
        "log file `{}` cannot be used: {problem}; change the setting `log.file`",
        path.display()
    ))
}

/// Returns whether the environment allows colors (`NO_COLOR`, `TERM`).
pub fn should_use_color(settings: &Settings) -> bool {
    let environment = settings.environment();
    let is_disabled = |value: &OsStr| !value.is_empty();
    !environment.get("NO_COLOR").is_some_and(is_disabled)
        && environment.get("TERM").is_none_or(|name| name != "dumb")
}

/// Installs a panic hook that logs each panic in one redacted line, with its location. The errors
/// that bub creates for panics of plugins have no location.
fn install_panic_hook(redactor: Redactor) {
    std::panic::set_hook(Box::new(move |panic| {
        // The chat runs on the main thread. If that thread panics, the chat cannot show the line.
        if std::thread::current().name() == Some("main") {
            bub_terminal::tty::restore();
            *LOG_REDIRECT.lock() = None;
        }
        let text = panic.to_string();
        tracing::error!(error = %redactor.redact(&text), "thread.panicked");
    }));
}

/// Writes log lines to stderr or a chat, and to the log file.
struct LogLayer {
    filter: Targets,
    contents: bool,
    redactor: Redactor,
    format: LogFormat,
    color: bool,
    file: Option<Mutex<LogFile>>,
}

impl LogLayer {
    #[cfg(test)]
    fn for_tests(filter: Targets) -> Self {
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
            return filter::max_level(&self.filter) != LevelFilter::OFF;
        }
        self.filter
            .would_enable(metadata.target(), metadata.level())
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
        Some(filter::max_level(&self.filter))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        // Format the values before the span is locked. If formatting panics, the panic hook logs
        // the fields of the span and must be able to lock it.
        let mut recorded = Fields::default();
        values.record(&mut recorded);
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            fields.0.extend(recorded.0);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let line = LogLine::new(event, &context);
        let is_printed = metadata.target() == TURN_LOG_TARGET
            && FAILURES_PRINTED.load(Ordering::Relaxed)
            && !self.filter.would_enable(TURN_LOG_TARGET, &Level::INFO);
        if !is_printed {
            let chat = LOG_REDIRECT.lock().clone();
            if let Some(chat) = chat {
                // With increased verbosity, the line is shown with its fields.
                let is_verbose = self.filter.would_enable(metadata.target(), &Level::INFO);
                let notice = line.notice().filter(|_| !is_verbose);
                let text = notice.unwrap_or_else(|| line.render_without_time(false));
                let text = self.redactor.redact(text.trim_end()).into_owned();
                chat.emit_detached(ChatEvent::Notice(text));
            } else {
                // A command that prints the failures of its turn also says what happens to attached files.
                let is_for_user = FAILURES_PRINTED.load(Ordering::Relaxed)
                    && self.format == LogFormat::Text
                    && line.is_about_attachment();
                let notice = line.notice().filter(|_| is_for_user);
                let text = notice.map(|text| text + "\n");
                let text = text.unwrap_or_else(|| line.render(self.format, self.color));
                let text = self.redactor.redact(&text);
                // Ignore errors: if stderr is closed, there is nowhere to report them.
                let _ = std::io::stderr().lock().write_all(text.as_bytes());
            }
        }
        if let Some(file) = &self.file {
            let text = line.render(self.format, false);
            let failed = file.lock().write(&self.redactor.redact(&text));
            // Log after the lock is released, because logging calls this function again.
            if let Err(error) = failed {
                tracing::warn!(%error, "log.file_write_failed");
            }
        }
    }
}
