//! Determines the value of each declared setting from the sources.

use std::borrow::Cow;
use std::mem::discriminant;

use crate::node::{Node, NodeMap, merge};
use crate::secret::is_sensitive_name;
use crate::settings::{RegisteredSetting, SettingSlot, Settings};
use crate::sources::Layer;
use crate::spec::{AnySetting, Section, SectionSettings, SettingSpec};
use crate::types::provider_key;
use crate::{SettingSource, SettingsError, SettingsWarning, display, validate};

impl Settings {
    /// Adds the sections of a program. The root sections come first, so that they are listed
    /// together.
    ///
    /// Values are read when all keys are known, because a variable that ends like a per-provider
    /// setting may belong to any section.
    pub(crate) fn add_sections(
        &mut self,
        sections: impl Iterator<Item = Section>,
        problems: &mut Vec<SettingsError>,
    ) {
        let (root, named): (Vec<_>, Vec<_>) = sections.partition(|section| section.name.is_empty());
        for section in root {
            let problem = self.keys_problem(&section, |_| true);
            self.add_if_valid(section, problem, problems);
        }
        for section in named {
            let problem = self.declaration_problem(&section, false);
            self.add_if_valid(section, problem, problems);
        }
        self.resolve_slots_from(0, problems);
    }

    /// Adds a named section to settings that were loaded without it.
    pub(crate) fn add_section(&mut self, section: Section, problems: &mut Vec<SettingsError>) {
        let first = self.slots.len();
        let problem = self.declaration_problem(&section, false);
        self.add_if_valid(section, problem, problems);
        self.resolve_slots_from(first, problems);
    }

    fn add_if_valid(
        &mut self,
        section: Section,
        problem: Option<String>,
        problems: &mut Vec<SettingsError>,
    ) {
        match problem {
            Some(problem) => problems.push(SettingsError::Declaration {
                section: section.name.into_owned(),
                problem,
            }),
            None => self.add_slots(section, problems),
        }
    }

    fn add_slots(&mut self, section: Section, problems: &mut Vec<SettingsError>) {
        if !self.sections.contains(&section.name) {
            problems.extend(self.section_problem(&section.name));
            self.sections.push(section.name);
        }
        let slot = |declared| SettingSlot {
            declared,
            value: None,
        };
        match section.keys {
            SectionSettings::Static(keys) => self
                .slots
                .extend(keys.iter().map(|key| slot(RegisteredSetting::Static(*key)))),
            SectionSettings::Dynamic(keys) => self.slots.extend(
                keys.into_iter()
                    .map(|key| slot(RegisteredSetting::Dynamic(Box::new(key)))),
            ),
        }
    }

    /// Returns what is wrong with the declaration of a section.
    ///
    /// With `replace`, a registered section of the same name is ignored if it was declared at run
    /// time.
    pub(crate) fn declaration_problem(&self, section: &Section, replace: bool) -> Option<String> {
        if section.name.is_empty() || section.name.contains('.') {
            return Some("the name must not be empty or contain dots".to_owned());
        }
        let is_replaced =
            |registered: &Cow<'_, str>| replace && matches!(registered, Cow::Owned(_));
        if self
            .sections
            .iter()
            .any(|registered| *registered == section.name && !is_replaced(registered))
        {
            return Some("a section with this name already exists; choose another name".to_owned());
        }
        if self
            .slots
            .iter()
            .any(|slot| slot.spec().key() == section.name)
        {
            return Some("a setting with this name already exists; choose another name".to_owned());
        }
        self.keys_problem(section, |slot| {
            let is_own_key = slot
                .spec()
                .key()
                .split_once('.')
                .is_some_and(|(name, _)| name == section.name);
            !(replace && is_own_key)
        })
    }

