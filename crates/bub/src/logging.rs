//! Logs on stderr and in a file: text, or JSON with the setting `log.format`. Every line is redacted.
//!
//! A line has the event, its fields, and the fields of the spans that are open where it was logged.

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
    LOG_CONTENTS, LOG_FILE, LOG_FILE_SIZE, LOG_FILTER, LOG_FORMAT, LogFormat, VERBOSE,
};

/// The log lines of turns that failed.
const TURN_LOG_TARGET: &str = "bub::turn";
/// The log lines with what people and models said.
const CONTENTS_LOG_TARGET: &str = "bub::contents";

/// Whether the command that runs prints such failures itself.
static FAILURES_PRINTED: AtomicBool = AtomicBool::new(false);

/// Says that failures of turns are printed: nobody wants to read them twice, unless more was asked for.
pub fn suppress_turn_failures() {
    FAILURES_PRINTED.store(true, Ordering::Relaxed);
}

/// Who shows the lines of the log in place of standard error.
static LOG_REDIRECT: Mutex<Option<ChatEventSender>> = Mutex::new(None);

/// While this lives, log lines are shown by a chat, whose screen they would otherwise spoil.
pub struct LogRedirectGuard(());

impl LogRedirectGuard {
    pub fn to(teller: ChatEventSender) -> Self {
        *shown_by() = Some(teller);
        Self(())
    }
}

impl Drop for LogRedirectGuard {
    fn drop(&mut self) {
        *shown_by() = None;
    }
}

fn shown_by() -> MutexGuard<'static, Option<ChatEventSender>> {
    LOG_REDIRECT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts logging as the settings ask for; `verbosity` is how often `-v` was given.
pub(crate) fn start(settings: &Settings, verbosity: u64) {
    let by_words = settings.get(&LOG_FILTER).filter(|_| verbosity == 0);
    let usual = || LogFilter::for_verbosity(verbosity.max(settings.get(&VERBOSE)));
    let filter = by_words
        .and_then(|words| LogFilter::parse(&words))
        .unwrap_or_else(usual);
    let unusable = file_problem(settings);
    let file = settings.get(&LOG_FILE).filter(|_| unusable.is_none());
    let file = file.map(|path| LogFile::new(path, settings.get(&LOG_FILE_SIZE)));
    let is_terminal = std::io::stderr().is_terminal();
    let log = LogLayer {
        filter,
        contents: settings.get(&LOG_CONTENTS),
        redactor: settings.redactor().clone(),
        format: settings.get(&LOG_FORMAT),
        colour: is_terminal && wants_colour(settings),
        file: file.map(Mutex::new),
    };
    // A program that embeds the App may have its own subscriber already; then that one is used.
    let _ = tracing::subscriber::set_global_default(Registry::default().with(log));
    log_panics(settings.redactor().clone());
    if let Some(problem) = unusable {
        tracing::warn!(reason = %problem, "log.file_unusable");
    }
}

/// Why the log file cannot be used.
pub fn file_problem(settings: &Settings) -> Option<String> {
    let path = settings.get(&LOG_FILE)?;
    let problem = file::problem(&path, settings.config_file())?;
    Some(format!(
        "the log file `{}` cannot be used: {problem}",
        path.display()
    ))
}

fn wants_colour(settings: &Settings) -> bool {
    let refused = settings
        .environment()
        .get("NO_COLOR")
        .is_some_and(|value| !value.is_empty());
    let dumb = settings
        .environment()
        .get("TERM")
        .is_some_and(|name| name == "dumb");
    !refused && !dumb
}

/// A panic is logged in one redacted line. Plugin panics are caught and become errors, so this is
/// the only trace of where they happened.
fn log_panics(redactor: Redactor) {
    std::panic::set_hook(Box::new(move |panic| {
        // The chat is on the main thread: when that panics, nobody is left to show the line.
        if std::thread::current().name() == Some("main") {
            bub_terminal::tty::restore();
            *shown_by() = None;
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
    colour: bool,
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
            colour: false,
            file: None,
        }
    }

    fn is_enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Our spans have the level error. A line of any target that is shown needs their fields.
        if metadata.is_span() && *metadata.level() == Level::ERROR {
            return self.filter.most() != LevelFilter::OFF;
        }
        self.filter.allows(metadata.target(), *metadata.level())
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
        Some(self.filter.most())
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        // Recorded before the span is locked: a value that panics is logged with the fields of its spans.
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
        let is_told = metadata.target() == TURN_LOG_TARGET
            && FAILURES_PRINTED.load(Ordering::Relaxed)
            && !self.filter.allows(TURN_LOG_TARGET, Level::INFO);
        if !is_told {
            let teller = shown_by().clone();
            if let Some(teller) = teller {
                let text = line.without_time(false);
                teller.emit_detached(ChatEvent::Notice(
                    self.redactor.redact(text.trim_end()).into_owned(),
                ));
            } else {
                let text = line.render(self.format, self.colour);
                // Nothing sensible is left to do when standard error is gone.
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
            // Outside of the lock: this comes here again.
            if let Err(error) = failed {
                tracing::warn!(%error, "log.file_write_failed");
            }
        }
    }
}
