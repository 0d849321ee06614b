//! The framework: plugins, their hooks, and the services they share.

use std::{
    cell::RefCell,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, Weak},
};

use parking_lot::RwLock;

use bub_settings::{Environment, Loader, Settings};

use crate::{
    approval::Approvals,
    error::Error,
    hooks::{HookSet, guard},
    plugin::{
        IntoPlugin, Plugin, PluginContext, PluginFactory, PluginState, PluginStatus, insert_tools,
    },
    router::ChannelRouter,
    scope::ScopeState,
    tool::Tool,
};

/// A fixed set of plugins that runs turns. Cloning is cheap, and clones share one framework.
#[derive(Clone)]
pub struct Framework(Arc<Inner>);

struct Inner {
    workspace: PathBuf,
    workspace_text: String,
    hooks: HookSet,
    plugins: Vec<PluginStatus>,
    tools: Vec<Arc<dyn Tool>>,
    current_tools: RwLock<Arc<[Arc<dyn Tool>]>>,
    settings: Arc<Settings>,
    approvals: Approvals,
    router: RwLock<Option<Arc<dyn ChannelRouter>>>,
    /// The open running scopes. The last one is active.
    scopes: RwLock<Vec<Arc<ScopeState>>>,
}

impl Framework {
    /// Creates a builder.
    pub fn builder() -> FrameworkBuilder {
        FrameworkBuilder::default()
    }

    /// Returns the absolute path of the workspace.
    pub fn workspace(&self) -> &Path {
        &self.0.workspace
    }

    /// Returns the path of the workspace as text. The names of tapes are derived from it.
    pub fn workspace_text(&self) -> &str {
        &self.0.workspace_text
    }

    /// Returns the hook implementations of all plugins.
    pub fn hooks(&self) -> &HookSet {
        &self.0.hooks
    }

    /// Returns all plugins that were added to the builder, in registration order, each with its [`PluginState`].
    pub fn plugins(&self) -> &[PluginStatus] {
        &self.0.plugins
    }

    /// Returns the tools that the framework was built with: those of the plugins in registration order, then those of
    /// the builder.
    pub fn tools(&self) -> &[Arc<dyn Tool>] {
        &self.0.tools
    }

    /// Returns the tools as they are now; see [`Framework::replace_tools`].
    pub fn current_tools(&self) -> Arc<[Arc<dyn Tool>]> {
        Arc::clone(&self.0.current_tools.read())
    }

    /// Removes tools and adds others. An added tool replaces one with the same name, at the same position. A turn sees
    /// the change when its agent starts.
    pub fn replace_tools(&self, removed: &[Arc<dyn Tool>], added: Vec<Arc<dyn Tool>>) {
        let mut current = self.0.current_tools.write();
        let mut tools = current.to_vec();
        let is_kept = |tool: &Arc<dyn Tool>| {
            let has_successor = |new: &Arc<dyn Tool>| new.spec().name == tool.spec().name;
            added.iter().any(has_successor) || !removed.iter().any(|old| Arc::ptr_eq(old, tool))
        };
        tools.retain(is_kept);
        insert_tools(&mut tools, added, None);
        *current = tools.into();
    }

    /// Returns the settings of the program.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.0.settings
    }

    /// Returns the pending approval requests.
    pub fn approvals(&self) -> &Approvals {
        &self.0.approvals
    }

    /// Sets the router of outbound messages. `None` removes it.
    pub fn bind_router(&self, router: Option<Arc<dyn ChannelRouter>>) {
        *self.0.router.write() = router;
    }

    /// Returns the current router.
    pub fn router(&self) -> Option<Arc<dyn ChannelRouter>> {
        self.0.router.read().clone()
    }

    pub(crate) fn current_scope(&self) -> Option<Arc<ScopeState>> {
        self.0.scopes.read().last().cloned()
    }

    pub(crate) fn enter_scope(&self, scope: Arc<ScopeState>) {
        self.0.scopes.write().push(scope);
    }

    pub(crate) fn leave_scope(&self, scope: &Arc<ScopeState>) {
        self.0
            .scopes
            .write()
            .retain(|open| !Arc::ptr_eq(open, scope));
    }
}

/// Returns a path as text. A path that is not UTF-8 is escaped byte by byte, so that different paths stay different.
fn path_to_text(path: &Path) -> String {
    match path.to_str() {
        Some(text) => text.to_owned(),
        None => path
            .as_os_str()
            .as_encoded_bytes()
            .escape_ascii()
            .to_string(),
    }
}

impl fmt::Debug for Framework {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Framework")
            .field("workspace", &self.0.workspace)
            .field("plugins", &self.0.plugins)
            .finish_non_exhaustive()
    }
}

/// A weak reference from a plugin to its framework.
#[derive(Clone, Debug, Default)]
pub struct FrameworkRef(Arc<OnceLock<Weak<Inner>>>);

