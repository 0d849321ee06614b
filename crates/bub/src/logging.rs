//! Logs go to standard error, through the redactor.

use std::{
    io::IsTerminal,
    sync::atomic::{AtomicBool, Ordering},
};

use bub_settings::{Redactor, Settings, core};
use tracing::{Metadata, level_filters::LevelFilter};
use tracing_subscriber::fmt::writer::MakeWriterExt;

/// The log lines of turns that failed.
const TURN: &str = "bub::turn";

/// Whether the command that runs prints such failures itself.
static PRINTED: AtomicBool = AtomicBool::new(false);

/// Says that failures of turns are printed: nobody wants to read them twice, unless more was asked for.
pub(crate) fn failures_are_printed() {
    PRINTED.store(true, Ordering::Relaxed);
}

/// Starts logging at the level the settings ask for.
pub(crate) fn start(settings: &Settings) {
    let level = match settings.get(&core::VERBOSE) {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let redactor = settings.redactor().clone();
    let wanted = move |line: &Metadata<'_>| {
        level > LevelFilter::WARN || line.target() != TURN || !PRINTED.load(Ordering::Relaxed)
    };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .without_time()
        .with_ansi(wants_colour(settings))
        .with_writer((move || redactor.writer(std::io::stderr())).with_filter(wanted))
        .finish();
    // A program that embeds the App may have its own subscriber already; then that one is used.
    let _ = tracing::subscriber::set_global_default(subscriber);
    log_panics(settings.redactor().clone());
}

fn wants_colour(settings: &Settings) -> bool {
    let refused = settings.environment().get("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = settings.environment().get("TERM").is_some_and(|name| name == "dumb");
    !refused && !dumb && std::io::stderr().is_terminal()
}

/// A panic is logged in one redacted line. Plugin panics are caught and become errors, so this is
/// the only trace of where they happened.
fn log_panics(redactor: Redactor) {
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.to_string();
        tracing::error!("panic {}", redactor.redact(&text));
    }));
}
