//! The skills, and those that cannot be used.

use bub_agent::Skills;

use super::{CheckContext, Finding};

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let skills = Skills::new(&check_context.settings);
    let workspace = Some(check_context.framework.workspace());
    let count = skills.list(workspace).len();
    let problems = skills.problems(workspace);
    let problems = problems.iter().map(|problem| {
        Finding::warning(
            problem.to_string(),
            "correct its SKILL.md; `bub skill check` says when it is right",
        )
    });
    std::iter::once(Finding::ok(format!("{count} can be used here")))
        .chain(problems)
        .collect()
}
