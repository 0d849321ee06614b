//! Plugins: named sets of hook implementations.

use std::{cell::RefCell, path::Path, sync::Arc};

use bub_settings::Settings;

use crate::{
    error::{BoxError, Error},
    framework::FrameworkRef,
    hooks::{HookSet, guard},
    tool::Tool,
};

/// A set of hook implementations. [`hooks`](macro@crate::hooks) generates the impl of this trait.
pub trait Plugin: Send + Sync + 'static {
    /// Adds the implementations to `hooks`.
    fn register(self: Arc<Self>, hooks: &mut HookSet);
}

/// The context in which a plugin is created.
pub struct PluginContext<'a> {
    /// The framework of the plugin. Available once the framework is built.
    pub framework: FrameworkRef,
    /// The absolute path of the workspace.
    pub workspace: &'a Path,
    /// The settings of the program.
    pub settings: &'a Arc<Settings>,
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
        // Collect first, because the iterator may use this context.
        let tools: Vec<_> = tools.into_iter().collect();
        self.tools.borrow_mut().extend(tools);
    }
}

/// Whether a plugin is active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginState {
    /// The plugin's hooks are registered.
    Active,
    /// The plugin could not be created, for this reason, and is skipped.
    Failed(String),
}

/// The name and state of a plugin that was added to the framework.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginStatus {
    /// The name of the plugin.
    pub name: Arc<str>,
    /// Whether the plugin is active.
    pub state: PluginState,
}

/// A function that creates a plugin and collects its hooks.
pub(crate) type PluginFactory =
    Box<dyn FnOnce(&PluginContext<'_>) -> Result<HookSet, BoxError> + Send>;

/// Returns the factory of a plugin from its constructor.
pub(crate) fn new_factory<P: Plugin, E: Into<BoxError>>(
    make: impl FnOnce(&PluginContext<'_>) -> Result<P, E> + Send + 'static,
) -> PluginFactory {
    Box::new(move |context| {
        let plugin = Arc::new(make(context).map_err(Into::into)?);
        let mut hooks = HookSet::default();
        plugin.register(&mut hooks);
        Ok(hooks)
    })
}

/// Runs a factory and converts a panic into an error.
pub(crate) fn load_plugin(
    factory: PluginFactory,
    context: &PluginContext<'_>,
) -> Result<HookSet, Error> {
    guard::catch_panic(|| factory(context))?.map_err(Error::from_boxed)
}
