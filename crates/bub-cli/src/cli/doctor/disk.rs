//! Space for what is to be remembered.

use std::path::Path;

use rustix::fs::statvfs;

use super::{super::tape::text, CheckContext, Finding};

const FREE_SPACE_FIX: &str = "make room, or move the home to another disk with BUB_HOME";

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let mut place: Option<&Path> = Some(check_context.settings.home());
    let Some(found) = std::iter::from_fn(|| {
        let this = place?;
        place = this.parent();
        Some(statvfs(this).ok())
    })
    .find_map(|found| found) else {
        return Vec::new();
    };
    let bytes = found.f_bavail.saturating_mul(found.f_frsize);
    let free = format!("{} free", text::bytes(bytes));
    let none_left = found.f_files > 0 && found.f_favail == 0;
    vec![match bytes {
        _ if none_left => Finding::error("no file can be created any more", FREE_SPACE_FIX),
        0..100_000_000 => Finding::error(free, FREE_SPACE_FIX),
        100_000_000..1_000_000_000 => Finding::warning(free, FREE_SPACE_FIX),
        _ => Finding::ok(free),
    }]
}
