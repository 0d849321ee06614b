//! The tools of a framework: in the order of registration, one for each name.

use std::sync::Arc;

use super::Tool;

/// Adds tools. One that the model would see by the same name is replaced, in its place.
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
