//! The framework: plugins, their hooks, and what they share.

use std::{
    cell::RefCell,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, PoisonError, RwLock, Weak},
};

use bub_settings::{Environment, Loader, Settings};

use crate::{
    approval::Approvals,
    error::{BoxError, Error},
    hooks::HookSet,
    plugin::{self, Plugin, PluginContext, PluginFactory, PluginState, PluginStatus},
    router::ChannelRouter,
    scope::ScopeState,
    tool::{self, Tool},
};

/// Runs turns with a fixed set of plugins. A handle: clones are the same framework.
#[derive(Clone)]
pub struct Framework(Arc<Inner>);

struct Inner {
    workspace: PathBuf,
    workspace_text: String,
    hooks: HookSet,
    plugins: Vec<PluginStatus>,
    tools: Vec<Arc<dyn Tool>>,
    settings: Arc<Settings>,
    approvals: Approvals,
    router: RwLock<Option<Arc<dyn ChannelRouter>>>,
    /// The open running scopes; the last one is in use.
    scopes: RwLock<Vec<Arc<ScopeState>>>,
}

impl Framework {
    /// Starts building one.
    pub fn builder() -> FrameworkBuilder {
        FrameworkBuilder::default()
    }

    /// The workspace, absolute.
    pub fn workspace(&self) -> &Path {
        &self.0.workspace
    }

    /// The workspace as text: what names its tapes.
    pub fn workspace_text(&self) -> &str {
        &self.0.workspace_text
    }

    /// The hooks of all plugins.
    pub fn hooks(&self) -> &HookSet {
        &self.0.hooks
    }

    /// Every plugin that was asked for, in order, with what became of it.
    pub fn plugins(&self) -> &[PluginStatus] {
        &self.0.plugins
    }

    /// The tools of all plugins, in the order of registration.
    pub fn tools(&self) -> &[Arc<dyn Tool>] {
        &self.0.tools
    }

    /// The settings of the program.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.0.settings
    }

    /// The tool calls that wait for a user's approval.
    pub fn approvals(&self) -> &Approvals {
        &self.0.approvals
    }

    /// Binds the router of outbound messages; `None` unbinds it.
    pub fn bind_router(&self, router: Option<Arc<dyn ChannelRouter>>) {
        *self
            .0
            .router
            .write()
            .unwrap_or_else(PoisonError::into_inner) = router;
    }

    /// The bound router.
    pub fn router(&self) -> Option<Arc<dyn ChannelRouter>> {
        self.0
            .router
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn scope(&self) -> Option<Arc<ScopeState>> {
        self.0
            .scopes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .last()
            .cloned()
    }

    pub(crate) fn enter_scope(&self, scope: Arc<ScopeState>) {
        self.0
            .scopes
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(scope);
    }

    pub(crate) fn leave_scope(&self, scope: &Arc<ScopeState>) {
        let mut scopes = self
            .0
            .scopes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        scopes.retain(|open| !Arc::ptr_eq(open, scope));
    }
}

/// A path that is not UTF-8 is spelled out byte by byte, so that two of them never read alike.
fn text_of(path: &Path) -> String {
    let escaped = || {
        path.as_os_str()
            .as_encoded_bytes()
            .escape_ascii()
            .to_string()
    };
    path.to_str().map_or_else(escaped, str::to_owned)
}

impl fmt::Debug for Framework {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Framework")
            .field("workspace", &self.0.workspace)
            .field("plugins", &self.0.plugins)
            .finish_non_exhaustive()
    }
}

/// A plugin's way back to the framework it belongs to, which does not keep it alive.
#[derive(Clone, Debug, Default)]
pub struct FrameworkRef(Arc<OnceLock<WeakFramework>>);

#[derive(Clone)]
struct WeakFramework(Weak<Inner>);

impl FrameworkRef {
    /// The framework; `None` while it is still being built, or after it is gone.
    pub fn get(&self) -> Option<Framework> {
        self.0.get()?.0.upgrade().map(Framework)
    }
}

