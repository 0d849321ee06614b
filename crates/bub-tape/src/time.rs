//! Dates as the original writes and reads them.

use jiff::{Timestamp, civil, tz::TimeZone};

/// The current moment as the original writes it: UTC, microseconds, `+00:00`.
pub fn now_iso() -> String {
    iso(Timestamp::now())
}

/// A run id: `run-` and the UTC moment with microseconds.
pub fn run_id() -> String {
    Timestamp::now()
        .strftime("run-%Y%m%dT%H%M%S%6fZ")
        .to_string()
}

/// The stamp in the name of an archive.
pub fn archive_stamp() -> String {
    Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// A moment in the tape's date format.
pub(crate) fn iso(moment: Timestamp) -> String {
    let whole = moment.subsec_nanosecond() / 1_000 == 0;
    let format = if whole {
        "%Y-%m-%dT%H:%M:%S+00:00"
    } else {
        "%Y-%m-%dT%H:%M:%S.%6f+00:00"
    };
    moment.strftime(format).to_string()
}

/// The date of a legacy entry that carries only a float `timestamp`.
pub(crate) fn from_unix(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a float outside i64 saturates and is then refused by jiff"
    )]
    let micros = (seconds * 1e6).round() as i64;
    iso(Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Reads a date with offset, with `Z`, or naive (then UTC).
pub(crate) fn parse(date: &str) -> Option<Timestamp> {
    if let Ok(moment) = date.parse::<Timestamp>() {
        return Some(moment);
    }
    let naive: civil::DateTime = date.parse().ok()?;
    naive
        .to_zoned(TimeZone::UTC)
        .ok()
        .map(|zoned| zoned.timestamp())
}
