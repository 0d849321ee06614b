//! Determines the value of each declared setting from the sources.

use std::borrow::Cow;
use std::collections::HashSet;
use std::mem::discriminant;

use crate::child_env::{has_secret_name, has_secret_value};
use crate::node::{Node, merge};
use crate::secret::is_sensitive_name;
use crate::settings::{SettingSlot, Settings};
use crate::sources::Layer;
use crate::spec::{Section, SettingSpec};
use crate::types::provider_key;
use crate::{SettingSource, SettingsError, SettingsWarning, display, validate};

impl Settings {
    /// Adds all sections that are known at the start. The root sections come first, so that their
    /// settings are listed together.
    ///
    /// Values are read when all keys are known: `BUB_SHOP_API_KEY` is the API key of a provider
    /// `shop`, unless a section declares `shop.api_key`.
    pub(crate) fn add_sections(
        &mut self,
        sections: impl Iterator<Item = Section>,
        problems: &mut Vec<SettingsError>,
    ) {
        let (root, named): (Vec<_>, Vec<_>) = sections.partition(|section| section.name.is_empty());
        let mut variables = HashSet::new();
        for section in root.into_iter().chain(named) {
            let name_problem = match &*section.name {
                "" => None,
                _ => self.name_problem(&section, false),
            };
            let problem = name_problem.or_else(|| keys_problem(&section, &mut variables));
            self.add_if_valid(section, problem, problems);
        }
        self.resolve_slots_from(0, problems);
    }

    /// Adds a section, for a plugin that is loaded after the settings.
    ///
    /// Returns the first problem as the error. A section with an invalid declaration is not added.
    /// A section with an invalid value is added, and that value is treated as not set.
    pub fn register(&mut self, section: Section) -> Result<(), SettingsError> {
        let mut problems = Vec::new();
        let first = self.slots.len();
        let problem = self.declaration_problem(&section, false);
        self.add_if_valid(section, problem, &mut problems);
        self.resolve_slots_from(first, &mut problems);
        problems.into_iter().next().map_or(Ok(()), Err)
    }

    /// Checks whether a section can be registered.
    ///
    /// A registered section with the same name is accepted if it was declared at run time, because
    /// the new section would replace it.
    pub fn check_registration(&self, section: &Section) -> Result<(), SettingsError> {
        let problem = self.declaration_problem(section, true);
        problem.map_or(Ok(()), |problem| Err(declaration_error(section, problem)))
    }

    fn add_if_valid(
        &mut self,
        section: Section,
        problem: Option<String>,
        problems: &mut Vec<SettingsError>,
    ) {
        if let Some(problem) = problem {
            problems.push(declaration_error(&section, problem));
            return;
        }
        if !self.sections.contains(&section.name) {
            problems.extend(self.section_problem(&section.name));
            self.sections.push(section.name);
        }
        let settings = section.settings.into_iter();
        self.slots.extend(settings.map(SettingSlot::new));
    }

    /// Returns what is wrong with the declaration of a section.
    ///
    /// With `replace`, a registered section of the same name is ignored if it was declared at run
    /// time.
    fn declaration_problem(&self, section: &Section, replace: bool) -> Option<String> {
        let is_kept = |spec: &&SettingSpec| {
            let section_name = spec.key.split_once('.').map(|(name, _)| name);
            !replace || section_name != Some(&*section.name)
        };
        let variables = self.specs().filter(is_kept).flat_map(|spec| {
            let deprecated = spec.deprecated_variables();
            deprecated.chain([spec.variable_uppercase()])
        });
        self.name_problem(section, replace)
            .or_else(|| keys_problem(section, &mut variables.collect()))
    }