impl fmt::Debug for WeakFramework {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakFramework")
    }
}

/// Collects plugins and builds a [`Framework`].
#[must_use]
#[derive(Default)]
pub struct FrameworkBuilder {
    workspace: Option<PathBuf>,
    settings: Option<Arc<Settings>>,
    plugins: Vec<(Arc<str>, PluginFactory)>,
    tools: Vec<Arc<dyn Tool>>,
}

impl FrameworkBuilder {
    /// The workspace; the current directory unless set.
    pub fn workspace(mut self, workspace: impl Into<PathBuf>) -> Self {
        self.workspace = Some(workspace.into());
        self
    }

    /// The settings of the program; defaults unless set.
    pub fn settings(mut self, settings: Arc<Settings>) -> Self {
        self.settings = Some(settings);
        self
    }

    /// Adds a plugin. The order matters: later ones run first.
    pub fn plugin(self, name: impl AsRef<str>, plugin: impl Plugin) -> Self {
        self.plugin_with(name, move |_| Ok::<_, BoxError>(plugin))
    }

    /// Adds a plugin that is made when the framework is built. One that cannot be made is reported
    /// and left out; the others go on.
    pub fn plugin_with<P: Plugin, E: Into<BoxError>>(
        mut self,
        name: impl AsRef<str>,
        make: impl FnOnce(&PluginContext<'_>) -> Result<P, E> + Send + 'static,
    ) -> Self {
        self.plugins
            .push((Arc::from(name.as_ref()), plugin::factory(make)));
        self
    }

    /// Whether a plugin of that name was added.
    pub fn has_plugin(&self, name: &str) -> bool {
        self.plugins.iter().any(|(known, _)| **known == *name)
    }

    /// Adds a tool after those of the plugins; a tool of the same name is replaced, in its place.
    pub fn tool(mut self, tool: impl Tool) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    /// Makes the plugins and the framework.
    pub fn build(self) -> Framework {
        let workspace = self.workspace.unwrap_or_else(|| PathBuf::from("."));
        // One directory is one workspace, however it was named: tapes are found by this path.
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
        let mut tools = Vec::new();
        let mut plugins = Vec::with_capacity(self.plugins.len());
        for (index, (name, factory)) in self.plugins.into_iter().enumerate() {
            let is_taken = plugins.iter().any(|known: &PluginStatus| {
                known.name == name && known.state == PluginState::Active
            });
            let loaded = if is_taken {
                Err(Error::config("a plugin of this name is registered already"))
            } else {
                plugin::load(factory, &context)
            };
            let own_tools = context.tools.take();
            let state = match loaded {
                Ok(mut own) => {
                    own.assign(index, &name);
                    hooks.merge(own);
                    tool::register(&mut tools, own_tools);
                    PluginState::Active
                }
                Err(error) => {
                    tracing::warn!(plugin = %name, %error, "plugin.init_failed");
                    PluginState::Failed(error.to_string())
                }
            };
            plugins.push(PluginStatus { name, state });
        }
        tool::register(&mut tools, self.tools);
        let inner = Arc::new(Inner {
            workspace_text: text_of(&workspace),
            workspace,
            hooks,
            plugins,
            tools,
            settings,
            approvals: Approvals::default(),
            router: RwLock::default(),
            scopes: RwLock::default(),
        });
        // Set exactly once, right here.
        let _ = framework.0.set(WeakFramework(Arc::downgrade(&inner)));
        Framework(inner)
    }
}

/// The defaults of all settings, without any source.
fn default_settings() -> Arc<Settings> {
    let nothing = Environment::from_pairs::<String, String>([]);
    Arc::new(Loader::new(nothing).load_lenient().0)
}

impl fmt::Debug for FrameworkBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.plugins.iter().map(|(name, _)| name).collect();
        f.debug_struct("FrameworkBuilder")
            .field("plugins", &names)
            .finish_non_exhaustive()
    }
}
