//! Lookup of settings by path, for templates, `bub config` and `bub doctor`.

use std::borrow::Cow;
use std::mem::discriminant;

use serde_json::Value;

use crate::node::{Atom, NodeData, Scalar};
use crate::secret::Secret;
use crate::settings::{SettingSlot, Settings};
use crate::spec::{AnySetting as _, SettingKey, SettingSpec};
use crate::{LookupError, SettingSource, display, suggest};

/// Value that [`Settings::get_value`] returns for a path.
#[derive(Debug, Clone, PartialEq)]
pub enum LookupValue {
    /// A value that may be shown. Secrets inside a map are masked.
    Value(Value),
    /// A single secret.
    Secret(Secret),
}

impl LookupValue {
    /// Returns the value in a form that may be shown.
    pub fn to_display_value(self) -> Value {
        match self {
            Self::Value(value) => value,
            Self::Secret(secret) => Value::from(secret.to_string()),
        }
    }
}

/// A declared setting with its effective value.
#[derive(Debug)]
pub struct SettingValue<'a> {
    /// The declaration.
    pub setting: &'a SettingSpec,
    /// Value with secrets masked.
    pub display_value: Value,
    /// Declared default.
    pub default: Value,
    /// Source of the value; for a merged map, the source with the highest precedence.
    pub origin: SettingSource,
}

impl Settings {
    /// Returns the value at a dotted path: a setting, a part of a map setting, or a section.
    ///
    /// Finds declared settings only. If the path starts with the keys of several settings, the
    /// longest key is used.
    pub fn get_value(&self, path: &str) -> Result<LookupValue, LookupError> {
        if path.is_empty() {
            return Err(LookupError::EmptyPath);
        }
        let value = match self.slot_for(path) {
            Some((slot, rest)) => self.lookup_part(slot, rest),
            None => self.section_values(path).map(LookupValue::Value),
        };
        value.ok_or_else(|| self.unknown_error(path))
    }

    pub(crate) fn unknown_error(&self, path: &str) -> LookupError {
        let keys = self.specs().map(|spec| &*spec.key);
        LookupError::Unknown {
            path: path.to_owned(),
            suggestion: suggest::closest_match(path, keys).map(str::to_owned),
        }
    }

    /// Returns the source of the value at a path. A part of a merged map has its own source.
    pub fn origin(&self, path: &str) -> Option<SettingSource> {
        let (slot, rest) = self.slot_for(path)?;
        let Some(node) = &slot.value else {
            return Some(SettingSource::Default);
        };
        node.descend(rest).map(|node| node.origin.clone())
    }

    /// Returns the text that one source has for a setting, regardless of sources with higher
    /// precedence.
    ///
    /// `source` selects the config file, `.env`, the environment or the flags. Only its variant
    /// counts; its name, file and line are ignored.
    pub fn text_from_source(
        &self,
        key: &SettingKey<Option<String>>,
        source: &SettingSource,
    ) -> Option<String> {
        let setting = key.setting();
        let fits = |text: &&str| !text.is_empty() && setting.matches_format(text);
        if let SettingSource::Config { .. } = source {
            return match &self.sources.config_value(setting)?.data {
                NodeData::Scalar(scalar) if scalar.atom != Atom::Null => {
                    Some(scalar.text.trim()).filter(fits).map(str::to_owned)
                }
                _ => None,
            };
        }
        let layers = self.sources.text_layers(setting).into_iter();
        let texts = layers.filter_map(|layer| {
            let is_there = discriminant(&layer.origin) == discriminant(source);
            layer.text.filter(|_| is_there)
        });
        texts.map(str::trim).rfind(fits).map(str::to_owned)
    }

    /// Returns all declared settings in the order of declaration.
    pub fn entries(&self) -> impl Iterator<Item = SettingValue<'_>> {
        self.slots.iter().map(|slot| SettingValue {
            setting: slot.spec(),
            display_value: self.slot_display_value(slot),
            default: slot.declared.default_value(),
            origin: match &slot.value {
                Some(node) => node.origin.clone(),
                None => SettingSource::Default,
            },
        })
    }

    /// Returns the path with the current key of its setting if it starts with a former key. Returns
    /// other paths unchanged.
    pub fn current_path<'p>(&self, path: &'p str) -> Cow<'p, str> {
        match self.slot_and_name(path) {
            Some((slot, name)) if name != slot.spec().key => {
                Cow::Owned(path.replacen(name, &slot.spec().key, 1))
            }
            _ => Cow::Borrowed(path),
        }
    }

    /// Returns the setting whose key or former key is a prefix of `path`, and the matching key. If
    /// several match, returns the longest.
    fn slot_and_name(&self, path: &str) -> Option<(&SettingSlot, &str)> {
        let slots = self.slots.iter();
        let names = slots.flat_map(|slot| slot.spec().names().map(move |name| (slot, name)));
        let matching = names.filter(|(_, name)| {
            let rest = path.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        });
        matching.max_by_key(|(_, name)| name.len())
    }

    /// Returns the setting whose key or former key is a prefix of `path`, and the remaining path.
    pub(crate) fn slot_for<'p>(
        &self,
        path: &'p str,
    ) -> Option<(
        &SettingSlot,
        impl Iterator<Item = &'p str> + Clone + use<'p>,
    )> {
        let (slot, name) = self.slot_and_name(path)?;
        let rest = path.get(name.len() + 1..).unwrap_or_default();
        Some((slot, rest.split('.').filter(|_| !rest.is_empty())))
    }

    fn lookup_part<'p>(
        &self,
        slot: &'p SettingSlot,
        rest: impl Iterator<Item = &'p str> + Clone,
    ) -> Option<LookupValue> {
        let setting = slot.spec();
        let Some(node) = &slot.value else {
            let default = self.slot_display_value(slot);
            let value = rest
                .clone()
                .try_fold(&default, |value, key| value.get(key))?;
            return Some(LookupValue::Value(value.clone()));
        };
        let name = rest
            .clone()
            .fold(&*setting.key, display::secret_deciding_name);
        let node = node.descend(rest)?;
        Some(match (&node.data, display::to_value(setting, node)) {
            (NodeData::Scalar(Scalar { text, atom }), _)
                if *atom != Atom::Null && display::is_secret(setting, name) =>
            {
                LookupValue::Secret(Secret::from(text.as_str()))
            }
            // `api_key: abc` is stored as a map with one entry for all providers.
            (_, Value::String(text)) if setting.secret => LookupValue::Secret(Secret::from(text)),
            _ => LookupValue::Value(display::to_masked_value(setting, name, node)),
        })
    }

    fn slot_display_value(&self, slot: &SettingSlot) -> Value {
        match &slot.value {
            Some(node) => display::to_masked_value(slot.spec(), &slot.spec().key, node),
            None => self.default_value(&*slot.declared),
        }
    }

    fn section_values(&self, section: &str) -> Option<Value> {
        self.sections
            .iter()
            .find(|name| !name.is_empty() && *name == section)?;
        let slots = self.slots.iter().filter_map(|slot| {
            let name = slot.spec().key.strip_prefix(section)?.strip_prefix('.')?;
            Some((name.to_owned(), self.slot_display_value(slot)))
        });
        Some(Value::Object(slots.collect()))
    }
}