impl FrameworkRef {
    /// Returns the framework, or `None` while it is being built or after it was dropped.
    pub fn get(&self) -> Option<Framework> {
        self.0.get()?.upgrade().map(Framework)
    }
}

/// A builder for a [`Framework`].
#[must_use]
#[derive(Default)]
pub struct FrameworkBuilder {
    workspace: Option<PathBuf>,
    settings: Option<Arc<Settings>>,
    plugins: Vec<(Arc<str>, PluginFactory)>,
    tools: Vec<Arc<dyn Tool>>,
}

impl FrameworkBuilder {
    /// Sets the workspace. The default is the current directory.
    pub fn workspace(mut self, workspace: impl Into<PathBuf>) -> Self {
        self.workspace = Some(workspace.into());
        self
    }

    /// Sets the settings of the program. By default, every setting has its default value.
    pub fn settings(mut self, settings: Arc<Settings>) -> Self {
        self.settings = Some(settings);
        self
    }

    /// Adds a plugin. Plugins that are added later run first.
    pub fn plugin(self, name: impl AsRef<str>, plugin: impl Plugin) -> Self {
        self.plugin_with(name, move |_| plugin)
    }

    /// Adds a plugin that is created when the framework is built. If that fails, the error is logged and the plugin is
    /// skipped.
    pub fn plugin_with<P: IntoPlugin>(
        mut self,
        name: impl AsRef<str>,
        make: impl FnOnce(&PluginContext<'_>) -> P + Send + 'static,
    ) -> Self {
        let factory: PluginFactory = Box::new(move |context| {
            let plugin = Arc::new(make(context).into_plugin()?);
            context.add_tools(plugin.tools());
            let mut hooks = HookSet::default();
            plugin.register(&mut hooks);
            Ok(hooks)
        });
        self.plugins.push((Arc::from(name.as_ref()), factory));
        self
    }

    /// Returns whether a plugin with this name was added.
    pub fn has_plugin(&self, name: &str) -> bool {
        self.plugins.iter().any(|(added, _)| **added == *name)
    }

    /// Adds a tool after the tools of the plugins. If a tool with the same name exists, replaces it at its position.
    pub fn tool(mut self, tool: impl Tool) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    /// Creates the plugins and the framework.
    pub fn build(self) -> Framework {
        let workspace = self.workspace.unwrap_or_else(|| PathBuf::from("."));
        // The names of tapes are derived from this path, so a directory must always get the same path.
        let resolved = workspace
            .canonicalize()
            .or_else(|_| std::path::absolute(&workspace));
        let workspace = resolved.unwrap_or(workspace);
        let settings = self.settings.unwrap_or_else(default_settings);
        let framework = FrameworkRef::default();
        let context = PluginContext {
            framework: framework.clone(),
            workspace: &workspace,
            settings: &settings,
            tools: RefCell::default(),
        };
        let mut hooks = HookSet::default();
        let mut plugins = Vec::with_capacity(self.plugins.len());
        for (index, (name, factory)) in self.plugins.into_iter().enumerate() {
            let is_taken = plugins.iter().any(|other: &PluginStatus| {
                other.name == name && other.state == PluginState::Active
            });
            let earlier_tools = context.tools.borrow().clone();
            let loaded = if is_taken {
                Err(Error::config(
                    "duplicate plugin name: an active plugin already has it; remove or rename one of them",
                ))
            } else {
                let loaded = guard::catch_panic(|| factory(&context));
                loaded.and_then(|hooks| hooks.map_err(Error::from_boxed))
            };
            let state = match loaded {
                Ok(mut plugin_hooks) => {
                    plugin_hooks.set_plugin(index, &name);
                    hooks.merge(plugin_hooks);
                    PluginState::Active
                }
                Err(error) => {
                    context.tools.replace(earlier_tools);
                    tracing::warn!(plugin = %name, %error, "plugin.init_failed");
                    PluginState::Failed(error.to_string())
                }
            };
            plugins.push(PluginStatus { name, state });
        }
        context.add_tools(self.tools);
        let tools = context.tools.into_inner();
        let current_tools = RwLock::new(tools.as_slice().into());
        let inner = Arc::new(Inner {
            workspace_text: path_to_text(&workspace),
            workspace,
            hooks,
            plugins,
            tools,
            current_tools,
            settings,
            approvals: Approvals::default(),
            router: RwLock::default(),
            scopes: RwLock::default(),
        });
        // Cannot fail: only this line sets the reference.
        let _ = framework.0.set(Arc::downgrade(&inner));
        Framework(inner)
    }
}

/// Returns settings with default values only.
fn default_settings() -> Arc<Settings> {
    let environment = Environment::from_pairs::<String, String>([]);
    Arc::new(Loader::new(environment).load_lenient().0)
}

impl fmt::Debug for FrameworkBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.plugins.iter().map(|(name, _)| name).collect();
        f.debug_struct("FrameworkBuilder")
            .field("plugins", &names)
            .finish_non_exhaustive()
    }
}
