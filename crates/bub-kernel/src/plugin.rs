//! Plugins: named sets of hook implementations.

use std::{cell::RefCell, path::Path, sync::Arc};

use bub_settings::Settings;

use crate::{
    error::{BoxError, Error},
    framework::FrameworkRef,
    hooks::{HookSet, guard},
    tool::Tool,
};

/// A set of hook implementations. [`hooks`](macro@crate::hooks) writes this impl.
pub trait Plugin: Send + Sync + 'static {
    /// Adds the implementations.
    fn register(self: Arc<Self>, hooks: &mut HookSet);
}

/// What a plugin is given when it is made.
pub struct PluginContext<'a> {
    /// The framework it will belong to; usable once turns run.
    pub framework: FrameworkRef,
    /// The workspace, absolute.
    pub workspace: &'a Path,
    /// The settings of the program.
    pub settings: &'a Arc<Settings>,
    pub(crate) tools: RefCell<Vec<Arc<dyn Tool>>>,
}

impl PluginContext<'_> {
    /// Adds a tool. A plugin that cannot be made leaves none; a tool of the same name is replaced, in its place.
    pub fn add_tool(&self, tool: impl Tool) {
        self.add_tools([Arc::new(tool) as Arc<dyn Tool>]);
    }

    /// Adds tools, such as those of a block with [`tools`](macro@crate::tools). The rules of
    /// [`PluginContext::add_tool`] apply.
    pub fn add_tools(&self, tools: impl IntoIterator<Item = Arc<dyn Tool>>) {
        // Collected first: the iterator may call this context.
        let tools: Vec<_> = tools.into_iter().collect();
        self.tools.borrow_mut().extend(tools);
    }
}

/// Whether a plugin is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginState {
    /// Its hooks are registered.
    Active,
    /// It could not be made, for this reason; it is left out.
    Failed(String),
}

/// A plugin that was asked for, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginStatus {
    /// Its name.
    pub name: Arc<str>,
    /// What became of it.
    pub state: PluginState,
}

/// Makes a plugin and collects its hooks.
pub(crate) type PluginFactory =
    Box<dyn FnOnce(&PluginContext<'_>) -> Result<HookSet, BoxError> + Send>;

/// A factory for something that makes a plugin.
pub(crate) fn factory<P: Plugin, E: Into<BoxError>>(
    make: impl FnOnce(&PluginContext<'_>) -> Result<P, E> + Send + 'static,
) -> PluginFactory {
    Box::new(move |context| {
        let plugin = Arc::new(make(context).map_err(Into::into)?);
        let mut hooks = HookSet::default();
        plugin.register(&mut hooks);
        Ok(hooks)
    })
}

/// Runs a factory; a panic in it is a failure like any other.
pub(crate) fn load(factory: PluginFactory, context: &PluginContext<'_>) -> Result<HookSet, Error> {
    guard::catch(|| factory(context))?.map_err(Error::from_boxed)
}
