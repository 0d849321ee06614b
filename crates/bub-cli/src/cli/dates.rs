//! Parses dates and ages in the options of commands.

use std::time::Duration;

use jiff::{
    Timestamp, Zoned,
    civil::{Date, DateTime},
};

pub(super) const SECONDS_PER_HOUR: u64 = 3600;

/// Parses an age, such as `12h`, `30d` or `4w`.
pub(super) fn parse_age(text: &str) -> Result<Duration, &'static str> {
    let parse = || {
        let hours = match text.chars().last()? {
            'h' => 1,
            'd' => 24,
            'w' => 24 * 7,
            _ => return None,
        };
        let number: u64 = text.get(..text.len() - 1)?.parse().ok()?;
        number.checked_mul(hours * SECONDS_PER_HOUR)
    };
    parse()
        .map(Duration::from_secs)
        .ok_or("expected a number followed by h, d or w, for example 30d")
}

/// Parses a date, a date with a time, an age such as `7d`, `today` or `yesterday`. Returns a date or a date with a time
/// in ISO 8601; ages and days are relative to now in the local time zone.
pub(super) fn parse_date(text: &str) -> Result<String, &'static str> {
    let text = text.trim();
    let start_of_day = |days: i64| {
        let day = Zoned::now().date();
        let day = day.checked_sub(jiff::Span::new().days(days)).ok()?;
        let start = day.to_zoned(jiff::tz::TimeZone::system()).ok()?;
        Some(start.timestamp().to_string())
    };
    let date = match text {
        "today" => start_of_day(0),
        "yesterday" => start_of_day(1),
        _ => None,
    };
    let age = || {
        let start = Timestamp::now().checked_sub(parse_age(text).ok()?).ok()?;
        Some(start.to_string())
    };
    let is_iso = || {
        // A date with a time is also a date for the parser.
        match text.len() {
            ..=10 => text.parse::<Date>().is_ok(),
            _ => text.parse::<Timestamp>().is_ok() || text.parse::<DateTime>().is_ok(),
        }
    };
    date.or_else(age)
        .or_else(|| is_iso().then(|| text.to_owned()))
        .ok_or(
            "expected a date such as 2026-01-31 or 2026-01-31T12:00:00Z, an age such as 12h, 7d or 4w, `today` or \
             `yesterday`",
        )
}
