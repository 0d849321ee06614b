//! The headers `Retry-After` (seconds or a date) and `retry-after-ms` (milliseconds).

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

use crate::classify::clamped_duration;

/// Returns the delay that a server requests in the headers of its response, if any.
pub(super) fn parse_retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::trim)
    };
    if let Some(millis) = text("retry-after-ms").and_then(|millis| millis.parse::<f64>().ok()) {
        return clamped_duration(millis / 1000.0);
    }
    let requested = text(RETRY_AFTER.as_str())?;
    if let Ok(seconds) = requested.parse::<f64>() {
        return clamped_duration(seconds);
    }
    // Prefer the server's clock, so that a wrong local clock does not matter.
    let now = text(DATE.as_str())
        .and_then(parse_date)
        .unwrap_or_else(Timestamp::now);
    Duration::try_from(parse_date(requested)?.duration_since(now))
        .ok()
        .or(Some(Duration::ZERO))
}

fn parse_date(text: &str) -> Option<Timestamp> {
    DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested_delay(pairs: &[(&'static str, &'static str)]) -> Option<Duration> {
        let headers = pairs.iter().map(|(name, value)| {
            (
                name.parse::<reqwest::header::HeaderName>().unwrap(),
                value.parse().unwrap(),
            )
        });
        parse_retry_after(&headers.collect())
    }

    #[test]
    fn seconds_milliseconds_and_dates_are_understood() {
        let now = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(
            requested_delay(&[("retry-after", "7")]),
            Some(Duration::from_secs(7))
        );
        assert_eq!(
            requested_delay(&[("retry-after", " 1.5 ")]),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(
            requested_delay(&[("retry-after-ms", "250"), ("retry-after", "1")]),
            Some(Duration::from_millis(250))
        );
        assert_eq!(
            requested_delay(&[now, ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")]),
            Some(Duration::from_secs(30))
        );
        assert_eq!(
            requested_delay(&[now, ("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")]),
            Some(Duration::ZERO)
        );
        assert_eq!(
            requested_delay(&[("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")]),
            Some(Duration::ZERO)
        );
        for odd in ["soon", "", "-5", "NaN", "Sun, 99 Nov 1994"] {
            assert_eq!(requested_delay(&[("retry-after", odd)]), None, "{odd}");
        }
        for long in ["inf", "1e300", "99999999999999999999999"] {
            assert!(
                requested_delay(&[("retry-after", long)]) > Some(Duration::from_hours(1)),
                "{long}"
            );
        }
        assert_eq!(requested_delay(&[]), None);
    }
}
