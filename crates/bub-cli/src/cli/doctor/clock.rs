//! Checks the clock, which dates tapes and decides when tokens expire.

use jiff::{Timestamp, Zoned};

use super::{CheckContext, Finding};

/// Earliest plausible time, 2026-01-01 in Unix seconds. This program did not exist before.
const MIN_UNIX_SECONDS: i64 = 1_767_225_600;
const SET_CLOCK_FIX: &str = "set the clock, preferably with time synchronization";

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let now = Timestamp::now();
    let now_text = Zoned::now().strftime("%Y-%m-%d %H:%M:%S %Z").to_string();
    if now.as_second() < MIN_UNIX_SECONDS {
        let text = format!("wrong time: {now_text} is in the past");
        return vec![Finding::error(text, SET_CLOCK_FIX)];
    }
    let tapes = std::fs::read_dir(check_context.settings.home().join("tapes"));
    let times = tapes.into_iter().flatten();
    let times = times.filter_map(|file| file.ok()?.metadata().ok()?.modified().ok());
    let latest = times.max().and_then(|time| Timestamp::try_from(time).ok());
    let is_ahead = |latest: &Timestamp| latest.as_second() > now.as_second() + 3600;
    vec![match latest.filter(is_ahead) {
        Some(latest) => Finding::warning(
            format!("{now_text}, but the newest tape is from {latest}"),
            SET_CLOCK_FIX,
        ),
        None => Finding::ok(now_text),
    }]
}
