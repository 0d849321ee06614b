//! The clock: tokens expire by it, and tapes are dated by it.

use jiff::{Timestamp, Zoned};

use super::{CheckContext, Finding};

/// No computer that runs this program lives before (2026-01-01).
const MIN_UNIX_SECONDS: i64 = 1_767_225_600;
const SET_CLOCK_FIX: &str = "set the clock, best by time synchronisation";

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let now = Timestamp::now();
    let shown = Zoned::now().strftime("%Y-%m-%d %H:%M:%S %Z").to_string();
    if now.as_second() < MIN_UNIX_SECONDS {
        return vec![Finding::error(
            format!("{shown} is long ago"),
            SET_CLOCK_FIX,
        )];
    }
    let tapes = check_context.settings.home().join("tapes");
    let latest = std::fs::read_dir(tapes)
        .into_iter()
        .flatten()
        .filter_map(|file| file.ok()?.metadata().ok()?.modified().ok());
    let latest = latest
        .max()
        .and_then(|moment| Timestamp::try_from(moment).ok());
    vec![
        match latest.filter(|latest| latest.as_second() > now.as_second() + 3600) {
            Some(latest) => Finding::warning(
                format!("{shown}, but there are tapes from {latest}"),
                SET_CLOCK_FIX,
            ),
            None => Finding::ok(shown),
        },
    ]
}
