//! The tool that opens a skill.

use std::{path::PathBuf, sync::Arc};

use bub_kernel::{Error, Result, State, ToolContext, tool};
use serde_json::Value;

use crate::skills::{LoadedSkills, Skills, is_allowed};

/// Opens a skill: returns where it is and what it says. Without a name, lists the skills there are.
#[tool(crate = bub_kernel, name = "skill", read_only)]
pub fn skill(
    context: &ToolContext,
    /// The name of the skill.
    name: Option<String>,
) -> Result<String> {
    let state = &context.state;
    let skills = state
        .slot::<Skills>()
        .ok_or_else(|| Error::config("there are no skills in this turn"))?;
    let workspace = state.get_str("_runtime_workspace").map(PathBuf::from);
    let allowed = allowed(state);
    let name = name
        .as_deref()
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let Some(name) = name else {
        let mut lines = "Available skills:".to_owned();
        for skill in skills.list(workspace.as_deref()) {
            if is_allowed(skill.name(), allowed.as_deref()) {
                lines.push_str("\n- ");
                lines.push_str(skill.name());
            }
        }
        return Ok(lines);
    };
    if !is_allowed(name, allowed.as_deref()) {
        return Ok(format!("(skill '{name}' is not allowed in this context)"));
    }
    let Some(skill) = skills.find(workspace.as_deref(), name) else {
        return Ok("(no such skill)".to_owned());
    };
    let loaded = state.slot::<LoadedSkills>().unwrap_or_else(|| {
        let fresh = Arc::new(LoadedSkills::default());
        state.put_slot(Arc::clone(&fresh));
        fresh
    });
    let body = skills.load(&skill, &loaded);
    let body = if body.is_empty() {
        "(no content)"
    } else {
        &body
    };
    Ok(format!("Location: {}\n---\n{body}", skill.location()))
}

/// The only skills this turn may use; `None`: all.
fn allowed(state: &State) -> Option<Vec<String>> {
    state.with("allowed_skills", |value| {
        let names = value?.as_array()?.iter();
        Some(names.filter_map(Value::as_str).map(str::to_owned).collect())
    })
}
