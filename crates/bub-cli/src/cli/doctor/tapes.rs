//! Checks the newest tapes, as many as fit into [`CHECK_TIMEOUT`].

use std::{
    cmp::Reverse,
    time::{Duration, Instant},
};

use bub_tape::{Durability, FileStore, TapeListFilter, TapeStore as _};

use super::{CheckContext, Finding};

/// Time limit of the check. `bub tape check` has none.
const CHECK_TIMEOUT: Duration = Duration::from_millis(80);
const REPAIR_FIX: &str = "run `bub tape check --repair`";

pub(super) async fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let end = Instant::now() + CHECK_TIMEOUT;
    let directory = check_context.settings.home().join("tapes");
    let store = FileStore::new(&directory, Durability::Os);
    let mut names = match store.list(TapeListFilter::Sessions).await {
        Ok(names) => names,
        Err(error) => {
            let fix = "make the directory readable for your user";
            return vec![Finding::error(error.to_string(), fix)];
        }
    };
    let age = |name: &bub_tape::TapeName| {
        let file = std::fs::metadata(directory.join(format!("{}.jsonl", name.as_str())));
        Reverse(file.and_then(|metadata| metadata.modified()).ok())
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
            Ok(verify_report) => {
                let mut damage = verify_report.damage.iter();
                let damage = damage.find(|damage| !damage.is_acceptable());
                damage.map(ToString::to_string)
            }
            Err(error) => Some(error.to_string()),
        };
        let problem = damage.map(|damage| format!("{}: {damage}", name.as_str()));
        findings.extend(problem.map(|problem| Finding::error(problem, REPAIR_FIX)));
    }
    let hint = if checked == names.len() {
        ""
    } else {
        "; run `bub tape check` to check all"
    };
    let summary = format!("checked {checked} of {} sessions{hint}", names.len());
    findings.insert(0, Finding::ok(summary));
    findings
}
