//! The tools that the model may call in a turn, and those that one model call offers.

use std::sync::Arc;

use bub_kernel::{Tool, ToolExposure};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{agent_loop::estimate_tokens, tool_definition::tool_definition, tools};

/// The tool that runs code. The model sees it only in code mode.
pub(crate) const RUN_CODE_TOOL: &str = "run_code";
/// The tool that loads deferred tools. The model sees it only if there are deferred tools.
pub(crate) const DESCRIBE_TOOL: &str = "tool.describe";

/// The tools of a turn in registration order.
pub(crate) struct ToolSet {
    tools: Vec<Arc<dyn Tool>>,
    /// Whether the model calls most tools from code.
    code_mode: bool,
    /// What a model call offers before a deferred tool is loaded.
    default_offer: Arc<OfferedTools>,
}

/// The set of all tools. It is built again after a plugin has changed its tools.
#[derive(Default)]
pub(crate) struct CachedToolSet(Mutex<Option<(AllTools, Arc<ToolSet>)>>);

/// The tools of a framework.
type AllTools = Arc<[Arc<dyn Tool>]>;

impl CachedToolSet {
    /// Returns the set of these tools.
    pub(crate) fn get(&self, tools: &AllTools, code_mode: bool) -> Arc<ToolSet> {
        let mut cached = self.0.lock();
        match &*cached {
            Some((known, set)) if Arc::ptr_eq(known, tools) => Arc::clone(set),
            _ => {
                let set = Arc::new(ToolSet::new(tools.to_vec(), code_mode));
                *cached = Some((Arc::clone(tools), Arc::clone(&set)));
                set
            }
        }
    }
}

/// The tools that a model call offers, with their definitions.
pub(crate) struct OfferedTools {
    tools: Vec<Arc<dyn Tool>>,
    /// The names of the tools as the model uses them, such as `fs_read`.
    pub(crate) names: Vec<String>,
    definitions: Arc<Vec<Value>>,
    /// The estimated tokens of all definitions.
    pub(crate) tokens: u64,
}

impl ToolSet {
    /// Creates a set of these tools. Tools that only users can call are omitted. Code mode needs the tool `run_code`.
    pub(crate) fn new(mut tools: Vec<Arc<dyn Tool>>, code_mode: bool) -> Self {
        tools.retain(|tool| tool.spec().exposure != ToolExposure::Command);
        let mut set = Self {
            code_mode: code_mode && tools.iter().any(is_named(RUN_CODE_TOOL)),
            tools,
            default_offer: Arc::new(OfferedTools::new(Vec::new())),
        };
        set.default_offer = Arc::new(set.build_offer(&[]));
        set
    }

    /// Returns the tools in registration order.
    pub(crate) fn tools(&self) -> &[Arc<dyn Tool>] {
        &self.tools
    }

    /// Returns whether the model calls most tools from code.
    pub(crate) fn is_code_mode(&self) -> bool {
        self.code_mode
    }

    /// Returns the tools that code can call.
    pub(crate) fn code_tools(&self) -> impl Iterator<Item = &Arc<dyn Tool>> {
        let tools = self.tools.iter().filter(|_| self.code_mode);
        tools.filter(|tool| tool.spec().exposure.is_for_code())
    }

    /// Returns the deferred tools of the model, whether they are loaded or not.
    pub(crate) fn deferred_tools(&self) -> impl Iterator<Item = &Arc<dyn Tool>> {
        self.model_tools().filter(|tool| tool.spec().deferred)
    }

    /// Returns the tools that a model call offers. `loaded` has the names of the deferred tools that the session loaded.
    pub(crate) fn offer(&self, loaded: &[String]) -> Arc<OfferedTools> {
        if loaded.is_empty() {
            return Arc::clone(&self.default_offer);
        }
        Arc::new(self.build_offer(loaded))
    }

