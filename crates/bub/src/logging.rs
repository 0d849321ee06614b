//! Logs go to standard error, through the redactor.

use std::io::IsTerminal;

use bub_settings::{Redactor, Settings, core};
use tracing::level_filters::LevelFilter;

/// Starts logging at the level the settings ask for.
pub(crate) fn start(settings: &Settings) {
    let level = match settings.get(&core::VERBOSE) {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let redactor = settings.redactor().clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .without_time()
        .with_ansi(wants_colour(settings))
        .with_writer(move || redactor.writer(std::io::stderr()))
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
