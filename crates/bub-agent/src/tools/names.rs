//! How tools are shown to the model, and found by name.

use std::{fmt::Write, sync::Arc};

use bub_kernel::{Error, Result, Tool, ToolSpec};

/// The part of the system prompt that names the tools; empty without any.
pub fn block(tools: &[Arc<dyn Tool>]) -> String {
    let mut block = String::new();
    for spec in tools
        .iter()
        .map(|tool| tool.spec())
        .filter(|spec| spec.agent_use)
    {
        if block.is_empty() {
            block.push_str("<available_tools>\n");
        }
        // Writing to a string cannot fail.
        let _ = write!(block, "- {}({})", spec.model_name(), signature(spec));
        if !spec.description.is_empty() {
            let words: Vec<&str> = spec.description.split_whitespace().collect();
            let _ = write!(block, ": {}", words.join(" "));
        }
        block.push('\n');
    }
    if !block.is_empty() {
        block.push_str("</available_tools>");
    }
    block
}

/// The arguments by name; those that may be left out have a question mark.
pub(super) fn signature(spec: &ToolSpec) -> String {
    let names = spec.parameters().into_iter();
    let names: Vec<_> = names
        .map(|(name, is_required)| format!("{name}{}", if is_required { "" } else { "?" }))
        .collect();
    names.join(", ")
}

/// The tools of these names, in the order of the registry. Case and the space around a name do not matter, and it may be
/// spelled as the model sees it.
pub fn resolve<S: AsRef<str>>(names: &[S], tools: &[Arc<dyn Tool>]) -> Result<Vec<Arc<dyn Tool>>> {
    let is_meant = |name: &S, tool: &Arc<dyn Tool>| is_named(tool.spec(), name.as_ref().trim());
    let is_unknown = |name: &&S| !tools.iter().any(|tool| is_meant(name, tool));
    let unknown: Vec<_> = names
        .iter()
        .filter(is_unknown)
        .map(|name| format!("'{}'", name.as_ref().trim()))
        .collect();
    if !unknown.is_empty() {
        return Err(Error::invalid_input(format!(
            "unknown tool name(s): {}",
            unknown.join(", ")
        )));
    }
    Ok(tools
        .iter()
        .filter(|tool| names.iter().any(|name| is_meant(name, tool)))
        .cloned()
        .collect())
}

/// The tool a model means; an error tells it which name it may have meant.
pub fn find<'a>(name: &str, tools: &'a [Arc<dyn Tool>]) -> Result<&'a Arc<dyn Tool>> {
    let for_models = || tools.iter().filter(|tool| tool.spec().agent_use);
    // Two names may differ only in case.
    let exact =
        for_models().find(|tool| tool.spec().model_name() == name || tool.spec().name == name);
    if let Some(tool) =
        exact.or_else(|| for_models().find(|tool| is_named(tool.spec(), name.trim())))
    {
        return Ok(tool);
    }
    let names: Vec<_> = for_models().map(|tool| tool.spec().model_name()).collect();
    Err(Error::not_found(guidance(name, &names)))
}

/// How alike a name must be to be suggested, and how many are.
const MIN_SIMILARITY: f64 = 0.6;
const MAX_SUGGESTIONS: usize = 3;

/// What a model is told that called a tool that does not exist.
fn guidance(name: &str, known: &[String]) -> String {
    let plain = name.to_lowercase().replace('.', "_");
    let likeness = |known: &str| strsim::normalized_damerau_levenshtein(&plain, known);
    let mut alike: Vec<_> = known.iter().map(|known| (likeness(known), known)).collect();
    alike.retain(|(likeness, _)| *likeness >= MIN_SIMILARITY);
    alike.sort_by(|one, other| other.0.total_cmp(&one.0));
    if !alike.is_empty() {
        let names: Vec<_> = alike
            .iter()
            .take(MAX_SUGGESTIONS)
            .map(|(_, known)| known.as_str())
            .collect();
        let lines = names.join("\n- ");
        return format!(
            "Tool `{name}` does not exist. Did you mean one of the following?\n- {lines}"
        );
    }
    if known.iter().any(|known| known == "skill") {
        return format!(
            "Tool `{name}` does not exist. If it is a skill, invoke `skill` without a name to list the skills there are."
        );
    }
    format!("Tool `{name}` does not exist, and no similar tool is available.")
}

fn is_named(spec: &ToolSpec, name: &str) -> bool {
    spec.name.to_lowercase() == name.to_lowercase()
        || spec.model_name().to_lowercase() == name.to_lowercase()
}
