//! Checks the free disk space of the home.

use rustix::fs::statvfs;

use super::{super::tape::text, CheckContext, Finding};

const FREE_SPACE_FIX: &str = "free disk space, or move the home to another disk with BUB_HOME";

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    // The home may not exist yet; then the closest existing parent counts.
    let mut parents = check_context.settings.home().ancestors();
    let Some(stat) = parents.find_map(|path| statvfs(path).ok()) else {
        return Vec::new();
    };
    // Such as `/proc`. The check of the home reports that it cannot be written.
    if stat.f_blocks == 0 {
        return Vec::new();
    }
    let bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
    let free = format!("{} free", text::format_bytes(bytes));
    let has_no_inodes = stat.f_files > 0 && stat.f_favail == 0;
    vec![match bytes {
        _ if has_no_inodes => {
            Finding::error("no free inodes: files cannot be created", FREE_SPACE_FIX)
        }
        0..100_000_000 => Finding::error(free, FREE_SPACE_FIX),
        100_000_000..1_000_000_000 => Finding::warning(free, FREE_SPACE_FIX),
        _ => Finding::ok(free),
    }]
}
