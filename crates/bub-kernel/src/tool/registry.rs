//! The tools of a framework, in registration order and with unique names.

use std::sync::Arc;

use super::Tool;

/// Adds tools. A tool whose name looks the same to the model is replaced, at the same position.
pub(crate) fn register(tools: &mut Vec<Arc<dyn Tool>>, more: Vec<Arc<dyn Tool>>) {
    for tool in more {
        let name = tool.spec().model_name();
        match tools
            .iter_mut()
            .find(|known| known.spec().model_name() == name)
        {
            Some(known) => *known = tool,
            None => tools.push(tool),
        }
    }
}
