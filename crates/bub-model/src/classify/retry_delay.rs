//! Delays in error messages: "try again in 1m2.5s", "retry after 26 seconds".

use std::time::Duration;

use super::rules::RULES;

/// Returns the delay in a message, if it contains one.
pub(super) fn delay_in_text(text: &str) -> Option<Duration> {
    let text = text.to_lowercase();
    let mut prefixes = RULES.delay_prefixes.iter();
    prefixes.find_map(|prefix| parse_duration(text.split_once(prefix)?.1))
}

/// Maximum delay: one year in seconds.
const MAX_DELAY_SECONDS: f64 = 365.0 * 24.0 * 3600.0;

/// Converts seconds to a duration. Values that are too large, even infinity, become the maximum and not `None`.
pub(crate) fn clamped_duration(seconds: f64) -> Option<Duration> {
    // Negative numbers and NaN stay invalid.
    Duration::try_from_secs_f64(seconds.clamp(-1.0, MAX_DELAY_SECONDS)).ok()
}

/// Parses a duration at the beginning of `text`: one or more numbers with units.
fn parse_duration(mut text: &str) -> Option<Duration> {
    let mut total: Option<Duration> = None;
    loop {
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, rest) = text.split_at_checked(digits)?;
        let Ok(number) = number.trim_end_matches('.').parse::<f64>() else {
            return total;
        };
        let rest = rest.trim_start();
        let letters = rest
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(rest.len());
        let (unit, after) = rest.split_at_checked(letters)?;
        let seconds = match unit {
            "ms" | "milliseconds" => number / 1000.0,
            "s" | "sec" | "secs" | "second" | "seconds" => number,
            "m" | "min" | "minute" | "minutes" => number * 60.0,
            "h" | "hour" | "hours" => number * 3600.0,
            _ => return total,
        };
        let more = clamped_duration(seconds)?;
        total = Some(total.unwrap_or_default().saturating_add(more));
        text = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_times_are_found_in_words() {
        let cases = [
            ("Please try again in 6.5s. Visit", Some(6_500)),
            ("Please try again in 1m2s.", Some(62_000)),
            ("try again in 20ms", Some(20)),
            ("Please retry after 26 seconds.", Some(26_000)),
            ("retry in 25s", Some(25_000)),
            ("Please wait 2 minutes", Some(120_000)),
            ("Please try again later.", None),
            ("please wait before trying again", None),
            (
                "retry after 99999999999999999999999 hours",
                Some(31_536_000_000),
            ),
        ];
        for (text, millis) in cases {
            assert_eq!(
                delay_in_text(text),
                millis.map(Duration::from_millis),
                "{text}"
            );
        }
    }
}