    /// Returns what is wrong with the name of a section. `replace` has the same meaning as in
    /// [`declaration_problem`](Self::declaration_problem).
    fn name_problem(&self, section: &Section, replace: bool) -> Option<String> {
        if section.name.is_empty() || section.name.contains('.') {
            return Some("the name must not be empty or contain dots".to_owned());
        }
        let is_taken = |registered: &Cow<'_, str>| {
            *registered == section.name && !(replace && matches!(registered, Cow::Owned(_)))
        };
        if self.sections.iter().any(is_taken) {
            return Some("a section with this name already exists; choose another name".to_owned());
        }
        let is_setting = self.specs().any(|spec| spec.key == section.name);
        is_setting
            .then(|| "a setting with this name already exists; choose another name".to_owned())
    }

    pub(crate) fn resolve_slots_from(&mut self, first: usize, problems: &mut Vec<SettingsError>) {
        let mut warnings = Vec::new();
        let specs = self.specs().skip(first);
        let values: Vec<_> = specs
            .map(|spec| self.resolve_setting(spec, &mut warnings, problems))
            .collect();
        for (slot, value) in self.slots.iter_mut().skip(first).zip(values) {
            slot.value = value;
        }
        self.warnings.append(&mut warnings);
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
            let deprecated = (name != setting.key).then_some((name, node));
            warnings.extend(deprecated.into_iter().chain(in_config).map(|(old, node)| {
                SettingsWarning::Deprecated {
                    origin: node.origin.clone(),
                    name: old.to_owned(),
                    replacement: setting.key.to_string(),
                    is_ignored: old != name,
                }
            }));
            if setting.in_file {
                let read = validate::validate_node(setting, node.clone(), user_home);
                add(read.map_err(|error| error.with_name(&setting.key, name)));
            } else {
                warnings.push(SettingsWarning::NotInFile {
                    origin: node.origin.clone(),
                    name: setting.key.to_string(),
                    variable: setting.variable().into_owned(),
                });
            }
        }
        let layers = self.sources.text_layers(setting);
        warnings.extend(deprecated_variables(setting, &layers));
        for layer in layers {
            // `BUB_X_API_KEY` belongs to `x.api_key` instead of a provider if this setting exists.
            if layer.provider.is_some() && self.specs().any(|spec| spec.is_variable(layer.name)) {
                continue;
            }
            let in_workspace = matches!(layer.origin, SettingSource::DotEnv { .. });
            match self.read_layer(setting, layer) {
                // A `.env` often belongs to another program, so an invalid one must not keep bub from starting.
                Err(error) if in_workspace => {
                    let problem = error.to_string();
                    warnings.push(SettingsWarning::DotEnvValue { problem });
                }
                read => add(read),
            }
        }
        merged
    }

    fn read_layer(
        &self,
        setting: &SettingSpec,
        layer: Layer<'_>,
    ) -> Result<Option<Node>, SettingsError> {
        let Layer { origin, text, .. } = layer;
        let text = text.ok_or_else(|| SettingsError::NotText {
            location: origin.to_string(),
        })?;
        if setting.secret
            || (!setting.matches_format(text.trim()) && validate::may_contain_secret(setting, text))
        {
            // Register invalid text, too, because an error may mention it.
            self.redactor.register_text(text);
            if let SettingSource::Env(name) = &origin {
                self.hide_from_children(name);
            }
        }
        match layer.provider.map(|provider| provider_key(&provider)) {
            None => {
                let user_home = self.sources.environment.user_home();
                validate::parse_setting_text(setting, text, origin, user_home)
            }
            Some(_) if text.trim().is_empty() => Ok(None),
            Some(provider) => {
                validate::parse_provider_text(setting, provider, text, origin).map(Some)
            }
        }
    }

    fn register_secrets(&self, setting: &SettingSpec, node: &Node) {
        node.visit_leaves(&setting.key, &mut |key, leaf| {
            let secrets: Vec<_> = if display::is_secret(setting, key) {
                vec![leaf.text.as_str()]
            } else {
                let password = display::url_password(&leaf.text).into_iter();
                password.chain(display::query_secrets(&leaf.text)).collect()
            };
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
        let variables = self.sources.environment.iter();
        for (name, value) in variables {
            let value = value.to_string_lossy();
            // A path is no secret, even if a name such as `SSH_AUTH_SOCK` suggests one. The variables of settings are
            // declared as secrets or not: `BUB_WEBHOOK_LISTEN` is an address.
            let is_setting = name.to_ascii_uppercase().starts_with("BUB_");
            let is_named = has_secret_name(name) && !is_setting && !value.starts_with('/');
            if is_sensitive_name(name) {
                self.hide_from_children(name);
                self.redactor.register_text(value.trim());
            } else if is_named || has_secret_value(&value) {
                self.redactor.register_text(value.trim());
                if let Some(password) = display::url_password(&value) {
                    self.redactor.register_text(password);
                }
            }
        }
        let bindings = self.sources.dotenv.iter().flat_map(|file| &file.bindings);
        for binding in bindings.filter(|binding| is_sensitive_name(&binding.name)) {
            self.redactor.register_text(&binding.value);
        }
        for (key, node) in self.sources.config.iter().flat_map(Node::entries) {
            node.visit_leaves(key, &mut |key, leaf| {
                if is_sensitive_name(key) {
                    self.redactor.register_text(&leaf.text);
                }
            });
        }
    }
}

/// Returns the first problem of a section's keys: a key outside its section, or a variable that
/// belongs to another setting.
///
/// `variables` contains the variables of all other settings, in capitals. The variables of the
/// section are added.
fn keys_problem(section: &Section, variables: &mut HashSet<String>) -> Option<String> {
    section.settings.iter().find_map(|declared| {
        let setting = declared.setting();
        let key = &setting.key;
        let inside = match &*section.name {
            "" => Some(&**key),
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
        let has_variable = !setting.variable().is_empty();
        if has_variable && !variables.insert(setting.variable_uppercase()) {
            let variable = setting.variable();
            return Some(format!(
                "the variable {variable} belongs to another setting; choose another key"
            ));
        }
        variables.extend(setting.deprecated_variables());
        None
    })
}

fn declaration_error(section: &Section, problem: String) -> SettingsError {
    SettingsError::Declaration {
        section: section.name.to_string(),
        problem,
    }
}

/// Returns a warning for each variable of a former key. If a source also has the new variable, the
/// former one is ignored.
fn deprecated_variables(
    setting: &SettingSpec,
    layers: &[Layer<'_>],
) -> impl Iterator<Item = SettingsWarning> {
    let is_replaced = |old: &Layer<'_>| {
        layers.iter().any(|layer| {
            !layer.is_deprecated
                && layer.text.is_none_or(|text| !text.trim().is_empty())
                && discriminant(&layer.origin) == discriminant(&old.origin)
        })
    };
    let deprecated = layers.iter().filter(|layer| layer.is_deprecated);
    deprecated.map(move |layer| SettingsWarning::Deprecated {
        origin: layer.origin.clone(),
        name: layer.name.to_owned(),
        replacement: setting.variable().into_owned(),
        is_ignored: is_replaced(layer),
    })
}