    /// Returns the first problem of a section's keys: a key outside its section, or a variable that
    /// belongs to another setting. Of the registered settings, only those that `is_kept` accepts
    /// count.
    fn keys_problem(
        &self,
        section: &Section,
        is_kept: impl Fn(&SettingSlot) -> bool,
    ) -> Option<String> {
        let settings: Vec<&SettingSpec> = match &section.keys {
            SectionSettings::Static(keys) => keys.iter().map(|key| key.setting()).collect(),
            SectionSettings::Dynamic(keys) => keys.iter().map(AnySetting::setting).collect(),
        };
        settings.iter().enumerate().find_map(|(index, setting)| {
            let key = setting.key();
            let inside = match &*section.name {
                "" => Some(key),
                name => key
                    .strip_prefix(name)
                    .and_then(|rest| rest.strip_prefix('.')),
            };
            if inside.is_none_or(|name| name.is_empty() || name.contains('.')) {
                return Some(match &*section.name {
                    "" => format!("the key `{key}` must not contain dots"),
                    name => format!("the key `{key}` must be `{name}.<name>`"),
                });
            }
            let registered = self.slots.iter().filter(|slot| is_kept(slot));
            let registered = registered.map(SettingSlot::spec);
            let mut others = registered.chain(settings.iter().take(index).copied());
            let variable = setting.variable();
            others.any(|other| other.is_variable(&variable)).then(|| {
                format!("the variable {variable} belongs to another setting; choose another key")
            })
        })
    }

    pub(crate) fn resolve_slots_from(&mut self, first: usize, problems: &mut Vec<SettingsError>) {
        for index in first..self.slots.len() {
            let mut warnings = Vec::new();
            let value = self
                .slots
                .get(index)
                .and_then(|slot| self.resolve_setting(slot.spec(), &mut warnings, problems));
            self.warnings.append(&mut warnings);
            if let Some(slot) = self.slots.get_mut(index) {
                slot.value = value;
            }
        }
    }

    fn resolve_setting(
        &self,
        setting: &SettingSpec,
        warnings: &mut Vec<SettingsWarning>,
        problems: &mut Vec<SettingsError>,
    ) -> Option<Node> {
        let user_home = self.sources.environment.user_home();
        let mut merged = None;
        let mut add = |layer: Result<Option<Node>, SettingsError>| match layer {
            Ok(Some(node)) => {
                self.register_secrets(setting, &node);
                merged = Some(match merged.take() {
                    Some(lower) => merge(lower, node),
                    None => node,
                });
            }
            Ok(None) => {}
            Err(error) => problems.push(error),
        };
        let mut in_config = self.sources.all_config_values(setting);
        if let Some((name, node)) = in_config.next() {
            let deprecated = (name != setting.key()).then_some((name, node));
            warnings.extend(deprecated.into_iter().chain(in_config).map(|(old, node)| {
                SettingsWarning::Deprecated {
                    origin: node.origin.clone(),
                    name: old.to_owned(),
                    replacement: setting.key().to_owned(),
                    is_ignored: old != name,
                }
            }));
            if setting.is_in_file() {
                let read = validate::validate_node(setting, node.clone(), user_home);
                add(read.map_err(|error| error.with_name(setting.key(), name)));
            } else {
                let variable = setting.variable().into_owned();
                let (origin, name) = (node.origin.clone(), setting.key().to_owned());
                warnings.push(SettingsWarning::NotInFile {
                    origin,
                    name,
                    variable,
                });
            }
        }
        let layers = self.sources.text_layers(setting);
        warnings.extend(deprecated_variables(setting, &layers));
        for layer in layers {
            if layer.distrusted {
                warnings.push(SettingsWarning::Untrusted {
                    origin: layer.origin,
                    name: setting.key().to_owned(),
                });
            } else if !self.is_section_setting(&layer) {
                let in_workspace = matches!(layer.origin, SettingSource::DotEnv { .. });
                match self.read_layer(setting, layer) {
                    // A cloned repository must not lock the user out.
                    Err(error) if in_workspace => {
                        warnings.push(SettingsWarning::DotEnvValue {
                            problem: error.to_string(),
                        });
                    }
                    read => add(read),
                }
            }
        }
        merged
    }

