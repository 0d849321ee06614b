//! Settings by path, for templates, `bub config` and `bub doctor`.

use std::mem::discriminant;

use serde_json::{Map, Value};

use crate::declare::{Declared as _, Key, Setting};
use crate::node::{Atom, Data, Node, Scalar};
use crate::secret::Secret;
use crate::settings::{Settings, Slot};
use crate::sources::Layer;
use crate::{LookupError, Origin, show, suggest};

/// What a path leads to.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// A value that may be shown. Secrets inside a map are masked.
    Value(Value),
    /// A single secret.
    Secret(Secret),
}

impl Found {
    /// The value as it may be shown.
    pub fn shown(self) -> Value {
        match self {
            Self::Value(value) => value,
            Self::Secret(secret) => Value::from(secret.to_string()),
        }
    }
}

/// One declared setting with the value in force.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The declaration.
    pub setting: &'a Setting,
    /// The value, secrets masked.
    pub shown: Value,
    /// The declared default.
    pub default: Value,
    /// Where the value came from; for a merged map, its strongest source.
    pub origin: Origin,
}

impl Settings {
    /// The value at a dotted path: a setting, a part of a map-valued one, or a whole section.
    ///
    /// Only declared settings are found, in their sections first and then at the root.
    pub fn get_value(&self, path: &str) -> Result<Found, LookupError> {
        if path.is_empty() {
            return Err(LookupError::EmptyPath);
        }
        let found = match self.slot_for(path) {
            Some((slot, rest)) => self.part(slot, rest),
            None => self
                .section_values(path)
                .map(|values| Found::Value(Value::Object(values))),
        };
        found.ok_or_else(|| LookupError::Unknown {
            path: path.to_owned(),
            suggestion: self.similar(path),
        })
    }

    /// Where the value at a path came from. A part of a merged map has its own origin.
    pub fn origin(&self, path: &str) -> Option<Origin> {
        let (slot, rest) = self.slot_for(path)?;
        let Some(node) = &slot.value else {
            return Some(Origin::Default);
        };
        node.descend(rest).map(|node| node.origin.clone())
    }

    /// What one place says about a text, whatever stronger places say: the config file, the `.env`, the environment or
    /// the flags, whichever this origin is of.
    pub fn text_in(&self, key: &Key<Option<String>>, place: &Origin) -> Option<String> {
        let setting = key.setting();
        let fits = |text: &&str| !text.is_empty() && setting.fits(text);
        if let Origin::Config { .. } = place {
            return match &self.sources.in_config(setting)?.data {
                Data::Scalar(scalar) if scalar.atom != Atom::Null => {
                    Some(scalar.text.trim()).filter(fits).map(str::to_owned)
                }
                _ => None,
            };
        }
        let is_there = |layer: &Layer<'_>| {
            !layer.distrusted && discriminant(&layer.origin) == discriminant(place)
        };
        let layers = self.sources.texts(setting);
        let texts = layers
            .iter()
            .filter(|layer| is_there(layer))
            .filter_map(|layer| layer.text);
        texts.map(str::trim).rfind(fits).map(str::to_owned)
    }

    /// Every declared setting, in the order of declaration.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.slots.iter().map(|slot| Entry {
            setting: slot.setting(),
            shown: self.shown(slot),
            default: slot.declared().default_value(),
            origin: slot
                .value
                .as_ref()
                .map_or(Origin::Default, |node| node.origin.clone()),
        })
    }

    /// The setting whose key `path` starts with, and what is left of the path.
    pub(crate) fn slot_for<'p>(
        &self,
        path: &'p str,
    ) -> Option<(&Slot, impl Iterator<Item = &'p str> + Clone + use<'p>)> {
        let fits = |slot: &&Slot| {
            let rest = path.strip_prefix(slot.setting().key());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let slot = self
            .slots
            .iter()
            .filter(fits)
            .max_by_key(|slot| slot.setting().key().len())?;
        let rest = path
            .get(slot.setting().key().len() + 1..)
            .unwrap_or_default();
        Some((slot, rest.split('.').filter(|_| !rest.is_empty())))
    }

    fn part<'p>(
        &self,
        slot: &'p Slot,
        rest: impl Iterator<Item = &'p str> + Clone,
    ) -> Option<Found> {
        let setting = slot.setting();
        let Some(node) = &slot.value else {
            let default = self.shown(slot);
            return rest
                .clone()
                .try_fold(&default, |value, key| value.get(key))
                .cloned()
                .map(Found::Value);
        };
        let name = rest.clone().fold(setting.key(), show::name_in);
        let shown = |node| Found::Value(show::masked(setting, name, node));
        let node = node.descend(rest)?;
        Some(match &node.data {
            Data::Scalar(Scalar { text, atom })
                if *atom != Atom::Null && show::is_secret(setting, name) =>
            {
                Found::Secret(Secret::from(text.as_str()))
            }
            _ => only_secret(setting, node).unwrap_or_else(|| shown(node)),
        })
    }

    fn shown(&self, slot: &Slot) -> Value {
        match &slot.value {
            Some(node) => show::masked(slot.setting(), slot.setting().key(), node),
            None => self.default_of(slot.declared()),
        }
    }

    fn section_values(&self, section: &str) -> Option<Map<String, Value>> {
        self.sections
            .iter()
            .find(|name| !name.is_empty() && *name == section)?;
        let slots = self.slots.iter().filter_map(|slot| {
            let name = slot
                .setting()
                .key()
                .strip_prefix(section)?
                .strip_prefix('.')?;
            Some((name.to_owned(), self.shown(slot)))
        });
        Some(slots.collect())
    }

    pub(crate) fn similar(&self, path: &str) -> Option<String> {
        suggest::closest(path, self.slots.iter().map(|slot| slot.setting().key()))
            .map(str::to_owned)
    }
}

/// `api_key: abc` is kept as a map of one entry for all providers, but it is one secret.
fn only_secret(setting: &Setting, node: &Node) -> Option<Found> {
    match show::value(setting, node) {
        Value::String(text) if setting.is_secret() => Some(Found::Secret(Secret::from(text))),
        _ => None,
    }
}
