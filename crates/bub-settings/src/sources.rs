//! The content of all sources, and the values in them for one setting.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use crate::dotenv::Binding;
use crate::load::WorkspaceTrust;
use crate::node::{Node, NodeMap};
use crate::spec::SettingSpec;
use crate::{Environment, SettingSource};

/// Content of all sources before declarations are applied.
///
/// It does not change, so a section that is registered later finds its values.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) environment: Environment,
    pub(crate) dotenv: Option<DotEnvFile>,
    pub(crate) config: Option<NodeMap>,
    pub(crate) flags: Vec<Flag>,
}

#[derive(Clone)]
pub(crate) struct DotEnvFile {
    pub(crate) file: Arc<Path>,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) trust: WorkspaceTrust,
}

#[derive(Clone)]
pub(crate) struct Flag {
    pub(crate) key: String,
    pub(crate) name: Arc<str>,
    pub(crate) value: String,
}

/// Text that a source other than the config file has for a setting.
pub(crate) struct Layer<'a> {
    pub(crate) origin: SettingSource,
    /// `None` if the value is not UTF-8.
    pub(crate) text: Option<&'a str>,
    /// Provider in variables such as `BUB_<PROVIDER>_API_KEY`.
    pub(crate) provider: Option<String>,
    /// Whether this is a trusted setting in the `.env` of an untrusted workspace.
    pub(crate) distrusted: bool,
    /// Former variable, if the source uses it.
    pub(crate) deprecated_name: Option<&'a str>,
}

impl Sources {
    /// Returns the texts for a setting, lowest precedence first: `.env`, environment, flags.
    ///
    /// In each source, former variables come first, and the value for all providers comes before
    /// values for single providers.
    pub(crate) fn text_layers<'a>(&'a self, setting: &SettingSpec) -> Vec<Layer<'a>> {
        let mut layers = Vec::new();
        if let Some(dotenv) = &self.dotenv {
            let distrusted = setting.is_trusted() && dotenv.trust == WorkspaceTrust::Untrusted;
            let bindings = dotenv.bindings.iter().map(|binding| {
                let origin = || SettingSource::DotEnv {
                    file: dotenv.file.clone(),
                    line: binding.line,
                    name: binding.name.as_str().into(),
                };
                (binding.name.as_str(), Some(binding.value.as_str()), origin)
            });
            collect_layers(setting, bindings, distrusted, &mut layers);
        }
        let variables = self
            .environment
            .iter()
            .map(|(name, value): (&str, &OsStr)| {
                let origin = move || SettingSource::Env(name.into());
                (name, value.to_str(), origin)
            });
        collect_layers(setting, variables, false, &mut layers);
        let flags = self
            .flags
            .iter()
            .filter(|flag| flag.key == setting.key())
            .map(|flag| Layer {
                origin: SettingSource::Flag(flag.name.clone()),
                text: Some(&flag.value),
                provider: None,
                distrusted: false,
                deprecated_name: None,
            });
        layers.extend(flags);
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
        setting.names().filter_map(|name| {
            let mut path = name.split('.');
            let node = self.config.as_ref()?.get(path.next()?)?.descend(path)?;
            Some((name, node))
        })
    }
}

/// Appends the matching variables of one source; variables for a single provider come last.
///
/// Variables that differ only in case set the same setting. The spelling in capitals has the
/// highest precedence.
fn collect_layers<'a, O: Fn() -> SettingSource>(
    setting: &SettingSpec,
    variables: impl Iterator<Item = (&'a str, Option<&'a str>, O)>,
    distrusted: bool,
    layers: &mut Vec<Layer<'a>>,
) {
    let first = layers.len();
    for (name, text, origin) in variables {
        let provider = setting.provider_in_variable(name);
        if provider.is_some() || setting.is_variable(name) {
            layers.push(Layer {
                origin: origin(),
                text,
                provider,
                distrusted,
                deprecated_name: setting.is_deprecated_variable(name).then_some(name),
            });
        }
    }
    if let Some(added) = layers.get_mut(first..)
        && added.len() > 1
    {
        added.sort_by_key(|layer| {
            (
                layer.provider.is_some(),
                layer.deprecated_name.is_none(),
                layer.origin.has_usual_spelling(),
            )
        });
    }
}
