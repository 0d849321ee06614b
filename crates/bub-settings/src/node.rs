//! The tree that every source is read into, and the merge of two sources.

use std::mem;

use indexmap::IndexMap;

use crate::SettingSource;

/// A value with its source. Each leaf keeps its own source, so the source of every entry of a
/// merged map is known.
///
/// `Debug` exists only in tests, because a tree may hold secrets.
#[derive(Clone, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Node {
    pub(crate) data: NodeData,
    pub(crate) origin: SettingSource,
}

/// Kind and content of a value.
#[derive(Clone, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum NodeData {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(NodeMap),
}

/// A leaf: the text as written, and the type and value that YAML gives it.
///
/// Keeping both lets the declaration decide: `api_key: 0123` is the text `0123` for a text setting,
/// and `010` is the number 8 only where a number is expected.
#[derive(Clone, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Scalar {
    pub(crate) text: String,
    pub(crate) atom: Atom,
}

/// Type and value that YAML gives to a scalar, before the declaration of a setting is applied.
#[derive(Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Atom {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text,
}

/// A map in the order of its source.
#[derive(Clone, PartialEq, Default)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct NodeMap {
    pub(crate) entries: IndexMap<String, Node>,
    /// Whether the map replaces values with lower precedence instead of merging with them.
    pub(crate) replaces_lower: bool,
}

impl NodeData {
    pub(crate) const NULL: Self = Self::Scalar(Scalar {
        text: String::new(),
        atom: Atom::Null,
    });

    pub(crate) fn scalar(text: impl Into<String>, atom: Atom) -> Self {
        let text = text.into();
        Self::Scalar(Scalar { text, atom })
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::scalar(text, Atom::Text)
    }

    pub(crate) fn map(entries: impl IntoIterator<Item = (String, Node)>) -> Self {
        Self::Map(NodeMap {
            entries: entries.into_iter().collect(),
            replaces_lower: false,
        })
    }

    /// Returns a map that replaces a map with lower precedence instead of merging with it.
    pub(crate) fn replacing_map(entries: impl IntoIterator<Item = (String, Node)>) -> Self {
        Self::Map(NodeMap {
            entries: entries.into_iter().collect(),
            replaces_lower: true,
        })
    }

    /// Returns the value with its source.
    pub(crate) fn at(self, origin: SettingSource) -> Node {
        Node { data: self, origin }
    }
}

impl Node {
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.data, NodeData::Scalar(scalar) if scalar.atom == Atom::Null)
    }

    /// Returns the entries of a map; nothing for other values.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&String, &Self)> {
        match &self.data {
            NodeData::Map(map) => Some(map.entries.iter()),
            NodeData::Scalar(_) | NodeData::List(_) => None,
        }
        .into_iter()
        .flatten()
    }

    /// Follows map keys and list indexes downwards.
    pub(crate) fn descend<'a>(&self, mut path: impl Iterator<Item = &'a str>) -> Option<&Self> {
        path.try_fold(self, |node, key| match &node.data {
            NodeData::Map(map) => map.entries.get(key),
            NodeData::List(items) => items.get(key.parse::<usize>().ok()?),
            NodeData::Scalar(_) => None,
        })
    }

    /// Returns the number of nodes in the tree.
    pub(crate) fn node_count(&self) -> usize {
        let mut below = match &self.data {
            NodeData::List(items) => items.iter().map(Self::node_count).sum(),
            _ => self.entries().map(|(_, value)| value.node_count()).sum(),
        };
        below += 1;
        below
    }

    /// Calls `visit` with the key above each leaf and the leaf itself.
    pub(crate) fn visit_leaves<'a>(
        &'a self,
        key: &'a str,
        visit: &mut dyn FnMut(&str, &'a Scalar),
    ) {
        match &self.data {
            NodeData::Scalar(scalar) => visit(key, scalar),
            NodeData::List(items) => items.iter().for_each(|item| item.visit_leaves(key, visit)),
            NodeData::Map(map) => {
                let entries = map.entries.iter();
                entries.for_each(|(key, value)| value.visit_leaves(key, visit));
            }
        }
    }
}

/// Merges two trees: maps merge key by key, other values are replaced by `upper`.
///
/// A map that replaces a scalar or a list is marked. Then it also replaces a map of a third tree
/// with lower precedence, so that the order of the merges does not matter. Without the mark, `{a}`,
/// `1` and `{b}` would become `{b}` if merged from the left, but `{a, b}` from the right.
pub(crate) fn merge(lower: Node, upper: Node) -> Node {
    let Node { data, origin } = upper;
    let data = match (lower.data, data) {
        (NodeData::Map(mut below), NodeData::Map(above)) if !above.replaces_lower => {
            for (key, value) in above.entries {
                let value = match below.entries.get_mut(&key) {
                    Some(lower) => merge(
                        mem::replace(lower, NodeData::NULL.at(SettingSource::Default)),
                        value,
                    ),
                    None => value,
                };
                below.entries.insert(key, value);
            }
            NodeData::Map(below)
        }
        (NodeData::Scalar(_) | NodeData::List(_), NodeData::Map(above)) => NodeData::Map(NodeMap {
            replaces_lower: true,
            ..above
        }),
        (_, above) => above,
    };
    Node { data, origin }
}

#[cfg(test)]
#[path = "node/tests.rs"]
mod tests;
