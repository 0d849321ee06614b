//! The tool `tool.describe`, which loads deferred tools.

use std::sync::Arc;

use bub_kernel::{Result, ToolContext, tools};
use bub_tape::Entry;
use serde_json::{Value, json};

use crate::agent::Agent;

/// The tape event with the names of tools that the model loaded.
const LOADED_EVENT: &str = "tool.loaded";

/// The tool that loads deferred tools.
pub(crate) struct DescribeTools {
    pub(crate) agent: Arc<Agent>,
}

#[tools(crate = bub_kernel)]
impl DescribeTools {
    /// Return the description and the parameters of tools, and load those that are deferred. Call them in the next step.
    #[tool(name = "tool.describe", direct)]
    async fn describe(
        &self,
        context: &ToolContext,
        /// Names of the tools
        names: Vec<String>,
    ) -> Result<Value> {
        let set = self.agent.turn_tool_set(&context.turn)?;
        let tape = context.turn.tape();
        let loaded = &tape.summary().await?.loaded_tools;
        let (mut described, mut unknown, mut new) = (Vec::new(), Vec::new(), Vec::new());
        for name in &names {
            let Some(tool) = set.find_described(name) else {
                unknown.push(name);
                continue;
            };
            let spec = tool.spec();
            described.push(json!({
                "name": spec.model_name(),
                "description": spec.description,
                "parameters": spec.parameters,
            }));
            if spec.deferred && !loaded.contains(&spec.name) && !new.contains(&spec.name) {
                new.push(spec.name.clone());
            }
        }
        if !new.is_empty() {
            let event = Entry::event(LOADED_EVENT, Some(json!({"names": new})));
            let event = tape.with_run_id(event.exclude_from_context());
            tape.append(vec![event]).await?;
            tape.invalidate_summary();
        }
        Ok(json!({"tools": described, "unknown": unknown}))
    }
}
