//! Lookup of settings by path, for templates, `bub config` and `bub doctor`.

use std::borrow::Cow;
use std::mem::discriminant;

use serde_json::{Map, Value};

use crate::node::{Atom, Node, NodeData, Scalar};
use crate::secret::Secret;
use crate::settings::{SettingSlot, Settings};
use crate::sources::Layer;
use crate::spec::{AnySetting as _, SettingKey, SettingSpec};
use crate::{LookupError, SettingSource, display, suggest};

/// Value at a path.
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
    /// Finds declared settings only, first in their sections and then at the root.
    pub fn get_value(&self, path: &str) -> Result<LookupValue, LookupError> {
        if path.is_empty() {
            return Err(LookupError::EmptyPath);
        }
        let value = match self.slot_for(path) {
            Some((slot, rest)) => self.lookup_part(slot, rest),
            None => self
                .section_values(path)
                .map(|values| LookupValue::Value(Value::Object(values))),
        };
        value.ok_or_else(|| LookupError::Unknown {
            path: path.to_owned(),
            suggestion: self.suggest_key(path),
        })
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
    /// `source` selects the config file, `.env`, the environment or the flags.
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
        let is_there = |layer: &Layer<'_>| {
            !layer.distrusted && discriminant(&layer.origin) == discriminant(source)
        };
        let layers = self.sources.text_layers(setting);
        let texts = layers
            .iter()
            .filter(|layer| is_there(layer))
            .filter_map(|layer| layer.text);
        texts.map(str::trim).rfind(fits).map(str::to_owned)
    }

    /// Returns all declared settings in the order of declaration.
    pub fn entries(&self) -> impl Iterator<Item = SettingValue<'_>> {
        self.slots.iter().map(|slot| SettingValue {
            setting: slot.spec(),
            display_value: self.slot_display_value(slot),
            default: slot.declared().default_value(),
            origin: slot
                .value
                .as_ref()
                .map_or(SettingSource::Default, |node| node.origin.clone()),
        })
    }

    /// Returns a path with the new key of a setting if it starts with a former one.
    pub fn current_path<'p>(&self, path: &'p str) -> Cow<'p, str> {
        let renamed = self.slot_and_name(path).and_then(|(slot, name)| {
            let key = slot.spec().key();
            let rest = path.strip_prefix(name)?;
            (name != key).then(|| format!("{key}{rest}"))
        });
        renamed.map_or(Cow::Borrowed(path), Cow::Owned)
    }

    /// Returns the setting with a key that is a prefix of `path`, and that key, which may be a
    /// former one.
    fn slot_and_name(&self, path: &str) -> Option<(&SettingSlot, &str)> {
        self.slots
            .iter()
            .flat_map(|slot| slot.spec().names().map(move |name| (slot, name)))
            .filter(|(_, name)| {
                let rest = path.strip_prefix(name);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
            .max_by_key(|(_, name)| name.len())
    }

    /// Returns the setting whose key is a prefix of `path`, and the remaining path.
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
            return rest
                .clone()
                .try_fold(&default, |value, key| value.get(key))
                .cloned()
                .map(LookupValue::Value);
        };
        let name = rest
            .clone()
            .fold(setting.key(), display::secret_deciding_name);
        let masked = |node| LookupValue::Value(display::to_masked_value(setting, name, node));
        let node = node.descend(rest)?;
        Some(match &node.data {
            NodeData::Scalar(Scalar { text, atom })
                if *atom != Atom::Null && display::is_secret(setting, name) =>
            {
                LookupValue::Secret(Secret::from(text.as_str()))
            }
            _ => single_secret(setting, node).unwrap_or_else(|| masked(node)),
        })
    }

    fn slot_display_value(&self, slot: &SettingSlot) -> Value {
        match &slot.value {
            Some(node) => display::to_masked_value(slot.spec(), slot.spec().key(), node),
            None => self.default_value(slot.declared()),
        }
    }

    fn section_values(&self, section: &str) -> Option<Map<String, Value>> {
        self.sections
            .iter()
            .find(|name| !name.is_empty() && *name == section)?;
        let slots = self.slots.iter().filter_map(|slot| {
            let name = slot.spec().key().strip_prefix(section)?.strip_prefix('.')?;
            Some((name.to_owned(), self.slot_display_value(slot)))
        });
        Some(slots.collect())
    }

    pub(crate) fn suggest_key(&self, path: &str) -> Option<String> {
        suggest::closest_match(path, self.slots.iter().map(|slot| slot.spec().key()))
            .map(str::to_owned)
    }
}

/// Returns the single secret of a node. `api_key: abc` is stored as a map with one entry for all
/// providers.
fn single_secret(setting: &SettingSpec, node: &Node) -> Option<LookupValue> {
    match display::to_value(setting, node) {
        Value::String(text) if setting.is_secret() => Some(LookupValue::Secret(Secret::from(text))),
        _ => None,
    }
}
