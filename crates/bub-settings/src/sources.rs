//! The content of all sources, and the values in them for one setting.

use std::path::Path;
use std::sync::Arc;

use crate::dotenv::Binding;
use crate::node::Node;
use crate::spec::SettingSpec;
use crate::{Environment, SettingSource};

/// Content of all sources before declarations are applied.
///
/// It does not change, so a section that is registered later finds its values.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) environment: Environment,
    /// The `.env`, if it is trusted.
    pub(crate) dotenv: Option<DotEnvFile>,
    /// Root of the config file, a map.
    pub(crate) config: Option<Node>,
    pub(crate) flags: Vec<Flag>,
}

#[derive(Clone)]
pub(crate) struct DotEnvFile {
    pub(crate) file: Arc<Path>,
    pub(crate) bindings: Vec<Binding>,
}

#[derive(Clone)]
pub(crate) struct Flag {
    pub(crate) key: String,
    pub(crate) name: Arc<str>,
    pub(crate) value: String,
}

impl DotEnvFile {
    /// Returns the effective assignment of a variable, ignoring case.
    pub(crate) fn binding(&self, name: &str) -> Option<&Binding> {
        let mut bindings = self.bindings.iter().rev();
        bindings.find(|binding| binding.name.eq_ignore_ascii_case(name))
    }

    pub(crate) fn origin(&self, binding: &Binding) -> SettingSource {
        SettingSource::DotEnv {
            file: self.file.clone(),
            line: binding.line,
            name: binding.name.as_str().into(),
        }
    }
}

/// Text that a source other than the config file has for a setting.
pub(crate) struct Layer<'a> {
    pub(crate) origin: SettingSource,
    /// Name of the variable or the flag.
    pub(crate) name: &'a str,
    /// `None` if the value is not UTF-8.
    pub(crate) text: Option<&'a str>,
    /// Provider in the name of a variable such as `BUB_<PROVIDER>_API_KEY`; `None` for other
    /// variables.
    pub(crate) provider: Option<String>,
    /// Whether the variable belongs to a former key of the setting.
    pub(crate) is_deprecated: bool,
}

impl Sources {
    pub(crate) fn new(environment: Environment) -> Self {
        Self {
            environment,
            dotenv: None,
            config: None,
            flags: Vec::new(),
        }
    }

    /// Returns the texts for a setting, lowest precedence first: `.env`, environment, flags.
    ///
    /// In each source, former variables come first, and the value for all providers comes before
    /// values for single providers.
    pub(crate) fn text_layers<'a>(&'a self, setting: &SettingSpec) -> Vec<Layer<'a>> {
        let mut layers = Vec::new();
        if let Some(file) = &self.dotenv {
            let bindings = file.bindings.iter().filter_map(|binding| {
                let text = || Some(binding.value.as_str());
                variable_layer(setting, &binding.name, text, || file.origin(binding))
            });
            layers.extend(in_order_of_precedence(bindings));
        }
        let variables = self.environment.iter().filter_map(|(name, value)| {
            let origin = || SettingSource::Env(name.into());
            variable_layer(setting, name, || value.to_str(), origin)
        });
        layers.extend(in_order_of_precedence(variables));
        let flags = self.flags.iter().filter(|flag| flag.key == setting.key);
        layers.extend(flags.map(|flag| Layer {
            origin: SettingSource::Flag(flag.name.clone()),
            name: &flag.name,
            text: Some(&flag.value),
            provider: None,
            is_deprecated: false,
        }));
        layers
    }

    /// Returns the value of a setting in the config file.
    pub(crate) fn config_value(&self, setting: &SettingSpec) -> Option<&Node> {
        self.all_config_values(setting).next().map(|(_, node)| node)
    }

    /// Returns the values that the config file has for a setting, with the key of each. The first
    /// one is effective; others have former keys.
    pub(crate) fn all_config_values<'a, 's>(
        &'a self,
        setting: &'s SettingSpec,
    ) -> impl Iterator<Item = (&'s str, &'a Node)> {
        let config = self.config.as_ref();
        setting
            .names()
            .filter_map(move |name| Some((name, config?.descend(name.split('.'))?)))
    }
}

/// Returns the layer of a variable if the variable sets the setting.
fn variable_layer<'a>(
    setting: &SettingSpec,
    name: &'a str,
    text: impl FnOnce() -> Option<&'a str>,
    origin: impl FnOnce() -> SettingSource,
) -> Option<Layer<'a>> {
    let provider = setting.provider_in_variable(name);
    (provider.is_some() || setting.is_variable(name)).then(|| Layer {
        origin: origin(),
        name,
        text: text(),
        provider,
        is_deprecated: setting.is_deprecated_variable(name),
    })
}

/// Sorts the variables of one source; variables for a single provider come last.
///
/// Variables that differ only in case set the same setting. The spelling in capitals has the
/// highest precedence.
fn in_order_of_precedence<'a>(layers: impl Iterator<Item = Layer<'a>>) -> Vec<Layer<'a>> {
    let mut layers: Vec<_> = layers.collect();
    layers.sort_by_key(|layer| {
        let is_in_capitals = !layer.name.bytes().any(|byte| byte.is_ascii_lowercase());
        (
            layer.provider.is_some(),
            !layer.is_deprecated,
            is_in_capitals,
        )
    });
    layers
}
