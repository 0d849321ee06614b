//! The tool `skill`.

use std::sync::Arc;

use bub_kernel::{ToolContext, tools};

use crate::skills::{LoadedSkills, Skills, allowed_skills, is_skill_allowed};

/// The tool that loads skills.
pub struct SkillTools {
    skills: Arc<Skills>,
}

impl SkillTools {
    /// Creates the tool.
    pub fn new(skills: Arc<Skills>) -> Self {
        Self { skills }
    }
}

#[tools(crate = bub_kernel)]
impl SkillTools {
    /// Load a skill, or list all skills. Returns the location and the text of the skill.
    #[tool(name = "skill", read_only)]
    fn skill(
        &self,
        context: &ToolContext,
        /// Name of the skill; omit it to list all skills
        name: Option<String>,
    ) -> String {
        let state = context.state();
        let skills = &self.skills;
        let workspace = crate::workspace(state);
        let allowed = allowed_skills(state);
        let name = name
            .as_deref()
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let Some(name) = name else {
            let mut lines = "Available skills:".to_owned();
            for skill in skills.list(workspace.as_deref()) {
                if is_skill_allowed(skill.name(), allowed.as_deref()) {
                    lines.push_str("\n- ");
                    lines.push_str(skill.name());
                }
            }
            return lines;
        };
        if !is_skill_allowed(name, allowed.as_deref()) {
            return format!("(skill '{name}' is not allowed in this context)");
        }
        let Some(skill) = skills.find(workspace.as_deref(), name) else {
            return "(no such skill)".to_owned();
        };
        let body = skills.load(&skill, &LoadedSkills::from_state(state));
        let body = if body.is_empty() {
            "(no content)"
        } else {
            &body
        };
        format!("Location: {}\n---\n{body}", skill.location())
    }
}
