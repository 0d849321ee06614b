//! Reports whether the files of the workspace take effect.

use bub_settings::TrustItem;

use super::{CheckContext, Finding};

const FIX: &str = "run `bub trust` to list and trust these files, if you trust their author";

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let (trust, report) = (
        check_context.settings.workspace_trust(),
        check_context.settings.trust_report(),
    );
    let mut findings = Vec::new();
    if let Err(error) = trust.records() {
        let fix = "correct or remove the file; until then, bub trusts no workspace";
        findings.push(Finding::warning(error.to_string(), fix));
    }
    let path = |item: &TrustItem| report.relative_path(item).display().to_string();
    let untrusted: Vec<_> = report
        .items
        .iter()
        .filter(|item| !item.is_trusted)
        .collect();
    findings.push(if report.items.is_empty() {
        Finding::ok("nothing in the workspace needs trust")
    } else if untrusted.is_empty() {
        let items: Vec<_> = report.items.iter().map(path).collect();
        Finding::ok(format!("trusted: {}", items.join(", ")))
    } else if report.is_trusted() {
        let items: Vec<_> = untrusted.into_iter().map(path).collect();
        let text = format!("not trusted, but read by the model: {}", items.join(", "));
        Finding::warning(text, FIX)
    } else {
        let declined = if report.is_declined {
            " (declined)"
        } else {
            ""
        };
        let text = format!("not trusted{declined}, ignored: {}", report.ignored_text());
        Finding::warning(text, FIX)
    });
    findings
}
