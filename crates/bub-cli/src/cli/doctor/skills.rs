//! Counts the available skills and reports invalid ones.

use bub_agent::Skills;

use super::{super::tape::text, CheckContext, Finding};

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let skills = Skills::new(&check_context.settings);
    let workspace = Some(check_context.framework.workspace());
    let count = skills.list(workspace).len();
    let problems = skills.problems(workspace);
    let problems = problems.iter().map(|problem| {
        Finding::warning(
            problem.to_string(),
            "correct its SKILL.md and run `bub skill check`",
        )
    });
    std::iter::once(Finding::ok(format!(
        "{} available",
        text::format_count(count as u64, "skill", "skills")
    )))
    .chain(problems)
    .collect()
}
