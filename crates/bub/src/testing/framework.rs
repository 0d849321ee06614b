//! A framework with the agent in the directory of a test.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use bub_agent::{BuiltinAgent, BuiltinOptions, ModelOverride};
use bub_kernel::{Error, Framework, FrameworkBuilder, Result};
use bub_settings::{Environment, Loader, Section, Settings};
use serde_json::{Map, Value};

/// Starts the description of a framework with the agent, for tests that call hooks, run several gateways, or need a
/// model server. The directories `home` and `workspace` are in `directory`. The environment has no other variables
/// than those of [`env`](FrameworkTest::env), and no model on this machine is used.
pub fn framework(directory: &Path) -> FrameworkTest {
    FrameworkTest {
        directory: directory.to_owned(),
        variables: Vec::new(),
        sections: Vec::new(),
        config: Map::new(),
        model_override: None,
    }
}

/// The description of a framework. [`framework`] creates it.
#[must_use = "the framework exists only after `builder`"]
pub struct FrameworkTest {
    directory: PathBuf,
    variables: Vec<(String, OsString)>,
    pub(super) sections: Vec<Section>,
    pub(super) config: Map<String, Value>,
    model_override: Option<Arc<ModelOverride>>,
}

impl FrameworkTest {
    /// Declares the settings of a plugin; see [`App::settings`](crate::App::settings).
    pub fn settings(mut self, section: Section) -> Self {
        self.sections.push(section);
        self
    }

    /// Sets a setting in the config file: `.setting("greeter.word", "Salve")`.
    pub fn setting(mut self, key: &str, value: impl Into<Value>) -> Self {
        set_in_config(&mut self.config, key, value.into());
        self
    }

    /// Sets a variable of the environment.
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Answers all model calls with this function. Without it, the settings name the model.
    pub fn model(self, answer: ModelOverride) -> Self {
        self.shared_model(Arc::new(answer))
    }

    pub(super) fn shared_model(mut self, answer: Arc<ModelOverride>) -> Self {
        self.model_override = Some(answer);
        self.env("BUB_MODEL", "llamacpp:scripted")
    }

    /// Writes the config file, loads the settings, and returns a builder with the plugin `builtin`. Add the plugins of
    /// the test to it.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be created, or if the settings are invalid.
    pub fn builder(self) -> Result<FrameworkBuilder> {
        let settings = self.load_settings()?;
        self.builder_with(settings)
    }

    pub(super) fn load_settings(&self) -> Result<Settings> {
        let home = self.directory.join("home");
        if !self.config.is_empty() {
            std::fs::create_dir_all(&home)?;
            // JSON is valid YAML.
            let config = Value::Object(self.config.clone()).to_string();
            std::fs::write(home.join("config.yml"), config)?;
        }
        let defaults = [
            ("BUB_HOME", home.into_os_string()),
            ("HOME", self.directory.clone().into_os_string()),
            ("BUB_LOCAL_MODELS", "false".into()),
            // A test program cannot confine commands: it has no supervisor.
            ("BUB_SANDBOX_PROFILE", "off".into()),
        ];
        let is_set = |name: &str| self.variables.iter().any(|(known, _)| known == name);
        let defaults = defaults.into_iter().filter(|(name, _)| !is_set(name));
        let defaults = defaults.map(|(name, value)| (name.to_owned(), value));
        Loader::new(Environment::from_pairs(
            defaults.chain(self.variables.iter().cloned()),
        ))
        .sections(crate::core_sections().chain(self.sections.iter().cloned()))
        .load()
        .map_err(|error| Error::config(error.to_string()))
    }

    pub(super) fn builder_with(self, settings: Settings) -> Result<FrameworkBuilder> {
        let workspace = self.directory.join("workspace");
        std::fs::create_dir_all(&workspace)?;
        let options = BuiltinOptions {
            model_override: self.model_override,
            ..BuiltinOptions::default()
        };
        let builder = Framework::builder()
            .workspace(workspace)
            .settings(Arc::new(settings));
        Ok(builder.plugin_with(crate::BuiltinPlugin::NAME, |context| {
            BuiltinAgent::new(context, options)
        }))
    }
}

fn set_in_config(config: &mut Map<String, Value>, key: &str, value: Value) {
    match key.split_once('.') {
        None => drop(config.insert(key.to_owned(), value)),
        Some((section, key)) => {
            let section = config
                .entry(section)
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(section) = section {
                set_in_config(section, key, value);
            }
        }
    }
}
