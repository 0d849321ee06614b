//! The tools of a framework, in registration order and with unique names.

use std::sync::Arc;

use super::Tool;

/// Adds tools. A tool replaces an existing tool with the same model name, at the same position.
pub(crate) fn add_or_replace(tools: &mut Vec<Arc<dyn Tool>>, added: Vec<Arc<dyn Tool>>) {
    for tool in added {
        let name = tool.spec().model_name();
        match tools
            .iter_mut()
            .find(|existing| existing.spec().model_name() == name)
        {
            Some(existing) => *existing = tool,
            None => tools.push(tool),
        }
    }
}
