//! The tool `skill`.

use std::sync::Arc;

use bub_kernel::{ToolContext, tools};
use serde_json::{Value, json};

use super::titled_schema;
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
    /// Load a skill that the task needs, or list all skills
    #[tool(name = "skill", read_only, render = render_skill, output = skill_schema)]
    fn skill(&self, context: &ToolContext, name: Option<String>) -> Value {
        let state = context.state();
        let skills = &self.skills;
        let workspace = crate::workspace(state);
        let allowed = allowed_skills(state);
        let name = name
            .as_deref()
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let Some(name) = name else {
            let all = skills.list(workspace.as_deref());
            let names = all.iter().map(|skill| skill.name());
            let is_allowed = |name: &&str| is_skill_allowed(name, allowed.as_deref());
            return json!({"skills": names.filter(is_allowed).collect::<Vec<_>>()});
        };
        if !is_skill_allowed(name, allowed.as_deref()) {
            return json!({"error": format!("(skill '{name}' is not allowed in this context)")});
        }
        let Some(skill) = skills.find(workspace.as_deref(), name) else {
            return json!({"error": "(no such skill)"});
        };
        let body = skills.load(&skill, &LoadedSkills::from_state(state));
        json!({"name": skill.name(), "location": skill.location(), "content": body})
    }
}

/// Returns the list of skills, the text of a skill, or the error.
fn render_skill(result: &Value) -> Option<String> {
    let text = |name: &str| result.get(name).and_then(Value::as_str);
    if let Some(names) = result.get("skills").and_then(Value::as_array) {
        let names = names.iter().filter_map(Value::as_str);
        let lines = std::iter::once("Available skills:").chain(names);
        return Some(lines.collect::<Vec<_>>().join("\n- "));
    }
    if let Some(error) = text("error") {
        return Some(error.to_owned());
    }
    let (location, content) = (text("location")?, text("content")?);
    let content = if content.is_empty() {
        "(no content)"
    } else {
        content
    };
    Some(format!("Location: {location}\n---\n{content}"))
}

fn skill_schema() -> Value {
    let text = json!({"type": "string"});
    json!({"anyOf": [
        titled_schema("SkillList", &json!({"skills": {"type": "array", "items": text}})),
        titled_schema("SkillContent", &json!({"name": text, "location": text, "content": text})),
        titled_schema("SkillFailure", &json!({"error": text})),
    ]})
}
