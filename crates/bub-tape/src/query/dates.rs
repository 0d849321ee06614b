//! Parses dates typed by users.

use jiff::{Timestamp, civil, tz::TimeZone};

use super::DateRange;
use crate::{Result, TapeError, time};

/// A parsed [`DateRange`]. Both ends are inclusive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TimestampRange {
    start: Option<Timestamp>,
    end: Option<Timestamp>,
}

impl TimestampRange {
    /// Parses both ends. Fails if a date is invalid or the start is after the end.
    pub(crate) fn parse(range: &DateRange) -> Result<Self> {
        let parse = |text: &Option<String>, default_time| {
            let bound = text.as_deref().map(|text| parse_bound(text, default_time));
            bound.transpose()
        };
        let start = parse(&range.start, civil::Time::midnight())?;
        // A date without time means its last microsecond, as in the Python version.
        let end = parse(&range.end, civil::time(23, 59, 59, 999_999_000))?;
        if let (Some(from), Some(to)) = (start, end)
            && from > to
        {
            let message = "invalid date range: the start date is after the end date; swap them";
            return Err(TapeError::InvalidInput(message.to_owned()));
        }
        Ok(Self { start, end })
    }

    /// Restricts the range to times from `after` on and before `before`.
    pub(crate) fn narrow(&mut self, after: Option<Timestamp>, before: Option<Timestamp>) {
        let microsecond = jiff::SignedDuration::from_micros(1);
        let before = before.and_then(|before| before.checked_sub(microsecond).ok());
        self.start = self.start.max(after);
        self.end = [self.end, before].into_iter().flatten().min();
    }

    /// Returns the first and the last second of the range, as far as they can be represented.
    pub(crate) fn to_seconds(self) -> (u32, u32) {
        let seconds = |bound: Option<Timestamp>, unbounded: u32| {
            bound.map_or(unbounded, |bound| {
                u32::try_from(bound.as_second().max(0)).unwrap_or(u32::MAX)
            })
        };
        (seconds(self.start, 0), seconds(self.end, u32::MAX))
    }

    /// Returns whether the range is unbounded.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.start.is_none() && self.end.is_none()
    }

    /// Returns whether the range contains the date of an entry. Only the unbounded range contains invalid dates.
    pub(crate) fn contains(&self, date: &str) -> bool {
        self.is_unbounded()
            || time::parse_date(date).is_some_and(|timestamp| {
                self.start.is_none_or(|start| start <= timestamp)
                    && self.end.is_none_or(|end| timestamp <= end)
            })
    }
}

/// Parses a date with or without a time. `default_time` is the time of a date without one.
pub(crate) fn parse_bound(text: &str, default_time: civil::Time) -> Result<Timestamp> {
    let trimmed = text.trim();
    // The length check is needed because the parser also accepts a date with a time.
    let date = (trimmed.len() <= 10).then(|| trimmed.parse::<civil::Date>());
    let timestamp = match date {
        Some(Ok(date)) => TimeZone::UTC
            .to_timestamp(date.to_datetime(default_time))
            .ok(),
        _ => time::parse_date(trimmed),
    };
    timestamp.ok_or_else(|| TapeError::invalid_date(text))
}
