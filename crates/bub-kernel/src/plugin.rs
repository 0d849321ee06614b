//! Plugins: named sets of hook implementations.

use std::{cell::RefCell, path::Path, sync::Arc};

use bub_settings::Settings;

use crate::{error::BoxError, framework::FrameworkRef, hooks::HookSet, tool::Tool};

/// A set of hook implementations and tools. [`hooks`](macro@crate::hooks) generates the impl of this trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a plugin",
    label = "put `#[hooks]` on an `impl` block with the hooks of this type, or `#[tools(plugin)]` on one with its tools"
)]
pub trait Plugin: Send + Sync + 'static {
    /// Adds the implementations to `hooks`.
    fn register(self: Arc<Self>, hooks: &mut HookSet);

    /// Returns the tools of the plugin. By default, it has no tools.
    fn tools(self: &Arc<Self>) -> Vec<Arc<dyn Tool>> {
        Vec::new()
    }
}

/// The result of a plugin's constructor: the plugin, or a `Result` with it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a plugin, and not a `Result` with a plugin",
    label = "return a type that has an `impl` block with `#[hooks]` or `#[tools(plugin)]`"
)]
pub trait IntoPlugin {
    /// The plugin.
    type Plugin: Plugin;

    /// Returns the plugin, or the reason why it cannot be created.
    fn into_plugin(self) -> Result<Self::Plugin, BoxError>;
}

impl<P: Plugin> IntoPlugin for P {
    type Plugin = P;

    fn into_plugin(self) -> Result<P, BoxError> {
        Ok(self)
    }
}

impl<P: Plugin, E: Into<BoxError>> IntoPlugin for Result<P, E> {
    type Plugin = P;

    fn into_plugin(self) -> Result<P, BoxError> {
        self.map_err(Into::into)
    }
}

/// The context in which a plugin is created.
pub struct PluginContext<'a> {
    /// The framework of the plugin. Available once the framework is built.
    pub framework: FrameworkRef,
    /// The absolute path of the workspace.
    pub workspace: &'a Path,
    /// The settings of the program.
    pub settings: &'a Arc<Settings>,
    /// The tools of this plugin and of the plugins before it.
    pub(crate) tools: RefCell<Vec<Arc<dyn Tool>>>,
}

impl PluginContext<'_> {
    /// Adds a tool. It replaces a tool with the same name, at the same position. If the plugin cannot be created, its
    /// tools are discarded.
    pub fn add_tool(&self, tool: impl Tool) {
        self.add_tools([Arc::new(tool) as Arc<dyn Tool>]);
    }

    /// Adds tools, such as those of a block with [`tools`](macro@crate::tools). The rules of
    /// [`PluginContext::add_tool`] apply.
    pub fn add_tools(&self, tools: impl IntoIterator<Item = Arc<dyn Tool>>) {
        insert_tools(&mut self.tools.borrow_mut(), tools, None);
    }

    /// Adds tools before the tool `next` of an earlier plugin, so that the model sees them in this order. Without such a
    /// tool, they are added at the end. The rules of [`PluginContext::add_tool`] apply.
    pub fn add_tools_before(&self, next: &str, tools: impl IntoIterator<Item = Arc<dyn Tool>>) {
        let next = next.replace('.', "_");
        insert_tools(&mut self.tools.borrow_mut(), tools, Some(&next));
    }
}

/// Inserts tools before the tool `next`, or at the end. A tool replaces one with the same name, at the same position.
pub(crate) fn insert_tools(
    tools: &mut Vec<Arc<dyn Tool>>,
    added: impl IntoIterator<Item = Arc<dyn Tool>>,
    next: Option<&str>,
) {
    for tool in added {
        let position = |name: &str| {
            let is_named = |tool: &Arc<dyn Tool>| tool.spec().model_name() == name;
            tools.iter().position(is_named)
        };
        let replaced = position(&tool.spec().model_name());
        let end = || next.and_then(position).unwrap_or(tools.len());
        let index = replaced.unwrap_or_else(end);
        if replaced.is_some() {
            tools.remove(index);
        }
        tools.insert(index, tool);
    }
}

/// Whether a plugin is active.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PluginState {
    /// The plugin's hooks are registered.
    Active,
    /// The plugin could not be created, for this reason, and is skipped.
    Failed(String),
}

/// The name and state of a plugin that was added to the framework.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PluginStatus {
    /// The name of the plugin.
    pub name: Arc<str>,
    /// Whether the plugin is active.
    pub state: PluginState,
}

/// A function that creates a plugin and collects its hooks.
pub(crate) type PluginFactory =
    Box<dyn FnOnce(&PluginContext<'_>) -> Result<HookSet, BoxError> + Send>;
