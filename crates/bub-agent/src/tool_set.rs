//! The tools that the model may call in a turn.

use std::sync::Arc;

use bub_kernel::Tool;
use serde_json::{Value, json};

use crate::{agent_loop::estimate_tokens, tools};

/// The tools of a turn in registration order, with their definitions for the model.
pub(crate) struct ToolSet {
    tools: Vec<Arc<dyn Tool>>,
    names: Vec<String>,
    definitions: Arc<Vec<Value>>,
    block: String,
    /// The estimated tokens of the definitions.
    tokens: u64,
}

/// The result of searching for a tool by the name that the model used.
pub(crate) enum ToolLookup<'a> {
    Tool(&'a Arc<dyn Tool>),
    /// The tool does not exist; the text is guidance for the model.
    Unknown(String),
}

impl ToolSet {
    /// Creates a set of these tools.
    pub(crate) fn new(tools: Vec<Arc<dyn Tool>>) -> Self {
        let names = tools.iter().map(|tool| tool.spec().model_name()).collect();
        let definitions: Vec<Value> = tools.iter().map(|tool| tool_definition(&**tool)).collect();
        let block = tools::tools_block(&tools);
        let tokens = estimate_tokens(definitions.iter());
        Self {
            tools,
            names,
            definitions: Arc::new(definitions),
            block,
            tokens,
        }
    }

    /// Returns the tools in registration order.
    pub(crate) fn tools(&self) -> &[Arc<dyn Tool>] {
        &self.tools
    }

    /// Returns the names that the model uses.
    pub(crate) fn model_names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Returns the list of tools for the system prompt.
    pub(crate) fn prompt_block(&self) -> &str {
        &self.block
    }

    /// Returns the estimated tokens of the definitions.
    pub(crate) fn definition_tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the definitions of the named tools. The names may be fewer than those of the set, because a hook can remove
    /// tools.
    pub(crate) fn definitions_for(&self, names: &[String]) -> Arc<Vec<Value>> {
        if names == self.names {
            return Arc::clone(&self.definitions);
        }
        let definitions = self
            .names
            .iter()
            .zip(self.definitions.iter())
            .filter(|(name, _)| names.contains(name));
        Arc::new(
            definitions
                .map(|(_, definition)| definition.clone())
                .collect(),
        )
    }

    /// Finds the tool that the model named.
    pub(crate) fn find(&self, name: &str) -> ToolLookup<'_> {
        match tools::find_tool(name, &self.tools) {
            Ok(tool) => ToolLookup::Tool(tool),
            Err(guidance) => ToolLookup::Unknown(guidance.message().to_owned()),
        }
    }

    /// Returns whether the named tool exists and is read-only.
    pub(crate) fn is_read_only(&self, name: &str) -> bool {
        matches!(self.find(name), ToolLookup::Tool(tool) if tool.spec().read_only)
    }
}

fn tool_definition(tool: &dyn Tool) -> Value {
    let spec = tool.spec();
    json!({
        "type": "function",
        "function": {
            "name": spec.model_name(),
            "description": spec.description,
            "parameters": spec.parameters,
        },
    })
}
