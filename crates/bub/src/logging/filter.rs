//! The filter of log lines by level and target, such as `warn,bub_model=debug`.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// Returns the filter for a verbosity: 0 for warn, 1 for info, 2 for debug, more for trace.
pub(super) fn for_verbosity(verbosity: u64) -> Targets {
    Targets::new().with_default(match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    })
}

/// Parses a filter in the format of the setting `log.filter`. Returns `None` if it is invalid.
pub(super) fn parse(text: &str) -> Option<Targets> {
    // `Targets` parses a target without a level as `TARGET=trace`; the setting requires a level.
    let mut filter = for_verbosity(0);
    let parts = text.split(',').map(str::trim);
    for part in parts.filter(|part| !part.is_empty()) {
        let (target, level) = part.split_once('=').unwrap_or(("", part));
        let level: LevelFilter = level.trim().parse().ok()?;
        filter = match target.trim() {
            "" => filter.with_default(level),
            target => filter.with_target(target, level),
        };
    }
    Some(filter)
}

/// Returns the most verbose level that the filter allows for any target.
pub(super) fn max_level(filter: &Targets) -> LevelFilter {
    let levels = filter.iter().map(|(_, level)| level);
    levels
        .chain(filter.default_level())
        .max()
        .unwrap_or(LevelFilter::OFF)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn the_longest_target_decides() {
        let filter = parse("error, bub_model=debug,bub_model::client=off").unwrap();
        assert!(
            filter.would_enable("bub_agent", &Level::ERROR)
                && !filter.would_enable("bub_agent", &Level::WARN)
        );
        assert!(
            filter.would_enable("bub_model::keys", &Level::DEBUG)
                && !filter.would_enable("bub_model", &Level::TRACE)
        );
        assert!(!filter.would_enable("bub_model::client::call", &Level::ERROR));
        assert_eq!(max_level(&filter), LevelFilter::DEBUG);
    }

    #[test]
    fn a_level_that_is_none_makes_no_filter() {
        assert!(parse("bub=loud").is_none());
    }
}
