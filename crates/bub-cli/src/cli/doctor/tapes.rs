//! The tapes: the latest are read, as many as fit into a moment.

use std::{
    cmp::Reverse,
    time::{Duration, Instant},
};

use bub_tape::{Durability, FileStore, TapeListFilter, TapeStore as _};

use super::{super::tape::text, CheckContext, Finding};

/// How long this may take; `bub tape check` has all the time.
const CHECK_TIMEOUT: Duration = Duration::from_millis(80);
const REPAIR_FIX: &str = "`bub tape check --repair` puts in order what can be";

pub(super) async fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let end = Instant::now() + CHECK_TIMEOUT;
    let directory = check_context.settings.home().join("tapes");
    let store = FileStore::new(&directory, Durability::Os);
    let mut names = match store.list(TapeListFilter::Sessions).await {
        Ok(names) => names,
        Err(error) => {
            return vec![Finding::error(
                error.to_string(),
                "let your user read the directory",
            )];
        }
    };
    let age = |name: &bub_tape::TapeName| {
        let file = directory.join(format!("{}.jsonl", name.as_str()));
        Reverse(
            std::fs::metadata(file)
                .and_then(|found| found.modified())
                .ok(),
        )
    };
    names.sort_by_cached_key(age);
    let (mut checked, mut findings) = (0, Vec::new());
    for name in &names {
        let left = end.saturating_duration_since(Instant::now());
        let Ok(verify_report) = tokio::time::timeout(left, store.verify(name)).await else {
            break;
        };
        checked += 1;
        let damage = match verify_report {
            Ok(verify_report) => verify_report
                .damage
                .iter()
                .find(|damage| !damage.is_acceptable())
                .map(ToString::to_string),
            Err(error) => Some(error.to_string()),
        };
        findings.extend(
            damage.map(|damage| Finding::error(format!("{}: {damage}", name.as_str()), REPAIR_FIX)),
        );
    }
    let of = text::count(names.len() as u64, "session", "sessions");
    let rest = if checked == names.len() {
        ""
    } else {
        "; `bub tape check` reads all"
    };
    findings.insert(
        0,
        Finding::ok(format!("the latest {checked} of {of} checked{rest}")),
    );
    findings
}
