//! Finds tools by name.

use std::sync::Arc;

use bub_kernel::{Error, Result, Tool, ToolSpec};

/// Returns the names of a tool's parameters, separated by commas. Optional parameters have a question mark.
pub(super) fn parameter_list(spec: &ToolSpec) -> String {
    let names = spec.parameters().into_iter();
    let names: Vec<_> = names
        .map(|(name, is_required)| format!("{name}{}", if is_required { "" } else { "?" }))
        .collect();
    names.join(", ")
}

/// Returns the tools with these names in registration order. Ignores case and surrounding whitespace, and accepts the
/// names that the model uses, such as `fs_read`. Fails if a name is unknown.
pub fn select_tools<S: AsRef<str>>(
    names: &[S],
    tools: &[Arc<dyn Tool>],
) -> Result<Vec<Arc<dyn Tool>>> {
    let is_match = |name: &S, tool: &Arc<dyn Tool>| has_name(tool.spec(), name.as_ref().trim());
    let is_unknown = |name: &&S| !tools.iter().any(|tool| is_match(name, tool));
    let unknown = names.iter().filter(is_unknown);
    let unknown: Vec<_> = unknown
        .map(|name| format!("'{}'", name.as_ref().trim()))
        .collect();
    if !unknown.is_empty() {
        let text = format!("unknown tool name(s): {}", unknown.join(", "));
        return Err(Error::invalid_input(text));
    }
    let is_selected = |tool: &&Arc<dyn Tool>| names.iter().any(|name| is_match(name, tool));
    Ok(tools.iter().filter(is_selected).cloned().collect())
}

/// Finds the tool that the model named. The error suggests similar names.
pub fn find_tool<'a>(name: &str, tools: &'a [Arc<dyn Tool>]) -> Result<&'a Arc<dyn Tool>> {
    let is_for_model = |tool: &&Arc<dyn Tool>| tool.spec().exposure.is_for_model();
    let model_tools = || tools.iter().filter(is_for_model);
    // Prefer the exact name, because two names may differ only in case.
    let exact =
        model_tools().find(|tool| tool.spec().model_name() == name || tool.spec().name == name);
    if let Some(tool) =
        exact.or_else(|| model_tools().find(|tool| has_name(tool.spec(), name.trim())))
    {
        return Ok(tool);
    }
    let names: Vec<_> = model_tools().map(|tool| tool.spec().model_name()).collect();
    Err(Error::not_found(unknown_tool_guidance(name, &names)))
}

/// Minimum similarity of a suggested name, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.6;
/// Maximum number of suggested names.
const MAX_SUGGESTIONS: usize = 3;

/// Returns the guidance for a model that called an unknown tool.
pub(crate) fn unknown_tool_guidance(name: &str, available: &[String]) -> String {
    let normalized = name.to_lowercase().replace('.', "_");
    let similarity =
        |candidate: &str| strsim::normalized_damerau_levenshtein(&normalized, candidate);
    let mut similar: Vec<_> = available
        .iter()
        .map(|candidate| (similarity(candidate), candidate))
        .collect();
    similar.retain(|(similarity, _)| *similarity >= MIN_SIMILARITY);
    similar.sort_by(|left, right| right.0.total_cmp(&left.0));
    if !similar.is_empty() {
        let names = similar.iter().take(MAX_SUGGESTIONS);
        let names: Vec<_> = names.map(|(_, name)| name.as_str()).collect();
        let lines = names.join("\n- ");
        return format!(
            "Tool `{name}` does not exist. Did you mean one of the following?\n- {lines}"
        );
    }
    if available.iter().any(|tool| tool == "skill") {
        return format!(
            "Tool `{name}` does not exist. If it is a skill, invoke `skill` without a name to list the available skills."
        );
    }
    format!("Tool `{name}` does not exist, and no similar tool is available.")
}

/// Returns whether `name` is the name of a tool or the name that the model uses for the tool. Case is ignored.
pub(crate) fn has_name(spec: &ToolSpec, name: &str) -> bool {
    spec.name.to_lowercase() == name.to_lowercase()
        || spec.model_name().to_lowercase() == name.to_lowercase()
}
