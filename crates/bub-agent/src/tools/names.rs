//! How tools are shown to the model, and found by name.

use std::{fmt::Write, sync::Arc};

use bub_kernel::{Error, Result, Tool, ToolSpec};

/// The part of the system prompt that names the tools; empty without any.
pub fn block(tools: &[Arc<dyn Tool>]) -> String {
    let mut block = String::new();
    for spec in tools.iter().map(|tool| tool.spec()).filter(|spec| spec.agent_use) {
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
    let names: Vec<_> =
        names.map(|(name, is_required)| format!("{name}{}", if is_required { "" } else { "?" })).collect();
    names.join(", ")
}

/// The tools of these names, in the order of the registry. Case and the space around a name do not matter, and it may be
/// spelled as the model sees it.
pub fn resolve<S: AsRef<str>>(names: &[S], tools: &[Arc<dyn Tool>]) -> Result<Vec<Arc<dyn Tool>>> {
    let is_meant = |name: &S, tool: &Arc<dyn Tool>| is_named(tool.spec(), name.as_ref().trim());
    let is_unknown = |name: &&S| !tools.iter().any(|tool| is_meant(name, tool));
    let unknown: Vec<_> =
        names.iter().filter(is_unknown).map(|name| format!("'{}'", name.as_ref().trim())).collect();
    if !unknown.is_empty() {
        return Err(Error::invalid_input(format!("unknown tool name(s): {}", unknown.join(", "))));
    }
    Ok(tools.iter().filter(|tool| names.iter().any(|name| is_meant(name, tool))).cloned().collect())
}

/// The tool a model means; an error tells it which name it may have meant.
pub fn find<'a>(name: &str, tools: &'a [Arc<dyn Tool>]) -> Result<&'a Arc<dyn Tool>> {
    let for_models = || tools.iter().filter(|tool| tool.spec().agent_use);
    // Two names may differ only in case.
    let exact = for_models().find(|tool| tool.spec().model_name() == name || tool.spec().name == name);
    if let Some(tool) = exact.or_else(|| for_models().find(|tool| is_named(tool.spec(), name.trim()))) {
        return Ok(tool);
    }
    let names: Vec<_> = for_models().map(|tool| tool.spec().model_name()).collect();
    let advice = match bub_settings::closest(&name.replace('.', "_"), names.iter().map(String::as_str)) {
        Some(close) => format!("did you mean '{close}'?"),
        None if names.is_empty() => "there are no tools".to_owned(),
        None => format!("there are: {}", names.join(", ")),
    };
    Err(Error::not_found(format!("unknown tool '{name}'; {advice}")))
}

fn is_named(spec: &ToolSpec, name: &str) -> bool {
    spec.name.to_lowercase() == name.to_lowercase() || spec.model_name().to_lowercase() == name.to_lowercase()
}
