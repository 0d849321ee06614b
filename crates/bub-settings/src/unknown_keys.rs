//! Finds names in the sources that no setting declares. They are usually typos.

use crate::error::suggestion_text;
use crate::node::{Node, NodeData};
use crate::settings::Settings;
use crate::{SettingSource, SettingSpec, SettingsError, SettingsWarning, ValueKind, suggest};

impl Settings {
    /// Returns all warnings about the sources. They depend on the registered sections, so call it
    /// after all plugins are loaded.
    pub fn warnings(&self) -> Vec<SettingsWarning> {
        let mut warnings = self.warnings.clone();
        warnings.extend(self.unknown_config_keys());
        for (name, _) in self.sources.environment.iter() {
            let origin = || SettingSource::Env(name.into());
            warnings.extend(self.unknown_variable(name, origin));
        }
        if let Some(file) = &self.sources.dotenv {
            let bindings = file.bindings.iter();
            warnings.extend(bindings.filter_map(|binding| {
                self.unknown_variable(&binding.name, || file.origin(binding))
            }));
        }
        warnings
    }

    /// Returns an error for each undeclared name in the config file that resembles `policy` or
    /// `owners`, or that is below one of these keys. They restrict access, so ignoring a typo would
    /// be unsafe.
    pub(crate) fn policy_typo_errors(&self) -> impl Iterator<Item = SettingsError> {
        self.unknown_config_keys()
            .into_iter()
            .filter_map(|warning| {
                let SettingsWarning::Unknown {
                    origin,
                    name,
                    suggestion,
                } = warning
                else {
                    return None;
                };
                let is_restriction = suggestion
                    .as_deref()
                    .is_some_and(|name| name == "policy" || name == "owners");
                let suggestion = suggestion_text(suggestion.as_deref());
                (is_restriction || name.starts_with("policy.") || name.starts_with("owners."))
                    .then_some(SettingsError::Unknown {
                        origin,
                        name,
                        suggestion,
                    })
            })
    }

    /// Returns whether a key is declared, also as a former key.
    fn is_declared_key(&self, key: &str) -> bool {
        let mut names = self.specs().flat_map(SettingSpec::names);
        names.any(|name| name == key)
    }

    /// Returns a warning for each undeclared key in the config file.
    fn unknown_config_keys(&self) -> Vec<SettingsWarning> {
        let mut warnings = Vec::new();
        for (key, node) in self.sources.config.iter().flat_map(Node::entries) {
            self.check_root_key(key, node, &mut warnings);
        }
        warnings
    }

    fn check_root_key(&self, key: &str, node: &Node, warnings: &mut Vec<SettingsWarning>) {
        if self.is_declared_key(key) && !key.contains('.') {
            return;
        }
        if !key.is_empty() && self.sections.iter().any(|section| section == key) {
            self.check_section(key, node, warnings);
            return;
        }
        // A map whose name resembles a setting that cannot be a map is probably the section of a
        // plugin.
        let is_map = matches!(node.data, NodeData::Map(_));
        let fits = |kind: ValueKind| {
            !is_map
                || matches!(
                    kind,
                    ValueKind::Map | ValueKind::Maps | ValueKind::List | ValueKind::PerProvider
                )
        };
        let roots = self
            .specs()
            .filter(|spec| !spec.key.contains('.') && fits(spec.kind));
        let roots = roots.map(|spec| &*spec.key);
        let sections = self.sections.iter().map(|section| &**section);
        let sections = sections.filter(|section| !section.is_empty());
        let suggestion = match key.split_once('.') {
            Some((section, name)) if self.is_declared_key(key) => {
                Some(format!("{section}: {{{name}: …}}"))
            }
            _ => suggest::closest_match(key, roots.chain(sections))
                .or_else(|| resembled_restriction(key))
                .map(str::to_owned),
        };
        // A map whose name resembles no setting is most likely the section of a plugin that is not
        // loaded.
        if suggestion.is_some() || !is_map {
            warnings.push(SettingsWarning::Unknown {
                origin: node.origin.clone(),
                name: key.to_owned(),
                suggestion,
            });
        }
    }

    fn check_section(&self, section: &str, node: &Node, warnings: &mut Vec<SettingsWarning>) {
        for (key, node) in node.entries() {
            let name = format!("{section}.{key}");
            if self.is_declared_key(&name) {
                continue;
            }
            let keys = self.specs().map(|spec| &*spec.key);
            let siblings = keys.filter(|key| {
                let prefix = key.split_once('.').map(|(prefix, _)| prefix);
                prefix == Some(section)
            });
            let suggestion = suggest::closest_match(&name, siblings).map(str::to_owned);
            warnings.push(SettingsWarning::Unknown {
                origin: node.origin.clone(),
                name,
                suggestion,
            });
        }
    }

    /// Returns a warning about a variable if its name is a likely typo. Other unknown variables that
    /// start with `BUB_` may belong to other programs.
    fn unknown_variable(
        &self,
        name: &str,
        origin: impl Fn() -> SettingSource,
    ) -> Option<SettingsWarning> {
        name.get(..4)
            .filter(|prefix| prefix.eq_ignore_ascii_case("BUB_"))?;
        let is_declared = |spec: &SettingSpec| {
            spec.is_variable(name) || spec.provider_in_variable(name).is_some()
        };
        if self.specs().any(is_declared) {
            return None;
        }
        let variables: Vec<_> = self.specs().map(SettingSpec::variable).collect();
        let suggestion = suggest::closest_match(name, variables.iter().map(|name| &**name))?;
        Some(SettingsWarning::Unknown {
            origin: origin(),
            name: name.to_owned(),
            suggestion: Some(suggestion.to_owned()),
        })
    }
}

/// Returns the restricting setting that a name resembles: `policy` or `owners`. A typo in such a
/// name must not be ignored.
fn resembled_restriction(name: &str) -> Option<&'static str> {
    let lower = name.to_lowercase();
    [("polic", "policy"), ("owner", "owners")]
        .into_iter()
        .find_map(|(start, meant)| lower.starts_with(start).then_some(meant))
}
