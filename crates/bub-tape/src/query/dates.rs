//! Dates as people type them.

use jiff::{SignedDuration, Timestamp, civil, tz::TimeZone};

use super::DateRange;
use crate::{Result, TapeError, time};

/// The moments of a [`DateRange`], both inclusive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TimestampRange {
    start: Option<Timestamp>,
    end: Option<Timestamp>,
}

impl TimestampRange {
    /// Reads both ends; a wrong one is an error, and so is a range that runs backwards.
    pub(crate) fn read(range: &DateRange) -> Result<Self> {
        let start = range.start.as_deref().map(first_moment).transpose()?;
        let end = range.end.as_deref().map(last_moment).transpose()?;
        if let (Some(from), Some(to)) = (start, end)
            && from > to
        {
            let message = "The start date must not be after the end date.";
            return Err(TapeError::InvalidInput(message.to_owned()));
        }
        Ok(Self { start, end })
    }

    /// Whether it leaves everything in.
    pub(crate) fn is_open(&self) -> bool {
        self.start.is_none() && self.end.is_none()
    }

    /// Whether the date of an entry lies in it. A date nobody can read lies in an open range only.
    pub(crate) fn contain(&self, date: &str) -> bool {
        self.is_open()
            || time::parse(date).is_some_and(|moment| {
                self.start.is_none_or(|start| start <= moment)
                    && self.end.is_none_or(|end| moment <= end)
            })
    }
}

fn first_moment(text: &str) -> Result<Timestamp> {
    match bare_date(text) {
        Some(date) => midnight(date).ok_or_else(|| TapeError::bad_date(text)),
        None => time::parse(text.trim()).ok_or_else(|| TapeError::bad_date(text)),
    }
}

/// The last microsecond of a bare date: what the original means by its end.
fn last_moment(text: &str) -> Result<Timestamp> {
    let Some(date) = bare_date(text) else {
        return first_moment(text);
    };
    let last = midnight(date).and_then(|start| {
        start
            .checked_add(SignedDuration::from_micros(86_399_999_999))
            .ok()
    });
    last.ok_or_else(|| TapeError::bad_date(text))
}

/// A date without a time. The parser would also take the date out of a longer text, hence the length.
fn bare_date(text: &str) -> Option<civil::Date> {
    let text = text.trim();
    (text.len() <= 10).then(|| text.parse().ok()).flatten()
}

fn midnight(date: civil::Date) -> Option<Timestamp> {
    date.to_zoned(TimeZone::UTC)
        .ok()
        .map(|zoned| zoned.timestamp())
}