    /// Returns whether `BUB_X_API_KEY` sets the setting `x.api_key` and not the key of a provider
    /// `x`.
    fn is_section_setting(&self, layer: &Layer<'_>) -> bool {
        let name = match &layer.origin {
            SettingSource::Env(name) | SettingSource::DotEnv { name, .. }
                if layer.provider.is_some() =>
            {
                name
            }
            _ => return false,
        };
        self.slots.iter().any(|slot| slot.spec().is_variable(name))
    }

    fn read_layer(
        &self,
        setting: &SettingSpec,
        layer: Layer<'_>,
    ) -> Result<Option<Node>, SettingsError> {
        let Layer {
            origin,
            text,
            provider,
            ..
        } = layer;
        let text = text.ok_or_else(|| SettingsError::NotText {
            location: origin.to_string(),
        })?;
        if setting.is_secret()
            || (!setting.matches_format(text.trim()) && validate::may_contain_secret(setting, text))
        {
            // Register invalid text, too, because an error may mention it.
            self.redactor.register_text(text);
            if let SettingSource::Env(name) = &origin {
                self.hide_from_children(name);
            }
        }
        match provider {
            None => validate::parse_setting_text(
                setting,
                text,
                origin,
                self.sources.environment.user_home(),
            ),
            Some(_) if text.trim().is_empty() => Ok(None),
            Some(provider) => {
                validate::parse_provider_text(setting, provider_key(&provider), text, origin)
                    .map(Some)
            }
        }
    }

    fn register_secrets(&self, setting: &SettingSpec, node: &Node) {
        node.visit_leaves(setting.key(), &mut |key, leaf| {
            let whole = display::is_secret(setting, key).then_some(leaf.text.as_str());
            let parts = || {
                display::url_password(&leaf.text)
                    .into_iter()
                    .chain(display::query_secrets(&leaf.text))
            };
            let secrets: Vec<_> = whole.map_or_else(|| parts().collect(), |whole| vec![whole]);
            for secret in &secrets {
                self.redactor.register_text(secret);
            }
            if let SettingSource::Env(name) = &node.origin
                && !secrets.is_empty()
            {
                self.hide_from_children(name);
            }
        });
    }

    /// Registers secrets that no setting declares.
    ///
    /// They belong to plugins that are not loaded, unused providers, and other programs. Commands
    /// can read them, and their output reaches the model and the tape.
    pub(crate) fn register_undeclared_secrets(&self) {
        for (name, value) in self
            .sources
            .environment
            .iter()
            .filter(|(name, _)| is_sensitive_name(name))
        {
            self.hide_from_children(name);
            self.redactor.register_text(value.to_string_lossy().trim());
        }
        let bindings = self.sources.dotenv.iter().flat_map(|file| &file.bindings);
        for binding in bindings.filter(|binding| is_sensitive_name(&binding.name)) {
            self.redactor.register_text(&binding.value);
        }
        for (key, node) in self.sources.config.iter().flat_map(NodeMap::iter) {
            node.visit_leaves(key, &mut |key, leaf| {
                if is_sensitive_name(key) {
                    self.redactor.register_text(&leaf.text);
                }
            });
        }
    }
}

/// Returns the warnings about former variables. In each source, the new variable has priority.
fn deprecated_variables(setting: &SettingSpec, layers: &[Layer<'_>]) -> Vec<SettingsWarning> {
    let is_replaced = |old: &Layer<'_>| {
        layers.iter().any(|layer| {
            layer.deprecated_name.is_none()
                && layer.text.is_none_or(|text| !text.trim().is_empty())
                && discriminant(&layer.origin) == discriminant(&old.origin)
        })
    };
    let warning = |layer: &Layer<'_>| {
        let name = layer.deprecated_name.filter(|_| !layer.distrusted)?;
        Some(SettingsWarning::Deprecated {
            origin: layer.origin.clone(),
            name: name.to_owned(),
            replacement: setting.variable().into_owned(),
            is_ignored: is_replaced(layer),
        })
    };
    layers.iter().filter_map(warning).collect()
}
