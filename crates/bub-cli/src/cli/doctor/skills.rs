//! Counts the available skills and reports invalid ones.

use bub_agent::Skills;

use super::{super::tape::text, CheckContext, Finding};

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let skills = Skills::new(&check_context.settings);
    let workspace = Some(check_context.framework.workspace());
    let count = text::format_count(skills.list(workspace).len(), "skill", "skills");
    let mut findings = vec![Finding::ok(format!("{count} available"))];
    for problem in skills.problems(workspace) {
        let fix = "correct its SKILL.md and run `bub skill check`";
        findings.push(Finding::warning(problem.to_string(), fix));
    }
    findings
}
