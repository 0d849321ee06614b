//! The tools of a turn: those the model may call, as it sees them.

use std::sync::Arc;

use bub_kernel::Tool;
use serde_json::{Value, json};

use crate::{agent_loop::estimate, tools};

/// Tools in the order of their registration.
pub(crate) struct ToolSet {
    tools: Vec<Arc<dyn Tool>>,
    names: Vec<String>,
    definitions: Arc<Vec<Value>>,
    block: String,
    /// What the definitions take of a model's window.
    tokens: u64,
}

/// What a name that the model used stands for.
pub(crate) enum ToolLookup<'a> {
    Tool(&'a Arc<dyn Tool>),
    /// What to tell the model about it.
    Nothing(String),
}

impl ToolSet {
    /// Exactly these tools.
    pub(crate) fn new(tools: Vec<Arc<dyn Tool>>) -> Self {
        let names = tools.iter().map(|tool| tool.spec().model_name()).collect();
        let definitions: Vec<Value> = tools.iter().map(|tool| definition(&**tool)).collect();
        let block = tools::block(&tools);
        let tokens = estimate(definitions.iter());
        Self {
            tools,
            names,
            definitions: Arc::new(definitions),
            block,
            tokens,
        }
    }

    /// The tools themselves.
    pub(crate) fn tools(&self) -> &[Arc<dyn Tool>] {
        &self.tools
    }

    /// Their names, as the model knows them.
    pub(crate) fn model_names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// What the model is told in the system prompt.
    pub(crate) fn block(&self) -> &str {
        &self.block
    }

    /// What telling the provider takes of a model's window.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The same for some of them: a hook may have taken tools away.
    pub(crate) fn definitions_of(&self, names: &[String]) -> Arc<Vec<Value>> {
        if names == self.names {
            return Arc::clone(&self.definitions);
        }
        let wanted = self
            .names
            .iter()
            .zip(self.definitions.iter())
            .filter(|(name, _)| names.contains(name));
        Arc::new(wanted.map(|(_, definition)| definition.clone()).collect())
    }

    /// Finds what the model means.
    pub(crate) fn find(&self, name: &str) -> ToolLookup<'_> {
        match tools::find(name, &self.tools) {
            Ok(tool) => ToolLookup::Tool(tool),
            Err(guidance) => ToolLookup::Nothing(guidance.message().to_owned()),
        }
    }

    /// Whether the tool of that name changes nothing.
    pub(crate) fn is_read_only(&self, name: &str) -> bool {
        matches!(self.find(name), ToolLookup::Tool(tool) if tool.spec().read_only)
    }
}

fn definition(tool: &dyn Tool) -> Value {
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
