//! Dates in the formats of the Python version.

use jiff::{Timestamp, civil, tz::TimeZone};

/// Returns the current time in the format of the Python version: UTC with microseconds and `+00:00`.
pub fn now_iso() -> String {
    format_iso(Timestamp::now())
}

/// Returns a new run id: `run-` and the current UTC time with microseconds.
pub fn new_run_id() -> String {
    Timestamp::now()
        .strftime("run-%Y%m%dT%H%M%S%6fZ")
        .to_string()
}

/// Returns the current UTC time in the format used in archive names, such as `20261116T093000Z`.
pub fn archive_stamp() -> String {
    Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Formats a time as it is written on tapes.
pub(crate) fn format_iso(timestamp: Timestamp) -> String {
    let has_no_micros = timestamp.subsec_nanosecond() / 1_000 == 0;
    let format = if has_no_micros {
        "%Y-%m-%dT%H:%M:%S+00:00"
    } else {
        "%Y-%m-%dT%H:%M:%S.%6f+00:00"
    };
    timestamp.strftime(format).to_string()
}

/// Returns the date of a legacy entry that has only a `timestamp`, in seconds since the Unix epoch.
pub(crate) fn format_unix(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a float outside i64 saturates and is then rejected by jiff"
    )]
    let micros = (seconds * 1e6).round() as i64;
    format_iso(Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Parses an ISO 8601 date. Without an offset or `Z` it is in UTC, and without a time it is midnight.
pub(crate) fn parse_date(date: &str) -> Option<Timestamp> {
    if let Ok(timestamp) = date.parse::<Timestamp>() {
        return Some(timestamp);
    }
    let naive: civil::DateTime = date.parse().ok()?;
    TimeZone::UTC.to_timestamp(naive).ok()
}
