//! A small ordered map of named JSON values: what envelopes and state are made of.
//!
//! These maps hold about ten names, most of them known at compile time. A vector keeps insertion
//! order, needs one allocation for all of them and none for a static name, which is measurably
//! cheaper in a turn than a tree or a hash map of owned strings.

use std::{borrow::Cow, collections::HashMap};

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};

/// The name of a field: static where the code knows it.
pub type FieldName = Cow<'static, str>;

/// From here on, looking for each name costs more than an index of all names.
const INDEX_THRESHOLD: usize = 64;

/// Named values in insertion order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields(Vec<(FieldName, Value)>);

impl Fields {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// No fields yet, with room for `capacity`.
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
    }

    /// The value of a field when it is a string.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_str)
    }

    /// Sets a field; one that exists keeps its place.
    pub fn set(&mut self, name: impl Into<FieldName>, value: impl Into<Value>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// The same with a field set: for building in one expression.
    #[must_use]
    pub fn with(mut self, name: impl Into<FieldName>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Removes a field and returns what it held.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.remove(at).1)
    }

    /// Takes over all of `incoming`, which wins where both have a name.
    pub fn merge(&mut self, incoming: Self) {
        if self.0.is_empty() {
            *self = incoming;
            return;
        }
        if self.len().saturating_add(incoming.len()) > INDEX_THRESHOLD {
            return self.merge_many(incoming);
        }
        for (name, value) in incoming.0 {
            self.set(name, value);
        }
    }

    fn merge_many(&mut self, incoming: Self) {
        let mut places: HashMap<FieldName, usize> = self
            .0
            .iter()
            .enumerate()
            .map(|(place, (name, _))| (name.clone(), place))
            .collect();
        for (name, value) in incoming.0 {
            let place = *places.entry(name.clone()).or_insert(self.0.len());
            match self.0.get_mut(place) {
                Some((_, old)) => *old = value,
                None => self.0.push((name, value)),
            }
        }
    }

    /// The fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: Into<FieldName>, V: Into<Value>> FromIterator<(N, V)> for Fields {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(items: I) -> Self {
        let pairs = items
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        let mut fields = Self::new();
        // Names may repeat: the later one counts.
        fields.merge_many(Self(pairs.collect()));
        fields
    }
}

impl From<Map<String, Value>> for Fields {
    fn from(map: Map<String, Value>) -> Self {
        Self(
            map.into_iter()
                .map(|(name, value)| (FieldName::Owned(name), value))
                .collect(),
        )
    }
}

impl From<Fields> for Map<String, Value> {
    fn from(fields: Fields) -> Self {
        fields
            .0
            .into_iter()
            .map(|(name, value)| (name.into_owned(), value))
            .collect()
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for (name, value) in self.iter() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(Self::from)
    }
}
