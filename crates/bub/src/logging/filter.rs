//! The filter of log lines by level and target, such as `warn,bub_model=debug`.

use tracing::{Level, level_filters::LevelFilter};

/// A default level, and levels for targets with a prefix.
pub(super) struct LogFilter {
    all: LevelFilter,
    targets: Vec<(String, LevelFilter)>,
}

impl LogFilter {
    /// Creates the filter for a verbosity: 0 for warn, 1 for info, 2 for debug, more for trace.
    pub(super) fn for_verbosity(verbosity: u64) -> Self {
        let all = match verbosity {
            0 => LevelFilter::WARN,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        Self {
            all,
            targets: Vec::new(),
        }
    }

    /// Parses a filter in the format of the setting `log.filter`. Returns `None` if it is invalid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut filter = Self::for_verbosity(0);
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (target, level) = part
                .split_once('=')
                .map_or((None, part), |(target, level)| (Some(target), level));
            let level = level.trim().parse().ok()?;
            match target {
                Some(target) => filter.targets.push((target.trim().to_owned(), level)),
                None => filter.all = level,
            }
        }
        // The longest matching prefix decides.
        filter
            .targets
            .sort_by_key(|(target, _)| std::cmp::Reverse(target.len()));
        Some(filter)
    }

    /// Returns whether lines of this target and level are logged.
    pub(super) fn is_allowed(&self, target: &str, level: Level) -> bool {
        let named = self
            .targets
            .iter()
            .find(|(name, _)| target.starts_with(name.as_str()));
        level <= named.map_or(self.all, |(_, level)| *level)
    }

    /// Returns the most verbose level that the filter allows for any target.
    pub(super) fn max_level(&self) -> LevelFilter {
        self.targets
            .iter()
            .map(|(_, level)| *level)
            .fold(self.all, Ord::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_target_decides() {
        let filter = LogFilter::parse("error, bub_model=debug,bub_model::client=off").unwrap();
        assert!(
            filter.is_allowed("bub_agent", Level::ERROR)
                && !filter.is_allowed("bub_agent", Level::WARN)
        );
        assert!(
            filter.is_allowed("bub_model::keys", Level::DEBUG)
                && !filter.is_allowed("bub_model", Level::TRACE)
        );
        assert!(!filter.is_allowed("bub_model::client::call", Level::ERROR));
        assert_eq!(filter.max_level(), LevelFilter::DEBUG);
    }

    #[test]
    fn a_level_that_is_none_makes_no_filter() {
        assert!(LogFilter::parse("bub=loud").is_none());
    }
}
