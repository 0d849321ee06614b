//! The tools that the model may call in a turn.

use std::sync::Arc;

use bub_kernel::{Result, Tool};
use serde_json::Value;

use crate::{agent_loop::estimate_tokens, tool_definition::tool_definition, tools};

/// The tools of a turn in registration order, with their definitions for the model.
pub(crate) struct ToolSet {
    tools: Vec<Arc<dyn Tool>>,
    names: Vec<String>,
    definitions: Arc<Vec<Value>>,
    /// The estimated tokens of all definitions.
    tokens: u64,
}

impl ToolSet {
    /// Creates a set of these tools.
    pub(crate) fn new(tools: Vec<Arc<dyn Tool>>) -> Self {
        let names = tools.iter().map(|tool| tool.spec().model_name()).collect();
        let definitions: Vec<Value> = tools
            .iter()
            .map(|tool| tool_definition(tool.spec()))
            .collect();
        let tokens = estimate_tokens(definitions.iter());
        Self {
            tools,
            names,
            definitions: Arc::new(definitions),
            tokens,
        }
    }

    /// Returns the tools in registration order.
    pub(crate) fn tools(&self) -> &[Arc<dyn Tool>] {
        &self.tools
    }

    /// Returns the names of the tools as the model uses them, such as `fs_read`.
    pub(crate) fn model_names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Returns the estimated tokens of all tool definitions.
    pub(crate) fn definition_tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the definitions of the tools with these names. A hook can remove tools from a request, so `names` may
    /// not contain all tools of the set.
    pub(crate) fn definitions_for(&self, names: &[String]) -> Arc<Vec<Value>> {
        if names == self.names {
            return Arc::clone(&self.definitions);
        }
        let definitions = self.names.iter().zip(self.definitions.iter());
        let requested = definitions.filter(|(name, _)| names.contains(name));
        Arc::new(
            requested
                .map(|(_, definition)| definition.clone())
                .collect(),
        )
    }

    /// Finds the tool that the model named. The error is guidance for the model.
    pub(crate) fn find(&self, name: &str) -> Result<&Arc<dyn Tool>> {
        tools::find_tool(name, &self.tools)
    }

    /// Returns whether the named tool exists and is read-only.
    pub(crate) fn is_read_only(&self, name: &str) -> bool {
        self.find(name).is_ok_and(|tool| tool.spec().read_only)
    }
}
