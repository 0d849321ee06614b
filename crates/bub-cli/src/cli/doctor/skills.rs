//! The skills, and those that cannot be used.

use bub_agent::Skills;

use super::{Finding, Patient};

pub(super) fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let skills = Skills::new(&patient.settings);
    let workspace = Some(patient.framework.workspace());
    let count = skills.list(workspace).len();
    let problems = skills.problems(workspace);
    let problems = problems.iter().map(|problem| {
        Finding::doubtful(
            problem.to_string(),
            "correct its SKILL.md; `bub skill check` says when it is right",
        )
    });
    std::iter::once(Finding::fine(format!("{count} can be used here")))
        .chain(problems)
        .collect()
}