    /// Finds a tool that the model may describe, by either of its names. Case is ignored.
    pub(crate) fn find_described(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.model_tools()
            .find(|tool| tools::has_name(tool.spec(), name.trim()))
    }

    /// Finds the tool that the model named in a call. The error is guidance for the model.
    pub(crate) fn find(
        &self,
        name: &str,
        offered: &OfferedTools,
    ) -> Result<&Arc<dyn Tool>, String> {
        let is_offered = |tool: &&Arc<dyn Tool>| {
            let mut tools = offered.tools.iter();
            tools.any(|other| Arc::ptr_eq(tool, other))
        };
        let is_exact =
            |tool: &&Arc<dyn Tool>| tool.spec().model_name() == name || tool.spec().name == name;
        let is_similar = |tool: &&Arc<dyn Tool>| tools::has_name(tool.spec(), name.trim());
        // Prefer the exact name, because two names may differ only in case.
        let exact = self.tools.iter().find(is_exact);
        match exact.or_else(|| self.tools.iter().find(is_similar)) {
            Some(tool) if is_offered(&tool) => Ok(tool),
            Some(tool) if self.deferred_tools().any(|other| Arc::ptr_eq(tool, other)) => {
                let name = tool.spec().model_name();
                Err(format!(
                    "Tool `{name}` is not loaded. Call `tool_describe` with its name first, then call it in the next step."
                ))
            }
            Some(tool) if self.code_tools().any(|other| Arc::ptr_eq(tool, other)) => {
                let name = tool.spec().model_name();
                Err(format!(
                    "Tool `{name}` can be called only from code: use `await tools.{name}(…)` in `run_code`."
                ))
            }
            _ => {
                let code_tools = self.code_tools().map(|tool| tool.spec().model_name());
                let names = offered.names.iter().cloned().chain(code_tools);
                Err(tools::unknown_tool_guidance(
                    name,
                    &names.collect::<Vec<_>>(),
                ))
            }
        }
    }

    /// Returns the tools that the model can call itself, except for the two that depend on the mode.
    fn model_tools(&self) -> impl Iterator<Item = &Arc<dyn Tool>> {
        let is_for_model = |tool: &&Arc<dyn Tool>| match tool.spec().exposure {
            _ if tool.spec().name == DESCRIBE_TOOL => false,
            ToolExposure::Direct => self.code_mode || tool.spec().name != RUN_CODE_TOOL,
            exposure => exposure.is_for_model() && !self.code_mode,
        };
        self.tools.iter().filter(is_for_model)
    }

    fn build_offer(&self, loaded: &[String]) -> OfferedTools {
        let immediate = self.model_tools().filter(|tool| !tool.spec().deferred);
        let mut tools: Vec<_> = immediate.cloned().collect();
        if self.deferred_tools().next().is_some() {
            // After all others, so that the definitions before it stay the same and providers can cache them.
            tools.extend(
                self.tools
                    .iter()
                    .find(|tool| tool.spec().name == DESCRIBE_TOOL)
                    .cloned(),
            );
            let find = |name: &String| self.deferred_tools().find(|tool| tool.spec().name == *name);
            tools.extend(loaded.iter().filter_map(find).cloned());
        }
        OfferedTools::new(tools)
    }
}

impl OfferedTools {
    fn new(tools: Vec<Arc<dyn Tool>>) -> Self {
        let names = tools.iter().map(|tool| tool.spec().model_name()).collect();
        let definitions: Vec<Value> = tools
            .iter()
            .map(|tool| tool_definition(tool.spec()))
            .collect();
        Self {
            names,
            tokens: estimate_tokens(definitions.iter()),
            definitions: Arc::new(definitions),
            tools,
        }
    }

    /// Returns the definitions of the tools with these names. A hook can remove tools from a request, so `names` may
    /// not contain all tools.
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
}

fn is_named(name: &str) -> impl Fn(&Arc<dyn Tool>) -> bool {
    move |tool| tool.spec().name == name
}
