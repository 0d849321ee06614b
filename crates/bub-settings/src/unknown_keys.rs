//! Finds undeclared names, which are usually typos.

use crate::error::suggestion_text;
use crate::node::{Node, NodeData, NodeMap};
use crate::settings::Settings;
use crate::{SettingSource, SettingSpec, SettingsError, SettingsWarning, ValueKind, suggest};

impl Settings {
    /// Returns all warnings about the sources. They depend on the registered sections, so call it
    /// after all plugins are loaded.
    pub fn warnings(&self) -> Vec<SettingsWarning> {
        let mut warnings = self.warnings.clone();
        for (key, node) in self.sources.config.iter().flat_map(NodeMap::iter) {
            self.check_root_key(key, node, &mut warnings);
        }
        for (name, _) in self.sources.environment.iter() {
            self.check_variable(name, || SettingSource::Env(name.into()), &mut warnings);
        }
        if let Some(file) = &self.sources.dotenv {
            for binding in &file.bindings {
                let name = binding.name.as_str();
                let origin = || SettingSource::DotEnv {
                    file: file.file.clone(),
                    line: binding.line,
                    name: name.into(),
                };
                self.check_variable(name, origin, &mut warnings);
            }
        }
        warnings
    }

    /// Returns undeclared names that are probably meant to restrict access. Ignoring them would be
    /// unsafe, so they are errors.
    pub(crate) fn policy_typo_errors(&self) -> impl Iterator<Item = SettingsError> {
        let mut unknown = Vec::new();
        for (key, node) in self.sources.config.iter().flat_map(NodeMap::iter) {
            self.check_root_key(key, node, &mut unknown);
        }
        unknown.into_iter().filter_map(|warning| {
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

    fn declared_keys(&self) -> impl Iterator<Item = &str> {
        self.slots.iter().map(|slot| slot.spec().key())
    }

    /// Returns whether a key is declared, also as a former key.
    fn is_declared_key(&self, key: &str) -> bool {
        let mut names = self.slots.iter().flat_map(|slot| slot.spec().names());
        names.any(|name| name == key)
    }

    fn check_root_key(&self, key: &str, node: &Node, warnings: &mut Vec<SettingsWarning>) {
        if self.is_declared_key(key) && !key.contains('.') {
            return;
        }
        if !key.is_empty() && self.sections.iter().any(|section| section == key) {
            self.check_section(key, node, warnings);
            return;
        }
        // A map that resembles a setting of another kind is the section of a plugin.
        let is_map = matches!(node.data, NodeData::Map(_));
        let fits = |kind: ValueKind| {
            !is_map
                || matches!(
                    kind,
                    ValueKind::Map | ValueKind::Maps | ValueKind::List | ValueKind::PerProvider
                )
        };
        let slots = self.slots.iter().map(crate::settings::SettingSlot::spec);
        let roots = slots
            .filter(|declared| !declared.key().contains('.') && fits(declared.kind()))
            .map(SettingSpec::key);
        let sections = self
            .sections
            .iter()
            .map(|section| &**section)
            .filter(|section| !section.is_empty());
        let suggestion = match key.split_once('.') {
            Some((section, name)) if self.is_declared_key(key) => {
                Some(format!("{section}: {{{name}: …}}"))
            }
            _ => suggest::closest_match(key, roots.chain(sections))
                .or_else(|| resembled_restriction(key))
                .map(str::to_owned),
        };
        // A map with another name is most likely the section of a plugin that is not loaded.
        if suggestion.is_some() || !is_map {
            warnings.push(SettingsWarning::Unknown {
                origin: node.origin.clone(),
                name: key.to_owned(),
                suggestion,
            });
        }
    }

    fn check_section(&self, section: &str, node: &Node, warnings: &mut Vec<SettingsWarning>) {
        let NodeData::Map(map) = &node.data else {
            return;
        };
        for (key, node) in map.iter() {
            let name = format!("{section}.{key}");
            if self.is_declared_key(&name) {
                continue;
            }
            let siblings = self.declared_keys().filter(|declared| {
                declared
                    .split_once('.')
                    .is_some_and(|(prefix, _)| prefix == section)
            });
            let suggestion = suggest::closest_match(&name, siblings).map(str::to_owned);
            warnings.push(SettingsWarning::Unknown {
                origin: node.origin.clone(),
                name,
                suggestion,
            });
        }
    }

    /// Warns about a variable if its name is a likely typo. Other unknown variables that start with
    /// `BUB_` may belong to other programs.
    fn check_variable(
        &self,
        name: &str,
        origin: impl Fn() -> SettingSource,
        warnings: &mut Vec<SettingsWarning>,
    ) {
        let has_prefix = name
            .get(..4)
            .is_some_and(|prefix| prefix.eq_ignore_ascii_case("BUB_"));
        let declared = |slot: &crate::settings::SettingSlot| {
            slot.spec().is_variable(name) || slot.spec().provider_in_variable(name).is_some()
        };
        if !has_prefix || self.slots.iter().any(declared) {
            return;
        }
        let variables: Vec<String> = self
            .slots
            .iter()
            .map(|slot| slot.spec().variable().into_owned())
            .collect();
        if let Some(suggestion) = suggest::closest_match(name, variables.iter().map(String::as_str))
        {
            let suggestion = Some(suggestion.to_owned());
            warnings.push(SettingsWarning::Unknown {
                origin: origin(),
                name: name.to_owned(),
                suggestion,
            });
        }
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
