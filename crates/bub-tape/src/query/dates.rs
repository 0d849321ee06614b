//! Parses dates typed by users.

use jiff::{SignedDuration, Timestamp, civil, tz::TimeZone};

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
        let start = range.start.as_deref().map(parse_range_start).transpose()?;
        let end = range.end.as_deref().map(parse_range_end).transpose()?;
        if let (Some(from), Some(to)) = (start, end)
            && from > to
        {
            let message = "invalid date range: the start date is after the end date; swap them";
            return Err(TapeError::InvalidInput(message.to_owned()));
        }
        Ok(Self { start, end })
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

fn parse_range_start(text: &str) -> Result<Timestamp> {
    match parse_bare_date(text) {
        Some(date) => utc_midnight(date).ok_or_else(|| TapeError::invalid_date(text)),
        None => time::parse_date(text.trim()).ok_or_else(|| TapeError::invalid_date(text)),
    }
}

/// Parses the end of a range. A date without time means its last microsecond, as in the Python version.
fn parse_range_end(text: &str) -> Result<Timestamp> {
    let Some(date) = parse_bare_date(text) else {
        return parse_range_start(text);
    };
    let last = utc_midnight(date).and_then(|start| {
        start
            .checked_add(SignedDuration::from_micros(86_399_999_999))
            .ok()
    });
    last.ok_or_else(|| TapeError::invalid_date(text))
}

/// Parses a date without time. The length check is needed because the parser also accepts a date in a longer text.
fn parse_bare_date(text: &str) -> Option<civil::Date> {
    let text = text.trim();
    (text.len() <= 10).then(|| text.parse().ok()).flatten()
}

fn utc_midnight(date: civil::Date) -> Option<Timestamp> {
    date.to_zoned(TimeZone::UTC)
        .ok()
        .map(|zoned| zoned.timestamp())
}
