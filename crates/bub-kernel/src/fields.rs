//! A small ordered map of named JSON values, used by envelopes and state.
//!
//! These maps hold about ten names, most of them known at compile time. A vector keeps insertion order and needs one
//! allocation for all fields. A static name needs no allocation. In a turn, a vector is measurably cheaper than a tree
//! or a hash map of owned strings.

use std::{borrow::Cow, collections::HashMap};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// The name of a field. Names known at compile time are not allocated.
pub type FieldName = Cow<'static, str>;

/// Total number of fields above which `merge` finds names with a hash map, not by linear search.
const INDEX_THRESHOLD: usize = 64;

/// Named values in insertion order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields(Vec<(FieldName, Value)>);

impl Fields {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty map with space for `capacity` fields.
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    /// Returns the value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let (_, value) = self.0.iter().find(|(key, _)| key == name)?;
        Some(value)
    }

    /// Returns the value of a field if it is a string.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_str)
    }

    /// Sets a field. An existing field keeps its position.
    pub fn set(&mut self, name: impl Into<FieldName>, value: impl Into<Value>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some((_, existing)) => *existing = value,
            None => self.0.push((name, value)),
        }
    }

    /// Sets a field and returns the map.
    #[must_use]
    pub fn with(mut self, name: impl Into<FieldName>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Removes a field and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let index = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.remove(index).1)
    }

    /// Adds all fields of `incoming`. If both maps have a field, the value of `incoming` wins.
    pub fn merge(&mut self, incoming: Self) {
        if self.0.is_empty() {
            *self = incoming;
            return;
        }
        if self.len().saturating_add(incoming.len()) > INDEX_THRESHOLD {
            return self.merge_with_index(incoming);
        }
        for (name, value) in incoming.0 {
            self.set(name, value);
        }
    }

    fn merge_with_index(&mut self, incoming: Self) {
        let mut indexes: HashMap<FieldName, usize> = self
            .0
            .iter()
            .enumerate()
            .map(|(index, (name, _))| (name.clone(), index))
            .collect();
        for (name, value) in incoming.0 {
            let index = *indexes.entry(name.clone()).or_insert(self.0.len());
            match self.0.get_mut(index) {
                Some((_, existing)) => *existing = value,
                None => self.0.push((name, value)),
            }
        }
    }

    /// Returns the fields in insertion order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the map has no fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: Into<FieldName>, V: Into<Value>> FromIterator<(N, V)> for Fields {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(items: I) -> Self {
        let pairs = items.into_iter();
        let pairs = pairs.map(|(name, value)| (name.into(), value.into()));
        let mut fields = Self::new();
        // Names may repeat. The last value wins.
        fields.merge_with_index(Self(pairs.collect()));
        fields
    }
}

impl From<Map<String, Value>> for Fields {
    fn from(map: Map<String, Value>) -> Self {
        let fields = map.into_iter();
        Self(fields.map(|(name, value)| (name.into(), value)).collect())
    }
}

impl From<Fields> for Map<String, Value> {
    fn from(fields: Fields) -> Self {
        let fields = fields.0.into_iter();
        fields.map(|(name, value)| (name.into(), value)).collect()
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(Self::from)
    }
}
