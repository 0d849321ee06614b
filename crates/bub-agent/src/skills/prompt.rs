//! The list of skills in the system prompt. `$name` in a prompt loads a skill.

use std::{fmt::Write, path::Path};

use bub_kernel::State;
use serde_json::Value;

use super::{LoadedSkills, Skills, find_by_name};

impl Skills {
    /// Returns the `<available_skills>` block for a step, or an empty string without skills.
    ///
    /// Skills that `prompt` names as `$name` are included with their text and marked as loaded. `allowed` limits the
    /// block to these skills; `None` means all skills. Each invalid skill is logged once.
    pub fn prompt_block(
        &self,
        workspace: Option<&Path>,
        prompt: &str,
        allowed: Option<&[String]>,
        loaded: &LoadedSkills,
    ) -> String {
        let available = self.workspace_skills(workspace);
        for problem in &available.scan.problems {
            self.warn_once(problem.to_string(), || {
                tracing::warn!(error = %problem, "skill.invalid");
            });
        }
        let mut skills = available.skills.clone();
        skills.retain(|skill| is_skill_allowed(skill.name(), allowed));
        if skills.is_empty() {
            return String::new();
        }
        let named = named_skills(prompt, |name| find_by_name(&skills, name).is_some());
        let mut block = "<available_skills>\n".to_owned();
        for skill in &skills {
            let _ = writeln!(block, "- {}: {}", skill.name(), skill.description());
            let is_name = |name: &&str| skill.name.eq_ignore_ascii_case(name);
            if named.iter().any(is_name) {
                let _ = writeln!(block, "  Location: {}", skill.location());
                let body = self.load(skill, loaded);
                if !body.is_empty() {
                    block.push_str(&body);
                    block.push('\n');
                }
            }
        }
        block.push_str("</available_skills>");
        block
    }
}

/// Returns the skills that this turn may use; `None` means all.
pub(crate) fn allowed_skills(state: &State) -> Option<Vec<String>> {
    state.with_value("allowed_skills", |value| {
        let names = value?.as_array()?.iter();
        Some(names.filter_map(Value::as_str).map(str::to_owned).collect())
    })
}

/// Returns whether `allowed` contains the skill `name`. `None` allows all skills.
pub(crate) fn is_skill_allowed(name: &str, allowed: Option<&[String]>) -> bool {
    allowed.is_none_or(|allowed| {
        allowed
            .iter()
            .any(|allowed_name| allowed_name.trim().eq_ignore_ascii_case(name))
    })
}

/// Returns the names of skills that follow a `$` in the text. `is_known` tells whether a skill with this name exists. A
/// period at the end of a sentence is not part of a name.
fn named_skills(text: &str, is_known: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut names = Vec::new();
    for after in text.split('$').skip(1) {
        let end = after.find(|c: char| !matches!(c, '_' | '.' | '-') && !c.is_ascii_alphanumeric());
        let mut name = after.get(..end.unwrap_or(after.len())).unwrap_or_default();
        while !name.is_empty() && !is_known(name) {
            name = name.strip_suffix(['.', '-', '_']).unwrap_or_default();
        }
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
